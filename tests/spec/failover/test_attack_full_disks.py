"""A quarantine that has no room for a log that is cut late ends no region (INV-LS4, T20)."""

import asyncio
import errno
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from geo_replicator.failover import Phase
from geo_replicator.quarantine import Provenance
from region_broker.region.failover.quarantine_store import QuarantineStore
from tests.fixtures.failover_regions import Pair, Site
from tests.spec.failover.test_attack_late_cuts import acts_with_a_late_cut
from tests.spec.failover.test_failover_rules import fenced_with_a_late_cut


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def full_disk(monkeypatch: pytest.MonkeyPatch, site: Site) -> Callable[[], None]:
    """Let the quarantine of a site have no room until what is returned is called."""
    full, move_in = True, QuarantineStore.move_in

    async def moved(store: QuarantineStore, *given: Any) -> Provenance:
        if full and store._root.is_relative_to(site.folder):
            raise OSError(errno.ENOSPC, "no space left on device")
        return await move_in(store, *given)

    def make_room() -> None:
        nonlocal full
        full = False

    monkeypatch.setattr(QuarantineStore, "move_in", moved)
    return make_room


async def test_T20_a_disk_that_is_full_ends_no_region_whose_candidate_acts_by_then(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It stood fenced, tried again, and said so; the candidate acts, and it is to return."""
    await fenced_with_a_late_cut(pair)
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    await pair.us.until(Phase.FENCED)
    await pair.eu.kill()
    await pair.eu.start()
    await pair.eu.until(Phase.ACTING)
    await pair.us.until(Phase.RETURNING)
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert pair.us.driver.running, "a full disk ended it"
    make_room()
    await pair.us.until(Phase.MIRRORING)


async def test_T20_a_disk_that_is_full_at_a_late_cut_ends_no_region_that_acts(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    await acts_with_a_late_cut(pair)
    await pair.us.kill()
    make_room = full_disk(monkeypatch, pair.us)
    await pair.us.start()
    for _ in range(50):
        await asyncio.sleep(0.02)
        assert pair.us.driver.running, "a full disk ended it"
    make_room()
    await pair.us.until(Phase.ACTING)
