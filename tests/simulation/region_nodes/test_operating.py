"""What operators see of a region of three nodes, and order of it."""

import asyncio
from pathlib import Path

import pytest

from region_broker.controller.cluster_commands import DrainNode
from region_broker.controller.image_database import MetadataInDoubt
from region_broker.region.cluster.cluster_orders import ClusterOrderRefused
from region_broker.region.cluster.cluster_service import ClusterService
from region_broker.region.cluster.cluster_view import WITHOUT_QUORUM_MS_MAX
from tests.simulation.region_cluster import Cluster, Member, region_cluster
from tests.simulation.region_pair import until

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

SECONDS = 1_000


def service(node: Member) -> ClusterService:
    assert node.node.operating is not None
    return node.node.operating


def in_sync(node: Member) -> list[int]:
    return list(service(node).describe()["leadership"]["in_sync"])


async def settled(cluster: Cluster) -> Member:
    """Return the leader once all are in sync and vote, and every node that runs knows it."""

    def knows(node: Member) -> bool:
        if not node.runs or node.node.operating is None:
            return False
        view = service(node).describe()
        return (
            view["leadership"]["in_sync"] == [1, 2, 3]
            and view["quorum"]["voters"] == [1, 2, 3]
            and view["quorum"]["leader"] is not None
            and not any(row["fenced"] for row in view["nodes"])
        )

    await cluster.until(
        lambda: cluster.leader is not None and all(knows(node) for node in cluster.nodes.values()),
        "all in sync",
    )
    assert cluster.leader is not None
    return cluster.leader


def dropped(leader: Member, away: Member) -> bool:
    """Return whether a node is neither in sync nor heard, as the leader knows."""
    row = service(leader).describe()["nodes"][away.node_id - 1]
    return bool(row["fenced"] and not row["in_sync"])


def quorum_leader(cluster: Cluster) -> Member:
    [found] = [
        node for node in cluster.nodes.values()
        if node.runs and node.node.storage.metadata.group.leads
    ]  # fmt: skip
    return found


async def order(
    node: Member, kind: str, node_id: int | None, *, dry_run: bool = False, confirmed: bool = False
) -> bool:
    done = await service(node).order(kind, node_id, dry_run=dry_run, confirmed=confirmed)
    return bool(done["changed"])


async def refusal(
    node: Member, kind: str, node_id: int | None, *, dry_run: bool = False
) -> ClusterOrderRefused:
    with pytest.raises(ClusterOrderRefused) as refused:
        await order(node, kind, node_id, dry_run=dry_run)
    return refused.value


async def test_INV_CVW1_each_node_says_what_it_knows_and_only_leaders_how_far_others_are(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 31) as cluster:
        leader, quorum = await settled(cluster), quorum_leader(cluster)
        for node in cluster.nodes.values():
            view = service(node).describe()
            assert (view["region"], view["node_id"]) == ("eu", node.node_id)
            assert [row["node_id"] for row in view["nodes"]] == [1, 2, 3]
            assert [row["node_id"] for row in view["nodes"] if row["leads"]] == [leader.node_id]
            assert all(row["in_sync"] and not row["fenced"] for row in view["nodes"])
            assert view["leadership"]["leader"] == leader.node_id
            assert view["quorum"]["leader"] == quorum.node_id
            assert view["quorum"]["voters"] == [1, 2, 3]
            assert view["quorum"]["http"] == f"http://127.0.0.1:{11_999 + quorum.node_id}"
            others = [row for row in view["nodes"] if row["node_id"] != node.node_id]
            assert all((row["records_behind"] is None) == (node is not leader) for row in others)
            members = view["quorum"]["members"]
            known = [each["node_id"] for each in members if each["matched_index"] is not None]
            assert known == ([1, 2, 3] if node is quorum else [node.node_id])
            assert view["here"]["follows"] == (node is not leader)
            assert (view["here"]["following"] is None) == (node is leader)
            assert view["here"]["no_room"] is None
            room = service(node).view.parts.partitions.room
            room.free_bytes_min = 2 * room.free_bytes + 1
            room.note(room.total_bytes, room.free_bytes)
            assert "the disk is nearly full" in service(node).describe()["here"]["no_room"]


