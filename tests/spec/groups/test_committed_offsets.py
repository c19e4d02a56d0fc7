"""Committed offsets without end: what they take of memory is bounded, and who has filled it keeps nobody else out."""

import asyncio
import logging
from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import pytest

from idempotency.identity import ProducerEpoch, ProducerId
from region_broker.groups.messages import (
    CommitOutcome,
    CommitRequest,
    MemberIdentity,
    OffsetToCommit,
)
from region_broker.groups.modern.messages import HeartbeatRequest
from region_broker.groups.offsets import WEIGHED_CHARS
from region_broker.groups.ports import TxnProducer
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF
from region_broker.handlers.transactions import txn_offset_commit
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, FEW_OFFSETS
from tests.unit.region_broker.groups.fakes import Fixture, running, stable_member, tp, who

FEW = range(FEW_OFFSETS)
INVALID_COMMIT_OFFSET_SIZE = 28
PRODUCER = TxnProducer(ProducerId(7), ProducerEpoch(0))
ANOTHER = TxnProducer(ProducerId(8), ProducerEpoch(0))


def of(group_id: str, partitions: Iterable[int], *, heavy: int = 1) -> CommitRequest:
    """Return a commit of offsets that count as `heavy` each."""
    metadata = "m" * WEIGHED_CHARS * (heavy - 1)
    offsets = tuple(OffsetToCommit(tp(n), 1, metadata=metadata) for n in partitions)
    return CommitRequest(group_id=group_id, offsets=offsets)


async def refused(fixture: Fixture, request: CommitRequest) -> int:
    """Commit; return how many offsets were refused, all for want of room."""
    outcome = await fixture.groups.commit_offsets(request)
    told = Counter(outcome.of(offset.tp) for offset in request.offsets)
    assert told.keys() <= {V.OK, V.TOO_MANY_OFFSETS}
    return told[V.TOO_MANY_OFFSETS]


async def staged(fixture: Fixture, request: CommitRequest, producer: TxnProducer = PRODUCER) -> V:
    outcome = await fixture.groups.txn_commit_offsets(request, producer)
    assert not outcome.refused, "of a transaction all or none"
    return outcome.verdict


def weight(fixture: Fixture) -> int:
    """Return what is committed, by what the tables count, which is what they hold."""
    tables = [shard.table for shard in fixture.groups.shards]
    held = sum(
        1 + len(place.metadata) // WEIGHED_CHARS
        for table in tables
        for places in table.committed.values()
        for place in places.values()
    )
    assert sum(table.committed_weight for table in tables) == held
    fixture.assert_live_is_replay()
    return held


