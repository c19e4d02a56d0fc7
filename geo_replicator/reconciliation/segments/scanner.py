"""Segment files as tables of batch headers, read once, in order, with every checksum recomputed.

INV-RCSC1  a file is read sequentially through one reused window (8 MiB, more for a longer batch); never
         mapped: a segment truncated underneath gives a short read, not a signal
INV-RCSC2  the walk trusts no length below the header's own or above BATCH_BYTES_MAX; there it stops, says how
         many bytes it left out, and never searches for the next batch by guessing
INV-RCSC3  it reads no further than the size that was sampled: what a live broker appends later is not seen
INV-RCSC4  a row whose CRC is wrong is kept with `crc_ok` 0; nothing of it may be believed

A log that ends inside a batch is whole up to there: the tail of the active segment may be torn by a crash
or still be written (INV-RCSC2 reports TORN_TAIL; whether that is a fault is decided in `diff`).
Not here: what rows mean (`evidence`, `diff`), Spark, the broker's own index files.
"""

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from struct import Struct
from typing import Any, Final, Protocol, TypeAlias

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from geo_replicator.reconciliation.segments.batch_table import (
    CONTROL_UNKNOWN,
    CRC_COVERS_FROM,
    DELTA_AT,
    LENGTH_AT,
    MAGIC_AT,
    BatchTable,
    empty_table,
    table_of_headers,
)
from geo_replicator.reconciliation.segments.marker_columns import read_markers
from idempotency.record_batch import (
    CONTROL_BIT,
    HEADER_BYTES,
    LENGTH_PREFIX_BYTES,
    MAGIC,
)

WINDOW_BYTES: Final = 8 << 20
READ_BYTES: Final = 1 << 20
"""How much one read of a file that a port opened brings, beside the window."""
BATCH_BYTES_MAX: Final = 512 << 20
_LENGTH_MIN: Final = HEADER_BYTES - LENGTH_PREFIX_BYTES
_NEVER_BYTES: Final = 1 << 62
_LENGTH: Final = Struct(">i")
_OFFSET: Final = Struct(">q")
_SEGMENT_NAME: Final = re.compile(r"(\d{20})\.log")
_TOPIC_ID: Final = re.compile(r"[0-9a-f]{32}")
_HEADER_COLUMNS: Final = np.arange(HEADER_BYTES)
LOGS_FOLDER: Final = "logs"
FORMAT_FILE: Final = "format"
CLEANED_FILE: Final = "cleaned"
LOG_START_FILE: Final = "log-start"
TOPIC_FILE: Final = "topic.json"

Bytes: TypeAlias = npt.NDArray[np.uint8]


class Stop(Enum):
    """Why a walk ended."""

    END = "end"
    """At the end of the file, on a batch boundary."""
    TORN_TAIL = "torn_tail"
    """Inside a batch: the file ends before the batch does, or is filled up with zeros."""
    BAD_LENGTH = "bad_length"
    """A length that no batch can have."""
    BAD_MAGIC = "bad_magic"
    """Not a record batch v2."""
    SHRUNK = "shrunk"
    """The file was truncated while it was read."""


class SegmentFileBytes(Protocol):
    """An open file of whoever owns the disk."""

    def pread(self, size_bytes: int, position: int) -> bytes:
        """Return up to `size_bytes` bytes from `position`; fewer at the end of the file."""
        ...

    def size(self) -> int:
        """Return how many bytes it has."""
        ...


ReadInto: TypeAlias = Callable[[memoryview, int], int]
"""Fills a buffer from a position on, as much as it wants to; returns how many bytes, 0 at the end."""


class BatchVisitor(Protocol):
    """Is shown every window's rows together with the bytes they came from, while those are in memory."""

    def __call__(self, rows: BatchTable, window: Bytes, window_position: int) -> None:
        """Row `r` begins at `window[r["position"] - window_position]`."""
        ...


@dataclass(slots=True)
class SegmentScan:
    """What one segment file holds: `walked_bytes` of `size_bytes` are the rows of `table`."""

    table: BatchTable
    size_bytes: int
    walked_bytes: int
    stop: Stop
    sha256: bytes = b""

    @property
    def skipped_bytes(self) -> int:
        """Bytes behind the last whole batch."""
        return self.size_bytes - self.walked_bytes


def scan_segment(
    path: Path,
    *,
    size_bytes: int | None = None,
    visit: BatchVisitor | None = None,
    sha256: bool = False,
) -> SegmentScan:
    """Walk the first `size_bytes` of a segment (all of it by default) and check every CRC.

    Raises OSError where the file cannot be opened or read (FileNotFoundError: retention took it).
    """
    with _opened(path) as descriptor:
        size = os.fstat(descriptor).st_size if size_bytes is None else size_bytes
        walk = _Walk(
            lambda room, position: os.preadv(descriptor, [room], position),
            size, visit, hashlib.sha256() if sha256 else None,
        )  # fmt: skip
        return walk.run()


