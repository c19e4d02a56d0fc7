"""Two regions of several nodes whose logs are compacted: every node cleans its own copy, and whoever leads next goes on with it (INV-CBO5)."""

from pathlib import Path

import pytest

from idempotency.record_batch import iter_headers
from region_broker.partitions import cleaner
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch, iter_records
from tests.simulation.cluster_region_steps import TOPIC, connected
from tests.simulation.cluster_regions import AnyNode, ClusterRegion, Regions, cluster_regions
from tests.simulation.simulated_loop import LoopClock

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
CONFIGS = {
    "cleanup.policy": "compact",
    "segment.bytes": "4096",
    "min.cleanable.dirty.ratio": "0",
    "delete.retention.ms": "50",
}


async def write(regions: Regions, at: ClusterRegion, first: int, count: int) -> None:
    """Give five keys new values, again and again."""
    connection = await connected(regions, at.led)
    for number in range(first, first + count):
        value = b"%d" % number + b"v" * 400
        key = b"k%d" % (number % 5)
        await connection.produce(TOPIC, {0: build_batch([Record(key, value, timestamp_ms=1)])})
    connection.close()


def newest_at(node: AnyNode) -> dict[bytes, int]:
    """Return the number of the newest value of each key that a reader of the node's log is shown."""
    found: dict[bytes, int] = {}
    partition, offset = node.partition(TOPIC, 0), 0
    while got := partition.reader.fetch(offset, 1 << 20, Isolation.DURABLE):
        if not got.data:
            return found
        for at, header in iter_headers(got.data):
            for record in iter_records(got.data[at : at + header.size_bytes]):
                assert record.key is not None
                assert record.value is not None
                found[record.key] = int(record.value.rstrip(b"v"))
        offset = got.next_offset
    raise AssertionError("it ends")


def cleaned_below(node: AnyNode) -> int:
    return node.partition(TOPIC, 0).log.cleaning.mark.cleaned_here_below


async def test_INV_CBO5_all_nodes_of_both_regions_clean_their_copies_and_nothing_is_lost_by_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cleaner, "PAUSE_MS", 20)
    async with cluster_regions(tmp_path, 21) as regions:
        await regions.eu.led.node.topics.create_topic(TOPIC, 1, CONFIGS)
        nodes = list(regions.nodes.values())
        await regions.until(
            lambda: all(each.node.storage.partitions.get(TOPIC, 0) is not None for each in nodes),
            "the topic arrives",
        )
        written = 0
        while min(map(cleaned_below, nodes)) == 0:
            assert written < 1_000, [cleaned_below(each) for each in nodes]
            await write(regions, regions.eu, written, 20)
            written += 20
            await LoopClock().sleep_ms(200)
        led, mirroring = regions.eu.led, regions.us.led
        for node in regions.eu.nodes.values():
            assert cleaned_below(node) <= led.partition(TOPIC, 0).log.cleaning.holes_below
        for node in regions.us.nodes.values():
            assert cleaned_below(node) <= mirroring.partition(TOPIC, 0).log.cleaning.holes_below
        await led.kill()
        await regions.until_led(regions.eu, but=led)
        await regions.until(lambda: regions.eu.acts, "eu acts")
        await write(regions, regions.eu, written, 5)
        await led.begin()
        await regions.all_well("eu")
        await regions.take_over(regions.us, planned=True)
        await write(regions, regions.us, written + 5, 2)
        await regions.all_well("us")
        await regions.until(
            lambda: all(each.partition(TOPIC, 0).high_watermark == written + 7 for each in nodes),
            "all have it",
        )
        expected = {b"k%d" % (n % 5): n for n in range(written + 7)}
        for node in nodes:
            assert newest_at(node) == expected, node.name
