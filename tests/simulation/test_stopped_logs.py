"""Regions of which one log has stopped: nobody takes it for an empty one."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.simulation.kafka_client import Connection
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_folders_without_history import TOPIC, shown, three_records, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def stop_without_the_log(region: Region) -> Callable[[], None]:
    """Stop the region cleanly, and let the bytes of the topic's log go; return what puts them back."""
    path = region.partition(TOPIC, 0).log.folder / f"{0:020d}.log"
    region.node.stop()
    await until(lambda: region.died, "it stops")
    await region.kill()
    content = region.disk.content(path)
    held = bytes(content)
    content.clear()

    def put_back() -> None:
        region.disk.content(path)[:] = held

    return put_back


async def test_INV_SO11_a_mirror_keeps_what_the_primary_cannot_open(tmp_path: Path) -> None:
    """1. us takes over; a log of eu is damaged, which is a mirror without it. 2. us is lost, and eu takes over. 3. us
    returns, and compares its logs with eu's: one ends at 0 there.
    """
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        del pair.regions["eu"]
        await stop_without_the_log(pair.eu)
        await pair.take_over(planned=False)
        await pair.eu.begin()
        pair.regions["eu"] = pair.eu
        await pair.until(lambda: pair.eu.node.role.mirrors, "eu has returned")
        assert pair.eu.partition(TOPIC, 0).failed is not None
        await pair.us.kill()
        del pair.regions["us"]
        await pair.take_over(planned=False, by=pair.eu)
        await pair.us.begin()
        pair.regions["us"] = pair.us
        await pair.until(lambda: pair.us.node.role.mirrors, "us has returned")
        await pair.eu.node.topics.create_topic("later", 1, {})
        await write(pair.eu, b"four", "later")
        await pair.until(lambda: shown(pair.us, "later") == 1, "us follows eu")
        assert pair.us.partition(TOPIC, 0).log_end_offset == 3


# Holds INV-CL8.
async def test_T12_who_cannot_open_a_log_publishes_no_tidemark(tmp_path: Path) -> None:
    """What lies there behind the last one may be the other half of what a new one would hold (T9, T12, seed 93595)."""
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.create_topic("later", 1)
        await stop_without_the_log(pair.eu)
        await pair.eu.start()
        leader = pair.eu.node.tidemarks.cut_leader
        assert leader is not None
        published = leader.published
        await write(pair.eu, b"four", "later")
        await pair.until(lambda: leader.failed != "", "it says why")
        assert "orders-0 has stopped" in leader.failed
        assert "tidemark region failover" in leader.failed
        assert leader.published == published
        assert shown(pair.us, "later") == 0


async def commit(pair: Pair, offset: int) -> None:
    """Let a group commit an offset of the topic at eu."""
    client = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
    place = {"partition_index": 0, "committed_offset": offset, "committed_leader_epoch": -1}
    topic = {"name": TOPIC, "partitions": [{**place, "committed_metadata": ""}]}
    asked = {"group_id": "g", "generation_id_or_member_epoch": -1, "member_id": ""}
    request = {**asked, "group_instance_id": None, "topics": [topic]}

    async def refused() -> bool:
        answer = await client.call(8, 8, request)
        return bool(answer.topics[0].partitions[0].error_code.name != "none")

    while await refused():
        await pair.eu.node.failover.parts.clock.sleep_ms(20)
    client.close()


def committed(region: Region) -> int:
    """Return which offset of the topic the group has."""
    (found,) = [
        place.committed_offset
        for shard in region.node.groups.shards
        for tp, place in shard.table.committed.get("g", {}).items()
        if tp.topic == TOPIC
    ]
    return found


@pytest.mark.parametrize(("offset", "expected"), [(2, 2), (9, 3)])
async def test_T26_a_group_is_clamped_to_where_a_stopped_log_is_to_be_cut(
    tmp_path: Path, offset: int, expected: int
) -> None:
    """Beyond it records of the new history would never be read; nor is what was read of the old one read again."""
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await commit(pair, offset)
        point = pair.eu.node.tidemarks.claim().point
        await pair.until(lambda: pair.us.node.tidemarks.claim().point > point, "us has it")
        await stop_without_the_log(pair.us)
        await pair.eu.kill()
        del pair.regions["eu"]
        await pair.us.start()
        assert pair.us.partition(TOPIC, 0).failed is not None
        await pair.take_over(planned=False)
        assert committed(pair.us) == expected


async def test_T12_a_mirror_that_links_again_follows_although_a_log_has_stopped_at_the_primary(
    tmp_path: Path,
) -> None:
    """That log stopped at run time: its end is known. The mirror has all of it, and not the tidemark that says so."""
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.create_topic("later", 1)
        await pair.eu.kill()
        pair.eu.settings["tidemark_interval_ms"] = 3_000
        await pair.eu.start()
        clock = pair.eu.node.failover.parts.clock
        await clock.sleep_ms(4_000)
        for value in (b"four", b"five"):
            await write(pair.eu, value)
        await pair.until(lambda: pair.us.partition(TOPIC, 0).log_end_offset == 5, "it is copied")
        await pair.us.kill()
        assert shown(pair.us) < 5
        await clock.sleep_ms(4_000)
        pair.eu.partition(TOPIC, 0).stop("its disk has failed")
        await pair.us.start()
        await write(pair.eu, b"a", "later")
        await pair.until(lambda: shown(pair.us, "later") == 1, "us follows")


# Holds INV-CL8.
async def test_T21_who_adopts_again_without_a_log_publishes_no_tidemark(tmp_path: Path) -> None:
    """1. us takes over, writes what was decided, markers too, and is ended before its first tidemark. 2. A log cannot be opened
    at the next start: D at the base would be that of a log without its marker, beside others with theirs.
    """
    async with region_pair(tmp_path, 1) as pair:
        await three_records(pair)
        await pair.eu.kill()
        del pair.regions["eu"]
        adopted = asyncio.Event()

        async def hang(_ends: object) -> None:
            adopted.set()
            await asyncio.Event().wait()

        pair.us.node.role._services.groups.clamp = hang  # type: ignore[method-assign,assignment]
        pair.us.node.operations.begin_failover(confirmed=True)
        await until(adopted.is_set, "us has carried out what was decided")
        await stop_without_the_log(pair.us)
        await pair.us.start()
        assert pair.us.node.role.acting
        leader = pair.us.node.tidemarks.cut_leader
        assert leader is not None
        assert leader.published.region_epoch == 8
        assert "orders-0 has stopped" in leader.failed
        await pair.us.node.topics.create_topic("later", 1, {})
        await write(pair.us, b"more", "later")
