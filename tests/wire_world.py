"""A Kafka port on loopback over real partitions on disk, and a raw client that speaks through kio.

The client writes requests and reads answers with kio's own writers and readers, never with our codec: what
the tests expect is what the schema says. Only the coordinators are played (`PlayedCoordinator`), since
their verdicts are what the handlers under test translate.
"""

import asyncio
import importlib
import io
import struct
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, get_args, get_origin

from kio.schema.index import api_key_map, schema_name_map
from kio.serial import entity_reader, entity_writer
from kio.static.constants import EntityType

from idempotency.identity import TopicPartition
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused, CreateTopic
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.registry import ApiTable
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext, Services
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import NodeLogConfig
from region_broker.metrics import Metrics
from region_broker.partitions.fetch_sessions import FetchSessions
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.topics import TopicRegistry
from region_broker.wire.server import KafkaServer
from txn_coordinator.connection_order import Arrival
from txn_coordinator.verdicts import TxnVerdict

LEADER_EPOCH = 8 << 16 | 1


@cache
def schema(key: int, version: int, kind: EntityType) -> Any:
    """Return the kio class of a request or response."""
    path = schema_name_map[api_key_map[key]][version][kind]  # type: ignore[index]
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def build(entity: Any, values: Mapping[str, Any]) -> Any:
    """Return a kio entity from a plain dict (durations in ms); kio's defaults fill the rest."""
    made: dict[str, Any] = {}
    for item in fields(entity):
        if item.name not in values:
            continue
        value = values[item.name]
        inner = next((arg for arg in get_args(item.type) if get_origin(arg) is tuple), item.type)
        if get_origin(inner) is tuple and value is not None:
            element = get_args(inner)[0]
            value = tuple(build(element, each) if is_dataclass(element) else each for each in value)
        elif isinstance(value, Mapping):
            value = build(_struct_of(item.type), value)
        elif "timedelta" in item.metadata.get("kafka_type", "") and isinstance(value, int):
            value = timedelta(milliseconds=value)
        made[item.name] = value
    return entity(**made)


def _struct_of(annotation: Any) -> Any:
    """Return the class of a field that holds one struct, nullable or not."""
    return next((arg for arg in get_args(annotation) if is_dataclass(arg)), annotation)


