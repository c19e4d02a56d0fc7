"""What troubles a life beside the actions: connections that are reset, clocks that jump, disks that fail for a while.

Each by its rate of the seed. A region whose disk failed is started anew by the operator, as its `/readyz` asks for.
"""

import asyncio
import errno
import random
from typing import Final

from tests.simulation.swarm.stage import Stage

REST_S: Final = 1.5
DISK_FAILS_S: Final = 0.3
CLOCKS_OFF_MS: Final = (-600_000, 0, 0, 600_000)


async def storm(stage: Stage, chance: random.Random) -> None:
    """Trouble the regions until cancelled."""
    while True:
        await asyncio.sleep(chance.uniform(0, 2 * REST_S))
        name = chance.choice(stage.names)
        if chance.random() < stage.rates.reset_share:
            stage.trace.note("reset", name)
            stage.fabric.reset(name)
        if chance.random() < stage.rates.clock_share:
            stage.regions[name].wall.off_ms = chance.choice(CLOCKS_OFF_MS)
        if chance.random() < stage.rates.disk_share and stage.up(name):
            await _fail_disk(stage, name, random.Random(chance.random()))


async def _fail_disk(stage: Stage, name: str, chance: random.Random) -> None:
    stage.tell(f"the disk of {name} fails")
    stage.disk_failed.add(name)
    disk, life = stage.regions[name].disk, stage.regions[name].disk.life
    disk.fail_by_chance(chance, 0.2, (errno.EIO, errno.ENOSPC))
    await asyncio.sleep(chance.uniform(0, 2 * DISK_FAILS_S))
    if disk.life == life:
        disk.fault = None
