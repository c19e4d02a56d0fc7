"""A leader epoch is acted in once (T1), also where one node leads its region on (ADR 48)."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from region_broker.region.peers.protocol import RUNS_ELSEWHERE
from tests.simulation.cluster_region_steps import (
    all_alike,
    create,
    tidemarks_go_on,
    values_at,
    write,
)
from tests.simulation.cluster_regions import PRIMARY, cluster_regions, leader_epoch_of

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_INV_OTM1_a_region_that_stood_aside_acts_again_under_another_leader_epoch(
    tmp_path: Path,
) -> None:
    """1. A node acts, and closes rounds. 2. The other region takes it for another start's twin: it stands still. 3. It is let in again.
    Rounds that it closed would be driven once more, under the same leader epoch (T1, T11)."""
    async with cluster_regions(tmp_path, 31) as regions:
        eu = regions.eu
        await create(regions, eu)
        await write(regions, eu, b"1", b"2")
        await tidemarks_go_on(regions, eu, b"3")
        acts, before = eu.led, leader_epoch_of(eu.led)
        said = replace(
            regions.us.led.node.failover.hello(),
            answers=True,
            refused="another start runs",
            refused_code=RUNS_ELSEWHERE,
        )
        acts.within(lambda: acts.node.failover.outlook.lives.heed(said))
        await regions.until(lambda: not acts.node.role.acting, "it stands aside")
        await regions.all_well(PRIMARY)
        assert eu.led is acts
        assert leader_epoch_of(acts) > before
        await tidemarks_go_on(regions, eu, b"4")
        await all_alike(regions, PRIMARY)
        assert await values_at(regions, regions.us) == [b"1", b"2", b"3", b"4"]
