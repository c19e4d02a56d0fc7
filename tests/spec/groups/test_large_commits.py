"""Commits and fetches of many offsets: made in pieces, judged and written as one.

The coordinator is the real one; clock and ledger are the ports' fakes. A piece is counted where others get their turn:
each time that the coordinator sleeps for nothing.
"""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from idempotency.fencing import FIRST_LEADER_EPOCH
from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId
from region_broker.groups import offset_service
from region_broker.groups.messages import CommitOutcome, CommitRequest, FetchOutcome, OffsetToCommit
from region_broker.groups.ports import TxnProducer
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, YIELD_ROWS
from tests.unit.region_broker.groups.fakes import Fixture, ManualClock, running, stable_member, tp

MANY = 3_000
PRODUCER = TxnProducer(ProducerId(7), ProducerEpoch(0))


class TurnClock(ManualClock):
    """Counts the turns that others get."""

    turns = 0

    async def sleep_ms(self, duration_ms: float) -> None:
        self.turns += duration_ms == 0
        await super().sleep_ms(duration_ms)


def fixture() -> tuple[Fixture, TurnClock]:
    clock = TurnClock()
    return Fixture(clock=clock), clock


def commit(
    count: int, offset: int = 1, *, metadata: str = "", leader_epoch: int = -1, generation: int = -1
) -> CommitRequest:
    offsets = tuple(
        OffsetToCommit(tp(n), offset, LeaderEpoch(leader_epoch), metadata) for n in range(count)
    )
    return CommitRequest(group_id="g", offsets=offsets, generation=generation)


async def turns_until(clock: TurnClock, count: int) -> None:
    """Wait until others had `count` turns."""
    async with asyncio.timeout(20):
        while clock.turns < count:  # noqa: ASYNC110 -- what is awaited has no event of its own
            await asyncio.sleep(0)


@pytest.mark.parametrize("producer", [None, PRODUCER])
async def test_INV_GV1_a_large_commit_is_made_in_pieces_and_written_as_one(
    producer: TxnProducer | None,
) -> None:
    made, clock = fixture()
    async with running(made):
        appended = made.ledger.batches
        before = clock.turns
        if producer is None:
            outcome = await made.groups.commit_offsets(commit(MANY))
        else:
            outcome = await made.groups.txn_commit_offsets(commit(MANY), producer)
        assert outcome == CommitOutcome(V.OK)
        assert clock.turns - before >= MANY // YIELD_ROWS
        assert made.ledger.batches == appended + 1
        made.assert_live_is_replay()
        if producer is not None:
            made.end_transaction("g", producer.producer_id, commit=True)
            made.assert_live_is_replay()
        found = await made.groups.fetch_offsets("g", None, require_stable=True)
        assert [(each.tp, each.committed_offset) for each in found.offsets] == [
            (tp(n), 1) for n in range(MANY)
        ]


async def test_INV_HW2_a_commit_that_is_read_at_once_is_made_at_once() -> None:
    """Nothing holds back what its connection sends next, so it must be appended before that begins."""
    made, clock = fixture()
    async with running(made):
        before = clock.turns
        await made.groups.commit_offsets(commit(ELEMENTS_AT_ONCE_MAX))
        assert clock.turns == before


async def test_C46_a_large_commit_is_verified_in_the_step_that_appends_it() -> None:
    made, clock = fixture()
    seen: list[tuple[int, int]] = []

    def verify() -> None:
        seen.append((clock.turns, made.ledger.batches))
        raise PermissionError("aborted meanwhile")

    async with running(made):
        before, appended = clock.turns, made.ledger.batches
        with pytest.raises(PermissionError):
            await made.groups.txn_commit_offsets(commit(MANY), PRODUCER, verify)
        assert seen == [(clock.turns, appended)]
        assert clock.turns - before >= MANY // YIELD_ROWS
        assert made.ledger.batches == appended


async def test_C42_a_large_commit_is_judged_after_it_was_made() -> None:
    made, clock = fixture()
    async with running(made):
        started = clock.turns
        task = asyncio.get_running_loop().create_task(made.groups.commit_offsets(commit(MANY)))
        await turns_until(clock, started + 2)
        await stable_member(made)  # a group with members takes no commit of nobody
        assert (await task).verdict is V.UNKNOWN_MEMBER


async def test_T26_a_shard_that_was_loaded_anew_takes_no_commit_made_before() -> None:
    """What it was held against, the ends of this region's epochs, may be others now: the client asks again."""
    made, clock = fixture()
    async with running(made):
        made.ends.ends = {(tp(n), FIRST_LEADER_EPOCH): 5 for n in range(MANY)}
        started = clock.turns
        task = asyncio.get_running_loop().create_task(
            made.groups.commit_offsets(commit(MANY, 4, leader_epoch=FIRST_LEADER_EPOCH))
        )
        await turns_until(clock, started + 2)
        await made.groups.resign()
        made.ends.ends = {}
        await made.groups.load()
        assert (await task).verdict is V.LOADING
        again = commit(MANY, 4, leader_epoch=FIRST_LEADER_EPOCH)
        assert (await made.groups.commit_offsets(again)).verdict is V.OK


