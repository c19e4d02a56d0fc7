"""How a transition of one ledger shard is carried out: prepared, persisted, completed, its markers sent.

INV-TC3  prepare, persist, complete: a transition is applied when it is durable, and a request is
         answered success only then (B2, C19)
INV-TC4  the stamp of a decision is the round current in the step that appends it (T2)

Not here: which request may do what (`core`), replay and indexes (`shard_state`).
"""

from abc import ABC, abstractmethod
from collections import deque

from idempotency.decision import DecisionId
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator import transitions as tr
from txn_coordinator.effects import (
    Answer,
    AppendRecord,
    AppendRound,
    Held,
    SendMarkers,
    TxnEffect,
)
from txn_coordinator.markers import MarkerFanout
from txn_coordinator.shard_state import Entry, ShardState
from txn_coordinator.states import PREPARED, check_transition
from txn_coordinator.verdicts import TxnVerdict


class ShardSteps(ShardState, ABC):
    """One ledger shard's state, and the ways in which it moves."""

    def __init__(
        self,
        shard: int,
        *,
        region_epoch: int,
        timeout_max_ms: int = expiry.TIMEOUT_MAX_MS,
        id_retention_ms: int = expiry.ID_RETENTION_MS,
    ) -> None:
        """Start empty, without producer ids."""
        super().__init__(
            shard,
            region_epoch=region_epoch,
            timeout_max_ms=timeout_max_ms,
            id_retention_ms=id_retention_ms,
        )
        self._spare_ids: deque[int] = deque()
        self.deferring = False
        """A takeover is under way: every outcome is in the ledger before any marker goes (T21)."""
        self._effects: list[TxnEffect] = []
        self._now_ms = 0
        self._wall_ms = 0

    @property
    def spare_id_count(self) -> int:
        """Producer ids in stock; the driver keeps it above 0, since any event may use one."""
        return len(self._spare_ids)

    # ---- prepare, persist, complete

    def _prepare(self, entry: Entry, target: TransactionRecord) -> None:
        assert entry.pending is None, entry.pending
        check_transition(entry.record.status, target.status)
        entry.pending = target
        self._effects.append(AppendRecord(target, report=True))

    def _durable(self, event: ev.RecordDurable) -> None:
        entry = self.entries[event.transactional_id]
        record = entry.pending
        assert record is not None, event
        entry.pending = None
        if record.status is TxnStatus.DEAD:
            self._forget(entry)
        else:
            self._apply(entry, record, event)
        self._drain(entry)

    def _apply(self, entry: Entry, record: TransactionRecord, event: ev.RecordDurable) -> None:
        self._install(entry, record)
        self._effects.extend(entry.answers)
        entry.answers.clear()
        if record.status in PREPARED:
            assert record.stamp is not None, record
            position = event.position
            entry.decision = DecisionId(
                self.shard, position.leader_epoch, position.offset, record.stamp
            )
            if not self.deferring:
                self.resume(entry)

    @abstractmethod
    def _drain(self, entry: Entry) -> None:
        """Serve parked requests in order until one starts something again."""

    # ---- markers

    def resume(self, entry: Entry) -> None:
        """Send the markers of a decided entry, hold them (T3), or complete it if there are none."""
        record = entry.record
        assert record.status in PREPARED, record.status
        assert record.stamp is not None, record
        if not record.partitions:
            self._complete(entry)
        elif record.status is TxnStatus.PREPARE_COMMIT and not self.gate.is_free(record.stamp):
            self.gate.hold(record.transactional_id, record.stamp)
        else:
            self._send(entry)

    def resume_prepared(self, *, orphans: bool, now_ms: int, wall_ms: int) -> list[TxnEffect]:
        """After a load: send the markers of every decided entry again, with the old decision ids.

        Orphan aborts go in a second call: they may only reach a partition after the markers of older
        decisions of the same producer id, which T6 would otherwise make void.
        """
        self._now_ms, self._wall_ms = now_ms, wall_ms
        for name, entry in list(self.entries.items()):
            is_orphan = name.startswith(tr.ORPHAN_PREFIX)
            if entry.record.status in PREPARED and is_orphan == orphans and entry.fanout is None:
                self.resume(entry)
        effects, self._effects = self._effects, []
        return effects

    def _send(self, entry: Entry) -> None:
        record, decision = entry.record, entry.decision
        assert decision is not None, record
        entry.fanout = MarkerFanout(decision, record.partitions)
        self._effects.append(
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

    def _confirmed(self, event: ev.MarkerConfirmed) -> None:
        entry = self.entries.get(event.transactional_id)
        if entry is None or entry.fanout is None:
            return
        if entry.fanout.confirm(event.decision, event.tp):
            self._complete(entry)
            self._drain(entry)

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
        target = tr.complete(entry.record, entry.decision, self._wall_ms)
        check_transition(entry.record.status, target.status)
        entry.fanout = None
        self._install(entry, target)
        self._effects.append(AppendRecord(target, report=False))

    # ---- rounds

    def _move_round(self, event: ev.EnterRound | ev.ReleaseRound) -> None:
        if isinstance(event, ev.ReleaseRound):
            freed = self.gate.release(event.round)
        elif event.round > self.gate.current:
            self._effects.append(AppendRound(event.round))
            freed = self.gate.enter(event.round)
        else:
            freed = []  # T2: repeated or late
        for name in freed:
            self._send(self.entries[name])

    # ---- holding and answering

    def _park(self, entry: Entry, request: ev.Request) -> None:
        entry.parked.append(request)
        self._effects.append(Held(request.request_id, request.transactional_id))

    def _hold_expired(self, event: ev.HoldExpired) -> None:
        entry = self.entries.get(event.transactional_id)
        if entry is not None and entry.unpark(event.request_id):
            self._effects.append(Answer(event.request_id, TxnVerdict.CONCURRENT))

    def _answer(
        self, request: ev.Request, verdict: TxnVerdict, producer_id: int = -1, epoch: int = -1
    ) -> None:
        self._effects.append(Answer(request.request_id, verdict, producer_id, epoch))

    def _refuse(self, request: ev.Request, verdict: TxnVerdict) -> None:
        self._effects.append(Answer(request.request_id, verdict))

    def _stamp(self) -> tr.Stamp:
        return tr.Stamp(self._wall_ms, self.region_epoch)

    def _take_id(self) -> int:
        assert self._spare_ids, "the driver keeps producer ids in stock"
        return self._spare_ids.popleft()
