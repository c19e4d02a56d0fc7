"""Real regions for the client tests, and a proxy between a client and a broker that loses answers.

Metadata must not lead clients past the proxy, so regions listen at another loopback address, same port, than
the one they tell (`listen_host`), and proxies stand at the addresses that are told.
"""

import asyncio
import struct
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka import Consumer, KafkaError, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.secret_scan import save_metrics

CALL_S = 20.0


BEHIND = "127.0.0.2"


@contextmanager
def open_cluster(
    folder: Path, region_count: int, settings: Mapping[str, Any] | None = None
) -> Iterator[LocalCluster]:
    """Yield a cluster on free ports, not started yet."""
    with LocalCluster.open(
        folder, region_count=region_count, port=0, new_cluster_id=UUID(int=7), settings=settings
    ) as cluster:
        yield cluster
        save_metrics(cluster)


def fail_over(cluster: LocalCluster, target: str) -> None:
    """Order a failover as an operator does."""
    _order(cluster, "failover", "--to", target, "--yes")


def switch(cluster: LocalCluster, target: str) -> None:
    """Order a planned switch as an operator does."""
    _order(cluster, "switch", "--to", target)


def _order(cluster: LocalCluster, *order: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "region_broker", "region", *order, "--url", cluster.http],
        capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


def create_topic(bootstrap: str, name: str, partition_count: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(name, partition_count, 1)])[name].result(CALL_S)


def read_all(bootstrap: str, topic: str, *, partition_count: int = 2) -> list[str]:
    """Return every committed value of a topic, by partition and offset."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "reader", "log_level": 0,
         "isolation.level": "read_committed", "enable.auto.commit": False,
         "enable.partition.eof": True}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, number, 0) for number in range(partition_count)])
    ended: set[int] = set()
    found = []
    try:
        while len(ended) < partition_count:
            message = consumer.poll(CALL_S)
            assert message is not None, "the end of the log was not reached in time"
            error, partition, value = message.error(), message.partition(), message.value()
            assert partition is not None
            if error is None:
                assert isinstance(value, bytes)
                found.append((partition, message.offset(), value.decode()))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(partition)
            else:
                raise AssertionError(error)
    finally:
        consumer.close()
    return [value for _, _, value in sorted(found)]


async def _at_once(_api_key: int) -> None:
    """Hold no answer back."""


class Proxy:
    """Forwards what arrives at 127.0.0.1 to the same port of `BEHIND`, where the regions really listen.

    `swallow(api_key)`: the broker's answer is read and lost, and the connection cut. `before_answer(api_key)` is awaited
    before an answer goes back.
    """

    def __init__(self, port: int, *, kafka: bool) -> None:
        self._port = port
        self._kafka = kafka
        self.swallow: Callable[[int], bool] = lambda _api_key: False
        self.swallowed = asyncio.Event()
        self.before_answer: Callable[[int], Awaitable[None]] = _at_once
        self._server: asyncio.Server | None = None
        self._serving: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._accept, "127.0.0.1", self._port)

    async def stop(self) -> None:
        """Cut every connection and take no more; returns once each has been let go.

        Python 3.11 closes no connection whose server closes between its acceptance and its transport (`Server._attach`): so nothing more is
        accepted first, and what was is handed over before the server closes.
        """
        assert self._server is not None
        loop = asyncio.get_running_loop()
        for each in self._server.sockets:
            loop.remove_reader(each.fileno())
        for _ in range(20):
            await asyncio.sleep(0)
            for serving in self._serving:
                serving.cancel()
        self._server.close()

    def _accept(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        serving = asyncio.get_running_loop().create_task(self._serve(client, back))
        self._serving.add(serving)
        serving.add_done_callback(lambda _: back.transport.abort())  # also where it never began
        serving.add_done_callback(self._serving.discard)

    async def _serve(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        try:
            await self._forward(client, back)
        except* (OSError, EOFError):
            pass

    async def _forward(self, client: asyncio.StreamReader, back: asyncio.StreamWriter) -> None:
        broker, forth = await asyncio.open_connection(BEHIND, self._port)
        pending: dict[int, int] = {}
        try:
            async with asyncio.TaskGroup() as both:
                both.create_task(self._requests(client, forth, pending))
                both.create_task(self._answers(broker, back, pending))
        finally:
            forth.transport.abort()

    async def _requests(
        self, client: asyncio.StreamReader, forth: asyncio.StreamWriter, pending: dict[int, int]
    ) -> None:
        while True:
            data = await self._read(client)
            if self._kafka:
                api_key, _, correlation_id = struct.unpack_from(">hhi", data, 4)
                pending[correlation_id] = api_key
            forth.write(data)
            await forth.drain()

    async def _answers(
        self, broker: asyncio.StreamReader, back: asyncio.StreamWriter, pending: dict[int, int]
    ) -> None:
        while True:
            data = await self._read(broker)
            if self._kafka:
                (correlation_id,) = struct.unpack_from(">i", data, 4)
                api_key = pending.pop(correlation_id, -1)
                if self.swallow(api_key):
                    self.swallowed.set()
                    raise ConnectionResetError("the answer was lost")
                await self.before_answer(api_key)
            back.write(data)
            await back.drain()

    async def _read(self, stream: asyncio.StreamReader) -> bytes:
        if self._kafka:
            head = await stream.readexactly(4)
            return head + await stream.readexactly(int.from_bytes(head, "big"))
        data = await stream.read(65_536)
        if not data:
            raise EOFError
        return data


@dataclass
class ProxiedRegions:
    """A cluster whose every address is a proxy's."""

    cluster: LocalCluster
    kafka: dict[str, Proxy]
    peer: dict[str, Proxy]

    def swallow(self, *api_keys: int) -> None:
        """Lose the answers to these requests, whichever region gives them."""
        for proxy in self.kafka.values():
            proxy.swallow = lambda api_key: api_key in api_keys

    async def answer_swallowed(self) -> None:
        """Return once an answer was lost."""
        async with asyncio.timeout(CALL_S):
            waiting = [asyncio.ensure_future(each.swallowed.wait()) for each in self.kafka.values()]  # noqa: TID251
            await asyncio.wait(waiting, return_when=asyncio.FIRST_COMPLETED)
            for each in waiting:
                each.cancel()


@asynccontextmanager
async def proxied_regions(folder: Path, region_count: int) -> AsyncIterator[ProxiedRegions]:
    """Start regions that are reached through proxies only."""
    with open_cluster(folder, region_count, settings={"listen_host": BEHIND}) as cluster:
        places = cluster.plan.regions
        kafka = {each.name: Proxy(each.kafka_port, kafka=True) for each in places}
        peer = {each.name: Proxy(each.peer_port, kafka=False) for each in places}
        http = [Proxy(each.http_port, kafka=False) for each in places]
        proxies = [*kafka.values(), *peer.values(), *http]
        for proxy in proxies:
            await proxy.start()
        try:
            await asyncio.to_thread(cluster.start)
            yield ProxiedRegions(cluster, kafka, peer)
        finally:
            await asyncio.to_thread(cluster.stop)
            for proxy in proxies:
                await proxy.stop()
