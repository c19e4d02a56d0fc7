"""A day of slow, idle and greedy clients in fast motion: a whole node in this process, on a loop whose time jumps.

    python -m tests.simulation.greedy_day --hours 24 --seed 7

The composition is the one that runs in production, on a network and a disk in memory. At the end nothing may be left:
connections, tasks, memory held, open transactions, members, waiting fetches. The good client's latency is told in
time of the machine, of which the whole crowd takes its part.

Eight times the crowd goes away, and what is left of the memory is counted (`tests.fixtures.memory_census`), without the simulated
disk's files. From the middle of the day on it is flat. What the node keeps for days has its bound in minutes, here:
topics keep an hour, names and producers that nobody uses are forgotten within one (half of the names are used once),
and the good client remembers no single call. `--trace` says what grew, by type and by place.
"""

import argparse
import asyncio
import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from region_broker.groups.classic.states import GroupState
from region_broker.limits import IDLE_TIMEOUT_MS, WRITE_TIMEOUT_MS
from region_broker.node import Node
from tests.fixtures.greedy_clients import GoodClient, Place, crowd
from tests.fixtures.kafka_port import watched_by
from tests.fixtures.memory_census import (
    Parts,
    grown,
    keep_no_large_holes,
    largest_tables,
    live_by_type,
)
from tests.simulation.disk import Inode, SimulatedDisk
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region
from tests.simulation.simulated_loop import SimulatedLoop, run_simulated

PARTS = 8
# From the middle of the day to its end: of what is alive, and of what is resident once the C library gave back what
# it could. The latter has holes where the simulated disk's files were.
LIVE_GROWTH_BYTES_MAX = 1 << 20
RESIDENT_GROWTH_BYTES_MAX = 12 << 20
# Sealed segments that somebody read stay open, up to a limit; the crowd reads now more of them, now fewer.
OPEN_FILES_GROWTH_MAX = 16
QUIET_S = 3 * WRITE_TIMEOUT_MS / 1000  # what was sent to those who went is given up
SMALL = {"segment.bytes": "1048576", "retention.bytes": "2097152", "segment.ms": "600000",
         "retention.ms": "3600000"}  # fmt: skip
VALUE_BYTES = 4_096
HOUR_MS = 3_600_000


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
                1 for p in partitions if p.sight.last_stable_offset < p.high_watermark
            ),
            members=sum(
                len(group.roster.members) for shard in shards for group in shard.groups.values()
                if group.state is not GroupState.EMPTY
            ) + sum(len(group.metadata) for shard in shards for group in shard.table.modern.values()),
            listeners=sum(len(partition.watchers) for partition in partitions)
            - watched_by(node._dispatcher._services.fetch_sessions),
            waiting=len(node._dispatcher._services.deadlines),
        )  # fmt: skip


