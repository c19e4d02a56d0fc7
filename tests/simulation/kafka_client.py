"""Kafka clients over a simulated network: requests written and answers read by kio's own code, never by ours."""

import asyncio
import struct
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import count
from typing import Any, Final, TypeVar, cast

from idempotency.identity import ProducerEpoch, ProducerId, ProducerPair, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers, read_marker
from region_broker.ports.network import ByteStream, Network
from region_broker.records.batches import Origin, Record, build_batch, iter_records
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.simulation.simulated_loop import LoopClock

PRODUCE, FETCH, LIST_OFFSETS, FIND, INIT, ADD, END = 0, 1, 2, 10, 22, 24, 26
CREATE_TOPICS = 19
TRIES = 40
REPEATED = {"concurrent_transactions", "not_enough_replicas", "coordinator_load_in_progress"}
"""What clients repeat by themselves in a transaction."""
DAY_MS = 86_400_000
EVENT_AGES_MS = (2 * DAY_MS, 0, 3_600_000)
"""How old the events of a producer are: also older than an idle producer is kept, by far."""
_OFFSET: Final = struct.Struct(">q")
_STAND_IN: Final = 0x7A5B_3C1D_4E2F_0000


T = TypeVar("T")


class Refused(Exception):
    """An answer with an error code."""

    def __init__(self, what: str, code: Any) -> None:
        """Name the request and the code."""
        super().__init__(f"{what}: {code.name}")
        self.code = code


