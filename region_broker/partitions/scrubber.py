"""The node's scrubber: looks at all sealed segments, again and again, slowly, and has mended what it finds damaged.

INV-SCB7  what is found is believed only if the segment is still the one that was looked at: one that was cleaned, cut,
         deleted or sealed anew meanwhile is looked at again, or is gone
INV-SCB8  what is damaged and not mended is tried again, less and less often, and is told until it is mended
INV-SCB10 before a damaged segment is mended, whoever leads it has been asked, once for each find, to let another node lead
INV-SCB11 a log with damage that no range mends (it was compacted there) is given up by a node that follows, to be copied again whole,
         once who leads has said that it has all of it; else it stays as it is, and is asked for again (INV-SCB8)
INV-SCB9  a pass ends: what is sealed meanwhile has its turn in the next one
One segment at a time, at `bytes_per_s`. What was looked at does not survive a restart: the next life begins anew.

Not here: what counts as damage (`log.scrubbing.examining`), the order (`log.scrubbing.order`), the mend (`mending`).
"""

import logging
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import Final, Protocol
from uuid import UUID
from weakref import WeakKeyDictionary

from idempotency.identity import LogKey
from region_broker.limits import YIELD_ROWS
from region_broker.log.scrubbing.damage import DamagedRange
from region_broker.log.scrubbing.examining import Examination, Subject
from region_broker.log.scrubbing.order import LookOrder, Retry, SegmentKey
from region_broker.log.segment import Segment
from region_broker.partitions.mending import Mend, MenderParts
from region_broker.partitions.partition import Partition

logger: Final = logging.getLogger(__name__)

FIRST_PAUSE_MS: Final = 60_000
PAUSE_MS: Final = 3_600_000
LOOKS_MAX: Final = 3
"""How often a segment is looked at in a row where its log changes meanwhile."""
NOTICE_MS: Final = 5_000
"""How often it is asked whether readers have met damage."""
NAMED_MAX: Final = 10


@dataclass(slots=True)
class Damage:
    """What is wrong with one segment, and why it was not mended yet; offsets."""

    partition: Partition
    path: str
    ranges: list[DamagedRange]
    side_faults: dict[str, str]
    why: str
    retry: Retry

    def text(self) -> str:
        """Return what an operator reads."""
        places = [
            f"[{each.from_offset}, {each.to_offset}) at byte {each.position}: {each.reason}"
            for each in self.ranges
        ]
        places += [f"{suffix}: {reason}" for suffix, reason in self.side_faults.items()]
        named = ", ".join(places[:NAMED_MAX])
        return f"{self.partition.tp}: {self.path} is damaged ({named}); not mended: {self.why}"


class Partitions(Protocol):
    """Those of the node; `partitions.table.PartitionTable` is one."""

    def __iter__(self) -> Iterator[Partition]:
        """Yield all."""
        ...

    def by_id(self, topic_id: UUID, partition: int) -> Partition | None:
        """Return one; None if it is not there."""
        ...


