"""Batches that wait between the question whether they are in a transaction and their append (C5, P3, P4).

INV-G1  A guard is one object per attempt: a marker of its transaction ends the attempt, and a new one gets a new
        guard, so an answer of the coordinator that comes late finds its guard gone (P4, ABA). The marker of the
        transaction before, which may come after the next one's first batch, leaves it (P5).
INV-G2  While verifying, the lowest first sequence seen is kept: the first batch of a transaction that lies above it
        has overtaken (C5).
INV-G3  An attempt lives as long as somebody waits in it: there are no more of them than requests under way.

Volatile: neither in the log nor in the snapshot; a restart loses it together with the connections.
Not here: asking the coordinator.
Source: Kafka VerificationStateEntry.java, VerificationGuard.java (KIP-890).
"""

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber


class VerificationGuard:
    """Identity of one verification attempt; compared with `is` only."""

    __slots__ = ("ended_from_epoch", "lowest_sequence", "producer_epoch", "producer_id", "waiting")

    def __init__(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        lowest_sequence: SequenceNumber,
        ended_from_epoch: ProducerEpoch,
    ) -> None:
        """Open an attempt for a producer epoch; nobody waits in it yet."""
        self.producer_id = producer_id
        self.producer_epoch = producer_epoch
        self.lowest_sequence = lowest_sequence
        self.ended_from_epoch = ended_from_epoch
        """A marker of this producer epoch or a later one ends the attempt."""
        self.waiting = 0


class Verifications:
    """The attempts under way in one partition, one per producer id."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        """Start with none."""
        self._guards: dict[ProducerId, VerificationGuard] = {}

    def begin(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        base_sequence: SequenceNumber,
        *,
        tv2: bool = False,
    ) -> VerificationGuard:
        """Join or open the attempt of a batch's producer epoch; call in arrival order, and `leave` once.

        `tv2`: the client speaks transactions v2, where a marker carries the next epoch, so that one of the batch's own
        epoch is of the transaction before.
        """
        ended_from_epoch = ProducerEpoch(producer_epoch + 1) if tv2 else producer_epoch
        guard = self._guards.get(producer_id)
        if guard is None or guard.producer_epoch != producer_epoch:
            guard = VerificationGuard(producer_id, producer_epoch, base_sequence, ended_from_epoch)
            self._guards[producer_id] = guard
        guard.lowest_sequence = min(guard.lowest_sequence, base_sequence)
        guard.ended_from_epoch = min(guard.ended_from_epoch, ended_from_epoch)
        guard.waiting += 1
        return guard

    def is_current(self, guard: VerificationGuard) -> bool:
        """Return whether nothing ended the attempt since it began."""
        return self._guards.get(guard.producer_id) is guard

    def leave(self, guard: VerificationGuard) -> None:
        """Wait no longer: the batch was appended or refused. The last one takes the attempt along."""
        assert guard.waiting > 0, "INV-G3: each batch leaves its attempt once"
        guard.waiting -= 1
        if guard.waiting == 0 and self.is_current(guard):
            del self._guards[guard.producer_id]

    def end(self, producer_id: ProducerId, marker_epoch: ProducerEpoch) -> None:
        """End the producer's attempt if the marker that is in the log is one of its transaction."""
        guard = self._guards.get(producer_id)
        if guard is not None and marker_epoch >= guard.ended_from_epoch:
            del self._guards[producer_id]

    def lowest_sequence(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> SequenceNumber | None:
        """Return the lowest first sequence seen by the attempt of this producer epoch, None without one."""
        guard = self._guards.get(producer_id)
        if guard is None or guard.producer_epoch != producer_epoch:
            return None
        return guard.lowest_sequence
