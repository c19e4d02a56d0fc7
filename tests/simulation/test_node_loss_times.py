"""How long a region of three nodes has nobody to write to, in simulated time: none of it is the machine's."""

from pathlib import Path

import pytest

from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster.spreading import leads_a_data_group
from region_broker.controller.cluster_commands import PreferSpread
from region_broker.controller.group_rows import groups_of
from region_broker.controller.raft.settings import RaftSettings
from tests.simulation.region_cluster import Member, region_cluster
from tests.simulation.region_pair import until
from tests.simulation.test_region_of_three import all_in_sync, leadership

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


def quorum_leader(node: Member) -> int:
    leader = node.node.storage.metadata.quorum.leader
    assert leader is not None
    return leader.node_id


async def test_INV_RFV2_who_leads_quorum_and_logs_is_replaced_without_a_whole_timeout_of_either(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 21) as cluster:
        first = await all_in_sync(cluster)
        assert quorum_leader(first) == first.node_id
        began_ms = first.clock.monotonic_ms()
        await first.kill()
        second = await cluster.until_led(but=first)
        took_ms = second.clock.monotonic_ms() - began_ms
        assert took_ms < RaftSettings().election_timeout_ms
        assert took_ms < ControllerSettings().session_timeout_ms


async def test_INV_CNN3_who_stops_cleanly_is_neither_in_sync_nor_leads_anything_when_it_ends(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 22) as cluster:
        first = await all_in_sync(cluster)
        assert quorum_leader(first) == first.node_id
        member = first.member._begun.member
        await first.stop()
        for node in cluster.nodes.values():
            if node.runs:
                assert member not in leadership(node).in_sync
                assert quorum_leader(node) != first.node_id
        second = await cluster.until_led(but=first)
        await second.stop()
        await first.start()


@pytest.mark.parametrize("others", [2, 1])
async def test_INV_CNN3_who_leads_a_data_group_and_stops_cleanly_is_in_sync_in_no_group_when_it_ends(
    tmp_path: Path, others: int
) -> None:
    """Where nobody else may lead its group, leaders are gathered first (INV-SPK2)."""
    async with region_cluster(tmp_path, 23) as cluster:
        first = await all_in_sync(cluster)
        metadata = first.node.storage.metadata
        left = [node for node in cluster.nodes.values() if node is not first]
        if others == 1:
            await left.pop().stop()
        await metadata.apply(PreferSpread(wanted=True))
        await until(lambda: metadata.image.spread is not None, "leaders are spread")
        second = left[0]
        member = second.member._begun.member
        await until(lambda: leads_a_data_group(metadata.image, member), "it leads a group")
        await second.stop()
        rows = groups_of(metadata.image)
        assert all(member not in row.in_sync for row in rows.values())
        assert all(row.leader is not None for row in rows.values())
        assert len(rows) == (3 if others == 2 else 1)
