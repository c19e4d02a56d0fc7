"""What one answer to a follower has, and what it says of the region."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import msgspec
import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.cold_reads import Reading
from region_broker.log.failures import AsideRange, CorruptRange
from region_broker.region.cluster import replica_sending
from region_broker.region.cluster.replica_messages import ReplicaFetch, ReplicaFetched
from region_broker.region.cluster.replica_sending import (
    ANSWER_BYTES_MAX,
    LOGS_AT_ONCE,
    Copying,
    FetchSession,
    Gates,
)
from region_broker.replication.pacing import WINDOW_BYTES, Allowance, CatchUpPace, CatchUpRates
from tests.fixtures.node_logs import Fixture, InstantClock, batch, fixture

FETCH = ReplicaFetch(
    leader_epoch=LeaderEpoch(1), positions=(), forgotten=(), wait_ms_max=0, bytes_max=ANSWER_BYTES_MAX
)  # fmt: skip


class Reads:
    """Reads at once; something happens between two of them."""

    def __init__(self) -> None:
        self.between: Callable[[], None] = lambda: None

    async def read(self, reading: Reading[Any]) -> Any:
        found = reading(wait=True)
        self.between()
        return found


class Region:
    """Takes writes, or not."""

    acts = True
    takes_writes = True
    copies_whole = False
    """Whether the follower is out of sync."""


def session_of(some: Fixture, region: Region, reads: Reads) -> FetchSession:
    logs = {partition.key: partition for partition in some.partitions}
    pace = CatchUpPace(CatchUpRates(), Allowance(), applies=lambda: region.copies_whole)
    gates = Gates(lambda: region.acts, lambda: region.takes_writes)
    session = FetchSession(logs, Copying(), cast("Any", reads), InstantClock(), gates, pace)
    for key in logs:
        session.begin(key, 0)
    return session


async def answered(session: FetchSession) -> ReplicaFetched:
    fetched = (await session.answer(FETCH)).message
    assert isinstance(fetched, ReplicaFetched)
    return fetched


async def test_INV_RSN6_many_logs_go_in_several_answers_and_none_is_left_out() -> None:
    some = fixture(partition_count=LOGS_AT_ONCE + 5)
    for partition in some.partitions:
        partition.writer.append(batch())
    session = session_of(some, Region(), Reads())
    first, second = await answered(session), await answered(session)
    assert (len(first.parts), len(second.parts)) == (LOGS_AT_ONCE, 5)
    told = [part.key for part in (*first.parts, *second.parts)]
    assert sorted(told) == sorted(partition.key for partition in some.partitions)


async def test_INV_RSN10_very_many_batches_go_in_several_answers_whatever_their_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A follower appends an answer in one step: 4 MiB of the smallest batches held its loop for 1.8 s."""
    monkeypatch.setattr(replica_sending, "COPIED_BATCHES_MAX", 5)
    some = fixture(partition_count=3)
    for partition in some.partitions:
        for _ in range(4):
            partition.writer.append(batch())
    session = session_of(some, Region(), Reads())
    answers = [await answered(session) for _ in range(3)]
    sent = [sum(part.end_offset - part.position for part in each.parts) for each in answers]
    assert sent == [5, 5, 2]
    assert all(session.positions[partition.key] == 4 for partition in some.partitions)


@pytest.mark.parametrize(("before", "behind"), [(True, False), (False, True), (False, False)])
async def test_INV_RSN7_a_region_that_begins_or_ends_to_act_meanwhile_is_not_said_to(
    before: bool, behind: bool
) -> None:
    some, region, reads = fixture(), Region(), Reads()
    region.acts = before
    reads.between = lambda: setattr(region, "acts", behind)
    assert not (await answered(session_of(some, region, reads))).acts


async def test_INV_RSN7_one_that_acts_throughout_is() -> None:
    assert (await answered(session_of(fixture(), Region(), Reads()))).acts


