"""One look at a sealed segment: where its bytes are not what was written, and which file beside it is not a function of them.

INV-SCB2  what an open or a read would refuse is found: a frame, a CRC, an offset that does not follow, a leader epoch
         that the log's index does not name there, bytes that are missing or that the disk cannot read
INV-SCB3  a damaged range begins behind a sound batch, or with the segment, and ends where a sound one begins, or with it
INV-SCB4  what was in memory before stays there, what was read in for this goes again
The next sound batch is looked for where the damaged one says that it ends, and else where the offset index says that
batches begin: nothing is guessed from the bytes of records, in which a producer may have written a batch of its own.

Runs in a thread, on a file of its own; a generator, so that its driver may slow it down. Whether the segment is still
the one that was meant is the driver's to ask before it believes what was found. What the page cache holds is looked at
there, not on the device below it.
Not here: what is done about it (`partitions.mending`).
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idempotency.identity import NO_LEADER_EPOCH
from idempotency.record_batch import HEADER_BYTES, BatchError, BatchHeader, crc_ok, read_header
from region_broker.limits import REQUEST_BYTES_MAX
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.log.indexes.aborted_index import decode_aborted
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.indexes.sparse_index import (
    NO_TIMESTAMP_MS,
    SegmentSummary,
    SparseIndex,
    decode_index,
)
from region_broker.log.scrubbing.damage import DamagedRange, EpochsAt, EpochStart
from region_broker.ports.disk import NO_DESCRIPTORS, Buffer, Disk, DiskFile

WINDOW_BYTES: Final = 128 * 1024
DAMAGES_MAX: Final = 64
"""Damaged ranges of one segment that are told apart; the last one goes on to its end."""
_NOWHERE: Final = 1 << 62


@dataclass(frozen=True, slots=True, kw_only=True)
class Subject:
    """What is known of a sealed segment, fixed on the event loop.

    `path` is read; `segment_path` is what the files beside it are named by. Below `holes_below` offsets may be missing.
    """

    path: Path
    segment_path: Path
    base_offset: int
    next_offset: int
    size_bytes: int
    holes_below: int
    epochs: Sequence[EpochStart]
    index_interval_bytes: int

    def beside(self, suffix: str) -> Path:
        """Return the path of a file beside the segment."""
        return self.segment_path.with_suffix(suffix)


class Examination:
    """`steps` is the look; then `damages` and `side_faults` say what was found."""

    def __init__(self, subject: Subject, disk: Disk) -> None:
        """Look at `subject` on `disk`; nothing is read yet."""
        self.damages: list[DamagedRange] = []
        self.side_faults: dict[str, str] = {}
        """What is wrong with files beside the segment, by suffix; each is a function of the log."""
        self._subject = subject
        self._disk = disk
        self._epochs = EpochsAt(subject.epochs)
        self._highest_epoch = NO_LEADER_EPOCH
        self._position = 0
        self._offset = subject.base_offset
        self._highest_ms = self._first_ms = NO_TIMESTAMP_MS
        self._read_error = ""
        self._unreadable_below = 0
        self._index: SparseIndex | None = None
        self._summary: SegmentSummary | None = None
        self._entry_slot = 0
        self._entry_position = _NOWHERE
        self._read_bytes = 0

    @property
    def is_sound(self) -> bool:
        """Whether nothing was found."""
        return not self.damages and not self.side_faults

    def steps(self) -> Generator[int, None, None]:
        """Look, and yield how many bytes were read since the last step.

        Raises OSError where no file can be opened now; any other one is damage.
        """
        self._read_index()
        self._check_aborted()
        yield self._taken_bytes()
        try:
            file = self._disk.open(self._subject.path)
        except OSError as error:
            _check_descriptors(error)
            self._damage(self._subject.size_bytes, self._subject.next_offset, str(error))
            return
        try:
            yield from self._walk(file)
        finally:
            file.close()
        self._end_index()

    def _taken_bytes(self) -> int:
        taken, self._read_bytes = self._read_bytes, 0
        return taken

    # -- the batches -----------------------------------------------------------------------------

    def _walk(self, file: DiskFile) -> Generator[int, None, None]:
        subject = self._subject
        while self._position < subject.size_bytes:
            self._read_error = ""
            fault = self._take(self._window(file))
            yield self._taken_bytes()
            if fault:
                yield from self._pass_over(file, self._read_error or fault)
        if self._offset != subject.next_offset and not self._may_be_missing(subject.next_offset):
            self._damage(
                subject.size_bytes, subject.next_offset, f"it ends at offset {self._offset}"
            )

    def _may_be_missing(self, offset: int) -> bool:
        return self._offset < offset <= self._subject.holes_below

    def _take(self, window: Buffer) -> str:
        """Go on over the sound batches at the beginning of `window`; return what is wrong behind them, if anything is."""
        at, end, rest = 0, len(window), self._subject.size_bytes - self._position
        while at < end:
            try:
                header = read_header(window, at)
            except BatchError as error:
                return str(error) if end - at >= HEADER_BYTES or at == 0 or end >= rest else ""
            size_bytes = header.size_bytes
            if at + size_bytes > end:
                # What is behind this window is read next; what is beyond the file is not there.
                return f"the batch of {size_bytes} bytes is cut off" if at == 0 else ""
            fault = self._fault_of(header)
            if not fault and not crc_ok(window, at, header):
                fault = "the CRC is wrong"
            if fault:
                return fault
            if self._position >= self._entry_position:
                self._check_entry(header)
            self._go_behind(header)
            at += size_bytes
        return "" if end else "the file ends here"

    def _fault_of(self, header: BatchHeader) -> str:
        """Return what is wrong with the place of a batch: no CRC speaks of that."""
        base_offset = header.base_offset
        if base_offset != self._offset and not self._may_be_missing(base_offset):
            return f"a batch of offset {base_offset} where {self._offset} follows"
        if header.next_offset > self._subject.next_offset:
            return f"a batch up to offset {header.next_offset}, behind {self._subject.next_offset}"
        epoch = self._epochs.at(base_offset)
        if epoch not in (NO_LEADER_EPOCH, header.leader_epoch):
            return f"leader epoch {header.leader_epoch} where the index says {epoch}"
        if header.leader_epoch < self._highest_epoch:  # INV-R8
            return f"leader epoch {header.leader_epoch} behind {self._highest_epoch}"
        return ""

    def _go_behind(self, header: BatchHeader) -> None:
        if self._position == 0:
            self._first_ms = header.base_timestamp_ms
        self._highest_ms = max(self._highest_ms, header.max_timestamp_ms)
        self._highest_epoch = header.leader_epoch
        self._offset = header.next_offset
        self._position += header.size_bytes

    def _pass_over(self, file: DiskFile, reason: str) -> Generator[int, None, None]:
        """Note a damaged range that begins here, and go on where the next sound batch begins (INV-SCB3)."""
        position, offset = self._subject.size_bytes, self._subject.next_offset
        if len(self.damages) < DAMAGES_MAX - 1:
            for candidate, expected in self._candidates(file):
                header = self._sound_at(file, candidate, expected)
                yield self._taken_bytes()
                if header is not None:
                    position, offset = candidate, header.base_offset
                    break
        self._damage(position, offset, reason)
        while self._entry_position < position:
            self._next_entry()

    def _candidates(self, file: DiskFile) -> Iterator[tuple[int, int]]:
        """Yield (position, offset or -1) where the next batch may begin."""
        end_bytes = self._subject.size_bytes
        try:
            claimed = (
                self._position
                + read_header(self._read(file, self._position, HEADER_BYTES)).size_bytes
            )
        except BatchError:
            claimed = end_bytes
        if claimed < end_bytes:
            yield claimed, -1
        index = self._index
        for slot in range(self._entry_slot, 0 if index is None else len(index)):
            assert index is not None
            entry = index.entry(slot)
            if self._position < entry.position < end_bytes:
                yield entry.position, self._subject.base_offset + entry.relative_offset

    def _sound_at(self, file: DiskFile, position: int, expected: int) -> BatchHeader | None:
        """Return the batch at `position` if it is sound, and behind what is damaged."""
        data = self._read(file, position, HEADER_BYTES)
        try:
            header = read_header(data)
        except BatchError:
            return None
        base_offset = header.base_offset
        is_behind = self._offset < base_offset < header.next_offset <= self._subject.next_offset
        if not is_behind or expected not in (-1, base_offset):
            return None
        epoch = self._epochs.at(base_offset)
        if epoch not in (NO_LEADER_EPOCH, header.leader_epoch):
            return None
        if not self._is_plausible(position, header.size_bytes):
            return None
        return header if crc_ok(self._read(file, position, header.size_bytes), 0, header) else None

    def _damage(self, position: int, offset: int, reason: str) -> None:
        self.damages.append(DamagedRange(self._offset, offset, self._position, position, reason))
        self._position, self._offset = position, offset

    # -- reading ---------------------------------------------------------------------------------

    def _window(self, file: DiskFile) -> Buffer:
        """Return what lies here: at least one batch, if there is a whole one."""
        left_bytes = self._subject.size_bytes - self._position
        # Around what the disk cannot read, batch by batch: each try of a large range may take it seconds.
        first_bytes = WINDOW_BYTES if self._position >= self._unreadable_below else HEADER_BYTES
        data = self._read(file, self._position, min(first_bytes, left_bytes))
        if self._read_error and first_bytes != HEADER_BYTES:
            self._unreadable_below = self._position + first_bytes
            self._read_error = ""
            data = self._read(file, self._position, min(HEADER_BYTES, left_bytes))
        try:
            size_bytes = read_header(data).size_bytes
        except BatchError:
            return data
        if size_bytes > len(data) and self._is_plausible(self._position, size_bytes):
            data = self._read(file, self._position, size_bytes) or data
        return data

    def _is_plausible(self, position: int, size_bytes: int) -> bool:
        """Return whether a batch there may be that long: no other one begins within it."""
        end = position + size_bytes
        if end > self._subject.size_bytes or size_bytes > REQUEST_BYTES_MAX:
            return False
        return self._index is None or self._index.batch_start_before(end - 1) <= position

    def _read(self, file: DiskFile, position: int, size_bytes: int) -> Buffer:
        """Return that range; less where the file ends, nothing where the disk cannot read it, which is noted."""
        try:
            data = read_and_drop(file, position, size_bytes)
        except OSError as error:
            _check_descriptors(error)
            self._read_error = f"the disk cannot read it: {error}"
            return b""
        self._read_bytes += len(data)
        return data

    # -- the files beside it ---------------------------------------------------------------------

    def _read_index(self) -> None:
        path = self._subject.beside(INDEX_SUFFIX)
        try:
            self._index, self._summary = decode_index(
                self._disk.read_file(path), self._subject.index_interval_bytes
            )
        except (OSError, FrameError) as error:
            self._side_fault(INDEX_SUFFIX, error)
            return
        self._entry_slot = -1
        self._next_entry()

    def _check_aborted(self) -> None:
        try:
            decode_aborted(self._disk.read_file(self._subject.beside(ABORTED_SUFFIX)))
        except (OSError, FrameError) as error:
            self._side_fault(ABORTED_SUFFIX, error)

    def _side_fault(self, suffix: str, error: Exception) -> None:
        if isinstance(error, OSError):
            _check_descriptors(error)
        self.side_faults[suffix] = str(error)

    def _next_entry(self) -> None:
        index = self._index
        assert index is not None
        self._entry_slot += 1
        at_end = self._entry_slot >= len(index)
        self._entry_position = _NOWHERE if at_end else index.entry(self._entry_slot).position

    def _check_entry(self, header: BatchHeader) -> None:
        assert self._index is not None
        entry = self._index.entry(self._entry_slot)
        is_here = (entry.position, entry.relative_offset) == (
            self._position,
            header.base_offset - self._subject.base_offset,
        )
        if not is_here or (not self.damages and entry.highest_before_ms != self._highest_ms):
            self._distrust(f"it names {entry}, a batch begins at {self._position}")
            return
        self._next_entry()

    def _distrust(self, reason: str) -> None:
        self.side_faults[INDEX_SUFFIX] = reason
        self._index, self._entry_position = None, _NOWHERE

    def _end_index(self) -> None:
        if self._summary is None or self.damages or INDEX_SUFFIX in self.side_faults:
            return
        subject = self._subject
        found = SegmentSummary(
            subject.size_bytes, subject.next_offset, self._highest_ms, self._first_ms
        )
        if self._entry_position != _NOWHERE or self._summary != found:
            self._distrust(f"it says {self._summary}, the segment {found}")


def read_and_drop(file: DiskFile, position: int, size_bytes: int) -> Buffer:
    """Return that range; what was not in memory before is let go of again (INV-SCB4). Raises OSError."""
    known = file.pread_cached(size_bytes, position)
    if len(known) == size_bytes:
        return known
    start = position + len(known)
    rest = file.pread(size_bytes - len(known), start)
    if rest:
        file.drop_cached(start, len(rest))
    return known + rest if known else rest


def _check_descriptors(error: OSError) -> None:
    """Raise where no file can be opened now: that says nothing of the disk."""
    if error.errno in NO_DESCRIPTORS:
        raise error
