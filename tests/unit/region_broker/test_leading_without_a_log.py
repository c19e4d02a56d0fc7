"""Who leads where a disk has lost a log (INV-NRP3)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest

from region_broker.controller.cluster_commands import ChangeInSync, ElectLeader
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.node.lost_logs import LostLogs, LostLogsParts
from region_broker.partitions.table import PartitionTable
from tests.fixtures.cluster_images import after, in_sync, leader_epoch, led_by_one, member
from tests.fixtures.node_logs import TOPIC_ID
from tests.fixtures.scrubbing import filled


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


def lost_at(
    me: int, image: MetadataImage, damaged: frozenset[Member] = frozenset()
) -> tuple[LostLogs, Store, PartitionTable]:
    """Return what is looked at where the disk of `me` has lost its only log, which is copied from whoever leads."""
    store, table = Store(image), filled().table
    table._made.note_lost(TOPIC_ID, 0)
    parts = LostLogsParts(
        me=member(me), metadata=cast("Any", store), partitions=table, clock=cast("Any", Clock()),
        line=cast("Any", SimpleNamespace()), copies=lambda _key, _leader_epoch: True, damaged=lambda: damaged,
    )  # fmt: skip
    return LostLogs(parts), store, table


async def test_INV_NRP3_another_one_in_sync_is_to_lead() -> None:
    lost, store, _ = lost_at(1, in_sync())
    with pytest.raises(Looked):
        await lost.let_another_lead()
    assert store.asked == [ElectLeader(member(2), leader_epoch(2), 2)]


async def test_INV_NRP3_INV_CV5_one_in_sync_that_is_sound_is_to_lead() -> None:
    lost, store, _ = lost_at(1, in_sync(), frozenset({member(2)}))
    with pytest.raises(Looked):
        await lost.let_another_lead()
    assert store.asked == [ElectLeader(member(3), leader_epoch(2), 2)]


async def test_INV_NRP3_where_no_other_is_in_sync_this_one_leads_whoever_is_registered() -> None:
    lost, store, _ = lost_at(1, led_by_one())
    await lost.let_another_lead()
    assert store.asked == []


def test_INV_NRP3_in_sync_all_the_time_it_has_copied_nothing() -> None:
    lost, _, table = lost_at(2, in_sync())
    lost.take_image(in_sync())
    assert table.lost(), "it was in sync all the time, without having copied anything"


async def test_INV_NRP3_who_leads_itself_has_copied_nothing() -> None:
    both = after(led_by_one(), ChangeInSync(member(1), leader_epoch(1), (member(1), member(2)), 1))
    led_by_two = after(both, ElectLeader(member(2), leader_epoch(2), 2))
    lost, _, table = lost_at(2, led_by_two)
    await lost.look()
    assert table.lost()
