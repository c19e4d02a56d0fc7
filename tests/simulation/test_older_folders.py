"""Folders that an older version of Tidemark wrote, on nodes of this one."""

import random
from pathlib import Path

import msgspec
import pytest

from geo_replicator.failover_events import Born
from idempotency.identity import INTERNAL_TOPICS, OFFSETS_LEDGER, TRANSACTION_LEDGER
from region_broker.controller.metadata_commands import SetTopicConfigs
from region_broker.node import NodeRefused
from region_broker.region.failover.journal import FailoverJournal
from tests.simulation.folder_faults import lose_file
from tests.simulation.region_pair import Region, region_pair, until

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

COMPACTED = {OFFSETS_LEDGER, TRANSACTION_LEDGER}


def compacted(region: Region) -> set[str]:
    """Return the ledgers that this region's logs compact."""
    return {name for name in INTERNAL_TOPICS if region.partition(name, 0).log.config.compacts}


@pytest.mark.parametrize("first", ["eu", "us"])
async def test_ledgers_that_were_kept_whole_are_compacted_from_the_next_start_on(
    tmp_path: Path, first: str
) -> None:
    async with region_pair(tmp_path, 7) as pair:
        for region in (pair.eu, pair.us):
            metadata = region.node.storage.metadata
            for name in COMPACTED:
                topic_id = metadata.image.topics[name].topic_id
                await metadata.apply(SetTopicConfigs(topic_id, {}))
        for region in (pair.eu, pair.us):
            await region.kill(power=random.Random(1))
        order = [pair.eu, pair.us] if first == "eu" else [pair.us, pair.eu]
        for region in order:
            await region.start()
        await pair.create_topic("later", 1)  # the mirror follows the primary's registry again
        for region in order:
            await until(lambda r=region: compacted(r) == COMPACTED, f"{region.name} compacts")  # type: ignore[misc]


async def without_identity(region: Region) -> None:
    """Let a folder be as a version wrote it that knew of no identity."""
    lose_file(region, "identity")
    path = region.folder / "failover.journal"
    journal = FailoverJournal(region.disk, path)
    events = journal.recover()
    journal.close()
    lose_file(region, path.name)
    older = FailoverJournal(region.disk, path)
    older.recover()
    for event in events:
        is_born = isinstance(event, Born)
        await older.append(msgspec.structs.replace(event, folder_id="") if is_born else event)
    older.close()


async def test_T32_regions_whose_folders_have_no_identity_come_to_the_same_birth(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 8) as pair:
        await pair.create_topic("orders", 1)
        for region in (pair.eu, pair.us):
            await region.kill()
            await without_identity(region)
        await pair.eu.start()
        await until(lambda: pair.eu.node.role.acting, "the primary acts, without any peer")
        await pair.us.start()
        await pair.create_topic("later", 1)
        eu, us = (region.node.storage.folder.identity for region in (pair.eu, pair.us))
        assert eu.born is not None
        assert us.joined is not None
        assert eu.born.birth_id == us.joined.birth_id
        assert eu.folder_id != us.folder_id
        for region in (pair.eu, pair.us):
            await region.kill()
            lose_file(region, "identity")
            with pytest.raises(NodeRefused, match="identity is missing"):
                await region.open()
