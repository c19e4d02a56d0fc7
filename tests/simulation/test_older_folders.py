"""Folders that an older version of Tidemark wrote, on nodes of this one."""

import random
from pathlib import Path

import pytest

from idempotency.identity import INTERNAL_TOPICS, OFFSETS_LEDGER, TRANSACTION_LEDGER
from region_broker.controller.metadata_commands import SetTopicConfigs
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
        await pair.create_topic("later", 1)  # the mirror follows home's registry again
        for region in order:
            await until(lambda r=region: compacted(r) == COMPACTED, f"{region.name} compacts")  # type: ignore[misc]
