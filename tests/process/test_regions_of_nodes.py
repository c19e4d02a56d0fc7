"""`tidemark dev --nodes 3`: two regions of three nodes, operated while a minority of each is dead."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from region_broker.workbench.node_http import ApiError, metrics_text, request
from region_broker.workbench.stage import wait_until
from tests.process.test_cli import TIDEMARK, TIMEOUT_S, Dev, document, run

pytestmark = [pytest.mark.process, pytest.mark.slow]
FOLLOWERS_NEVER = ("waits", "others_run_twice", "diverged_records", "primary_silent_ms")


@pytest.fixture
def dev(tmp_path: Path) -> Iterator[Dev]:
    running = Dev("--regions", "2", "--nodes", "3", "--data-dir", str(tmp_path / "cluster"))
    yield running
    if running.process.poll() is None:
        running.stop()


def nodes_of(dev: Dev, name: str) -> list[dict[str, Any]]:
    (found,) = [region["nodes"] for region in dev.regions if region["name"] == name]
    return list(found)


def http_of(dev: Dev, *, but: set[int]) -> str:
    each = [*nodes_of(dev, "eu"), *nodes_of(dev, "us")]
    return ",".join(node["http"] for node in each if node["id"] not in but)


def leader_of(dev: Dev, name: str) -> dict[str, Any]:
    """Return the node that leads a region, once one does."""
    found: list[dict[str, Any]] = []

    def leads() -> bool:
        for node in nodes_of(dev, name):
            with suppress(OSError, ApiError):
                view = request(node["http"], "GET", "/v1/region")
                if view["role"] not in {"follower", "changing"}:
                    found.append(node)
                    return True
        return False

    wait_until(f"a leader of {name}", TIMEOUT_S, leads)
    return found[0]


def until_in_sync(dev: Dev) -> None:
    """Wait until any node of each region may go: all of them are in sync, and vote. At its birth a region is one node."""

    def are() -> bool:
        for name in ("eu", "us"):
            view = document("cluster", "status", "--region", name, url=http_of(dev, but=set()))
            if len(view["leadership"]["in_sync"]) < 3 or len(view["quorum"]["voters"]) < 3:
                return False
        return True

    wait_until("all nodes are in sync", TIMEOUT_S, are)


def statuses(url: str) -> dict[str, Mapping[str, Any]]:
    return {each["region"]: each for each in document("region", "status", url=url)["regions"]}


def kill(node: Mapping[str, Any]) -> None:
    os.kill(node["pid"], signal.SIGKILL)


def test_two_regions_of_three_nodes_are_operated_with_a_node_of_each_dead(
    dev: Dev, tmp_path: Path
) -> None:
    assert [node["id"] for node in nodes_of(dev, "us")] == [4, 5, 6]
    assert dev.regions[1]["bootstrap"] == ",".join(node["kafka"] for node in nodes_of(dev, "us"))
    for name in ("eu", "us"):
        leader = leader_of(dev, name)
        view = document("cluster", "status", "--region", name, url=dev.regions[0]["http"])
        assert [row["node_id"] for row in view["nodes"] if row["leads"]] == [leader["id"]]
        for node in nodes_of(dev, name):
            if node != leader:
                follows(node, leader)

    until_in_sync(dev)
    dead_eu, dead_us = leader_of(dev, "eu"), leader_of(dev, "us")
    kill(dead_eu)
    kill(dead_us)
    dead = {dead_eu["id"], dead_us["id"]}
    leader_of(dev, "eu")
    leads = leader_of(dev, "us")
    only_eu = ",".join(node["http"] for node in nodes_of(dev, "eu"))
    wait_until("eu is mirrored again", TIMEOUT_S, lambda: is_mirrored(only_eu))

    follower = next(n for n in nodes_of(dev, "us") if n["id"] not in {*dead, leads["id"]})
    done = document("region", "switch", "--to", "us", "--timeout", "60", url=follower["http"])
    assert (done["status"], done["to_region"]) == ("succeeded", "us")
    assert statuses(http_of(dev, but=dead))["us"]["acting"]

    config = tmp_path / "cluster" / "us" / str(dead_us["id"]) / "node.json"
    again = subprocess.Popen([*TIDEMARK, "broker", "--config", str(config)], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)  # fmt: skip
    try:
        assert again.stdout is not None
        assert again.stdout.readline().startswith(b"ready")
    finally:
        again.terminate()
        again.communicate(timeout=TIMEOUT_S)


def is_mirrored(url: str) -> bool:
    found = statuses(url)
    return bool(found["eu"].get("acting")) and found["us"].get("role") == "mirror"


def follows(node: Mapping[str, Any], leader: Mapping[str, Any]) -> None:
    """Check what a follower says of its region."""
    view = request(node["http"], "GET", "/v1/region")
    assert (view["role"], view["acting"], view["lag"]) == ("follower", False, {})
    assert request(node["http"], "GET", "/readyz")["status"] == "ready"
    metrics = metrics_text(node["http"])
    for name in FOLLOWERS_NEVER:
        lines = [line for line in metrics.splitlines() if line.startswith(f"tidemark_region_{name}{{")]  # fmt: skip
        assert lines
        assert all(line.endswith(" 0.0") for line in lines), lines
    with pytest.raises(ApiError, match=f"node {leader['id']} does") as refused:
        request(node["http"], "POST", "/v1/region/switch", {"to": view["region"]})
    assert refused.value.code == "not-leading"
    assert refused.value.url == f"{leader['http']}/v1/region/switch"


def test_an_operation_whose_node_dies_ends_at_the_next_one(dev: Dev) -> None:
    until_in_sync(dev)
    for node in nodes_of(dev, "eu"):
        kill(node)
    order = ["region", "failover", "--to", "us", "--yes", "--timeout", "60", "-o", "json"]
    leads = leader_of(dev, "us")
    ordered = subprocess.Popen(
        [*TIDEMARK, *order], env={**os.environ, "TIDEMARK_URL": http_of(dev, but=set())},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip

    def begun() -> bool:
        with suppress(OSError, ApiError):
            phase = request(leads["http"], "GET", "/v1/region")["phase"]
            return ordered.poll() is not None or phase not in {"mirroring", "unborn"}
        return False

    wait_until("the failover begins", TIMEOUT_S, begun)
    kill(leads)
    out, err = ordered.communicate(timeout=2 * TIMEOUT_S)
    assert ordered.returncode == 0, (out, err)
    assert json.loads(out)["status"] == "succeeded"
    left = http_of(dev, but={leads["id"]})
    wait_until("us acts", TIMEOUT_S, lambda: bool(statuses(left)["us"].get("acting")))
    assert "takes writes" in run("region", "status", TIDEMARK_URL=left)
