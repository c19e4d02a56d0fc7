"""A read-committed consumer for asyncio, with confluent-kafka underneath.

INV-C4  only records of committed transactions (and plain ones) are handed out, in offset order per partition
INV-C5  the position moves only past what was handed out; it is committed by `commit`, or with a transaction

Bootstrap over several regions: reads are served by whichever region answers, up to the tidemark it reached.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Self

from confluent_kafka import Consumer, KafkaException, Message, TopicPartition

from region_broker.client.errors import Refused, Unreachable, kafka_error

_POLL_TIMEOUT_S = 0.5


class ReadCommittedConsumer:
    """Use as ``async with ReadCommittedConsumer(...) as consumer`` and iterate, or call `poll`.

    Commits nothing by itself: `commit`, or `Transaction.send_offsets`.
    """

    def __init__(
        self, topics: Sequence[str], *, bootstrap: str | Sequence[str], group_id: str,
        from_beginning: bool = True, config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        self._topics = list(topics)
        self._config = {
            "bootstrap.servers": bootstrap if isinstance(bootstrap, str) else ",".join(bootstrap),
            "group.id": group_id,
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest" if from_beginning else "latest",
            "log_level": 2,
            **(config or {}),
        }
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=f"consumer-{group_id}")
        self._kafka: Consumer | None = None

    async def __aenter__(self) -> Self:
        """Join the group."""
        await self.start()
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        """Leave the group."""
        await self.close()

    async def start(self) -> None:
        """Subscribe; partitions arrive with the first polls."""
        self._kafka = Consumer(self._config)
        self._kafka.subscribe(self._topics)

    async def close(self) -> None:
        """Leave the group and close."""
        if self._kafka is not None:
            await asyncio.get_running_loop().run_in_executor(self._thread, self._kafka.close)
            self._kafka = None
        self._thread.shutdown(wait=False)

    async def poll(self, timeout_s: float = _POLL_TIMEOUT_S) -> Message | None:
        """Return the next record, or None when none came in time.

        Raises `Refused` on an error that reading on will not mend (unknown topic, no authority).
        """
        kafka = self._joined()
        message = await asyncio.get_running_loop().run_in_executor(
            self._thread, kafka.poll, timeout_s
        )
        if message is None:
            return None
        error = message.error()
        if error is None:
            return message
        if error.retriable() or not error.fatal():
            return None
        raise Refused(f"reading {self._topics} failed: {error.str()}", code=error.name())

    async def __aiter__(self) -> AsyncIterator[Message]:
        """Yield records for ever."""
        while True:
            message = await self.poll()
            if message is not None:
                yield message

    async def commit(self) -> None:
        """Commit the position; raises `Unreachable` if no coordinator answered."""
        kafka = self._joined()
        try:
            await asyncio.get_running_loop().run_in_executor(
                self._thread, lambda: kafka.commit(asynchronous=False)
            )
        except KafkaException as error:
            inner = kafka_error(error)
            raise Unreachable(
                f"the position was not committed: {inner.str()}", code=inner.name()
            ) from error

    def position(self) -> list[TopicPartition]:
        """Return the offsets after what was handed out, of the partitions read from."""
        kafka = self._joined()
        return [each for each in kafka.position(kafka.assignment()) if each.offset >= 0]

    def group_metadata(self) -> object:
        """Return the membership that a transaction's offsets are fenced by (KIP-447)."""
        return self._joined().consumer_group_metadata()

    async def rewind(self) -> None:
        """Go back to the committed position: after an aborted transaction."""
        kafka = self._joined()

        def seek() -> None:
            for each in kafka.committed(kafka.assignment(), timeout=10):
                kafka.seek(each)

        await asyncio.get_running_loop().run_in_executor(self._thread, seek)

    def _joined(self) -> Consumer:
        if self._kafka is None:
            raise Unreachable("the consumer was not started: use `async with` or call start()")
        return self._kafka