class Scrubber:
    """`run` is its task."""

    def __init__(self, parts: MenderParts, partitions: Partitions) -> None:
        """Look at nothing before `run`."""
        self.first_pause_ms = FIRST_PAUSE_MS
        """How long it waits after the start of the node."""
        self.pause_ms = PAUSE_MS
        """How long it rests between two passes."""
        self.make_way: Callable[[], Awaitable[None]] = _nobody_else
        """Returns once this node leads no log that others hold whole, or nobody else can lead (INV-SCB10)."""
        self.give_up: Callable[[Partition, str], Awaitable[str | None]] = _nobody_has_it
        """Stops a log that is to be copied again whole, and why; returns why it was not stopped (INV-SCB11)."""
        self.passes = 0
        self.mended_ranges = 0
        self.damaged: dict[SegmentKey, Damage] = {}
        self._parts = parts
        self._pace = parts.pace
        self._clock = parts.pace.clock
        self._partitions = partitions
        self._order = LookOrder()
        self._corrupt_reads: WeakKeyDictionary[Partition, int] = WeakKeyDictionary()

    async def run(self) -> None:
        """Look until cancelled; not at all where the rate is 0."""
        if self._pace.stands_still:
            return
        await self._rest(self.first_pause_ms)
        while True:
            await self.run_pass()
            await self._rest(self.pause_ms)

    async def run_pass(self) -> None:
        """Look at every segment that is sealed now, the oldest look first."""
        await self._see_all()
        for key in self._order.oldest_first():
            await self._look_at_due()
            await self._look(key)
        self.passes += 1

    async def _see_all(self) -> None:
        """Learn which segments there are; gives way to others."""
        rows, now_ms = 0, self._clock.monotonic_ms()
        for partition in self._partitions:
            for key in _sealed_keys(partition):
                self._order.seen(key, now_ms)
                rows += 1
                if rows % YIELD_ROWS == 0:
                    await self._clock.sleep_ms(0)

    async def _rest(self, rest_ms: int) -> None:
        """Pause, but for what is due."""
        until_ms = self._clock.monotonic_ms() + rest_ms
        while (left_ms := until_ms - self._clock.monotonic_ms()) > 0:
            await self._clock.sleep_ms(min(left_ms, NOTICE_MS))
            await self._look_at_due()

    async def _look_at_due(self) -> None:
        """Look again at what was not mended, where its time has come, and at logs in which readers have met damage."""
        now_ms = self._clock.monotonic_ms()
        due = [key for key, damage in self.damaged.items() if damage.retry.due_ms <= now_ms]
        for partition in self._met_by_readers():
            due += [key for key in _sealed_keys(partition) if key not in self.damaged]
        for key in due:
            await self._look(key)

    def _met_by_readers(self) -> list[Partition]:
        """Return the partitions that have refused a read since the last look at them."""
        found = []
        for partition in self._partitions:
            count = partition.reader.corrupt_reads
            if count > self._corrupt_reads.get(partition, 0):
                self._corrupt_reads[partition] = count
                found.append(partition)
        return found

    # -- one segment -----------------------------------------------------------------------------

    async def _look(self, key: SegmentKey) -> None:
        """Look at a segment, and have mended what is wrong; forget it where it is gone."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        segment = None if partition is None else _segment_at(partition, key.base_offset)
        if partition is None or segment is None:
            self._order.forget(key)
            self.damaged.pop(key, None)
            return
        await self._look_at(key, partition, segment)

    async def _look_at(self, key: SegmentKey, partition: Partition, segment: Segment) -> None:
        """Look as often as the log changes meanwhile (INV-SCB7)."""
        for _ in range(LOOKS_MAX):
            if not _is_there(partition, segment):
                return
            begun = partition.log.cleaning.interruptions
            found = await self._examined(partition, segment)
            if not _is_there(partition, segment):
                return
            if found is None:  # no file can be opened now: the next pass looks again
                return
            if found.is_sound:
                self._note_sound(key, partition, segment)
                return
            if found.damages and key not in self.damaged:
                await self.make_way()
            if not _is_there(partition, segment):
                return
            if begun == partition.log.cleaning.interruptions:
                await self._mend(key, partition, segment, found)
                return

    async def _examined(self, partition: Partition, segment: Segment) -> Examination | None:
        found = Examination(_subject(partition, segment), self._parts.disk)
        try:
            await self._pace.through(found.steps(), lambda: not _is_there(partition, segment))
        except OSError as error:
            logger.warning("%s cannot be looked at now: %s", segment.path, error)
            return None
        return found

    def _note_sound(self, key: SegmentKey, partition: Partition, segment: Segment) -> None:
        self._order.looked(key, self._clock.monotonic_ms())
        if self.damaged.pop(key, None) is not None:
            logger.warning("%s: %s is sound again", partition.tp, segment.path)

    async def _mend(
        self, key: SegmentKey, partition: Partition, segment: Segment, found: Examination
    ) -> None:
        now_ms = self._clock.monotonic_ms()
        known = self.damaged.get(key)
        damage = Damage(
            partition, str(segment.path), found.damages, found.side_faults, "it was just found",
            Retry(now_ms) if known is None else known.retry,
        )  # fmt: skip
        self.damaged[key] = damage
        if known is None:
            logger.error("damage at rest: %s", damage.text(), extra=_extra(damage))
        mend = Mend(partition, segment, _subject(partition, segment), self._parts)
        is_whole = await mend.run(found)
        self.mended_ranges += len(mend.mended)
        self._order.looked(key, self._clock.monotonic_ms())
        if is_whole:
            del self.damaged[key]
            logger.warning(
                "mended: %s of %s, %d ranges that others had, %d files beside it built again",
                segment.path, partition.tp, len(mend.mended), len(found.side_faults), extra=_extra(damage),
            )  # fmt: skip
            return
        damage.ranges = [each for each in damage.ranges if each not in mend.mended]
        why = "; ".join(mend.reasons[:NAMED_MAX]) or "the log was being changed"
        if mend.no_range_fits:
            refusal = await self.give_up(partition, damage.text())
            if refusal is None:
                self._forget(partition)
                return
            why = f"{why}; nor is the log copied again whole: {refusal}"
        if known is None or known.why != why:
            logger.warning("not mended: %s of %s: %s", segment.path, partition.tp, why)
        damage.why = why
        damage.retry.put_off(self._clock.monotonic_ms())

    def _forget(self, partition: Partition) -> None:
        """What is damaged in a log that was given up is nothing to readers any more."""
        key = partition.key
        for each in [*self.damaged]:
            if (each.topic_id, each.partition) == (key.topic_id, key.partition):
                del self.damaged[each]

    # -- what is told ----------------------------------------------------------------------------

    def problem(self) -> str | None:
        """Return what is damaged and not mended, for people; None if nothing is known to be (INV-SCB8)."""
        known = islice(self.damaged.values(), NAMED_MAX)
        return "; ".join(damage.text() for damage in known) or None

    def has_damage(self, key: LogKey) -> bool:
        """Return whether something of a log is known to be damaged, and not mended."""
        return any(
            (each.topic_id, each.partition) == (key.topic_id, key.partition)
            for each in self.damaged
        )

    def figures(self) -> dict[str, int]:
        """Return what is counted: bytes and passes since the start, ranges, the age of the oldest look in ms."""
        return {
            "bytes": self._pace.read_bytes,
            "passes": self.passes,
            "oldest_look_ms": self._order.oldest_age_ms(self._clock.monotonic_ms()),
            "damaged_ranges": sum(len(each.ranges) for each in self.damaged.values()),
            "mended_ranges": self.mended_ranges,
        }


async def _nobody_else() -> None:
    """The region has one node."""


async def _nobody_has_it(_partition: Partition, _why: str) -> str | None:
    """The region has one node."""
    return "no other node of this region has it"


def _sealed_keys(partition: Partition) -> Iterator[SegmentKey]:
    if partition.failed is None:
        for segment in partition.log.segments.segments:
            if segment.file is None:
                yield SegmentKey(partition.topic_id, partition.tp.partition, segment.base_offset)


def _segment_at(partition: Partition, base_offset: int) -> Segment | None:
    """Return the sealed segment that begins at an offset in a log that runs; None without one."""
    segments = partition.log.segments
    if partition.failed is not None or not segments.segments:
        return None
    found = segments.segments[segments.slot(base_offset)]
    return found if found.base_offset == base_offset and found.file is None else None


def _is_there(partition: Partition, segment: Segment) -> bool:
    """Return whether a log that runs holds this very segment, sealed."""
    log = partition.log
    if partition.failed is not None or log.content.closed or segment.file is not None:
        return False
    return any(each is segment for each in log.segments.segments)


def _subject(partition: Partition, segment: Segment) -> Subject:
    log = partition.log
    return Subject(
        path=segment.path,
        segment_path=segment.path,
        base_offset=segment.base_offset,
        next_offset=segment.next_offset,
        size_bytes=segment.size_bytes,
        holes_below=log.cleaning.holes_below,
        epochs=log.epochs.entries(),
        index_interval_bytes=segment.config.index_interval_bytes,
    )


def _extra(damage: Damage) -> dict[str, object]:
    return {
        "topic_partition": str(damage.partition.tp),
        "file": damage.path,
        "ranges": [[each.from_offset, each.to_offset] for each in damage.ranges],
    }
