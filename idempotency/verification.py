"""Producers whose first transactional batch waits for the coordinator's word (C5, P3, P4).

INV-G1  A guard is one object per attempt: a marker or an append in between ends it, and a new attempt
        gets a new one, so an answer of the coordinator that comes late finds its guard gone (P4, ABA).
INV-G2  While verifying, the lowest first sequence seen is kept: a batch above it has overtaken (C5).

Volatile: neither in the log nor in the snapshot; a restart loses it together with the connections.
Not here: asking the coordinator.
Source: Kafka VerificationStateEntry.java, VerificationGuard.java (KIP-890).
"""

from idempotency.record_batch import BatchHeader


class VerificationGuard:
    """Identity of one verification attempt; compared with `is` only."""

    __slots__ = ("lowest_sequence", "producer_epoch", "producer_id")

    def __init__(self, producer_id: int, producer_epoch: int, lowest_sequence: int) -> None:
        """Open an attempt for a producer epoch."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence


class Verifications:
    """The attempts under way in one partition, one per producer id."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        """Start with none."""
        self._guards: dict[int, VerificationGuard] = {}

    def begin(self, header: BatchHeader) -> VerificationGuard:
        """Join or open the attempt for the batch's producer epoch; call in arrival order."""
        guard = self._guards.get(header.producer_id)
        if guard is None or guard.producer_epoch != header.producer_epoch:
            guard = VerificationGuard(
                header.producer_id, header.producer_epoch, header.base_sequence
            )
            self._guards[header.producer_id] = guard
        elif header.base_sequence < guard.lowest_sequence:
            guard.lowest_sequence = header.base_sequence
        return guard

    def is_current(self, guard: VerificationGuard) -> bool:
        """Tell whether nothing ended the attempt since it began."""
        return self._guards.get(guard.producer_id) is guard

    def end(self, producer_id: int) -> None:
        """End the producer's attempt: its data or a marker is in the log."""
        self._guards.pop(producer_id, None)

    def lowest_sequence(self, producer_id: int, producer_epoch: int) -> int | None:
        """Return the lowest first sequence seen by the attempt of this producer epoch."""
        guard = self._guards.get(producer_id)
        if guard is None or guard.producer_epoch != producer_epoch:
            return None
        return guard.lowest_sequence
