"""Transactions by the Java client's rules, with up to five requests in flight, TV1 or TV2 by chance.

Commit is asked for once all is acknowledged; where a batch failed or was given up, the transaction is aborted once no
batch that has a sequence is open. An EndTxn that is not answered is sent again, unchanged. TV1 takes its next epoch
from the coordinator behind an abort that a failed batch asked for; TV2 gets it with each EndTxn. What is fatal to the
Java client ends the producer, and the application opens another one with the same transactional id.

Source: TransactionManager.java (`EndTxnHandler`, `InitProducerIdHandler`, `completeTransaction`) of Kafka 4.
"""

import asyncio
import random
from typing import Final

from kio.schema.errors import ErrorCode
from typing_extensions import override

from chaos.history import Outcome
from chaos.judges.pipelined import Transaction
from idempotency.identity import ProducerPair
from tests.simulation.kafka_client import INIT, Connection, Refused, patiently
from tests.simulation.swarm.workloads.java_producer import (
    BACKOFF_S,
    REQUEST_S,
    TOPIC,
    VERSION,
    JavaProducer,
)
from tests.simulation.swarm.workloads.java_rules import RETRIED, Batch, JavaRules
from tests.simulation.swarm.workloads.setting import Reach, now_s

TV2_VERSION: Final = 12
ABORT_SHARE: Final = 0.15


class JavaTransactions(JavaProducer):
    """Writes rising numbers, some batches in each transaction."""

    def __init__(
        self, reach: Reach, name: str, chance: random.Random, rest_s: float, in_flight_max: int
    ) -> None:
        """Talk to the one region of `reach`."""
        super().__init__(reach, name, chance, rest_s, in_flight_max)
        self.transactional_id = name
        self.rules = JavaRules(transactional=True)
        self._tv2 = chance.random() < 0.5
        self.version = TV2_VERSION if self._tv2 else VERSION
        self._batches: list[Batch] = []
        """What the open transaction writes."""
        self._values: list[tuple[int, tuple[str, ...], int]] = []
        """What of it was acknowledged."""
        self._is_added = self._commits = self._was_asked = self._wants_epoch = False
        """Whether its partitions are added (TV1); whether it is to be committed, and that was asked for; whether the
        next one needs another epoch (TV1)."""

    @override
    def writer_of(self, batch: Batch) -> str:
        return self.name

    @override
    def note_sent(self, batch: Batch) -> None:
        """Note nothing: of what is aborted no reader is shown which sequences it had."""

    @override
    def note(self, partition: int, values: tuple[str, ...], offset: int, at_s: float) -> None:
        self._values.append((partition, values, offset))

    @override
    async def step(self, connection: Connection) -> None:
        try:
            await self._go_on(connection)
        except Refused as refused:
            if refused.code not in RETRIED:
                self._leave()
                self.rules, self._wants_epoch = JavaRules(transactional=True), False
            raise

    async def _go_on(self, connection: Connection) -> None:
        if self.rules.producer is None:
            async with asyncio.timeout(REQUEST_S):
                self.rules.begin(await connection.init_producer_id(self.name))
        if self._wants_epoch:
            async with asyncio.timeout(REQUEST_S):
                self.rules.begin(await self._next_epoch(connection))
            self._wants_epoch = False
        if not self._batches:
            self._commits = self.chance.random() >= ABORT_SHARE
            for _ in range(self.chance.randrange(1, 2 * self._in_flight_max + 1)):
                self._batches.append(self.write())
        if not (self._tv2 or self._is_added):
            await self._add(connection)
        # What was given up may still be answered, and not as the answer to what is asked next.
        while self.rules.open or self._wire:
            await self.turn(connection)
            if self.rules.abortable:
                self.rules.drop_unsent()
        await self._finish(connection)

    async def _add(self, connection: Connection) -> None:
        producer = self._producer()
        partitions = sorted({batch.partition for batch in self._batches})
        async with asyncio.timeout(REQUEST_S):
            await patiently(
                lambda: connection.add_partitions(self.name, producer, TOPIC, partitions),
                rest_s=BACKOFF_S,
            )
        self._is_added = True

    async def _finish(self, connection: Connection) -> None:
        is_abort = bool(self.rules.abortable) or not self._commits
        if not is_abort:
            try:
                await self._ask(connection, commit=True)
            except Refused as refused:
                if refused.code is not ErrorCode.transaction_abortable:
                    raise
                self.rules.abortable, is_abort = refused.code.name, True
        if is_abort:
            await self._ask(connection, commit=False)

    async def _ask(self, connection: Connection, *, commit: bool) -> None:
        self._was_asked |= commit
        producer = self._producer()
        async with asyncio.timeout(REQUEST_S):
            after = await patiently(
                lambda: connection.end_txn(self.name, producer, commit=commit, tv2=self._tv2),
                rest_s=BACKOFF_S,
            )
        if commit:
            self._end(Outcome.COMMITTED)
        else:
            self._leave()
            self._wants_epoch = bool(self.rules.abortable) and not self._tv2
        self.rules.begin(after)

    async def _next_epoch(self, connection: Connection) -> ProducerPair:
        producer = self._producer()
        answer = await connection.call(
            INIT, 4,
            {"transactional_id": self.name, "transaction_timeout": 60_000,
             "producer_id": producer[0], "producer_epoch": producer[1]},
        )  # fmt: skip
        if answer.error_code.value:
            raise Refused("InitProducerId", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    def _producer(self) -> ProducerPair:
        assert self.rules.producer is not None
        return self.rules.producer

    def _leave(self) -> None:
        """Note that the open transaction was not committed, as far as is known."""
        self._end(Outcome.UNKNOWN if self._was_asked else Outcome.NOT_COMMITTED)

    def _end(self, outcome: Outcome) -> None:
        """Note how the open transaction ended, if there is one."""
        if outcome is Outcome.COMMITTED:
            for partition, values, offset in self._values:
                super().note(partition, values, offset, now_s())
        if self._batches:
            written = frozenset(
                (batch.partition, f"{self.name} {number}")
                for batch in self._batches
                for number in batch.numbers
            )
            name = f"transaction of {self._batches[0].numbers[0]} by {self.name}"
            self.transactions.append(Transaction(name, outcome, written))
        self._batches, self._values = [], []
        self._is_added = self._was_asked = False

    @override
    async def run(self) -> None:
        """See `Visitor`; leave nothing open that would hold up readers."""
        await super().run()
        await self.fence()
        self._leave()
