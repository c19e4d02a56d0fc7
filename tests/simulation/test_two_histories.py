"""After a region was restored from an older copy, two histories share a region epoch: bytes tell them apart."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from tests.simulation.folder_faults import FolderCopy, copy_of, restore
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_older_copies import TOPIC, shown, shows, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

COPYING_MS = 3_000


async def acts_again(pair: Pair) -> None:
    """Start eu, and wait until it acts."""
    await pair.eu.start()
    pair.regions["eu"] = pair.eu
    await until(lambda: pair.eu.node.role.acting, "the primary acts")


async def cuts_off_what_it_copied(pair: Pair) -> FolderCopy:
    """Let eu write "gone", which us has copied beyond any tidemark; let us take over without it, and be lost.

    Returns a copy of eu's folder from before.
    """
    await pair.eu.kill()
    copy = copy_of(pair.eu)
    pair.fabric.cut("eu", "ap")
    pair.fabric.cut("us", "ap")
    pair.eu.settings["tidemark_interval_ms"] = 60_000
    await acts_again(pair)
    await pair.eu.node.failover.parts.clock.sleep_ms(COPYING_MS)
    await write(pair.eu, b"gone")
    await pair.until(lambda: pair.us.partition(TOPIC, 0).log_end_offset == 2, "us has copied it")
    assert b"gone" not in shown(pair.us)
    await pair.eu.kill()
    pair.regions.pop("eu")
    await pair.take_over(planned=False, by=pair.us)
    (first,) = await pair.us.node.operations.losses()
    assert first.plain_record_count == 1, "in force, it is named"
    await pair.us.kill()
    pair.regions.pop("us")
    return copy


async def goes_on_from_the_copy(pair: Pair, copy: FolderCopy, ap: Region) -> None:
    """Let eu, from its older copy, write others, which ap shows; let ap take over from there."""
    restore(pair.eu, copy)
    pair.eu.settings.clear()
    pair.fabric.heal("eu", "ap")
    await acts_again(pair)
    for value in (b"other", b"other 2", b"other 3"):
        await write(pair.eu, value)
        await shows(pair, ap, value)
    await pair.eu.kill()
    pair.regions.pop("eu")
    await pair.take_over(planned=False, by=ap)


async def test_INV_LO7_records_of_another_history_are_not_there_again(tmp_path: Path) -> None:
    """us takes over (17), and ap from a later tidemark of a restored eu (18): 17 is passed over, and us returns."""
    async with region_pair(tmp_path, 1, names=("eu", "us", "ap")) as pair:
        us, ap = pair.us, pair.regions["ap"]
        await pair.create_topic(TOPIC, 1)
        await write(pair.eu, b"kept")
        for each in (us, ap):
            await shows(pair, each, b"kept")
        copy = await cuts_off_what_it_copied(pair)
        await goes_on_from_the_copy(pair, copy, ap)
        pair.fabric.heal("us", "ap")
        await us.begin()
        pair.regions["us"] = us
        await pair.until(lambda: us.phase is Phase.MIRRORING, "us has returned")
        await shows(pair, us, b"other 3")
        assert b"gone" not in shown(us) + shown(ap)
        listed = [found for each in await us.node.operations.losses() for found in each.records]
        assert len(listed) == 1, "acknowledged, and nowhere but in quarantine"
