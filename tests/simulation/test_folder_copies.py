"""Rule T36: a copy of a folder that is in use elsewhere: whoever hears both nodes says so."""

from pathlib import Path
from typing import Any

import pytest

from geo_replicator.folder_life import LATE_MS
from region_broker.cli.region import runs_twice
from tests.simulation.folder_faults import copy_of, restore
from tests.simulation.network import Fabric, SiteNetwork
from tests.simulation.region_pair import Pair, Region
from tests.simulation.test_cut_link_alerts import MovedClock, exported, view_of
from tests.simulation.test_folders_without_history import shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
ELSEWHERE = "elsewhere"


class AnotherPlace:
    """The network as a second node of a region uses it: from a site of its own."""

    def __init__(self, fabric: Fabric) -> None:
        """Share `fabric` with all others."""
        self._fabric = fabric

    def site(self, _name: str) -> SiteNetwork:
        """See `Fabric`."""
        return self._fabric.site(ELSEWHERE)

    def kill(self, _name: str) -> None:
        """See `Fabric`."""
        self._fabric.kill(ELSEWHERE)


def at_another_address(regions: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    """Return the regions of a configuration, one of them with other ports."""
    moved = {"kafka": "127.0.0.1:13000", "peer": "127.0.0.1:13001", "http": "127.0.0.1:13002"}
    return [{**one, **moved} if one["name"] == name else one for one in regions]


def copy_elsewhere(pair: Pair, region: Region, folder: Path) -> Region:
    """Return a node at another address, on a copy of the folder of `region`, which is down."""
    copy = Region(region.name, folder, pair.fabric, pair.chance)
    copy.fabric = AnotherPlace(pair.fabric)  # type: ignore[assignment]  # what a region uses of it
    copy.made = True
    listed = [
        {"name": name, "ordinal": at, "node_id": at + 1, "kafka": f"127.0.0.1:{10_000 + at}",
         "peer": f"127.0.0.1:{11_000 + at}", "http": f"127.0.0.1:{12_000 + at}"}
        for at, name in enumerate(region.names)
    ]  # fmt: skip
    copy.settings = {"regions": at_another_address(listed, region.name)}
    restore(copy, copy_of(region))
    return copy


@pytest.mark.parametrize("older", [False, True], ids=["as it was", "an older one"])
async def test_T36_a_copy_that_runs_beside_the_original_is_told(
    tmp_path: Path, *, older: bool
) -> None:
    pair, clock = Pair(tmp_path, 1), MovedClock()
    pair.us.clock = clock
    await pair.start()
    try:
        await three_records(pair)
        await pair.eu.kill()
        copy = copy_elsewhere(pair, pair.eu, tmp_path / ELSEWHERE)
        if older:
            await pair.eu.start()
            await pair.eu.kill()
        await pair.eu.start()
        await write(pair.eu, b"four")
        await pair.until(lambda: shown(pair.us) == 4, "the mirror follows home")
        await copy.begin()
        try:
            await told(pair, clock)
        finally:
            await copy.kill()
        assert shown(pair.us) == 4
    finally:
        await pair.stop()


async def told(pair: Pair, clock: MovedClock) -> None:
    """Return once the mirror says which two nodes it hears."""

    def texts() -> list[str]:
        return runs_twice({"us": view_of(pair.us)})

    def hears_both() -> bool:
        clock.moved_ms += LATE_MS // 100  # a greeting comes every half second, and time flies here
        return bool(texts())

    await pair.until(hears_both, "both are heard")
    assert "two nodes run as region eu" in texts()[0]
    assert exported(pair.us)["tidemark_region_others_run_twice"] == [1]


async def test_T36_a_region_that_starts_again_and_again_runs_once(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 2)
    await pair.start()
    try:
        await three_records(pair)
        for _ in range(3):
            await pair.eu.kill()
            await pair.eu.start()
            await write(pair.eu, b"more")
            assert not runs_twice({name: view_of(one) for name, one in pair.regions.items()})
    finally:
        await pair.stop()
