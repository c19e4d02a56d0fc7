"""Reads of one log that give out nothing damaged.

INV-PT6  no batch leaves the node unless its CRC is right: a bad one is CorruptRange for those who ask for it,
        a log line and a count, and the batches before and behind it are served
INV-PT14 one reading looks at READ_BATCHES_MAX batches at most, however small: whoever reads goes on behind them

Not here: how far a reader may see (`partition`), the bytes (`log.partition_log`).
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final, NamedTuple

from idempotency.identity import LeaderEpoch, TopicPartition
from idempotency.partition_state import AbortedTxn
from idempotency.record_batch import SEALED_BIT, crc_ok, look_over
from region_broker.limits import READ_BATCHES_MAX
from region_broker.log.failures import CorruptRange, LogDamaged, PartitionFailed
from region_broker.log.partition_log import PartitionLog
from region_broker.log.segment import BatchAtTime, ReadSlice
from region_broker.ports.disk import NO_DESCRIPTORS

logger: Final = logging.getLogger(__name__)

CORRUPT_OFFSETS_NAMED: Final = 100
"""How many damaged places of one partition get a line in the log; all reads of them are counted."""
_NO_EPOCH: Final = -1


class SoundSlice(NamedTuple):
    """So many whole sound batches, where to go on, and whether any of them is sealed."""

    data: bytes | bytearray
    next_offset: int
    is_sealed: bool = False
    batch_count: int = 0


class SoundReads:
    """Reads `log`, which is called `tp` in texts. A disk error stops the log."""

    def __init__(self, tp: TopicPartition, log: PartitionLog) -> None:
        """Nothing damaged was seen yet."""
        self._tp = tp
        self._log = log
        self.corrupt_count = 0
        self._corrupt_at: set[int] = set()

    def read(
        self,
        offset: int,
        max_bytes: int,
        end: int,
        *,
        wait: bool,
        batches_max: int = READ_BATCHES_MAX,
    ) -> SoundSlice:
        """Return whole sound batches from `offset` up to `end`, as they are stored; at most so many (INV-PT14).

        Raises CorruptRange if the first one is damaged, PartitionFailed, and ColdRange unless `wait`.
        """
        with self._errors_at(offset, f"reading at {offset}"):
            found = self._read_around_damage(offset, max_bytes, end, wait=wait)
        if found is None:
            if offset < end:
                raise self._corrupt(offset, "the batch there does not end where readers may see")
            return SoundSlice(b"", offset)
        looked = look_over(
            found.data,
            offset,
            leader_epoch=self._one_epoch(offset, found),
            gap_below=self._log.cleaning.holes_below,
            batches_max=batches_max,
        )
        is_sealed = looked.seen & SEALED_BIT != 0
        if looked.sound_bytes == len(found.data):
            return SoundSlice(found.data, found.next_offset, is_sealed, looked.batch_count)
        if looked.sound_bytes == 0:
            raise self._corrupt(offset, "the batch there has a wrong CRC")
        sound = found.data[: looked.sound_bytes]
        return SoundSlice(sound, looked.next_offset, is_sealed, looked.batch_count)

    def _one_epoch(self, offset: int, found: ReadSlice) -> LeaderEpoch | None:
        """Return the leader epoch of all that was read, None if there are several."""
        epochs = self._log.epochs
        leader_epoch = epochs.epoch_at(offset)
        if leader_epoch == _NO_EPOCH:
            return None
        return leader_epoch if epochs.epoch_at(found.next_offset - 1) == leader_epoch else None

    def _read_around_damage(
        self, offset: int, max_bytes: int, end: int, *, wait: bool
    ) -> ReadSlice | None:
        try:
            return self._log.segments.read(offset, max_bytes, end, wait=wait)
        except LogDamaged:
            if max_bytes <= 1:
                raise
            return self._log.segments.read(
                offset, 1, end, wait=wait
            )  # the first batch may be sound

    def aborted_in(self, start: int, end: int, bound: int, *, wait: bool) -> list[AbortedTxn]:
        """Return the aborted transactions that touch [start, end); raises what `read` raises."""
        with self._errors_at(start, f"looking for aborted transactions from {start} on"):
            return self._log.aborted_in(start, end, bound, wait=wait)

    def bytes_between(self, start: int, end: int, enough: int, *, wait: bool) -> int:
        """Return the bytes of [start, end), or `enough`: also where they are damaged, so that the reader is told.

        Raises PartitionFailed, and ColdRange unless `wait`.
        """
        try:
            with self._errors_at(start, f"looking for what lies behind {start}"):
                return self._log.segments.bytes_between(start, end, enough, wait=wait)
        except CorruptRange:
            return enough

    def end_before(self, offset: int, *, wait: bool) -> int:
        """Return where the last batch below `offset` ends; raises what `read` raises."""
        with self._errors_at(offset, f"looking for what lies before {offset}"):
            return self._log.segments.end_before(offset, wait=wait)

    @contextmanager
    def _errors_at(self, offset: int, work: str) -> Iterator[None]:
        """Let damage be CorruptRange, and stop the partition if the disk fails; not where no file can be opened now."""
        try:
            yield
        except LogDamaged as error:
            raise self._corrupt(offset, f"{work}: {error}") from error
        except OSError as error:
            reason = f"{work} of {self._tp} failed: {error}"
            if error.errno in NO_DESCRIPTORS:
                raise PartitionFailed(f"{reason}; it goes on when files can be opened") from error
            self._log.fail(reason)
            raise PartitionFailed(self._log.failed) from error

    def _corrupt(self, offset: int, reason: str) -> CorruptRange:
        self.corrupt_count += 1
        if offset not in self._corrupt_at and len(self._corrupt_at) < CORRUPT_OFFSETS_NAMED:
            self._corrupt_at.add(offset)
            logger.error(
                "%s: what is stored at offset %d is damaged and is not given out: %s. It is mended from "
                "another node or region that has it (docs/runbooks/damaged_log.md); readers may go on behind it",
                self._tp, offset, reason,
            )  # fmt: skip
        return CorruptRange(offset, f"{self._tp} at {offset}: {reason}")

    def batch_at(
        self, timestamp_ms: int, start: int, end: int, *, wait: bool = True
    ) -> BatchAtTime | int | None:
        """Return the first batch in [start, end) that says it holds a record at or after a time, or from where on to look for it further.

        Raises CorruptRange, PartitionFailed, and ColdRange unless `wait`.
        """
        with self._errors_at(-1, f"looking for {timestamp_ms} ms"):
            found = self._log.segments.first_reaching(timestamp_ms, end, start, wait=wait)
        if isinstance(found, BatchAtTime) and not crc_ok(found.batch, 0, found.header):
            raise self._corrupt(found.header.base_offset, "the batch there has a wrong CRC")
        return found
