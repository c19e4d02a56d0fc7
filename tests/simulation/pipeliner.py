"""An idempotent producer with five requests in flight, by librdkafka's rules and without its repair.

Value n has sequence n. A request that fails, by an answer or by the end of its connection, stops it until those
behind it are answered or gone ("drain"); then it sends again what was not answered, in order, to either region.
Now and then it gives a connection up, as after a time-out, and what it sent there is still on its way.
A success behind a failure says that the failed one is in the log, too.

It never takes a new epoch: an answer that would make librdkafka do so (and write again what may be in the log) is noted
in `refused_for_good`.

Source: librdkafka rdkafka_request.c, `rd_kafka_handle_Produce_error` and `..._idempotent_Produce_success`.
Not here: what is killed and cut, and the judgement (`test_pipelined`).
"""

import asyncio
import random
from collections import deque

from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerPair
from region_broker.ports.network import Network
from tests.simulation.bank import Regions
from tests.simulation.kafka_client import PRODUCE, Connection, Refused, batch_of, produce_request

VERSION = 9
IN_FLIGHT_MAX = 5
GIVES_UP_SHARE = 0.3
RETRIED = frozenset(
    {
        ErrorCode.not_leader_or_follower,
        ErrorCode.request_timed_out,
        ErrorCode.unknown_topic_or_partition,
        ErrorCode.not_enough_replicas,
        ErrorCode.kafka_storage_error,
    }
)


class Pipeliner:
    """Writes to partition `number` of `topic` until `closed`; `answered[n]`: offset, None if not said."""

    def __init__(self, pair: Regions, topic: str, number: int, chance: random.Random) -> None:
        """Nothing is connected before `run`."""
        self._pair = pair
        self._topic = topic
        self._number = number
        self._chance = chance
        self._network: Network = pair.fabric.site(f"client-{number}")
        self._producer: ProducerPair | None = None
        self._next = 0
        self.answered: list[int | None] = []
        self.refused_for_good: list[str] = []
        self.closed = asyncio.Event()
        self.backoff_s = 0.002
        self.last_error = ""
        """Why it last gave a connection up."""
        self.pace_s = 0.0
        """How long it rests after an answer, on average."""
        self.call_s = 3_600.0
        """How long it waits for an answer before it gives its connection up."""

    @property
    def producer_id(self) -> int:
        """Return its producer id, -1 before it has one."""
        return -1 if self._producer is None else self._producer[0]

    async def run(self) -> None:
        """Write."""
        while not self.closed.is_set() and not self.refused_for_good:
            region = self._chance.choice(list(self._pair.regions.values()))
            connection: Connection | None = None
            try:
                place = (self._topic, self._number)
                connection = await Connection.open(self._network, region.kafka_port, place)
                if self._producer is None:
                    self._producer = await connection.init_producer_id(None)
                await self._write(connection)
            except (OSError, Refused) as error:
                self.last_error = repr(error)
                await asyncio.sleep(self._chance.uniform(0, 2 * self.backoff_s))
            if connection is not None:
                connection.close()

    async def _write(self, connection: Connection) -> None:
        """Write until a failure has been drained, until something moves us elsewhere, or for good."""
        self._next = len(self.answered)
        in_flight: deque[int] = deque()
        stays = self._chance.randrange(5, 400)
        gives_up = self._chance.random() < GIVES_UP_SHARE
        failed = rests = False
        while True:
            ends = failed or self.closed.is_set() or stays <= 0
            # One that rests does so with nothing under way: what it was told counts from when it hears it.
            while not ends and len(in_flight) < IN_FLIGHT_MAX and not rests:
                in_flight.append(self._next)
                self._send(connection, self._next)
                self._next += 1
            rests = self.pace_s > 0
            if not in_flight or (gives_up and stays <= 0):
                return
            stays -= 1
            async with asyncio.timeout(self.call_s):
                answer = await self._answer(connection)
            failed |= not self._took(in_flight.popleft(), answer)
            if rests and not in_flight:
                await asyncio.sleep(self._chance.uniform(0, 2 * IN_FLIGHT_MAX * self.pace_s))
                rests = False

    def _send(self, connection: Connection, sequence: int) -> None:
        assert self._producer is not None
        batch = self.batch_of(sequence, self._producer)
        connection.send(PRODUCE, VERSION, produce_request(self._topic, {self._number: batch}))

    def batch_of(self, sequence: int, producer: ProducerPair) -> bytes:
        """Return the batch of a sequence."""
        return batch_of(self.value_of(sequence), producer, sequence, transactional=False)

    def value_of(self, sequence: int) -> bytes:
        """Return what the record of a sequence says."""
        return b"%d" % sequence

    def note(self, sequence: int, offset: int) -> None:
        """Keep that the record of a sequence is at an offset."""
        assert sequence == len(self.answered)
        self.answered.append(offset)

    async def _answer(self, connection: Connection) -> tuple[ErrorCode, int]:
        answer = await connection.receive(PRODUCE, VERSION)
        (row,) = answer.responses[0].partition_responses
        return row.error_code, row.base_offset

    def _took(self, sequence: int, answer: tuple[ErrorCode, int]) -> bool:
        """Note an answer; return whether it was a success."""
        error, offset = answer
        if error is ErrorCode.none:
            # Those before it that failed are in the log as well, or this one could not be.
            self.answered += [None] * (sequence - len(self.answered))
            if sequence == len(self.answered):
                self.note(sequence, offset)
            return True
        if error not in RETRIED:
            self.refused_for_good.append(f"{self._number}/{sequence}: {error.name}")
        return False
