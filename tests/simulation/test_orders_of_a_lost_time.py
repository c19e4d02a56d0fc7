"""Orders of a region's lost time are void, whichever way it goes on (T14)."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.region_pair import region_pair
from tests.simulation.test_bound_regions import bound_to_the_lost, why
from tests.simulation.test_deleted_by_the_lost import told_start
from tests.simulation.test_first_answers import first_answers

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_T14_a_lost_order_hides_nothing_where_its_region_takes_over_before_it_returned(
    tmp_path: Path,
) -> None:
    """1. eu promises ap, deletes records, and is lost, with ap. 2. us acts without that order, and shows the records.
    3. eu is back, bound by its promise; it has heard that us acts. 4. us is lost, eu takes over at the base of us.
    """
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        await bound_to_the_lost(pair, delete=True)
        assert (await first_answers(pair, pair.us, told_start))[0] == [0]
        await pair.eu.begin()
        await pair.until(lambda: "was promised the higher" in why(pair.eu), "it is bound")
        assert pair.eu.phase is Phase.FENCED
        await pair.us.kill()
        del pair.regions["us"]
        operation = pair.eu.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status != "running", "the takeover ends")
        assert operation.status == "succeeded", operation
        assert (await first_answers(pair, pair.eu, told_start))[0] == [0]
