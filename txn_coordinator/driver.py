"""The transaction coordinator of a node: whom each request goes to, loading, taking over, rounds.

INV-TD4  a request is served by the shard object of the current load, or refused; nothing is queued while
         loading (C23)
INV-TD6  all shards are loaded before one is served; a shard that cannot be read fails the load (C22)

`run()` must be running for `load()` and `adopt()` to go on: they wait for it.
Not here: one shard at work (`shard_driver`), rules (`core`), what a takeover aborts (`adoption`), listings and
administrators' aborts (`administration`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from idempotency.decision import round_of
from idempotency.identity import OFFSETS_LEDGER, TopicName, TopicPartition
from idempotency.java_hash import ledger_shard
from idempotency.ledger_records import TransactionRecord, TxnStatus
from idempotency.partition_state import OpenTxn
from idempotency.ports import Clock
from txn_coordinator import events as ev
from txn_coordinator import expiry
from txn_coordinator.abort_log import tell_replaced
from txn_coordinator.administration import TransactionAdministration
from txn_coordinator.adoption import AdoptionReport, abort_open, expect_complete
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.effects import Answer
from txn_coordinator.marker_orders import MarkerQueue
from txn_coordinator.ports import (
    IdBlocks,
    IdsUnavailable,
    LedgerFailed,
    MarkerChannel,
    TransactionLog,
)
from txn_coordinator.rounds import EnteredRound
from txn_coordinator.shard_driver import IdStock, ShardDriver, ShardPorts
from txn_coordinator.transitions import ORPHAN_PREFIX
from txn_coordinator.verdicts import EndOutcome, InitOutcome, TxnVerdict

_LOG: Final = logging.getLogger(__name__)
_NAME_BYTES_MAX: Final = 32_767

DomainCheck = Callable[[str, Sequence[TopicPartition]], bool]
"""Whether all partitions are of the transactional id's domain (T28)."""


@dataclass(frozen=True, slots=True)
class TxnSettings:
    """Limits and intervals of the coordinator, in ms."""

    hold_limit_ms: int = 2_000
    scan_interval_ms: int = 1_000
    id_scan_interval_ms: int = 3_600_000
    timeout_max_ms: int = expiry.TIMEOUT_MAX_MS
    id_retention_ms: int = expiry.ID_RETENTION_MS
    id_count_max: int = 50_000
    """Transactional ids: a request that would make one more is INVALID_REQUEST."""
    offsets_topic: str = OFFSETS_LEDGER
    connection_order: bool = True
    """Refuse what TV1 clients sent before they went on over another connection (KAFKA-17754)."""


class _Phase(Enum):
    RESIGNED = auto()
    LOADING = auto()
    ACTIVE = auto()