class Connection:
    """One connection; requests sent one behind the other are answered in that order."""

    def __init__(self, stream: ByteStream) -> None:
        """Use `open`."""
        self._stream = stream
        self._buffer = b""

    @classmethod
    async def open(
        cls, network: Network, port: int, place: tuple[str, int] | None = None
    ) -> "Connection":
        """Connect; raises OSError. Where leaders are spread, to that of each partition, or of the one (`place`) that all is about."""
        leader_port = getattr(network, "leader_port", None)
        if leader_port is None:
            return cls(await network.connect("127.0.0.1", port))
        if place is not None:
            return cls(await network.connect("127.0.0.1", leader_port(*place, port) or port))
        routed = cast("Any", network).routed
        return cast("Connection", routed(await network.connect("127.0.0.1", port), network, port))

    async def call(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        """Return the answer; raises OSError when the connection ends first."""
        self.send(key, version, values)
        await self._stream.drain()
        return await self.receive(key, version)

    def send(self, key: int, version: int, values: Mapping[str, Any]) -> None:
        """Write a request and wait for nothing."""
        self._write(frame_of(key, version, values))

    def _write(self, frame: bytes) -> None:
        self._stream.write(struct.pack(">i", len(frame)) + frame)

    async def receive(self, key: int, version: int) -> Any:
        """Return the next answer; raises OSError when the connection ends first."""
        return _parsed(key, version, await self._frame())

    async def _frame(self) -> bytes:
        (size,) = struct.unpack(">i", await self._exactly(4))
        return await self._exactly(size)

    async def _exactly(self, size: int) -> bytes:
        while len(self._buffer) < size:
            data = await self._stream.read(65536)
            if not data:
                raise ConnectionResetError("closed in the middle of an answer")
            self._buffer += data
        data, self._buffer = self._buffer[:size], self._buffer[size:]
        return data

    def close(self) -> None:
        """Close it."""
        self._stream.close()

    async def init_producer_id(self, transactional_id: str | None) -> ProducerPair:
        """Return (producer id, epoch); raises `Refused`."""
        answer = await self.call(
            INIT, 4,
            {"transactional_id": transactional_id, "transaction_timeout": 60_000,
             "producer_id": -1, "producer_epoch": -1},
        )  # fmt: skip
        if answer.error_code.value:
            raise Refused("InitProducerId", answer.error_code)
        return answer.producer_id, answer.producer_epoch

    async def add_partitions(
        self, transactional_id: str, producer: ProducerPair, topic: str, partitions: list[int]
    ) -> None:
        """Add partitions to the transaction (TV1); raises `Refused`."""
        answer = await self.call(
            ADD, 3,
            {"v3_and_below_transactional_id": transactional_id,
             "v3_and_below_producer_id": producer[0], "v3_and_below_producer_epoch": producer[1],
             "v3_and_below_topics": [{"name": topic, "partitions": tuple(partitions)}]},
        )  # fmt: skip
        for each in answer.results_by_topic_v3_and_below:
            for row in each.results_by_partition:
                if row.partition_error_code.value:
                    raise Refused("AddPartitionsToTxn", row.partition_error_code)

    async def produce(
        self, topic: str, batches: Mapping[int, bytes], *, transactional_id: str | None = None,
        tv2: bool = False,
    ) -> dict[int, int]:  # fmt: skip
        """Return partition -> base offset; raises `Refused`."""
        values = produce_request(topic, batches, transactional_id)
        answer = await self.call(PRODUCE, 12 if tv2 else 9, values)
        offsets = {}
        for each in answer.responses:
            for row in each.partition_responses:
                if row.error_code.value:
                    raise Refused(f"Produce to {row.index}", row.error_code)
                offsets[row.index] = row.base_offset
        return offsets

    async def end_txn(
        self, transactional_id: str, producer: ProducerPair, *, commit: bool, tv2: bool
    ) -> ProducerPair:
        """Return the producer to go on with; raises `Refused`."""
        answer = await self.call(
            END, 5 if tv2 else 3,
            {"transactional_id": transactional_id, "producer_id": producer[0],
             "producer_epoch": producer[1], "committed": commit},
        )  # fmt: skip
        if answer.error_code.value:
            raise Refused("EndTxn", answer.error_code)
        return (answer.producer_id, answer.producer_epoch) if tv2 else producer

    async def fetch(
        self, topic: str, positions: Mapping[int, int], *, committed: bool, wait_ms: int = 0, rack: str = "",
    ) -> Sequence[Any]:  # fmt: skip
        """Return the answered rows, all partitions in one reading."""
        answered = await self.fetch_topics(
            {topic: positions}, committed=committed, wait_ms=wait_ms, rack=rack
        )
        return answered.get(topic, ())

    async def fetch_topics(
        self, positions: Mapping[str, Mapping[int, int]], *, committed: bool, wait_ms: int = 0, rack: str = "",
    ) -> Mapping[str, Sequence[Any]]:  # fmt: skip
        """Return the answered rows of several topics, all in one request."""
        self._write(_fetch_frame(positions, committed, wait_ms, rack))
        await self._stream.drain()
        answer = await self.receive(FETCH, 12)
        if answer.error_code.value:
            raise Refused("Fetch", answer.error_code)
        return {each.topic: each.partitions for each in answer.responses}

    async def ends(self, topic: str, partitions: int) -> dict[int, int]:
        """Return the last stable offset of all partitions, asked in one request of each leader; raises `Refused`."""
        return await self.ends_of(topic, range(partitions))

    async def ends_of(self, topic: str, numbers: Sequence[int]) -> dict[int, int]:
        """Return the last stable offset of these partitions, asked in one request; raises `Refused`."""
        self._write(_ends_frame(topic, tuple(numbers)))
        await self._stream.drain()
        answer = await self.receive(LIST_OFFSETS, 5)
        ends = {}
        for each in answer.topics:
            for row in each.partitions:
                if row.error_code.value:
                    raise Refused(f"ListOffsets of {row.partition_index}", row.error_code)
                ends[row.partition_index] = row.offset
        return ends


@lru_cache(maxsize=256)
def _parsed(key: int, version: int, frame: bytes) -> Any:
    """Return what kio reads in an answer; many are alike, byte for byte."""
    return parse_answer(key, version, frame)[1]


@lru_cache(maxsize=64)
def _ends_frame(topic: str, numbers: tuple[int, ...]) -> bytes:
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in numbers
    ]
    return frame_of(
        LIST_OFFSETS, 5,
        {"replica_id": -1, "isolation_level": 1, "topics": [{"name": topic, "partitions": rows}]},
    )  # fmt: skip


def _fetch_frame(
    positions: Mapping[str, Mapping[int, int]], committed: bool, wait_ms: int, rack: str
) -> bytes:
    """Return a whole Fetch: kio takes its time to write one, so offsets are put into one that it wrote before."""
    shape = tuple((topic, tuple(each)) for topic, each in positions.items())
    frame, places = _fetch_template(shape, committed, wait_ms, rack)
    made = bytearray(frame)
    offsets = (offset for each in positions.values() for offset in each.values())
    for place, offset in zip(places, offsets, strict=True):
        _OFFSET.pack_into(made, place, offset)
    return bytes(made)