async def test_INV_GOR1_what_committed_offsets_take_is_bounded_over_all_shards(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """1. Whoever may read one topic commits for one group after the other, with metadata. 2. The node is killed for its memory. 3. It loads all of it again."""
    fixture = Fixture(committed_offsets_max=300)
    async with running(fixture):
        for number in range(3):
            assert not await refused(fixture, of(f"g{number}", range(50), heavy=2))
        assert len({fixture.groups.shard_of(f"g{number}") for number in range(3)}) > 1
        with caplog.at_level(logging.WARNING):
            assert await refused(fixture, of("g0", range(50, 53))) == 3
            assert await refused(fixture, of("new", [0], heavy=41)) == 1
        assert ERROR_OF[V.TOO_MANY_OFFSETS] == INVALID_COMMIT_OFFSET_SIZE
        (said,) = [each.message for each in caplog.records if "offsets" in each.message]
        assert "committed_offsets_max = 300" in said
        assert "'g0'" in said
        assert weight(fixture) == 300
        assert fixture.groups.offset_room.figures() == {"taken": 300, "refused": 4}


async def test_INV_GOR1_a_group_of_few_offsets_is_served_though_others_have_filled_it() -> None:
    fixture = Fixture(committed_offsets_max=100)
    async with running(fixture):
        assert not await refused(fixture, of("greedy", range(100)))
        for name in ("another", "one more"):
            assert not await refused(fixture, of(name, FEW))
            assert await refused(fixture, of(name, [FEW_OFFSETS])) == 1, "few in all"
        assert await refused(fixture, of("at once", range(100))) == 60
        assert await refused(fixture, of("greedy", [100])) == 1
        assert weight(fixture) == 100 + 3 * FEW_OFFSETS


async def test_INV_GOR2_an_offset_in_the_place_of_one_that_is_not_lighter_is_always_taken() -> None:
    fixture = Fixture(committed_offsets_max=200)
    async with running(fixture):
        assert not await refused(fixture, of("g", range(100), heavy=2))
        assert await refused(fixture, of("g", range(100), heavy=3)) == 100
        for heavy in (2, 1, 1):
            assert not await refused(fixture, of("g", range(100), heavy=heavy))
        assert weight(fixture) == 100, "what is lighter makes room"
        assert not await refused(fixture, of("another", range(100)))
        for _ in range(2):
            assert await staged(fixture, of("g", range(100))) is V.OK
        assert await staged(fixture, of("g", range(101))) is V.TOO_MANY_OFFSETS


async def test_INV_GOR2_offsets_are_taken_beside_one_for_which_there_is_no_room() -> None:
    """A consumer that is given one partition more has it in each of its commits."""
    fixture = Fixture(committed_offsets_max=100)
    async with running(fixture):
        assert not await refused(fixture, of("g", range(100)))
        moved = [replace(each, committed_offset=5) for each in of("g", range(101)).offsets]
        assert await refused(fixture, replace(of("g", []), offsets=tuple(moved))) == 1
        found = await fixture.groups.fetch_offsets("g", None, require_stable=False)
        assert [each.committed_offset for each in found.offsets] == [5] * 100


async def test_INV_GOR1_what_is_lighter_makes_no_room_for_what_is_heavier_beside_it() -> None:
    """1. A transaction stages a light one over a heavy one, and a heavy one elsewhere. 2. A later commit has the heavy one again. 3. The transaction ends: both are heavy."""
    fixture = Fixture(committed_offsets_max=61)
    async with running(fixture):
        assert not await refused(fixture, of("g", [0], heavy=60))
        assert not await refused(fixture, of("g", [1]))
        offsets = of("g", [0]).offsets + of("g", [1], heavy=60).offsets
        both = replace(of("g", []), offsets=offsets)
        assert await staged(fixture, both) is V.TOO_MANY_OFFSETS
        assert await refused(fixture, both) == 1
        assert weight(fixture) == 2


async def test_INV_GOR1_what_a_transaction_would_add_is_judged_as_it_is_staged() -> None:
    """And never as the transaction ends: that cannot be refused any more."""
    fixture = Fixture(committed_offsets_max=100)
    async with running(fixture):
        assert await staged(fixture, of("g", range(60))) is V.OK
        assert await staged(fixture, of("another", range(41)), ANOTHER) is V.TOO_MANY_OFFSETS, (
            "clients ask again; what other commits are told ends a producer of Java"
        )
        assert await refused(fixture, of("another", range(41))) == 1
        assert await staged(fixture, of("few", FEW), ANOTHER) is V.OK
        assert await staged(fixture, of("few", range(40, 80))) is V.TOO_MANY_OFFSETS, (
            "few of a group, in whosever transactions they are"
        )
        assert await refused(fixture, of("few", [99])) == 1
        fixture.end_transaction("g", PRODUCER.producer_id, commit=True)
        fixture.end_transaction("few", ANOTHER.producer_id, commit=True)
        assert weight(fixture) == 100 + FEW_OFFSETS
        assert await refused(fixture, of("g", range(50, 70))) == 10


async def test_INV_GOR1_what_goes_makes_room_and_so_does_an_abort() -> None:
    fixture = Fixture(committed_offsets_max=100)
    async with running(fixture):
        assert await staged(fixture, of("g", range(100))) is V.OK
        fixture.end_transaction("g", PRODUCER.producer_id, commit=False)
        assert not await refused(fixture, of("g", range(90)))
        assert await refused(fixture, of("another", range(50))) == 10
        await fixture.groups.delete_offsets("g", [tp(n) for n in range(30)])
        assert weight(fixture) == 100
        assert await refused(fixture, of("another", range(50))) == 10
        assert await fixture.groups.delete_group("g") is V.OK
        assert not await refused(fixture, of("another", range(50)))
        assert weight(fixture) == 50


async def test_INV_GOR1_members_of_either_protocol_are_bounded_alike() -> None:
    fixture = Fixture(committed_offsets_max=10)
    async with running(fixture):
        fixture.topics.put("orders", 50)
        joined = await stable_member(fixture, "classic")
        beat = await fixture.groups.consumer_heartbeat(
            HeartbeatRequest(
                group_id="modern", member_id="m", member_epoch=0, rebalance_timeout_ms=60_000,
                topic_names=("orders",), owned={},
            )
        )  # fmt: skip
        many = of("classic", range(41))
        classic = replace(many, who=who(joined), generation=joined.generation)
        assert await refused(fixture, classic) == 1
        assert await staged(fixture, classic) is V.TOO_MANY_OFFSETS
        modern = replace(
            many, group_id="modern", who=MemberIdentity("m"), generation=beat.member_epoch
        )
        assert await refused(fixture, modern) == 1
        assert await staged(fixture, modern) is V.TOO_MANY_OFFSETS


async def test_INV_GOR1_a_large_commit_is_judged_again_as_it_is_written() -> None:
    """It is made ready in pieces: others fill what it was promised meanwhile."""
    many = ELEMENTS_AT_ONCE_MAX + 1
    fixture = Fixture(committed_offsets_max=2 * many - 1)
    async with running(fixture):
        made = [fixture.groups.commit_offsets(of(name, range(many))) for name in ("a", "b")]
        first, second = await asyncio.gather(*made)
        assert {first.verdict, second.verdict} == {V.OK, V.TOO_MANY_OFFSETS}
        assert weight(fixture) == many


async def test_INV_GOR2_a_load_takes_all_and_replacements_go_on() -> None:
    """A node that refused what its ledger holds would never lead again: more was let in, by another version, or under another bound."""
    first = Fixture()
    async with running(first):
        assert not await refused(first, of("g", range(100)))
        assert await staged(first, of("g", range(100, 150))) is V.OK
    again = Fixture(first.ledger, committed_offsets_max=10)
    async with running(again):
        assert not await refused(again, of("g", range(100)))
        assert await refused(again, of("g", [100])) == 1
        again.end_transaction("g", PRODUCER.producer_id, commit=True)
        assert not await refused(again, of("g", range(150)))
        assert weight(again) == 150


@pytest.mark.parametrize(("version", "error"), [(3, 15), (4, 120), (5, 120)])
def test_INV_GOR1_a_transaction_without_room_for_its_offsets_is_to_be_aborted(
    version: int, error: int
) -> None:
    """TRANSACTION_ABORTABLE is known from version 4 on (KIP-890); a Java producer asks again without end after COORDINATOR_NOT_AVAILABLE."""
    ctx = cast("RequestContext", SimpleNamespace(version=version))
    assert txn_offset_commit._error(ctx, CommitOutcome(V.TOO_MANY_OFFSETS), tp(0)) == error
