"""Two regions of three nodes, and an operator: who leads, faults by role, orders, and whether all is whole again.

Only processes of its own cluster are ever signalled. What does not come about in time raises `StageError`, or is an anomaly.

Not here: which faults (`plan`), what is asked when (`play`).
"""

import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping
from pathlib import Path
from random import Random
from typing import Any, Final

from chaos.access.doors import Doors
from chaos.nodes.hurting import LastingFaults
from chaos.nodes.looks import RegionLook
from chaos.nodes.plan import DISK_FAULTS, Fault
from chaos.regions.plan import BLOWS, Role, Way
from chaos.soak_stage import ClusterStage
from region_broker.workbench import stage
from region_broker.workbench.leading_node import LeadingNode
from region_broker.workbench.node_http import ApiError, request

REGIONS: Final = ("eu", "us")
NODES: Final = 3
WHOLE_S: Final = 180.0
ACT_S: Final = 60.0
_VIEW_S: Final = 2.0
_ORDER_S: Final = 15.0
_LOOK_S: Final = 0.02
_AGAIN_S: Final = 0.2


class RegionsStage(ClusterStage):
    """Two regions in `folder`; `seed` draws the cluster's id. `faults`: what is to be done to nodes; `secure`: behind shut doors."""

    def __init__(
        self, seed: int, folder: Path, faults: Collection[Fault] = BLOWS, *, secure: bool = False
    ) -> None:
        """Plan it, and make the networks and disks that these faults need; nothing is started. Raises OSError."""
        super().__init__(folder, len(REGIONS), Random(seed), node_count=NODES)
        self.folder = folder
        self._lasting = LastingFaults(self.cluster, folder, faults)
        self.doors = Doors(self.cluster) if secure else None
        self._befallen: dict[str, Fault] = {}
        self._looks = {name: RegionLook(self.cluster.place(name)) for name in REGIONS}
        self._paused: set[str] = set()
        self._listed: dict[str, dict[tuple[int, str], Mapping[str, Any]]] = {}
        self.shrunk = 0

    def start(self) -> None:
        """Start all nodes."""
        self.cluster.start()

    def view_of_leader(self, region: str) -> Mapping[str, Any] | None:
        """Return `GET /v1/region` of the node that leads a region, None while none of those that run says so."""
        for node in self.cluster.place(region).nodes:
            if node.name in self._paused or not self.cluster.pids(node.name):
                continue
            try:
                view: Mapping[str, Any] = request(node.http, "GET", "/v1/region", timeout_s=_VIEW_S)
            except (OSError, ApiError):
                continue
            if view["role"] != "follower":
                return view
        return None

    def node_of(self, region: str, role: Role) -> str:
        """Return the node of a region that has the role; raises `StageError` where nobody leads."""
        leads = self.leads(region)
        if role is Role.LEADER:
            return leads
        nodes = [node.name for node in self.cluster.place(region).nodes]
        return next(name for name in nodes if name != leads and self.cluster.pids(name))

    def leads(self, region: str) -> str:
        """Return the node that leads a region, once one does; raises `StageError`."""
        found: list[int] = []

        def known() -> bool:
            view = self.view_of_leader(region)
            found.extend([] if view is None else [view["node_id"]])
            return bool(found)

        stage.wait_until(f"a leader of {region}", ACT_S, known)
        (name,) = [n.name for n in self.cluster.place(region).nodes if n.node_id == found[0]]
        return name

    def hurt(self, name: str, fault: Fault) -> None:
        """Do it to a node, until `mend_all`."""
        match fault:
            case Fault.KILL:
                self.cluster.kill(name)
            case Fault.RESTART:
                self.cluster.stop([name])
            case Fault.PAUSE:
                self.cluster.signal(name, signal.SIGSTOP)
                self._paused.add(name)
            case Fault.CUT | Fault.PART | Fault.FULL | Fault.EIO:
                self._lasting.begin(fault, name)
                self._befallen[name] = fault

    @property
    def lasts(self) -> bool:
        """Whether something has befallen a node that lasts until it is mended."""
        return bool(self._befallen)

    def resume_all(self) -> None:
        """Let those go on that were stopped."""
        for name in sorted(self._paused):
            self.cluster.signal(name, signal.SIGCONT)
        self._paused.clear()

    def mend_all(self) -> None:
        """Let all go on, and end what lasts; who had it at its disk is stopped, as the runbook says."""
        self.resume_all()
        for name, fault in self._befallen.items():
            self._lasting.end(fault, name)
        self.stop_failed(*(name for name, fault in self._befallen.items() if fault in DISK_FAULTS))
        self._befallen.clear()

    def close(self) -> None:
        """Stop all nodes, and let their disks go."""
        self.check_ends()
        self.cluster.stop()
        self._lasting.close()

    def kill_region(self, region: str) -> None:
        """Kill what runs of a region."""
        for node in self.cluster.place(region).nodes:
            if self.cluster.pids(node.name):
                self.cluster.kill(node.name)

    def start_missing(self) -> None:
        """Start every node that does not run."""
        self.check_ends()
        running = self.cluster.running
        names = [node.name for node in self.cluster.plan.nodes if node.name not in running]
        if names:
            self.cluster.start(names)

    def acts(self, region: str) -> bool:
        """Return whether a region takes writes."""
        view = self.view_of_leader(region)
        return view is not None and bool(view["acting"])

    def give(self, what: str, region: str) -> None:
        """Give an order to whoever leads a region; a refusal is told, for the operator to give it again."""
        order: dict[str, Any] = {"to": region, "domain": "main"}
        if what == "failover":
            order["confirm"] = True
        urls = [n.http for n in self.cluster.place(region).nodes if self.cluster.pids(n.name)]
        try:
            LeadingNode(urls).order(f"/v1/region/{what}", order, _ORDER_S)
        except ApiError as error:
            self.tell(f"  {what} to {region} refused: {error.code}: {error}")
        except OSError as error:
            self.tell(f"  {what} to {region} not answered: {error}")

    def order_by(self, way: Way, region: str) -> None:
        """Order a failover in this way."""
        if way is Way.HTTP:
            self.give("failover", region)
            return
        urls = [n.http for n in self.cluster.place(region).nodes if self.cluster.pids(n.name)]
        done = subprocess.run(
            [sys.executable, "-m", "region_broker", "region", "failover", "--to", region, "--yes", "--url", ",".join(urls)],
            capture_output=True, text=True, check=False, timeout=2 * ACT_S,
            env=None if self.doors is None else self.doors.environment,
        )  # fmt: skip
        if done.returncode != 0:
            self.tell(f"  the command ends with {done.returncode}: {done.stderr.strip()}")

    def wait_acting(self, what: str, region: str) -> None:
        """Wait until a region acts, and order it anew while nothing is under way: an operator who does not give up."""
        deadline_s = time.monotonic() + ACT_S
        while not self.acts(region):
            if time.monotonic() > deadline_s:
                raise stage.StageError(
                    f"{region} does not act {ACT_S:.0f} s after the {what}: {self.state()}"
                )
            view = self.view_of_leader(region)
            if (
                view is not None
                and view["role"] == "mirror"
                and not view["acting"]
                and view["phase"] in ("mirroring", "fetching")
            ):
                time.sleep(_AGAIN_S)
                if not self.acts(region):
                    self.give(what, region)
            time.sleep(_LOOK_S)

    def state(self) -> str:
        """Return where both regions stand."""
        views = {region: self.view_of_leader(region) for region in REGIONS}
        return "; ".join(
            f"{region}: nobody leads" if view is None else
            f"{region}: node {view['node_id']} {view['phase']}, {view['reason_not_acting']}, lag {view['lag']}"
            for region, view in views.items()
        )  # fmt: skip

    def wait_whole(self, acting: str, mirror: str) -> bool:
        """Wait until all nodes are in sync and one region copies the other; return whether it came to that in time."""
        deadline_s = time.monotonic() + WHOLE_S
        while not self._whole(acting, mirror):
            if time.monotonic() > deadline_s:
                self.blame(f"not all in sync, and copying, within {WHOLE_S:.0f} s: {self.state()}")
                return False
            time.sleep(_AGAIN_S)  # each look asks all nodes
        return True

    def _whole(self, acting: str, mirror: str) -> bool:
        if len(self.cluster.running) != NODES * len(REGIONS) or not self.acts(acting):
            return False
        view = self.view_of_leader(mirror)
        copies = (
            view is not None
            and view["role"] == "mirror"
            and view["lag"].get("state") == "streaming"
        )
        return copies and all(look.whole() for look in self._looks.values())

    def losses(self) -> list[Mapping[str, Any]]:
        """Return what both regions list as lost; a list that names less than it did before is kept as it was, and told."""
        for region in REGIONS:
            now = {_cut_of(each): each for each in stage.losses(self.cluster, region)}
            before = self._listed.setdefault(region, {})
            for cut, known in before.items():
                count = now.get(cut, {"transaction_count": 0})["transaction_count"]
                if count < known["transaction_count"]:
                    self.shrunk += 1
                    self.tell(
                        f"  {region}, led by {self.leads(region)}, lists {count} of {known['transaction_count']} transactions"
                        f" of region epoch {cut[0]} now"
                    )
            before.update({
                cut: each for cut, each in now.items()
                if cut not in before or each["transaction_count"] >= before[cut]["transaction_count"]
            })  # fmt: skip
        return [each for listed in self._listed.values() for each in listed.values()]


def _cut_of(loss: Mapping[str, Any]) -> tuple[int, str]:
    return loss["lineage_epoch"], loss["cause"]
