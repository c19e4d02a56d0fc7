"""Aborted transactions of one sealed segment: those whose ABORT marker lies in it.

INV-A2  a function of the log: a missing or damaged file is built again by replay
INV-A3  reading it, and asking it, costs little for each entry that is not looked for: it is three columns, and where transactions begin late
        nothing behind is looked at
An entry is (producer id, first offset, offset of the marker), sorted by marker. The file is durable before the
partition state may forget its entries.

Why a file: a partition with many aborts would otherwise keep them all in memory for as long as the log lives
(Kafka's TransactionIndex; C38).
Not here: transactions of the active segment and of those whose marker is not stable yet (`PartitionState`).
"""

import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Final, Self

from idempotency.identity import ProducerId
from idempotency.visibility import AbortedTxn
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame

_MAGIC: Final = b"TMAX"
_VERSION: Final = 1
_FIELDS: Final = 3
_FIELD_BYTES: Final = 8
NOWHERE: Final = (1 << 63) - 1


class AbortedIndex:
    """The entries of one segment, sorted by marker."""

    __slots__ = ("_firsts", "_firsts_behind", "_markers", "_producers")

    def __init__(self, fields: "array[int]") -> None:
        """Take producer id, first offset and marker of each entry in turn."""
        self._producers, self._firsts, self._markers = (
            fields[at::_FIELDS] for at in range(_FIELDS)
        )
        behind = array("q", accumulate(reversed(self._firsts), min))
        behind.reverse()
        self._firsts_behind = behind
        """For each entry: the lowest first offset of it and those behind."""

    @classmethod
    def of(cls, entries: Sequence[AbortedTxn]) -> Self:
        """Return the index of these."""
        return cls(array("q", chain.from_iterable(entries)))

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._markers)

    @property
    def first_offset(self) -> int:
        """The lowest first offset of all, greater than any where there is none."""
        return self._firsts_behind[0] if self._firsts_behind else NOWHERE

    def overlapping(self, start: int, end: int, bound: int) -> list[AbortedTxn]:
        """Return the entries that touch [start, end) and whose marker lies below `bound` (C38, T17)."""
        found: list[AbortedTxn] = []
        for at in range(bisect_left(self._markers, start), bisect_left(self._markers, bound)):
            if self._firsts_behind[at] >= end:
                break
            first = self._firsts[at]
            if first < end:
                found.append(AbortedTxn(ProducerId(self._producers[at]), first, self._markers[at]))
        return found


def encode_aborted(entries: Sequence[AbortedTxn]) -> bytes:
    """Return the content of the aborted-index file."""
    fields = array("q", chain.from_iterable(entries))
    return pack_frame(_MAGIC, _VERSION, _big_endian(fields).tobytes())


def decode_aborted(data: bytes) -> AbortedIndex:
    """Read an aborted-index file; raises FrameError if it is damaged."""
    payload = unpack_frame(_MAGIC, _VERSION, data)
    if len(payload) % (_FIELDS * _FIELD_BYTES):
        raise FrameError("aborted index ends inside an entry")
    fields = array("q")
    fields.frombytes(payload)
    return AbortedIndex(_big_endian(fields))


def _big_endian(fields: "array[int]") -> "array[int]":
    """Turn fields from this machine's order into the file's, or back."""
    assert fields.itemsize == _FIELD_BYTES, fields.itemsize
    if sys.byteorder == "little":
        fields.byteswap()
    return fields
