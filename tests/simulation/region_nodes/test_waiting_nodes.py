"""A node of a region with several that has not joined yet answers over HTTP what it waits for."""

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from region_broker.config.node_config import NodeConfig
from region_broker.http_api.doors import Passed
from region_broker.node import NodeRefused, Ports
from region_broker.node.birth import BirthOutcome, give_birth
from region_broker.security.audit.chain_files import chain_names
from region_broker.security.audit.recorder import AuditRecorder
from region_broker.security.identity import Identity
from tests.simulation.http_client import Answer, get
from tests.simulation.region_cluster import NAMES, Cluster, Member
from tests.simulation.region_pair import SeededChance, until

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def asked(node: Member, path: str) -> Answer:
    return await get(node.fabric.site(node.name), node.http_port, path)


async def ready(node: Member) -> tuple[int, dict[str, Any]]:
    answer = await asked(node, "/readyz")
    return answer.status, answer.json()["checks"]


async def test_a_node_that_waits_for_its_quorum_says_whom_it_waits_for(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 61)
    first, second, third = cluster.nodes.values()
    try:
        await second.begin()
        assert (await asked(second, "/livez")).status == 200
        status, checks = await ready(second)
        assert status == 503
        assert "waits for the quorum of region eu" in checks["joined"]
        assert "nodes 1, 3 have not come in" in checks["joined"]
        assert "If the region is new, run tidemark init once" in checks["joined"]
        metrics = (await asked(second, "/metrics")).body.decode()
        assert 'tidemark_quorum_leader_known{region="eu"} 0.0' in metrics
        assert 'tidemark_node_waits{region="eu"} 1.0' in metrics
        other = await asked(second, "/v1/cluster")
        assert (other.status, other.json()["code"]) == (503, "node-waits")
        assert "waits for the quorum" in other.json()["detail"]
        await first.start()
        await third.start()
        await until(lambda: second.runs and second.member.node is not None, "it joined")
        await cluster.until_led()
        answers = [await asked(node, "/v1/cluster") for node in cluster.nodes.values()]
        assert {answer.status for answer in answers} == {200}
        assert "tidemark_node_waits" not in (await asked(second, "/metrics")).body.decode()
    finally:
        await cluster.stop()


async def test_INV_ARH1_who_is_refused_while_a_node_waits_is_in_its_trail_once_it_has_joined(
    tmp_path: Path,
) -> None:
    """The quorum may be lost for hours, and passwords are checked meanwhile."""
    cluster = Cluster(tmp_path, 65, audit="on")
    _, second, _ = cluster.nodes.values()
    mallory = Identity("User:alice", "192.0.2.9", "Basic")
    try:
        await second.begin()
        waiting = second.member._waiting
        for _ in range(30):
            waiting.doors.on_passed(Passed(mallory, "GET", "/v1/region", "unknown"))
        second.member.peers.audit.peer_refused("ANONYMOUS", "192.0.2.8", code="unknown-node")
        for node in cluster.nodes.values():
            if node is not second:
                await node.start()
        await until(lambda: second.runs and second.member.node is not None, "it joined")
        trail = second.node.storage.metadata.audit
        assert isinstance(trail, AuditRecorder)
        await until(lambda: trail.recorded["login"] > 0, "it is written")
        folder = second.folder / "audit"
        [name] = chain_names(second.disk.list_dir(folder))
        lines = [json.loads(line) for line in second.disk.read_file(folder / name).splitlines()]
    finally:
        await cluster.stop()
    [login] = [line for line in lines if line["kind"] == "login"]
    assert (login["principal"], login["host"], login["count"]) == ("User:alice", "192.0.2.9", 30)
    assert login["outcome"] == "refused"
    assert login["details"]["first_at_ms"] <= login["at_ms"]
    assert [line["host"] for line in lines if line["kind"] == "peer-refusal"] == ["192.0.2.8"]


