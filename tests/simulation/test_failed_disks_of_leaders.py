"""A disk of the node that leads fails: the region has two more, and goes on (INV-NRP2)."""

import asyncio
import errno
from pathlib import Path

import pytest

from tests.simulation.kafka_client import Connection, Refused, batch_of, patiently
from tests.simulation.region_cluster import Cluster, region_cluster
from tests.simulation.region_pair import until
from tests.simulation.test_region_of_three import TOPIC, all_in_sync, connected

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
GOES_ON_S = 5.0


async def test_writes_go_on_where_the_leaders_disk_fails(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 1) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await all_in_sync(cluster)

        def fail(operation: str, path: Path) -> None:
            if operation == "fdatasync":
                raise OSError(errno.EIO, "it fails", str(path))

        leader.disk.fault = fail
        async with asyncio.timeout(GOES_ON_S):
            await written(cluster)


async def test_INV_M19_a_node_that_cannot_write_its_metadata_ends_and_answers_nobody(
    tmp_path: Path,
) -> None:
    """It would say for ever that nobody leads, and a client that asks it would never hear of the others."""
    async with region_cluster(tmp_path, 2) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await all_in_sync(cluster)

        def fail(operation: str, path: Path) -> None:
            if operation in ("pwrite", "fdatasync"):
                raise OSError(errno.EIO, "it fails", str(path))

        leader.disk.fault = fail
        await written(cluster)
        await until(lambda: leader.died, "it has ended")
        assert "start the node again" in leader.why_died()


async def written(cluster: Cluster) -> None:
    """Return once a record is acknowledged by whoever leads."""
    while True:
        try:
            leader = await cluster.until_led()
            async with asyncio.timeout(1):
                await _write(await connected(cluster, leader))
                return
        except (OSError, Refused):
            await asyncio.sleep(0.1)


async def _write(connection: Connection) -> None:
    producer = await patiently(lambda: connection.init_producer_id(None))
    batch = batch_of(b"one", producer, 0, transactional=False)
    await connection.produce(TOPIC, {0: batch})
