"""Followers clean their copies of compacted logs as far as their leader has (INV-CBO5), so that whoever leads next has no more than that."""

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers, read_marker
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.cleaner import Cleaner, CleanerParts
from region_broker.partitions.partition import Partition
from region_broker.records.batches import NO_ORIGIN, Origin, Record, build_batch, iter_records
from region_broker.region.tidemarks.clean_bounds import CleanBoundParts, CleanBounds
from tests.fixtures.node_logs import InlineRunner, InstantClock, append_marker, fixture
from tests.fixtures.replica_nodes import ReplicaNode, ReplicaRegion, bytes_of, live

CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "50",
}
KEYS = 12
PRODUCERS = range(7, 11)


class Instant(InstantClock):
    """Pauses take no time; what time it is the region says."""

    def __init__(self, region: ReplicaRegion) -> None:
        self._clock = region.clock

    def wall_ms(self) -> int:
        return self._clock.wall_ms()


def bounds_of(node: ReplicaNode) -> CleanBounds:
    """Return the bounds of a node whose region no other one mirrors."""
    return CleanBounds(
        CleanBoundParts(
            partitions=lambda: node.table,
            published_cut=lambda: None,
            mirrors=list,
            reached=lambda _: None,
            copied_to=lambda _: None,
        )
    )


async def clean(node: ReplicaNode) -> bool:
    parts = CleanerParts(
        partitions=lambda: iter(node.table),
        bound_of=bounds_of(node).bound_of,
        disk=node.disk,
        clock=Instant(node.region),
        worker=InlineRunner(),
    )
    return await Cleaner(parts).clean_dirtiest()


def committed(data: bytes) -> tuple[dict[bytes, bytes], set[int]]:
    """Return the newest value of each key, and whose transactions are open: what a reader makes of whole batches."""
    rows: list[tuple[int, bytes, bytes | None]] = []
    undecided: dict[int, list[tuple[int, bytes, bytes | None]]] = {}
    for at, header in iter_headers(data):
        batch = data[at : at + header.size_bytes]
        if header.is_control:
            ended = undecided.pop(header.producer_id, [])
            rows += ended if read_marker(batch).control_type is ControlType.COMMIT else []
            continue
        into = undecided.setdefault(header.producer_id, []) if header.is_transactional else rows
        for record in iter_records(batch):
            assert record.key is not None
            into.append((record.offset, record.key, record.value))
    newest = {key: value for _, key, value in sorted(rows, key=lambda row: row[0])}
    values = {key: value for key, value in newest.items() if value is not None}
    return values, set(undecided)


def sizes(*nodes: ReplicaNode) -> list[int]:
    return [len(bytes_of(node.partition())) for node in nodes]


def some(name: str, *, count: int = 10, value: bytes | None = b"v" * 40) -> bytes:
    return build_batch(
        [Record(f"{name}{number}".encode(), value, timestamp_ms=1) for number in range(count)]
    )


def test_INV_CBO5_a_copy_is_cleaned_below_what_its_leader_has_cleaned_and_what_is_committed() -> (
    None
):
    node = fixture(CONFIGS)
    for _ in range(3):
        node.partition.writer.append(some("k"))
    node.sync()
    partition = node.partition
    partition.become_mirror()
    partition.commit_up_to(20)
    partition.trimming.leader_keeps_from = 0
    bound_of = CleanBounds(cast("CleanBoundParts", None)).bound_of
    assert bound_of(partition) == 0, "nobody has said that its leader has cleaned it"
    partition.writer.cleaned_at_primary = 15
    assert bound_of(partition) == 15
    partition.writer.cleaned_at_primary = 30
    assert bound_of(partition) == 20
    partition.trimming.leader_keeps_from = None
    assert bound_of(partition) == 0, "a mirror that has shown nothing yet"


def test_INV_CBO5_a_follower_is_cleaned_as_far_as_its_leader_and_the_next_leader_has_no_more() -> (
    None
):
    async def life(region: ReplicaRegion) -> None:
        one, two, three = await region.start(topic_configs=CONFIGS)
        for _ in range(60):
            await one.produce(some("k"))
        everywhere = "all of it is everywhere"
        await region.until(lambda: len(set(sizes(one, two, three))) == 1, everywhere)
        uncleaned = sizes(two)[0]
        assert not await clean(two), "nobody has said that anything was cleaned"
        assert await clean(one)
        assert not await clean(two), "it has heard nothing of it yet"
        await one.produce(some("k"))
        await region.until(
            lambda: all(each.partition().writer.cleaned_at_primary for each in (two, three)),
            "they have heard of it",
        )
        for node in (two, three):
            await region.until(
                lambda node=node: node.partition().high_watermark > 600,  # type: ignore[misc]
                "what is committed is known",
            )
            assert await clean(node)
            ours = node.partition().log.cleaning.mark
            assert 0 < ours.holes_below <= one.partition().log.cleaning.holes_below
        assert all(size < uncleaned / 5 for size in sizes(one, two, three))
        await one.kill()
        region.fence(1)
        region.elect(2)
        await two.produce(some("k", count=5, value=b"newer"))
        await one.start()
        await region.until(lambda: region.in_sync() == {1, 2, 3}, "it is in sync again")
        found = [committed(bytes_of(each.partition())) for each in (one, two, three)]
        assert found[0] == found[1] == found[2]
        assert len(found[0][0]) == 10

    live(life)


