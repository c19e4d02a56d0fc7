"""Slow, idle and greedy clients against a real process, beside a good one that must be served all the time.

    python -m tests.process.greedy --minutes 4 --seed 7

Told at the end: what the good client did and how long it took, memory and descriptors of the process as they went, and
what was left: connections, open transactions, members of groups. What runs a whole day is `tests.simulation.greedy_day`.
"""

import argparse
import asyncio
import random
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any
from uuid import UUID

from region_broker.ports.system.network import AsyncioNetwork
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.greedy_clients import (
    GOOD,
    PARTITIONS,
    SHARED_NAMES,
    VICTIM,
    GoodClient,
    Place,
    crowd,
)
from tests.fixtures.memory_census import Process
from tests.simulation.kafka_client import Connection

SETTINGS: Mapping[str, Any] = {
    "log_level": "error", "group_consumer_session_timeout_ms": 6_000,
    "group_consumer_heartbeat_interval_ms": 1_000, "request_memory_bytes": 64 << 20,
    "retention_check_interval_ms": 5_000,
}  # fmt: skip
TOPIC_CONFIGS = {"segment.bytes": "1048576", "retention.bytes": "4194304"}
GROWTH_BYTES_MAX = 150 << 20
LEFT_S = 100.0


async def play(folder: Path, *, seconds: float, seed: int) -> str:
    """Return what happened; raises when somebody was not served or something was left."""
    cluster = LocalCluster.open(
        folder, region_count=1, port=0, new_cluster_id=UUID(int=11), settings=SETTINGS
    )
    with cluster:
        cluster.start()
        process = Process(cluster.pids("eu")[0])
        place = Place(AsyncioNetwork(), cluster.plan.regions[0].kafka_port, random.Random(seed))
        good = await GoodClient.connect(place, TOPIC_CONFIGS)
        sockets = process.sockets()
        resident = [process.resident_bytes()]
        began_s = time.monotonic()
        for _ in range(6):
            await crowd(place, good, seconds / 6, pause_s=0.05)
            resident.append(process.resident_bytes())
        assert cluster.pids("eu") == [process.pid], "the node died"
        left = await until_nothing_is_left(place, process, sockets)
        lives = ", ".join(f"{count} x {name}" for name, count in sorted(place.lives.items()))
        told = (
            f"{time.monotonic() - began_s:.0f} s; {good.summary()}\nlives: {lives}\n"
            f"resident MiB: {[size >> 20 for size in resident]}; left: {left}"
        )
        good.close()
        assert max(resident) - resident[0] < GROWTH_BYTES_MAX, told
        return told


async def until_nothing_is_left(place: Place, process: Process, sockets: int) -> str:
    """Wait until descriptors, transactions and members are as at the start; AssertionError if they never are."""
    client = await Connection.open(place.network, place.port)
    left = ""

    async def gone() -> bool:
        nonlocal left
        more = process.sockets() - sockets - 1
        open_transactions = await _open_transactions(client)
        members = await _members(client)
        left = f"{more} sockets, {open_transactions} partitions with open transactions, {members} members"
        return more <= 0 and not open_transactions and not members

    deadline_s = time.monotonic() + LEFT_S
    while not await gone():
        assert time.monotonic() < deadline_s, f"after {LEFT_S:.0f} s: {left}"
        await asyncio.sleep(0.2)
    client.close()
    return left


async def _open_transactions(client: Connection) -> int:
    """Return in how many partitions readers of committed records see less than the others."""
    rows = [
        {"partition_index": number, "current_leader_epoch": -1, "timestamp": -1}
        for number in range(PARTITIONS)
    ]
    ends: list[list[int]] = []
    for isolation in (0, 1):
        answer = await client.call(2, 5, {
            "replica_id": -1, "isolation_level": isolation,
            "topics": [{"name": name, "partitions": rows} for name in (GOOD, VICTIM)]})  # fmt: skip
        ends.append([row.offset for topic in answer.topics for row in topic.partitions])
    return sum(last != stable for last, stable in zip(*ends, strict=True))


async def _members(client: Connection) -> int:
    """Return how many members the groups that vanish have."""
    counted: tuple[tuple[int, int, str, Callable[[str], dict[str, Any]]], ...] = (
        (15, 5, "vanishing", lambda name: {"groups": [f"{name}-{n}" for n in range(SHARED_NAMES)]}),
        (69, 0, "modern", lambda name: {"group_ids": [f"{name}-{n}" for n in range(SHARED_NAMES)]}),
    )
    found = 0
    for key, version, name, asked in counted:
        answer = await client.call(
            key, version, {**asked(name), "include_authorized_operations": False}
        )
        found += sum(len(group.members) for group in answer.groups)
    return found


def main() -> None:
    """Play what the command line says."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        print(asyncio.run(play(Path(folder), seconds=asked.minutes * 60, seed=asked.seed)))


if __name__ == "__main__":
    main()
