"""Slow, idle and greedy clients, and one good client beside them: against any network, by the time of the running loop.

Each kind lives one life after the other, until it is cancelled; a connection that the node ends is an end like any
other. The good client fails loudly: everything that it writes must be acknowledged, read back, and committed.
"""

import asyncio
import random
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

from region_broker.ports.network import ByteStream, Network
from region_broker.wire.batches import Origin, Record, build_batch
from tests.simulation.kafka_client import Connection, Refused, batch_of, produce_request
from tests.wire_world import frame_of

GOOD, VICTIM = "good", "victim"
PARTITIONS = 4
ALL_TOPICS = {
    "topics": None, "allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}  # fmt: skip
GARBAGE_BYTES = 200
SHARED_NAMES = 20
# What the good client remembers of its calls does not grow with their number: how many took so many steps.
DURATION_STEP_MS = 0.1


@dataclass
class Place:
    """Where the node is, and what the clients draw from."""

    network: Network
    port: int
    chance: random.Random
    lives: Counter[str] = field(default_factory=Counter)

    async def connect(self) -> ByteStream:
        return await self.network.connect("127.0.0.1", self.port)

    def name(self, kind: str) -> str:
        """Draw a name: one that others have, or one that nobody had before and nobody will have."""
        if self.chance.random() < 0.5:
            return f"{kind}-{self.chance.randrange(SHARED_NAMES)}"
        return f"{kind}-once-{self.chance.getrandbits(64):x}"

    def framed(self, key: int, version: int, values: dict[str, Any]) -> bytes:
        frame = frame_of(key, version, values)
        return struct.pack(">i", len(frame)) + frame


Life = Callable[[Place, ByteStream], Awaitable[None]]


async def live(place: Place, name: str, life: Life, pause_s: float) -> None:
    """Live until cancelled; between two lives rests up to `pause_s`."""
    while True:
        await asyncio.sleep(place.chance.uniform(0, pause_s))
        with suppress(OSError, TimeoutError, Refused):
            stream = await place.connect()
            try:
                await life(place, stream)
            finally:
                if place.chance.random() < 0.5:
                    stream.close()
                else:
                    stream.abort()
        place.lives[name] += 1


async def until_closed(stream: ByteStream) -> None:
    """Read and throw away until the node ends the connection."""
    while await stream.read(1 << 16):
        pass


async def drip(place: Place, stream: ByteStream) -> None:
    """A request, byte by byte, slower than a frame may take."""
    for byte in place.framed(3, 9, ALL_TOPICS) + bytes(100):
        stream.write(bytes([byte]))
        await asyncio.sleep(7)
        await stream.drain()


async def stop_halfway(place: Place, stream: ByteStream) -> None:
    """Half of a large frame, then silence."""
    stream.write(struct.pack(">ihhi", 40 << 20, 0, 9, 1), bytes(place.chance.randrange(1, 1 << 20)))
    await until_closed(stream)


async def never_read(place: Place, stream: ByteStream) -> None:
    """Many requests with large answers, none of which is read."""
    ask = place.framed(3, 9, ALL_TOPICS) + place.framed(1, 12, fetch_all(1 << 30))
    for _ in range(200):
        stream.write(ask)
    await asyncio.sleep(place.chance.uniform(0, 200))


async def idle(place: Place, stream: ByteStream) -> None:
    """One request, then nothing for as long as the node allows."""
    stream.write(place.framed(18, 2, {}))
    await until_closed(stream)


async def storm(place: Place, stream: ByteStream) -> None:
    """Many connections, each gone at once."""
    stream.write(place.framed(18, 2, {}))
    for _ in range(place.chance.randrange(50)):
        other = await place.connect()
        try:
            other.write(place.framed(18, 2, {}))
            if place.chance.random() < 0.5:
                await other.read(100)
        finally:
            other.abort()


async def fetch_giant(place: Place, stream: ByteStream) -> None:
    """As much as there is, of every partition, read slowly."""
    for _ in range(10):
        stream.write(place.framed(1, 12, fetch_all(2**31 - 1)))
        for _ in range(20):
            if not await stream.read(1 << 16):
                return
            await asyncio.sleep(0.5)


async def send_garbage(place: Place, stream: ByteStream) -> None:
    """Bytes."""
    stream.write(place.chance.randbytes(place.chance.randrange(1, GARBAGE_BYTES)))
    async with asyncio.timeout(100):
        await until_closed(stream)


async def ask_much(place: Place, stream: ByteStream) -> None:
    """Small requests with much work: many names, many partitions."""
    client = Connection(stream)
    names = [f"n{number}" for number in range(place.chance.randrange(1, 3_000))]
    await client.call(15, 5, {"groups": names, "include_authorized_operations": False})
    await client.call(10, 4, {"key_type": 0, "coordinator_keys": names})
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in range(len(names))
    ]
    asked = [{"name": GOOD, "partitions": rows}]
    await client.call(2, 7, {"replica_id": -1, "isolation_level": 1, "topics": asked})


