"""Rule T36: a log's folder that was emptied is a lost log; one that never held a record is none."""

import asyncio
import shutil
from pathlib import Path

from geo_replicator.failover import Phase
from tests.fixtures.failover_regions import ORDERS, Pair
from tests.fixtures.waiting import until


async def empty(folder: Path) -> None:
    """Leave a folder with nothing in it."""
    await asyncio.to_thread(shutil.rmtree, folder)
    await asyncio.to_thread(folder.mkdir)


async def test_T36_a_log_whose_folder_was_emptied_is_missed(tmp_path: Path) -> None:
    async with Pair(tmp_path) as pair:
        await pair.eu.write("first")
        await pair.reached("first")
        emptied = pair.eu.table.folder_of(pair.eu.partition().topic_id, 0)
        mirrored = pair.us.table.folder_of(pair.us.partition().topic_id, 0)
        await pair.us.kill()
        await pair.eu.kill()
        await empty(mirrored)
        await pair.us.start()
        await until(lambda: pair.us.table.lost() == [], "a mirror takes note, and acts on nothing")
        await pair.eu.start()
        await pair.eu.until(Phase.ACTING)
        await pair.us.shows("first")
        await pair.us.kill()
        await pair.eu.kill()
        await empty(emptied)
        for _ in range(2):  # nor does it forget over a restart
            await pair.eu.start()
            await pair.eu.until(Phase.DISPUTED)
            await until(
                lambda: f"(1: {ORDERS}-0)" in pair.eu.role.reason_not_acting, "that one is named"
            )
            assert not pair.eu.role.acting
            await pair.eu.kill()
