"""Ports of the group coordinator for tests: a clock that is moved by hand, a ledger in memory."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pytest

from idempotency.identity import NO_PRODUCER_ID, ProducerId, TopicName, TopicPartition
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.groups.messages import (
    JoinOutcome,
    JoinRequest,
    MemberIdentity,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.modern.patterns import resolver
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.offsets import OffsetTable
from region_broker.groups.ports import (
    Appended,
    GroupPorts,
    KeyValue,
    LedgerBatch,
    LedgerEntry,
    LedgerFailed,
    LedgerMarker,
    LedgerRecord,
    LedgerSlice,
    TxnProducer,
)
from region_broker.groups.settings import GroupSettings

RANGE = (("range", b"subscription"),)


def tp(partition: int = 0, topic: str = "orders") -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


async def settle() -> None:
    """Let everything that can run, run."""
    for _ in range(30):
        await asyncio.sleep(0)


class ManualClock:
    """Time stands still until `advance`."""

    def __init__(self) -> None:
        self.now_ms = 1_000
        self._sleepers: list[tuple[int, asyncio.Future[None]]] = []

    def monotonic_ms(self) -> int:
        return self.now_ms

    def wall_ms(self) -> int:
        return 1_700_000_000_000 + self.now_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        if duration_ms <= 0:
            await asyncio.sleep(0)
            return
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append((self.now_ms + int(duration_ms), future))
        await future

    async def advance(self, duration_ms: int) -> None:
        target_ms = self.now_ms + duration_ms
        await settle()
        while due := [s for s in self._sleepers if s[0] <= target_ms and not s[1].done()]:
            sleeper = min(due, key=lambda item: item[0])
            self._sleepers.remove(sleeper)
            self.now_ms = max(self.now_ms, sleeper[0])
            sleeper[1].set_result(None)
            await settle()
        self.now_ms = target_ms
        await settle()


class CountingChance:
    """Ids in order."""

    def __init__(self) -> None:
        self._drawn = 0

    def uniform(self, low: float, high: float) -> float:
        return low

    def randbits(self, bit_count: int) -> int:
        return 0

    def uuid(self) -> UUID:
        self._drawn += 1
        return UUID(int=self._drawn)


@dataclass
class MemoryBatch:
    """A batch as the list of its records."""

    records: list[KeyValue] = field(default_factory=list)

    @property
    def count(self) -> int:
        return len(self.records)

    size_bytes: int = 0

    def add(self, key: bytes, value: bytes | None) -> None:
        self.records.append((key, value))
        self.size_bytes += len(key) + len(value or b"")


class MemoryLedger:
    """Shards as lists of entries; `hold` keeps appends from becoming durable."""

    def __init__(self, shard_count: int = 4) -> None:
        self.shards: list[list[LedgerEntry]] = [[] for _ in range(shard_count)]
        self.failure: str | None = None
        self.batches = 0
        self.clock = ManualClock()
        self._durable = asyncio.Event()
        self._durable.set()

    def hold(self) -> None:
        self._durable.clear()

    def release(self) -> None:
        self._durable.set()

    def fail(self) -> None:
        self.failure = "the disk is gone"
        self._durable.set()

    def append(
        self, shard: int, records: Sequence[KeyValue], *, producer: TxnProducer | None = None
    ) -> Appended:
        self._check()
        self.batches += 1
        entries = self.shards[shard]
        base, time_ms = len(entries), self.clock.wall_ms()
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        for index, (key, value) in enumerate(records):
            entries.append(LedgerRecord(base + index, key, value, producer_id, time_ms))
        return Appended(base, len(entries), time_ms)

    def batch(self) -> "MemoryBatch":
        return MemoryBatch()

    def append_batch(
        self, shard: int, batch: LedgerBatch, *, producer: TxnProducer | None = None
    ) -> Appended:
        assert isinstance(batch, MemoryBatch)
        return self.append(shard, batch.records, producer=producer)

    def append_marker(self, shard: int, producer_id: int, *, commit: bool) -> None:
        self.shards[shard].append(LedgerMarker(ProducerId(producer_id), commit))

    async def committed(self, shard: int, next_offset: int) -> None:
        await self._durable.wait()
        self._check()

    def end_offset(self, shard: int) -> int:
        return len(self.shards[shard])

    def record_count(self) -> int:
        return sum(len(entries) for entries in self.shards)

    def replay(self, shard: int) -> Iterator[LedgerSlice]:
        self._check()
        for index, entry in enumerate(list(self.shards[shard])):
            yield LedgerSlice([entry], index + 1)

    def replayed(self, shard: int) -> OffsetTable:
        table = OffsetTable()
        for entry in self.shards[shard]:
            table.apply(entry)
        return table

    def _check(self) -> None:
        if self.failure is not None:
            raise LedgerFailed(self.failure)


class HeldThreads:
    """What goes to a thread runs on the loop, once it is let go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = 0
        self._goes_on = asyncio.Event()
        monkeypatch.setattr(asyncio, "to_thread", self._in_thread)

    async def _in_thread(self, work: Callable[..., Any], *said: Any) -> Any:
        self.begun += 1
        await self._goes_on.wait()
        return work(*said)

    def hold(self) -> None:
        self._goes_on.clear()

    def let_go(self) -> None:
        self._goes_on.set()


