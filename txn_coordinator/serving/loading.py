"""How a coordinator comes to serve: a load of its own ledger, or the adoption of a cut of another region's.

Both replay all shards, put a record of the own leader epoch into each (B3), and then serve; an adoption first ends
all that is open (T21). What each step of it owes to the cores, and in which order, is the package's contract.
Not here: what a takeover aborts (`adoption`), who is asked when all is loaded (`loaded_shards`).
"""

import asyncio
from collections.abc import Iterable, Sequence

from idempotency.decision import round_of
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, RegionEpoch
from idempotency.ports import Clock
from txn_coordinator import events as ev
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.ports import LedgerFailed, MarkerChannel, TransactionLog
from txn_coordinator.serving.adoption import (
    AdoptionReport,
    Found,
    abort_open,
    abort_orphans,
    expect_complete,
)
from txn_coordinator.serving.id_stock import IdStock
from txn_coordinator.serving.loaded_shards import LoadedShards
from txn_coordinator.serving.marker_orders import MarkerQueue
from txn_coordinator.serving.shard_driver import ShardDriver, ShardPorts
from txn_coordinator.serving.turns import Turns
from txn_coordinator.settings import TxnSettings


class Loading:
    """Makes new shards for every load; the ones before are never used again."""

    def __init__(
        self,
        shards: LoadedShards,
        *,
        ledger: TransactionLog,
        markers: MarkerChannel,
        ids: IdStock,
        clock: Clock,
        settings: TxnSettings,
    ) -> None:
        """Take the ports that every shard is given."""
        self._shards = shards
        self._ledger = ledger
        self._markers = markers
        self._ids = ids
        self._clock = clock
        self._settings = settings

    async def load(
        self, group: asyncio.TaskGroup, leader_epoch: LeaderEpoch, region_epoch: RegionEpoch
    ) -> None:
        """Replay all shards and serve them (C22, T3); what follows runs in `group`. Raises LedgerFailed."""
        shards = await self._replay_all(group, leader_epoch, region_epoch)
        for shard in shards:
            # B3: nothing is decided before a record of our own epoch is below the high watermark. The
            # round that the shard is in, said again, changes nothing at replay.
            shard.ledger.put_round(shard.view.round)
        for shard in shards:
            await shard.settle()
        self._shards.serve(shards)
        group.create_task(_resume(shards))

    async def adopt(
        self,
        group: asyncio.TaskGroup,
        region_epoch: RegionEpoch,
        leader_epoch: LeaderEpoch,
        open_in_partitions: Iterable[Found],
        drained: RegionEpoch | None,
    ) -> AdoptionReport:
        """Replay all shards, end what is open in the cut, and serve. Raises LedgerFailed, AdoptionBlocked.

        `drained`: the cut is the end of that region epoch, after a planned switch; its producers go on (T22).
        """
        shards = await self._replay_all(group, leader_epoch, region_epoch)
        carried_out = sum(len(shard.view.prepared()) for shard in shards)
        own_round = round_of(leader_epoch, 0)
        for shard in shards:
            shard.step(ev.MarkersDeferred(deferred=True))  # until all is adopted
            if own_round > shard.view.round:
                shard.step(ev.EnterRound(own_round))
            else:
                shard.ledger.put_round(shard.view.round)
            if drained is not None:
                shard.step(ev.PairsInherited(drained))
        aborted, orphans, waiting = await abort_open(
            shards, open_in_partitions, switched=drained is not None
        )
        await _carry_out(shards)
        if waiting:
            # One that has to wait still owes its marker to a partition that has stopped.
            await abort_orphans(shards, waiting, Turns())
            await _carry_out(shards)
        expect_complete(shards)
        for shard in shards:
            shard.step(ev.MarkersDeferred(deferred=False))
        self._shards.serve(shards)
        kept_open = sum(shard.view.ongoing_count for shard in shards)
        return AdoptionReport(carried_out, aborted, orphans, kept_open)

    async def _replay_all(
        self, group: asyncio.TaskGroup, leader_epoch: LeaderEpoch, region_epoch: RegionEpoch
    ) -> list[ShardDriver]:
        ports = ShardPorts(
            ledger=self._ledger,
            markers=MarkerQueue(self._markers),
            clock=self._clock,
            take_ids=self._ids.take,
            group=group,
            hold_limit_ms=self._settings.hold_limit_ms,
        )
        shards = [
            ShardDriver(self._new_core(index, region_epoch), CoordinatorEpoch(leader_epoch), ports)
            for index in range(self._ledger.shard_count)
        ]
        self._shards.begin_loading(shards)
        for shard in shards:
            try:
                await shard.replay()
            except LedgerFailed as error:
                shard.fail(error)
                raise
        return shards

    def _new_core(self, index: int, region_epoch: RegionEpoch) -> TxnCoordinatorCore:
        return TxnCoordinatorCore(
            index,
            region_epoch=region_epoch,
            timeout_max_ms=self._settings.timeout_max_ms,
            id_retention_ms=self._settings.id_retention_ms,
        )


async def _carry_out(shards: Sequence[ShardDriver]) -> None:
    """Make everything that adoption has decided durable, then send its markers until all are confirmed."""
    for shard in shards:
        await shard.settle()
    await _resume(shards)
    for shard in shards:
        await shard.settle()


async def _resume(shards: Sequence[ShardDriver]) -> None:
    """Send the markers of all decided transactions again; orphan aborts behind the others."""
    for orphans in (False, True):
        async with asyncio.TaskGroup() as group:
            for shard in shards:
                group.create_task(shard.resume(orphans=orphans))
