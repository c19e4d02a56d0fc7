"""Bits that flip at rest in the files of a region that is down: found, and never served.

What a region then shows is what was written, or less with an error that says so; or it does not start, and says why. Not
here: `metadata.db`, whose pages have no checksums: SQLite notices what it cannot read, nobody a value that changed.
"""

import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from region_broker.region.folder.identity_file import IdentityDamaged
from tests.simulation.folder_faults import FolderCopy, copy_of, restore
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region, until

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
RECORDS = 7
FIRST, LAST = f"{0:020d}", f"{5:020d}"


def value(number: int) -> bytes:
    return b"%06d" % number * 30_000


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    """A region that has stopped, with a full segment and another one."""
    made = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await made.start()
    await made.node.topics.create_topic("t", 1, {"segment.bytes": "1048576"})
    client = await Connection.open(made.fabric.site("client"), made.kafka_port)
    producer = await client.init_producer_id(None)
    for number in range(RECORDS):
        data = batch_of(value(number), producer, number, transactional=False)
        await client.produce("t", {0: data})
    client.close()
    made.node.stop()
    await until(lambda: made.died, "the node stops")
    await made.kill()
    yield made
    await made.kill()


def flip(region: Region, name: str, copy: FolderCopy) -> None:
    """Flip a bit in the middle of the one file of that name: of the topic with the most bytes, where more have it."""
    path = max((each for each in copy.files if each.endswith(name)), key=lambda x: _weight(x, copy))
    assert copy.files[path]
    region.disk.damage(region.folder / path, len(copy.files[path]) // 2)


def _weight(path: str, copy: FolderCopy) -> int:
    folder = path.rpartition("/")[0]
    return sum(len(content) for name, content in copy.files.items() if name.startswith(folder))


async def shown(region: Region) -> tuple[list[bytes], bool]:
    """Return what a reader gets before an error or the end, and whether it was an error."""
    client = await Connection.open(region.fabric.site("client"), region.kafka_port)
    reader = Reader("t", 1, committed=True)
    refused = False
    try:
        while await reader.read(client):
            pass
    except (Refused, OSError):
        refused = True
    client.close()
    return [each for _, _, each in reader.records], refused


@pytest.mark.parametrize(("segment", "sound"), [(FIRST, 2), (LAST, 5)])
async def test_INV_T3_a_flipped_bit_in_a_segment_is_refused_and_never_served(
    region: Region, segment: str, sound: int
) -> None:
    flip(region, f"{segment}.log", copy_of(region))
    await region.start()
    got, refused = await shown(region)
    assert refused
    assert len(got) >= sound
    assert got == [value(number) for number in range(len(got))]


async def test_a_flipped_bit_in_a_file_beside_segments_costs_no_record(region: Region) -> None:
    whole = copy_of(region)
    for name in (".index", ".snapshot", ".bookmark", "/checkpoint", "/leader-epochs", "/journal"):
        restore(region, whole)
        flip(region, name, whole)
        await region.start()
        assert await shown(region) == ([value(number) for number in range(RECORDS)], False), name
        await region.kill()


async def test_T36_a_flipped_bit_in_the_identity_keeps_a_region_from_starting(
    region: Region,
) -> None:
    flip(region, "identity", copy_of(region))
    with pytest.raises(IdentityDamaged, match="is damaged"):
        await region.start()
