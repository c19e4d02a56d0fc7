"""The coordinator of one ledger shard as a pure state machine: events in, effects out.

INV-TC5  a request that meets a transition under way, or the next transaction's request that meets markers
         under way, waits here in order of arrival; it is not sent away to back off (P5)
INV-TC6  pending and PREPARE_* are looked at before producer ids and epochs: over an overflow the
         client may already use the pair that is not in force yet (P6, C26)
INV-TC7  an entry whose pair was given out under an older region epoch serves only what gives a new producer id:
         InitProducerId, and EndTxn(abort) of a TV2 client; and a repeated EndTxn for what is in the cut (T22)
INV-TC8  no clock, no I/O: `now_ms` is monotonic, `wall_ms` only goes into records

The driver carries out `AppendRecord` effects in order within the same step, and feeds back
`RecordDurable` in ledger order.
Not here: how a transition is made durable and told (`shard_steps`), replay and indexes (`shard_state`),
marker sending and timers (`driver`).
"""

from typing import assert_never

from msgspec.structs import replace

from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer, AppendTombstone, TxnEffect
from txn_coordinator.shard_state import Entry, missing_partitions
from txn_coordinator.shard_steps import ShardSteps
from txn_coordinator.states import (
    EPOCH_FENCE,
    PREPARED,
    EndAction,
    EpochMatch,
    check_transition,
    end_action,
)
from txn_coordinator.transitions import PairMatch
from txn_coordinator.verdicts import TxnVerdict

_END_VERDICTS = {
    EndAction.CONCURRENT: TxnVerdict.CONCURRENT,
    EndAction.INVALID_STATE: TxnVerdict.INVALID_STATE,
    EndAction.FENCED: TxnVerdict.FENCED,
}


