"""A known gap of T14, a row of docs/ROADMAP.md: a test that fails, and that says so when it no longer does."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.region_pair import region_pair
from tests.simulation.test_folders_without_history import TOPIC, shown, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


@pytest.mark.xfail(
    reason="ROADMAP: a mirror removes what the primary keeps for another one", raises=AssertionError
)
async def test_a_mirror_that_was_behind_follows_who_took_over_after_records_were_deleted(
    tmp_path: Path,
) -> None:
    """1. us is cut off for a moment. 2. Records are deleted by order: eu keeps them for us, ap does not. 3. eu is lost, and ap
    takes over. 4. us is there again: nobody is missing who could not be missed.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await pair.eu.node.topics.create_topic(
            TOPIC, 1, {"segment.bytes": "4096", "retention.ms": "-1"}
        )
        await write(pair.eu, b"x" * 1000)
        await pair.until(lambda: shown(pair.us) == shown(ap) == 1, "both show it")
        for other in ("eu", "ap"):
            pair.fabric.cut("us", other, silent=False)
        for _ in range(40):
            await write(pair.eu, b"x" * 1000)
        await pair.until(lambda: shown(ap) == 41, "ap shows all")
        assert await pair.eu.partition(TOPIC, 0).retention.delete_records(30) == 30
        await pair.until(lambda: ap.partition(TOPIC, 0).log_start_offset == 30, "ap follows")
        await pair.until(lambda: ap.partition(TOPIC, 0).kept_from > 1, "its segments are gone")
        assert pair.eu.partition(TOPIC, 0).kept_from <= 1, "they are kept for us"
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.take_over(planned=False, by=ap)
        for other in ("eu", "ap"):
            pair.fabric.heal("us", other)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows ap")
        await write(ap, b"more")
        await pair.until(lambda: shown(pair.us) == 42, "us shows all")
