"""The regions on the demo's stage: asked and ordered over HTTP, as an operator would.

Not here: the order of the acts (`command`).
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from idempotency.identity import INTERNAL_TOPICS
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import request

_ASK_INTERVAL_S: Final = 0.05


class StageError(Exception):
    """A region did not do what the demo waits for."""


def view(cluster: LocalCluster, region: str) -> Mapping[str, Any]:
    """Return `GET /v1/region` of a region."""
    answer: Mapping[str, Any] = request(cluster.place(region).http, "GET", "/v1/region")
    return answer


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
    answer: Mapping[str, Any] = request(
        cluster.place(region).http, "GET", f"/v1/region/loss-statement?to={region}"
    )
    return answer


def fail_over(cluster: LocalCluster, region: str, timeout_s: float) -> Mapping[str, Any]:
    """Order the failover and return the finished operation; raises `StageError`."""
    url = cluster.place(region).http
    order = {"to": region, "domain": "main", "confirm": True}
    operation: Mapping[str, Any] = request(url, "POST", "/v1/region/failover", order)

    def ended() -> bool:
        nonlocal operation
        operation = request(url, "GET", f"/v1/operations/{operation['operation_id']}")
        return bool(operation["status"] != "running")

    wait_until(f"the failover to {region}", timeout_s, ended)
    if operation["status"] != "succeeded":
        raise StageError(f"the failover to {region} failed: {operation['error']}")
    return operation


def losses(cluster: LocalCluster, region: str) -> Sequence[Mapping[str, Any]]:
    """Return the losses that `region`'s quarantine proves."""
    answer = request(cluster.place(region).http, "GET", "/v1/region/losses")
    found: Sequence[Mapping[str, Any]] = answer["losses"]
    return found
