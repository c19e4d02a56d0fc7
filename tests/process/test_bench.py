"""`tidemark bench` against a region it starts itself: what it prints and what it leaves, never how fast."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient

from region_broker.workbench.local_cluster import LocalCluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

BENCH = (sys.executable, "-m", "region_broker", "bench")
SHORT = ("--seconds", "0.3", "--runs", "2", "--partitions", "3")


def run_bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command to its end."""
    return subprocess.run(
        [*BENCH, *arguments], capture_output=True, text=True, timeout=180, check=False
    )


def figures(done: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    """Return the JSON document it printed."""
    assert done.returncode == 0, done.stderr
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def test_all_loads_on_a_cluster_of_its_own() -> None:
    document = figures(
        run_bench(
            "all",
            *SHORT,
            "--producers",
            "1,2",
            "--connections",
            "1,3",
            "--rate",
            "100",
            "-o",
            "json",
        )
    )
    rows = document["results"]
    assert [(row["what"], row["producers"]) for row in rows] == [
        ("produce", 1),
        ("produce, one at a time", 1),
        ("produce requests", 1),
        ("produce requests", 3),
        ("consume", 1),
        ("acknowledged at 100 msg/s", 1),
        ("end to end at 100 msg/s", 1),
        ("acknowledged at 100 msg/s, transactions of 10", 1),
        ("end to end at 100 msg/s, transactions of 10", 1),
        ("transactions", 1),
        ("transactions", 2),
    ]
    for row in rows:
        assert row["runs"] == 2
        assert 0 < row["min"] <= row["median"] <= row["max"]
        assert row["node_cpu_s"] >= 0
        assert row["node_rss_mb"] > 0
        assert (row["mb_per_s"] is None) == (row["unit"] == "txn/s")
        timed = row["what"] not in ("produce", "consume")
        assert (row["p50_ms"] is not None) == timed
        assert not timed or 0 < row["p50_ms"] <= row["p99_ms"]
    assert document["machine"]["cores"] > 0
    assert document["settings"]["partitions"] == 3


def test_a_broker_that_is_named_keeps_no_topic(tmp_path: Path) -> None:
    with LocalCluster.open(tmp_path, region_count=1, port=0, new_cluster_id=UUID(int=1)) as cluster:
        cluster.start()
        done = run_bench(
            "transactions",
            *SHORT,
            "--producers",
            "2",
            "-o",
            "json",
            "--bootstrap",
            cluster.bootstrap,
        )
        (row,) = figures(done)["results"]
        assert row["node_cpu_s"] is None  # nobody told it which process serves
        topics = (
            AdminClient({"bootstrap.servers": cluster.bootstrap}).list_topics(timeout=10).topics
        )
        assert [name for name in topics if not name.startswith("__")] == []


def test_two_brokers_in_alternation_with_ratios_and_a_report(tmp_path: Path) -> None:
    report = tmp_path / "bench.html"
    with LocalCluster.open(
        tmp_path / "c", region_count=2, port=0, new_cluster_id=UUID(int=1)
    ) as cluster:
        cluster.start()
        primary, mirror = (region.bootstrap for region in cluster.plan.regions)
        (pid,) = cluster.pids(cluster.plan.regions[1].name)
        done = run_bench(
            "latency", *SHORT, "--rate", "50", "--bootstrap", primary, "--against", mirror, "-o", "json",
            "--html", str(report), "--against-pid", str(pid),
        )  # fmt: skip
    document = figures(done)
    assert [(row["broker"], row["what"]) for row in document["results"]] == [
        (primary, "acknowledged at 50 msg/s"),
        (mirror, "acknowledged at 50 msg/s"),
        (primary, "end to end at 50 msg/s"),
        (mirror, "end to end at 50 msg/s"),
        (primary, "acknowledged at 50 msg/s, transactions of 10"),
        (mirror, "acknowledged at 50 msg/s, transactions of 10"),
        (primary, "end to end at 50 msg/s, transactions of 10"),
        (mirror, "end to end at 50 msg/s, transactions of 10"),
    ]
    assert all(
        row["median"] > 0 and 0 < row["p50_ms"] <= row["p99_ms"] for row in document["results"]
    )
    assert [row["node_cpu_s"] is None for row in document["results"]] == [True, False] * 4
    assert all(row["client_cpu_us_each"] > 0 for row in document["results"])
    assert [row["what"] for row in document["ratios"]] == [
        "acknowledged at 50 msg/s",
        "end to end at 50 msg/s",
        "acknowledged at 50 msg/s, transactions of 10",
        "end to end at 50 msg/s, transactions of 10",
    ]
    said = [line.rpartition(", run")[0] for line in done.stderr.splitlines() if "run" in line]
    assert [primary in line for line in said] == [True, False] * 4, "run by run, in turn"
    page = report.read_text()
    assert page.count("<svg") == 4
    assert "http" not in page.replace("127.0.0.1", ""), "nothing is fetched"


def test_a_region_of_three_nodes_beside_another_one(tmp_path: Path) -> None:
    with LocalCluster.open(
        tmp_path, region_count=1, node_count=3, port=0, new_cluster_id=UUID(int=1)
    ) as cluster:
        cluster.start()
        (region,) = cluster.plan.regions
        pids = [str(pid) for pid in cluster.pids(region.name)]
        document = figures(
            run_bench(
                "produce", *SHORT, "--runs", "1", "--nodes", "3", "--against", region.bootstrap,
                "--against-pid", ",".join(pids), "-o", "json",
            )
        )  # fmt: skip
        too_many = run_bench("produce", "--nodes", "5", "--against", region.bootstrap)
        too_few = run_bench(
            "produce", "--against", region.bootstrap, "--against-pid", ",".join(pids[:2])
        )
    rows = document["results"]
    assert [(row["what"], row["size_bytes"]) for row in rows] == [
        *[("produce", size_bytes) for size_bytes in (100, 100, 1000, 1000)],
        *[("produce, one at a time", 100)] * 2,
    ]
    for row in rows:
        assert [node["node"] for node in row["nodes"]] == [1, 2, 3]
        assert sorted(node["leads"] > 0 for node in row["nodes"]) == [False, False, True]
        assert all(node["rss_mb"] > 0 for node in row["nodes"])
        assert row["leader_cpu_us_each"] >= 0 <= row["follower_cpu_ns_per_byte"]
    assert len(document["ratios"]) == 3
    assert too_many.returncode == 1
    assert "3 nodes answer" in too_many.stderr
    assert "tests.compat.apache_kafka --nodes 5" in too_many.stderr
    assert too_few.returncode == 1
    assert "--against-pid" in too_few.stderr


def test_a_mirror_that_was_away_catches_up() -> None:
    done = run_bench(
        "catch-up", "--regions", "2", "--megabytes", "1", "--runs", "2", "--partitions", "3", "-o", "json"
    )  # fmt: skip
    at_primary, at_mirror = figures(done)["results"]
    assert (at_primary["what"], at_mirror["what"]) == (
        "catch-up, cost at the primary",
        "catch-up, cost at the mirror",
    )
    for row in (at_primary, at_mirror):
        assert row["runs"] == 2
        assert row["median"] == at_primary["median"] > 0
        assert row["node_rss_mb"] > 0


def test_two_idle_regions_are_counted_one_by_one() -> None:
    done = run_bench(
        "idle", "--regions", "2", "--topics", "1,3", "--seconds", "0.3", "--runs", "1", "-o", "json"
    )
    rows = figures(done)["results"]
    assert [(row["what"], row["unit"]) for row in rows] == [
        (f"idle, {topic_count} topics, {region}", "% of a core")
        for topic_count in (1, 3)
        for region in ("primary", "mirror")
    ]


def test_what_tls_costs_is_measured_at_two_ports_of_one_node() -> None:
    done = run_bench(
        "tls",
        "--seconds",
        "0.3",
        "--runs",
        "1",
        "--connections",
        "1",
        "--producers",
        "1",
        "-o",
        "json",
    )
    document = figures(done)
    what = ["produce", "produce, one at a time", "produce requests", "consume", "transactions"]
    assert [(row["broker"], row["what"]) for row in document["results"]] == [
        (port, each) for each in what for port in ("tls", "plain")
    ]
    assert all(row["median"] > 0 for row in document["results"])
    # The system counts CPU in ticks of 10 ms: in such a short run one of them may get none.
    assert all(row["node_cpu_us_each"] >= 0 for row in document["results"])
    assert any(row["node_cpu_us_each"] > 0 for row in document["results"])
    assert [row["what"] for row in document["ratios"]] == what


def test_tls_is_measured_at_no_other_node() -> None:
    done = run_bench("tls", "--nodes", "3")
    assert done.returncode == 2
    assert "give no --regions or --nodes" in done.stderr


def test_a_load_of_two_regions_needs_them() -> None:
    done = run_bench("catch-up", "--bootstrap", "127.0.0.1:1")
    assert done.returncode == 1
    assert "--regions 2" in done.stderr


def test_nobody_at_the_address() -> None:
    done = run_bench("produce", "--bootstrap", "127.0.0.1:1", *SHORT)
    assert done.returncode == 1
    assert done.stdout == ""
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_list_of_producers_that_is_none() -> None:
    done = run_bench("transactions", "--producers", "8,many")
    assert done.returncode == 2
    assert "8,many" in done.stderr


def test_a_process_of_nobody() -> None:
    done = run_bench("produce", "--against-pid", "1")
    assert done.returncode == 2
    assert "--against" in done.stderr


def test_the_size_of_a_region_is_measured_and_nothing_is_left() -> None:
    document = figures(
        run_bench("size", "--partitions", "12", "--seconds", "1", "--runs", "1", "-o", "json")
    )
    found = {(row["what"], row["where"]): row for row in document["figures"]}
    for what in (
        "idle, all nodes", "Metadata, p50", "topics made", "written after a clean stop", "written after kill -9",
        "resident", "file descriptors",
    ):  # fmt: skip
        (row,) = [row for (name, _), row in found.items() if name == what]
        assert row["value"] >= 0
        assert row["load"] >= 0
    assert not any(what.startswith("without a write") for what, _ in found), "who leads is alone"
    assert document["settings"] == {"partitions": 12, "regions": 1, "nodes": 1, "seconds": 1.0}


def test_what_clients_notice_of_a_node_that_is_added_is_measured() -> None:
    document = figures(
        run_bench(
            "grow", "--nodes", "2", "--partitions", "12", "--megabytes", "1", "--seconds", "0.5", "--rate", "100", "-o", "json"
        )
    )  # fmt: skip
    found = {(row["what"], row["where"]): row["value"] for row in document["figures"]}
    for period in ("before", "adding", "copying", "after"):
        assert 0 < found[f"produce p50, {period}", "client"] <= found[f"produce p99, {period}", "client"]  # fmt: skip
    assert found["copied", "new node"] > 0 < found["copying", "new node"]
    assert found["p99, copying over before", "client"] > 0
    assert document["settings"]["nodes"] == 2


def test_the_size_is_measured_of_nobody_elses_nodes() -> None:
    done = run_bench("size", "--bootstrap", "127.0.0.1:9")
    assert done.returncode == 2
    assert "give no --bootstrap" in done.stderr
