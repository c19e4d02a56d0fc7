"""Disks that fail, are full or slow, clocks that jump, and messages that are late: each for a while, at one node.

A node whose disk failed is started anew by the operator, as its `/readyz` asks for.
"""

import asyncio
import errno
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from random import Random
from typing import Any, Final

from region_broker.log.log_config import TIMESTAMP_AFTER_MS_DEFAULT
from tests.simulation.disk import GROWING
from tests.simulation.node_faults.stage import NodesStage

DISK_SHARE: Final = 0.15
SLOW_JOB_S: Final = 0.7
LATE_SHARE: Final = 0.1
OPERATIONS: Final[dict[str, Sequence[str]]] = {
    "writes": GROWING,
    "syncs": ("fdatasync", "fsync_dir"),
    "reads": ("pread", "pread_cached", "read_file"),
}
ROOM_BYTES: Final = (0, 20_000)
DAY_MS: Final = 24 * 3600 * 1000
OFF_MS: Final = (-DAY_MS, -600_000, -2_000, 2_000, 600_000, DAY_MS)
"""How far a clock jumps: less than anything is kept for."""


@contextmanager
def _failing(stage: NodesStage[Any], kind: str, name: str, chance: Random) -> Iterator[None]:
    disk = stage.nodes[name].disk
    life = disk.life
    disk.fail_by_chance(chance, 0.5, (errno.EIO,), OPERATIONS[kind])
    try:
        yield
    finally:
        if disk.life == life:
            disk.fault = None


@contextmanager
def _full(stage: NodesStage[Any], name: str, chance: Random) -> Iterator[None]:
    disk = stage.nodes[name].disk
    disk.room_bytes = chance.choice(ROOM_BYTES)
    try:
        yield
    finally:
        disk.room_bytes = None


async def fails(stage: NodesStage[Any], kind: str, name: str, for_s: float, chance: Random) -> None:
    """Let the disk fail (`kind`: of `OPERATIONS`, or full), then do what an operator does: start the node again."""
    if name not in stage.running:
        return
    stage.disk_failed.add(name)
    trouble: AbstractContextManager[None] = (
        _full(stage, name, chance) if kind == "full" else _failing(stage, kind, name, chance)
    )
    with trouble:
        await asyncio.sleep(for_s * (1 if kind == "full" else DISK_SHARE))
    await asyncio.sleep(chance.uniform(0, 1))
    await stage.kill(name)
    await stage.start_soundly(name)


async def slow(stage: NodesStage[Any], name: str, for_s: float) -> None:
    """Let the disk be slow."""
    stage.loop.slow[name] = SLOW_JOB_S
    await asyncio.sleep(for_s)
    stage.loop.slow.pop(name, None)


async def clock_off(stage: NodesStage[Any], name: str, for_s: float, chance: Random) -> None:
    """Let the clock of the machine jump, and jump back."""
    wall = stage.nodes[name].wall
    wall.off_ms = chance.choice(OFF_MS)
    stage.was_clock_behind |= -wall.off_ms > TIMESTAMP_AFTER_MS_DEFAULT
    stage.tell(f"  the clock of {name} is off by {wall.off_ms} ms")
    await asyncio.sleep(for_s)
    wall.off_ms = 0


async def late(stage: NodesStage[Any], name: str, for_s: float) -> None:
    """Let some of what is sent to it take seconds; over TCP that is what lost packets come to (INV-SN5)."""
    fabric = stage.fabric
    fabric.late_share = LATE_SHARE
    fabric.late_sites |= {name}
    await asyncio.sleep(for_s)
    fabric.late_sites -= {name}
