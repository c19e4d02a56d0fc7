"""Runs the core of one ledger shard: carries out its effects, and tells it what became of them.

INV-TD3  when the ledger fails, or the shard is resigned, `closed` is set for ever: everything unanswered is
         answered, and no callback changes anything any more (C23); a new load makes a new object
INV-TD5  producer ids in stock >= requests in flight that may take one
INV-TD7  markers of one order that are told to be tried again in one turn of the loop wait in one task, and go out together

Not here: which shard serves whom (`loaded_shards`), loading, taking over (`loading`); the rules (`core`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.identity import CoordinatorEpoch, TopicPartition
from idempotency.ports import Clock
from idempotency.producer_ids import ProducerIdBlock
from txn_coordinator import events as ev
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.effects import (
    Answer,
    AppendPairs,
    AppendRecord,
    AppendRound,
    AppendTombstone,
    Held,
    SendMarkers,
    TxnEffect,
)
from txn_coordinator.markers import retry_delay_ms
from txn_coordinator.ports import (
    IdsUnavailable,
    LedgerFailed,
    MarkerOrder,
    MarkerResult,
    TransactionLog,
)
from txn_coordinator.serving.abort_log import tell_timed_out
from txn_coordinator.serving.hold_limit import HoldLimit
from txn_coordinator.serving.ledger_queue import LedgerQueue
from txn_coordinator.serving.marker_orders import MarkerQueue, MarkerWave
from txn_coordinator.serving.turns import Turns
from txn_coordinator.verdicts import TxnVerdict

_LOG: Final = logging.getLogger(__name__)
_ID_REFILL: Final = 32
REPLAY_SLICE: Final = 500
"""Records replayed between two turns of the event loop."""


class ShardPorts(msgspec.Struct, frozen=True):
    """What a shard driver is given by the coordinator."""

    ledger: TransactionLog
    markers: MarkerQueue
    clock: Clock
    take_ids: Callable[[int], Awaitable[ProducerIdBlock]]
    """Returns 1 to n unused producer ids."""
    group: asyncio.TaskGroup
    hold_limit_ms: int


class ShardDriver:
    """One loaded ledger shard."""

    def __init__(
        self, core: TxnCoordinatorCore, coordinator_epoch: CoordinatorEpoch, ports: ShardPorts
    ) -> None:
        """Take a core; nothing runs before `serve`."""
        self._core = core
        self.index = core.shard
        self.view = core.view
        """What may be asked of the shard at any time."""
        self.connections = core.connections
        self.coordinator_epoch = coordinator_epoch
        self.closed = False
        self.failed: str | None = None
        self._ports = ports
        self.ledger = LedgerQueue(ports.ledger, core.shard, coordinator_epoch, self)
        self._waves: dict[MarkerWave, None] = {}  # in the order they began
        self.owed: set[DecisionId] = set()
        """Decisions with a marker that a stopped partition cannot take."""
        self._again: dict[MarkerOrder, list[TopicPartition]] = {}
        """Markers that were told to be tried again in this turn of the loop (INV-TD7)."""
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._holds = HoldLimit(ports.clock, ports.hold_limit_ms, self.step)
        self._holding: asyncio.Task[None] | None = None

    # ---- life

    def serve(self) -> None:
        """Start to limit waiting; requests may come."""
        self._holding = self._ports.group.create_task(self._holds.run())

    def close(self, verdict: TxnVerdict) -> None:
        """Answer everything unanswered with `verdict` and stop for ever."""
        if self.closed:
            return
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for number, done in waiting.items():
            done(Answer(number, verdict))
        if self._holding is not None:
            self._holding.cancel()
        for wave in list(self._waves):
            wave.give_up()

    def fail(self, error: LedgerFailed) -> None:
        """Take the shard out of service: what is not confirmed has an unknown outcome (INV-TD3)."""
        if self.closed:
            return
        self.failed = f"transaction ledger shard {self.index}: {error}"
        _LOG.error("%s; its transactional ids are not served until it is loaded again", self.failed)
        self.close(TxnVerdict.UNAVAILABLE)

    @property
    def closed_verdict(self) -> TxnVerdict:
        """What a request hears from a closed shard."""
        return TxnVerdict.NOT_COORDINATOR if self.failed is None else TxnVerdict.UNAVAILABLE

    def is_closed(self) -> bool:
        """Return whether the shard was closed meanwhile: to be asked again after every `await`."""
        return self.closed

    def expect_open(self) -> None:
        """Raise LedgerFailed if the shard was closed meanwhile."""
        if self.closed:
            raise LedgerFailed(self.failed or f"ledger shard {self.index} was resigned")

    async def replay(self) -> None:
        """Load the ledger shard into the core; raises LedgerFailed."""
        ledger = self._ports.ledger
        rows = await ledger.load(self.index)
        self._core.replay_whole_from(ledger.whole_from(self.index))
        for number, record in enumerate(rows, 1):
            self._core.replay(*record)
            if number % REPLAY_SLICE == 0:
                await asyncio.sleep(0)
                self.expect_open()
        self.step(ev.TimersRestarted())

    async def abort_overdue(self) -> None:
        """Abort what is open too long (C24); raises IdsUnavailable."""
        if not self._serves:
            return
        turns = Turns()
        for name in self.view.timed_out(self._ports.clock.monotonic_ms()):
            await self.stock_ids()
            if self.is_closed():
                return
            record = self.view.record_of(name)
            if record is None or self.view.is_pending(name):
                continue
            self.step(ev.TransactionTimedOut(name))
            if self.view.is_pending(name):
                tell_timed_out(record)
            await turns.worked(len(record.partitions))  # INV-TTU1

    async def forget_idle(self) -> None:
        """Forget ids that are idle too long (C25)."""
        if not self._serves:
            return
        turns = Turns()
        for name in self.view.expired(self._ports.clock.wall_ms()):
            if self.is_closed():
                return
            self.step(ev.TransactionalIdExpired(name))
            await turns.worked(0)

    @property
    def _serves(self) -> bool:
        return self._holding is not None and not self.closed

    # ---- requests

    async def ask(self, event: ev.Request, *, takes_id: bool = False) -> Answer:
        """Give a request to the core and wait for the answer."""
        if takes_id:
            try:
                await self.stock_ids()
            except IdsUnavailable as error:
                _LOG.error("no producer id for %s: %s", event.transactional_id, error)
                return Answer(event.request_id, TxnVerdict.UNAVAILABLE)
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self.tell(event, partial(_settle, future))
        try:
            return await future
        except asyncio.CancelledError:
            # The client is gone. A request that still waits here must not run later, when its sender may
            # have gone on over another connection (P1).
            if not self.closed:
                self.step(ev.HoldExpired(event.request_id, event.transactional_id))
            raise
        finally:
            self._waiting.pop(event.request_id, None)
            self._holds.answered(event.request_id)

    def tell(self, event: ev.Request, done: Callable[[Answer], None]) -> None:
        """Give a request to the core; `done` gets the answer, perhaps at once.

        One that may take a producer id must find the shard stocked (INV-TD5).
        """
        if self.closed:
            done(Answer(event.request_id, self.closed_verdict))
            return
        self._waiting[event.request_id] = done
        self.step(event)

    @property
    def is_stocked(self) -> bool:
        """Whether one more request, or one time-out, finds a producer id."""
        return self.view.spare_id_count > len(self._waiting) + 1

    async def stock_ids(self) -> None:
        """Keep INV-TD5 when one more request, or one time-out, comes in; raises IdsUnavailable."""
        while not self.closed and not self.is_stocked:
            granted = await self._ports.take_ids(_ID_REFILL)
            if not self.closed:
                self.step(ev.ProducerIdsGranted(granted.first, granted.count))

    def limit_timeouts(self, timeout_max_ms: int) -> None:
        """See the core."""
        self._core.limit_timeouts(timeout_max_ms)

    def step(self, event: ev.TxnEvent) -> None:
        """Let the core take one event, and carry out what it asks for."""
        for effect in self._decide(event):
            self._carry_out(effect)

    def _decide(self, event: ev.TxnEvent) -> list[TxnEffect]:
        clock = self._ports.clock
        return self._core.step(event, now_ms=clock.monotonic_ms(), wall_ms=clock.wall_ms())

    def _carry_out(self, effect: TxnEffect) -> None:
        match effect:
            case Answer():
                done = self._waiting.pop(effect.request_id, None)
                self._holds.answered(effect.request_id)
                if done is not None:
                    done(effect)
            case AppendRecord(record=record, report=report):
                self.ledger.put_record(record, report=report)
            case SendMarkers():
                self._send(effect)
            case Held(request_id=number, transactional_id=name):
                self._holds.hold(ev.HoldExpired(number, name))
            case AppendRound(round=round_):
                self.ledger.put_round(round_)
            case AppendPairs(record=pairs):
                self.ledger.put_pairs(pairs)
            case AppendTombstone(transactional_id=name):
                self.ledger.put_tombstone(name)
            case _:
                assert_never(effect)

    async def settle(self) -> None:
        """Append what is queued and apply it once durable. Only before `serve`.

        Raises:
            LedgerFailed: the shard is closed.
        """
        _ = await self.ledger.sync()
        self.expect_open()

    # ---- markers

    async def resume(self, *, orphans: bool) -> None:
        """Send the markers of decided transactions again; return when none of them is tried any more."""
        if self.closed:
            return
        wave = MarkerWave()
        self._waves[wave] = None
        turns = Turns()
        try:
            for record, _ in self.view.prepared():
                if self.is_closed():
                    return
                self._resume_one(ev.MarkersResumed(orphans, (record.transactional_id,)), wave)
                await turns.worked(len(record.partitions))
            await wave.over()
        finally:
            del self._waves[wave]

    def _resume_one(self, event: ev.MarkersResumed, wave: MarkerWave) -> None:
        for effect in self._decide(event):
            if isinstance(effect, SendMarkers):
                self._send(effect, wave)
            else:
                self._carry_out(effect)

    def _send(self, effect: SendMarkers, wave: MarkerWave | None = None) -> None:
        if wave is not None:
            wave.expect(effect.decision, effect.partitions)
        self._ports.markers.put(
            MarkerOrder(
                transactional_id=effect.transactional_id,
                partitions=effect.partitions,
                producer_id=effect.producer_id,
                producer_epoch=effect.producer_epoch,
                commit=effect.commit,
                coordinator_epoch=self.coordinator_epoch,
                decision=effect.decision,
                tv2=effect.tv2,
                listener=self,
            )
        )

    def marked(self, order: MarkerOrder, tp: TopicPartition, result: MarkerResult) -> None:
        """Take what became of one marker: it is tried until it is there, gone, or no longer ours to write (C32)."""
        if self.closed:
            return
        if result is MarkerResult.STOPPED:
            self.owed.add(order.decision)
            for wave in self._waves:
                wave.ended(order.decision, tp)
        if result in (MarkerResult.RETRY, MarkerResult.STOPPED):
            self._mark_later(order, tp)
            return
        if result is MarkerResult.FENCED:
            _LOG.error("marker for %s refused: a newer coordinator wrote there; stopped", tp)
        else:
            self.step(ev.MarkerConfirmed(order.transactional_id, order.decision, tp))
        for wave in self._waves:
            wave.ended(order.decision, tp)

    def _mark_later(self, order: MarkerOrder, tp: TopicPartition) -> None:
        waiting = self._again.get(order)
        if waiting is not None:
            waiting.append(tp)
            return
        self._again[order] = [tp]
        self._ports.group.create_task(self._mark_again(order))

    async def _mark_again(self, order: MarkerOrder) -> None:
        partitions = tuple(self._again.pop(order))  # of the turn in which the task was made
        await self._ports.clock.sleep_ms(retry_delay_ms(order.attempt))
        if not self.closed:
            again = replace(order, partitions=partitions, attempt=order.attempt + 1)
            self._ports.markers.put(again)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)
