"""How a transition of one ledger shard moves on: prepared, persisted, its markers sent, completed.

INV-TC3  prepare, persist, complete: a transition is applied when it is durable, and a request is
         answered success only then (B2, C19)

Not here: which request may begin what (the requests), what its record says (`decisions`).
"""

from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer, AppendRecord, AppendRound, AppendTombstone, SendMarkers
from txn_coordinator.markers import MarkerFanout
from txn_coordinator.rounds import RoundGate
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable
from txn_coordinator.states import PREPARED, check_transition


class Progress:
    """Moves the entries of a table from one state to the next."""

    def __init__(self, shard: int, table: TransactionTable, gate: RoundGate, step: Step) -> None:
        """Take the table whose entries are moved, and the gate that holds markers back."""
        self._shard = shard
        self._table = table
        self._gate = gate
        self._step = step
        self._deferring = False
        """A takeover is under way: every outcome is in the ledger before any marker goes (T21)."""

    # ---- prepare, persist, complete

    def prepare(
        self, entry: Entry, target: TransactionRecord, answers: tuple[Answer, ...] = ()
    ) -> None:
        """Append `target`; once it is durable it is the entry's value, and `answers` are given."""
        assert entry.pending is None, entry.pending
        check_transition(entry.record.status, target.status)
        entry.pending = target
        self._step.do(AppendRecord(target, report=True))
        entry.answers.extend(answers)

    def prepare_removal(self, entry: Entry) -> None:
        """Append the tombstone of an entry; once it is durable, the entry is gone."""
        assert entry.pending is None, entry.pending
        check_transition(entry.record.status, TxnStatus.DEAD)
        entry.pending = replace(entry.record, status=TxnStatus.DEAD)
        self._step.do(AppendTombstone(entry.record.transactional_id))

    def persisted(self, event: ev.RecordDurable) -> Entry:
        """Apply what is durable now; return the entry, whose parked requests may go on."""
        entry = self._table.entries[event.transactional_id]
        record = entry.pending
        assert record is not None, event
        entry.pending = None
        if record.status is TxnStatus.DEAD:
            status = entry.record.status
            ended = not status.is_prepared and status is not TxnStatus.ONGOING
            assert ended, f"INV-TC13: {event.transactional_id!r} is {status}"
            self._table.forget(entry)
        else:
            self._apply(entry, record, event)
        return entry

    def _apply(self, entry: Entry, record: TransactionRecord, event: ev.RecordDurable) -> None:
        self._table.install(entry, record)
        for answer in entry.answers:
            self._step.do(answer)
        entry.answers.clear()
        if record.status in PREPARED:
            assert record.stamp is not None, record
            position = event.position
            entry.decision = DecisionId(
                self._shard, position.leader_epoch, position.offset, record.stamp
            )
            if not self._deferring:
                self._resume(entry)

    def _complete(self, entry: Entry) -> None:
        """Append COMPLETE_* and apply it without waiting for the high watermark.

        Why that is safe. COMPLETE tells nothing that PREPARE and the markers do not tell. The records of
        the next transaction stand behind it in the same shard and are answered only below the high
        watermark, so none of them survives a crash that COMPLETE does not survive. If COMPLETE alone is
        lost: the next leader finds PREPARE, sends the markers again with the old decision id, the
        partitions ignore them (T6), and it appends COMPLETE again. A retried EndTxn that was answered
        from it was told the durable decision.
        """
        assert entry.decision is not None, entry.record
        target = tr.complete(entry.record, entry.decision, self._step.wall_ms)
        check_transition(entry.record.status, target.status)
        entry.fanout = None
        self._table.install(entry, target)
        self._step.do(AppendRecord(target, report=False))

    # ---- markers

    def defer_markers(self, event: ev.MarkersDeferred) -> None:
        """Send no markers of new decisions, or do so again (T21)."""
        self._deferring = event.deferred

    def resume_all(self, event: ev.MarkersResumed) -> None:
        """Send the markers of every decided entry again, with the old decision ids."""
        names = list(self._table.entries) if event.only is None else event.only
        for name in names:
            entry = self._table.get(name)
            if entry is None or entry.record.status not in PREPARED or entry.fanout is not None:
                continue
            if name.startswith(tr.ORPHAN_PREFIX) == event.orphans:
                self._resume(entry)

    def _resume(self, entry: Entry) -> None:
        """Send the markers of a decided entry, hold them (T3), or complete it if there are none."""
        record = entry.record
        assert record.status in PREPARED, record.status
        assert record.stamp is not None, record
        if not record.partitions:
            self._complete(entry)
        elif record.status is TxnStatus.PREPARE_COMMIT and not self._gate.is_free(record.stamp):
            self._gate.hold(record.transactional_id, record.stamp)
        else:
            self._send(entry)

    def _send(self, entry: Entry) -> None:
        record, decision = entry.record, entry.decision
        assert decision is not None, record
        entry.fanout = MarkerFanout(decision, record.partitions)
        self._step.do(
            SendMarkers(
                record.transactional_id,
                record.producer_id,
                record.producer_epoch,
                tr.decided_commit(record),
                decision,
                record.partitions,
                record.client_tv >= 2,
            )
        )

    def confirmed(self, event: ev.MarkerConfirmed) -> Entry | None:
        """Note a marker that is written; return the entry if it is complete by that."""
        entry = self._table.get(event.transactional_id)
        if entry is None or entry.fanout is None:
            return None
        if not entry.fanout.confirm(event.decision, event.tp):
            return None
        self._complete(entry)
        return entry

    # ---- rounds

    def enter_round(self, event: ev.EnterRound) -> None:
        """Begin a higher round; one that is repeated or late changes nothing (T2)."""
        if event.round > self._gate.current:
            self._step.do(AppendRound(event.round))
            self._send_freed(self._gate.enter(event.round))

    def round_appended(self, event: ev.RoundAppended) -> None:
        """Note where the current round begins (L)."""
        self._gate.begins_at(event.round, event.offset)

    def release_round(self, event: ev.ReleaseRound) -> None:
        """Let the markers of a round go (T3)."""
        self._send_freed(self._gate.release(event.round))

    def _send_freed(self, transactional_ids: list[str]) -> None:
        for name in transactional_ids:
            self._send(self._table.entries[name])