def scan_open_segment(file: SegmentFileBytes) -> SegmentScan:
    """Walk a whole segment as `scan_segment` does, with its hash, through the disk of whoever opened it."""

    def read(room: memoryview, position: int) -> int:
        data = file.pread(min(len(room), READ_BYTES), position)
        room[: len(data)] = data
        return len(data)

    return _Walk(read, file.size(), None, hashlib.sha256()).run()


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@dataclass(slots=True)
class _Walk:
    read_into: ReadInto
    size: int
    visit: BatchVisitor | None
    hasher: Any
    parts: list[BatchTable] = field(default_factory=list)

    def run(self) -> SegmentScan:
        storage = np.empty(min(WINDOW_BYTES, max(self.size, 1)), np.uint8)
        position = hashed = 0
        stop = Stop.END
        while position < self.size:
            window = self._fill(storage, position)
            if self.hasher is not None:
                self.hasher.update(window[max(0, hashed - position) :])
                hashed = position + len(window)
            expected = min(len(storage), self.size - position)
            walked, stop, needed = _walk_window(window, position, self._take)
            position += walked
            if len(window) < expected:
                stop = Stop.SHRUNK
                break
            goes_on = stop is Stop.END or (
                stop is Stop.TORN_TAIL and position + needed <= self.size
            )
            if not goes_on:
                break
            if needed > len(storage):
                storage = np.empty(needed, np.uint8)
        table = np.concatenate(self.parts) if self.parts else empty_table()
        digest = b"" if self.hasher is None else self.hasher.digest()
        return SegmentScan(table, self.size, position, stop, digest)

    def _fill(self, storage: Bytes, position: int) -> Bytes:
        wanted = min(len(storage), self.size - position)
        filled = 0
        while filled < wanted:
            count = self.read_into(storage[filled:wanted].data, position + filled)
            if count == 0:
                break
            filled += count
        window = storage[:filled].view()
        window.flags.writeable = False
        return window

    def _take(self, rows: BatchTable, window: Bytes, window_position: int) -> None:
        self.parts.append(rows)
        if self.visit is not None:
            self.visit(rows, window, window_position)


def _walk_window(
    window: Bytes, window_position: int, take: Callable[[BatchTable, Bytes, int], None]
) -> tuple[int, Stop, int]:
    """Return (bytes walked, why it ended, bytes needed from there to go on)."""
    starts: list[int] = []
    crcs: list[int] = []
    length_of, data = _LENGTH.unpack_from, window.data
    position, available = 0, len(window)
    stop, needed = Stop.END, 0
    while position < available:
        if available - position < HEADER_BYTES:
            stop, needed = Stop.TORN_TAIL, HEADER_BYTES
            break
        length = length_of(data, position + LENGTH_AT)[0]
        end = position + LENGTH_PREFIX_BYTES + length
        if data[position + MAGIC_AT] != MAGIC or not _LENGTH_MIN <= length <= BATCH_BYTES_MAX:
            stop, needed = _bad_start(window[position:], length), _NEVER_BYTES
            break
        if end > available:
            stop, needed = Stop.TORN_TAIL, end - position
            break
        starts.append(position)
        crcs.append(crc32c(data[position + CRC_COVERS_FROM : end]))
        position = end
    if starts:
        take(_rows(window, window_position, starts, crcs), window, window_position)
    return position, stop, needed


def _bad_start(rest: Bytes, length: int) -> Stop:
    if not rest.any():
        return Stop.TORN_TAIL
    return Stop.BAD_LENGTH if not _LENGTH_MIN <= length <= BATCH_BYTES_MAX else Stop.BAD_MAGIC


def _rows(window: Bytes, window_position: int, starts: list[int], crcs: list[int]) -> BatchTable:
    at = np.array(starts, np.int64)
    table = table_of_headers(window[at[:, None] + _HEADER_COLUMNS], at + window_position)
    table["crc_ok"] = table["crc"] == np.array(crcs, np.uint32)
    control = (table["attributes"] & CONTROL_BIT) != 0
    table["control_type"][control] = CONTROL_UNKNOWN
    sound = np.flatnonzero(control & (table["crc_ok"] == 1))
    if len(sound):
        read_markers(table, sound, window, at)
    return table


class _TopicFile(msgspec.Struct, frozen=True):
    name: str


