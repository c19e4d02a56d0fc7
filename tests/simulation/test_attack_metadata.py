"""What an attack on the metadata's log broke in whole regions."""

import errno
import os
from pathlib import Path

import pytest

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.region.mirror.mirror_topics import mirror_topic
from tests.simulation.region_pair import Region, region_pair
from tests.simulation.test_cancelled_changes import agree, mirrors_of
from tests.unit.region_broker.log.test_journal import KeepsNothing

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def log_fails(operation: str, path: Path) -> None:
    """Let each sync of the quorum's log fail."""
    if operation == "fdatasync" and path.parent.name == "quorum":
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))


async def nothing_is_left(region: Region, topic_folder: str) -> None:
    """Start a region again whose deletion of a topic was in doubt, and is durable: its logs are gone, too."""
    await region.kill()
    await region.start()
    assert agree(region, "t") is None, "it was in the page cache"
    logs = region.node.storage.partitions.data_dir
    assert topic_folder not in region.disk.list_dir(logs)


async def test_INV_T5_a_deletion_in_doubt_that_took_effect_leaves_no_logs(tmp_path: Path) -> None:
    """Its mark was taken back, so that no start finishes it, and nobody ever frees its bytes."""
    async with region_pair(tmp_path, 3) as pair:
        topic = await pair.eu.node.topics.create_topic("t", 2, {})
        pair.eu.disk.fault = log_fails
        for _ in range(2):
            with pytest.raises(MetadataUnwritable):
                await pair.eu.node.topics.delete_topic("t")
        await nothing_is_left(pair.eu, topic.topic_id.hex)


async def test_INV_T5_a_deletion_of_a_mirror_in_doubt_leaves_no_logs(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 5) as pair:
        topics = await mirrors_of(pair, "t")
        image = pair.us.node.storage.metadata.image.topics["t"]
        pair.us.disk.fault = log_fails
        for _ in range(2):
            with pytest.raises(MetadataUnwritable):
                await topics.delete(mirror_topic(image))
        await nothing_is_left(pair.us, image.topic_id.hex)


async def test_INV_T5_a_deletion_in_doubt_that_took_no_effect_leaves_the_topic(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 3) as pair:
        topic = await pair.eu.node.topics.create_topic("t", 2, {})
        pair.eu.disk.fault = log_fails
        with pytest.raises(MetadataUnwritable):
            await pair.eu.node.topics.delete_topic("t")
        await pair.eu.kill(power=KeepsNothing())
        await pair.eu.start()
        assert agree(pair.eu, "t") == 2
        folder = pair.eu.node.storage.partitions.data_dir / topic.topic_id.hex
        assert "deleting" not in pair.eu.disk.list_dir(folder)
