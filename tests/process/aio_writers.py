"""Writers of aiokafka that work through kills of the node: one idempotent, one transactional; and what they must find.

Each transaction writes its number to both partitions of a topic. What the client was told is kept: a commit that was
answered is there, whole and once; one without an answer is there whole, or not at all; nothing else is.
"""

import asyncio
import logging
import threading
from collections import Counter
from collections.abc import Mapping, Sequence

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from tests.process.stream import PARTITIONS, Streamed

STREAM_TOPIC = "aio-stream"
PAIRS_TOPIC = "aio-pairs"
BATCHES_AHEAD = 20
CALL_S = 40
PAUSE_S = 0.1


class AioWriters(threading.Thread):
    """Both writers on an event loop of their own, until stopped."""

    def __init__(self, brokers: str) -> None:
        """Nothing is connected before `start`."""
        super().__init__(name="aio-writers", daemon=True)
        self.streamed = Streamed()
        self.attempts: dict[int, bool] = {}
        """number of a transaction -> whether its commit was answered."""
        self._brokers = brokers
        self._stopping = threading.Event()

    def committed(self) -> int:
        """Return how many transactions were answered."""
        return sum(self.attempts.values())

    def await_more(self, count: int, timeout_s: float) -> None:
        """Return once `count` more records were answered."""
        self.streamed.await_more(count, timeout_s)

    def stop(self) -> None:
        """End both when what they wrote is answered; raises what ended one of them before."""
        self._stopping.set()
        self.join(120)
        assert not self.is_alive(), "aiokafka hangs"

    def run(self) -> None:
        """Write."""
        logging.getLogger("aiokafka").setLevel(logging.CRITICAL)  # the node is away now and then
        try:
            asyncio.run(self._write())
        except BaseException as error:
            self.streamed.give_up(f"the writers ended: {error!r}")
            raise

    async def _write(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._stream())
            tasks.create_task(self._pairs())

    async def _stream(self) -> None:
        producer = AIOKafkaProducer(
            bootstrap_servers=self._brokers, enable_idempotence=True, linger_ms=1,
            request_timeout_ms=1000 * CALL_S,
        )  # fmt: skip
        await producer.start()
        try:
            number = 0
            while not self._stopping.is_set():
                sent = []
                for _ in range(BATCHES_AHEAD):
                    for partition in range(PARTITIONS):
                        wait = await producer.send(
                            STREAM_TOPIC, b"%d" % number, partition=partition
                        )
                        sent.append((partition, number, wait))
                    number += 1
                for partition, written, wait in sent:
                    self.streamed.note(partition, written, (await wait).offset)
        except KafkaError as error:
            self.streamed.give_up(f"aiokafka: {error!r}")
        finally:
            await producer.stop()

    async def _pairs(self) -> None:
        number = 0
        while not self._stopping.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self._brokers, transactional_id="aio-pairs",
                request_timeout_ms=1000 * CALL_S,
            )  # fmt: skip
            try:
                await producer.start()
                while not self._stopping.is_set():
                    number += 1
                    await self._transaction(producer, number)
            except (KafkaError, OSError):
                await asyncio.sleep(PAUSE_S)  # the next one has a new epoch, and fences this one
            finally:
                await producer.stop()

    async def _transaction(self, producer: AIOKafkaProducer, number: int) -> None:
        self.attempts[number] = False
        await producer.begin_transaction()
        for partition in range(PARTITIONS):
            wait = await producer.send(PAIRS_TOPIC, b"%d" % number, partition=partition)
            await wait
        await producer.commit_transaction()
        self.attempts[number] = True


def check_pairs(
    attempts: Mapping[int, bool], read: Mapping[int, Sequence[tuple[int, int]]]
) -> list[str]:
    """Return what is wrong; `read`: partition -> (offset, number) in offset order, read-committed."""
    found = []
    there = [Counter(number for _, number in records) for records in read.values()]
    for partition, counts in enumerate(there):
        found += [f"twice: {partition}/{n}" for n, count in counts.items() if count > 1]
        found += [f"never written: {partition}/{n}" for n in counts if n not in attempts]
    for number, answered in attempts.items():
        parts = sum(number in counts for counts in there)
        if parts not in (0, len(there)):
            found.append(f"torn: {number}")
        if answered and parts == 0:
            found.append(f"lost: {number}")
    return found