def body_of(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Return the request body of an API version, written by kio."""
    entity = schema(key, version, EntityType.request)
    out = io.BytesIO()
    entity_writer(entity)(out, build(entity, values))
    return out.getvalue()


def answer_body_of(key: int, version: int, values: Mapping[str, Any]) -> bytes:
    """Return the body of an answer of an API version, written by kio."""
    entity = schema(key, version, EntityType.response)
    out = io.BytesIO()
    entity_writer(entity)(out, build(entity, values))
    return out.getvalue()


def frame_of(
    key: int, version: int, values: Mapping[str, Any], *, correlation_id: int = 1
) -> bytes:
    """Return a whole request without length prefix, written by kio."""
    entity = schema(key, version, EntityType.request)
    header_type = entity.__header_schema__
    made = {"request_api_key": key, "request_api_version": version,
            "correlation_id": correlation_id, "client_id": "raw"}  # fmt: skip
    out = io.BytesIO()
    header = header_type(**{f.name: made[f.name] for f in fields(header_type)})
    entity_writer(header_type)(out, header)
    return out.getvalue() + body_of(key, version, values)


def parse_answer(key: int, version: int, payload: bytes) -> tuple[int, Any]:
    """Return (correlation id, kio response entity); nothing may be left over."""
    entity = schema(key, version, EntityType.response)
    header, used = entity_reader(entity.__header_schema__)(payload, 0)
    body, size = entity_reader(entity)(payload, used)
    assert used + size == len(payload), "bytes follow the answer"
    return int(header.correlation_id), body


class RawClient:
    """One TCP connection; requests may be pipelined, answers come in order."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer
        self._correlation_id = 0

    def send(self, key: int, version: int, values: Mapping[str, Any]) -> int:
        self._correlation_id += 1
        frame = frame_of(key, version, values, correlation_id=self._correlation_id)
        self.send_raw(struct.pack(">i", len(frame)) + frame)
        return self._correlation_id

    def send_raw(self, data: bytes) -> None:
        self.writer.write(data)

    async def receive_raw(self) -> bytes:
        (size,) = struct.unpack(">i", await self.reader.readexactly(4))
        return await self.reader.readexactly(size)

    async def receive(self, key: int, version: int) -> tuple[int, Any]:
        return parse_answer(key, version, await self.receive_raw())

    async def call(self, key: int, version: int, values: Mapping[str, Any]) -> Any:
        sent = self.send(key, version, values)
        correlation_id, answer = await self.receive(key, version)
        assert correlation_id == sent
        return answer

    async def closed(self) -> bool:
        """Return True once the server has closed the connection without another byte."""
        try:
            return await self.reader.read(1) == b""
        except ConnectionResetError:
            return True


@dataclass
class PlayedCoordinator:
    """Verdicts as a test sets them; `add_partitions` may be held back with `gate`."""

    in_transaction: set[TopicPartition] = field(default_factory=set)
    verdict: TxnVerdict = TxnVerdict.NOT_IN_TRANSACTION
    add_verdict: TxnVerdict = TxnVerdict.OK
    gate: asyncio.Event | None = None
    added: list[TopicPartition] = field(default_factory=list)

    def verify(
        self, transactional_id: str | None, producer_id: int, producer_epoch: int,
        partition: TopicPartition, arrival: Arrival | None = None,
    ) -> TxnVerdict:  # fmt: skip
        return TxnVerdict.OK if partition in self.in_transaction else self.verdict

    async def add_partitions(
        self, transactional_id: str, producer_id: int, producer_epoch: int,
        partitions: Sequence[TopicPartition], *, implicit: bool,
    ) -> TxnVerdict:  # fmt: skip
        assert implicit
        if self.gate is not None:
            await self.gate.wait()
        if self.add_verdict is TxnVerdict.OK:
            self.added += partitions
            self.in_transaction |= set(partitions)
        return self.add_verdict


@dataclass
class PlayedRegion:
    acting: bool = True
    region_epoch: int = 8
    cluster_id: str = "wire-world"
    node_id: int = 1
    kafka_host: str = "127.0.0.1"
    kafka_port: int = 0
    reason_not_acting: str = "this region is a mirror"
    drained: bool = False
    """It acted when a request came, and its writes were stopped then."""

    @contextmanager
    def change(self) -> Iterator[None]:
        if self.drained or not self.acting:
            raise CommandRefused(NOT_ACTING, "region us is about to take over")
        yield


@dataclass
class PlayedConfig:
    auto_create_topics: bool = False
    default_partition_count: int = 1
    node_ids: frozenset[int] = frozenset({1, 2})
    shard_count: int = 4


@dataclass
class PlayedForwarder:
    """Answers every forwarded frame with `answer`, or fails with `failure`."""

    answer: bytes | None = None
    failure: ForwardingFailed | None = None
    frames: list[bytes] = field(default_factory=list)
    on_failure: Callable[[], None] = lambda: None

    async def forward(self, ctx: RequestContext, frame: memoryview) -> bytes | None:
        self.frames.append(bytes(frame))
        if self.failure is not None:
            self.on_failure()
            raise self.failure
        return self.answer


@dataclass
class WireWorld:
    services: Services
    store: MetadataStore
    server: KafkaServer
    txn: PlayedCoordinator
    region: PlayedRegion
    config: PlayedConfig
    forwarder: PlayedForwarder
    group_commit: GroupCommit
    failure: list[BaseException] = field(default_factory=list)
    clients: list[RawClient] = field(default_factory=list)

    async def connect(self) -> RawClient:
        client = RawClient(*await asyncio.open_connection("127.0.0.1", self.server.port))
        self.clients.append(client)
        return client

    async def disconnect(self) -> None:
        for client in self.clients:
            client.writer.close()
            with suppress(OSError):
                await client.writer.wait_closed()
        self.clients.clear()

    async def topic(
        self, name: str, partition_count: int = 1, configs: dict[str, str] | None = None
    ) -> TopicImage:
        return await self.services.metadata.create_topic(name, partition_count, configs or {})

    async def internal_topic(self, name: str) -> TopicImage:
        """Create a ledger, as a node does at its first start."""
        topic = TopicImage(
            topic_id=SystemChance().uuid(), name=name, partition_count=1, internal=True
        )
        await self.store.apply(CreateTopic(topic))
        for partition in self.services.partitions.open_topic(topic):
            partition.become_leader(LEADER_EPOCH)
        return topic

    def partition(self, name: str, index: int = 0) -> Partition:
        found = self.services.partitions.get(name, index)
        assert found is not None
        return found


@asynccontextmanager
async def wire_world(folder: Path, *, table: ApiTable | None = None) -> AsyncIterator[WireWorld]:
    """Run a Kafka port over a fresh data folder; what our code asserts fails the test."""
    clock = SystemClock()
    log_config = NodeLogConfig()
    commit = GroupCommit(log_config, clock)
    partitions = PartitionTable(RealDisk(), folder / "log", clock, log_config, commit)
    store = await MetadataStore.open(
        folder / "metadata.db", RealDisk(), new_cluster_id="wire-world"
    )
    txn, region, config, forwarder = (
        PlayedCoordinator(), PlayedRegion(), PlayedConfig(), PlayedForwarder()
    )  # fmt: skip
    topics = TopicRegistry(store, partitions, SystemChance(), lambda: LEADER_EPOCH, region.change)
    services = Services(
        clock=clock, chance=SystemChance(), metadata=topics,
        partitions=partitions, fetch_sessions=FetchSessions(SystemChance()), txn=txn, txn_admin=txn,  # type: ignore[arg-type]
        groups=None, region=region, forward=forwarder, config=config, metrics=Metrics(),
    )  # fmt: skip
    dispatcher = Dispatcher(services, table or all_apis())
    server = KafkaServer(
        AsyncioNetwork(), clock, dispatcher.answer, services.metrics,
        begin=dispatcher.begin,
    )  # fmt: skip
    await server.start("127.0.0.1", 0)
    region.kafka_port = server.port
    world = WireWorld(services, store, server, txn, region, config, forwarder, commit)
    try:
        async with asyncio.TaskGroup() as group:
            committing = group.create_task(commit.run())
            serving = group.create_task(server.run())
            yield world
            await world.disconnect()
            server.close()
            await serving
            committing.cancel()
    finally:
        await world.disconnect()
        commit.close()
        partitions.close()
        await store.close()


def watched_by(sessions: FetchSessions) -> int:
    """Return how many partitions fetch sessions watch altogether."""
    return sum(len(each.wanted) - len(each.restless) for each in sessions._sessions.values())
