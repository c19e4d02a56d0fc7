"""EndTxn at one ledger shard: commit and abort by the client, also with a pair of the region that acted before.

INV-TC7  an entry whose pair was given out under an older region epoch serves only what gives a new producer id:
         InitProducerId, and EndTxn(abort) of a TV2 client; and a repeated EndTxn for what is in the cut (T22)
INV-TC8  EndTxn of a pair is not refused because of the transaction before while partitions that the same pair asked for wait to join the
         next one: that is the one that it ends
         1. Markers of a TV1 client's transaction are being written, and partitions of its next one wait for them. 2. It aborts that next
         one before it has its answer (librdkafka does). 3. Judged by the one before, which is being committed, the abort is
         INVALID_TXN_STATE, which is fatal to the client.

Not here: the tables of C17 and C18 (`states`), the records (`decisions`).
"""

from typing import Final

from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, ProducerPair
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer
from txn_coordinator.shard.decisions import Decisions
from txn_coordinator.shard.progress import Progress
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable
from txn_coordinator.states import PREPARED, EndAction, EpochMatch, end_action
from txn_coordinator.transitions import PairMatch
from txn_coordinator.verdicts import TxnVerdict

_END_VERDICTS: Final = {
    EndAction.CONCURRENT: TxnVerdict.CONCURRENT,
    EndAction.INVALID_STATE: TxnVerdict.INVALID_STATE,
    EndAction.FENCED: TxnVerdict.FENCED,
}


class EndRequests:
    """The rules of EndTxn."""

    def __init__(
        self, table: TransactionTable, decisions: Decisions, progress: Progress, step: Step
    ) -> None:
        """Take the table that the rules look at, and the parts that act."""
        self._table = table
        self._decisions = decisions
        self._progress = progress
        self._step = step

    def serve(self, request: ev.EndTxnReceived) -> None:
        """Decide, or let the request wait, or answer from what is decided."""
        entry = self._table.get(request.transactional_id)
        if entry is None:
            self._step.answer(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
            return
        record = entry.record
        if entry.pending is not None or _ends_the_next(record, request):
            self._step.park(entry, request)
            return
        match = tr.match_end(record, request.producer_id, request.producer_epoch, request.tv)
        if self._decisions.is_foreign(record):
            self._after_takeover(entry, request, match)
        elif match is None:
            self._step.answer(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        else:
            action = end_action(
                tv=request.tv, status=record.status, commit=request.commit, match=match
            )
            self._end(entry, request, action)

    def _end(self, entry: Entry, request: ev.EndTxnReceived, action: EndAction) -> None:
        record = entry.record
        is_last = request.tv >= 2 and tr.only_fences(record.producer_epoch)
        if action is EndAction.PREPARE and is_last:
            # No client was ever given this epoch (C16).
            self._step.answer(request, TxnVerdict.FENCED)
        elif action is EndAction.DONE and is_last and not request.commit:
            # Aborted by an adoption, which gave no new producer id: it is given now (INV-TS3).
            self._give_new_producer(entry, request)
        elif action is EndAction.PREPARE:
            assert not self._decisions.is_foreign(record), f"INV-TC7: {record}"
            target = self._decisions.end(record, commit=request.commit, tv=request.tv)
            answer = Answer(request.request_id, TxnVerdict.OK, *_pair_to_answer(target, request))
            self._progress.prepare(entry, target, (answer,))
        elif action is EndAction.INVALID_STATE and _joins_before(entry, request):
            self._step.park(entry, request)
        elif action is EndAction.DONE:
            self._step.answer(request, TxnVerdict.OK, *_pair_to_answer(record, request))
        else:
            self._step.answer(request, _END_VERDICTS[action])

    def _after_takeover(
        self, entry: Entry, request: ev.EndTxnReceived, match: EpochMatch | None
    ) -> None:
        """EndTxn with a pair of the region that acted before (T22).

        TV1: a retry for the committed transaction and a first EndTxn for a lost one look the same, so
        nothing but the fatal error is honest. TV2: the epoch names the transaction.
        """
        record = entry.record
        is_retry = match is EpochMatch.RETRY
        if request.tv < 2:
            self._step.answer(request, TxnVerdict.FENCED_BY_TAKEOVER_FATAL)
        elif record.status in PREPARED:
            self._step.park(entry, request)
        elif not request.commit:
            self._begin_anew(entry, request, match)
        elif is_retry and record.status is TxnStatus.COMPLETE_COMMIT:
            self._step.answer(request, TxnVerdict.OK, *tr.pair_for_next(record))
        else:
            # Not in the cut: repeat it.
            self._step.answer(request, TxnVerdict.FENCED_BY_TAKEOVER)

    def _begin_anew(
        self, entry: Entry, request: ev.EndTxnReceived, match: EpochMatch | None
    ) -> None:
        """EndTxn(abort) of a TV2 client with a pair of the region that acted before: a new producer id (T22).

        1. Its transaction is refused as abortable. 2. Java 4 and franz-go abort it, and go on with the pair that
        the abort answers; they never ask for another one. 3. With an old pair as answer they would turn in a
        circle for ever. What was open in the cut is aborted, so only the new pair is left to give.
        """
        record = entry.record
        pair = (request.producer_id, request.producer_epoch)
        known = tr.match_pair(record, *pair, foreign=True) in (PairMatch.CURRENT, PairMatch.RETRY)
        is_retry = match is EpochMatch.RETRY
        if is_retry and record.status is TxnStatus.COMPLETE_COMMIT:
            self._step.answer(request, TxnVerdict.INVALID_STATE)
        elif request.producer_id != record.producer_id and not known:
            self._step.answer(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        elif not known and not (is_retry and record.status is TxnStatus.COMPLETE_ABORT):
            self._step.answer(request, TxnVerdict.FENCED)
        elif tr.only_fences(request.producer_epoch):
            # No client was ever given this epoch (C16).
            self._step.answer(request, TxnVerdict.FENCED)
        else:
            assert self._decisions.is_foreign(record), f"INV-TC7: {record}"
            self._give_new_producer(entry, request)

    def _give_new_producer(self, entry: Entry, request: ev.EndTxnReceived) -> None:
        """Answer an EndTxn(abort), which has nothing left to abort, with a new producer id."""
        target = self._decisions.new_producer(entry.record, request.producer_epoch)
        assert target.next_producer_id != entry.record.producer_id, f"INV-TC7: {target}"
        answer = Answer(request.request_id, TxnVerdict.OK, *tr.pair_for_next(target))
        self._progress.prepare(entry, target, (answer,))


def _pair_to_answer(record: TransactionRecord, request: ev.EndTxnReceived) -> ProducerPair:
    return tr.pair_for_next(record) if request.tv >= 2 else (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)


def _ends_the_next(record: TransactionRecord, request: ev.EndTxnReceived) -> bool:
    """Return whether a TV2 client, which holds the next pair already, ends its next transaction.

    It had its answer when the decision was durable; the markers of that one are still being
    written. Kafka says CONCURRENT_TRANSACTIONS here (a transition is pending); we hold it.
    """
    if request.tv < 2 or record.status not in PREPARED:
        return False
    return tr.pair_for_next(record) == (request.producer_id, request.producer_epoch)


def _joins_before(entry: Entry, request: ev.EndTxnReceived) -> bool:
    """Return whether partitions of the same pair wait to join (INV-TC8); what is late on an older connection does not come here."""
    pair = (request.producer_id, request.producer_epoch)
    return any(
        isinstance(each, ev.AddPartitionsReceived)
        and (each.producer_id, each.producer_epoch) == pair
        for each in entry.parked.values()
    )
