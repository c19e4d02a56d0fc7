"""Sequence numbers of a producer: 31-bit counters that wrap from 2**31 - 1 to 0 (C3).

INV-SQ1  Every function is total on 0 .. 2**31 - 1; -1 (no sequence) is never passed in.

Not here: which sequence is expected of which producer (`window`).
Source: Kafka storage/internals/log/ProducerAppendInfo.java `inSequence`, KIP-98.
"""

from typing import Final

from idempotency.identity import SequenceNumber

SEQUENCE_MAX: Final = 2**31 - 1
_SEQUENCE_MASK: Final = SEQUENCE_MAX
_HALF: Final = 2**30


def advance(sequence: SequenceNumber, count: int) -> SequenceNumber:
    """Return the sequence `count` records after `sequence`, wrapping to 0."""
    return SequenceNumber((sequence + count) & _SEQUENCE_MASK)


def distance(start: int, end: int) -> int:
    """Return how many steps forward lead from `start` to `end`: 0 .. 2**31 - 1."""
    return (end - start) & _SEQUENCE_MASK


def is_ahead(sequence: SequenceNumber, expected: int) -> bool:
    """Return whether `sequence` lies after `expected`, by less than half of the ring."""
    return 0 < distance(expected, sequence) < _HALF
