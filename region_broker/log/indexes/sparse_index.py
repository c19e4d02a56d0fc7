"""Sparse offset and time index of one segment: about one entry for each `interval_bytes` of log.

INV-X3  an index is a function of the segment's bytes: a missing or damaged file is built again
An entry (relative offset, position, highest timestamp before it) names the start of a batch. Entries grow in offset and
position; the timestamp never falls; the first batch has an entry.

The timestamp of an entry is the highest of all batches *before* it, so the first batch that reaches a time lies
at or behind the last entry whose timestamp is below that time.
Not here: reading the segment (`segment`).
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from dataclasses import dataclass
from typing import Final, NamedTuple

from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame

_MAGIC: Final = b"TMIX"
_VERSION: Final = 1
NO_TIMESTAMP_MS: Final = -1
ENTRY_BYTES: Final = 16
_HEAD_BYTES: Final = 40
SUMMARY_BYTES: Final = len(pack_frame(_MAGIC, _VERSION, bytes(_HEAD_BYTES)))
"""How far one has to read to know what the file says of the segment."""


@dataclass(frozen=True, slots=True)
class SegmentSummary:
    """What the file of a sealed segment's index also says about the segment."""

    size_bytes: int
    next_offset: int
    max_timestamp_ms: int
    first_timestamp_ms: int


class IndexEntry(NamedTuple):
    """One entry: where a batch starts, and the highest timestamp of all before it."""

    relative_offset: int
    position: int
    highest_before_ms: int


class SparseIndex:
    """Offset and time index in memory; grows with the segment."""

    __slots__ = ("_interval_bytes", "_next_entry_at", "_offsets", "_positions", "_timestamps")

    def __init__(self, interval_bytes: int) -> None:
        """Start empty, with an entry at most each `interval_bytes`."""
        self._interval_bytes = interval_bytes
        self._next_entry_at = 0
        self._offsets = array("I")
        self._positions = array("I")
        self._timestamps = array("q")

    def __len__(self) -> int:
        """Return the number of entries."""
        return len(self._offsets)

    def note_batch(self, relative_offset: int, position: int, max_timestamp_ms_before: int) -> None:
        """Tell the index of a batch appended at `position`; most are not entered."""
        if position >= self._next_entry_at:
            self._offsets.append(relative_offset)
            self._positions.append(position)
            self._timestamps.append(max_timestamp_ms_before)
            self._next_entry_at = position + self._interval_bytes

    def position_before(self, relative_offset: int) -> int:
        """Return the position of the last entered batch that starts at or before the offset."""
        slot = bisect_right(self._offsets, relative_offset) - 1
        return self._positions[slot] if slot >= 0 else 0

    def batch_start_before(self, position: int) -> int:
        """Return the position of the last entered batch that starts at or before `position`."""
        slot = bisect_right(self._positions, position) - 1
        return self._positions[slot] if slot >= 0 else 0

    def position_for_time(self, timestamp_ms: int) -> int:
        """Return a position at or before the first batch whose highest timestamp is >= `timestamp_ms`."""
        slot = bisect_left(self._timestamps, timestamp_ms) - 1
        return self._positions[slot] if slot >= 0 else 0

    def copy(self) -> "SparseIndex":
        """Return one that stays as it is while this one grows."""
        made = SparseIndex(self._interval_bytes)
        made._offsets, made._positions = self._offsets[:], self._positions[:]
        made._timestamps = self._timestamps[:]
        made._next_entry_at = self._next_entry_at
        return made

    def entry(self, slot: int) -> IndexEntry:
        """Return one entry, counted from 0."""
        return IndexEntry(self._offsets[slot], self._positions[slot], self._timestamps[slot])

    def last_entry(self) -> tuple[int, int]:
        """Return (highest timestamp before it, position) of the newest entry; (-1, 0) without any."""
        if not self._positions:
            return NO_TIMESTAMP_MS, 0
        return self._timestamps[-1], self._positions[-1]

    def truncate(self, size_bytes: int) -> None:
        """Forget the entries at or behind `size_bytes`."""
        count = bisect_left(self._positions, size_bytes)
        for column in (self._offsets, self._positions, self._timestamps):
            del column[count:]
        self._next_entry_at = self._positions[-1] + self._interval_bytes if count else 0

    def encode(self, summary: SegmentSummary) -> bytes:
        """Return the content of the index file."""
        head = array(
            "q",
            [
                len(self),
                summary.size_bytes,
                summary.next_offset,
                summary.max_timestamp_ms,
                summary.first_timestamp_ms,
            ],
        )
        return pack_frame(
            _MAGIC,
            _VERSION,
            b"".join(
                _big_endian(column)
                for column in (head, self._offsets, self._positions, self._timestamps)
            ),
        )


def peek_summary(data: bytes) -> SegmentSummary | None:
    """Return what the first `SUMMARY_BYTES` of an index file say of the segment; None where they are none.

    No CRC is looked at: whoever misses something by it reads the whole file (`decode_index`).
    """
    if len(data) != SUMMARY_BYTES or not data.startswith(_MAGIC):
        return None
    return SegmentSummary(*_column("q", data[-_HEAD_BYTES:])[1:])


def decode_index(data: bytes, interval_bytes: int) -> tuple[SparseIndex, SegmentSummary]:
    """Read an index file; raises FrameError if it is damaged."""
    payload = unpack_frame(_MAGIC, _VERSION, data)
    if len(payload) < _HEAD_BYTES:
        raise FrameError("index file has no head")
    count, size_bytes, next_offset, max_timestamp_ms, first_timestamp_ms = _column(
        "q", payload[:_HEAD_BYTES]
    )
    if len(payload) != 40 + count * ENTRY_BYTES:
        raise FrameError(f"index file has {len(payload)} bytes for {count} entries")
    index = SparseIndex(interval_bytes)
    index._offsets = _column("I", payload[40 : 40 + 4 * count])
    index._positions = _column("I", payload[40 + 4 * count : 40 + 8 * count])
    index._timestamps = _column("q", payload[40 + 8 * count :])
    index._next_entry_at = index._positions[-1] + interval_bytes if count else 0
    return index, SegmentSummary(size_bytes, next_offset, max_timestamp_ms, first_timestamp_ms)


def _big_endian(column: "array[int]") -> bytes:
    if sys.byteorder == "little":
        column = column[:]
        column.byteswap()
    return column.tobytes()


def _column(typecode: str, data: bytes) -> "array[int]":
    column: array[int] = array(typecode)
    column.frombytes(data)
    if sys.byteorder == "little":
        column.byteswap()
    return column