async def test_INV_RSN9_a_gate_that_moves_is_said_at_once_and_once() -> None:
    some, region = fixture(partition_count=1), Region()
    session = session_of(some, region, Reads())
    waits = msgspec.structs.replace(FETCH, wait_ms_max=2_000)
    assert (await answered(session)).takes_writes
    async with asyncio.TaskGroup() as tasks:
        for takes_writes in (False, True):
            waiting = tasks.create_task(session.answer(waits))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not waiting.done(), "there is nothing new"
            region.takes_writes = takes_writes
            session.gate_moved()
            for _ in range(20):
                await asyncio.sleep(0)
            assert waiting.done()
            fetched = (await waiting).message
            assert isinstance(fetched, ReplicaFetched)
            assert fetched.takes_writes is takes_writes


@pytest.mark.parametrize("copies_whole", [True, False])
async def test_INV_RSN8_INV_RPA1_only_who_is_not_in_sync_is_held_up(*, copies_whole: bool) -> None:
    some, region = fixture(partition_count=1), Region()
    (partition,) = some.partitions
    partition.writer.append(batch())
    session = session_of(some, region, Reads())
    region.copies_whole = copies_whole
    session.pace.rates.sent_bytes_per_s = 1
    assert len((await answered(session)).parts) == 1
    partition.writer.append(batch())
    session.mark(partition.key)
    assert len((await answered(session)).parts) == (0 if copies_whole else 1)
    region.copies_whole = False  # it is taken in
    session.mark(partition.key)
    assert (await answered(session)).parts or not copies_whole


async def test_INV_RSN8_a_report_lets_the_next_answer_go() -> None:
    some, region = fixture(partition_count=1), Region()
    (partition,) = some.partitions
    partition.writer.append(batch())
    session = session_of(some, region, Reads())
    region.copies_whole = True
    (part,) = (await answered(session)).parts
    session.pace.sent(
        {part.key: part.end_offset}, WINDOW_BYTES, took_ms=0, now_ms=InstantClock().monotonic_ms(), total_bytes=lambda: 0
    )  # fmt: skip
    partition.writer.append(batch())
    session.mark(part.key)
    assert (await answered(session)).parts == ()
    session.durable({part.key: part.end_offset})
    assert len((await answered(session)).parts) == 1


async def test_INV_RSN11_a_log_that_could_not_be_read_is_sent_once_something_has_changed_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A range that is mended at the leader: nothing may be appended to that log for long."""
    some = fixture(partition_count=2)
    damaged, sound = some.partitions
    for partition in some.partitions:
        partition.writer.append(batch())
    read, refusals = damaged.reader.read_replica, ["damaged"]

    def read_replica(*args: Any, **named: Any) -> Any:
        if refusals:
            raise CorruptRange(0, refusals.pop())
        return read(*args, **named)

    monkeypatch.setattr(damaged.reader, "read_replica", read_replica)
    session = session_of(some, Region(), Reads())
    assert [part.key for part in (await answered(session)).parts] == [sound.key]
    assert (await answered(session)).parts == ()
    damaged.watchers.notify()  # `Mending` does
    assert [part.key for part in (await answered(session)).parts] == [damaged.key]
    damaged.watchers.notify()
    assert (await answered(session)).parts == ()


class AsideReads(Reads):
    """Has what takes long made in between, as `ColdReads` has it made by a thread."""

    async def read(self, reading: Reading[Any]) -> Any:
        try:
            return reading(wait=False)
        except AsideRange as aside:
            aside.work()
            return reading(wait=True)


async def test_INV_RSN11_what_is_mended_while_it_is_read_is_sent_too(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. A thread opens a range, which is damaged. 2. It is mended. 3. The reading says what the thread has found."""
    some = fixture()
    [partition] = some.partitions
    partition.writer.append(batch())
    read = partition.reader.read_replica
    work = partition.watchers.notify  # `Mending` does
    found: list[Exception] = [CorruptRange(0, "damaged"), AsideRange(work, Path("sealed"), 1)]

    def read_replica(*args: Any, **named: Any) -> Any:
        if found:
            raise found.pop()
        return read(*args, **named)

    monkeypatch.setattr(partition.reader, "read_replica", read_replica)
    session = session_of(some, Region(), AsideReads())
    assert (await answered(session)).parts == ()
    assert [part.key for part in (await answered(session)).parts] == [partition.key]
    partition.watchers.notify()
    assert (await answered(session)).parts == ()
