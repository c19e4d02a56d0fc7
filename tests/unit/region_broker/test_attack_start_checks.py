"""A look at a folder whose metadata is another folder's finds what a start would refuse (INV-STC2)."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.image_database import MetadataUnreadable
from region_broker.controller.metadata_store import QUORUM_FOLDER
from region_broker.node.storage import METADATA_FILE, Storage
from tests.fixtures.failover_regions import free_ports
from tests.unit.region_broker.test_start_checks import PORTS, config_of, found, names

PORT_NUMBERS = [1, 2, 3, 4]


async def exchanged(mine: Path, theirs: Path) -> None:
    """Make two folders of one configuration, and give the first one the metadata of the second, with its log."""
    for folder in (mine, theirs):
        storage = await Storage.open(config_of(folder, PORT_NUMBERS), PORTS)
        await storage.close()
    shutil.copy(theirs / METADATA_FILE, mine)
    shutil.rmtree(mine / QUORUM_FOLDER)
    shutil.copytree(theirs / QUORUM_FOLDER, mine / QUORUM_FOLDER)


@pytest.mark.parametrize("changed", [{}, {"node_id": 2}])
async def test_INV_STC2_metadata_of_another_folder_is_found_as_by_a_start(
    tmp_path: Path, changed: dict[str, Any]
) -> None:
    mine = tmp_path / "mine"
    await exchanged(mine, tmp_path / "theirs")
    if changed:  # a start that ended before it wrote the identity, and another node's configuration
        (mine / "identity").unlink()
        shutil.rmtree(mine / "logs")
    config = config_of(mine, free_ports(4), **changed)
    before = names(mine)
    (problem,) = await found(config)
    assert "folders were exchanged or copied" in str(problem)
    assert names(mine) == before
    with pytest.raises(MetadataUnreadable, match="exchanged or copied"):
        await Storage.open(config, PORTS)
