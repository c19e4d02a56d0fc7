"""Batches that wait between the question whether they are in a transaction and their append (C5, P3, P4).

INV-G1  A guard is one object per attempt: a marker of its transaction ends the attempt, and a new one gets a new
        guard, so an answer of the coordinator that comes late finds its guard gone (P4, ABA). The marker of the
        transaction before, which may come after the next one's first batch, leaves it (P5).
INV-G2  While verifying, the lowest first sequence seen is kept, over the wrap (C3): the first batch of a producer that
        lies above it has overtaken (C5). Where the log has the batch before it, that says more: what waits with a
        lower sequence is a duplicate.
INV-G3  An attempt lives as long as somebody waits in it: there are no more of them than requests under way.
INV-G4  Each producer epoch has an attempt of its own: a late batch of an older one takes nothing from the newer.

Volatile: neither in the log nor in the snapshot; a restart loses it together with the connections.
Not here: asking the coordinator.
Source: Kafka VerificationStateEntry.java, VerificationGuard.java (KIP-890).
"""

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.sequence import is_ahead


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

    def is_above(self, sequence: SequenceNumber) -> bool:
        """Return whether all sequences seen so far lie above this one."""
        return self.lowest_sequence < 0 or is_ahead(self.lowest_sequence, sequence)


class Verifications:
    """The attempts under way in one partition."""

    __slots__ = ("_guards",)

    def __init__(self) -> None:
        """Start with none."""
        self._guards: dict[ProducerId, list[VerificationGuard]] = {}

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
        guard = self._attempt(producer_id, producer_epoch)
        if guard is None:
            guard = VerificationGuard(producer_id, producer_epoch, base_sequence, ended_from_epoch)
            self._guards.setdefault(producer_id, []).append(guard)
        elif base_sequence >= 0 and guard.is_above(base_sequence):
            guard.lowest_sequence = base_sequence
        guard.ended_from_epoch = min(guard.ended_from_epoch, ended_from_epoch)
        guard.waiting += 1
        return guard

    def is_current(self, guard: VerificationGuard) -> bool:
        """Return whether nothing ended the attempt since it began."""
        return any(other is guard for other in self._guards.get(guard.producer_id, ()))

    def leave(self, guard: VerificationGuard) -> None:
        """Wait no longer: the batch was appended or refused. The last one takes the attempt along."""
        assert guard.waiting > 0, "INV-G3: each batch leaves its attempt once"
        guard.waiting -= 1
        if guard.waiting == 0:
            others = self._guards.get(guard.producer_id, ())
            self._keep(guard.producer_id, [other for other in others if other is not guard])

    def end(self, producer_id: ProducerId, marker_epoch: ProducerEpoch) -> None:
        """End the producer's attempts that the marker, which is in the log, says to be of its transaction."""
        guards = self._guards.get(producer_id)
        if guards is not None:
            self._keep(
                producer_id, [each for each in guards if marker_epoch < each.ended_from_epoch]
            )

    def lowest_sequence(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> SequenceNumber | None:
        """Return the lowest first sequence seen by the attempt of this producer epoch, None without one."""
        guard = self._attempt(producer_id, producer_epoch)
        return None if guard is None or guard.lowest_sequence < 0 else guard.lowest_sequence

    def _attempt(
        self, producer_id: ProducerId, producer_epoch: ProducerEpoch
    ) -> VerificationGuard | None:
        for guard in self._guards.get(producer_id, ()):
            if guard.producer_epoch == producer_epoch:
                return guard
        return None

    def _keep(self, producer_id: ProducerId, guards: list[VerificationGuard]) -> None:
        if guards:
            self._guards[producer_id] = guards
        else:
            self._guards.pop(producer_id, None)