@lru_cache(maxsize=256)
def _fetch_template(
    shape: tuple[tuple[str, tuple[int, ...]], ...], committed: bool, wait_ms: int, rack: str
) -> tuple[bytes, list[int]]:
    """Return a Fetch with other offsets, and where these lie in it."""
    numbers = count(_STAND_IN)
    topics = [
        {"topic": topic, "partitions": [
            {"partition": number, "fetch_offset": next(numbers), "partition_max_bytes": 1 << 24,
             "current_leader_epoch": -1, "last_fetched_epoch": -1, "log_start_offset": -1}
            for number in each]}
        for topic, each in shape
    ]  # fmt: skip
    frame = frame_of(
        FETCH, 12,
        {"replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 26,
         "isolation_level": int(committed), "session_id": 0, "session_epoch": -1,
         "topics": topics, "forgotten_topics_data": [], "rack_id": rack},
    )  # fmt: skip
    stand_ins = range(_STAND_IN, next(numbers))
    assert all(frame.count(_OFFSET.pack(each)) == 1 for each in stand_ins), shape
    return frame, [frame.index(_OFFSET.pack(each)) for each in stand_ins]


async def patiently(call: Callable[[], Awaitable[T]], *, rest_s: float = 0.005) -> T:
    """Return what a call returns, repeated while the transaction before it is being ended; raises OSError at last."""
    for _ in range(TRIES):
        try:
            return await call()
        except Refused as refused:
            if refused.code.name not in REPEATED:
                raise
            await asyncio.sleep(rest_s)
    raise ConnectionAbortedError("the transaction before it does not end")


def produce_request(
    topic: str, batches: Mapping[int, bytes], transactional_id: str | None = None
) -> dict[str, Any]:
    """Return the values of a Produce request, acks=all."""
    return {
        "transactional_id": transactional_id, "acks": -1, "timeout": 10_000,
        "topic_data": [{"name": topic, "partition_data": [
            {"index": number, "records": batch} for number, batch in batches.items()]}],
    }  # fmt: skip


def batch_of(value: bytes, producer: ProducerPair, sequence: int, *, transactional: bool) -> bytes:
    """Return a batch of one record of an idempotent producer, with the time of some event, old or new."""
    origin = Origin(
        ProducerId(producer[0]),
        ProducerEpoch(producer[1]),
        SequenceNumber(sequence),
        transactional=transactional,
    )
    time_ms = LoopClock().wall_ms() - EVENT_AGES_MS[producer[0] % len(EVENT_AGES_MS)]
    return build_batch([Record(None, value, timestamp_ms=time_ms)], origin=origin)


@dataclass
class Reader:
    """A consumer of all partitions of one topic, without a group: reads whole answers, filters as clients do."""

    topic: str
    partitions: int
    committed: bool
    positions: dict[int, int] = field(default_factory=dict)
    records: list[tuple[int, int, bytes]] = field(default_factory=list)

    def __post_init__(self) -> None:
        """Start at the beginning."""
        self.positions = dict.fromkeys(range(self.partitions), 0)

    async def read(self, connection: Connection, *, wait_ms: int = 0) -> int:
        """Fetch once; return how far the positions moved."""
        before = sum(self.positions.values())
        for row in await connection.fetch(
            self.topic, self.positions, committed=self.committed, wait_ms=wait_ms
        ):
            self.take_row(row)
        return sum(self.positions.values()) - before

    def take_row(self, row: Any) -> None:
        """Take what one partition answered; raises `Refused`."""
        if row.error_code.value:
            raise Refused(f"Fetch of {row.partition_index}", row.error_code)
        self.take(row.partition_index, bytes(row.records or b""), row.aborted_transactions)

    def take(self, number: int, data: bytes, aborted: Sequence[Any] | None) -> None:
        waiting = sorted((each.first_offset, each.producer_id) for each in aborted or ())
        dropped: set[int] = set()
        for start, header in iter_headers(data):
            while waiting and waiting[0][0] <= header.last_offset:
                dropped.add(waiting.pop(0)[1])
            batch = data[start : start + header.size_bytes]
            if header.is_control:
                if read_marker(batch).control_type is ControlType.ABORT:
                    dropped.discard(header.producer_id)
            elif not (self.committed and header.is_transactional and header.producer_id in dropped):
                for record in iter_records(batch):
                    if record.offset >= self.positions[number]:
                        self.keep(number, record)
            self.positions[number] = header.next_offset

    def keep(self, partition: int, record: Record) -> None:
        """Keep a record that the application is given."""
        self.records.append((partition, record.offset, record.value or b""))
