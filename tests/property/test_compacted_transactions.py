"""ADR 25: a transaction ledger replays to the same coordinator after it was compacted, wherever a takeover cuts it.

The records are those of a real coordinator over ports in memory, driven at random: clients, time-outs, markers that
are late, rounds, restarts, ids that expire. They are copied into a log on a simulated disk, which is cleaned again and
again below some L that was reached, killed, and cut at every later L. Images of it are made at random moments, and loads
from them come to the same, too (ADR 28).
"""

import asyncio
import random
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import pytest

from idempotency import ledger_records as lr
from idempotency.decision import round_of
from idempotency.identity import ProducerPair
from region_broker.controller.metadata_image import LEDGER_CONFIGS, TRANSACTION_LEDGER
from region_broker.ledgers.images import LedgerImages
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.partitions.partition import Partition
from tests.fixtures.coordinator import LEADER_EPOCH, REGION_EPOCH, MemoryLedger, Row, tp
from tests.fixtures.coordinator_driver import Fixture, running, turns
from tests.fixtures.node_logs import Fixture as LogFixture
from tests.fixtures.node_logs import InstantClock, at_once, fixture
from tests.simulation.disk import Crashed
from tests.unit.region_broker.log.test_cleaning import clean
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.driver import TransactionCoordinator

CONFIGS = dict(LEDGER_CONFIGS[TRANSACTION_LEDGER]) | {
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "1000",
}
NAMES = tuple(f"producer-{number}-{'x' * 120}" for number in range(4))
STEPS = 300
DAY_MS = 86_400_000


