"""Reading one partition: for consumers as far as they may see, for mirrors as far as it is durable.

Not here: how far that is (`sight`), damaged bytes (`sound_reads`), sealed ones (`opening_sealed`), waiting for more (`readable_watchers`).
"""

from functools import partial
from typing import NamedTuple

from idempotency.fencing import leader_epoch, region_epoch_of
from idempotency.identity import LeaderEpoch, TopicPartition
from idempotency.partition_state import AbortedTxn
from idempotency.record_batch import BatchHeader, iter_headers
from region_broker.limits import READ_BATCHES_MAX
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import LogError, OffsetOutOfRange
from region_broker.log.partition_log import PartitionLog
from region_broker.partitions.opening_sealed import OpeningSealed
from region_broker.partitions.parts.sight import Isolation, Sight
from region_broker.partitions.record_threads import RecordThreads
from region_broker.partitions.sound_reads import SoundReads, SoundSlice
from region_broker.partitions.time_lookup import TimeLookup
from region_broker.partitions.unreadable_records import UnreadableRecords


class FetchSlice(NamedTuple):
    """Whole batches from one fetch; `next_offset` is where to go on, the fetch offset if `data` is empty.

    `diverging` says to a reader ahead of a log that was cut which leader epoch ends where (T26).
    """

    data: bytes | bytearray
    aborted: list[AbortedTxn]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int
    batch_count: int
    diverging: tuple[LeaderEpoch, int] | None = None


