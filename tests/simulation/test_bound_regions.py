"""What a region that returns, or never gets to, may not take from the others: orders of its lost time."""

from pathlib import Path

import pytest

from geo_replicator.directory import next_region_epoch
from geo_replicator.failover_events import PromiseGiven
from tests.simulation.region_pair import Pair, Region, region_pair
from tests.simulation.test_deleted_by_the_lost import delete_two
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def why(region: Region) -> str:
    """Return why a region does not act."""
    return region.node.role.reason_not_acting


async def bound_to_the_lost(pair: Pair, *, delete: bool) -> None:
    """Let eu promise the next region epoch to ap, and end, and ap with it; us takes over, and hears nothing of that."""
    ap = pair.regions["ap"]
    await three_records(pair)
    await pair.until(lambda: shown(ap) == 3, "ap shows all")
    for other in ("us", "ap"):
        pair.fabric.cut("eu", other, silent=False)
    if delete:
        await delete_two(pair)
    driver = pair.eu.node.failover
    promised = next_region_epoch([driver.state.region_epoch], 2)
    await driver.record(PromiseGiven(promised, "ap"), expected=driver.state)
    await pair.eu.kill()
    await ap.kill()
    del pair.regions["ap"]
    await pair.fail_over()
    pair.fabric.heal("eu", "us")


async def test_T24_an_order_at_a_bound_region_loses_nothing_of_a_primary_that_is_up(
    tmp_path: Path,
) -> None:
    """1. eu promises ap, and is cut off; ap is lost. 2. us acts, and acknowledges. 3. eu hears of us, is bound, and says that
    an operator should let it take over. 4. It does: us is up, answers, and is not passed over without a word (T24).
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        await bound_to_the_lost(pair, delete=False)
        await write(pair.us, b"four")
        await pair.eu.begin()
        await pair.until(lambda: "tidemark region failover --to eu" in why(pair.eu), "it is bound")
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        acts = pair.eu if operation.status == "succeeded" else pair.us
        assert shown(acts) == 4, "what us acknowledged"


async def test_T24_an_order_at_a_region_that_was_cut_off_loses_nothing_of_a_primary_that_is_up(
    tmp_path: Path,
) -> None:
    """1. ap is cut off, and eu is lost. 2. us acts, and acknowledges. 3. ap is there again, and has not heard of us yet, when
    an operator lets it take over: us is up, and answers it.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        ap = pair.regions["ap"]
        await three_records(pair)
        await pair.until(lambda: shown(ap) == 3, "ap shows all")
        for other in ("us", "eu"):
            pair.fabric.cut("ap", other, silent=False)
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.fail_over()
        await write(pair.us, b"four")
        pair.fabric.heal("ap", "us")
        operation = ap.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        acts = ap if operation.status == "succeeded" else pair.us
        assert shown(acts) == 4, f"what us acknowledged, {operation}"
