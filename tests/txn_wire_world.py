"""A Kafka port with a real transaction coordinator behind it: everything of a node that transactions pass.

Composed from the real parts without a process: log, group commit, wire, handlers, coordinator, its ledger.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from region_broker.controller.metadata_image import OFFSETS_LEDGER, TRANSACTION_LEDGER
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.ledgers.id_blocks import DrawnIdBlocks
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.metrics import Metrics
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.peers.forwarder import ForwardTarget, PeerForwarder
from region_broker.region.peers.server import PeerServer
from region_broker.wire.batches import Origin, Record, build_batch
from region_broker.wire.server import KafkaServer
from tests.geo_world import PlayedIdentity
from tests.wire_world import LEADER_EPOCH, PlayedRegion, RawClient, WireWorld, wire_world
from txn_coordinator.driver import TransactionCoordinator
from txn_coordinator.settings import TxnSettings

REGION_EPOCH = 8
SHARDS = 2


@asynccontextmanager
async def txn_broker(
    folder: Path, *, settings: TxnSettings | None = None, load: bool = True
) -> AsyncIterator[tuple[WireWorld, TransactionCoordinator]]:
    """Serve topic `orders` with three partitions, and transactions over it."""
    async with wire_world(folder) as world:
        services = world.services
        await services.metadata.create_topic(TRANSACTION_LEDGER, SHARDS, {})
        await services.metadata.create_topic(OFFSETS_LEDGER, SHARDS, {})
        await services.metadata.create_topic("orders", 3, {})
        txn = TransactionCoordinator(
            ledger=PartitionTransactionLog(services.partitions, services.clock, SHARDS),
            markers=PartitionMarkerChannel(
                services.partitions,
                services.clock,
                image=lambda: services.metadata.image,
                on_offsets_marker=lambda _shard, _producer_id, _commit: None,
            ),
            id_blocks=DrawnIdBlocks(SystemChance(), 1),
            clock=services.clock,
            settings=settings,
        )
        services.txn, services.txn_admin = txn.clients, txn.admin
        async with asyncio.TaskGroup() as group:
            running = group.create_task(txn.run())
            if load:
                await txn.load(LEADER_EPOCH, REGION_EPOCH)
            yield world, txn
            running.cancel()


@asynccontextmanager
async def mirror_of(world: WireWorld) -> AsyncIterator[tuple[int, PlayedRegion]]:
    """Serve Kafka on a port of a region that forwards to `world`'s, over a real peer connection.

    Yields the port, and the region whose address clients are told. What a mirror answers by itself, it answers
    from the acting region's own parts.
    """
    network, clock = AsyncioNetwork(), SystemClock()
    peers = PeerServer(network, PlayedIdentity("home"))
    ForwardTarget(Dispatcher(world.services, all_apis()), world.region).register(peers)
    listener = await peers.start("127.0.0.1", 0)
    address = ("127.0.0.1", listener.port)
    forwarder = PeerForwarder(
        network, PlayedIdentity("mirror"), lambda _region: address, clock, origin=77
    )
    region = PlayedRegion(acting=False)
    metrics = Metrics()
    services = replace(world.services, region=region, forward=forwarder, metrics=metrics)
    dispatcher = Dispatcher(services, all_apis())
    kafka = KafkaServer(network, clock, dispatcher.answer, metrics, begin=dispatcher.begin)
    await kafka.start("127.0.0.1", 0)
    region.kafka_port = kafka.port
    async with asyncio.TaskGroup() as group:
        forwarding = group.create_task(forwarder.run())
        serving = group.create_task(kafka.run())
        await asyncio.sleep(0)
        yield kafka.port, region
        kafka.close()
        await serving
        forwarding.cancel()
    peers.close()
    await peers.wait_closed()


async def init(client: RawClient, name: str | None = "t", version: int = 5, **more: Any) -> Any:
    """InitProducerId; return the answer."""
    return await client.call(
        22, version, {"transactional_id": name, "transaction_timeout": 60_000} | more
    )


async def begin(client: RawClient, *partitions: int, name: str = "t") -> tuple[int, int]:
    """Initialise a TV1 producer and let partitions of `orders` join; return its pair."""
    given = await init(client, name)
    assert given.error_code == 0
    pair = (int(given.producer_id), int(given.producer_epoch))
    await join(client, pair, *partitions, name=name)
    return pair


async def join(
    client: RawClient, pair: tuple[int, int], *partitions: int, name: str = "t"
) -> list[int]:
    """AddPartitionsToTxn v3; return the error per partition."""
    answer = await client.call(24, 3, {
        "v3_and_below_transactional_id": name, "v3_and_below_producer_id": pair[0],
        "v3_and_below_producer_epoch": pair[1],
        "v3_and_below_topics": [{"name": "orders", "partitions": list(partitions)}],
    })  # fmt: skip
    (topic,) = answer.results_by_topic_v3_and_below
    return [int(row.partition_error_code) for row in topic.results_by_partition]


def batch_of(
    pair: tuple[int, int], *values: bytes, sequence: int = 0, transactional: bool = True
) -> bytes:
    """Return one batch of a producer."""
    origin = Origin(*pair, base_sequence=sequence, transactional=transactional)
    return build_batch([Record(None, value, timestamp_ms=1) for value in values], origin=origin)


def produce_of(
    batch: bytes, partition: int = 0, *, name: str | None = "t", topic: str = "orders"
) -> Mapping[str, Any]:
    """Return the fields of a Produce request (by topic name)."""
    data = [{"index": partition, "records": batch}]
    return {
        "transactional_id": name, "acks": -1, "timeout": 5000,
        "topic_data": [{"name": topic, "partition_data": data}],
    }  # fmt: skip


async def produce(
    client: RawClient, batch: bytes, partition: int = 0, *, name: str | None = "t", version: int = 9
) -> int:
    """Produce one batch; return the error."""
    answer = await client.call(0, version, produce_of(batch, partition, name=name))
    return int(answer.responses[0].partition_responses[0].error_code)


async def end(
    client: RawClient, pair: tuple[int, int], *, commit: bool, name: str = "t", version: int = 3
) -> Any:
    """EndTxn; return the answer."""
    return await client.call(26, version, {
        "transactional_id": name, "producer_id": pair[0], "producer_epoch": pair[1],
        "committed": commit,
    })  # fmt: skip
