"""InitProducerId at one ledger shard: who gets which pair of producer id and epoch (KIP-98, KIP-360).

INV-TC12  a pair that is given is new: another producer id, or a greater epoch of the same one; nothing is open then

Not here: producers without a transactional id (the driver), the records (`decisions`).
"""

from idempotency.identity import NO_PRODUCER_EPOCH
from idempotency.ledger_records import TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer
from txn_coordinator.shard.decisions import Decisions
from txn_coordinator.shard.progress import Progress
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable
from txn_coordinator.transitions import PairMatch
from txn_coordinator.verdicts import TxnVerdict


class InitRequests:
    """The rules of InitProducerId."""

    def __init__(
        self,
        table: TransactionTable,
        decisions: Decisions,
        progress: Progress,
        step: Step,
        *,
        timeout_max_ms: int,
    ) -> None:
        """Take the table that the rules look at, and the parts that act."""
        self._table = table
        self._decisions = decisions
        self._progress = progress
        self._step = step
        self.timeout_max_ms = timeout_max_ms

    def serve(self, request: ev.InitProducerIdReceived) -> None:
        """Give a pair, or abort what is open first, or refuse."""
        if not expiry.timeout_is_valid(request.timeout_ms, self.timeout_max_ms):
            self._step.answer(request, TxnVerdict.INVALID_TIMEOUT)
            return
        entry = self._table.get_or_add(request.transactional_id)
        if entry.is_busy:
            self._step.park(entry, request)
            return
        record = entry.record
        foreign = self._decisions.is_foreign(record)
        match = tr.match_pair(record, request.producer_id, request.producer_epoch, foreign=foreign)
        if record.status is TxnStatus.ONGOING:
            self._over_ongoing(entry, request, match)
        elif match is PairMatch.FENCED:
            self._step.answer(request, TxnVerdict.FENCED)
        elif match is PairMatch.RETRY and not (foreign or tr.only_fences(record.producer_epoch)):
            pair = (record.producer_id, record.producer_epoch)
            self._step.answer(request, TxnVerdict.OK, *pair)
        else:
            self._give_pair(entry, request, match)

    def _over_ongoing(
        self, entry: Entry, request: ev.InitProducerIdReceived, match: PairMatch
    ) -> None:
        """Abort what is open, then let the request wait for COMPLETE_ABORT (C15).

        RETRY cannot be an honest retry here: its sender has begun a transaction with the newer pair,
        so it has had the answer. It is a late copy, and must not abort what its sender does now.
        """
        if match in (PairMatch.FENCED, PairMatch.RETRY):
            self._step.answer(request, TxnVerdict.FENCED)
            return
        keep_last = match is PairMatch.CURRENT
        self._progress.prepare(entry, self._decisions.fence(entry.record, keep_last=keep_last))
        assert entry.is_busy, "INV-TC12: the request waits for the abort, and nothing is under way"
        self._step.park(entry, request)

    def _give_pair(
        self, entry: Entry, request: ev.InitProducerIdReceived, match: PairMatch
    ) -> None:
        record = entry.record
        same_producer = match is not PairMatch.NEW_INSTANCE
        born = record.producer_epoch != NO_PRODUCER_EPOCH
        timeout_ms = request.timeout_ms
        if not born or self._decisions.is_foreign(record) or tr.is_exhausted(record.producer_epoch):
            retry_epoch = request.producer_epoch if same_producer and born else NO_PRODUCER_EPOCH
            target = self._decisions.rotate(record, timeout_ms=timeout_ms, retry_epoch=retry_epoch)
        else:
            target = self._decisions.bump(record, timeout_ms=timeout_ms, keep_last=same_producer)
        pair = (target.producer_id, target.producer_epoch)
        is_new = (
            target.producer_id != record.producer_id
            or target.producer_epoch > record.producer_epoch
        )
        assert is_new, f"INV-TC12: {pair} is in force"
        assert target.status is TxnStatus.EMPTY, f"INV-TC12: {target.status}"
        self._progress.prepare(entry, target, (Answer(request.request_id, TxnVerdict.OK, *pair),))