async def day(
    folder: Path, *, hours: float, seed: int, rest: float, say: Callable[[str], None] | None = None,
    trace: bool = False, slack: int = 1,
) -> str:  # fmt: skip
    """Play; return what happened. AssertionError when something was left behind or somebody was not served.

    `rest`: how many times longer than in `KINDS` a client rests between two lives. `slack`: how many times what is
    flat in a day may grow in minutes, in which modules are still loaded and tables filled up to their bounds.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop), "use a loop factory that makes a SimulatedLoop"
    chance = random.Random(seed)
    fabric = Fabric(random.Random(chance.random()), delay_ms_max=1.0)
    region = Region("eu", folder / "eu", fabric, random.Random(chance.random()), ("eu",))
    region.on_open = _forget_within_an_hour
    region.settings = {"tidemark_interval_ms": 60_000, "retention_check_interval_ms": 60_000}
    await region.start()
    place = Place(fabric.site("clients"), region.kafka_port, chance)
    good = await GoodClient.connect(place, SMALL, value_bytes=VALUE_BYTES)
    at_start = Left.of(region)
    started_s, began_s = time.perf_counter(), loop.time()
    memory = Memory(region, trace)
    part_s = hours * 3600 / PARTS
    for _ in range(PARTS):
        await crowd(place, good, part_s, pause_s=max(1.0, part_s / 2_000), rest=rest)
        await asyncio.sleep(QUIET_S)
        region.check_running()
        told = memory.look()
        if say is not None:
            hours_gone = (loop.time() - began_s) / 3600
            say(f"{hours_gone:.1f} h, {good.committed} transactions; {told}")
    await asyncio.sleep(2 * IDLE_TIMEOUT_MS / 1000)  # everything that ends by time has ended
    at_end = Left.of(region)
    sessions = region.node._dispatcher._services.fetch_sessions
    lives = ", ".join(f"{count} x {name}" for name, count in sorted(place.lives.items()))
    told = (
        f"{(loop.time() - began_s) / 3600:.1f} h in {time.perf_counter() - started_s:.0f} s; {good.summary()}\n"
        f"{place.lives.total()} lives: {lives}\nat the start {at_start}\nat the end {at_end}\n{memory}\n"
        f"fetch sessions {len(sessions)} that watch {watched_by(sessions)} partitions, "
        f"transactional ids {[shard.view.id_count for shard in region.node.transactions._shards]}, "
        f"groups {[len(shard.groups) + len(shard.table.modern) for shard in region.node.groups.shards]}"
    )
    good.close()
    await region.kill()
    assert at_end.tasks <= at_start.tasks, told
    assert at_end.held_bytes == at_end.open_transactions == at_end.members == 0, told
    assert at_end.listeners == at_start.listeners, told
    assert at_end.waiting == 0, told
    memory.expect_flat(slack)
    return told


def _forget_within_an_hour(node: Node) -> None:
    """Names and producers that are used no more go after an hour, instead of a day (producers) or a week (ids)."""
    coordinator, partitions = node.transactions, node.storage.partitions
    coordinator._settings = replace(
        coordinator._settings, id_retention_ms=HOUR_MS, id_scan_interval_ms=HOUR_MS // 6
    )
    partitions._config = replace(partitions._config, producer_id_expiration_ms=HOUR_MS)


class Memory:
    """What this process holds at the end of each part of the day, without the simulated disk's files."""

    def __init__(self, region: Region, trace: bool) -> None:
        """Look at the whole process of `region`."""
        self._region = region
        self._trace = trace
        self._types: dict[str, tuple[int, int]] = {}
        self.parts: list[Parts] = []
        self.disk_bytes: list[int] = []
        self.open_files: list[int] = []  # on the simulated disk

    def look(self) -> str:
        """Count; return what was found, in words."""
        self._region.disk.write_out()  # the kernel would have: files that are gone take no memory
        self.parts.append(Parts.now())
        self.disk_bytes.append(self._region.disk.held_bytes)
        self.open_files.append(self._region.disk.open_files)
        told = f"{self.parts[-1]}, {self.open_files[-1]} files; of it the disk's {self.disk_bytes[-1] / (1 << 20):.1f} MiB"
        if self._trace:
            types = live_by_type()
            places = largest_tables(self._region.node, 20, but=(SimulatedDisk, Inode))
            told = "\n  ".join((told, f"grown: {grown(self._types, types, 12)}", *places))
            self._types = types
        return told

    @property
    def live(self) -> list[int]:
        """Bytes of objects, the disk's left out."""
        return [part.live - disk for part, disk in zip(self.parts, self.disk_bytes, strict=True)]

    @property
    def resident(self) -> list[int]:
        """Resident bytes after trimming, the disk's left out."""
        return [
            part.after_trim - disk for part, disk in zip(self.parts, self.disk_bytes, strict=True)
        ]

    @property
    def descriptors(self) -> list[int]:
        """Descriptors of this process."""
        return [part.descriptors for part in self.parts]

    def __str__(self) -> str:
        """Return the rows."""
        return "\n".join(
            (
                f"alive without the disk's files, MiB: {_in_mib(self.live)}",
                f"resident without them, MiB: {_in_mib(self.resident)}",
                f"the disk's files, MiB: {_in_mib(self.disk_bytes)}",
                f"descriptors: {self.descriptors}, open files on the simulated disk: {self.open_files}",
            )
        )

    def expect_flat(self, slack: int = 1) -> None:
        """Raise AssertionError if anything grew from the middle of the day on."""
        middle = PARTS // 2
        for name, sizes, most in (
            ("alive", self.live, LIVE_GROWTH_BYTES_MAX * slack),
            ("resident", self.resident, RESIDENT_GROWTH_BYTES_MAX * slack),
            ("descriptors", self.descriptors, 1),
            ("open files", self.open_files, OPEN_FILES_GROWTH_MAX),
        ):
            more = max(sizes[middle:]) - sizes[middle - 1]
            assert more < most, f"{name}: {more} more after half of the time"


def _in_mib(sizes: list[int]) -> list[float]:
    return [round(size / (1 << 20), 1) for size in sizes]


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
    parser.add_argument(
        "--slack", type=int, default=1, help="factor on what may grow, for days of minutes"
    )
    parser.add_argument("--trace", action="store_true", help="say what grew")
    asked = parser.parse_args()
    keep_no_large_holes()
    logging.disable(logging.ERROR)
    played = day(
        Path("/simulated"), hours=asked.hours, seed=asked.seed, rest=asked.rest, say=_say,
        trace=asked.trace, slack=asked.slack,
    )  # fmt: skip
    print(run_simulated(played, asked.seed))


if __name__ == "__main__":
    main()
