"""One region of three nodes: who leads what, faults by role, and whether all is in sync again.

Only processes of its own cluster are ever signalled. What does not come about in time is an anomaly, never an endless wait.

Not here: which faults (`plan`), clients (`clients`).
"""

import signal
import time
from collections.abc import Collection
from pathlib import Path
from random import Random
from typing import Final

from chaos.access.doors import Doors
from chaos.nodes.hurting import LastingFaults
from chaos.nodes.looks import RegionLook
from chaos.nodes.plan import DISK_FAULTS, LASTING_FAULTS, PLAIN_FAULTS, Fault, Victim
from chaos.soak_stage import ClusterStage
from region_broker.workbench import stage
from region_broker.workbench.node_http import ApiError, request

REGION: Final = "eu"
NODES: Final = 3
WHOLE_S: Final = 60.0
PAUSED_S: Final = 5.0
SPREAD_S: Final = 200.0
_CALL_S: Final = 2.0


class NodesStage(ClusterStage):
    """A region of three nodes in `folder`; `seed` draws its id. `faults`: what is to be done to them; `secure`: behind shut doors."""

    def __init__(
        self, seed: int, folder: Path, faults: Collection[Fault] = PLAIN_FAULTS, *, secure: bool = False
    ) -> None:  # fmt: skip
        """Plan it, and make the networks and disks that these faults need; nothing is started. Raises OSError."""
        super().__init__(folder, 1, Random(seed), node_count=NODES)
        self.folder = folder
        self._lasting = LastingFaults(self.cluster, folder, faults)
        self.doors = Doors(self.cluster) if secure else None
        self._look = RegionLook(self.cluster.place(REGION))

    @property
    def bootstrap(self) -> str:
        """The addresses of all nodes."""
        return self.cluster.place(REGION).bootstrap

    def start(self) -> None:
        """Start all nodes."""
        self.cluster.start()

    def _nodes(self) -> dict[int, str]:
        return {node.node_id: node.name for node in self.cluster.plan.nodes}

    def leader(self) -> int | None:
        """Return the node that leads the logs, None while none does; of a region that is not whole, too."""
        return self._look.leader()

    def whole(self) -> bool:
        """Return whether all nodes run, are in sync, and follow the quorum."""
        return len(self.cluster.running) == NODES and self._look.whole()

    def wait_whole(self) -> bool:
        """Wait until the region is whole; return whether it came to that in time."""
        try:
            stage.wait_until("all nodes to be in sync", WHOLE_S, self.whole)
        except stage.StageError as error:
            self.blame(str(error))
            return False
        return True

    def spread(self) -> bool:
        """Have partitions led by all nodes, and wait until they are (ADR 53); return whether it came to that in time."""
        try:
            stage.wait_until("leaders to be spread", SPREAD_S, self._look.is_spread)
        except stage.StageError as error:
            self.blame(str(error))
            return False
        return True

    def complaints(self) -> list[str]:
        """Return what `/readyz` of the node that leads says is wrong."""
        leader = self.leader()
        if leader is None:
            return ["nobody leads"]
        try:
            request(
                self.cluster.node(self._nodes()[leader]).http, "GET", "/readyz", timeout_s=_CALL_S
            )
        except (ApiError, OSError) as error:
            return [f"node {leader} leads, and is not ready: {error}"]
        return []

    def resident_mb(self) -> dict[str, float]:
        """Return the resident memory of each node that runs."""
        return {
            name: _resident_mb(pid)
            for name in self.cluster.running
            for pid in self.cluster.pids(name)
        }

    def victim_of(self, victim: Victim) -> tuple[str, str]:
        """Return the node that is meant, and the roles that it has; raises `StageError` where nobody leads."""
        leader, found = self.leader(), self._look.quorum()
        if leader is None or found is None:
            raise stage.StageError("nobody leads a region that was whole a moment ago")
        free = [node_id for node_id in self._nodes() if node_id not in (leader, found.leader_id)]
        node_id = {
            Victim.LEADER: leader,
            Victim.QUORUM: found.leader_id,
            Victim.FOLLOWER: free[-1],
        }[victim]
        roles = [
            role
            for role, has in (("leader", leader), ("quorum", found.leader_id))
            if has == node_id
        ]
        return self._nodes()[node_id], "+".join(roles) or "follower"

    def hurt(self, fault: Fault, name: str) -> None:
        """Do it; a node that ends by it is not started again yet."""
        match fault:
            case Fault.KILL:
                self.cluster.kill(name)
            case Fault.PAUSE:
                self.cluster.signal(name, signal.SIGSTOP)
                try:
                    time.sleep(PAUSED_S)
                finally:
                    self.cluster.signal(name, signal.SIGCONT)
            case Fault.RESTART:
                self.cluster.stop([name])
            case Fault.CUT | Fault.PART | Fault.FULL | Fault.EIO:
                self._lasting.begin(fault, name)

    def mend(self, fault: Fault, name: str) -> None:
        """End a fault that lasts, restart a node whose disk it was, and start a node that does not run."""
        if fault in LASTING_FAULTS:
            self._lasting.end(fault, name)
        if fault in DISK_FAULTS:
            self.stop_failed(name)
        if not self.cluster.pids(name):
            self.cluster.start([name])

    def close(self) -> None:
        """Stop all nodes, and let their disks go."""
        self.cluster.stop()
        self._lasting.close()


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    return 0.0
