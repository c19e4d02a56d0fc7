"""Topics that are made, and grow, in whole nodes: what their logs need is made beside the loop (INV-LAY5, INV-CTP1)."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest
from msgspec import structs

from region_broker.controller.metadata_store import Coming
from region_broker.records.batches import Record, build_batch
from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import Region, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

TOPIC = "stream"
WAITING = frozenset({"fdatasync", "fsync_dir", "write_file_atomic"})
"""What waits for the device."""


class Watched:
    """What a node does to the files of logs that waits for the device: `on_loop`, and in jobs of the laying out, `aside`."""

    def __init__(self, region: Region) -> None:
        """Watch from now on; clients write nothing meanwhile."""
        self.on_loop: list[Path] = []
        self.aside: list[Path] = []
        self._noted = self.on_loop
        table = region.node.storage.partitions
        self._logs = table.data_dir
        table.laying_out = replace(table.laying_out, offload=self._offload)
        region.disk.fault = self._note

    async def _offload(self, work: Callable[[], None]) -> None:
        self._noted = self.aside
        work()
        self._noted = self.on_loop

    def _note(self, operation: str, path: Path) -> None:
        if operation in WAITING and path.is_relative_to(self._logs):
            self._noted.append(path)

    def of(self, topic_id: UUID) -> tuple[list[Path], list[Path]]:
        """Return what was done on the loop to the manifest and a topic's files, but for what is written to its logs, and aside."""
        folder = self._logs / topic_id.hex
        on_loop = [
            path
            for path in self.on_loop
            if path.name == "manifest" or (path.is_relative_to(folder) and path.suffix != ".log")
        ]
        return on_loop, [path for path in self.aside if path.is_relative_to(folder)]


async def test_INV_LAY5_who_makes_a_topic_grow_in_a_region_of_one_node_makes_its_logs_beside_the_loop(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=1) as pair:
        watched = Watched(pair.eu)
        await pair.create_topic(TOPIC, 1)
        topic_id = pair.eu.partition(TOPIC, 0).topic_id
        on_loop, aside = watched.of(topic_id)
        assert (on_loop, bool(aside)) == ([], True)
        await pair.eu.node.topics.grow_topic(TOPIC, 3, 1)
        on_loop, aside = watched.of(topic_id)
        assert on_loop == []
        assert {path.parent.name for path in aside} >= {"0", "1", "2"}
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        await connection.produce(TOPIC, {2: build_batch([Record(None, b"x")])})
        await pair.until(
            lambda: (
                pair.us.node.storage.partitions.get(TOPIC, 2) is not None
                and pair.us.partition(TOPIC, 2).sight.last_stable_offset == 1
            ),
            "it is shown",
        )


async def test_INV_CTP1_a_mirror_of_one_node_lays_out_nothing_that_its_link_may_open_at_any_moment(
    tmp_path: Path,
) -> None:
    """1. A topic grows at the primary. 2. The mirror opens the new logs early, by no command, and copies. 3. It reaches the tidemark, and its
    registry has them, too: a log that is open would be laid out."""
    async with region_pair(tmp_path, seed=1) as pair:
        await pair.create_topic(TOPIC, 1)
        grown = grown_to(pair.us, 3)
        for region, laid in ((pair.us, False), (pair.eu, True)):
            watched = Watched(region)
            await region.node.storage.metadata.on_coming([grown])
            assert bool(watched.of(grown.topic.topic_id)[1]) is laid


def grown_to(region: Region, count: int) -> Coming:
    """Return what comes where the topic gets `count` partitions."""
    topic = region.node.storage.metadata.image.topics[TOPIC]
    grown = structs.replace(topic, partition_count=count)
    return Coming(grown, range(topic.partition_count, count), grows=True)