async def test_INV_CVW2_a_follower_is_ready_while_it_follows_and_not_while_nobody_leads(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 32) as cluster:
        leader = await settled(cluster)
        followers = [node for node in cluster.nodes.values() if node is not leader]
        for node in cluster.nodes.values():
            view = service(node).view
            assert view.follows == (node is not leader)
            assert (view.quorum_problem(), view.replication_problem(), view.remark()) == (None, None, "")  # fmt: skip
        await leader.kill()
        await followers[0].kill()
        [left] = followers[1:]
        await left.clock.sleep_ms(2 * WITHOUT_QUORUM_MS_MAX)
        problem = service(left).view.quorum_problem()
        assert problem is not None
        assert "nobody leads the quorum" in problem
        assert service(left).describe()["quorum"]["leader"] is None
        assert service(left).describe()["quorum"]["without_leader_ms"] >= WITHOUT_QUORUM_MS_MAX
        told = await refusal(left, "elect", left.node_id)
        assert told.code == "no-quorum"
        replication = service(left).view.replication_problem()
        assert replication is not None
        assert "no connection to node" in replication
        await followers[0].start()
        await leader.start()
        await settled(cluster)
        assert service(left).view.quorum_problem() is None
        assert service(left).view.replication_problem() is None


async def test_INV_CVW2_who_was_elected_and_hears_nobody_says_that_and_not_that_itself_does_not_answer(
    tmp_path: Path,
) -> None:
    """The metadata name it as the leader until another one is elected, which nobody can be without a quorum."""
    async with region_cluster(tmp_path, 35) as cluster:
        leader = await settled(cluster)
        for node in [each for each in cluster.nodes.values() if each is not leader]:
            await node.kill()
        await leader.clock.sleep_ms(3 * WITHOUT_QUORUM_MS_MAX)
        view = service(leader).view
        assert view.follows
        problem = view.replication_problem()
        assert problem is not None
        assert "was elected, and leads no more" in problem
        assert "which leads" not in problem + view.remark()


async def test_a_leader_names_who_is_not_in_sync_and_stays_ready(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 33) as cluster:
        leader = await settled(cluster)
        away = next(node for node in cluster.nodes.values() if node is not leader)
        await away.kill()
        await cluster.until(lambda: dropped(leader, away), "the leader drops who is away")
        assert f"nodes {away.node_id}" in service(leader).view.remark()
        [row] = [row for row in service(leader).describe()["nodes"] if row["fenced"]]
        assert (row["node_id"], row["in_sync"], row["connected"]) == (away.node_id, False, False)


async def test_INV_CLO1_an_order_is_taken_where_the_quorum_is_led_and_nowhere_else(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 34) as cluster:
        await settled(cluster)
        quorum = quorum_leader(cluster)
        for node in cluster.nodes.values():
            if node is quorum:
                continue
            told = await refusal(node, "elect", 2)
            assert told.code == "other-node"
            assert told.url == f"http://127.0.0.1:{11_999 + quorum.node_id}"


async def test_a_node_is_let_lead_by_order_and_a_drained_one_leads_nothing_until_it_starts_anew(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 35) as cluster:
        first, quorum = await settled(cluster), quorum_leader(cluster)
        chosen = next(node for node in cluster.nodes.values() if node is not first)
        assert await order(quorum, "elect", chosen.node_id, dry_run=True)
        assert service(quorum).describe()["leadership"]["leader"] == first.node_id  # INV-CLO2
        assert await order(quorum, "elect", chosen.node_id)
        await cluster.until(lambda: cluster.leader is chosen, "the chosen one leads")
        assert not await order(quorum, "elect", chosen.node_id)
        await settled(cluster)
        assert await order(quorum, "drain", chosen.node_id)
        after = await cluster.until_led(but=chosen)
        await cluster.until(
            lambda: chosen.node_id not in in_sync(after), "who drains is not in sync"
        )
        told = await refusal(quorum, "elect", chosen.node_id)
        assert (told.code, "restart it, or name another node" in told.reason) == ("refused", True)
        await chosen.stop()
        await chosen.start()
        await settled(cluster)
        assert not service(after).describe()["nodes"][chosen.node_id - 1]["draining"]


