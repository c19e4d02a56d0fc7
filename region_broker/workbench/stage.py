"""The regions on the demo's stage: asked and ordered over HTTP, as an operator would.

Not here: the order of the acts (`command`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from idempotency.identity import INTERNAL_TOPICS
from region_broker.workbench.leading_node import LeadingNode
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request

_ASK_INTERVAL_S: Final = 0.05
_LOSSES_WITHIN_S: Final = 60.0
_ELECTED_WITHIN_S: Final = 30.0


class StageError(Exception):
    """A region did not do what the demo waits for."""


def view(cluster: LocalCluster, region: str) -> Mapping[str, Any]:
    """Return `GET /v1/region` of a region, of several nodes of the one that leads it, once one does."""
    urls = _urls(cluster, region)
    if len(urls) == 1:
        return _asked(urls[0])
    found: list[Mapping[str, Any]] = []

    def leads() -> bool:
        for url in urls:
            try:
                found.append(_asked(url))
            except (OSError, ApiError):
                continue
            if found[-1]["role"] != "follower":
                return True
        return False

    wait_until(f"a leader of region {region}", _ELECTED_WITHIN_S, leads)
    return found[-1]


def _asked(url: str) -> Mapping[str, Any]:
    answer: Mapping[str, Any] = request(url, "GET", "/v1/region")
    return answer


def _urls(cluster: LocalCluster, region: str) -> list[str]:
    """Return the HTTP addresses of a region's nodes that run, of all where none does."""
    nodes = cluster.place(region).nodes
    return [node.http for node in nodes if cluster.pids(node.name)] or [node.http for node in nodes]


def _leading(cluster: LocalCluster, region: str) -> LeadingNode:
    return LeadingNode(_urls(cluster, region))


def leading_folder(cluster: LocalCluster, region: str) -> Path:
    """Return the data folder of the node that leads a region."""
    leads = view(cluster, region)["node_id"]
    (name,) = [node.name for node in cluster.place(region).nodes if node.node_id == leads]
    return cluster.data_dir(name)


def wait_until(what: str, timeout_s: float, done: Callable[[], bool]) -> None:
    """Ask until `done`; raises `StageError` when it takes longer than `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() > deadline_s:
            raise StageError(f"{what} did not happen within {timeout_s:.0f} s")
        time.sleep(_ASK_INTERVAL_S)


def log_ends(region_view: Mapping[str, Any], *, with_ledgers: bool) -> dict[str, int]:
    """Return where each partition's log ends, by `topic-partition`."""
    return {
        f"{topic['topic']}-{partition['partition']}": partition["log_end_offset"]
        for topic in region_view["topics"]
        for partition in topic["partitions"]
        if with_ledgers or topic["topic"] not in INTERNAL_TOPICS
    }


def wait_mirrored(cluster: LocalCluster, acting: str, mirror: str, timeout_s: float) -> None:
    """Return once the mirror has all that the primary region has now, and has reached its tidemark."""
    wanted = view(cluster, acting)
    ends = log_ends(wanted, with_ledgers=False)
    number = wanted["tidemark"]["number"]

    def caught_up() -> bool:
        seen = view(cluster, mirror)
        have = log_ends(seen, with_ledgers=False)
        return bool(
            seen["role"] == "mirror"
            and seen["tidemark"]["number"] >= number
            and seen["region_epoch"] == wanted["region_epoch"]
            and all(have.get(name, -1) >= end for name, end in ends.items())
        )

    wait_until(f"region {mirror} has copied what {acting} holds", timeout_s, caught_up)


def loss_statement(cluster: LocalCluster, region: str) -> Mapping[str, Any]:
    """Return what a failover to `region` would lose at most."""
    path = f"/v1/region/loss-statement?to={region}"
    answer: Mapping[str, Any] = _leading(cluster, region).ask(path, _ELECTED_WITHIN_S)
    return answer


def fail_over(cluster: LocalCluster, region: str, timeout_s: float) -> Mapping[str, Any]:
    """Order the failover and return the finished operation; raises `StageError`."""
    leading = _leading(cluster, region)
    order = {"to": region, "domain": "main", "confirm": True}
    operation: Mapping[str, Any] = leading.order("/v1/region/failover", order, timeout_s)

    def ended() -> bool:
        nonlocal operation
        operation = leading.ask(f"/v1/operations/{operation['operation_id']}", timeout_s)
        return bool(operation["status"] != "running")

    wait_until(f"the failover to {region}", timeout_s, ended)
    if operation["status"] != "succeeded":
        raise StageError(f"the failover to {region} failed: {operation['error']}")
    return operation


def losses(cluster: LocalCluster, region: str) -> Sequence[Mapping[str, Any]]:
    """Return the losses that the quarantine of `region`'s nodes proves, once none of them may hold more; raises `StageError`."""
    answer: Mapping[str, Any] = {}

    def is_whole() -> bool:
        nonlocal answer
        answer = _leading(cluster, region).ask("/v1/region/losses", _ELECTED_WITHIN_S)
        return not answer.get("may_hold_more", False)

    wait_until(
        f"the nodes of {region} know what was cut off at each other", _LOSSES_WITHIN_S, is_whole
    )
    found: Sequence[Mapping[str, Any]] = answer["losses"]
    return found
