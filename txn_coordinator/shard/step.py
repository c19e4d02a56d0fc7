"""One step of a core: the times it was given, and what it has decided so far that is to be done.

Every effect of a step is in its list, in the order in which it was decided; nothing outlives the step.

INV-TC17  so many requests of clients wait at one transactional id as PARKED_MAX; one more is told at once to come again
          (CONCURRENT_TRANSACTIONS, as Kafka tells all of them). What administrators ask waits beside them: who holds the id cannot keep
          them from it

Not here: what is decided (the other parts), carrying it out (the driver).
"""

from typing import Final

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerEpoch, ProducerId
from txn_coordinator.effects import Answer, Held, TxnEffect
from txn_coordinator.events import Request, SettledAsked
from txn_coordinator.shard.table import Entry
from txn_coordinator.verdicts import TxnVerdict

PARKED_MAX: Final = 200
"""A producer has a handful on the way."""


class Step:
    """One for each core, begun and finished by it for each event."""

    __slots__ = ("_effects", "now_ms", "wall_ms")

    def __init__(self) -> None:
        """Start between two steps."""
        self.now_ms = 0
        """Monotonic ms: for deadlines."""
        self.wall_ms = 0
        """Wall ms, which may go back: for records, and for what is idle for days."""
        self._effects: list[TxnEffect] = []

    def begin(self, now_ms: int, wall_ms: int) -> None:
        """Take the times of the next event."""
        assert not self._effects, "step is not re-entrant"
        self.now_ms, self.wall_ms = now_ms, wall_ms

    def finish(self) -> list[TxnEffect]:
        """Return what is to be done, in order."""
        effects, self._effects = self._effects, []
        return effects

    def do(self, effect: TxnEffect) -> None:
        """Add an effect."""
        self._effects.append(effect)

    def answer(
        self,
        request: Request,
        verdict: TxnVerdict,
        producer_id: ProducerId = NO_PRODUCER_ID,
        producer_epoch: ProducerEpoch = NO_PRODUCER_EPOCH,
    ) -> None:
        """Answer a request at once: nothing had to be written for it."""
        self._effects.append(Answer(request.request_id, verdict, producer_id, producer_epoch))

    def park(self, entry: Entry, request: Request) -> None:
        """Let a request wait until nothing of its entry is under way (INV-TC17)."""
        if len(entry.parked) >= PARKED_MAX and not isinstance(request, SettledAsked):
            self.answer(request, TxnVerdict.CONCURRENT)
            return
        entry.keep_parked((request,))
        self._effects.append(Held(request.request_id, request.transactional_id))