async def join_and_vanish(place: Place, stream: ByteStream) -> None:
    """A member of a classic group that goes without a word, in the middle of a rebalance or after it."""
    client = Connection(stream)
    group = place.name("vanishing")
    joining = {"group_id": group, "session_timeout": 6_000, "rebalance_timeout": 10_000, "member_id": "",
               "protocol_type": "consumer",
               "protocols": [{"name": "range", "metadata": bytes(place.chance.randrange(100_000))}]}  # fmt: skip
    client.send(11, 3, joining)
    if place.chance.random() < 0.5:
        return
    async with asyncio.timeout(20):
        joined = await client.receive(11, 3)
    assigned = [{"member_id": joined.member_id, "assignment": b"x"}]
    client.send(14, 2, {"group_id": group, "generation_id": joined.generation_id,
                        "member_id": joined.member_id, "assignments": assigned})  # fmt: skip
    if place.chance.random() < 0.5:
        await client.receive(14, 2)


async def join_newly_and_vanish(place: Place, stream: ByteStream) -> None:
    """The same in a group of the new protocol."""
    client = Connection(stream)
    await client.call(68, 0, {
        "group_id": place.name("modern"), "member_id": str(place.chance.random()),
        "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 10_000,
        "subscribed_topic_names": [VICTIM], "server_assignor": None, "topic_partitions": []})  # fmt: skip


async def write_and_vanish(place: Place, stream: ByteStream) -> None:
    """A transactional producer that goes in the middle of its transaction."""
    client = Connection(stream)
    name = place.name("vanishing")
    started = await client.call(22, 4, {
        "transactional_id": name, "transaction_timeout": place.chance.randrange(1_000, 20_000),
        "producer_id": -1, "producer_epoch": -1})  # fmt: skip
    if started.error_code.value:
        return
    producer = started.producer_id, started.producer_epoch
    partition = place.chance.randrange(PARTITIONS)
    await client.add_partitions(name, producer, VICTIM, [partition])
    batch = batch_of(bytes(place.chance.randrange(10_000)), producer, 0, transactional=True)
    client.send(0, 9, produce_request(VICTIM, {partition: batch}, name))
    if place.chance.random() < 0.5:
        await client.receive(0, 9)


async def open_sessions(place: Place, stream: ByteStream) -> None:
    """A new fetch session with each request; some go on to the end of the partitions, where the node watches them."""
    client = Connection(stream)
    for _ in range(place.chance.randrange(1, 50)):
        told = await client.call(1, 12, {**fetch_all(1_000), "session_epoch": 0})
        if told.session_id and place.chance.random() < 0.5:
            at_the_end = [
                {"topic": topic.topic, "partitions": [
                    {"partition": row.partition_index, "current_leader_epoch": -1,
                     "fetch_offset": row.high_watermark, "last_fetched_epoch": -1, "log_start_offset": -1,
                     "partition_max_bytes": 1_000} for row in topic.partitions]}
                for topic in told.responses
            ]  # fmt: skip
            await client.call(1, 12, {
                **fetch_all(1_000), "session_id": told.session_id, "session_epoch": 1, "max_wait": 0,
                "topics": at_the_end})  # fmt: skip


def fetch_all(bytes_max: int) -> dict[str, Any]:
    rows = [
        {"partition": number, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
         "log_start_offset": -1, "partition_max_bytes": bytes_max}
        for number in range(PARTITIONS)
    ]  # fmt: skip
    return {"replica_id": -1, "max_wait": 1_000, "min_bytes": 1, "max_bytes": bytes_max,
            "isolation_level": 0, "session_id": 0, "session_epoch": -1, "rack_id": "",
            "forgotten_topics_data": [],
            "topics": [{"topic": GOOD, "partitions": rows}, {"topic": VICTIM, "partitions": rows}]}  # fmt: skip


# What each kind is called, how it lives, how many there are, and how long it rests between two lives (s).
KINDS: tuple[tuple[str, Life, int, float], ...] = (
    ("slow loris", drip, 5, 20),
    ("half frames", stop_halfway, 5, 20),
    ("never reading", never_read, 3, 20),
    ("idle", idle, 20, 60),
    ("reconnect storm", storm, 2, 5),
    ("giant fetches", fetch_giant, 3, 5),
    ("garbage", send_garbage, 3, 5),
    ("much work", ask_much, 2, 5),
    ("classic members that vanish", join_and_vanish, 5, 5),
    ("new members that vanish", join_newly_and_vanish, 3, 10),
    ("transactions that vanish", write_and_vanish, 5, 10),
    ("fetch sessions", open_sessions, 2, 10),
)


