"""The part of the wire fuzzer that talks to a live node: mutated frames beside a client that must be served.

Frames of one API go over connections of their own, up to CONNECTION_FRAMES each, all sent before an answer is read. When
the node closes the connection, what follows the last answer but one frame is sent over another; so it is when an answer
waits for others (JoinGroup, Fetch): after WAIT_S the client goes away. So each frame is read, some twice. In the second
half of the frames of an API the node's memory may grow by GROWTH_BYTES_MAX. In the end it has as many sockets as at the
start: what a client that went away had asked to wait is over by then.
"""

import asyncio
import itertools
import random
import socket
import struct
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path
from uuid import UUID

from kio.static.constants import EntityType

from region_broker.handlers.dispatch.registry import Api
from region_broker.limits import CONNECTIONS_MAX, FETCH_WAIT_MS_MAX
from region_broker.records.batches import Record, build_batch
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import RawClient, schema
from tests.fixtures.memory_census import Process

CONNECTION_FRAMES = 16
CONNECTIONS = 32
WAIT_S = 0.5
SERVED_S = 20.0
SERVE_PAUSE_S = 0.02
CLOSED_S = FETCH_WAIT_MS_MAX / 1000 + 30
GROWTH_BYTES_MAX = 24 << 20
READ_BYTES = 1 << 18
PRODUCE_KEY = 0

Frames = Iterable[tuple[int, bytes]]


async def send_to_node(by_api: Mapping[Api, Frames], count: int) -> None:
    """Send (version, body) of each API, `count` of them, to a fresh node.

    AssertionError or TimeoutError when it dies, grows, leaks or does not serve.
    """
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.open(
            Path(folder), region_count=1, port=0, new_cluster_id=UUID(int=9),
            settings={"log_level": "error", "connection_rate_per_address": 1_000_000,
                      "connections_per_address_max": CONNECTIONS_MAX},
        )  # fmt: skip
        with cluster:
            cluster.start()
            (pid,) = cluster.pids("eu")
            node = Process(pid)
            port = cluster.plan.regions[0].kafka_port
            good = await GoodClient.connect(port)
            await good.works()
            sockets = node.sockets()
            for api, frames in by_api.items():
                stop = asyncio.Event()
                serving = asyncio.get_running_loop().create_task(good.work(stop))
                told = await _play(node, port, api, frames, count)
                stop.set()
                await serving
                assert cluster.pids("eu") == [pid], f"{api.name}: the node died"
                more = node.sockets() - sockets
                print(
                    f"{told}; {more:+} sockets, {node.descriptors()} descriptors; {good.told()}",
                    flush=True,
                )
            await _until_sockets(node, sockets)
            print(
                f"at the end {node.sockets() - sockets:+} sockets, {node.descriptors()} descriptors"
            )
            good.close()


