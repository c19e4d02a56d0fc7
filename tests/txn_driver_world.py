"""A transaction coordinator over ports in memory: what the tests of its driver share."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from tests.txn_world import REGION_EPOCH, ManualClock, MemoryIds, MemoryLedger, MemoryMarkers, tp
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.settings import TxnSettings
from txn_coordinator.verdicts import TxnVerdict

OK = TxnVerdict.OK


@dataclass
class World:
    """A coordinator and its ports."""

    ledger: MemoryLedger = field(default_factory=MemoryLedger)
    markers: MemoryMarkers = field(default_factory=MemoryMarkers)
    ids: MemoryIds = field(default_factory=MemoryIds)
    clock: ManualClock = field(default_factory=ManualClock)

    def coordinator(self) -> TransactionCoordinator:
        """Return a new coordinator over the same ports."""
        return TransactionCoordinator(
            ledger=self.ledger,
            markers=self.markers,
            id_blocks=self.ids,
            clock=self.clock,
            settings=TxnSettings(hold_limit_ms=500),
        )


@asynccontextmanager
async def running(world: World, *, load: bool = True) -> AsyncIterator[TransactionCoordinator]:
    """Run a coordinator; loaded unless told otherwise."""
    txn = world.coordinator()
    async with asyncio.TaskGroup() as group:
        task = group.create_task(txn.run())
        if load:
            await txn.load(world.ledger.leader_epoch, REGION_EPOCH)
        yield txn
        task.cancel()


async def turns(count: int = 20) -> None:
    """Let the loop run what is ready."""
    for _ in range(count):
        await asyncio.sleep(0)


async def begin(txn: TransactionCoordinator, name: str = "t") -> tuple[int, int]:
    """Initialise a producer and let orders-0 join; return its pair."""
    init = await txn.clients.init_producer_id(name, 60_000)
    assert init.verdict is OK
    verdict = await txn.clients.add_partitions(
        name, init.producer_id, init.producer_epoch, [tp("orders")], implicit=False
    )
    assert verdict is OK
    return init.producer_id, init.producer_epoch
