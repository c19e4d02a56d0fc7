"""The regions of a soak and an operator who does not give up: kill, stop, order, wait, mend.

Only processes of its own cluster are ever signalled. What does not come about in time is an anomaly, never an endless
wait.

Not here: the workload and its judgement (`chaos.soak`).
"""

import signal
import time
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any, Final
from uuid import UUID

import click

from region_broker.workbench import stage
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request

REGIONS: Final = ("eu", "us")
PATIENCE_S: Final = 60.0
ACT_PATIENCE_S: Final = 30.0
_VIEW_S: Final = 3.0


class ClusterStage:
    """A cluster in `folder`, its id drawn. `anomalies` holds what was found on the way, in words.

    `on_stderr`: what is told goes to standard error, because standard output is for a program.
    """

    def __init__(
        self, folder: Path, region_count: int, chance: Random, node_count: int = 1
    ) -> None:
        """Plan the cluster; nothing is started."""
        self.anomalies: list[str] = []
        self.on_stderr = False
        self.began_s = time.monotonic()
        self.cluster = LocalCluster.open(
            folder,
            region_count=region_count,
            node_count=node_count,
            port=0,
            new_cluster_id=UUID(int=chance.getrandbits(128)),
        )

    def tell(self, text: str) -> None:
        """Print with the time since the start."""
        click.echo(f"{time.monotonic() - self.began_s:7.1f}  {text}", err=self.on_stderr)

    def blame(self, text: str) -> None:
        """Note an anomaly."""
        self.anomalies.append(text)
        self.tell(f"ANOMALY {text}")

    def view(self, name: str) -> Mapping[str, Any] | None:
        """Return `GET /v1/region`, None if it does not answer."""
        try:
            answer: Mapping[str, Any] = request(
                self.cluster.place(name).http, "GET", "/v1/region", timeout_s=_VIEW_S
            )
        except (OSError, ApiError):
            return None
        return answer

    def check_ends(self) -> None:
        """Blame regions that ended by themselves."""
        for name, code in self.cluster.dead().items():
            self.blame(f"the node of {name} ended by itself with exit code {code}")

    def stop_failed(self, *names: str) -> None:
        """Stop nodes whose disks have failed; they may have ended by that. Blame any other that has."""
        if ended := self.cluster.dead():
            self.tell(f"  ended by their disk: {ended}")
            for each in set(ended) - set(names):
                self.blame(f"the node of {each} ended by itself with exit code {ended[each]}")
        self.cluster.stop([name for name in names if self.cluster.pids(name)])


class SoakStage(ClusterStage):
    """The regions of a soak or a drill; `primary`, `mirror` and `mend` are for the two of a soak."""

    def __init__(self, seed: int, folder: Path, region_count: int = len(REGIONS)) -> None:
        """Plan the cluster; nothing is started."""
        self.seed = seed
        self.folder = folder
        self.random = Random(seed)
        self.paused: set[str] = set()
        self.planned: set[int] = set()
        super().__init__(folder, region_count, self.random)

    def primary(self) -> str:
        """Return who acts, once exactly one does and the other mirrors it."""
        found = ""

        def settled() -> bool:
            nonlocal found
            views = [self.view(name) for name in REGIONS]
            acting = [v for v in views if v is not None and v["acting"]]
            if len(acting) == 1 and all(v is not None for v in views):
                found = str(acting[0]["region"])
                return True
            return False

        stage.wait_until("one region to act", PATIENCE_S, settled)
        return found

    def mirror(self) -> str:
        """Return the other one."""
        primary = self.primary()
        return next(name for name in REGIONS if name != primary)

    def pause(self, name: str) -> None:
        self.tell(f"  stop {name}")
        self.cluster.signal(name, signal.SIGSTOP)
        self.paused.add(name)

    def resume(self, name: str) -> None:
        self.tell(f"  cont {name}")
        self.cluster.signal(name, signal.SIGCONT)
        self.paused.discard(name)

    def kill(self, name: str) -> None:
        self.tell(f"  kill {name}")
        self.cluster.kill(name)
        self.paused.discard(name)

    def start(self, name: str) -> None:
        if not self.cluster.pids(name):
            self.tell(f"  start {name}")
            self.cluster.start([name])

    def order(self, what: str, name: str) -> Mapping[str, Any] | None:
        body: dict[str, Any] = {"to": name, "domain": "main"}
        if what == "failover":
            body["confirm"] = True
        self.tell(f"  order {what} to {name}")
        try:
            answer: Mapping[str, Any] = request(
                self.cluster.place(name).http, "POST", f"/v1/region/{what}", body, timeout_s=10
            )
        except ApiError as error:
            self.tell(f"  refused: {error.code}: {error}")
            return None
        except OSError as error:
            self.tell(f"  no answer: {error}")
            return None
        return answer

    def follow(self, name: str, operation: Mapping[str, Any]) -> Mapping[str, Any]:
        path = f"/v1/operations/{operation['operation_id']}"

        def ended() -> bool:
            nonlocal operation
            operation = request(self.cluster.place(name).http, "GET", path)
            return bool(operation["status"] != "running")

        stage.wait_until(f"the end of {operation['kind']} to {name}", PATIENCE_S, ended)
        self.tell(
            f"  {operation['kind']} to {name}: {operation['status']} {operation['error']}"
            f" {operation['steps'][-3:]}"
        )
        return operation

    def fail_over(self, name: str) -> None:
        """Order until it is done: an operator who does not give up."""
        deadline_s = time.monotonic() + PATIENCE_S
        while time.monotonic() < deadline_s:
            operation = self.order("failover", name)
            if operation is not None:
                operation = self.follow(name, operation)
                if operation["status"] == "succeeded":
                    return
            view = self.view(name)
            if view is not None and view["acting"]:
                return
            time.sleep(0.2)
        self.blame(f"no failover to {name} within {PATIENCE_S} s")

    def switch(self, name: str) -> None:
        operation = self.order("switch", name)
        if operation is None:
            self.blame(f"a switch to {name} was refused")
            return
        operation = self.follow(name, operation)
        if operation["status"] == "succeeded":
            self.planned.add(operation["region_epoch"])
        else:
            self.blame(f"a switch between two live regions did not work: {operation['error']}")

    def mend(self) -> None:
        for name in list(self.paused):
            self.resume(name)
        self.check_ends()
        for name in REGIONS:
            self.start(name)
        deadline_s = time.monotonic() + ACT_PATIENCE_S
        while time.monotonic() < deadline_s:
            views = [self.view(name) for name in REGIONS]
            roles = sorted(str(v["role"]) if v is not None else "?" for v in views)
            if roles == ["acting", "mirror"] and sum(v["acting"] for v in views if v) == 1:
                return
            time.sleep(0.1)
        stuck = [
            {k: v[k] for k in ("region", "phase", "acting", "reason_not_acting", "region_epoch")}
            for v in map(self.view, REGIONS)
            if v is not None
        ]
        self.blame(f"not one primary and one mirror within {ACT_PATIENCE_S:.0f} s: {stuck}")
        if not any(v["acting"] for v in stuck):
            self.fail_over("us")
