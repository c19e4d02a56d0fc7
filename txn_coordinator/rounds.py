"""A ledger shard's round: which one is current, and which COMMIT markers must wait (T2, T3).

INV-RO1  `current` never goes down; the stamp of a decision is `current` when its record is appended
INV-RO2  a COMMIT marker of stamp s is free iff s < current or s <= released; abort markers are (T5)
INV-RO3  after a reload stamps equal to `current` are held again until the release is repeated,
         except round number 0 of a term: no cut is ever made at it, so nothing has to wait for it
Not here: who starts and closes rounds (geo_replicator.cut_rounds).
"""

import msgspec

from idempotency.decision import NO_ROUND, round_number
from idempotency.identity import CoordinatorEpoch, Round


class EnteredRound(msgspec.Struct, frozen=True):
    """A shard's answer to ENTER: L is the ledger offset of the ROUND record (T2)."""

    shard: int
    coordinator_epoch: CoordinatorEpoch
    ledger_offset: int


class RoundGate:
    """Current round, released round, and the transactional ids whose COMMIT markers are held."""

    __slots__ = ("_held", "current", "current_offset", "released")

    def __init__(self) -> None:
        """Start before the first round: everything is free."""
        self.current: Round = NO_ROUND
        self.current_offset = -1
        """Ledger offset of the first ROUND{current} (L), -1 until it is known."""
        self.released: Round = NO_ROUND
        self._held: dict[str, Round] = {}

    def restore(self, entered_round: Round, offset: int) -> None:
        """Replay ROUND{entered_round} found at `offset`; a repetition of it changes nothing."""
        if entered_round > self.current:
            self.enter(entered_round)
            self.current_offset = offset

    def begins_at(self, entered_round: Round, offset: int) -> None:
        """Note where ROUND{entered_round} was appended; only the first one of the current round counts."""
        if entered_round == self.current and self.current_offset < 0:
            self.current_offset = offset

    def enter(self, entered_round: Round) -> list[str]:
        """Move to a higher round; return the transactional ids that are free now."""
        assert entered_round > self.current, f"INV-RO1: {entered_round} behind {self.current}"
        self.current = entered_round
        self.current_offset = -1
        if round_number(entered_round) == 0:
            self.released = entered_round
        return self._take_free()

    def release(self, released_round: Round) -> list[str]:
        """Free stamps up to `released_round`; return the transactional ids that are free now."""
        if released_round <= self.released:
            return []
        self.released = released_round
        return self._take_free()

    def is_free(self, stamp: Round) -> bool:
        """Return whether a COMMIT marker of `stamp` may be sent (INV-RO2)."""
        return stamp < self.current or stamp <= self.released

    def hold(self, transactional_id: str, stamp: Round) -> None:
        """Remember that the COMMIT markers of this decision wait."""
        assert not self.is_free(stamp), f"INV-RO2: {stamp}, {self.current}, {self.released}"
        assert stamp <= self.current, f"INV-RO1: {stamp} was decided in a round to come"
        self._held[transactional_id] = stamp

    @property
    def held_count(self) -> int:
        """Number of decisions whose markers wait; a shard that holds something asks for RELEASE."""
        return len(self._held)

    def _take_free(self) -> list[str]:
        freed = [name for name, stamp in self._held.items() if self.is_free(stamp)]
        for name in freed:
            del self._held[name]
        return freed