class Clients:
    """Drives a coordinator at random, through several of its lives."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.fixture = Fixture(ledger=MemoryLedger(1))
        self.pairs: dict[str, ProducerPair] = {}
        self.round = 0

    async def run(self) -> list[Row]:
        for _ in range(3):
            async with running(self.fixture) as txn:
                for _ in range(STEPS // 3):
                    await self._step(txn)
                self.fixture.markers.gate.set()
                await turns()
        return self.fixture.ledger.rows[0]

    async def _step(self, txn: TransactionCoordinator) -> None:
        name = self.chance.choice(NAMES)
        match self.chance.randrange(9):
            case 0 | 1:
                asked = asyncio.get_running_loop().create_task(
                    txn.clients.init_producer_id(name, 60_000)
                )
                await turns()
                if asked.done():
                    given = asked.result()
                    self.pairs[name] = (given.producer_id, given.producer_epoch)
                asked.cancel()
            case 2 | 3 if name in self.pairs:
                parts = [tp("orders", self.chance.randrange(3))]
                await self._ask(
                    txn.clients.add_partitions(name, *self.pairs[name], parts, implicit=False)
                )
            case 4 | 5 if name in self.pairs:
                commit = self.chance.random() < 0.6
                await self._ask(txn.clients.end_txn(name, *self.pairs[name], commit, 1))
            case 6:
                self.round += 1
                entered = round_of(LEADER_EPOCH, self.round)
                await self._ask(txn.rounds.enter_round(entered))
                if self.chance.random() < 0.8:
                    txn.rounds.release(entered)
            case 7:
                gate = self.fixture.markers.gate
                gate.clear() if gate.is_set() else gate.set()
            case _:
                self.fixture.clock.advance(self.chance.choice([100, 70_000, 8 * DAY_MS]))
        await turns()

    async def _ask(self, question: Any) -> None:
        asked = asyncio.get_running_loop().create_task(question)
        await turns()
        asked.cancel()


@dataclass
class Ledger:
    """The log that the rows are copied into."""

    chance: random.Random
    some: LogFixture = field(default_factory=lambda: fixture(CONFIGS))
    bound: int = 0
    cleanings: int = 0
    from_images: int = 0

    def __post_init__(self) -> None:
        self.images = LedgerImages(
            self, self.some.disk, InstantClock(), offload=at_once, step_bytes=1_500
        )

    def get(self, _name: str, _number: int) -> Partition:
        """Stand for the table of partitions."""
        return self.some.partition

    async def take(self, rows: list[Row]) -> None:
        log = PartitionTransactionLog(self, self.some.clock, 1)
        for position, key, value in rows:
            appended = log.append(0, [(key, value)])
            assert appended.offset == position.offset
            if self.chance.random() < 0.1:
                self.some.clock.pass_ms(700)
            if self.chance.random() < 0.1:
                self._clean(rows, position.offset)
            if self.chance.random() < 0.1:
                self.some.sync()
                await self.images.renew(0)
            if self.chance.random() < 0.1:
                await self._load(rows, position.offset + 1)

    async def _load(self, rows: list[Row], end: int) -> None:
        """Load as a start does, from an image if there is one that counts."""
        self.some.sync()
        log = PartitionTransactionLog(self, self.some.clock, 1, self.images)
        self.from_images += await self.images.newest(self.some.partition) is not None
        loaded = replay(list(await log.load(0)), end, log.whole_from(0))
        assert facts(loaded) == facts(replay(rows, end)), end

    def _clean(self, rows: list[Row], end: int) -> None:
        """Clean below an L that every mirror has reached; such an L never goes down."""
        reached = [offset for offset in cuts_of(rows) if self.bound <= offset <= end]
        if not reached:
            return
        self.bound = self.chance.choice(reached)
        self.some.sync()
        if self.chance.random() < 0.3:
            self.some.disk.crash_after(self.chance.randrange(1, 60))
            with suppress(Crashed):
                clean(self.some, bound=self.bound)
            self.some.disk.power_loss(random.Random(self.chance.random()))
            self.some.open()
            assert self.some.partition.failed is None
        else:
            self.cleanings += clean(self.some, bound=self.bound)

    def replayed(self, below: int) -> TxnCoordinatorCore:
        self.some.sync()
        log = PartitionTransactionLog(self, self.some.clock, 1)
        return replay(list(log.replay(0)), below, log.whole_from(0))


def cuts_of(rows: list[Row]) -> list[int]:
    """Return where tidemarks may cut the ledger: L is the offset of a ROUND."""
    return [p.offset for p, key, value in rows if key == lr.encode_round_key() and value]


def replay(rows: list[Row], below: int, whole_from: int = 0) -> TxnCoordinatorCore:
    state = TxnCoordinatorCore(0, region_epoch=REGION_EPOCH)
    state.replay_whole_from(whole_from)
    for position, key, value in rows:
        if position.offset < below:
            state.replay(position, key, value)
    return state


def facts(state: TxnCoordinatorCore) -> Mapping[str, Any]:
    """Return all that a coordinator goes on from; of decisions, what markers will carry but the leader epoch.

    Where the present round began is known only of rounds that are not below the bound: no tidemark asks for others.
    """
    return {
        "entries": {
            name: (entry.record, entry.decision and (entry.decision.offset, entry.decision.stamp))
            for name, entry in state._table.entries.items()
        },
        "producers": state._table._by_producer_id,
        "ongoing": set(state._table._ongoing),
        "round": state.view.round,
    }


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(30))
async def test_B5_a_compacted_transaction_ledger_replays_to_the_same_coordinator(seed: int) -> None:
    chance = random.Random(seed)
    rows = await Clients(chance).run()
    ledger = Ledger(chance)
    await ledger.take(rows)
    end = len(rows)
    for cut in [*(offset for offset in cuts_of(rows) if offset >= ledger.bound), end]:
        assert facts(ledger.replayed(cut)) == facts(replay(rows, cut)), cut
    ledger.some.kill_and_reopen()
    assert facts(ledger.replayed(end)) == facts(replay(rows, end))
    assert ledger.cleanings > 0
    assert ledger.from_images > 0
    assert ledger.some.partition.log.cleaning.holes_below > 0
