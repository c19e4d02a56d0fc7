"""One region of three nodes: who leads what, faults by role, and whether all is in sync again.

Only processes of its own cluster are ever signalled. What does not come about in time is an anomaly, never an endless wait.

Not here: which faults (`plan`), clients (`clients`).
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from random import Random
from typing import IO, Final

from chaos.nodes.disks import FailingDisks, SmallDisks
from chaos.nodes.looks import RegionLook
from chaos.nodes.network import NodeNetworks
from chaos.nodes.plan import DISK_FAULTS, NETWORK_FAULTS, PLAIN_FAULTS, Fault, Victim
from chaos.soak_stage import ClusterStage
from region_broker.workbench import stage
from region_broker.workbench.local_cluster import NodeProcess
from region_broker.workbench.node_http import ApiError, request

REGION: Final = "eu"
NODES: Final = 3
WHOLE_S: Final = 60.0
PAUSED_S: Final = 5.0
SPREAD_S: Final = 200.0
_CALL_S: Final = 2.0


class NodesStage(ClusterStage):
    """A region of three nodes in `folder`; `seed` draws its id. `faults`: what is to be done to them."""

    def __init__(self, seed: int, folder: Path, faults: Collection[Fault] = PLAIN_FAULTS) -> None:
        """Plan it, and make the networks and disks that these faults need; nothing is started. Raises OSError."""
        super().__init__(folder, 1, Random(seed), node_count=NODES)
        self.folder = folder
        names = [node.name for node in self.cluster.plan.nodes]
        self._networks = NodeNetworks(names) if set(NETWORK_FAULTS) & set(faults) else None
        self._small = self._failing = None
        if Fault.FULL in faults:
            data_dirs = {name: self.cluster.data_dir(name) for name in names}
            self._small = SmallDisks(folder / "disks", data_dirs)
        if Fault.EIO in faults:
            self._failing = FailingDisks(folder / "disks", names)
        if self._networks is not None:
            self.cluster.plan = self._networks.placed(self.cluster.plan)
        self.cluster.start_by(self._start_process)
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
            stage.wait_until("leaders to be spread", SPREAD_S, self._is_spread)
        except stage.StageError as error:
            self.blame(str(error))
            return False
        return True

    def _is_spread(self) -> bool:
        for name in self._nodes().values():
            http = self.cluster.node(name).http
            try:
                found = request(http, "GET", "/v1/cluster", timeout_s=_CALL_S)["spread"]
                if not found["wanted"]:
                    request(http, "POST", "/v1/cluster/spread", {}, timeout_s=_CALL_S)
                elif found["groups"]:
                    return all(each["leader"] == each["preferred"] for each in found["groups"])
            except (ApiError, OSError):
                continue  # another one takes orders
        return False

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

    def _start_process(self, command: Sequence[str], errors: IO[bytes]) -> NodeProcess:
        """Start a node in its network and on its disk; the command names its configuration last."""
        config = Path(command[-1])
        (name,) = [
            n.name
            for n in self.cluster.plan.nodes
            if self.cluster.data_dir(n.name) == config.parent
        ]
        prefix = [] if self._networks is None else self._networks.prefix(name)
        extra = {} if self._failing is None else self._failing.environment(name)
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "region_broker", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            env={**os.environ, **extra},
        )  # fmt: skip

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
            case Fault.CUT:
                assert self._networks is not None
                self._networks.cut(name)
            case Fault.PART:
                assert self._networks is not None
                self._networks.part(name)
            case Fault.FULL:
                assert self._small is not None
                self._small.fill(name)
            case Fault.EIO:
                assert self._failing is not None
                self._failing.fail(name)

    def mend(self, fault: Fault, name: str) -> None:
        """End a fault that lasts, restart a node whose disk it was, and start a node that does not run."""
        match fault:
            case Fault.CUT:
                assert self._networks is not None
                self._networks.heal(name)
            case Fault.PART:
                assert self._networks is not None
                self._networks.join(name)
            case Fault.FULL:
                assert self._small is not None
                self._small.free(name)
            case Fault.EIO:
                assert self._failing is not None
                self._failing.mend(name)
            case Fault.KILL | Fault.PAUSE | Fault.RESTART:
                pass  # nothing lasts but that it may not run
        if fault in DISK_FAULTS:
            self._end(name)
        if not self.cluster.pids(name):
            self.cluster.start([name])

    def close(self) -> None:
        """Stop all nodes, and let their disks go."""
        self.cluster.stop()
        if self._small is not None:
            self._small.close()

    def _end(self, name: str) -> None:
        """Stop a node; one whose disk has failed may have ended by itself."""
        if ended := self.cluster.dead():
            self.tell(f"  ended by their disk: {ended}")
            for each in set(ended) - {name}:
                self.blame(f"the node of {each} ended by itself with exit code {ended[each]}")
        if self.cluster.pids(name):
            self.cluster.stop([name])


def _resident_mb(pid: int) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1000
    return 0.0