class PartitionReader:
    """Changes nothing but its counts."""

    def __init__(  # noqa: PLR0913 - the rest by keyword
        self,
        tp: TopicPartition,
        log: PartitionLog,
        sight: Sight,
        cold_reads: ColdReads,
        opening: OpeningSealed,
        *,
        lookup_threads: RecordThreads,
        unreadable: UnreadableRecords,
    ) -> None:
        """Read `log` of `tp`."""
        self._tp = tp
        self._lookup_threads = lookup_threads
        self._unreadable = unreadable
        self._opening = opening
        self.cold_reads = cold_reads
        """Runs `fetch` and `read_raw` without `wait`, and waits elsewhere for what is not in memory."""
        self.read_bytes = 0
        """What was given to readers since the start of the node."""
        self._content, self._cleaning = log.content, log.cleaning
        self._sight = sight
        self._durability = log.durability
        self._reads = SoundReads(tp, log)

    @property
    def corrupt_reads(self) -> int:
        """How many reads were refused because stored bytes are wrong."""
        return self._reads.corrupt_count

    def fetch(  # noqa: PLR0913 - the rest by keyword
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        first_batch_always: bool = True,
        as_stored: bool = False,
        wait: bool = True,
        batches_max: int = READ_BATCHES_MAX,
    ) -> FetchSlice:
        """Return whole batches from `offset` on (C38, C39), at most `batches_max`; empty if nothing is readable there yet.

        What is sealed is opened, unless `as_stored`. Raises OffsetOutOfRange, PartitionFailed, CorruptRange, SealedRecords, and ColdRange unless
        `wait` (see `cold_reads`).
        """
        sight = self._sight
        data: bytes | bytearray = b""
        next_offset, batch_count = offset, 0
        if sight.is_behind(offset):
            self._content.check_running()
        else:
            self._check_range(offset, sight.log_start_offset)
            end = sight.readable_end(isolation)
            data, next_offset, is_sealed, batch_count = self._reads.read(
                offset, max_bytes, end, wait=wait, batches_max=batches_max
            )
            if is_sealed and not as_stored and (first_batch_always or len(data) <= max_bytes):
                data, next_offset = self._opening.opened(data, next_offset, wait=wait)
        if not first_batch_always and len(data) > max_bytes:
            data, next_offset = b"", offset
        self.read_bytes += len(data)
        is_ahead = sight.is_leader and offset > self._content.end_offset
        aborted: list[AbortedTxn] = []
        if data and isolation is Isolation.READ_COMMITTED:
            aborted = self._reads.aborted_in(offset, next_offset, sight.visible_end, wait=wait)
        return FetchSlice(
            data=data,
            aborted=aborted,
            high_watermark=sight.visible_end,
            last_stable_offset=sight.last_stable_offset,
            log_start_offset=sight.log_start_offset,
            next_offset=next_offset,
            batch_count=batch_count,
            diverging=self._end_of_older_regions() if is_ahead else None,
        )

    def read_raw(
        self,
        offset: int,
        max_bytes: int,
        limit: int | None = None,
        *,
        wait: bool = True,
        batches_max: int = READ_BATCHES_MAX,
    ) -> bytes | bytearray:
        """Return whole batches from `offset` up to `limit` (default and at most HW), byte for byte; at most `batches_max`.

        At least one batch if there is one; also from below the log start, while the bytes are there: a mirror
        may be behind. Raises OffsetOutOfRange, PartitionFailed, CorruptRange, and ColdRange unless `wait`.
        """
        self._check_range(offset, self._content.start_offset)
        high_watermark = self._sight.high_watermark
        end = high_watermark if limit is None else min(limit, high_watermark)
        return self._reads.read(offset, max_bytes, end, wait=wait, batches_max=batches_max).data

    def opened(self, data: bytes | bytearray) -> bytes | bytearray:
        """Return what `read_raw` returned as consumers get it; raises SealedRecords, CorruptRange. May run in a thread."""
        if not any(header.is_sealed for _, header in iter_headers(data)):
            return data
        return self._opening.opened(data, 0, wait=True)[0]

    def read_durable(self, offset: int, max_bytes: int, limit: int) -> bytes | bytearray:
        """Return whole batches as `read_raw` does, up to `limit`, of what is durable on this node, committed or not.

        For what is to be cut off, or is counted as lost: other nodes of the region may never have it.
        """
        self._check_range(offset, self._content.start_offset)
        return self._reads.read(
            offset, max_bytes, min(limit, self._durability.durable_offset), wait=True
        ).data

    def read_replica(
        self,
        offset: int,
        max_bytes: int,
        *,
        wait: bool = True,
        batches_max: int = READ_BATCHES_MAX,
    ) -> SoundSlice:
        """Return whole batches from `offset` up to the log's end, synced or not, byte for byte; at most `batches_max`.

        For followers in this region. At least one batch if there is one, also from below the log start. Raises OffsetOutOfRange,
        PartitionFailed, CorruptRange, and ColdRange unless `wait`.
        """
        self._check_range(offset, self._content.start_offset)
        end = self._content.end_offset
        return self._reads.read(offset, max_bytes, end, wait=wait, batches_max=batches_max)

    def bytes_up_to_end(self, offset: int, enough: int, *, wait: bool = True) -> int:
        """Return how many bytes a follower that is at `offset` lacks; stops counting at `enough`, as `readable_bytes` does."""
        end = self._content.end_offset
        if self._content.failed is not None or not self._content.start_offset <= offset <= end:
            return enough
        if offset == end:
            return 0
        try:
            return self._reads.bytes_between(offset, end, enough, wait=wait)
        except LogError:
            return enough  # said and counted already; whoever reads it hears of it

    def end_before(self, offset: int, *, wait: bool = True) -> int:
        """Return where the last batch ends that begins below `offset`: `offset` itself, unless the log was cleaned there.

        Raises PartitionFailed, CorruptRange, and ColdRange unless `wait`.
        """
        self._content.check_running()
        # What is cleaned is committed, so that who is in sync has it beyond `offset`: none of them is told to go back (INV-RPH4).
        if not self._content.start_offset < offset < self._cleaning.holes_below:
            return offset
        return self._reads.end_before(offset, wait=wait)

    def has_another(self, batch: BatchHeader) -> bool:
        """Return whether another batch than this one, of another region's log, is in its place here.

        False where nobody can tell: it is not here, was cleaned, or cannot be read.
        """
        offset = batch.base_offset
        known_from = max(self._content.start_offset, self._cleaning.holes_below)
        if not known_from <= offset < self._sight.high_watermark:
            return False
        try:
            data = self.read_raw(offset, 1)
        except LogError:
            return False
        here = next((header for _, header in iter_headers(data)), batch)
        return (here.base_offset, here.crc) != (offset, batch.crc)

    def readable_bytes(
        self, offset: int, isolation: Isolation, enough: int, *, wait: bool = True
    ) -> int:
        """Return how many bytes a fetch from `offset` could get; stops counting at `enough`.

        An offset out of range, what cannot be read, and a partition that has stopped, or stops at this very look, count as
        enough: the reader must be told. Raises ColdRange unless `wait`.
        """
        sight, content = self._sight, self._content
        if content.failed is None and sight.is_behind(offset):
            return 0
        in_range = sight.log_start_offset <= offset <= content.end_offset
        if content.failed is not None or not in_range:
            return enough
        end = sight.readable_end(isolation)
        if offset >= end:
            return 0
        if enough <= 1:
            return enough
        try:
            return self._reads.bytes_between(offset, end, enough, wait=wait)
        except LogError:
            return enough  # said and counted already; whoever reads it hears of it

    def lookup(self, isolation: Isolation, asked_by: str = "") -> TimeLookup:
        """Return what finds readable records by time for `asked_by`, by whom turns are counted (INV-RTH2). Raises PartitionFailed."""
        self._content.check_running()
        sight = self._sight
        end = sight.readable_end(isolation)
        return TimeLookup(
            self._reads,
            self.cold_reads,
            sight.log_start_offset,
            end,
            self._opening,
            self._lookup_threads,
            asked_by,
            partial(self._unreadable.met, self._tp),
        )

    def _end_of_older_regions(self) -> tuple[LeaderEpoch, int] | None:
        """Return the last leader epoch of the regions that acted before this one, and where it ends here."""
        first = leader_epoch(region_epoch_of(self._sight.leader_epoch), 0)
        found = self._sight.epoch_end_offset(LeaderEpoch(first - 1))
        return found if found[0] >= 0 else None

    def _check_range(self, offset: int, start: int) -> None:
        self._content.check_running()
        if not start <= offset <= self._content.end_offset:
            raise OffsetOutOfRange(offset, start, self._content.end_offset)
