"""Consume, process, produce: what one partition holds goes once into another topic, with the offset in the same transaction.

INV-SWP1  at the end the output is exactly what the input holds below the committed offset, in order
A committed offset is never beyond what the region shows that is asked for it: a consumer would begin anew.

TV1, as the clients that have it do; a new producer id after each failure, which ends what was open.
"""

import asyncio
import random
from typing import Any, Final

from idempotency.identity import ProducerPair
from tests.simulation.bank import Regions
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of

OUTPUT_TOPIC: Final = "processed"
ADD_OFFSETS: Final = 25
TXN_OFFSET_COMMIT: Final = 28
OFFSET_FETCH: Final = 9
ABORT_SHARE: Final = 0.1
TAKEN_MAX: Final = 10


class Processor:
    """Works on partition `number` of a topic, through one region."""

    def __init__(
        self, reach: Regions, name: str, topic: str, number: int, chance: random.Random
    ) -> None:
        """Nothing is connected before `run`."""
        self.name, self.topic, self.number = name, topic, number
        self.group = f"group-{name}"
        self.closed = asyncio.Event()
        self.committed = 0
        self.last_error = ""
        self.beyond: list[str] = []
        self.rest_s, self.call_s = 0.3, 30.0
        self._network = reach.fabric.site(f"processor-{name}")
        [self._region] = reach.regions.values()
        self._chance = chance

    async def run(self) -> None:
        """Work until closed."""
        while not self.closed.is_set():
            connection: Connection | None = None
            try:
                async with asyncio.timeout(self.call_s):
                    connection = await Connection.open(self._network, self._region.kafka_port)
                    producer = await connection.init_producer_id(self.group)
                await self._work(connection, producer)
            except (OSError, Refused) as error:
                self.last_error = repr(error)
            if connection is not None:
                connection.close()
            await asyncio.sleep(self._chance.uniform(0, 2 * self.rest_s))

    async def _work(self, connection: Connection, producer: ProducerPair) -> None:
        sequence = 0
        while not self.closed.is_set():
            async with asyncio.timeout(self.call_s):
                position = await committed_offset(connection, self.group, self.topic, self.number)
                sequence = await self._transaction(connection, producer, sequence, max(position, 0))
            await asyncio.sleep(self._chance.uniform(0, 2 * self.rest_s))

    async def _transaction(
        self, connection: Connection, producer: ProducerPair, sequence: int, position: int
    ) -> int:
        """Process what there is from `position` on; return the next sequence."""
        reader = Reader(self.topic, self.number + 1, committed=True)
        reader.positions = {self.number: position}
        try:
            await reader.read(connection)
        except Refused as refused:
            if refused.code.name == "offset_out_of_range":
                self.beyond.append(f"{self.topic}-{self.number} at {position}")
            raise
        if not reader.records:
            return sequence
        await self._begin(connection, producer)
        taken = reader.records[:TAKEN_MAX]
        whole = len(taken) == len(reader.records)
        for *_, value in taken:
            batch = batch_of(b"done " + value, producer, sequence, transactional=True)
            await connection.produce(
                OUTPUT_TOPIC, {self.number: batch}, transactional_id=self.group
            )
            sequence += 1
        after = reader.positions[self.number] if whole else taken[-1][1] + 1
        await self._stage(connection, producer, after)
        commit = self._chance.random() >= ABORT_SHARE
        await connection.end_txn(self.group, producer, commit=commit, tv2=False)
        self.committed += commit
        return sequence

    async def _begin(self, connection: Connection, producer: ProducerPair) -> None:
        for _ in range(40):  # the transaction before it may still be ending
            try:
                await connection.add_partitions(self.group, producer, OUTPUT_TOPIC, [self.number])
            except Refused as refused:
                if refused.code.name != "concurrent_transactions":
                    raise
                await asyncio.sleep(0.05)
            else:
                break
        answer = await connection.call(ADD_OFFSETS, 3, self._who(producer))
        if answer.error_code.value:
            raise Refused("AddOffsetsToTxn", answer.error_code)

    async def _stage(self, connection: Connection, producer: ProducerPair, position: int) -> None:
        row = {"partition_index": self.number, "committed_offset": position,
               "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip
        answer = await connection.call(
            TXN_OFFSET_COMMIT, 3,
            {**self._who(producer), "generation_id": -1, "member_id": "", "group_instance_id": None,
             "topics": [{"name": self.topic, "partitions": [row]}]},
        )  # fmt: skip
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code.value:
                    raise Refused("TxnOffsetCommit", part.error_code)

    def _who(self, producer: ProducerPair) -> dict[str, Any]:
        return {"transactional_id": self.group, "producer_id": producer[0],
                "producer_epoch": producer[1], "group_id": self.group}  # fmt: skip


async def committed_offset(connection: Connection, group: str, topic: str, number: int) -> int:
    """Return the stable committed offset, -1 where there is none; raises `Refused`."""
    answer = await connection.call(
        OFFSET_FETCH, 7,
        {"group_id": group, "topics": [{"name": topic, "partition_indexes": (number,)}],
         "require_stable": True},
    )  # fmt: skip
    if answer.error_code.value:
        raise Refused("OffsetFetch", answer.error_code)
    [part] = [part for each in answer.topics for part in each.partitions]
    if part.error_code.value:
        raise Refused("OffsetFetch", part.error_code)
    offset: int = part.committed_offset
    return offset
