"""A plain producer by the Java client's rules (`java_rules`), with up to five requests in flight on one connection.

A request takes a batch of each partition that may be sent. One that is not answered in time ends its connection, and
all that is in flight there is tried again, while the first copies may still arrive. A batch without an outcome within
its delivery time is given up: it may be in the log.

Records say in which epoch they were sent: what is written anew for another epoch is another value.
"""

import asyncio
import random
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kio.schema.errors import ErrorCode
from typing_extensions import override

from chaos.judges.pipelined import Transaction
from chaos.story import Place, Sighting
from idempotency.identity import SequenceNumber
from region_broker.records.batches import Origin, Record, build_batch
from tests.simulation.kafka_client import PRODUCE, Connection, produce_request
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.swarm.workloads.java_rules import Batch, JavaRules
from tests.simulation.swarm.workloads.setting import Reach, Visitor, earliest, now_s

TOPIC: Final = "java"
PARTITIONS: Final = 3
VERSION: Final = 9
DELIVERY_S: Final = 4.0
REQUEST_S: Final = 2.0
LINGER_S: Final = 1.0
"""How old a batch may be when it is complete (`linger.ms`); so those in flight are not given up all at once."""
BACKOFF_S: Final = 0.1
RECORDS_MAX: Final = 3
NEVER_IN_THE_LOG: Final = frozenset(
    {ErrorCode.out_of_order_sequence_number, ErrorCode.invalid_producer_epoch}
)
"""Refusals of which nobody may say that the batch is in the log."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A batch as it was sent: it may be written anew while that is on its way. `values`: one for each record."""

    batch: Batch
    values: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Request:
    """A request on the wire."""

    sent_s: float
    batches: Mapping[int, Sent]


class JavaProducer(Visitor):
    """Writes rising numbers, plainly, in bursts over all partitions."""

    transactional_id: str | None = None
    version = VERSION

    def __init__(
        self, reach: Reach, name: str, chance: random.Random, rest_s: float, in_flight_max: int
    ) -> None:
        """Talk to the one region of `reach`."""
        super().__init__(reach, name, chance)
        self.rest_s = rest_s
        self.acked: list[Sighting] = []
        self.sent: dict[tuple[int, str], dict[int, int]] = {}
        self.transactions: list[Transaction] = []
        self.rules = JavaRules(transactional=self.transactional_id is not None)
        self._in_flight_max = in_flight_max
        self._wire: deque[Request] = deque()
        self._tries: dict[tuple[int, str], int] = {}
        """How often a value was sent, and not refused for good."""
        self._written = 0
        self._created_s = 0.0

    @property
    def refused(self) -> set[tuple[int, str]]:
        """Return what was refused whenever it was sent."""
        return {key for key, tries in self._tries.items() if not tries}

    @override
    async def step(self, connection: Connection) -> None:
        if self.rules.producer is None:
            await earliest(connection, TOPIC, PARTITIONS)
            self.rules.begin(await connection.init_producer_id(None))
        burst = self.chance.randrange(1, 2 * self._in_flight_max + 1)
        while self.rules.open < burst:
            self.write()
        left = self.chance.randrange(self._in_flight_max)
        while self.rules.open > (0 if self.closed.is_set() else left):
            await self.turn(connection)

    def write(self) -> Batch:
        """Let some records wait for their turn."""
        count = self.chance.randrange(1, RECORDS_MAX + 1)
        numbers = range(self._written, self._written + count)
        self._written += count
        lingers_s = self.chance.uniform(0, LINGER_S)
        self._created_s = max(self._created_s, now_s() - lingers_s)
        batch = Batch(self.chance.randrange(PARTITIONS), numbers, self._created_s)
        self.rules.append(batch)
        return batch

    async def turn(self, connection: Connection) -> None:
        """Send what may be sent, and take one answer; raises OSError where that takes too long."""
        for _ in self.rules.settle(now_s() - DELIVERY_S):
            pass
        while len(self._wire) < self._in_flight_max and (batches := self.rules.drain()):
            self._send(connection, batches)
        if not self._wire:
            return
        async with asyncio.timeout_at(self._wire[0].sent_s + REQUEST_S):
            answer = await connection.receive(PRODUCE, self.version)
        request = self._wire.popleft()
        outcomes = [
            self._took(request.batches[row.index], row.error_code, row.base_offset, request.sent_s)
            for row in answer.responses[0].partition_responses
        ]
        if not self._wire and not all(outcomes):
            await asyncio.sleep(self.chance.uniform(0, 2 * BACKOFF_S))

    def _send(self, connection: Connection, batches: Mapping[int, Batch]) -> None:
        sent = {number: self._as_sent(batch) for number, batch in batches.items()}
        data = {number: self._bytes_of(each) for number, each in sent.items()}
        values = produce_request(TOPIC, data, self.transactional_id)
        connection.send(PRODUCE, self.version, values)
        self._wire.append(Request(now_s(), sent))

    def _as_sent(self, batch: Batch) -> Sent:
        values = tuple(f"{self.writer_of(batch)} {number}" for number in batch.numbers)
        for value in values:
            key = batch.partition, value
            self._tries[key] = self._tries.get(key, 0) + 1
        self.note_sent(batch)
        return Sent(batch, values)

    def note_sent(self, batch: Batch) -> None:
        """Note which sequences its records have."""
        sequences = self.sent.setdefault((batch.partition, self.writer_of(batch)), {})
        sequences |= dict(enumerate(batch.numbers, batch.sequence))

    def _bytes_of(self, sent: Sent) -> bytes:
        assert sent.batch.producer is not None
        time_ms = LoopClock().wall_ms()
        records = [Record(None, value.encode(), timestamp_ms=time_ms) for value in sent.values]
        origin = Origin(
            *sent.batch.producer,
            SequenceNumber(sent.batch.sequence),
            transactional=self.transactional_id is not None,
        )
        return build_batch(records, origin=origin)

    def writer_of(self, batch: Batch) -> str:
        """Return who its records say that wrote them."""
        assert batch.producer is not None
        return f"{self.name}/{batch.producer[0]}/{batch.producer[1]}"

    def _took(self, sent: Sent, error: ErrorCode, offset: int, sent_s: float) -> bool:
        batch = sent.batch
        if error in (ErrorCode.none, ErrorCode.duplicate_sequence_number):
            if self.rules.acknowledge(batch):
                self.note(batch.partition, sent.values, offset, sent_s)
            return True
        self.last_error = error.name
        if error in NEVER_IN_THE_LOG:
            for value in sent.values:
                self._tries[batch.partition, value] -= 1
        self.rules.refuse(batch, error)
        return False

    def note(self, partition: int, values: tuple[str, ...], offset: int, at_s: float) -> None:
        """Note what was acknowledged, as of `at_s`: the answer may have waited for this client since it asked."""
        for index, value in enumerate(values):
            place = Place(TOPIC, partition, offset + index if offset >= 0 else -1, value)
            self.acked.append(Sighting(at_s, self.region, place, False))

    @override
    def gave_up(self) -> None:
        """Try again what was on the wire, first things first."""
        for request in self._wire:
            for sent in request.batches.values():
                self.rules.refuse(sent.batch, ErrorCode.network_exception)
        self._wire.clear()