async def test_INV_CLO3_an_unclean_election_needs_a_word_and_is_refused_while_anybody_in_sync_runs(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 36) as cluster:
        await settled(cluster)
        quorum = quorum_leader(cluster)
        assert (await refusal(quorum, "unclean-election", 2)).code == "not-confirmed"
        told = await refusal(quorum, "unclean-election", 2, dry_run=True)
        assert "holds all that was committed" in told.reason
        with pytest.raises(ClusterOrderRefused, match="holds all that was committed"):
            await order(quorum, "unclean-election", 2, confirmed=True)
        assert (await refusal(quorum, "unclean-election", 9)).code == "unknown-node"
        assert service(quorum).describe()["leadership"]["unclean"] == 0


async def test_INV_CLO4_who_is_heard_stays_and_who_is_removed_leaves_the_quorum_too(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 37) as cluster:
        leader = await settled(cluster)
        assert (await refusal(quorum_leader(cluster), "remove", 1)).code == "node-runs"
        gone = next(
            node for node in cluster.nodes.values()
            if node is not leader and node is not quorum_leader(cluster)
        )  # fmt: skip
        await gone.kill()
        await cluster.until(lambda: dropped(leader, gone), "it is dropped")
        quorum = quorum_leader(cluster)
        assert await order(quorum, "remove", gone.node_id, dry_run=True)
        assert len(service(quorum).describe()["nodes"]) == 3
        assert await order(quorum, "remove", gone.node_id)
        left = sorted({1, 2, 3} - {gone.node_id})
        view = service(quorum).describe()
        assert [row["node_id"] for row in view["nodes"]] == left
        assert view["quorum"]["voters"] == left
        assert (await refusal(quorum, "remove", gone.node_id)).code == "unknown-node"
        await gone.begin()
        await until(lambda: gone.died, "INV-CNN4: with its former folder it is told to end")
        assert "was removed from region eu" in gone.why_died()
        assert "start it with an empty one" in gone.why_died()
        view = service(quorum).describe()
        assert ([row["node_id"] for row in view["nodes"]], view["quorum"]["voters"]) == (left, left)
        gone.disk.remove_tree(gone.folder)
        await gone.start()
        await settled(cluster)


async def test_INV_CNN4_a_node_that_was_cut_off_while_it_was_removed_ends_when_it_hears_of_it(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 41) as cluster:
        leader = await settled(cluster)
        gone = next(
            node for node in cluster.nodes.values()
            if node is not leader and node is not quorum_leader(cluster)
        )  # fmt: skip
        for other in cluster.nodes.values():
            if other is not gone:
                cluster.fabric.cut(gone.name, other.name)
        await cluster.until(lambda: dropped(leader, gone), "it is dropped")
        assert await order(quorum_leader(cluster), "remove", gone.node_id)
        assert gone.runs
        for other in cluster.nodes.values():
            cluster.fabric.heal(gone.name, other.name)
        await until(lambda: gone.died, "it ends")
        assert "was removed from region eu" in gone.why_died()


async def test_a_clean_stop_lets_another_one_lead_quorum_and_logs_without_silence(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 38) as cluster:
        leader = await settled(cluster)
        quorum = quorum_leader(cluster)
        if quorum is not leader:
            assert await order(quorum, "elect", quorum.node_id)
            await cluster.until(lambda: cluster.leader is quorum, "one leads both")
            await settled(cluster)
        began_ms = quorum.clock.monotonic_ms()
        await quorum.stop()
        assert quorum.clock.monotonic_ms() - began_ms < 5 * SECONDS
        after = await cluster.until_led(but=quorum)
        assert service(after).describe()["quorum"]["leader"] not in {None, quorum.node_id}
        await quorum.start()
        await settled(cluster)


async def test_nodes_that_stop_together_wait_for_no_quorum(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 39) as cluster:
        leader = await settled(cluster)
        began_ms = leader.clock.monotonic_ms()
        async with asyncio.TaskGroup() as stopping:
            for node in cluster.nodes.values():
                stopping.create_task(node.stop())
        assert leader.clock.monotonic_ms() - began_ms < 6 * SECONDS