@dataclass
class Story:
    """What is done to a region by chance, and what its log would be if nobody had cleaned it."""

    region: ReplicaRegion
    chance: random.Random
    history: bytes = b""
    end_offset: int = 0
    cleanings: int = 0
    sequences: dict[int, int] = field(default_factory=dict)
    opened: set[int] = field(default_factory=set)

    def steps(self) -> list[Callable[[], Awaitable[None]]]:
        shares = {self.write: 6, self.work: 8, self.end: 3, self.clean: 4, self.elect: 1}
        return [step for step, share in shares.items() for _ in range(share)]

    def records(self, count: int) -> list[Record]:
        return [
            Record(
                b"k%d" % self.chance.randrange(KEYS),
                None if self.chance.random() < 0.3 else self.chance.randbytes(300),
                timestamp_ms=1,
            )
            for _ in range(count)
        ]

    async def write(self) -> None:
        await self.append(build_batch(self.records(6), origin=NO_ORIGIN))

    async def work(self) -> None:
        """Write within a transaction."""
        producer = self.chance.choice(PRODUCERS)
        sequence = self.sequences.get(producer, 0)
        count = self.chance.randint(1, 5)
        origin = Origin(
            ProducerId(producer), ProducerEpoch(0), SequenceNumber(sequence), transactional=True
        )
        await self.append(build_batch(self.records(count), origin=origin))
        self.sequences[producer] = sequence + count
        self.opened.add(producer)

    async def end(self) -> None:
        if not self.opened:
            return
        producer = self.chance.choice(sorted(self.opened))
        self.opened.discard(producer)
        partition = self.region.leader.partition()
        written = append_marker(
            partition,
            producer_id=producer,
            producer_epoch=0,
            control_type=self.chance.choice([ControlType.ABORT, ControlType.COMMIT]),
            coordinator_epoch=1,
            decision=None,
            timestamp_ms=1,
        )
        assert written.verdict is AppendVerdict.APPENDED, written
        await self.committed(partition)

    async def append(self, batch: bytes) -> None:
        self.region.leader.append(batch)
        await self.committed(self.region.leader.partition())

    async def committed(self, partition: Partition) -> None:
        """Note what was written, from before anybody cleans it."""
        end_offset = partition.log_end_offset
        await partition.wait_committed(end_offset)
        data = partition.reader.read_raw(self.end_offset, 1 << 20)
        self.history, self.end_offset = self.history + bytes(data), end_offset

    async def clean(self) -> None:
        self.cleanings += await clean(self.chance.choice(list(self.region.nodes.values())))
        await self.region.clock.sleep_ms(self.chance.choice([0, 20, 60]))

    async def elect(self) -> None:
        """Let another node lead, and begin one that follows again; who is away while others clean is another matter (INV-RPF8)."""
        region = self.region
        region.elect(self.chance.choice(sorted(region.in_sync())))
        await self.all_in_sync()
        follower = self.chance.choice(
            [each for each in region.nodes.values() if each is not region.leader]
        )
        await follower.kill(power=self.chance.random() < 0.5)
        await follower.start()
        await self.all_in_sync()

    async def all_in_sync(self) -> None:
        await self.write()
        await self.region.until(
            lambda: self.region.in_sync() == {1, 2, 3} and len(set(self.ends())) == 1,
            "all are whole",
        )

    def ends(self) -> list[int]:
        return [each.partition().log_end_offset for each in self.region.nodes.values()]


@pytest.mark.parametrize("seed", range(4))
def test_INV_CBO5_copies_that_are_cleaned_by_themselves_hold_what_was_committed(seed: int) -> None:
    async def life(region: ReplicaRegion) -> None:
        await region.start(topic_configs=CONFIGS)
        story = Story(region, random.Random(seed))
        for _ in range(150):
            await story.chance.choice(story.steps())()
        await story.all_in_sync()
        expected = committed(story.history)
        for node in region.nodes.values():
            partition = node.partition()
            assert committed(bytes_of(partition)) == expected, node.node_id
            opened = {pid for pid, _ in partition.state.visibility.open_items()}
            assert opened == expected[1]
            assert partition.log.cleaning.mark.cleaned_here_below > 0
        assert story.cleanings > 5

    live(life, seed)
