"""The last five batches of one producer epoch in one partition: fresh, duplicate, gap or behind.

INV-W1  At most five batches, in log order; each starts where the one before ended, except after a
        recorded gap (C1).
INV-W2  A batch with the same first and last sequence as one of the five is a duplicate and keeps the
        original's offset and timestamp (C2, B8).
INV-W3  Otherwise only the next sequence is fresh; 0 if there was none yet (C3, C4).

Not here: epochs, transactions (`producer_state`, `partition_state`).
Source: Kafka storage/internals/log/ProducerStateEntry.java, KIP-98.
"""

from enum import Enum, auto
from typing import Final, NamedTuple

from idempotency.identity import SequenceNumber
from idempotency.sequence import is_ahead

BATCHES_TO_RETAIN: Final = 5
_SEQUENCE_MASK: Final = 2**31 - 1


class WindowVerdict(Enum):
    """How a batch's sequences relate to the batches before it."""

    NEXT = auto()
    DUPLICATE = auto()
    GAP = auto()
    """Ahead of the expected sequence: something between is missing."""
    BEHIND = auto()
    """Older than the window, or overlapping it without being the same batch."""


class SentBatch(NamedTuple):
    """One batch that is in the log; `timestamp_ms` is its greatest record timestamp."""

    base_sequence: SequenceNumber
    last_sequence: SequenceNumber
    base_offset: int
    last_offset: int
    timestamp_ms: int


class BatchWindow:
    """The five newest batches of a producer epoch."""

    __slots__ = ("_batches",)

    def __init__(self, batches: list[SentBatch] | None = None) -> None:
        """Start empty or with the batches of a snapshot, oldest first."""
        self._batches: list[SentBatch] = batches or []
        assert len(self._batches) <= BATCHES_TO_RETAIN, f"INV-W1: {len(self._batches)}"

    @property
    def batches(self) -> tuple[SentBatch, ...]:
        """The retained batches, oldest first."""
        return tuple(self._batches)

    @property
    def newest(self) -> SentBatch | None:
        """The batch that was appended last."""
        return self._batches[-1] if self._batches else None

    @property
    def expected_sequence(self) -> SequenceNumber:
        """The only first sequence that is not a gap, a duplicate or behind."""
        if not self._batches:
            return SequenceNumber(0)
        return SequenceNumber((self._batches[-1].last_sequence + 1) & _SEQUENCE_MASK)

    def find(
        self, base_sequence: SequenceNumber, last_sequence: SequenceNumber
    ) -> SentBatch | None:
        """Return the retained batch with exactly these sequences (C2)."""
        for batch in reversed(self._batches):
            if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:
                return batch
        return None

    def judge(self, base_sequence: SequenceNumber, last_sequence: SequenceNumber) -> WindowVerdict:
        """Say how a batch with these sequences relates to the window."""
        expected = self.expected_sequence
        if base_sequence == expected:
            return WindowVerdict.NEXT
        if self.find(base_sequence, last_sequence) is not None:
            return WindowVerdict.DUPLICATE
        return WindowVerdict.GAP if is_ahead(base_sequence, expected) else WindowVerdict.BEHIND

    def push(self, batch: SentBatch) -> None:
        """Retain `batch`, drop the sixth newest."""
        newest = self.newest
        assert newest is None or newest.last_offset < batch.base_offset, (
            f"INV-W1: {newest}, {batch}"
        )
        self._batches.append(batch)
        if len(self._batches) > BATCHES_TO_RETAIN:
            del self._batches[0]

    def clear(self) -> None:
        """Forget all: a new producer epoch starts at sequence 0."""
        self._batches.clear()
