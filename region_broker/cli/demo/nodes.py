"""The demo's regions where they have several nodes: the one that leads is killed in mid-stream, and comes back.

Not here: the acts around it, and the loss of a whole region (`run`).
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from region_broker.cli.demo.story import Story
from region_broker.workbench import stage
from region_broker.workbench.cluster_plan import NodePlace
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.workload import ACCOUNTS_TOPIC, INPUT_TOPIC, Journal

_SETTLE_TIMEOUT_S: Final = 60.0


class NodesOfRegion:
    """One region of several nodes."""

    def __init__(self, cluster: LocalCluster, region: str) -> None:
        """Look at `region`, whose nodes may not run yet."""
        self._cluster = cluster
        self._nodes = cluster.place(region).nodes

    def _view(self) -> Mapping[str, Any]:
        """Return what a node that runs says of the region; raises `StageError` where none says it."""
        for node in self._nodes:
            if self._cluster.pids(node.name):
                try:
                    view: Mapping[str, Any] = request(node.http, "GET", "/v1/cluster")
                except (OSError, ApiError):
                    continue
                return view
        raise stage.StageError("no node answers")

    def leader(self) -> NodePlace | None:
        """Return the node that leads, None where nobody does, or one that is dead is still named."""
        leader = self._view()["leadership"]["leader"]
        found = [node for node in self._nodes if node.node_id == leader]
        return found[0] if found and self._cluster.pids(found[0].name) else None

    def _all_in_sync(self) -> bool:
        view = self._view()
        return len(view["leadership"]["in_sync"]) == len(self._nodes) and all(
            not node["fenced"] for node in view["nodes"]
        )

    def until_in_sync(self) -> None:
        """Return once one leads, and all are in sync; raises `StageError`."""
        stage.wait_until(
            "all nodes in sync", _SETTLE_TIMEOUT_S,
            lambda: self.leader() is not None and self._all_in_sync(),
        )  # fmt: skip

    def lose_leader(self, story: Story, journal: Journal, total: int) -> str:
        """Kill the node that leads, wait for a commit without it, start it again; return its name. Raises `StageError`."""
        self.until_in_sync()
        leader = self.leader()
        assert leader is not None, "just waited for"
        before = len(journal.acks)
        self._cluster.kill(leader.name)
        at_s = time.monotonic()
        story.tell(f"node {leader.name}, which led, was killed with SIGKILL, in mid-stream", f"{leader.name} killed")  # fmt: skip
        stage.wait_until(
            "a commit without it", _SETTLE_TIMEOUT_S,
            lambda: len(journal.acks) >= total or any(ack.at_s > at_s for ack in journal.acks[before:]),
        )  # fmt: skip
        after = self.leader()
        story.tell(f"work goes on, led by {after.name if after else 'another one'}, {time.monotonic() - at_s:.2f} s after the kill", "work goes on")  # fmt: skip
        self._cluster.start([leader.name])
        self.until_in_sync()
        story.tell(f"{leader.name} is back, has copied what it missed, and is in sync", "back in sync")  # fmt: skip
        return leader.name

    def differing(self) -> list[str]:
        """Return the logs of the workload that do not end at the same offset, all committed, on all nodes, once they stand still."""
        self.until_in_sync()
        try:
            stage.wait_until("equal logs", _SETTLE_TIMEOUT_S, lambda: not self._differing_now())
        except stage.StageError:
            return self._differing_now()
        return []

    def _differing_now(self) -> list[str]:
        ends: dict[str, set[tuple[int, int]]] = {}
        for node in self._nodes:
            for log in request(node.http, "GET", "/v1/cluster/partitions")["partitions"]:
                if log["topic"] in {INPUT_TOPIC, ACCOUNTS_TOPIC}:
                    name = f"{log['topic']}-{log['partition']}"
                    ends.setdefault(name, set()).add((log["high_watermark"], log["log_end_offset"]))
        return sorted(name for name, found in ends.items() if len(found) > 1)