async def test_KAFKA_INVALID_COMMIT_OFFSET_SIZE_for_a_commit_that_is_too_large(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(offset_service, "OFFSET_COMMIT_BYTES_MAX", 10_000)
    made, _ = fixture()
    async with running(made):
        appended = made.ledger.batches
        outcome = await made.groups.commit_offsets(commit(30, metadata="m" * 500))
        assert outcome.verdict is V.COMMIT_TOO_LARGE
        assert made.ledger.batches == appended
        assert (await made.groups.commit_offsets(commit(10, metadata="m" * 500))).verdict is V.OK


@pytest.mark.parametrize("every", [False, True])
async def test_INV_GV3_a_large_fetch_shows_one_moment(every: bool) -> None:
    made, clock = fixture()
    async with running(made):
        await made.groups.commit_offsets(commit(MANY, 1))
        started = clock.turns
        asked = None if every else [tp(n) for n in range(MANY)]
        task: asyncio.Task[FetchOutcome] = asyncio.get_running_loop().create_task(
            made.groups.fetch_offsets("g", asked, require_stable=False)
        )
        await turns_until(clock, started + 2)
        await made.groups.commit_offsets(commit(900, 2))
        outcome = await task
        assert clock.turns - started >= MANY // YIELD_ROWS
        assert [each.committed_offset for each in outcome.offsets] == [1] * MANY


async def test_INV_GS3_a_shard_that_was_loaded_anew_answers_no_fetch_begun_before() -> None:
    made, clock = fixture()
    async with running(made):
        await made.groups.commit_offsets(commit(10))
        asked = [tp(n) for n in range(MANY)]
        async with asyncio.TaskGroup() as tasks:
            started = clock.turns
            fetching = tasks.create_task(
                made.groups.fetch_offsets("g", asked, require_stable=False)
            )
            await turns_until(clock, started + 1)
            await made.groups.resign()
            await made.groups.load([made.groups.shard_of("g")])
            assert not fetching.done()
        outcome = fetching.result()
        assert (outcome.verdict, outcome.offsets) == (V.LOADING, ()), "nothing is not OK"


async def test_B4_a_large_fetch_names_what_open_transactions_hold() -> None:
    made, _ = fixture()
    async with running(made):
        await made.groups.commit_offsets(commit(MANY, 1))
        await made.groups.txn_commit_offsets(commit(MANY + 5, 2), PRODUCER)
        stable = await made.groups.fetch_offsets("g", None, require_stable=True)
        assert [each.tp.partition for each in stable.offsets] == list(range(MANY + 5))
        assert {each.verdict for each in stable.offsets} == {V.UNSTABLE_OFFSET}
        seen = await made.groups.fetch_offsets("g", None, require_stable=False)
        assert [each.committed_offset for each in seen.offsets] == [1] * MANY


async def test_INV_GO8_a_fetch_does_not_go_through_what_transactions_have_staged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each read-committed fetch of one partition united all that open transactions hold of its group."""

    class Unread(dict[Any, Any]):
        def __iter__(self) -> Iterator[Any]:
            raise AssertionError("it was gone through")

    made, _ = fixture()
    async with running(made):
        await made.groups.commit_offsets(commit(2, 1))
        others = [TxnProducer(ProducerId(n), ProducerEpoch(0)) for n in range(3)]
        for other in others:
            await made.groups.txn_commit_offsets(commit(1, 2), other)
        table = made.groups.shards[made.groups.shard_of("g")].table
        with monkeypatch.context() as patched:
            for other in others:
                staged = table.pending[other.producer_id]
                patched.setitem(staged, "g", Unread(staged["g"]))
            stable = await made.groups.fetch_offsets("g", [tp(0), tp(1)], require_stable=True)
        assert [each.verdict for each in stable.offsets] == [V.UNSTABLE_OFFSET, V.OK]
        for left, other in ((2, others[0]), (1, others[1])):
            made.end_transaction("g", other.producer_id, commit=False)
            again = await made.groups.fetch_offsets("g", [tp(0)], require_stable=True)
            assert [each.verdict for each in again.offsets] == [V.UNSTABLE_OFFSET], left
        made.end_transaction("g", others[2].producer_id, commit=True)
        ended = await made.groups.fetch_offsets("g", [tp(0)], require_stable=True)
        assert [each.committed_offset for each in ended.offsets] == [2]
        made.assert_live_is_replay()
