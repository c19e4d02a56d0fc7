"""A node's partitions on a simulated disk, driven by hand: one thread, no clock of its own."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar
from uuid import UUID

from idempotency.decision import DecisionId
from idempotency.record_batch import (
    BatchHeader,
    ControlType,
    MarkerFacts,
    iter_headers,
    read_marker,
)
from region_broker.log.group_commit import GroupCommit, SyncWork
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.partitions.admission import AppendOutcome
from region_broker.partitions.appending.marker_writes import MarkerBatch
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.wire.batches import NO_ORIGIN, Origin, Record, build_batch
from tests.simulation.disk import SimulatedDisk

R = TypeVar("R")
DATA_DIR = Path("/data")
TOPIC_ID = UUID("5a0f6c1e-6f0f-4f27-9d9a-0c6d3e0f9b11")
LEADER_EPOCH = 8 << 16 | 1


class ManualClock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        """Start at a wall time of 1,000,000 ms."""
        self.now_ms = 1_000_000
        self.wall_jumped_ms = 0
        self.sleepers: list[tuple[int, Callable[[], None]]] = []

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return self.now_ms

    def wall_ms(self) -> int:
        """See `Clock`."""
        return self.now_ms + self.wall_jumped_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        """See `Clock`: ends when `pass_ms` has gone far enough."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def wake() -> None:
            if not future.done():
                future.set_result(None)

        self.sleepers.append((self.now_ms + int(duration_ms), wake))
        await future

    def pass_ms(self, duration_ms: int) -> None:
        """Let time pass."""
        self.now_ms += duration_ms
        due = [wake for at, wake in self.sleepers if at <= self.now_ms]
        self.sleepers = [sleeper for sleeper in self.sleepers if sleeper[0] > self.now_ms]
        for wake in due:
            wake()


class InstantClock:
    """A clock that stands still, and on which nobody waits."""

    def monotonic_ms(self) -> int:
        """See `Clock`."""
        return 0

    def wall_ms(self) -> int:
        """See `Clock`."""
        return 1_700_000_000_000

    async def sleep_ms(self, _duration_ms: float) -> None:
        """See `Clock`: goes on."""


async def at_once(work: Callable[[], None]) -> None:
    """Run blocking work in no thread."""
    work()


class InlineRunner:
    """A `SyncRunner` without threads."""

    async def sync_all(self, jobs: Sequence[SyncWork]) -> list[OSError | None]:
        """See `SyncRunner`."""
        return [job.run() for job in jobs]

    async def _ran(self, work: Callable[[], None]) -> None:
        work()

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """See `SyncRunner`."""
        return self._ran(work)

    def close(self) -> None:
        """See `SyncRunner`."""


def run_now(coroutine: Coroutine[None, None, R]) -> R:
    """Run a coroutine that never waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        result: R = done.value
        return result
    raise AssertionError("the inline runner never waits")


@dataclass(frozen=True)
class Topic:
    """A `TopicSpec`."""

    partition_count: int = 1
    configs: dict[str, str] = field(default_factory=dict)
    topic_id: UUID = TOPIC_ID
    name: str = "orders"
    internal: bool = False


@dataclass
class World:
    """One life of a node; `reopen` starts the next one on the same disk."""

    disk: SimulatedDisk
    topic: Topic
    config: NodeLogConfig
    clock: ManualClock = field(default_factory=ManualClock)
    leads: bool = True
    sealed: list[Path] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Open."""
        self.disk.wall_ms = self.clock.wall_ms
        self.open()

    def open(self) -> None:
        """Open the table and the topic."""
        self.group_commit = GroupCommit(
            self.config, self.clock, on_sealed=self.sealed.append, runner=InlineRunner()
        )
        self.table = PartitionTable(self.disk, DATA_DIR, self.clock, self.config, self.group_commit)
        self.partitions = self.table.open_topic(self.topic)
        if self.leads:
            for partition in self.partitions:
                if partition.failed is None:
                    partition.become_leader(LEADER_EPOCH)

    @property
    def partition(self) -> Partition:
        """Partition 0."""
        return self.partitions[0]

    @property
    def folder(self) -> Path:
        """The folder of partition 0."""
        return self.table.folder_of(self.topic.topic_id, 0)

    def sync(self) -> list[Path]:
        """Run one group commit; return what was sealed."""
        return run_now(self.group_commit.sync_group())

    def sync_files(self) -> None:
        """Sync all logs' own files: nothing is left that only the journal holds."""
        for partition in self.partitions:
            partition.log.durability.sync_now()

    def catch_up(self) -> None:
        """Sync the files of the logs that the journal waits for."""
        run_now(self.group_commit.catch_up())

    def kill_and_reopen(self) -> None:
        """Kill the process, start it again."""
        self.disk.process_killed()
        self.open()

    def close_and_reopen(self) -> None:
        """Stop cleanly, start again."""
        self.table.close()
        self.disk.process_killed()
        self.open()


def world(
    configs: dict[str, str] | None = None,
    *,
    partition_count: int = 1,
    flush_policy: FlushPolicy = FlushPolicy.COMMIT,
    leads: bool = True,
    journal_bytes: int = 64 * 1024,
    cached_tail_bytes: int = 0,
) -> World:
    """Return a world with one topic."""
    return World(
        SimulatedDisk(),
        Topic(partition_count=partition_count, configs=configs or {}),
        NodeLogConfig(
            flush_policy=flush_policy,
            index_interval_bytes=256,
            open_files_max=2,
            journal_bytes=journal_bytes,
            cached_tail_bytes=cached_tail_bytes,
        ),
        leads=leads,
    )


def batch(
    count: int = 1, *, size_bytes: int = 20, origin: Origin = NO_ORIGIN, at_ms: int = 1_000_000
) -> bytes:
    """Return a client's batch of `count` records with values of `size_bytes`."""
    return build_batch(
        [Record(None, b"v" * size_bytes, timestamp_ms=at_ms + n) for n in range(count)],
        origin=origin,
    )


def all_bytes(partition: Partition) -> bytes:
    """Return the whole durable log, read in small steps."""
    parts = []
    offset = partition.log_start_offset
    while data := partition.reader.read_raw(offset, 700):
        parts.append(data)
        offset = [header.next_offset for _, header in iter_headers(data)][-1]
    return b"".join(parts)


def with_markers(data: bytes) -> list[tuple[BatchHeader, MarkerFacts | None]]:
    """Return the batches in `data` as `PartitionState.apply` takes them."""
    return [
        (header, read_marker(data[at : at + header.size_bytes]) if header.is_control else None)
        for at, header in iter_headers(data)
    ]


def append_marker(
    partition: Partition,
    *,
    producer_id: int,
    producer_epoch: int,
    control_type: ControlType,
    coordinator_epoch: int,
    decision: DecisionId | None,
    timestamp_ms: int,
    tv2: bool = False,
) -> AppendOutcome:
    """Write one transaction marker."""
    facts = MarkerFacts(
        producer_id, producer_epoch, control_type, coordinator_epoch, decision, timestamp_ms
    )
    return partition.writer.append_markers([MarkerBatch(facts, tv2=tv2)])[0]
