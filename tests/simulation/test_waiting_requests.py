"""Large requests that wait on others for long leave the memory budget to the rest (hostile-input: JoinGroup, SyncGroup)."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.limits import FREE_HELD_BYTES
from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import Pair, Region, region_pair

LARGE = bytes(FREE_HELD_BYTES * 4)
JOIN, SYNC = 11, 14


def join(member_id: str, metadata: bytes) -> dict[str, Any]:
    return {"group_id": "g", "session_timeout": 60_000, "rebalance_timeout": 60_000, "member_id": member_id,
            "group_instance_id": None, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": metadata}]}  # fmt: skip


def sync(member_id: str, generation: int, assignments: list[dict[str, Any]]) -> dict[str, Any]:
    return {"group_id": "g", "generation_id": generation, "member_id": member_id,
            "group_instance_id": None, "assignments": assignments}  # fmt: skip


def held_bytes(pair: Pair) -> list[int]:
    return [region.node.memory.held_bytes for region in pair.regions.values()]


@pytest.mark.parametrize("region", ["eu", "us"])
async def test_INV_WQ4_a_join_and_a_sync_that_wait_do_not_hold_the_memory_budget(
    tmp_path: Path, region: str
) -> None:
    """At the primary and, forwarded, on a mirror; the answers are what they are for small requests."""
    async with region_pair(tmp_path, 3) as pair:
        # The first member's group is complete at once, the second waits for the first to join again.
        site, port = pair.fabric.site("clients"), pair.regions[region].kafka_port
        first, second = await Connection.open(site, port), await Connection.open(site, port)
        leader = await first.call(JOIN, 3, join("", LARGE))
        assert leader.error_code == 0
        second.send(JOIN, 3, join("", LARGE))
        await pair.until(lambda: len(members(pair)) == 2, "the second member waits")
        await pair.until(lambda: held_bytes(pair) == [0, 0], "what waits counts for nothing")
        again = await first.call(JOIN, 3, join(leader.member_id, LARGE))
        joined = await second.receive(JOIN, 3)
        assert (again.error_code, joined.error_code) == (0, 0)
        assert {member.metadata for member in again.members} == {LARGE}

        # The follower waits for the leader's assignments.
        padding = [{"member_id": "nobody" * 40, "assignment": LARGE}]
        second.send(SYNC, 3, sync(joined.member_id, joined.generation_id, padding))
        await pair.until(lambda: in_flight(pair.regions[region]) == 1, "the follower waits")
        await pair.until(lambda: held_bytes(pair) == [0, 0], "what waits counts for nothing")
        assigned = [{"member_id": joined.member_id, "assignment": b"yours"}]
        led = await first.call(SYNC, 3, sync(leader.member_id, again.generation_id, assigned))
        assert led.error_code == 0
        assert (await second.receive(SYNC, 3)).assignment == b"yours"
        first.close()
        second.close()


def in_flight(region: Region) -> int:
    return sum(link.core.in_flight for link in region.node.kafka._links)


def members(pair: Pair) -> Any:
    shards = pair.eu.node.groups.shards
    found = [group for shard in shards for group in shard.groups.values()]
    return found[0].roster.members if found else {}
