"""The coordinator of one ledger shard as a pure state machine: events in, effects out.

INV-TC5  a request that meets a transition under way, or the next transaction's request that meets markers
         under way, waits here in order of arrival; it is not sent away to back off (P5)
INV-TC18  a request that begins a transition leaves those behind it as they wait: none is looked at again before that one is durable, as
         each of N would begin one, and look at all the others
INV-TC6  pending and PREPARE_* are looked at before producer ids and epochs: over an overflow the
         client may already use the pair that is not in force yet (P6, C26)
No clock, no I/O: `now_ms` is monotonic, `wall_ms` only goes into records.

What a driver must do, and in which order, stands at the head of the package. The rules are in the parts
(`txn_coordinator.shard`); none of them knows the core.
Not here: marker sending and timers (the drivers).
"""

from collections.abc import Callable, Mapping
from typing import Any

from idempotency.identity import RegionEpoch
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator.effects import Answer, TxnEffect
from txn_coordinator.ports import LedgerPosition
from txn_coordinator.rounds import RoundGate
from txn_coordinator.shard.connection_fence import ConnectionFence
from txn_coordinator.shard.decisions import Decisions, SpareIds
from txn_coordinator.shard.end_requests import EndRequests
from txn_coordinator.shard.init_requests import InitRequests
from txn_coordinator.shard.join_requests import JoinRequests
from txn_coordinator.shard.pairs_in_force import PairsInForce
from txn_coordinator.shard.progress import Progress
from txn_coordinator.shard.replay import LedgerReplay
from txn_coordinator.shard.server_decisions import ServerDecisions
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable
from txn_coordinator.shard.view import ShardView
from txn_coordinator.verdicts import TxnVerdict

Handlers = Mapping[type[ev.TxnEvent], Callable[[Any], None]]
"""What takes an event, by its type: every type of `TxnEvent` has one."""


class TxnCoordinatorCore:
    """The rules of one ledger shard, over its state."""

    def __init__(
        self,
        shard: int,
        *,
        region_epoch: RegionEpoch,
        timeout_max_ms: int = expiry.TIMEOUT_MAX_MS,
        id_retention_ms: int = expiry.ID_RETENTION_MS,
    ) -> None:
        """Start empty, without producer ids; `replay` fills it before the first event."""
        self.shard = shard
        self._table = table = TransactionTable()
        self._gate = gate = RoundGate()
        self._ids = ids = SpareIds()
        self._step = step = Step()
        self._pairs = pairs = PairsInForce(region_epoch)
        self._replay = LedgerReplay(shard, table, gate, pairs)
        self._progress = progress = Progress(shard, table, gate, step)
        decisions = Decisions(pairs, gate, ids, step)
        self._inits = InitRequests(table, decisions, progress, step, timeout_max_ms=timeout_max_ms)
        self._joins = JoinRequests(table, decisions, progress, step)
        self._ends = EndRequests(table, decisions, progress, step)
        self._server = ServerDecisions(
            table, decisions, progress, step, pairs=pairs, id_retention_ms=id_retention_ms
        )
        self._handlers = self._all_handlers()
        self.view = ShardView(table, gate, ids, pairs=pairs, id_retention_ms=id_retention_ms)
        """What may be asked at any time."""
        self.connections = ConnectionFence(table, pairs)
        """To be asked right before a step, without an `await` in between."""

    def _all_handlers(self) -> Handlers:
        progress, server = self._progress, self._server
        return {
            ev.InitProducerIdReceived: self._inits.serve,
            ev.AddPartitionsReceived: self._joins.serve,
            ev.EndTxnReceived: self._ends.serve,
            ev.AbortReceived: server.abort,
            ev.SettledAsked: server.settle,
            ev.RecordDurable: self._persisted,
            ev.MarkerConfirmed: self._confirmed,
            ev.HoldExpired: self._hold_expired,
            ev.ProducerIdsGranted: self._granted,
            ev.TransactionTimedOut: server.time_out,
            ev.TransactionalIdExpired: server.expire,
            ev.TimersRestarted: server.restart_timers,
            ev.AbortOrphan: server.abort_orphan,
            ev.AdoptOngoing: server.adopt_ongoing,
            ev.PairsInherited: server.inherit_pairs,
            ev.EnterRound: progress.enter_round,
            ev.RoundAppended: progress.round_appended,
            ev.ReleaseRound: progress.release_round,
            ev.MarkersDeferred: progress.defer_markers,
            ev.MarkersResumed: progress.resume_all,
        }

    # ---- before the first event

    def replay(self, position: LedgerPosition, key: bytes, value: bytes | None) -> None:
        """Take one record of the ledger shard, in order; raises LedgerCorrupt: never serve from here (C22)."""
        self._replay.take(position, key, value)

    def replay_whole_from(self, offset: int) -> None:
        """Say below which offset records may be missing that later ones of their key superseded."""
        self._replay.whole_from = offset

    def limit_timeouts(self, timeout_max_ms: int) -> None:
        """Refuse longer transaction time-outs than that from now on (C24)."""
        self._inits.timeout_max_ms = timeout_max_ms

    # ---- the step

    def step(self, event: ev.TxnEvent, *, now_ms: int, wall_ms: int) -> list[TxnEffect]:
        """Take one event; return what is to be done, in order."""
        step = self._step
        step.begin(now_ms, wall_ms)
        self._handlers[type(event)](event)
        return step.finish()

    def _granted(self, event: ev.ProducerIdsGranted) -> None:
        self._ids.grant(event.first, event.count)

    def _hold_expired(self, event: ev.HoldExpired) -> None:
        entry = self._table.get(event.transactional_id)
        if entry is not None and entry.unpark(event.request_id):
            self._step.do(Answer(event.request_id, TxnVerdict.CONCURRENT))

    def _persisted(self, event: ev.RecordDurable) -> None:
        self._drain(self._progress.persisted(event))

    def _confirmed(self, event: ev.MarkerConfirmed) -> None:
        entry = self._progress.confirmed(event)
        if entry is not None:
            self._drain(entry)

    # ---- what waited

    def _drain(self, entry: Entry) -> None:
        """Serve parked requests in order until one starts something again (INV-TC18)."""
        waiting = entry.take_parked()
        index = 0
        while index < len(waiting) and entry.pending is None:
            index += self._serve_parked(entry, waiting, index)
        entry.keep_parked(waiting[index:])

    def _serve_parked(self, entry: Entry, waiting: list[ev.Request], index: int) -> int:
        """Serve the request at `index`, with a run of joins those behind it; return how many."""
        request = waiting[index]
        if self._table.is_in(entry) and entry.is_busy:
            # Only an EndTxn may have an answer while markers are written: the decision is there.
            if not isinstance(request, ev.EndTxnReceived):
                entry.keep_parked((request,))
                return 1
        elif self._table.is_in(entry) and isinstance(request, ev.AddPartitionsReceived):
            run = _leading_joins(waiting, index)
            self._joins.serve_together(entry, run)
            return len(run)
        self._handlers[type(request)](request)
        return 1


def _leading_joins(waiting: list[ev.Request], start: int) -> list[ev.AddPartitionsReceived]:
    """Return the run of AddPartitions at `start`."""
    run: list[ev.AddPartitionsReceived] = []
    for request in waiting[start:]:
        if not isinstance(request, ev.AddPartitionsReceived):
            break
        run.append(request)
    return run
