"""Who leads where a disk has lost a log (INV-NRP3)."""

from typing import Any, cast

import pytest

from region_broker.controller.cluster_commands import ChangeInSync, DrainNode, ElectLeader
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node.lost_logs import LostLogs
from tests.fixtures.cluster_images import after, in_sync, leader_epoch, led_by_one, life, member


class Looked(Exception):
    """It waits, and would look again."""


class Clock:
    async def sleep_ms(self, _duration_ms: float) -> None:
        raise Looked


class Store:
    """Metadata, and what was asked of them."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image
        self.asked: list[object] = []

    async def apply(self, command: object) -> None:
        self.asked.append(command)


class Table:
    """A disk that has lost a log."""

    def __init__(self) -> None:
        self.left = ["orders-0"]

    def lost(self) -> list[str]:
        return self.left

    def take_note_of_lost(self) -> None:
        self.left = []


def lost_at(me: int, image: MetadataImage) -> tuple[LostLogs, Store, Table]:
    store, table = Store(image), Table()
    made = LostLogs(
        member(me), life(me), cast("Any", store), cast("Any", table), cast("Any", Clock())
    )
    return made, store, table


async def test_INV_NRP3_another_one_in_sync_is_to_lead() -> None:
    lost, store, _ = lost_at(1, in_sync())
    with pytest.raises(Looked):
        await lost.let_another_lead()
    assert store.asked == [DrainNode(1, life(1))]


async def test_INV_NRP3_where_no_other_is_in_sync_this_one_leads_whoever_is_registered() -> None:
    lost, store, _ = lost_at(1, led_by_one())
    await lost.let_another_lead()
    assert store.asked == []


def test_INV_NRP3_what_was_lost_is_there_again_once_a_leader_has_taken_this_node_in() -> None:
    both = after(led_by_one(), ChangeInSync(member(1), leader_epoch(1), (member(1), member(2)), 1))
    lost, _, table = lost_at(2, in_sync())
    lost.take_image(in_sync())
    assert table.left, "it was in sync all the time, without having copied anything"
    lost.take_image(led_by_one())
    lost.take_image(both)
    assert not table.left


def test_INV_NRP3_who_leads_itself_has_copied_nothing() -> None:
    lost, _, table = lost_at(2, led_by_one())
    both = after(led_by_one(), ChangeInSync(member(1), leader_epoch(1), (member(1), member(2)), 1))
    lost.take_image(after(both, ElectLeader(member(2), leader_epoch(2), 2)))
    assert table.left
