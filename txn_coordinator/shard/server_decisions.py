"""What a shard decides without its producer: aborts by time-out, administrator and takeover, and forgetting an id.

Not here: when these are asked for (the drivers), the records (`decisions`).
"""

from idempotency.ledger_records import TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer, AppendPairs
from txn_coordinator.shard.decisions import Decisions
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.progress import Progress
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable, missing_partitions
from txn_coordinator.verdicts import TxnVerdict


class ServerDecisions:
    """The rules of what nobody but the server asks for."""

    def __init__(
        self,
        table: TransactionTable,
        decisions: Decisions,
        progress: Progress,
        step: Step,
        *,
        pairs: PairsInForce,
        id_retention_ms: int,
    ) -> None:
        """Take the table that the rules look at, and the parts that act."""
        self._table = table
        self._decisions = decisions
        self._progress = progress
        self._step = step
        self._pairs = pairs
        self._id_retention_ms = id_retention_ms

    # ---- administrators

    def abort(self, request: ev.AbortReceived) -> None:
        """End what a producer has open, with its epoch bumped: it cannot commit any more (B13).

        A partition may hold data that the ledger does not know of (a hanging transaction); it is added
        to the decision, so that its marker comes from here as every other.
        """
        entry = self._table.get(request.transactional_id)
        if entry is None:
            self._step.answer(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
            return
        verdict = _judge_abort(entry, request)
        if verdict is not None:
            self._step.answer(request, verdict)
            return
        record = entry.record
        found = missing_partitions(entry, request.partitions)
        if found:
            record = self._decisions.join(record, found, tv=record.client_tv)
        target = self._decisions.fence(record, keep_last=False)
        self._progress.prepare(entry, target, (Answer(request.request_id, TxnVerdict.OK),))

    def settle(self, request: ev.SettledAsked) -> None:
        """Answer once nothing is under way."""
        entry = self._table.get(request.transactional_id)
        if entry is not None and entry.is_busy:
            self._step.park(entry, request)
        else:
            self._step.answer(request, TxnVerdict.OK)

    # ---- time

    def time_out(self, event: ev.TransactionTimedOut) -> None:
        """Abort a transaction that is open too long (C24)."""
        entry = self._table.ongoing_of(event.transactional_id)
        if entry is not None and entry.pending is None and entry.deadline_ms < self._step.now_ms:
            self._progress.prepare(entry, self._decisions.fence(entry.record, keep_last=False))

    def restart_timers(self, _event: ev.TimersRestarted) -> None:
        """Give every open transaction its full time-out again (G7)."""
        for entry in self._table.ongoing():
            entry.deadline_ms = self._step.now_ms + entry.record.timeout_ms

    def expire(self, event: ev.TransactionalIdExpired) -> None:
        """Forget an id that is idle too long (C25)."""
        entry = self._table.get(event.transactional_id)
        if entry is not None and may_expire(entry, self._step.wall_ms, self._id_retention_ms):
            self._progress.prepare_removal(entry)

    # ---- takeovers

    def inherit_pairs(self, event: ev.PairsInherited) -> None:
        """Let the producers of a region that was drained go on with their pairs, durably (T22)."""
        self._step.do(AppendPairs(self._pairs.inherit(event.drained)))

    def adopt_ongoing(self, event: ev.AdoptOngoing) -> None:
        """Abort what the region before left open, with every partition that holds some of it (T21).

        No producer id is taken: there is none in stock yet. `keep_last`: T22 fences the producer by a new id; its own pair must still get that id.
        """
        entry = self._table.entries[event.transactional_id]
        assert entry.record.status is TxnStatus.ONGOING, entry.record.status
        found = missing_partitions(entry, event.found_open)
        if found:
            joined = self._decisions.join(entry.record, found, tv=entry.record.client_tv)
            self._table.install(entry, joined)
        self._progress.prepare(
            entry, self._decisions.fence(entry.record, keep_last=True, rotates=False)
        )

    def abort_orphan(self, event: ev.AbortOrphan) -> None:
        """Abort what no transactional id knows of; nothing, if an older one owes its markers."""
        entry = self._table.get_or_add(tr.orphan_id(event.producer_id))
        if entry.is_busy:
            return  # its markers are on the way; the driver looks again afterwards
        pair = (event.producer_id, event.producer_epoch)
        self._progress.prepare(entry, self._decisions.orphan(entry.record, pair, event.partitions))


def _judge_abort(entry: Entry, request: ev.AbortReceived) -> TxnVerdict | None:
    """Return why an administrator's abort is not decided, None if it may be."""
    record = entry.record
    if entry.is_busy:
        # Never parked: what the administrator saw open may have its marker by then.
        return TxnVerdict.CONCURRENT
    if record.producer_id != request.producer_id:
        return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
    if request.producer_epoch > record.producer_epoch:
        return TxnVerdict.FENCED
    if record.status is TxnStatus.ONGOING and request.producer_epoch != record.producer_epoch:
        return TxnVerdict.CONCURRENT  # what is open now is another transaction
    if record.status is not TxnStatus.ONGOING and not request.partitions:
        return TxnVerdict.INVALID_STATE
    return None


def may_expire(entry: Entry, wall_ms: int, id_retention_ms: int) -> bool:
    """Return whether an entry may be forgotten (C25)."""
    idle = entry.pending is None and not entry.parked
    return idle and expiry.id_is_expired(entry.record, wall_ms, id_retention_ms)