async def _play(node: Process, port: int, api: Api, frames: Frames, count: int) -> str:
    """Send the frames in two halves; return what came of it."""
    source = iter(frames)
    found: Counter[str] = Counter()
    began_s, began_cpu_s = time.monotonic(), node.cpu_s()
    resident = [node.resident_bytes()]
    for half in (count // 2, count - count // 2):
        part = itertools.islice(source, half)
        async with asyncio.TaskGroup() as group:
            clients = [
                group.create_task(_client(port, api, part, random.Random(number)))
                for number in range(CONNECTIONS)
            ]
        for client in clients:
            found += client.result()
        resident.append(node.resident_bytes())
    assert resident[2] - resident[1] < GROWTH_BYTES_MAX, f"{api.name}: {resident} bytes"
    return (
        f"{api.name}: {found.total()} frames in {time.monotonic() - began_s:.0f} s ({node.cpu_s() - began_cpu_s:.0f} s of "
        f"the node's processor), {found['answered']} answered, {found['silent']} not to be answered, {found['closed']} "
        f"closed the connection, {found['left']} left waiting; "
        f"resident MiB {[size >> 20 for size in resident]}"
    )


async def _until_sockets(node: Process, most: int) -> None:
    deadline_s = time.monotonic() + CLOSED_S
    while node.sockets() > most:
        assert time.monotonic() < deadline_s, f"{node.sockets() - most} sockets more"
        await asyncio.sleep(0.05)


async def _client(
    port: int, api: Api, source: Iterator[tuple[int, bytes]], chance: random.Random
) -> Counter[str]:
    """Send frames over one connection after the other until there are no more."""
    found: Counter[str] = Counter()
    while frames := list(itertools.islice(source, chance.randint(1, CONNECTION_FRAMES))):
        while frames:
            talk = await _talk(port, api, frames)
            found["answered"] += talk.answered
            found["silent"] += talk.silent
            passed = talk.answered + talk.silent
            if passed < len(frames):
                found["left" if talk.left else "closed"] += 1
            frames = frames[passed + 1 :]
    return found


async def _talk(port: int, api: Api, frames: list[tuple[int, bytes]]) -> "_Talk":
    """Send the frames over one connection; return how it ended."""
    loop = asyncio.get_running_loop()
    # No transport: making one for each frame takes as long as the node takes for the frame.
    with socket.create_connection(("127.0.0.1", port)) as client:
        client.setblocking(False)
        talk = _Talk(client, api, len(frames), loop.create_future())
        sent = b"".join(
            [_framed(api, version, number, body) for number, (version, body) in enumerate(frames)]
        )
        with suppress(ConnectionError):  # what the node answered before is read all the same
            await loop.sock_sendall(client, sent)
        loop.add_reader(client, talk.read)
        timer = loop.call_later(WAIT_S, talk.leave)
        try:
            await talk.ended
        finally:
            timer.cancel()
            loop.remove_reader(client)
    return talk


class _Talk:
    """One connection: counts answers, which come in the order of the frames."""

    def __init__(
        self, client: socket.socket, api: Api, count: int, ended: asyncio.Future[None]
    ) -> None:
        """Expect `count` answers; a Produce with acks=0 has none."""
        self.answered = self.silent = 0
        self.left = False
        self.ended = ended
        self._socket = client
        self._api = api
        self._count = count
        self._received = bytearray()

    def read(self) -> None:
        """Take what has come."""
        try:
            data = self._socket.recv(READ_BYTES)
        except ConnectionError:
            data = b""
        if not data:
            self._end()
        self._received += data
        try:
            self._count_answers()
        except AssertionError as error:
            if not self.ended.done():
                self.ended.set_exception(error)
        if self.answered + self.silent == self._count:
            self._end()

    def _count_answers(self) -> None:
        received = self._received
        while len(received) >= 8:
            size, number = struct.unpack_from(">ii", received)
            if len(received) < 4 + size:
                break
            skipped = number - self.answered - self.silent
            assert skipped == 0 or (self._api.key == PRODUCE_KEY and skipped > 0), "out of order"
            self.silent += skipped
            self.answered += 1
            del received[: 4 + size]

    def leave(self) -> None:
        """Wait no more."""
        self.left = not self.ended.done()
        self._end()

    def _end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


def _framed(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api.key, version, correlation_id, 4) + b"fuzz"
    if _is_flexible(api.key, version):
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


@cache
def _is_flexible(key: int, version: int) -> bool:
    return bool(schema(key, version, EntityType.request).__flexible__)


class GoodClient:
    """Writes a record and reads it, over one connection that stays."""

    def __init__(self, client: RawClient) -> None:
        """Use `connect`."""
        self._client = client
        self._written = 0
        self._longest_s = 0.0

    @classmethod
    async def connect(cls, port: int) -> "GoodClient":
        """Connect, and create the topic."""
        client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
        answer = await client.call(19, 5, {"timeout": 20_000, "validate_only": False, "topics": [
            {"name": "good-client", "num_partitions": 1, "replication_factor": -1,
             "assignments": [], "configs": []}]})  # fmt: skip
        assert answer.topics[0].error_code == 0
        return cls(client)

    async def works(self) -> None:
        """Write a record and read it; TimeoutError when the node does not serve."""
        value = b"good %d" % self._written
        batch = build_batch([Record(None, value, timestamp_ms=1)])
        async with asyncio.timeout(SERVED_S):
            wrote = await self._client.call(0, 9, {
                "transactional_id": None, "acks": -1, "timeout": 10_000,
                "topic_data": [{"name": "good-client", "partition_data": [{"index": 0, "records": batch}]}]})  # fmt: skip
            (row,) = wrote.responses[0].partition_responses
            assert (row.error_code, row.base_offset) == (0, self._written)
            read = await self._client.call(1, 12, {
                "replica_id": -1, "max_wait": 5_000, "min_bytes": 1, "max_bytes": 1 << 20,
                "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "",
                "forgotten_topics_data": [],
                "topics": [{"topic": "good-client", "partitions": [
                    {"partition": 0, "current_leader_epoch": -1, "fetch_offset": self._written,
                     "last_fetched_epoch": -1, "log_start_offset": -1, "partition_max_bytes": 1 << 20}]}]})  # fmt: skip
            (part,) = read.responses[0].partitions
            assert part.error_code == 0
            assert value in bytes(part.records)
        self._written += 1

    async def work(self, stop: asyncio.Event) -> None:
        """Write and read all the while until `stop`."""
        while not stop.is_set():
            began_s = time.monotonic()
            await self.works()
            self._longest_s = max(self._longest_s, time.monotonic() - began_s)
            await asyncio.sleep(SERVE_PAUSE_S)

    def told(self) -> str:
        """Return what it did since it was asked last."""
        longest_s, self._longest_s = self._longest_s, 0.0
        return f"good client: {self._written} records, at most {longest_s * 1000:.0f} ms each"

    def close(self) -> None:
        """Close the connection."""
        self._client.writer.close()