class TransactionCoordinator:
    """Serves transactional ids of all ledger shards while this region acts."""

    def __init__(
        self,
        *,
        ledger: TransactionLog,
        markers: MarkerChannel,
        id_blocks: IdBlocks,
        clock: Clock,
        settings: TxnSettings | None = None,
        domain_check: DomainCheck | None = None,
    ) -> None:
        """Start resigned; nothing is read before `load` or `adopt`."""
        self._ledger = ledger
        self._markers = markers
        self._clock = clock
        self._settings = settings or TxnSettings()
        self._domain_check = domain_check
        self._phase = _Phase.RESIGNED
        self._shards: list[ShardDriver] = []
        self._coordinator_epoch = -1
        self._group: asyncio.TaskGroup | None = None
        self._running = asyncio.Event()
        self._request_number = 0
        self._id_limit = expiry.IdLimit(clock, self._settings.id_count_max)
        self._ids = IdStock(id_blocks)
        self.admin = TransactionAdministration(
            self._serving_shards, self._serving, self._next_request
        )
        """What administrators ask: listings, and aborts over a producer's head."""

    # ---- life

    async def run(self) -> None:
        """Own the background tasks until cancelled."""
        try:
            async with asyncio.TaskGroup() as group:
                self._group = group
                group.create_task(self._scan_loop())
                self._running.set()
                try:
                    await asyncio.Event().wait()
                finally:
                    # Before the group ends: a marker that comes back now must not be tried again in it.
                    self._stop()
        finally:
            self._running.clear()
            self._group = None
            self._stop()

    async def load(self, leader_epoch: int, region_epoch: int) -> None:
        """Replay all shards and serve them (C22, T3); clients get LOADING meanwhile.

        Raises:
            LedgerFailed: a shard cannot be read or written; none is served (fail closed).
        """
        shards = await self._replay_all(leader_epoch, region_epoch)
        for shard in shards:
            # B3: nothing is decided before a record of our own epoch is below the high watermark. The
            # round that the shard is in, said again, changes nothing at replay.
            shard.queue_round(shard.view.round)
        for shard in shards:
            await shard.settle()
        self._serve(shards)
        assert self._group is not None, "run() is running"
        self._group.create_task(self._resume(shards))

    async def adopt(
        self,
        region_epoch: int,
        leader_epoch: int,
        open_in_partitions: Iterable[tuple[TopicPartition, OpenTxn]],
    ) -> AdoptionReport:
        """Load the ledgers of a cut and end everything that was open in it (T21); re-running is safe.

        `open_in_partitions`: every open transaction of every partition of the cut. Returns when every
        outcome is durable and every partition that has not stopped has its marker; then serves.

        Raises:
            LedgerFailed: a ledger shard cannot be read or written.
            AdoptionBlocked: a newer region epoch has written to a partition.
        """
        found = list(open_in_partitions)
        shards = await self._replay_all(leader_epoch, region_epoch)
        carried_out = sum(len(shard.view.prepared()) for shard in shards)
        own_round = round_of(leader_epoch, 0)
        for shard in shards:
            shard.step(ev.MarkersDeferred(deferred=True))  # until all is adopted
            if own_round > shard.view.round:
                shard.step(ev.EnterRound(own_round))
            else:
                shard.queue_round(shard.view.round)
        aborted, orphans, waiting = abort_open(shards, found)
        await self._carry_out(shards)
        if waiting:
            for orphan in waiting:
                shards[orphan.producer_id % len(shards)].step(orphan)
            await self._carry_out(shards)
        expect_complete(shards)
        for shard in shards:
            shard.step(ev.MarkersDeferred(deferred=False))
        self._serve(shards)
        return AdoptionReport(carried_out, aborted, orphans)

    async def _carry_out(self, shards: list[ShardDriver]) -> None:
        """Make everything that adoption has decided durable, then send its markers until all are confirmed."""
        for shard in shards:
            await shard.settle()
        await self._resume(shards)
        for shard in shards:
            await shard.settle()

    async def resign(self) -> None:
        """Stop serving at once; everything unanswered gets NOT_COORDINATOR (C23)."""
        self._stop()

    def _stop(self) -> None:
        self._phase = _Phase.RESIGNED
        for shard in self._shards:
            shard.close(TxnVerdict.NOT_COORDINATOR)
        self._shards = []

    # ---- requests

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: int = -1,
        producer_epoch: int = -1,
    ) -> InitOutcome:
        """InitProducerId (KIP-98, KIP-360). Without transactional id: a fresh id at epoch 0."""
        if transactional_id is None:
            return await self._init_idempotent()
        if (producer_id == -1) != (producer_epoch == -1):
            return InitOutcome(TxnVerdict.INVALID_REQUEST)
        shard = self._serving(transactional_id)
        if isinstance(shard, TxnVerdict):
            return InitOutcome(shard)
        number = self._next_request()
        event = ev.InitProducerIdReceived(
            number, transactional_id, timeout_ms, producer_id, producer_epoch
        )
        replaced = shard.view.record_of(transactional_id)
        id_count = sum(each.view.id_count for each in self._shards)
        if replaced is None and not self._id_limit.admits(transactional_id, id_count):
            return InitOutcome(TxnVerdict.INVALID_REQUEST)
        answer = await shard.ask(event, takes_id=True)
        was_open = replaced is not None and replaced.status is TxnStatus.ONGOING
        if replaced is not None and was_open and answer.verdict is TxnVerdict.OK:
            tell_replaced(replaced)
        return InitOutcome(answer.verdict, answer.producer_id, answer.producer_epoch)

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        implicit: bool,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Let partitions join the transaction, durably before OK (B2).

        `implicit`: the add came with Produce or TxnOffsetCommit under TV2.
        """
        asked = (transactional_id, producer_id, producer_epoch, partitions)
        found = self._joining(*asked, implicit=implicit, sender=sender)
        if isinstance(found, TxnVerdict):
            return found
        shard, event = found
        return (await shard.ask(event)).verdict

    def begin_add_partitions(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        sender: Sender,
        done: Callable[[TxnVerdict], None],
    ) -> None:
        """As `add_partitions`, for AddPartitionsToTxn, without a task: `done` is called once, perhaps at once."""
        asked = (transactional_id, producer_id, producer_epoch, partitions)
        found = self._joining(*asked, implicit=False, sender=sender)
        if isinstance(found, TxnVerdict):
            done(found)
        else:
            shard, event = found
            shard.tell(event, lambda answer: done(answer.verdict))

    def _joining(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        partitions: Sequence[TopicPartition],
        *,
        implicit: bool,
        sender: Sender | None,
    ) -> tuple[ShardDriver, ev.AddPartitionsReceived] | TxnVerdict:
        shard = self._serving(transactional_id)
        if isinstance(shard, TxnVerdict):
            return shard
        if not self._admit(shard, transactional_id, (producer_id, producer_epoch), sender):
            return TxnVerdict.STALE_CONNECTION
        if self._domain_check is not None and not self._domain_check(transactional_id, partitions):
            return TxnVerdict.WRONG_DOMAIN
        event = ev.AddPartitionsReceived(
            self._next_request(),
            transactional_id,
            producer_id,
            producer_epoch,
            tuple(partitions),
            2 if implicit else 1,
        )
        return TxnVerdict.OK if shard.view.has_joined(event) else (shard, event)

    async def add_offsets(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        group_id: str,
        *,
        implicit: bool = False,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Let the offsets partition of `group_id` join the transaction."""
        return await self.add_partitions(
            transactional_id,
            producer_id,
            producer_epoch,
            (self.offsets_partition(group_id),),
            implicit=implicit,
            sender=sender,
        )

    def offsets_partition(self, group_id: str) -> TopicPartition:
        """Return the ledger partition that holds the offsets of `group_id`."""
        number = ledger_shard(group_id, self._ledger.shard_count)
        return TopicPartition(TopicName(self._settings.offsets_topic), number)

    async def end_txn(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        commit: bool,
        tv: int,
        sender: Sender | None = None,
    ) -> EndOutcome:
        """Decide the transaction; OK means that the decision is durable (C17-C19)."""
        found = self._ending(transactional_id, producer_id, producer_epoch, commit, tv, sender)
        if isinstance(found, TxnVerdict):
            return EndOutcome(found)
        shard, event = found
        return _end_outcome(await shard.ask(event, takes_id=tv >= 2))

    def begin_end_txn(  # noqa: PLR0913 - the rest by keyword
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        *,
        commit: bool,
        tv: int,
        sender: Sender,
        done: Callable[[EndOutcome], None],
    ) -> bool:
        """As `end_txn`, without a task: `done` is called once, perhaps at once.

        False: it may take a producer id, and the stock must be filled first; nothing was done, use `end_txn`.
        """
        found = self._ending(transactional_id, producer_id, producer_epoch, commit, tv, sender)
        if isinstance(found, TxnVerdict):
            done(EndOutcome(found))
            return True
        shard, event = found
        if tv >= 2 and not shard.is_stocked:
            return False
        shard.tell(event, lambda answer: done(_end_outcome(answer)))
        return True

    def _ending(
        self, name: str, producer_id: int, producer_epoch: int, commit: bool, tv: int, sender: Sender | None
    ) -> tuple[ShardDriver, ev.EndTxnReceived] | TxnVerdict:  # fmt: skip
        shard = self._serving(name)
        if isinstance(shard, TxnVerdict):
            return shard
        pair = (producer_id, producer_epoch)
        if tv < 2 and not self._admit(shard, name, pair, sender, aborting=not commit):
            return TxnVerdict.STALE_CONNECTION
        number = self._next_request()
        return shard, ev.EndTxnReceived(number, name, producer_id, producer_epoch, commit, tv)

    def verify(
        self,
        transactional_id: str | None,
        producer_id: int,
        producer_epoch: int,
        partition: TopicPartition,
        arrival: Arrival | None = None,
    ) -> TxnVerdict:
        """Tell whether `partition` is in the producer's transaction now (C27).

        `arrival`: data of a TV1 client that is to be written now; ask once per request (INV-TO4).
        Synchronous: a caller that appends without an `await` in between cannot be overtaken by a
        marker (P4).
        """
        if self._phase is not _Phase.ACTIVE:
            return self._refusal()
        if transactional_id is None:
            shards: Sequence[ShardDriver] = self._shards
        else:
            shards = (self._shards[ledger_shard(transactional_id, len(self._shards))],)
        for shard in shards:
            if shard.closed:
                return shard.closed_verdict
            verdict = shard.view.verify(transactional_id, producer_id, producer_epoch, partition)
            if verdict is None:
                continue
            if verdict is not TxnVerdict.OK or arrival is None:
                return verdict
            if self._settings.connection_order and not shard.connections.admits_data(
                transactional_id, producer_id, partition, arrival
            ):
                return TxnVerdict.UNPROVEN_CONNECTION
            return verdict
        return TxnVerdict.UNKNOWN_PRODUCER_MAPPING

    # ---- rounds

    async def enter_round(self, round_: int) -> dict[int, EnteredRound]:
        """ENTER{round}: return the answers of the shards that are in it, durably (T2).

        A shard that is past the round, or whose ledger failed, is missing from the answer.
        """
        shards = list(self._shards) if self._phase is _Phase.ACTIVE else []
        for shard in shards:
            if not shard.closed:
                # ROUND opens a batch of its own: a takeover cuts the ledger at L, and logs are cut
                # between batches only.
                shard.flush()
                shard.step(ev.EnterRound(round_))
                shard.flush()
        entered: dict[int, EnteredRound] = {}
        for shard in shards:
            ledger_offset = shard.view.round_offset
            if shard.closed or shard.view.round != round_ or ledger_offset < 0:
                continue
            if await shard.committed(ledger_offset):
                epoch = shard.coordinator_epoch
                entered[shard.index] = EnteredRound(shard.index, epoch, ledger_offset)
        return entered

    def release(self, round_: int) -> None:
        """RELEASE{round}: the round is closed or abandoned, its COMMIT markers may go (T3)."""
        for shard in self._shards:
            if not shard.closed:
                shard.step(ev.ReleaseRound(round_))

    @property
    def held_decisions(self) -> int:
        """Number of decisions whose markers wait for a release (ask the cut leader for one)."""
        return sum(shard.view.held_count for shard in self._shards)

    # ---- looking

    @property
    def active(self) -> bool:
        """Whether requests are served."""
        return self._phase is _Phase.ACTIVE

    @property
    def failures(self) -> list[str]:
        """Why shards are not served, for readiness."""
        return [shard.failed for shard in self._shards if shard.failed is not None]

    @property
    def open_transactions(self) -> int:
        """Number of transactions begun and not decided."""
        return sum(shard.view.ongoing_count for shard in self._shards)

    def transactions(self) -> list[TransactionRecord]:
        """Return the current value of every transactional id, orphans left out; none if not served."""
        found = self.admin.listing()
        return [] if isinstance(found, TxnVerdict) else found

    # ---- parts

    def _refusal(self) -> TxnVerdict:
        if self._phase is _Phase.LOADING:
            return TxnVerdict.LOADING
        return TxnVerdict.NOT_COORDINATOR

    def _serving_shards(self) -> Sequence[ShardDriver] | TxnVerdict:
        return self._shards if self._phase is _Phase.ACTIVE else self._refusal()

    def _serving(self, transactional_id: str) -> ShardDriver | TxnVerdict:
        """Return the shard of the id, or why it cannot be asked."""
        if self._phase is not _Phase.ACTIVE:
            return self._refusal()
        name_is_bad = not transactional_id or transactional_id.startswith(ORPHAN_PREFIX)
        if name_is_bad or len(transactional_id.encode()) > _NAME_BYTES_MAX:
            return TxnVerdict.INVALID_REQUEST
        shard = self._shards[ledger_shard(transactional_id, len(self._shards))]
        return shard.closed_verdict if shard.closed else shard

    def _admit(
        self,
        shard: ShardDriver,
        name: str,
        pair: tuple[int, int],
        sender: Sender | None,
        *,
        aborting: bool = False,
    ) -> bool:
        """Tell whether a coordinator request came in order (INV-TO1); no `await` follows until its step."""
        if sender is None or not self._settings.connection_order:
            return True
        in_order = shard.connections.admits(name, pair, sender, aborting=aborting)
        if not in_order:
            _LOG.warning(
                "a late request of %s was refused: it came on connection %d, its producer goes on over a"
                " newer one (KAFKA-17754)",
                name,
                sender.number,
            )
        return in_order

    def _next_request(self) -> int:
        self._request_number += 1
        return self._request_number

    async def _init_idempotent(self) -> InitOutcome:
        if self._phase is not _Phase.ACTIVE:
            return InitOutcome(self._refusal())
        try:
            ids = await self._ids.take(1)
        except IdsUnavailable as error:
            _LOG.error("no producer id for an idempotent producer: %s", error)
            return InitOutcome(TxnVerdict.UNAVAILABLE)
        return InitOutcome(TxnVerdict.OK, ids.first, 0)

    # ---- time-outs

    async def _scan_loop(self) -> None:
        """Abort what is open too long (C24), forget ids that are idle too long (C25)."""
        settings = self._settings
        next_id_scan_ms = self._clock.monotonic_ms() + settings.id_scan_interval_ms
        while True:
            await self._clock.sleep_ms(settings.scan_interval_ms)
            now_ms = self._clock.monotonic_ms()
            try:
                for shard in list(self._shards):
                    await shard.abort_overdue()
            except IdsUnavailable as error:
                _LOG.error("overdue transactions wait for the next scan: %s", error)
            if now_ms >= next_id_scan_ms:
                next_id_scan_ms = now_ms + settings.id_scan_interval_ms
                for shard in self._shards:
                    shard.forget_idle()

    # ---- loading and adopting

    async def _replay_all(self, leader_epoch: int, region_epoch: int) -> list[ShardDriver]:
        await self._running.wait()
        assert self._group is not None, "run() is running"
        self._stop()
        self._phase = _Phase.LOADING
        self._coordinator_epoch = leader_epoch
        ports = ShardPorts(
            ledger=self._ledger,
            markers=MarkerQueue(self._markers),
            clock=self._clock,
            take_ids=self._ids.take,
            group=self._group,
            hold_limit_ms=self._settings.hold_limit_ms,
        )
        shards = self._shards = [
            ShardDriver(self._new_core(index, region_epoch), leader_epoch, ports)
            for index in range(self._ledger.shard_count)
        ]
        for shard in shards:
            try:
                await shard.replay()
            except LedgerFailed as error:
                shard.fail(error)
                raise
        return shards

    def _new_core(self, index: int, region_epoch: int) -> TxnCoordinatorCore:
        return TxnCoordinatorCore(
            index,
            region_epoch=region_epoch,
            timeout_max_ms=self._settings.timeout_max_ms,
            id_retention_ms=self._settings.id_retention_ms,
        )

    def _serve(self, shards: list[ShardDriver]) -> None:
        for shard in shards:
            shard.expect_open()
        for shard in shards:
            shard.serve()
        self._phase = _Phase.ACTIVE

    async def _resume(self, shards: list[ShardDriver]) -> None:
        """Send the markers of all decided transactions again; orphan aborts behind the others."""
        for orphans in (False, True):
            async with asyncio.TaskGroup() as group:
                for shard in shards:
                    group.create_task(shard.resume(orphans=orphans))


def _end_outcome(answer: Answer) -> EndOutcome:
    return EndOutcome(answer.verdict, answer.producer_id, answer.producer_epoch)