class HeldMatching:
    """Each name of a topic that a pattern is matched against takes as long as wanted, in a real thread; `looked` has those that were looked at."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looked: list[str] = []
        self.begun = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._goes_on = threading.Event()
        self._goes_on.set()
        matches = TopicRegex.matches

        def held(regex: TopicRegex, name: str) -> bool:
            self.looked.append(name)
            self._loop.call_soon_threadsafe(self.begun.set)
            assert self._goes_on.wait(30), "nobody let it go"
            return matches(regex, name)

        monkeypatch.setattr(resolver, "INLINE_STEPS_MAX", -1)
        monkeypatch.setattr(TopicRegex, "matches", held)

    def hold(self) -> None:
        self.looked.clear()
        self.begun.clear()
        self._goes_on.clear()

    def let_go(self) -> None:
        self._goes_on.set()


class FixedEnds:
    """Ends of leader epochs as a table."""

    def __init__(self) -> None:
        self.ends: dict[tuple[TopicPartition, int], int] = {}
        self.after_takeover: dict[TopicPartition, int] = {}

    def end_after_takeover(self, partition: TopicPartition) -> int | None:
        return self.after_takeover.get(partition)

    def end_of_epoch(self, partition: TopicPartition, leader_epoch: int) -> int | None:
        return self.ends.get((partition, leader_epoch))


@dataclass(frozen=True)
class Topic:
    topic_id: UUID
    partition_count: int
    internal: bool = False


@dataclass
class Topics:
    """The region's topics, as `GroupPorts.image` shows them."""

    topics: dict[str, Topic] = field(default_factory=dict)
    version: int = 1
    deleted: set[UUID] = field(default_factory=set)

    def put(self, name: str, partition_count: int, *, number: int | None = None) -> UUID:
        topic_id = UUID(int=1000 + len(self.topics) if number is None else number)
        topic = Topic(topic_id, partition_count, internal=name.startswith("__"))
        self.topics = {**self.topics, name: topic}
        self.version += 1
        return topic_id

    def drop(self, name: str) -> None:
        self.topics = {each: topic for each, topic in self.topics.items() if each != name}
        self.version += 1


class Fixture:
    """A coordinator with its ports."""

    def __init__(
        self,
        ledger: MemoryLedger | None = None,
        *,
        clock: ManualClock | None = None,
        **settings: Any,
    ) -> None:
        self.clock = clock or ManualClock()
        self.ledger = ledger or MemoryLedger()
        self.ledger.clock = self.clock
        self.ends = FixedEnds()
        self.topics = Topics()
        self.groups = GroupCoordinator(
            GroupPorts(
                log=self.ledger,
                ends=self.ends,
                clock=self.clock,
                chance=CountingChance(),
                image=lambda: self.topics,
            ),
            shard_count=len(self.ledger.shards),
            settings=GroupSettings(**settings),
        )

    def assert_live_is_replay(self) -> None:
        for shard in self.groups.shards:
            assert shard.table == self.ledger.replayed(shard.index)

    def end_transaction(self, group_id: str, producer_id: int, *, commit: bool) -> None:
        shard = self.groups.shard_of(group_id)
        self.ledger.append_marker(shard, producer_id, commit=commit)
        self.groups.on_marker_applied(shard, ProducerId(producer_id), commit)


@asynccontextmanager
async def running(fixture: Fixture) -> AsyncIterator[Fixture]:
    """Load and run the coordinator of `fixture`."""
    async with asyncio.TaskGroup() as tasks:
        service = tasks.create_task(fixture.groups.run())
        await settle()
        await fixture.groups.load()
        try:
            yield fixture
        finally:
            await fixture.groups.resign()
            await settle()
            service.cancel()


def join_request(member_id: str = "", **changes: Any) -> JoinRequest:
    fields: dict[str, Any] = {
        "member_id": member_id,
        "new_member_id": "",
        "instance_id": None,
        "client_id": "client",
        "client_host": "/127.0.0.1",
        "session_timeout_ms": 10_000,
        "rebalance_timeout_ms": 60_000,
        "protocol_type": "consumer",
        "protocols": RANGE,
    }
    return JoinRequest(**(fields | changes))


def sync_request(joined: JoinOutcome, assignments: dict[str, bytes] | None = None) -> SyncRequest:
    return SyncRequest(
        member_id=joined.member_id,
        instance_id=None,
        generation=joined.generation,
        protocol_type=None,
        protocol_name=None,
        assignments=tuple((assignments or {}).items()),
    )


async def stable_member(fixture: Fixture, group_id: str = "g", **changes: Any) -> JoinOutcome:
    """Return the only member of a stable group."""
    joined = await fixture.groups.join(group_id, join_request(**changes))
    synced: SyncOutcome = await fixture.groups.sync(
        group_id, sync_request(joined, {joined.member_id: b"mine"})
    )
    assert synced.assignment == b"mine"
    return joined


def who(joined: JoinOutcome, instance_id: str | None = None) -> MemberIdentity:
    return MemberIdentity(joined.member_id, instance_id)
