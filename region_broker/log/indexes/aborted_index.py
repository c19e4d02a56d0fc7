"""Aborted transactions of one sealed segment: those whose ABORT marker lies in it.

INV-A2  a function of the log: a missing or damaged file is built again by replay
An entry is (producer id, first offset, offset of the marker), sorted by marker. The file is durable before the
partition state may forget its entries.

Why a file: a partition with many aborts would otherwise keep them all in memory for as long as the log lives
(Kafka's TransactionIndex; C38).
Not here: transactions of the active segment and of those whose marker is not stable yet (`PartitionState`).
"""

import struct
from collections.abc import Sequence
from typing import Final

from idempotency.visibility import AbortedTxn
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame

_MAGIC: Final = b"TMAX"
_VERSION: Final = 1
_ENTRY: Final = struct.Struct(">qqq")


def encode_aborted(entries: Sequence[AbortedTxn]) -> bytes:
    """Return the content of the aborted-index file."""
    return pack_frame(
        _MAGIC,
        _VERSION,
        b"".join(_ENTRY.pack(e.producer_id, e.first_offset, e.last_offset) for e in entries),
    )


def decode_aborted(data: bytes) -> tuple[AbortedTxn, ...]:
    """Read an aborted-index file; raises FrameError if it is damaged."""
    payload = unpack_frame(_MAGIC, _VERSION, data)
    if len(payload) % _ENTRY.size:
        raise FrameError("aborted index ends inside an entry")
    return tuple(AbortedTxn(*fields) for fields in _ENTRY.iter_unpack(payload))


def overlapping(
    entries: Sequence[AbortedTxn], start: int, end: int, bound: int
) -> list[AbortedTxn]:
    """Return the entries that touch [start, end) and whose marker lies below `bound` (C38, T17)."""
    return [
        entry
        for entry in entries
        if entry.first_offset < end and start <= entry.last_offset < bound
    ]