async def test_a_command_waits_no_longer_than_a_node_that_stops_may(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 40) as cluster:
        leader = await settled(cluster)
        for node in cluster.nodes.values():
            if node is not leader:
                await node.kill()
        store = leader.node.storage.metadata
        store.hasten(500)
        image = store.image
        began_ms = leader.clock.monotonic_ms()
        with pytest.raises(MetadataInDoubt):
            await store.apply(DrainNode(leader.node_id, image.nodes[leader.node_id].life))
        # The wish before this one, of the leader itself, is waited for first; each for at most a second more.
        assert leader.clock.monotonic_ms() - began_ms < 5 * SECONDS


async def test_INV_CLO3_where_nobody_in_sync_comes_back_an_operators_word_lets_another_one_lead(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 41) as cluster:
        last = await settled(cluster)
        others = [node for node in cluster.nodes.values() if node is not last]
        for node in others:
            assert await order(quorum_leader(cluster), "drain", node.node_id)
        await cluster.until(lambda: in_sync(last) == [last.node_id], "one is in sync")
        await last.kill()
        for node in others:  # anew, so they drain no more
            await node.kill()
        async with asyncio.TaskGroup() as starting:
            for node in others:
                starting.create_task(node.start())

        def waits() -> bool:
            views = [service(node).describe() for node in others]
            rows = [
                row for view in views for row in view["nodes"] if row["node_id"] != last.node_id
            ]
            return (
                all(view["leadership"]["leader"] is None for view in views)
                and all(view["quorum"]["leader"] is not None for view in views)
                and not any(row["fenced"] or row["draining"] for row in rows)
            )

        await cluster.until(waits, "two run, and nobody leads")
        assert not any(service(node).view.follows for node in others)  # INV-CVW2: not ready
        quorum = next(node for node in others if node.node.storage.metadata.group.leads)
        told = await refusal(quorum, "elect", None)
        assert "nobody who holds all that was committed is heard" in told.reason
        chosen = others[0]
        assert await order(quorum, "unclean-election", chosen.node_id, dry_run=True)
        done = await service(quorum).order("unclean-election", chosen.node_id, dry_run=False, confirmed=True)  # fmt: skip
        assert done["changed"]
        assert done["costs"].startswith(f"what only nodes {last.node_id} hold is lost")  # INV-CLO3
        await cluster.until(lambda: cluster.leader is chosen, "it leads")
        assert service(chosen).describe()["leadership"]["unclean"] == 1
        await last.start()
        await settled(cluster)
        assert cluster.leader is chosen


async def test_a_drain_of_a_node_that_is_not_heard_says_that_it_led_nothing(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 39) as cluster:
        leader = await settled(cluster)
        away, other = (node for node in cluster.nodes.values() if node is not leader)
        await away.kill()
        await cluster.until(lambda: dropped(leader, away), "it is noticed")
        at = quorum_leader(cluster)
        for dry_run in (True, False):
            done = await service(at).order("drain", away.node_id, dry_run=dry_run, confirmed=False)
            assert f"node {away.node_id} is not heard, so it led nothing" in done["costs"]
        assert service(at).describe()["nodes"][away.node_id - 1]["draining"]
        done = await service(at).order("drain", other.node_id, dry_run=True, confirmed=False)
        assert done["costs"] == ""


async def test_INV_CLO5_a_drain_of_a_node_that_nobody_can_take_over_from_says_that_it_leads_on(
    tmp_path: Path,
) -> None:
    """An operator who stops the node then, as `drain` was said to be done, stops the region."""
    async with region_cluster(tmp_path, 43) as cluster:
        leader = await settled(cluster)
        done = await service(quorum_leader(cluster)).order(
            "drain", leader.node_id, dry_run=True, confirmed=False
        )
        assert not done["leads_on"], "the others can lead"
        for node in cluster.nodes.values():
            if node is not leader:
                assert await order(quorum_leader(cluster), "drain", node.node_id)
        for dry_run in (True, False):
            at = quorum_leader(cluster)
            done = await service(at).order(
                "drain", leader.node_id, dry_run=dry_run, confirmed=False
            )
            assert done["leads_on"]
            assert f"node {leader.node_id} leads on" in done["costs"]
        assert cluster.leader is leader
