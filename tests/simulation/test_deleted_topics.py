"""Topics that are deleted, in whole nodes: no step of the loop waits for the disk (INV-RM7), whoever asked, and whoever follows."""

import asyncio
from collections.abc import Iterable
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.log.recovery.removal import MARK_NAME
from region_broker.records.batches import Record, build_batch
from tests.simulation.kafka_client import Connection
from tests.simulation.region_cluster import Member, region_cluster
from tests.simulation.region_pair import Region, region_pair
from tests.simulation.simulated_loop import SimulatedLoop
from tests.simulation.test_region_of_three import TOPIC, all_in_sync, connected, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

ON_THE_DISK = frozenset({
    "fdatasync", "fsync_dir", "write_file_atomic", "rename", "remove", "remove_tree"
})  # fmt: skip
"""What waits for the device, or for the file system."""


class Watched:
    """What a node does from now on to the manifest, and to the folder of a topic, under whatever name: on the loop, and in threads."""

    def __init__(self, region: Region, topic_id: UUID) -> None:
        running = asyncio.get_running_loop()
        assert isinstance(running, SimulatedLoop)
        self._loop = running
        self.table = region.node.storage.partitions
        self.folder = self.table.data_dir / topic_id.hex
        self.on_loop: list[tuple[str, Path]] = []
        self.aside: list[tuple[str, Path]] = []
        region.disk.fault = self._note

    def _note(self, operation: str, path: Path) -> None:
        below = path.relative_to(self.table.data_dir).parts[:1] if self._is_log(path) else ()
        ours = (self.folder.name, "manifest")
        if operation in ON_THE_DISK and below and below[0].startswith(ours):
            noted = self.aside if self._loop._in_job else self.on_loop
            noted.append((operation, path))

    def _is_log(self, path: Path) -> bool:
        return path.is_relative_to(self.table.data_dir)

    @property
    def is_done(self) -> bool:
        """Whether nothing has the topic's name any more."""
        return (
            self.table.by_id(UUID(hex=self.folder.name), 0) is None
            and not self.table.removal._going
        )

    def judge(self) -> None:
        """Nothing waited on the loop, and all was done: the mark, the manifest, the rename."""
        assert self.on_loop == []
        assert ("fdatasync", self.folder.with_name("manifest")) in self.aside
        marked = self.aside.index(("fsync_dir", self.folder))
        assert marked < self.aside.index(("rename", self.folder))


def all_done(watched: Iterable[Watched]) -> bool:
    return all(each.is_done for each in watched)


async def test_INV_RM7_neither_who_deletes_a_topic_nor_its_mirror_at_the_tidemark_waits_on_the_loop(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, seed=3) as pair:
        await pair.create_topic(TOPIC, 2)
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        await connection.produce(TOPIC, {1: build_batch([Record(None, b"x")])})
        await pair.until(
            lambda: pair.us.partition(TOPIC, 1).sight.last_stable_offset == 1, "it is shown"
        )
        topic_id = pair.eu.partition(TOPIC, 0).topic_id
        watched = [Watched(region, topic_id) for region in (pair.eu, pair.us)]
        await pair.eu.node.topics.delete_topic(TOPIC)
        assert watched[0].is_done, "who asked hears of it behind the rename"
        await pair.until(lambda: all_done(watched), "it is gone")
        for each in watched:
            each.judge()


async def test_INV_RM7_INV_RGF2_no_node_of_a_region_of_three_waits_on_the_loop_and_all_mark_first(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 5) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 2, {})
        await write(await connected(cluster, leader), [b"1"])
        nodes = list(cluster.nodes.values())
        topic_id = leader.partition(TOPIC, 0).topic_id
        await cluster.until(
            lambda: all(
                node.node.storage.partitions.by_id(topic_id, 1) is not None for node in nodes
            ),
            "all have it",
        )
        watched = [Watched(node, topic_id) for node in nodes]
        marked_while_known: set[tuple[int, bool]] = set()
        for node, each in zip(nodes, watched, strict=True):
            _note_marks(node, each, marked_while_known)
        await leader.node.topics.delete_topic(TOPIC)
        await cluster.until(lambda: all_done(watched), "it is gone")
        for each in watched:
            each.judge()
        assert marked_while_known == {(node.node_id, True) for node in nodes}


def _note_marks(node: Member, watched: Watched, found: set[tuple[int, bool]]) -> None:
    """Note at each mark of the topic whether the node's image and database still have it (INV-RGF2)."""
    note = node.disk.fault
    assert note is not None
    metadata = node.node.storage.metadata

    def noting(operation: str, path: Path) -> None:
        note(operation, path)
        if (operation, path) == ("fsync_dir", watched.folder) and node.disk.exists(
            watched.folder / MARK_NAME
        ):
            stored = metadata._database.stored.image.topics
            found.add((node.node_id, TOPIC in metadata.image.topics and TOPIC in stored))

    node.disk.fault = noting