@dataclass(frozen=True, slots=True, order=True)
class SegmentFile:
    """One segment at the moment it was listed."""

    base_offset: int
    path: Path
    size_bytes: int


@dataclass(frozen=True, slots=True, order=True)
class PartitionFiles:
    """The segments of one partition by base offset; the last one is the active one."""

    topic: str
    partition: int
    topic_id: str
    """32 hexadecimal digits."""
    segments: tuple[SegmentFile, ...]
    cleaned_below: int = 0
    """Up to here compaction may have removed records on this side."""
    log_start: int = 0
    """Below it records were deleted by DeleteRecords, though their segment may still be there."""


def find_logs(data_dir: Path) -> Path:
    """Return the folder of logs in a region's data folder (or that folder itself).

    Raises FileNotFoundError with a message for the user where there is none.
    """
    for folder in (data_dir / LOGS_FOLDER, data_dir):
        if (folder / FORMAT_FILE).is_file():
            return folder
    raise FileNotFoundError(
        f"{data_dir} is not a region's data folder: there is no file `{FORMAT_FILE}` in it nor in"
        f" `{LOGS_FOLDER}`; name the folder that the region's node was started with (data_dir in its"
        " configuration)"
    )


def list_region(data_dir: Path, *, first: tuple[str, ...] = ()) -> list[PartitionFiles]:
    """Return all partitions of a region's data folder with the sizes of their segments now.

    Topics named in `first` are sampled before all others (ledgers: what a ledger says has happened is
    then surely in the data that is sampled after it). Raises FileNotFoundError as `find_logs` does.
    """
    topics = []
    for folder in sorted(find_logs(data_dir).iterdir()):
        if _TOPIC_ID.fullmatch(folder.name) is None:
            continue
        try:
            name = msgspec.json.decode((folder / TOPIC_FILE).read_bytes(), type=_TopicFile).name
        except FileNotFoundError:
            continue  # a topic on its way in or out: it has no partitions that count yet, or any more
        topics.append((name not in first, name, folder))
    return [files for _, name, folder in sorted(topics) for files in _partitions(name, folder)]


def _partitions(topic: str, folder: Path) -> Iterator[PartitionFiles]:
    try:
        numbers = sorted(int(entry.name) for entry in folder.iterdir() if entry.name.isdecimal())
    except FileNotFoundError:
        return
    for number in numbers:
        cleaned = cleaned_below(folder / str(number))
        segments = _segments(folder / str(number))
        yield PartitionFiles(
            topic, number, folder.name, segments, cleaned, log_start(folder / str(number))
        )


def cleaned_below(folder: Path) -> int:
    """Return how far a log was cleaned (docs/reference/on-disk.md: `cleaned`); 0 if it never was."""
    return _last_number(folder / CLEANED_FILE)


def log_start(folder: Path) -> int:
    """Return where DeleteRecords let a log begin (docs/reference/on-disk.md: `log-start`); 0 if it never did."""
    return _last_number(folder / LOG_START_FILE)


def _last_number(path: Path) -> int:
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return 0
    return int.from_bytes(data[-8:], "big")


def _segments(folder: Path) -> tuple[SegmentFile, ...]:
    found = []
    for path in folder.glob("*.log"):
        match = _SEGMENT_NAME.fullmatch(path.name)
        if match is None:
            continue
        try:
            found.append(SegmentFile(int(match[1]), path, path.stat().st_size))
        except FileNotFoundError:
            continue  # retention took it between listing and stat: it is below the log start now
    return tuple(sorted(found))


def end_offset(files: PartitionFiles) -> int:
    """Return the offset behind the last whole batch, from lengths alone: no CRC is checked."""
    if not files.segments:
        return 0
    last = files.segments[-1]
    end = last.base_offset
    with _opened(last.path) as descriptor:
        position = 0
        while position < last.size_bytes:
            window = os.pread(descriptor, min(WINDOW_BYTES, last.size_bytes - position), position)
            walked, end = _walk_ends(window, end)
            if walked == 0:
                break
            position += walked
    return end


def _walk_ends(window: bytes, end: int) -> tuple[int, int]:
    position = 0
    while position + HEADER_BYTES <= len(window):
        length = _LENGTH.unpack_from(window, position + LENGTH_AT)[0]
        after = position + LENGTH_PREFIX_BYTES + length
        if length < _LENGTH_MIN or after > len(window) or window[position + MAGIC_AT] != MAGIC:
            break
        base = _OFFSET.unpack_from(window, position)[0]
        end = base + _LENGTH.unpack_from(window, position + DELTA_AT)[0] + 1
        position = after
    return position, end
