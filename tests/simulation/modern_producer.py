"""A transactional producer of the second generation (KIP-890), by the Java client's rules, at a mirror's address.

Each transaction writes one record to each of two partitions, in two requests on one connection, and commits when both
are answered. What may be tried again is sent again, unchanged, over the same connection or, when that ended, over
another one. The pair of the next transaction is what the commit answered; sequences begin anew with it.

An answer that is fatal to the Java client ends it, and is noted in `fatal`.
Source: TransactionManager.java (EndTxnHandler) and Sender.java (canRetry) of Kafka 4.1.
Not here: what is dropped, and the judgement (`test_forwarded_transactions`).
"""

import asyncio
import random

from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerPair
from region_broker.ports.network import Network
from tests.simulation.kafka_client import (
    END,
    PRODUCE,
    Connection,
    Refused,
    batch_of,
    produce_request,
)
from tests.simulation.region_pair import Pair

PRODUCE_VERSION = 12
END_VERSION = 5
RETRIED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.concurrent_transactions,
        ErrorCode.coordinator_not_available,
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.not_coordinator,
    }
)
GIVES_UP_SHARE = 0.1


class ModernProducer:
    """Commits transactions 0, 1, 2, ... as `name`; `committed` of them were answered."""

    def __init__(self, pair: Pair, topic: str, name: str, chance: random.Random) -> None:
        """Nothing is connected before `run`."""
        self._topic, self._name, self._chance = topic, name, chance
        self._network: Network = pair.fabric.site(name)
        self._port = pair.us.kafka_port
        self._connection: Connection | None = None
        self.committed = 0
        self.fatal: list[str] = []

    async def run(self, count: int) -> None:
        """Commit `count` transactions, or end with an entry in `fatal`."""
        producer: ProducerPair | None = None
        while producer is None:
            try:
                producer = await (await self._connected()).init_producer_id(self._name)
            except (OSError, Refused):
                await self._rest()
        while self.committed < count and not self.fatal:
            await self._write(producer)
            producer = await self._commit(producer)
            self.committed += 1

    async def _write(self, producer: ProducerPair) -> None:
        value = b"%d" % self.committed
        open_partitions = [0, 1]
        while open_partitions and not self.fatal:
            try:
                connection = await self._connected()
                for number in open_partitions:
                    batch = batch_of(value, producer, 0, transactional=True)
                    values = produce_request(self._topic, {number: batch}, self._name)
                    connection.send(PRODUCE, PRODUCE_VERSION, values)
                self._maybe_give_up()
                for number in list(open_partitions):
                    answer = await connection.receive(PRODUCE, PRODUCE_VERSION)
                    (row,) = answer.responses[0].partition_responses
                    if self._judged(f"produce {number}", row.error_code):
                        open_partitions.remove(number)
            except OSError:
                await self._lost()

    async def _commit(self, producer: ProducerPair) -> ProducerPair:
        values = {"transactional_id": self._name, "producer_id": producer[0],
                  "producer_epoch": producer[1], "committed": True}  # fmt: skip
        while not self.fatal:
            try:
                connection = await self._connected()
                connection.send(END, END_VERSION, values)
                self._maybe_give_up()
                answer = await connection.receive(END, END_VERSION)
                if self._judged("end", answer.error_code):
                    return answer.producer_id, answer.producer_epoch
                await self._rest()
            except OSError:
                await self._lost()
        return producer

    def _judged(self, what: str, error: ErrorCode) -> bool:
        """Return whether it was a success; note what cannot be tried again."""
        if error is not ErrorCode.none and error not in RETRIED:
            self.fatal.append(f"{self._name}/{self.committed} {what}: {error.name}")
        return error is ErrorCode.none

    def _maybe_give_up(self) -> None:
        """Leave the connection as after a time-out: what was sent on it is still on its way."""
        if self._chance.random() < GIVES_UP_SHARE:
            raise TimeoutError("given up")

    async def _connected(self) -> Connection:
        if self._connection is None:
            self._connection = await Connection.open(self._network, self._port)
        return self._connection

    async def _lost(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
        await self._rest()

    async def _rest(self) -> None:
        await asyncio.sleep(self._chance.uniform(0, 0.004))
