"""Known gaps of T14, each a row of docs/ROADMAP.md: tests that fail, and that say so when they no longer do."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.region_pair import region_pair
from tests.simulation.test_crossed_takeovers import ordered
from tests.simulation.test_deleted_by_the_lost import told_start
from tests.simulation.test_first_answers import first_answers
from tests.simulation.test_folders_without_history import TOPIC, shown, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


@pytest.mark.xfail(
    reason="ROADMAP: segments that a lost DeleteRecords had removed", raises=AssertionError
)
async def test_a_region_that_has_really_deleted_what_a_lost_order_named_copies_it_again(
    tmp_path: Path,
) -> None:
    """INV-PT10. The segments were gone before any tidemark with that order was reached anywhere."""
    async with region_pair(tmp_path, 1) as pair:
        await pair.eu.node.topics.create_topic(
            TOPIC, 1, {"segment.bytes": "4096", "retention.ms": "-1"}
        )
        for _ in range(40):
            await write(pair.eu, b"x" * 1000)
        await pair.until(lambda: shown(pair.us) == 40, "the mirror shows all")
        pair.fabric.cut("eu", "us", silent=False)
        log = pair.eu.partition(TOPIC, 0)
        assert await log.retention.delete_records(30) == 30
        await pair.until(lambda: log.kept_from > 0, "segments are gone")
        await pair.eu.kill()
        await pair.fail_over()
        assert shown(pair.us) == 40
        pair.fabric.heal("eu", "us")
        assert (await first_answers(pair, pair.us, told_start))[0] == [0]
        await pair.eu.begin()
        told = await first_answers(pair, pair.eu, told_start)
        await pair.until(lambda: pair.eu.phase is Phase.MIRRORING, "it returned")
        await write(pair.us, b"more")
        await pair.until(lambda: shown(pair.eu) == 41, "it follows")
        operation = pair.eu.node.operations.begin_switch()
        await pair.until(lambda: operation.status != "running", "switched")
        assert operation.status == "succeeded", operation
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows")
        await write(pair.eu, b"even more")
        await pair.until(lambda: shown(pair.us) == 42, "us follows")
        starts = [pair.regions[name].partition(TOPIC, 0).log_start_offset for name in ("us", "eu")]
        assert (told[0], starts) == ([0], [0, 0]), "told first; and after a planned switch"


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
        await ordered(pair, ap)
        for other in ("eu", "ap"):
            pair.fabric.heal("us", other)
        await pair.until(lambda: pair.us.phase is Phase.MIRRORING, "us follows ap")
        await write(ap, b"more")
        await pair.until(lambda: shown(pair.us) == 42, "us shows all")
