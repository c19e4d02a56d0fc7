"""Finding records by their time, in one partition.

INV-TL1  records are looked at in a thread where that may take long: a batch of 2 kB may hold a million of them
INV-TL3  a lookup gives way after LOOKUP_BATCHES_MAX batches that it walked over, and after PROBES_AT_ONCE looks for the largest time
INV-TL4  records that nobody can read, under a right CRC, are answered for by their batch, and told seldom, whoever looks them up
INV-TL2  the largest time is found by what batches say of themselves; records of one batch only are looked at
Not here: the bytes (`partitions.sound_reads`), what a client asks for (`handlers.fetch.list_offsets`).
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Final, TypeAlias

from idempotency.record_batch import read_header
from region_broker.limits import LOOKUP_BYTES_ON_LOOP_MAX
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import SealedRecords
from region_broker.log.segment import BatchAtTime
from region_broker.partitions.opening_sealed import OpeningSealed
from region_broker.partitions.record_threads import RecordThreads
from region_broker.partitions.sound_reads import SoundReads
from region_broker.records.batches import RecordsError, iter_times
from region_broker.wire.cooperative_yield import give_way

PROBES_AT_ONCE: Final = 4
_TIMESTAMP_BITS: Final = 63
"""Times are signed numbers of 64 bits; none below 0 is looked for."""

Position: TypeAlias = tuple[int, int, int]
"""Offset, timestamp in ms, leader epoch."""
TellUnreadable: TypeAlias = Callable[[int, RecordsError], None]
"""Told of the offset of a batch whose records nobody can read, and why."""


@dataclass(frozen=True, slots=True)
class TimeLookup:
    """Looks at what lies in [start, end) of a log."""

    reads: SoundReads
    cold_reads: ColdReads
    start: int
    end: int
    opening: OpeningSealed
    threads: RecordThreads
    asked_by: str
    tell_unreadable: TellUnreadable

    async def first(self, timestamp_ms: int) -> Position | None:
        """Return the first record at or after a time. Raises CorruptRange, PartitionFailed."""
        at = self.start
        while (found := await self._batch_at(timestamp_ms, at)) is not None:
            position = await self._position(found, timestamp_ms)
            if position is not None:
                return position
            at = found.header.next_offset
        return None

    async def latest(self) -> Position | None:
        """Return the first record with the largest time (KIP-734). Raises CorruptRange, PartitionFailed."""
        head = await self._batch_at(0, self.start)
        if head is None or head.header.base_offset >= self.start:
            return await self._latest_whole()
        # Records of this batch were deleted, perhaps those with its largest time: no other is like that.
        opened = await self._opened(head)
        in_head = await self._looked_into(opened, partial(latest_in, opened, self.start))
        behind = await replace(self, start=head.header.next_offset)._latest_whole()
        if in_head is None or (behind is not None and behind[1] > in_head[1]):
            return behind
        return in_head

    async def _latest_whole(self) -> Position | None:
        """Return `latest` where no batch begins below `start`."""
        low_ms = 0
        for bit in reversed(range(_TIMESTAMP_BITS)):
            if bit % PROBES_AT_ONCE == 0:
                await give_way()
            found = await self._batch_at(low_ms + (1 << bit), self.start)
            if found is not None:
                low_ms += 1 << bit
        return await self.first(low_ms)

    async def _batch_at(self, timestamp_ms: int, start: int) -> BatchAtTime | None:
        while True:
            found = await self.cold_reads.read(
                partial(self.reads.batch_at, timestamp_ms, start, self.end)
            )
            if not isinstance(found, int):
                return found
            assert found > start, (found, start)
            start = found
            await give_way()

    async def _opened(self, found: BatchAtTime) -> BatchAtTime:
        """Return a batch opened; as it is where it is not sealed, or nobody here can: then its first record stands for it."""
        if not found.header.is_sealed:
            return found
        try:
            batch, _ = await self.threads.run(
                self.asked_by,
                partial(self.opening.opened, found.batch, found.header.next_offset, wait=True),
            )
        except SealedRecords:  # said by `opening`
            return found
        return BatchAtTime(read_header(batch), batch)

    async def _position(self, found: BatchAtTime, timestamp_ms: int) -> Position | None:
        found = await self._opened(found)
        is_quick = found.header.codec == 0 and len(found.batch) <= LOOKUP_BYTES_ON_LOOP_MAX
        look = partial(position_in, found, timestamp_ms, self.start)
        return await self._looked_into(found, look, here=is_quick)

    async def _looked_into(
        self, found: BatchAtTime, look: Callable[[], Position | None], *, here: bool = False
    ) -> Position | None:
        """Return what `look` finds in a batch; `here`: in this step, not in a thread."""
        try:
            return look() if here else await self.threads.run(self.asked_by, look)
        except RecordsError as error:
            header = found.header
            if not header.is_sealed:  # else `opening` said it
                # The client sent records that nobody can read, under a right CRC: its readers will see that too.
                self.tell_unreadable(header.base_offset, error)
            return max(header.base_offset, self.start), header.max_timestamp_ms, header.leader_epoch


def position_in(found: BatchAtTime, timestamp_ms: int, start: int) -> Position | None:
    """Return the first record of a batch from offset `start` on, at or after a time.

    None: the only such records of the batch lie below `start`. Raises RecordsError.
    """
    header, batch = found
    if header.is_control:
        return max(header.base_offset, start), header.max_timestamp_ms, header.leader_epoch
    for offset, at_ms in iter_times(batch):
        if at_ms >= timestamp_ms and offset >= start:
            return offset, at_ms, header.leader_epoch
    if start <= header.base_offset:
        return header.base_offset, header.max_timestamp_ms, header.leader_epoch
    return None


def latest_in(found: BatchAtTime, start: int) -> Position | None:
    """Return the first record with the largest time of a batch, from offset `start` on; None: there is none. Raises RecordsError."""
    header, batch = found
    if header.is_control:
        return max(header.base_offset, start), header.max_timestamp_ms, header.leader_epoch
    best: Position | None = None
    for offset, at_ms in iter_times(batch):
        if offset >= start and (best is None or at_ms > best[1]):
            best = (offset, at_ms, header.leader_epoch)
    return best
