"""The transaction coordinator of a node: its life, and what it is put together from.

    clients  what clients ask               (`serving.client_requests`)
    admin    what administrators ask        (`serving.administration`)
    rounds   what the cut leader asks       (`serving.ledger_rounds`)

`run()` must be running for `load()` and `adopt()` to go on: they wait for it.
Not here: loading and taking over (`serving.loading`), one shard at work (`serving.shard_driver`), rules (`core`).
"""

import asyncio
import logging
from collections.abc import Iterable
from typing import Final

from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.ports import Clock
from txn_coordinator.ports import IdBlocks, IdsUnavailable, MarkerChannel, TransactionLog
from txn_coordinator.serving.administration import TransactionAdministration
from txn_coordinator.serving.admission import Admission
from txn_coordinator.serving.adoption import AdoptionReport, Found
from txn_coordinator.serving.client_requests import ClientRequests, DomainCheck
from txn_coordinator.serving.id_stock import IdStock
from txn_coordinator.serving.ledger_rounds import LedgerRounds
from txn_coordinator.serving.loaded_shards import LoadedShards
from txn_coordinator.serving.loading import Loading
from txn_coordinator.settings import TxnSettings

_LOG: Final = logging.getLogger(__name__)


class TransactionCoordinator:
    """Serves transactional ids of all ledger shards while this region acts."""

    def __init__(  # noqa: PLR0913 -- keyword-only, one for each port
        self,
        *,
        ledger: TransactionLog,
        markers: MarkerChannel,
        id_blocks: IdBlocks,
        transactional_id_blocks: IdBlocks | None = None,
        clock: Clock,
        settings: TxnSettings | None = None,
        domain_check: DomainCheck | None = None,
    ) -> None:
        """Start resigned; nothing is read before `load` or `adopt`.

        `transactional_id_blocks`: where the ids of transactional producers come from, if not from where all do (INV-I4).
        """
        self._clock = clock
        self._settings = settings = settings or TxnSettings()
        self._group: asyncio.TaskGroup | None = None
        self._running = asyncio.Event()
        self._shards = shards = LoadedShards()
        ids = IdStock(id_blocks)
        of_transactions = (
            ids if transactional_id_blocks is None else IdStock(transactional_id_blocks)
        )
        self._loading = Loading(
            shards,
            ledger=ledger,
            markers=markers,
            ids=of_transactions,
            clock=clock,
            settings=settings,
        )
        self.admission = Admission(clock, lambda: settings.id_count_max)
        """What keeps clients from taking without end."""
        self.clients = ClientRequests(
            shards,
            ids,
            admission=self.admission,
            ledger=ledger,
            settings=settings,
            domain_check=domain_check,
        )
        """What clients ask."""
        self.admin = TransactionAdministration(shards)
        """What administrators ask: listings, and aborts over a producer's head."""
        self.rounds = LedgerRounds(shards)
        """What the cut leader asks."""

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
                    self._shards.resign()
        finally:
            self._running.clear()
            self._group = None
            self._shards.resign()

    async def load(self, leader_epoch: LeaderEpoch, region_epoch: RegionEpoch) -> None:
        """Replay all shards and serve them (C22, T3); clients get LOADING meanwhile.

        Raises:
            LedgerFailed: a shard cannot be read or written; none is served (fail closed).
        """
        await self._loading.load(await self._running_group(), leader_epoch, region_epoch)

    async def adopt(
        self,
        region_epoch: RegionEpoch,
        leader_epoch: LeaderEpoch,
        open_in_partitions: Iterable[Found],
        drained: RegionEpoch | None = None,
    ) -> AdoptionReport:
        """Load the ledgers of a cut and end everything that was open in it (T21); re-running is safe.

        `open_in_partitions`: every open transaction of every partition of the cut. `drained`: the cut is the end of that
        region epoch, so its producers go on, with what they have open (T22). Returns when every
        outcome is durable and every partition that has not stopped has its marker; then serves.

        Raises:
            LedgerFailed: a ledger shard cannot be read or written.
            AdoptionBlocked: a newer region epoch has written to a partition.
        """
        group = await self._running_group()
        return await self._loading.adopt(
            group, region_epoch, leader_epoch, open_in_partitions, drained
        )

    async def _running_group(self) -> asyncio.TaskGroup:
        await self._running.wait()
        assert self._group is not None, "run() is running"
        return self._group

    async def resign(self) -> None:
        """Stop serving at once; everything unanswered gets NOT_COORDINATOR (C23)."""
        self._shards.resign()

    # ---- limits

    def limit(self, *, timeout_max_ms: int, id_count_max: int, connection_order: bool) -> None:
        """Judge requests that come from now on by these (`TxnSettings`); what was let in stays.

        The order of connections may be asked for, or not, at any time: what is remembered of them can only be too old, and
        then it refuses less. What was sent while it was off is not judged afterwards.
        """
        settings = self._settings
        settings.timeout_max_ms = timeout_max_ms
        settings.id_count_max = id_count_max
        settings.connection_order = connection_order
        for shard in self._shards:
            shard.limit_timeouts(timeout_max_ms)

    # ---- looking

    @property
    def active(self) -> bool:
        """Whether requests are served."""
        return self._shards.active

    @property
    def failures(self) -> list[str]:
        """Why shards are not served, for readiness."""
        return [shard.failed for shard in self._shards if shard.failed is not None]

    @property
    def open_transactions(self) -> int:
        """Number of transactions begun and not decided."""
        return sum(shard.view.ongoing_count for shard in self._shards)

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
                for shard in list(self._shards):
                    await shard.forget_idle()
