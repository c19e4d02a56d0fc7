"""What a node gives another one of its region of a log, and what it does not."""

from typing import Any, cast

import pytest

from region_broker.controller.cluster_commands import ChangeInSync, ElectLeader
from region_broker.controller.metadata_image import MetadataImage
from region_broker.log.cleaning.state import CleanMark
from region_broker.region.mending import node_ranges, range_side
from region_broker.region.mending.node_ranges import AskNodeRange, NodeRanges, NodeRangeSide
from region_broker.region.peers.protocol import PeerRefused
from region_broker.region.peers.sessions import NodeSession
from tests.fixtures.cluster_images import (
    after,
    born,
    in_sync,
    leader_epoch,
    led_by_one,
    member,
)
from tests.fixtures.node_logs import TOPIC_ID, Fixture
from tests.fixtures.scrubbing import BATCHES, filled


def ask(some: Fixture, from_offset: int, to_offset: int) -> None:
    message = AskNodeRange(
        topic_id=TOPIC_ID, partition=0, from_offset=from_offset, to_offset=to_offset, bytes_max=1
    )
    assert NodeRangeSide(some.table)._admitted(message) is some.partition


def test_INV_NRG1_what_is_committed_and_has_something_committed_behind_it_may_leave() -> None:
    some = filled()
    ask(some, 0, BATCHES - 1)
    for from_offset, to_offset in ((0, BATCHES), (3, 3), (-1, 2)):
        with pytest.raises(PeerRefused, match="is not within"):
            ask(some, from_offset, to_offset)
    some.partition.commit_up_to(5)
    ask(some, 0, 4)
    with pytest.raises(PeerRefused, match="is not within"):
        ask(some, 0, 5)


def test_INV_NRG1_nothing_leaves_where_a_cleaning_may_have_taken_records_away() -> None:
    some = filled()
    some.partition.log.cleaning.note(CleanMark(first_dirty_offset=4, holes_below=4))
    ask(some, 4, 8)
    with pytest.raises(PeerRefused, match="is not within"):
        ask(some, 3, 8)


def test_INV_NRG1_nothing_leaves_of_a_log_that_has_stopped() -> None:
    some = filled()
    some.partition.stop("its disk has failed")
    with pytest.raises(PeerRefused, match="no such log here that runs"):
        ask(some, 0, 4)


@pytest.mark.parametrize("becomes", ["cleaned", "stopped"])
async def test_INV_NRG1_nor_what_was_cleaned_or_has_stopped_while_it_was_read(
    monkeypatch: pytest.MonkeyPatch, becomes: str
) -> None:
    some = filled()
    real = range_side.sound_range

    async def sound_range(*arguments: Any) -> Any:
        found = await real(*arguments)
        if becomes == "cleaned":
            some.partition.log.cleaning.note(CleanMark(first_dirty_offset=4, holes_below=4))
        else:
            some.partition.stop("its disk has failed")
        return found

    message = AskNodeRange(
        topic_id=TOPIC_ID, partition=0, from_offset=0, to_offset=2, bytes_max=1 << 20
    )
    side, session = NodeRangeSide(some.table), cast("NodeSession", None)
    assert (await side._on_ask(session, message, memoryview(b""))).attachment
    monkeypatch.setattr(node_ranges, "sound_range", sound_range)
    with pytest.raises(PeerRefused):
        await side._on_ask(session, message, memoryview(b""))


def test_INV_NRG3_asked_are_who_leads_first_and_who_is_in_sync_and_nobody_else() -> None:
    def asked(image: MetadataImage, me: int) -> list[int]:
        ranges = NodeRanges(me=member(me), image=lambda: image, line=cast("Any", None))
        return [other.node_id for other in ranges._others()]

    led_by_three = after(in_sync(), ElectLeader(member(3), leader_epoch(2), 2))
    assert asked(led_by_three, 1) == [3, 2]
    assert asked(led_by_three, 3) == [1, 2], "not itself"
    two = after(led_by_one(), ChangeInSync(member(1), leader_epoch(1), (member(1), member(2)), 1))
    assert asked(two, 2) == [1], "node 3 is registered, and may lack what was committed"
    assert asked(two, 3) == [1, 2]
    assert asked(born(), 1) == []