class TxnCoordinatorCore(ShardSteps):
    """The rules of one ledger shard, over its state."""

    # ---- the step

    def step(self, event: ev.TxnEvent, *, now_ms: int, wall_ms: int) -> list[TxnEffect]:
        """Take one event; return what is to be done, in order."""
        assert not self._effects, "step is not re-entrant"
        self._now_ms, self._wall_ms = now_ms, wall_ms
        self._dispatch(event)
        effects, self._effects = self._effects, []
        return effects

    def _dispatch(self, event: ev.TxnEvent) -> None:
        match event:
            case ev.AddPartitionsReceived() | ev.EndTxnReceived() | ev.InitProducerIdReceived():
                self._request(event)
            case ev.AbortReceived() | ev.SettledAsked():
                self._request(event)
            case ev.RecordDurable():
                self._durable(event)
            case ev.MarkerConfirmed():
                self._confirmed(event)
            case ev.EnterRound() | ev.ReleaseRound():
                self._move_round(event)
            case ev.ProducerIdsGranted(first=first, count=count):
                self._spare_ids.extend(range(first, first + count))
            case _:
                self._dispatch_rare(event)

    def _dispatch_rare(
        self,
        event: ev.HoldExpired
        | ev.TransactionTimedOut
        | ev.TransactionalIdExpired
        | ev.AbortOrphan
        | ev.AdoptOngoing,
    ) -> None:
        match event:
            case ev.HoldExpired():
                self._hold_expired(event)
            case ev.TransactionTimedOut():
                self._timed_out(event)
            case ev.TransactionalIdExpired():
                self._expire(event)
            case ev.AbortOrphan():
                self._abort_orphan(event)
            case ev.AdoptOngoing():
                self._adopt_ongoing(event)
            case _:
                assert_never(event)

    def _request(self, request: ev.Request) -> None:
        match request:
            case ev.AddPartitionsReceived():
                self._add_partitions(request)
            case ev.EndTxnReceived():
                self._end_txn(request)
            case ev.InitProducerIdReceived():
                self._init_producer_id(request)
            case ev.AbortReceived():
                self._abort(request)
            case ev.SettledAsked():
                self._settled(request)
            case _:
                assert_never(request)

    # ---- InitProducerId

    def _init_producer_id(self, request: ev.InitProducerIdReceived) -> None:
        if not expiry.timeout_is_valid(request.timeout_ms, self.timeout_max_ms):
            self._refuse(request, TxnVerdict.INVALID_TIMEOUT)
            return
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            entry = Entry(tr.unborn(request.transactional_id))
            self.entries[request.transactional_id] = entry
        record = entry.record
        if entry.pending is not None or record.status in PREPARED:
            self._park(entry, request)
            return
        match = tr.match_pair(
            record, request.producer_id, request.producer_epoch, foreign=self.is_foreign(record)
        )
        if record.status is TxnStatus.ONGOING:
            self._init_over_ongoing(entry, request, match)
        elif match is PairMatch.FENCED:
            self._refuse(request, TxnVerdict.FENCED)
        elif match is PairMatch.RETRY and not self.is_foreign(record):
            self._answer(request, TxnVerdict.OK, record.producer_id, record.producer_epoch)
        else:
            self._give_pair(entry, request, match)

    def _init_over_ongoing(
        self, entry: Entry, request: ev.InitProducerIdReceived, match: PairMatch
    ) -> None:
        """Abort what is open, then let the request wait for COMPLETE_ABORT (C15).

        RETRY cannot be an honest retry here: its sender has begun a transaction with the newer pair,
        so it has had the answer. It is a late copy, and must not abort what its sender does now.
        """
        if match in (PairMatch.FENCED, PairMatch.RETRY):
            self._refuse(request, TxnVerdict.FENCED)
            return
        self._fence(entry, keep_last=match is PairMatch.CURRENT)
        self._park(entry, request)

    def _give_pair(
        self, entry: Entry, request: ev.InitProducerIdReceived, match: PairMatch
    ) -> None:
        record = entry.record
        same_producer = match is not PairMatch.NEW_INSTANCE
        born = record.producer_epoch != tr.NONE
        if not born or self.is_foreign(record) or tr.is_exhausted(record.producer_epoch):
            target = tr.rotate_producer_id(
                record,
                self._stamp(),
                producer_id=self._take_id(),
                timeout_ms=request.timeout_ms,
                retry_epoch=request.producer_epoch if same_producer and born else tr.NONE,
            )
        else:
            target = tr.bump_epoch(
                record, self._stamp(), timeout_ms=request.timeout_ms, keep_last=same_producer
            )
        self._prepare(entry, target)
        entry.answers.append(
            Answer(request.request_id, TxnVerdict.OK, target.producer_id, target.producer_epoch)
        )

    # ---- AddPartitionsToTxn, AddOffsetsToTxn, Produce and TxnOffsetCommit under TV2

    def _add_partitions(self, request: ev.AddPartitionsReceived) -> None:
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        elif entry.pending is not None or entry.record.status in PREPARED:
            self._park(entry, request)
        else:
            self._join(entry, [request])

    def _join(self, entry: Entry, requests: list[ev.AddPartitionsReceived]) -> None:
        """Let the partitions of `requests` join in one record; answer what needs none at once."""
        joining: dict[TopicPartition, None] = {}
        writers: list[ev.AddPartitionsReceived] = []
        for request in requests:
            verdict = self._judge_join(entry.record, request)
            missing = missing_partitions(entry.record, request.partitions)
            if verdict is not None:
                self._refuse(request, verdict)
            elif not missing:
                self._answer(request, TxnVerdict.OK)  # C26: no log write
            else:
                writers.append(request)
                joining.update(dict.fromkeys(missing))
        if not writers:
            return
        if entry.record.status is not TxnStatus.ONGOING:
            entry.deadline_ms = self._now_ms + entry.record.timeout_ms
        target = tr.join_partitions(
            entry.record, self._stamp(), partitions=tuple(joining), tv=writers[-1].tv
        )
        self._prepare(entry, target)
        entry.answers.extend(Answer(request.request_id, TxnVerdict.OK) for request in writers)

    # ---- EndTxn

    def _end_txn(self, request: ev.EndTxnReceived) -> None:
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
            return
        if entry.pending is not None:
            self._park(entry, request)
            return
        record = entry.record
        if self._ends_the_next(record, request):
            self._park(entry, request)
            return
        match = tr.match_end(record, request.producer_id, request.producer_epoch, request.tv)
        if self.is_foreign(record):
            self._end_after_takeover(entry, request, match)
        elif match is None:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        else:
            action = end_action(
                tv=request.tv, status=record.status, commit=request.commit, match=match
            )
            self._end(entry, request, action)

    @staticmethod
    def _ends_the_next(record: TransactionRecord, request: ev.EndTxnReceived) -> bool:
        """Tell whether a TV2 client, which holds the next pair already, ends its next transaction.

        It had its answer when the decision was durable; the markers of that one are still being
        written. Kafka says CONCURRENT_TRANSACTIONS here (a transition is pending); we hold it.
        """
        if request.tv < 2 or record.status not in PREPARED:
            return False
        return tr.pair_for_next(record) == (request.producer_id, request.producer_epoch)

    def _end(self, entry: Entry, request: ev.EndTxnReceived, action: EndAction) -> None:
        record = entry.record
        if action is EndAction.PREPARE and request.tv >= 2 and record.producer_epoch >= EPOCH_FENCE:
            self._refuse(request, TxnVerdict.FENCED)  # no client was ever given this epoch (C16)
        elif action is EndAction.PREPARE:
            rotates = request.tv >= 2 and tr.is_exhausted(record.producer_epoch)
            decision = tr.Decision(
                commit=request.commit,
                tv=request.tv,
                round=self.gate.current,
                next_producer_id=self._take_id() if rotates else tr.NONE,
            )
            target = tr.prepare_end(record, self._stamp(), decision)
            self._prepare(entry, target)
            pair = tr.pair_for_next(target) if request.tv >= 2 else (tr.NONE, tr.NONE)
            entry.answers.append(Answer(request.request_id, TxnVerdict.OK, *pair))
        elif action is EndAction.DONE:
            pair = tr.pair_for_next(record) if request.tv >= 2 else (tr.NONE, tr.NONE)
            self._answer(request, TxnVerdict.OK, *pair)
        else:
            self._refuse(request, _END_VERDICTS[action])

    def _end_after_takeover(
        self, entry: Entry, request: ev.EndTxnReceived, match: EpochMatch | None
    ) -> None:
        """EndTxn with a pair of the region that acted before (T22).

        TV1: a retry for the committed transaction and a first EndTxn for a lost one look the same, so
        nothing but the fatal error is honest. TV2: the epoch names the transaction.
        """
        record = entry.record
        is_retry = match is EpochMatch.RETRY
        if request.tv < 2:
            self._refuse(request, TxnVerdict.FENCED_BY_TAKEOVER_FATAL)
        elif record.status in PREPARED:
            self._park(entry, request)
        elif not request.commit:
            self._begin_anew(entry, request, match)
        elif is_retry and record.status is TxnStatus.COMPLETE_COMMIT:
            self._answer(request, TxnVerdict.OK, *tr.pair_for_next(record))
        else:
            self._refuse(request, TxnVerdict.FENCED_BY_TAKEOVER)  # not in the cut: repeat it

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
            self._refuse(request, TxnVerdict.INVALID_STATE)
        elif request.producer_id != record.producer_id and not known:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        elif not known and not (is_retry and record.status is TxnStatus.COMPLETE_ABORT):
            self._refuse(request, TxnVerdict.FENCED)
        elif request.producer_epoch >= EPOCH_FENCE:
            self._refuse(request, TxnVerdict.FENCED)  # no client was ever given this epoch (C16)
        else:
            target = tr.prepare_new_producer(
                record,
                self._stamp(),
                producer_epoch=request.producer_epoch,
                round_=self.gate.current,
                next_producer_id=self._take_id(),
            )
            self._prepare(entry, target)
            entry.answers.append(
                Answer(request.request_id, TxnVerdict.OK, *tr.pair_for_next(target))
            )

    # ---- decisions on the server's behalf

    def _fence(
        self, entry: Entry, *, keep_last: bool, record: TransactionRecord | None = None
    ) -> None:
        """Abort what is open and bump the epoch; `record`: the entry's value, with partitions added."""
        open_record = record or entry.record
        rotates = tr.fence_needs_producer_id(open_record) and not self.is_foreign(open_record)
        target = tr.prepare_fence(
            open_record,
            self._wall_ms,
            round_=self.gate.current,
            next_producer_id=self._take_id() if rotates else tr.NONE,
            keep_last=keep_last,
        )
        self._prepare(entry, target)

    def _abort(self, request: ev.AbortReceived) -> None:
        """End what a producer has open, with its epoch bumped: it cannot commit any more (B13).

        A partition may hold data that the ledger does not know of (a hanging transaction); it is added
        to the decision, so that its marker comes from here as every other.
        """
        entry = self.entries.get(request.transactional_id)
        if entry is None:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
            return
        record = entry.record
        if entry.pending is not None or record.status in PREPARED:
            # Never parked: what the administrator saw open may have its marker by then.
            self._refuse(request, TxnVerdict.CONCURRENT)
        elif record.producer_id != request.producer_id:
            self._refuse(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        elif request.producer_epoch > record.producer_epoch:
            self._refuse(request, TxnVerdict.FENCED)
        elif record.status is TxnStatus.ONGOING and request.producer_epoch != record.producer_epoch:
            self._refuse(request, TxnVerdict.CONCURRENT)  # what is open now is another transaction
        elif record.status is not TxnStatus.ONGOING and not request.partitions:
            self._refuse(request, TxnVerdict.INVALID_STATE)
        else:
            found = missing_partitions(record, request.partitions)
            joined = record
            if found:
                joined = tr.join_partitions(
                    record, self._stamp(), partitions=found, tv=record.client_tv
                )
            self._fence(entry, keep_last=False, record=joined)
            entry.answers.append(Answer(request.request_id, TxnVerdict.OK))

    def _settled(self, request: ev.SettledAsked) -> None:
        entry = self.entries.get(request.transactional_id)
        if entry is not None and (entry.pending is not None or entry.record.status in PREPARED):
            self._park(entry, request)
        else:
            self._answer(request, TxnVerdict.OK)

    def _timed_out(self, event: ev.TransactionTimedOut) -> None:
        entry = self._ongoing.get(event.transactional_id)
        if entry is not None and entry.pending is None and entry.deadline_ms < self._now_ms:
            self._fence(entry, keep_last=False)

    def _adopt_ongoing(self, event: ev.AdoptOngoing) -> None:
        """Abort what the dead region left open, with every partition that holds some of it (T21).

        `keep_last`: T22 fences the producer by a new id; its own pair must still get that id.
        """
        entry = self.entries[event.transactional_id]
        assert entry.record.status is TxnStatus.ONGOING, entry.record.status
        found = missing_partitions(entry.record, event.found_open)
        if found:
            entry.record = tr.join_partitions(
                entry.record, self._stamp(), partitions=found, tv=entry.record.client_tv
            )
        self._fence(entry, keep_last=True)

    def _abort_orphan(self, event: ev.AbortOrphan) -> None:
        name = tr.orphan_id(event.producer_id)
        entry = self.entries.get(name)
        if entry is None:
            entry = self.entries[name] = Entry(tr.unborn(name))
        if entry.pending is not None or entry.record.status in PREPARED:
            return  # its markers are on the way; the driver looks again afterwards
        self._prepare(
            entry,
            tr.prepare_orphan(
                entry.record,
                self._wall_ms,
                round_=self.gate.current,
                pair=(event.producer_id, event.producer_epoch),
                partitions=event.partitions,
            ),
        )

    def _expire(self, event: ev.TransactionalIdExpired) -> None:
        entry = self.entries.get(event.transactional_id)
        if entry is not None and self._may_expire(entry, self._wall_ms):
            check_transition(entry.record.status, TxnStatus.DEAD)
            entry.pending = replace(entry.record, status=TxnStatus.DEAD)
            self._effects.append(AppendTombstone(event.transactional_id))

    # ---- what waited

    def _drain(self, entry: Entry) -> None:
        """Serve parked requests in order until one starts something again."""
        waiting, entry.parked = entry.parked, []
        index = 0
        while index < len(waiting):
            request = waiting[index]
            if isinstance(request, ev.AddPartitionsReceived) and self._can_join(entry):
                run = _leading_joins(waiting, index)
                self._join(entry, run)
                index += len(run)
            else:
                self._request(request)
                index += 1

    def _can_join(self, entry: Entry) -> bool:
        known = self.entries.get(entry.record.transactional_id) is entry
        return known and entry.pending is None and entry.record.status not in PREPARED


def _leading_joins(waiting: list[ev.Request], start: int) -> list[ev.AddPartitionsReceived]:
    """Return the run of AddPartitions at `start`."""
    run: list[ev.AddPartitionsReceived] = []
    for request in waiting[start:]:
        if not isinstance(request, ev.AddPartitionsReceived):
            break
        run.append(request)
    return run
