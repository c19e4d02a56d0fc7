"""Tellers over the wire of a simulated pair: each transfer is one transaction over two account partitions."""

import asyncio
import random
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from chaos.history import Attempt, Outcome, record_value
from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID
from idempotency.java_hash import ledger_shard
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from tests.simulation.kafka_client import Connection, Refused, batch_of, patiently
from tests.simulation.network import Fabric
from tests.simulation.region_pair import SHARD_COUNT, Region

TOPIC = "accounts"
ACCOUNTS = 4
REGION_ORDINAL_SHIFT = 60


class Regions(Protocol):
    """What tellers can talk to: a pair of regions, or some of more."""

    @property
    def fabric(self) -> Fabric:
        """What is between them."""
        ...

    @property
    def regions(self) -> Mapping[str, Region]:
        """Those that are talked to, by name."""
        ...


@dataclass
class Bank:
    """What all tellers did. `edges`: attempt -> (shard, ledger end before its commit was asked, and after)."""

    pair: Regions
    attempts: list[Attempt] = field(default_factory=list)
    edges: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    closed: asyncio.Event = field(default_factory=asyncio.Event)
    switched: bool = False
    """Whether a planned switch has ended: producer ids of the region before go on in its term (T22)."""

    def committed(self, term: int) -> int:
        """Return how many commits of a term were answered."""
        return sum(a.outcome is Outcome.COMMITTED and a.term == term for a in self.attempts)

    def note(self, attempt: Attempt) -> None:
        """Keep a try that has ended."""
        self.attempts.append(attempt)

    def ledger_end(self, shard: int) -> int:
        """Return where the primary's ledger shard ends now; -1 once the primary is dead."""
        partition = self.pair.regions["eu"].node.storage.partitions.get(TRANSACTION_LEDGER, shard)
        return -1 if partition is None else partition.log_end_offset


class Teller:
    """One transactional id; goes on through every failure, from a new producer id."""

    def __init__(self, bank: Bank, name: str, chance: random.Random) -> None:
        """Talk TV1 or TV2, by chance."""
        self._bank, self._name, self._chance = bank, name, chance
        self._network = bank.pair.fabric.site(f"client-{name}")
        self._tv2 = chance.random() < 0.5
        self._number = 0
        self._shard = ledger_shard(name, SHARD_COUNT)
        self._connection: Connection | None = None
        self._producer = (NO_PRODUCER_ID, NO_PRODUCER_EPOCH)
        self._sequences: dict[int, int] = {}
        self.backoff_s = 0.003
        self.last_error = ""
        self.think_s = 0.0
        """How long it rests after a transfer, on average."""
        self.call_s = 3_600.0
        """How long a transfer may take before it gives its connection up."""

    async def run(self) -> None:
        """Transfer until the bank closes; then leave nothing open."""
        while not self._bank.closed.is_set():
            if self._connection is None and not await self._begin_anew():
                await asyncio.sleep(self.backoff_s)
            elif self._connection is not None:
                await self._transfer(self._connection)
                if self.think_s:
                    await asyncio.sleep(self._chance.uniform(0, 2 * self.think_s))
                if self._chance.random() < 0.1:
                    self._leave()
        while self._connection is None:
            if not await self._begin_anew():
                await asyncio.sleep(self.backoff_s)

    async def _begin_anew(self) -> bool:
        """Connect anywhere and obtain a producer id, which ends what was open."""
        region = self._chance.choice(list(self._bank.pair.regions.values()))
        try:
            async with asyncio.timeout(5):
                connection = await Connection.open(self._network, region.kafka_port)
                self._producer = await connection.init_producer_id(self._name)
        except (OSError, Refused) as error:
            self.last_error = repr(error)
            return False
        self._sequences.clear()
        self._connection = connection
        return True

    def _leave(self) -> None:
        """Go elsewhere, as a restarted instance does."""
        if self._connection is not None:
            self._connection.close()
        self._connection = None

    async def _transfer(self, connection: Connection) -> None:
        self._number += 1
        source, target = self._chance.sample(range(ACCOUNTS), 2)
        amount = self._chance.randrange(1, 100)
        name = f"{self._name}.{self._number}"
        term = 1 if self._bank.switched else self._producer[0] >> REGION_ORDINAL_SHIFT
        outcome = Outcome.NOT_COMMITTED
        try:
            async with asyncio.timeout(self.call_s):
                await self._write(connection, name, {source: -amount, target: amount})
                if self._chance.random() < 0.2:
                    await self._end(connection, commit=False)
                else:
                    outcome = Outcome.UNKNOWN
                    await self._commit(connection, name, term)
                    outcome = Outcome.COMMITTED
        except (OSError, Refused) as error:
            self.last_error = repr(error)
            self._leave()
        finally:
            self._bank.note(
                Attempt(self._name, self._number, term, source, target, amount, outcome)
            )

    async def _commit(self, connection: Connection, name: str, term: int) -> None:
        before = self._bank.ledger_end(self._shard)
        await self._end(connection, commit=True)
        if term == 0:
            after = self._bank.ledger_end(self._shard)
            self._bank.edges[name] = (self._shard, before, after)

    async def _write(self, connection: Connection, name: str, changes: dict[int, int]) -> None:
        if not self._tv2:
            await self._add(connection, list(changes))
        batches = {}
        for number, change in changes.items():
            sequence = self._sequences.get(number, 0)
            self._sequences[number] = sequence + 1
            batches[number] = batch_of(
                record_value(name, change), self._producer, sequence, transactional=True
            )
        groups = [batches] if self._chance.random() < 0.5 else [{n: b} for n, b in batches.items()]
        for group in groups:
            await self._produce(connection, group)

    async def _add(self, connection: Connection, partitions: list[int]) -> None:
        await patiently(
            lambda: connection.add_partitions(self._name, self._producer, TOPIC, partitions)
        )

    async def _produce(self, connection: Connection, batches: dict[int, bytes]) -> None:
        await patiently(
            lambda: connection.produce(TOPIC, batches, transactional_id=self._name, tv2=self._tv2)
        )

    async def _end(self, connection: Connection, *, commit: bool) -> None:
        producer = await connection.end_txn(
            self._name, self._producer, commit=commit, tv2=self._tv2
        )
        if producer != self._producer:
            self._producer = producer
            self._sequences.clear()
