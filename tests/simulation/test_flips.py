"""Bits that flip in lives: a drawn file is damaged, a region that refuses it is given the bit back, and nothing else."""

import random
from pathlib import Path

import pytest

from region_broker.node import START_REFUSALS
from region_broker.region.folder.identity_file import IdentityDamaged
from tests.simulation.folder_faults import copy_of, restore
from tests.simulation.kafka_client import Connection, batch_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region, until
from tests.simulation.swarm.flips import Flips
from tests.simulation.swarm.plan import Choice, Plan

pytestmark = [pytest.mark.slow, pytest.mark.simulation]
FLIPS = 200


async def stopped(tmp_path: Path) -> Region:
    region = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await region.start()
    await region.node.topics.create_topic("t", 1, {})
    client = await Connection.open(region.fabric.site("client"), region.kafka_port)
    producer = await client.init_producer_id(None)
    await client.produce("t", {0: batch_of(b"value", producer, 0, transactional=False)})
    client.close()
    region.node.stop()
    await until(lambda: region.died, "the node stops")
    await region.kill()
    return region


async def test_a_flip_changes_one_bit_of_a_file_that_has_checksums_and_is_undone(
    tmp_path: Path,
) -> None:
    region, chance = await stopped(tmp_path), random.Random(3)
    before, met = copy_of(region).files, set()
    for _ in range(FLIPS):
        flips = Flips()
        flip = flips.flip(region, chance)
        assert flip is not None
        now = copy_of(region).files
        [name] = [name for name in before if now[name] != before[name]]
        assert region.folder / name == flip.path
        changed = [at for at, byte in enumerate(before[name]) if now[name][at] != byte]
        assert changed == [flip.position]
        assert (before[name][flip.position] ^ now[name][flip.position]).bit_count() == 1
        assert flips.at("eu")
        flips.give_back(region)
        assert copy_of(region).files == before
        met.add(name)
    assert "identity" in met
    assert any(name.endswith(".log") for name in met)
    assert not any(name.startswith("metadata.db") for name in met)


async def test_INV_SWF1_what_was_written_in_place_of_a_damaged_byte_stays(tmp_path: Path) -> None:
    region, flips = await stopped(tmp_path), Flips()
    flip = flips.flip(region, random.Random(3))
    assert flip is not None
    region.disk.write_file_atomic(flip.path, bytes(flip.position + 1))
    flips.give_back(region)
    assert bytes(region.disk.content(flip.path)) == bytes(flip.position + 1)


async def test_T36_a_region_that_refuses_a_damaged_identity_starts_with_its_bit_back(
    tmp_path: Path,
) -> None:
    region, flips, chance = await stopped(tmp_path), Flips(), random.Random(3)
    while (flip := flips.flip(region, chance)) is not None and flip.path.name != "identity":
        flips.give_back(region)
    with pytest.raises(IdentityDamaged, match="is damaged"):
        await region.start()
    await region.kill()
    flips.give_back(region)
    await region.start()
    await region.kill()


async def test_whatever_bit_flips_an_opening_serves_or_says_why_not(tmp_path: Path) -> None:
    region, chance = await stopped(tmp_path), random.Random(3)
    whole, refused = copy_of(region), dict[str, str]()
    for path in sorted(region.disk.files_under(region.folder)):
        content = region.disk.content(path)
        if not content or path.name == "metadata.db":
            continue
        for position in {0, len(content) // 2, len(content) - 1, chance.randrange(len(content))}:
            region.disk.damage(path, position)
            try:
                await region.begin()
            except START_REFUSALS as error:
                refused[path.name] = str(error)
            await region.kill()
            restore(region, whole)
    assert {"identity", "format", "failover.journal"} <= set(refused)
    assert min(map(len, refused.values())) > 40, refused


def test_a_fourth_of_the_seeds_has_flips_and_they_can_be_left_out() -> None:
    names = ("eu", "us")
    having = [n for n in range(400) if any(Plan(n, names).flip(at) for at in range(1, 40))]
    assert 60 < len(having) < 140
    for seed in having[:5]:
        plan = Plan(seed, names, Choice.of("flip", None))
        assert not any(plan.flip(at) for at in range(1, 40))
