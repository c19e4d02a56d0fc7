"""Local clusters: the ports that they are given, and what is said of processes that do not do as they should."""

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

from region_broker.workbench import local_cluster
from region_broker.workbench.local_cluster import (
    PLAN_FILE,
    PORTS_OF_OUR_OWN,
    ClusterError,
    ClusterPlan,
    LocalCluster,
)

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


def test_INV_LC5_a_port_is_given_to_no_other_cluster_while_this_one_is_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local_cluster, "PORTS_OF_OUR_OWN", (29_000, 29_004))

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


def played(folder: Path, *, birth: str = "", node: str = UP) -> LocalCluster:
    """Return a cluster of one region whose processes are these programs."""

    def start(command: Sequence[str], errors: IO[bytes]) -> subprocess.Popen[bytes]:
        program = birth if command[0] == "init" else node
        return subprocess.Popen(
            [sys.executable, "-S", "-c", program],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors,
        )  # fmt: skip

    cluster = LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=1))
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
        pytest.raises(ClusterError, match="not born: it holds the data"),
    ):
        unborn.start()
    with (
        played(tmp_path / "b", node=FAILS) as refused,
        pytest.raises(ClusterError, match="eu did not start: it holds the data"),
    ):
        refused.start()