async def test_of_the_voters_only_those_are_named_that_are_not_there(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, 62)
    try:
        await cluster.start()
        await cluster.until_led()
        first, second, third = cluster.nodes.values()
        store = first.node.storage.metadata
        await cluster.until(lambda: len(store.quorum.membership.voters) == 3, "three vote")
        for node in (first, second, third):
            await node.kill()
        await third.begin()
        _, checks = await ready(third)
        assert "nodes 1, 2 have not come in" in checks["joined"]
        assert "do not run tidemark init" in checks["joined"], "it knows its region"
        assert "this node's log says what keeps it from meeting them" in checks["joined"]
    finally:
        await cluster.stop()


async def birth_at_second(cluster: Cluster, **how: bool) -> BirthOutcome:
    _, second, _ = cluster.nodes.values()
    site = cluster.fabric.site(second.name)
    ports = Ports(second.clock, SeededChance(cluster.chance), second.disk, site)
    return await give_birth(second.config(), ports, **{"no_history_elsewhere": False, **how})


class Second(Member):
    """Another folder of node 2, on another machine."""

    @property
    def node_id(self) -> int:
        return 2

    def config(self) -> NodeConfig:
        peers = Member("eu-2", self.folder, self.fabric, self._chance, NAMES).config()
        [region] = peers.regions
        moved = [
            node
            if node.node_id != 2
            else replace(
                node, kafka="127.0.0.1:10009", peer="127.0.0.1:11009", http="127.0.0.1:12009"
            )
            for node in region.nodes
        ]
        return replace(peers, regions=[replace(region, nodes=moved)])

    @property
    def http_port(self) -> int:
        return 12_009


async def test_INV_WRM1_a_second_folder_of_a_node_says_that_the_first_one_may_run(
    tmp_path: Path,
) -> None:
    """It waited for ever, said that the others `have not come in`, and that a new region could be begun."""
    cluster = Cluster(tmp_path, 64)
    second = Second("eu-2b", tmp_path / "2b", cluster.fabric, cluster.chance, ("eu-2b",))
    try:
        await cluster.start()
        await cluster.until_led()
        first, _, third = cluster.nodes.values()
        store = first.node.storage.metadata
        await cluster.until(lambda: len(store.quorum.membership.voters) == 3, "three vote")
        await second.begin()
        await until(
            lambda: "nodes 1, 3 of region eu answer" in second.member._waiting.reason(),
            "they are met",
        )
        _, checks = await ready(second)
        told = checks["joined"]
        assert "another folder of node 2 runs: tidemark cluster status there says so" in told
        assert "tidemark cluster node add 2 makes it known" in told, "it may have been removed"
        assert "init" not in told
        assert "have not come in" not in told
        for node in (first, third):
            await node.kill()
        await until(
            lambda: "nodes 1, 3 have not come in" in second.member._waiting.reason(),
            "they are gone",
        )
    finally:
        await second.kill()
        await cluster.stop()


async def test_T32_a_node_that_waits_says_whether_it_has_history_to_who_asks_for_a_birth(
    tmp_path: Path,
) -> None:
    """Whoever has it alone waits for its quorum, too: a second birth would part the region, whatever the operator says."""
    cluster = Cluster(tmp_path, 63)
    first, second, third = cluster.nodes.values()
    try:
        await third.begin()
        with pytest.raises(NodeRefused, match=r"^node 1 of region eu \(.*\) cannot be asked"):
            await birth_at_second(cluster)
        sure = {"no_history_elsewhere": True, "dry_run": True}
        assert await birth_at_second(cluster, **sure) is BirthOutcome.WOULD_BE_BORN
        await first.start()
        await cluster.until(lambda: third.member.node is not None, "it joined")
        for _ in ("they run", "they wait"):
            with pytest.raises(NodeRefused, match="node 1 of region eu has history") as refused:
                await birth_at_second(cluster, no_history_elsewhere=True)
            assert "it joins the others of its region" in str(refused.value)
            assert "region failover" not in str(refused.value)
            for node in (first, third):
                await node.kill()
            await first.begin()
        assert not second.disk.exists(second.folder), "INV-BI3"
    finally:
        await cluster.stop()
