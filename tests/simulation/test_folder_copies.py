"""Rule T36: a copy of a folder that is in use elsewhere is refused by whoever hears both nodes, and that one says so."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from geo_replicator.failover import Phase
from geo_replicator.folder_life import LATE_MS, TWICE_MS
from region_broker.cli.region import runs_twice
from region_broker.region.peers.protocol import (
    ASK_AGAIN,
    RUNS_ELSEWHERE,
    Hello,
    PeerRefused,
)
from tests.simulation.folder_faults import copy_of, restore
from tests.simulation.network import Fabric, SiteNetwork
from tests.simulation.region_pair import Pair, Region, region_pair, until
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
        await pair.until(lambda: shown(pair.us) == 4, "the mirror follows the primary")
        await copy.begin()
        try:
            await told(pair, clock)
            assert pair.eu.node.role.acting
            assert not copy.node.role.acting
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
        clock.moved_ms += LATE_MS // 100  # a handshake comes every half second, and time flies here
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


def refused(copy: Region) -> str:
    """Return why a node stands aside."""
    return str(view_of(copy)["stands_aside"])


async def started_twice(pair: Pair, region: Region, folder: Path) -> Region:
    """Start the region again, and then a copy of its folder elsewhere; return that one once it was refused."""
    await three_records(pair)
    await region.kill()
    copy = copy_elsewhere(pair, region, folder)
    await region.start()
    await write(pair.eu, b"four")
    await pair.until(lambda: shown(pair.us) == 4, "the original goes on by itself")
    return copy


async def refused_at_last(pair: Pair, copy: Region) -> None:
    await copy.begin()
    await pair.until(lambda: bool(refused(copy)), "the copy is refused")
    assert not copy.node.role.acting
    assert f"another node runs as region {copy.name}" in refused(copy)
    assert "remove the copy" in refused(copy)
    assert view_of(copy)["waits_for"] == "other_start"
    with pytest.raises(PeerRefused, match="another node runs"):
        copy.node.failover.outlook.lives.admit(pair.us.node.failover.hello())


async def test_T36_a_copy_of_the_primary_acts_only_once_the_original_is_stopped(
    tmp_path: Path,
) -> None:
    pair, clock = Pair(tmp_path, 3), MovedClock()
    pair.us.clock = clock
    await pair.start()
    try:
        copy = await started_twice(pair, pair.eu, tmp_path / ELSEWHERE)
        try:
            await refused_at_last(pair, copy)
            await pair.until(
                lambda: refused(copy) in copy.node.role.reason_not_acting, "it says why"
            )
            await write(pair.eu, b"five")
            await pair.until(lambda: shown(pair.us) == 5, "the mirror follows the original")
            await pair.eu.kill()
            del pair.regions["eu"]
            clock.moved_ms += TWICE_MS
            await pair.until(lambda: copy.phase is Phase.DISPUTED, "it is let in, and is too old")
            assert not refused(copy)
        finally:
            await copy.kill()
    finally:
        await pair.stop()


async def test_T36_the_start_that_was_known_is_remembered_over_a_restart(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 6)
    await pair.start()
    try:
        copy = await started_twice(pair, pair.eu, tmp_path / ELSEWHERE)
        await pair.us.kill()
        pair.fabric.cut("eu", "us")
        await pair.us.start()
        await copy.begin()
        try:
            await pair.until(
                lambda: "ask again" in copy.node.role.reason_not_acting,
                "it is not let in, although the original is not heard",
            )
            pair.fabric.heal("eu", "us")
            await pair.until(lambda: bool(refused(copy)), "the original is heard")
            assert not copy.node.role.acting
        finally:
            await copy.kill()
    finally:
        await pair.stop()


async def test_T36_a_copy_of_a_mirror_copies_nothing_while_the_original_runs(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, 4)
    await pair.start()
    try:
        copy = await started_twice(pair, pair.us, tmp_path / ELSEWHERE)
        try:
            await refused_at_last(pair, copy)
            assert shown(copy) < 4
            operation = copy.node.operations.begin_failover(confirmed=True)
            await pair.until(lambda: operation.status != "running", "it is told to take over")
            assert operation.status == "failed"
            assert "another node runs as region us" in operation.error
        finally:
            await copy.kill()
        assert pair.eu.node.role.acting
    finally:
        await pair.stop()


async def test_T36_a_copy_that_acted_alone_closes_when_it_is_met(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 5)
    await pair.start()
    try:
        copy = await started_twice(pair, pair.eu, tmp_path / ELSEWHERE)
        pair.fabric.cut(ELSEWHERE, "us")
        await copy.begin()
        try:
            await until(lambda: copy.node.role.acting, "nobody can tell it")
            pair.fabric.heal(ELSEWHERE, "us")
            await pair.until(lambda: bool(refused(copy)), "they meet")
            assert not copy.node.role.acting
            assert pair.eu.node.role.acting
            await write(pair.eu, b"five")
            await pair.until(lambda: shown(pair.us) == 5, "the original goes on")
        finally:
            await copy.kill()
    finally:
        await pair.stop()


async def test_T36_a_refused_primary_names_the_way_out_where_who_refused_it_answers_no_more(
    tmp_path: Path,
) -> None:
    pair = Pair(tmp_path, 7)
    await pair.start()
    try:
        copy = await started_twice(pair, pair.eu, tmp_path / ELSEWHERE)
        await refused_at_last(pair, copy)
        await pair.stop()
        await until(lambda: "restart this one" in copy.node.role.reason_not_acting, "it says how")
        assert "region us does not answer now" in refused(copy).lower()
        await copy.kill()
        await copy.begin()
        try:
            await until(lambda: copy.node.role.acting, "no peer is needed, nor an operator's word")
        finally:
            await copy.kill()
    finally:
        await pair.stop()


async def test_T36_a_node_that_stands_aside_takes_nothing_over_where_another_region_is_not_sure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two nodes that both stand aside are told apart by nobody, until one is stopped: who asks for one ends."""

    def unsure(_hello: Hello) -> None:
        raise PeerRefused(ASK_AGAIN, "another start was heard")

    async with region_pair(tmp_path, 8) as pair:
        monkeypatch.setattr(pair.eu.node.failover.outlook.lives, "judge", unsure)
        lives = pair.us.node.failover.outlook.lives
        refusing = pair.eu.node.failover.hello()
        lives.heed(
            msgspec.structs.replace(
                refusing, region="ap", answers=True, refused="so", refused_code=RUNS_ELSEWHERE
            )
        )
        operation = pair.us.node.operations.begin_failover(confirmed=True)
        await pair.until(lambda: operation.status == "failed", "it ends, and says why")
        assert "region ap" in operation.error
