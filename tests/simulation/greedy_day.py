"""A day of slow, idle and greedy clients in fast motion: a whole node in this process, on a loop whose time jumps.

    python -m tests.simulation.greedy_day --hours 24 --seed 7

The composition is the one that runs in production, on a network and a disk in memory. At the end nothing may be left:
connections, tasks, memory held, open transactions, members, waiting fetches. The good client's latency is told in
time of the machine, of which the whole crowd takes its part.
"""

import argparse
import asyncio
import gc
import logging
import random
import resource
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from region_broker.groups.classic.states import GroupState
from region_broker.limits import IDLE_TIMEOUT_MS
from tests.greedy_clients import GoodClient, Place, crowd
from tests.simulation.fast_loop import FastLoop, LoopClock
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region

GROWTH_BYTES_MAX = 64 << 20
SMALL = {"segment.bytes": "1048576", "retention.bytes": "2097152", "segment.ms": "600000"}


@dataclass
class Left:
    """What a node holds."""

    connections: int
    tasks: int
    held_bytes: int
    open_transactions: int
    members: int
    listeners: int
    waiting: int

    @classmethod
    def of(cls, region: Region) -> "Left":
        """Look at a node."""
        node = region.node
        partitions = list(node.storage.partitions)
        shards = node.groups.shards
        return cls(
            connections=node.kafka.connection_count,
            tasks=len(asyncio.all_tasks()),
            held_bytes=node.memory.held_bytes,
            open_transactions=sum(
                1 for p in partitions if p.last_stable_offset < p.high_watermark
            ),
            members=sum(
                len(group.roster.members) for shard in shards for group in shard.groups.values()
                if group.state is not GroupState.EMPTY
            ) + sum(len(group.metadata) for shard in shards for group in shard.table.modern.values()),
            listeners=sum(len(partition.watchers) for partition in partitions),
            waiting=len(node._dispatcher._services.deadlines),
        )  # fmt: skip


async def day(
    folder: Path, *, hours: float, seed: int, rest: float, say: Callable[[str], None] | None = None
) -> str:
    """Play; return what happened. AssertionError when something was left behind or somebody was not served.

    `rest`: how many times longer than in `KINDS` a client rests between two lives.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, FastLoop), "use asyncio.Runner(loop_factory=FastLoop)"
    chance = random.Random(seed)
    fabric = Fabric(random.Random(chance.random()), delay_ms_max=1.0)
    region = Region("eu", folder / "eu", fabric, random.Random(chance.random()), ("eu",))
    region.clock = LoopClock()
    region.settings = {"tidemark_interval_ms": 60_000, "retention_check_interval_ms": 60_000}
    with loop.hold():
        await region.open()
        metadata = region.node.storage.metadata
        metadata.apply = loop.held(metadata.apply)  # type: ignore[method-assign,assignment]
        await region.run()
    place = Place(fabric.site("clients"), region.kafka_port, chance)
    good = await GoodClient.connect(place, SMALL)
    at_start = Left.of(region)
    started_s, began_s = time.perf_counter(), loop.time()
    resident: list[int] = []
    part_s = hours * 3600 / 8
    for part in range(1, 9):
        await crowd(place, good, part_s, pause_s=max(1.0, part_s / 2_000), rest=rest)
        region.check_running()
        gc.collect()
        resident.append(resident_bytes() - disk_bytes(region))
        if say is not None:
            hours_gone = (loop.time() - began_s) / 3600
            say(
                f"part {part} of 8: {hours_gone:.1f} h, {resident[-1] >> 20} MiB, {good.committed} transactions"
            )
    await asyncio.sleep(2 * IDLE_TIMEOUT_MS / 1000)  # everything that ends by time has ended
    at_end = Left.of(region)
    lives = ", ".join(f"{count} x {name}" for name, count in sorted(place.lives.items()))
    told = (
        f"{(loop.time() - began_s) / 3600:.1f} h in {time.perf_counter() - started_s:.0f} s; {good.summary()}\n"
        f"lives: {lives}\nat the start {at_start}\nat the end {at_end}\n"
        f"memory without the disk's, MiB: {[size >> 20 for size in resident]}, "
        f"fetch sessions {len(region.node._dispatcher._services.fetch_sessions)}"
    )
    good.close()
    await region.kill()
    assert at_end.tasks <= at_start.tasks, told
    assert at_end.held_bytes == at_end.open_transactions == at_end.members == 0, told
    assert at_end.listeners == at_start.listeners, told
    assert at_end.waiting == 0, told
    # After half of the time it is flat.
    assert max(resident[4:]) - resident[3] < GROWTH_BYTES_MAX, told
    return told


def resident_bytes() -> int:
    """Return the memory of this process."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def disk_bytes(region: Region) -> int:
    """Return what the simulated disk takes of it."""
    inodes = {id(inode): inode for inode in region.disk._names.values()}
    return sum(len(inode.cached) + len(inode.durable) for inode in inodes.values())


def _say(line: str) -> None:
    print(line, flush=True)


def main() -> None:
    """Play what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--hours", type=float, default=24.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--rest", type=float, default=12.0, help="factor on pauses between two lives"
    )
    asked = parser.parse_args()
    logging.disable(logging.ERROR)
    with tempfile.TemporaryDirectory() as folder, asyncio.Runner(loop_factory=FastLoop) as runner:
        print(
            runner.run(
                day(Path(folder), hours=asked.hours, seed=asked.seed, rest=asked.rest, say=_say)
            )
        )


if __name__ == "__main__":
    main()
