"""Plain idempotent producers by the Java client's rules, one request in flight (`max.in.flight.requests.per.connection=1`).

A batch that is not answered within its delivery time is given up: it may be in the log, and is not sent again. Behind
it the producer takes the next epoch by itself, without asking anybody, and numbers from 0 (KIP-360); so it does where
its sequence is refused, and sends that batch again: what has a gap before it is not in the log. Any other refusal ends
the producer (InvalidProducerEpoch, UnknownProducerId after a failover that lost it): the next one has a new producer
id.

Source: TransactionManager.java (`bumpIdempotentProducerEpoch`, `handleFailedBatch`, `canRetry`) and Sender.java of Kafka 4.
librdkafka's rules, with five in flight, are `pipeliner`'s: it asks InitProducerId for its next epoch, and drains before.
"""

import asyncio
from collections.abc import Mapping
from typing import Final

from kio.schema.errors import ErrorCode
from typing_extensions import override

from chaos.judges.numbered import NumberedHistory, judge_numbered
from chaos.story import Place, Sighting
from idempotency.identity import ProducerEpoch, ProducerPair
from tests.simulation.kafka_client import PRODUCE, Connection, Refused, batch_of, produce_request
from tests.simulation.pipeliner import RETRIED, VERSION
from tests.simulation.swarm.workloads.setting import End, Load, Setting, TopicPlan, Visitor, now_s

TOPIC: Final = "java"
DELIVERY_S: Final = 4.0
REQUEST_S: Final = 2.0


class JavaProducer(Visitor):
    """Writes rising numbers into a partition of its own."""

    def __init__(self, setting: Setting, name: str, partition: int) -> None:
        """Talk to one region."""
        super().__init__(setting.reach.only(name), f"java-{name}", setting.drawn())
        self.rest_s = setting.pace_s
        self.acked: list[Sighting] = []
        self.written, self.bumps, self.lives = 0, 0, 0
        self._partition = partition
        self._producer: ProducerPair | None = None
        self._sequence, self._since_s = 0, 0.0

    @override
    async def step(self, connection: Connection) -> None:
        if self._producer is None:
            self._producer = await connection.init_producer_id(None)
            self._sequence, self._since_s = 0, now_s()
            self.written += 1
            self.lives += 1
        if now_s() - self._since_s > DELIVERY_S:
            self._bump()
            self._next()
        value = self._value()
        batch = batch_of(value.encode(), self._producer, self._sequence, transactional=False)
        async with asyncio.timeout(REQUEST_S):
            answer = await connection.call(
                PRODUCE, VERSION, produce_request(TOPIC, {self._partition: batch})
            )
        [row] = answer.responses[0].partition_responses
        if row.error_code is ErrorCode.none:
            place = Place(TOPIC, self._partition, row.base_offset, value)
            self.acked.append(Sighting(now_s(), self.region, place, False))
            self._sequence += 1
            self._next()
        elif row.error_code is ErrorCode.out_of_order_sequence_number:
            self._bump()
        elif row.error_code not in RETRIED:
            self._producer = None
            raise Refused("Produce", row.error_code)

    def _value(self) -> str:
        return f"{self.name} {self.written}"

    def _next(self) -> None:
        self.written += 1
        self._since_s = now_s()

    def _bump(self) -> None:
        assert self._producer is not None
        self._producer = self._producer[0], ProducerEpoch(self._producer[1] + 1)
        self._sequence = 0
        self.bumps += 1


class JavaLoad(Load):
    """A producer at each region."""

    def __init__(self, setting: Setting) -> None:
        """Nothing runs before `start`."""
        names = list(setting.reach.regions)
        super().__init__(TopicPlan(name=TOPIC, partitions=len(names)))
        self._producers = [JavaProducer(setting, name, number) for number, name in enumerate(names)]
        self.clients += self._producers

    def progress(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {each.name: len(each.acked) for each in self._producers}

    def last_errors(self) -> Mapping[str, str]:
        """See `Workload`."""
        return {each.name: each.last_error for each in self._producers}

    def counts(self) -> Mapping[str, int]:
        """See `Workload`."""
        return {
            "epochs taken": sum(each.bumps for each in self._producers),
            "producers": sum(each.lives for each in self._producers),
        }

    async def violations(self, end: End) -> list[str]:
        """See `Workload`."""
        final = {
            name: await end.places(name, TOPIC, len(self._producers)) for name in end.reach.regions
        }
        acked = [said for each in self._producers for said in each.acked]
        return judge_numbered(NumberedHistory(acked, final), end.excuse)
