"""What a takeover lost is known record by record, whichever node leads the region that lost it by then."""

import errno
from pathlib import Path

import pytest

from tests.simulation.cluster_region_steps import TOPIC, create, shown, values_at, write
from tests.simulation.cluster_regions import AnyNode, NodeAmong, Regions, cluster_regions

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def records_lost(node: AnyNode) -> int:
    """Return how many plain records this node lists as lost."""
    return sum(each.plain_record_count for each in await node.node.operations.losses())


def keeps_a_tail(node: AnyNode) -> bool:
    """Return whether this life of the node has one on its disk."""
    has_begun = node.runs and isinstance(node, NodeAmong) and node.member.node is node.node
    return has_begun and bool(node.node.storage.quarantine.tails())


async def lose_a_record(regions: Regions) -> AnyNode:
    """Let eu acknowledge a record, on two of its nodes, that us has not; us takes over. Return the third one, which is down."""
    await create(regions, regions.eu)
    await write(regions, regions.eu, b"1")
    await shown(regions, regions.us, 1)
    third = regions.eu.follower
    await third.kill()
    await regions.until(lambda: regions.eu.in_sync() == 2, "two are in sync")
    eu, us = list(regions.eu.nodes.values()), list(regions.us.nodes.values())
    regions.part(eu, us)
    await write(regions, regions.eu, b"lost")
    both = regions.eu.others(third)
    for node in both:
        await node.kill()
    regions.join(eu, us)
    await regions.take_over(regions.us, planned=False)
    for node in both:
        await node.begin()
    await regions.until(lambda: regions.eu.mirrors and regions.eu.in_sync() == 2, "eu mirrors")
    return third


async def test_the_node_that_acknowledged_it_lists_it(tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 41) as regions:
        await lose_a_record(regions)
        assert await records_lost(regions.eu.led) == 1
        assert await values_at(regions, regions.us) == [b"1"]


async def test_a_node_that_was_away_and_leads_later_lists_it(tmp_path: Path) -> None:
    """`tidemark region losses` asks whoever leads: it would say that nothing was lost (INV-TLC1)."""
    async with cluster_regions(tmp_path, 42) as regions:
        third = await lose_a_record(regions)
        await third.begin()
        await regions.all_well("us")
        while (leader := regions.eu.led) is not third:
            await leader.kill()
            await regions.until_led(regions.eu, but=leader)
            await leader.begin()
            await regions.all_well("us")
        await regions.until(lambda: not third.node.operations.elsewhere().outstanding, "asked")
        (losses,) = await third.node.operations.losses()
        assert (losses.plain_record_count, losses.exact) == (1, True)
        await regions.until(
            lambda: all(map(keeps_a_tail, regions.eu.nodes.values())), "all keep it"
        )


async def test_INV_TLC7_INV_T10_a_log_that_is_put_aside_with_what_was_lost_is_named(
    tmp_path: Path,
) -> None:
    """It does not open as its node comes back, is copied again, and its tail is in no quarantine."""
    async with cluster_regions(tmp_path, 44) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        eu, us = list(regions.eu.nodes.values()), list(regions.us.nodes.values())
        regions.part(eu, us)
        await write(regions, regions.eu, b"lost")
        for node in eu:
            await node.kill()
        regions.join(eu, us)
        await regions.take_over(regions.us, planned=False)
        damaged = eu[2]
        assert isinstance(damaged, NodeAmong)
        topic_id = regions.us.led.partition(TOPIC, 0).topic_id
        folder = damaged.folder / "logs" / topic_id.hex

        def fail(operation: str, path: Path) -> None:
            if operation == "pread" and path.parent == folder / "0":
                raise OSError(errno.EIO, "it fails", str(path))

        damaged.disk.fault = fail
        for node in eu:
            await node.begin()
        name = f"{folder.name}/0.uncut.damaged"
        await regions.until(
            lambda: damaged.disk.exists(folder / "0.uncut.damaged"), "it is put aside"
        )
        damaged.disk.fault = None
        await regions.until(lambda: regions.eu.mirrors and regions.eu.in_sync() == 3, "eu mirrors")
        leader = regions.eu.led
        assert leader is not damaged

        def outstanding() -> dict[int, str]:
            told = leader.node.operations.elsewhere().outstanding
            return {each.node_id: each.reason for each in told}

        await regions.until(
            lambda: outstanding().keys() == {damaged.node_id}, "the others are compared with"
        )
        assert "put one aside uncut" in outstanding()[damaged.node_id]
        assert await records_lost(leader) == 1
        assert name in str(damaged.node.operations.elsewhere().outstanding)
        damaged.disk.remove_tree(folder / "0.uncut.damaged")
        await regions.until(lambda: not outstanding(), "people have removed it")


async def test_INV_LO8_a_planned_switch_says_at_once_that_nothing_was_lost(tmp_path: Path) -> None:
    """What the coordinators of eu wrote for themselves behind the last tidemark is in the quarantine of us."""
    async with cluster_regions(tmp_path, 43) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1")
        await shown(regions, regions.us, 1)
        first = regions.us.led
        ordered = await regions.ordered(regions.us, planned=True)
        await regions.until(lambda: regions.us.acts, "us acts")
        (losses,) = await regions.us.led.node.operations.losses()
        assert losses.exact
        if (
            regions.us.led is first
        ):  # it remembers by itself, too: ask for what is recorded (INV-FOP1)
            first.node.operations._operations.clear()
        leader = regions.us.led
        told = leader.within(lambda: leader.node.operations.operation(ordered.operation_id))
        assert told is not None
        await regions.until(lambda: told.status != "running", "it is told as ended")
        assert told.steps[0] == "draining region eu"
        assert (told.status, told.started_wall_ms) == ("succeeded", ordered.started_wall_ms)
        assert 0 < told.writes_paused_ms < 60_000
