"""What a test of regions of several nodes does with them: writes, reads, waits, and compares all nodes of all regions."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from region_broker.controller.metadata_image import TIDEMARK_LEDGER
from region_broker.region.mirror import primary_side
from region_broker.region.peers.protocol import FetchedPartition
from region_broker.region.peers.sessions import Reply
from tests.simulation.cluster_regions import AnyNode, ClusterRegion, Regions, speaks
from tests.simulation.cut_judge import whole
from tests.simulation.kafka_client import Connection, Reader, batch_of, patiently

TOPIC = "accounts"


async def connected(regions: Regions, node: AnyNode) -> Connection:
    return await Connection.open(regions.fabric.site("client"), node.kafka_port)


async def create(regions: Regions, at: ClusterRegion, count: int = 2) -> None:
    """Make the topic and wait until every node that runs has it."""
    await at.led.node.topics.create_topic(TOPIC, count, {})
    await regions.until(
        lambda: all(
            each.node.storage.partitions.get(TOPIC, count - 1) is not None for each in regions.nodes.values() if each.runs
        ),
        "the topic arrives",
    )  # fmt: skip


async def write(regions: Regions, at: ClusterRegion, *values: bytes) -> None:
    """Let the region acknowledge these."""
    connection = await connected(regions, at.led)
    producer = await patiently(lambda: connection.init_producer_id(None))
    for number, value in enumerate(values):
        batch = batch_of(value, producer, number, transactional=False)
        await connection.produce(TOPIC, {0: batch})
    connection.close()


async def values_at(regions: Regions, at: ClusterRegion) -> list[bytes]:
    """Return what a read-committed reader gets of a region, once it shows all that it has."""

    def shows_all() -> bool:
        return at.leader is not None and all(
            p.sight.last_stable_offset == p.log_end_offset
            for p in at.led.node.storage.partitions
            if p.tp.topic == TOPIC
        )

    await regions.until(shows_all, f"{at.name} shows all")
    connection = await connected(regions, at.led)
    reader = Reader(TOPIC, 2, committed=True)
    while await reader.read(connection):
        pass
    connection.close()
    return [value for _, _, value in reader.records]


def number_of(node: AnyNode) -> int:
    """Return the number of the newest tidemark that its region claims."""
    return node.node.tidemarks.claim().point.number


async def shown(regions: Regions, at: ClusterRegion, count: int) -> None:
    """Wait until the region shows that many records."""
    await regions.until(
        lambda: (
            speaks(at.led) and at.led.partition(TOPIC, 0).sight.visible_end == count
            if at.leader
            else False
        ),
        f"{at.name} shows {count}",
    )


async def tidemarks_go_on(regions: Regions, acting: ClusterRegion, *values: bytes) -> None:
    """Write, and wait until each region has reached a tidemark that was published only then."""
    before = max(number_of(each.led) for each in regions.regions.values())
    await write(regions, acting, *values)
    await regions.until(
        lambda: all(
            each.leader is not None and number_of(each.led) > before
            for each in regions.regions.values()
        ),
        "tidemarks go on",
    )


def ends_of(node: AnyNode) -> dict[str, tuple[int, int]]:
    return {
        str(p.tp): (p.log_end_offset, p.high_watermark)
        for p in node.node.storage.partitions
        if p.tp.topic != TIDEMARK_LEDGER
    }


async def all_alike(regions: Regions, acting: str) -> None:
    """Wait until all is well and all logs of all nodes end alike; then compare bytes."""
    await regions.all_well(acting)
    nodes = list(regions.nodes.values())

    def alike() -> bool:
        first, *others = (ends_of(node) for node in nodes)
        return all(other == first for other in others) and all(e == h for e, h in first.values())

    await regions.until(alike, "all logs end at the same places")
    for partition in nodes[0].node.storage.partitions:
        if partition.tp.topic != TIDEMARK_LEDGER:
            copies = {
                whole(
                    node.partition(str(partition.tp.topic), partition.tp.partition),
                    partition.kept_from,
                )
                for node in nodes
            }
            assert len(copies) == 1, partition.tp


def held_by_all(region: ClusterRegion) -> dict[tuple[str, int], int]:
    """Return up to where all of its nodes have each log: (topic id, partition) -> offset."""
    tables = [node.node.storage.partitions for node in region.nodes.values()]
    return {
        (p.key.topic_id.hex, p.key.partition): min(
            held.log_end_offset for table in tables if (held := table.by_id(*p.key))
        )
        for p in tables[0]
    }


@contextmanager
def counted_fetches() -> Iterator[Counter[tuple[str, int, int]]]:
    """Count how often a primary sends what lies at a place: (topic id, partition, position)."""
    found: Counter[tuple[str, int, int]] = Counter()
    reply = primary_side._FetchSession._reply

    def counting(
        self: primary_side._FetchSession,
        parts: list[FetchedPartition],
        data: list[bytes | bytearray | memoryview],
    ) -> Reply:
        if not self._closed:  # else nobody hears it
            found.update((p.topic_id, p.partition, p.position) for p in parts if p.data_bytes)
        return reply(self, parts, data)

    primary_side._FetchSession._reply = counting  # type: ignore[method-assign]
    try:
        yield found
    finally:
        primary_side._FetchSession._reply = reply  # type: ignore[method-assign]
