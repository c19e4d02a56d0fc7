"""Rule T31: a region that was lost and returns answers from one history, not from its own and the new primary's at once."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.region_pair import region_pair
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_T31_a_region_that_returns_shows_nothing_that_is_lost_once_it_forwards(
    tmp_path: Path,
) -> None:
    """INV-LS6. A processor would take lost records from here, and commit what it made of them at the new primary."""
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        pair.fabric.cut("eu", "us")
        await write(pair.eu, b"lost")
        await pair.fail_over()
        assert shown(pair.eu) == 4, "it acts, and has heard of nothing"
        pair.fabric.heal("eu", "us")
        driver = pair.eu.node.failover
        await pair.until(lambda: driver.hello().acting_region == "us", "it knows whom to ask")
        assert driver.state.phase is Phase.RETURNING
        assert pair.eu.partition("orders", 0).log_end_offset == 4, "nothing is cut yet"
        assert shown(pair.eu) <= 3
        await pair.until(lambda: driver.state.phase is Phase.MIRRORING, "it returned")
        await pair.until(lambda: shown(pair.eu) == 3, "it shows what the new primary has")