@dataclass
class GoodClient:
    """Writes, reads back and commits, over connections that stay; counts how long each call took."""

    place: Place
    client: Connection
    reader: Connection
    written: int = 0
    committed: int = 0
    value_bytes: int = 0
    durations: Counter[int] = field(default_factory=Counter)
    _ends: list[int] = field(default_factory=lambda: [0] * PARTITIONS)
    _sequences: list[int] = field(default_factory=list)

    @classmethod
    async def connect(
        cls, place: Place, configs: dict[str, str], *, value_bytes: int = 0
    ) -> "GoodClient":
        """Create the topics, and connect; values are filled up to `value_bytes`."""
        network, port = place.network, place.port
        made = cls(
            place, await Connection.open(network, port), await Connection.open(network, port),
            value_bytes=value_bytes,
        )  # fmt: skip
        listed = [{"name": name, "value": value} for name, value in configs.items()]
        answer = await made.client.call(19, 5, {"timeout": 20_000, "validate_only": False, "topics": [
            {"name": name, "num_partitions": PARTITIONS, "replication_factor": -1, "assignments": [],
             "configs": listed} for name in (GOOD, VICTIM)]})  # fmt: skip
        assert [topic.error_code.value for topic in answer.topics] == [0, 0]
        return made

    async def work(self, pause_s: float, stop: asyncio.Event) -> None:
        """Write and read all the while until `stop`; raises when anything is refused or lost."""
        producer = await self.client.init_producer_id("good")
        self._sequences = [0] * PARTITIONS  # of this epoch
        while not stop.is_set():
            await self._transaction(producer)
            await asyncio.sleep(pause_s)

    async def _transaction(self, producer: tuple[int, int]) -> None:
        partition = self.written % PARTITIONS
        value = (b"good %d " % self.written).ljust(self.value_bytes, b".")
        await self._timed(self.client.add_partitions("good", producer, GOOD, [partition]))
        origin = Origin(producer[0], producer[1], self._sequences[partition], transactional=True)
        batch = build_batch([Record(None, value, timestamp_ms=1)], origin=origin)
        offsets = await self._timed(
            self.client.produce(GOOD, {partition: batch}, transactional_id="good")
        )
        self.written += 1
        self._sequences[partition] += 1
        await self._timed(self.client.end_txn("good", producer, commit=True, tv2=False))
        self.committed += 1
        offset = offsets[partition]
        assert offset >= self._ends[partition], (offset, self._ends)
        self._ends[partition] = offset + 1
        await self._timed(self._read_back(partition, offset, value))

    async def _read_back(self, partition: int, offset: int, value: bytes) -> None:
        for _ in range(100):  # the marker of the transaction may come a moment later
            (row,) = await self.reader.fetch(
                GOOD, {partition: offset}, committed=True, wait_ms=1_000
            )
            assert row.error_code.value == 0, row.error_code
            if value in bytes(row.records or b""):
                return
        raise AssertionError(f"{value!r} at {offset} of partition {partition} was not read back")

    async def _timed(self, work: Awaitable[Any]) -> Any:
        started_s = time.perf_counter()
        answer = await work
        self.durations[round((time.perf_counter() - started_s) * 1000 / DURATION_STEP_MS)] += 1
        return answer

    def close(self) -> None:
        self.client.close()
        self.reader.close()

    def summary(self) -> str:
        return (
            f"{self.committed} transactions acknowledged and read back; a call took p50 {self._quantile_ms(0.5):.1f} ms, "
            f"p99 {self._quantile_ms(0.99):.1f} ms, at most {self._quantile_ms(1.0):.0f} ms"
        )

    def _quantile_ms(self, share: float) -> float:
        """Return what that share of the calls did not exceed, to DURATION_STEP_MS."""
        steps = sorted(self.durations)
        reached = accumulate(self.durations[step] for step in steps)
        wanted = share * self.durations.total()
        return DURATION_STEP_MS * next(
            step for step, count in zip(steps, reached, strict=True) if count >= wanted
        )


async def crowd(
    place: Place, good: GoodClient, duration_s: float, *, pause_s: float, rest: float = 1.0
) -> None:
    """Let everybody live for `duration_s`; raises what the good client raises.

    `pause_s`: of the good client between two transactions; `rest`: factor on the others' pauses.
    """
    stop = asyncio.Event()
    async with asyncio.TaskGroup() as group:
        bad = [
            group.create_task(live(place, name, life, pause_s=rest_s * rest), name=name)
            for name, life, count, rest_s in KINDS
            for _ in range(count)
        ]
        working = group.create_task(good.work(pause_s, stop))
        await asyncio.wait({working}, timeout=duration_s)
        stop.set()
        await working
        for task in bad:
            task.cancel()
