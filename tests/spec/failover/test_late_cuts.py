"""A log that is cut late (INV-LS4, T20), where something else goes wrong before it is."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.fixtures.copied_folder import CopiedFolder
from tests.fixtures.failover_regions import Pair, Site, fail_over
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


def unreadable(site: Site) -> None:
    """Let partition 1 stop as the site starts."""
    site.partition(1).stop("a bit is flipped")


async def acts_with_a_late_cut(pair: Pair) -> None:
    """Let us act, with one log uncut, which had stopped; eu follows it."""
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.stop_tidemarks()
    await pair.eu.write("beyond", number=1)
    late = pair.us.partition(1)
    await until(lambda: late.high_watermark == 1, "it is copied")
    late.stop("a bit is flipped")
    await pair.eu.kill()
    await fail_over(pair.us)
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)


async def disputed_with_a_late_cut(pair: Pair) -> None:
    """Let us, with one log uncut, be restored from a copy after eu has shown more; it is ended, and can read the log then."""
    await acts_with_a_late_cut(pair)
    copy = CopiedFolder(pair.us.folder)  # while it runs, and nothing is written
    await pair.us.write("proof")
    await pair.eu.shows("proof")
    await pair.us.kill()
    copy.restore()
    pair.us.on_built = unreadable
    await pair.us.start()
    await pair.us.until(Phase.DISPUTED)
    await pair.us.kill()
    pair.us.on_built = None


async def test_T20_an_accepted_loss_brings_nothing_back_that_is_to_be_cut_late(pair: Pair) -> None:
    """1. us acts, with one log uncut. 2. It is restored from a copy: eu has shown more, so us is in dispute. 3. It is started
    again, and the log can be read. 4. The operator accepts the loss. What lies beyond the base of us was declared lost.
    """
    await disputed_with_a_late_cut(pair)
    await pair.us.start()
    await pair.us.until(Phase.DISPUTED)
    assert pair.us.partition(1).log_end_offset == 1, "it was not cut yet"
    operation = await pair.us.ended(pair.us.operations.begin_accept_loss(confirmed=True))
    assert operation.status == "succeeded", (operation.error, operation.steps)
    assert b"beyond" not in pair.us.raw(1)
    await pair.us.write("later", number=1)
    await pair.eu.shows("later")
    assert b"beyond" not in pair.eu.raw(1)
