"""Local clusters: the ports that they are given, and what is said of processes that do not do as they should."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import IO
from uuid import UUID

import msgspec
import pytest

from region_broker.config.node_config import NodeConfig
from region_broker.workbench import cluster_plan
from region_broker.workbench.cluster_plan import (
    PLAN_FILE,
    PORTS_OF_OUR_OWN,
    ClusterError,
    ClusterPlan,
)
from region_broker.workbench.local_cluster import LocalCluster

RANGE_OF_LINUX = Path("/proc/sys/net/ipv4/ip_local_port_range")


def test_INV_LC4_a_region_that_is_down_keeps_its_ports_from_whatever_is_dialled(
    tmp_path: Path,
) -> None:
    with LocalCluster.open(tmp_path, region_count=8, port=0, new_cluster_id=UUID(int=1)) as cluster:
        plan = cluster.plan
    ports = [port for r in plan.regions for port in (r.kafka_port, r.http_port, r.peer_port)]
    assert len(set(ports)) == 3 * 8
    first, last = PORTS_OF_OUR_OWN
    assert all(first <= port < last for port in ports)
    if RANGE_OF_LINUX.exists():
        assert last <= int(RANGE_OF_LINUX.read_text().split()[0])
    for port in ports:
        with socket.socket() as one:
            one.bind(("127.0.0.1", port))


def test_INV_LC4_where_more_ports_are_dialled_from_the_others_are_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        cluster_plan, "not_dialled", lambda ports: [port for port in ports if port < 21_000]
    )
    with LocalCluster.open(tmp_path, region_count=8, port=0, new_cluster_id=UUID(int=1)) as cluster:
        ports = [
            port for r in cluster.plan.regions for port in (r.kafka_port, r.http_port, r.peer_port)
        ]
    assert all(20_000 <= port < 21_000 for port in ports)


def test_INV_LC5_a_port_is_given_to_no_other_cluster_while_this_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_plan, "PORTS_OF_OUR_OWN", (19_990, 19_994))

    def opened(name: str) -> LocalCluster:
        return LocalCluster.open(
            tmp_path / name, region_count=1, port=0, new_cluster_id=UUID(int=1)
        )

    with opened("one"), pytest.raises(ClusterError, match="not 3 are free"):
        opened("other")  # though no node of the first runs yet
    with opened("other") as other:
        assert len(other.plan.regions) == 1


def test_a_plan_is_replaced_as_a_whole_and_never_written_over(tmp_path: Path) -> None:
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=1)) as cluster:
        before = cluster.plan
    kept = tmp_path / "kept"
    kept.hardlink_to(tmp_path / PLAN_FILE)
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=2)) as cluster:
        after = cluster.plan
    assert after.cluster_id == before.cluster_id
    assert msgspec.json.decode(kept.read_bytes(), type=ClusterPlan) == before


UP = "import sys; print('ready', flush=True); sys.stdin.read()"
FAILS = "import sys; sys.exit('tidemark: it holds the data of another region')"


def played(
    folder: Path, *, birth: str = "", node: str = UP, regions: int = 1, nodes: int = 1
) -> LocalCluster:
    """Return a cluster whose processes are these programs."""

    def start(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        program = birth if command[0] == "init" else node
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip

    cluster = LocalCluster.open(
        folder, region_count=regions, node_count=nodes, port=0, new_cluster_id=UUID(int=1)
    )
    cluster.start_by(start)
    return cluster


def test_INV_LC1_a_region_that_runs_is_not_started_beside_itself(tmp_path: Path) -> None:
    with played(tmp_path) as cluster:
        cluster.start()
        [pid] = cluster.pids("eu")
        with pytest.raises(ClusterError, match="runs already"):
            cluster.start()
        assert cluster.pids("eu") == [pid]
    assert cluster.running == []


def ended_by_itself(cluster: LocalCluster) -> None:
    cluster.signal("eu", signal.SIGKILL)
    while cluster.running:
        os.sched_yield()


def test_a_region_that_ended_by_itself_is_told_of_once_and_can_be_started_again(
    tmp_path: Path,
) -> None:
    with played(tmp_path) as cluster:
        cluster.start()
        ended_by_itself(cluster)
        assert cluster.dead() == {"eu": -signal.SIGKILL}
        assert cluster.dead() == {}
        cluster.start()
        ended_by_itself(cluster)
        cluster.start()  # nobody has asked how it ended
        assert cluster.running == ["eu"]


def test_what_does_not_start_is_told_with_its_own_last_word(tmp_path: Path) -> None:
    with (
        played(tmp_path / "a", birth=FAILS) as unborn,
        pytest.raises(ClusterError, match="does not begin: it holds the data"),
    ):
        unborn.start()
    with (
        played(tmp_path / "b", node=FAILS) as refused,
        pytest.raises(ClusterError, match="eu did not start: it holds the data"),
    ):
        refused.start()


OF_ONE_NODE = (
    b'{"cluster_id":"c","regions":[{"name":"eu","ordinal":0,"kafka_port":9092,"http_port":9093,"peer_port":9094},'
    b'{"name":"us","ordinal":1,"kafka_port":9102,"http_port":9103,"peer_port":9104}],"born":true}'
)
"""A plan as versions wrote it that knew one node in a region."""


def test_a_plan_of_one_node_in_a_region_is_read_and_kept_as_ever(tmp_path: Path) -> None:
    (tmp_path / PLAN_FILE).write_bytes(OF_ONE_NODE)
    with LocalCluster.open(
        tmp_path, region_count=2, port=None, new_cluster_id=UUID(int=1)
    ) as cluster:
        places = [(node.name, node.node_id, node.bootstrap) for node in cluster.plan.nodes]
        assert places == [("eu", 1, "127.0.0.1:9092"), ("us", 2, "127.0.0.1:9102")]
        assert cluster.data_dir("us") == tmp_path / "us"
    kept = json.loads((tmp_path / PLAN_FILE).read_bytes())
    assert kept == {**json.loads(OF_ONE_NODE), "founded": []}
    with pytest.raises(ClusterError, match=r"with 1 nodes in a region, not 3: .* the same --nodes"):
        LocalCluster.open(
            tmp_path, region_count=2, node_count=3, port=None, new_cluster_id=UUID(int=1)
        )


def test_each_node_is_ten_ports_further_whatever_its_region(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path, region_count=2, node_count=2, port=20_000, new_cluster_id=UUID(int=1)
    ) as cluster:
        plan = cluster.plan
    assert [(node.name, node.node_id, node.kafka_port, node.http_port) for node in plan.nodes] == [
        ("eu/1", 1, 20_000, 20_001), ("eu/2", 2, 20_010, 20_011),
        ("us/3", 3, 20_020, 20_021), ("us/4", 4, 20_030, 20_031),
    ]  # fmt: skip
    assert [region.bootstrap for region in plan.regions] == [
        "127.0.0.1:20000,127.0.0.1:20010", "127.0.0.1:20020,127.0.0.1:20030",
    ]  # fmt: skip
    with pytest.raises(ClusterError, match="4 nodes would need ports up to 65552"):
        LocalCluster.open(
            tmp_path / "b", region_count=2, node_count=2, port=65_520, new_cluster_id=UUID(int=1)
        )


def test_the_file_of_each_node_is_for_that_one_and_knows_all(tmp_path: Path) -> None:
    with played(tmp_path, regions=2, nodes=3) as cluster:
        cluster.route_peers({("eu/2", "us/4"): 7_777})
        cluster.start()
        for region, node_ids in (("eu", (1, 2, 3)), ("us", (4, 5, 6))):
            for node_id in node_ids:
                folder = tmp_path / region / str(node_id)
                config = NodeConfig.load(folder / "node.json", {})
                assert (config.region, config.own_node.node_id) == (region, node_id)
                assert config.data_dir == str(folder)
                assert [node.node_id for node in config.own.nodes] == list(node_ids)
                assert config.node_ids == {1, 2, 3, 4, 5, 6}
                dialled = config.others[0].nodes[0].peer
                assert (dialled == "127.0.0.1:7777") is (node_id == 2)


def test_INV_LC1_nodes_are_killed_and_started_one_by_one_or_with_their_region(
    tmp_path: Path,
) -> None:
    with played(tmp_path, regions=2, nodes=2) as cluster:
        cluster.start(["eu"])
        assert cluster.running == ["eu/1", "eu/2"]
        cluster.start(["us/4"])
        [first, second] = cluster.pids("eu")
        cluster.kill("eu/1")
        assert (cluster.pids("eu/1"), cluster.pids("eu")) == ([], [second])
        with pytest.raises(ClusterError, match="node 2 of region eu runs already"):
            cluster.start(["eu"])
        cluster.start(["eu/1"])
        assert first not in cluster.pids("eu")
        cluster.kill("eu")
        assert cluster.running == ["us/4"]
        with pytest.raises(ClusterError, match="eu was not started, or has ended"):
            cluster.kill("eu")
        with pytest.raises(ClusterError, match="no node eu/9"):
            cluster.start(["eu/9"])
        cluster.stop(["us"])
        assert cluster.running == []


def test_a_cluster_is_born_at_one_node(tmp_path: Path) -> None:
    died = "import sys; sys.exit('tidemark: born twice')"
    with played(tmp_path, birth=UP.replace("sys.stdin.read()", "0"), nodes=3) as cluster:
        cluster.start(["eu/2"])
        born = [cluster.plan.born]
        cluster.start(["eu/1", "eu/3"])
        assert [*born, cluster.plan.born] == [False, True]
    with played(tmp_path, birth=died, nodes=3) as cluster:
        cluster.start()  # nobody is born again
        assert cluster.running == ["eu/1", "eu/2", "eu/3"]


def test_nodes_in_networks_of_their_own_say_that_nobody_else_is_there(tmp_path: Path) -> None:
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=1)) as cluster:
        assert "insecure" not in cluster._config("eu")
        (place,) = cluster.plan.regions
        moved = msgspec.structs.replace(place, host="10.77.1.2")
        cluster.plan = msgspec.structs.replace(cluster.plan, regions=[moved])
        assert cluster._config("eu")["insecure"] is True


def test_what_nodes_are_told_besides_is_in_their_files(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path,
        region_count=2,
        port=0,
        new_cluster_id=UUID(int=1),
        settings={"log_level": "debug"},
    ) as cluster:
        cluster.tell({"tls_ca": "ca.pem"}, {"us": {"tls_key": "us-key.pem"}}, "https")
        told = [
            (c["log_level"], c["tls_ca"], c.get("tls_key"))
            for c in map(cluster._config, ("eu", "us"))
        ]
        assert told == [("debug", "ca.pem", None), ("debug", "ca.pem", "us-key.pem")]
        assert all(node.http.startswith("https://") for node in cluster.plan.nodes)
    with LocalCluster.open(
        tmp_path, region_count=2, port=None, new_cluster_id=UUID(int=1)
    ) as again:
        assert all(node.http.startswith("http://") for node in again.plan.nodes)
