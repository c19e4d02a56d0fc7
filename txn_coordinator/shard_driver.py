"""Runs the core of one ledger shard: appends, confirms, sends markers, answers, limits waiting.

INV-TD1  one event loop owns everything here; no `await` stands between a core's step and the append
         queue, and the queue is flushed in order, so queue order is log order (T2)
INV-TD2  a record is reported durable when the ledger says so, in ledger order (B2, C19); all records of one
         append are reported by one call
INV-TD3  when the ledger fails, or the shard is resigned, `closed` is set for ever: everything unanswered is
         answered, and no callback changes anything any more (C23); a new load makes a new object
INV-TD5  producer ids in stock >= requests in flight that may take one

Not here: which shard serves whom, loading, taking over (`driver`); the rules (`core`).
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, assert_never

import msgspec
from msgspec.structs import replace

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId
from idempotency.identity import TopicPartition
from idempotency.ports import Clock
from idempotency.producer_ids import ProducerIdBlock
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.abort_log import tell_timed_out
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.effects import (
    Answer,
    AppendRecord,
    AppendRound,
    AppendTombstone,
    Held,
    SendMarkers,
    TxnEffect,
)
from txn_coordinator.marker_orders import MarkerQueue, MarkerWave
from txn_coordinator.markers import retry_delay_ms
from txn_coordinator.ports import (
    IdBlocks,
    IdsUnavailable,
    LedgerFailed,
    LedgerPosition,
    MarkerOrder,
    MarkerResult,
    TransactionLog,
)
from txn_coordinator.verdicts import TxnVerdict

_LOG: Final = logging.getLogger(__name__)
_ID_REFILL: Final = 32
REPLAY_SLICE: Final = 500
"""Records replayed between two turns of the event loop."""


class IdStock:
    """Producer ids of one node; its lock guards the fetching of a block, and nothing else is awaited under it."""

    def __init__(self, blocks: IdBlocks) -> None:
        """Start empty."""
        self._blocks = blocks
        self._block = ProducerIdBlock(0, 0)
        self._lock = asyncio.Lock()

    async def take(self, count: int) -> ProducerIdBlock:
        """Return 1 to `count` unused producer ids; raises IdsUnavailable."""
        async with self._lock:
            if self._block.count == 0:
                self._block = await self._blocks.next_block()
            block = self._block
            taken = min(count, block.count)
            self._block = ProducerIdBlock(block.first + taken, block.count - taken)
            return ProducerIdBlock(block.first, taken)


class ShardPorts(msgspec.Struct, frozen=True):
    """What a shard driver is given by the coordinator."""

    ledger: TransactionLog
    markers: MarkerQueue
    clock: Clock
    take_ids: Callable[[int], Awaitable[ProducerIdBlock]]
    """Returns 1 to n unused producer ids."""
    group: asyncio.TaskGroup
    hold_limit_ms: int


class _Outgoing(msgspec.Struct, frozen=True):
    """A ledger record on its way: `report` names the entry that waits for it, if one does."""

    key: bytes
    value: bytes | None
    report: str | None = None
    round: int = -1


class _Flushed:
    """The records of one append that somebody waits for."""

    __slots__ = ("_records", "_shard")

    def __init__(self, shard: "ShardDriver", records: list[tuple[LedgerPosition, str]]) -> None:
        self._shard = shard
        self._records = records

    def committed(self) -> None:
        """See `DurableListener`."""
        shard = self._shard
        for position, name in self._records:
            if not shard.closed:
                shard.step(ev.RecordDurable(name, position))

    def not_committed(self, error: Exception) -> None:
        """See `DurableListener`."""
        self._shard.fail(LedgerFailed(str(error)))


class ShardDriver:
    """One loaded ledger shard."""

    def __init__(self, core: TxnCoordinatorCore, coordinator_epoch: int, ports: ShardPorts) -> None:
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
        self._outbox: list[_Outgoing] = []
        self._last_offset = -1
        self._waves: set[MarkerWave] = set()
        self.owed: set[DecisionId] = set()
        """Decisions with a marker that a stopped partition cannot take."""
        self._waiting: dict[int, Callable[[Answer], None]] = {}
        self._holds: deque[tuple[int, ev.HoldExpired]] = deque()
        self._holds_wake = asyncio.Event()
        self._held: set[int] = set()
        self._holding: asyncio.Task[None] | None = None

    # ---- life

    def serve(self) -> None:
        """Start to limit waiting; requests may come."""
        self._holding = self._ports.group.create_task(self._hold_loop())

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
        """Tell whether the shard was closed meanwhile: to be asked again after every `await`."""
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

    def forget_idle(self) -> None:
        """Forget ids that are idle too long (C25)."""
        if self._serves:
            for name in self.view.expired(self._ports.clock.wall_ms()):
                self.step(ev.TransactionalIdExpired(name))

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
            self._held.discard(event.request_id)

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
                self._held.discard(effect.request_id)
                if done is not None:
                    done(effect)
            case AppendRecord(record=record, report=report):
                name = record.transactional_id
                value = lr.encode_transaction_value(record)
                self._queue(_Outgoing(_key(name), value, name if report else None))
            case SendMarkers():
                self._send(effect)
            case Held(request_id=number, transactional_id=name):
                self._arm_hold(ev.HoldExpired(number, name))
            case AppendRound(round=round_):
                self.queue_round(round_)
            case AppendTombstone(transactional_id=name):
                self._queue(_Outgoing(_key(name), None, name))
            case _:
                assert_never(effect)

    # ---- holding

    def _arm_hold(self, expiry: ev.HoldExpired) -> None:
        """Start the hold limit of a request, once, however often it is parked again."""
        if expiry.request_id in self._held:
            return
        self._held.add(expiry.request_id)
        deadline_ms = self._ports.clock.monotonic_ms() + self._ports.hold_limit_ms
        self._holds.append((deadline_ms, expiry))
        self._holds_wake.set()

    async def _hold_loop(self) -> None:
        """Send away what has waited too long; the limit is the same for all, so order is by age."""
        clock = self._ports.clock
        while True:
            await self._holds_wake.wait()
            self._holds_wake.clear()
            while self._holds:
                deadline_ms, expiry = self._holds.popleft()
                if expiry.request_id not in self._held:
                    continue  # answered meanwhile
                remaining_ms = deadline_ms - clock.monotonic_ms()
                if remaining_ms > 0:
                    await clock.sleep_ms(remaining_ms)
                if expiry.request_id in self._held:
                    self.step(expiry)

    # ---- the ledger

    def queue_round(self, round_: int) -> None:
        """Queue ROUND{round}."""
        value = lr.encode_round_value(lr.RoundRecord(round_, self.coordinator_epoch))
        self._queue(_Outgoing(lr.encode_round_key(), value, round=round_))

    def _queue(self, outgoing: _Outgoing) -> None:
        """Put a record behind those of this turn of the loop; all go out as one batch."""
        if self.closed:
            return
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self.flush)
        self._outbox.append(outgoing)

    def flush(self) -> None:
        """Append what is queued."""
        if not self._outbox or self.closed:
            return
        batch, self._outbox = self._outbox, []
        try:
            first = self._ports.ledger.append(self.index, [(out.key, out.value) for out in batch])
        except LedgerFailed as error:
            self.fail(error)
            return
        self._last_offset = first.offset + len(batch) - 1
        reports: list[tuple[LedgerPosition, str]] = []
        for offset, item in enumerate(batch, first.offset):
            if item.report is not None:
                reports.append((LedgerPosition(first.leader_epoch, offset), item.report))
            elif item.round >= 0:
                self.step(ev.RoundAppended(item.round, offset))
        if reports:
            flushed = _Flushed(self, reports)
            self._ports.ledger.tell_committed(self.index, self._last_offset, flushed)

    async def committed(self, offset: int) -> bool:
        """Return whether the record at `offset` came below the high watermark here."""
        try:
            await self._ports.ledger.committed(self.index, offset)
        except LedgerFailed as error:
            self.fail(error)
        return not self.closed

    async def settle(self) -> None:
        """Append what is queued and apply it once durable. Only before `serve`.

        Raises:
            LedgerFailed: the shard is closed.
        """
        self.flush()
        self.expect_open()
        if self._last_offset >= 0 and not self.closed:
            await self.committed(self._last_offset)
        self.expect_open()

    async def sync(self) -> bool:
        """Append what is queued; return whether all of it is durable."""
        self.flush()
        return not self.closed and await self.committed(self._last_offset)

    # ---- markers

    async def resume(self, *, orphans: bool) -> None:
        """Send the markers of decided transactions again; return when none of them is tried any more."""
        if self.closed:
            return
        effects = self._decide(ev.MarkersResumed(orphans))
        wave = MarkerWave()
        self._waves.add(wave)
        for effect in effects:
            if isinstance(effect, SendMarkers):
                self._send(effect, wave)
            else:
                self._carry_out(effect)
        try:
            await wave.over()
        finally:
            self._waves.discard(wave)

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
            self._ports.group.create_task(self._mark_again(order, tp))
            return
        if result is MarkerResult.FENCED:
            _LOG.error("marker for %s refused: a newer coordinator wrote there; stopped", tp)
        else:
            self.step(ev.MarkerConfirmed(order.transactional_id, order.decision, tp))
        for wave in self._waves:
            wave.ended(order.decision, tp)

    async def _mark_again(self, order: MarkerOrder, tp: TopicPartition) -> None:
        await self._ports.clock.sleep_ms(retry_delay_ms(order.attempt))
        if not self.closed:
            again = replace(order, partitions=(tp,), attempt=order.attempt + 1)
            self._ports.markers.put(again)


def _settle(future: asyncio.Future[Answer], answer: Answer) -> None:
    if not future.done():
        future.set_result(answer)


def _key(name: str) -> bytes:
    """Return the ledger key of an entry."""
    if name.startswith(tr.ORPHAN_PREFIX):
        return lr.encode_orphan_key(int(name.removeprefix(tr.ORPHAN_PREFIX)))
    return lr.encode_transaction_key(name)
