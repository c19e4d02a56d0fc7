"""Orders of a region, and what becomes of them: at the node that leads it, also where that is another one meanwhile.

INV-CRO1  an operation is waited for until it has ended or the time is over: who leads the region next goes on with it
INV-CRO2  of one that nobody knows any more is said what is certain: that its goal is reached, or that nothing goes on
Not here: commands (`region`), which nodes there are (`region_client`).
"""

import time
from collections.abc import Mapping
from typing import Any, Final

from region_broker.cli.output import EXIT_UNKNOWN_OUTCOME, Progress, fail
from region_broker.cli.region_client import Cluster
from region_broker.workbench.leading_node import LeadingNode
from region_broker.workbench.node_http import ApiError

POLL_S: Final = 0.05
_PASSING: Final = {"busy", "starting"}
_UNKNOWN: Final = "unknown-operation"


class RegionOrders:
    """Speaks with whoever leads `region`."""

    def __init__(self, cluster: Cluster, region: str, timeout_s: float, *, quiet: bool) -> None:
        """Wait for `timeout_s` in all; raises `NoNode`, `UnknownRegion`."""
        self._region = region
        self._node = LeadingNode(cluster.nodes_of(region))
        self._timeout_s = timeout_s
        self._quiet = quiet
        self._progress = Progress(quiet=quiet)

    @property
    def _left_s(self) -> float:
        return max(self._timeout_s - self._progress.elapsed_s, 0)

    def ask(self, path: str) -> Mapping[str, Any]:
        """Return what the leading node answers; raises `ApiError`, OSError."""
        answer: Mapping[str, Any] = self._node.ask(path, self._timeout_s)
        return answer

    def give(self, path: str, order: Mapping[str, Any], *, waits: bool = True) -> Mapping[str, Any]:
        """Give an order; `waits` for a region that is just coming back from the last one. Raises `ApiError`, OSError."""
        self._progress = Progress(quiet=self._quiet)
        while True:
            try:
                operation: Mapping[str, Any] = self._node.order(path, order, self._left_s)
            except ApiError as error:
                if not waits or error.code not in _PASSING or self._left_s <= 0:
                    raise
                self._progress.say(f"waiting: {error}")
                time.sleep(POLL_S)
            else:
                return operation

    def follow(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the operation once it has ended (INV-CRO1); ends the command where that takes too long."""
        path = f"/v1/operations/{operation['operation_id']}"
        while operation["status"] == "running":
            if self._left_s <= 0:
                fail(
                    f"not done after {self._timeout_s:g} s{_doing(operation)}; it goes on: see tidemark region status",
                    EXIT_UNKNOWN_OUTCOME,
                )
            steps = operation.get("steps") or [operation["phase"]]
            self._progress.say(f"{operation['kind']}: {steps[-1]}")
            time.sleep(POLL_S)
            operation = self._asked_again(path, operation)
        return operation

    def _asked_again(self, path: str, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return how far an operation is, or what was known before of it where its node cannot say it now: it may be just starting again."""
        try:
            try:
                told: Mapping[str, Any] = self._node.ask(path, self._left_s)
            except ApiError as error:
                if error.code != _UNKNOWN:
                    raise
                told = self._ended_unseen(operation)
        except OSError as error:
            self._progress.say(f"waiting for region {self._region} to answer again: {error}")
            return operation
        except ApiError as error:
            if error.code not in _PASSING:
                raise
            return operation
        return told

    def _ended_unseen(self, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return how an operation ended whose node is gone, and which is recorded nowhere (INV-CRO2)."""
        view = self._node.ask("/v1/region", self._left_s)
        wanted = operation.get("region_epoch") or 0
        # It did not act when it was ordered to, or the order had been answered so: that it acts now is what was wanted.
        if view["acting"] and wanted in {0, view["region_epoch"]}:
            return {**operation, "status": "succeeded", "phase": view["phase"]}
        return {
            **operation,
            "status": "failed",
            "error": f"the node that carried it out is gone, and it was not recorded yet or was given up: nothing of it goes on. Region"
            f" {self._region} is {view['phase']}; see tidemark region status, and order it again",
        }


def _doing(operation: Mapping[str, Any]) -> str:
    """Return what an operation is at, in parentheses; nothing where it has not begun."""
    return f" ({operation['phase']})" if operation["phase"] else ""
