"""The part of the wire fuzzer that talks to a live node: mutated frames beside a client that must be served.

Frames of one API go over connections of their own, CONNECTION_FRAMES each, all sent before an answer is read. When the
node closes the connection at one of them, the rest is sent over another. What waits for others (JoinGroup, Fetch) is
left alone after WAIT_S, as by a client that goes away.
"""

import asyncio
import itertools
import struct
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from uuid import UUID

from kio.static.constants import EntityType

from region_broker.cli.local_cluster import LocalCluster
from region_broker.handlers.registry import Api
from region_broker.wire.batches import Record, build_batch
from tests.wire_world import RawClient, schema

CONNECTION_FRAMES = 16
CONNECTIONS = 16
WAIT_S = 0.5
SERVED_S = 20.0
GROWTH_BYTES_MAX = 150 << 20


async def send_to_node(by_api: Mapping[Api, Iterable[tuple[int, bytes]]]) -> None:
    """Send (version, body) of each API to a fresh node; AssertionError when it dies, grows, or serves nobody."""
    with tempfile.TemporaryDirectory() as folder:
        cluster = LocalCluster.open(
            Path(folder), region_count=1, port=0, new_cluster_id=UUID(int=9),
            settings={"log_level": "error"},
        )  # fmt: skip
        with cluster:
            cluster.start()
            (pid,) = cluster.pids("eu")
            port = cluster.plan.regions[0].kafka_port
            good = await GoodClient.connect(port)
            await good.works()
            before_bytes = resident_bytes(pid)
            for api, frames in by_api.items():
                found = await _send(port, api, frames)
                await good.works()
                assert cluster.pids("eu") == [pid], f"{api.name}: the node died"
                grown_bytes = resident_bytes(pid) - before_bytes
                print(
                    f"{api.name}: {found['answered']} answered, {found['closed']} closed the connection, "
                    f"{found['left']} connections left waiting, {grown_bytes >> 20} MiB more memory than at the start",
                    flush=True,
                )
                assert grown_bytes < GROWTH_BYTES_MAX, f"{api.name}: {grown_bytes} bytes more"
            good.close()


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) << 10
    raise ProcessLookupError(f"process {pid} is gone")


async def _send(port: int, api: Api, frames: Iterable[tuple[int, bytes]]) -> Counter[str]:
    found: Counter[str] = Counter()
    source = iter(frames)
    while batches := [batch for _ in range(CONNECTIONS) if (batch := _take(source))]:
        for each in await asyncio.gather(*(_one_client(port, api, batch) for batch in batches)):
            found += each
    return found


def _take(source: Iterator[tuple[int, bytes]]) -> list[tuple[int, bytes]]:
    return list(itertools.islice(source, CONNECTION_FRAMES))


async def _one_client(port: int, api: Api, frames: list[tuple[int, bytes]]) -> Counter[str]:
    """Send the frames; when the node closes the connection at one of them, go on behind that one."""
    found: Counter[str] = Counter()
    while frames:
        answered, ending = await _one_connection(port, api, frames)
        found["answered"] += answered
        found[ending] += ending != "answered"
        frames = frames[answered + 1 :] if ending == "closed" else []
    return found


async def _one_connection(port: int, api: Api, frames: list[tuple[int, bytes]]) -> tuple[int, str]:
    """Return (answers, how it ended)."""
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    answered = 0
    try:
        client.send_raw(
            b"".join(
                _framed(api, version, number, body) for number, (version, body) in enumerate(frames)
            )
        )
        async with asyncio.timeout(WAIT_S):
            for number in range(len(frames)):
                answer = await client.receive_raw()
                assert struct.unpack_from(">i", answer) == (number,), "answers out of order"
                answered += 1
        ending = "answered"
    except TimeoutError:
        ending = "left"
    except (asyncio.IncompleteReadError, ConnectionError):
        ending = "closed"
    finally:
        client.writer.close()
        with suppress(OSError):
            await client.writer.wait_closed()
    return answered, ending


def _framed(api: Api, version: int, correlation_id: int, body: bytes) -> bytes:
    header = struct.pack(">hhih", api.key, version, correlation_id, 4) + b"fuzz"
    if schema(api.key, version, EntityType.request).__flexible__:
        header += b"\0"
    return struct.pack(">i", len(header) + len(body)) + header + body


class GoodClient:
    """Writes a record and reads it, over one connection that stays."""

    def __init__(self, client: RawClient) -> None:
        """Use `connect`."""
        self._client = client
        self._written = 0

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

    def close(self) -> None:
        """Close the connection."""
        self._client.writer.close()
