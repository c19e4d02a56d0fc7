"""One region of three nodes: who leads what, faults by role, and whether all is in sync again.

Only processes of its own cluster are ever signalled. What does not come about in time is an anomaly, never an endless wait.

Not here: which faults (`plan`), clients (`clients`).
"""

import signal
import time
from pathlib import Path
from random import Random
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from chaos.nodes.plan import Fault, Victim
from chaos.nodes.quorum import quorum
from chaos.soak_stage import ClusterStage
from region_broker.workbench import stage

REGION: Final = "eu"
NODES: Final = 3
WHOLE_S: Final = 60.0
PAUSED_S: Final = 5.0
_BEHIND_MAX: Final = 2
_CALL_S: Final = 2.0


class NodesStage(ClusterStage):
    """A region of three nodes in `folder`; `seed` draws its id."""

    def __init__(self, seed: int, folder: Path) -> None:
        """Plan it; nothing is started."""
        super().__init__(folder, 1, Random(seed), node_count=NODES)
        self.folder = folder
        self._admin: AdminClient | None = None

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
        return self._leads(everybody=False)

    def _leads(self, *, everybody: bool) -> int | None:
        """Return who leads all partitions; with `everybody`, only where all replicas are in sync."""
        if self._admin is None:
            config = {
                "bootstrap.servers": self.bootstrap,
                "log_level": 0,
                "reconnect.backoff.max.ms": 250,
            }
            self._admin = AdminClient(config)  # fmt: skip
        try:
            told = self._admin.list_topics(timeout=_CALL_S)
        except KafkaException:
            return None
        partitions = [p for topic in told.topics.values() for p in topic.partitions.values()]
        leaders = {partition.leader for partition in partitions}
        if len(leaders) != 1 or min(leaders) < 0:
            return None
        if everybody and any(len(partition.isrs) != NODES for partition in partitions):
            return None
        return int(leaders.pop())

    def whole(self) -> bool:
        """Return whether all nodes run, are in sync, and follow the quorum."""
        if len(self.cluster.running) != NODES or self._leads(everybody=True) is None:
            return False
        found = quorum([node.bootstrap for node in self.cluster.plan.nodes])
        return found is not None and len(found.voters) == NODES and found.behind <= _BEHIND_MAX

    def wait_whole(self) -> bool:
        """Wait until the region is whole; return whether it came to that in time."""
        try:
            stage.wait_until("all nodes to be in sync", WHOLE_S, self.whole)
        except stage.StageError as error:
            self.blame(str(error))
            return False
        return True

    def victim_of(self, victim: Victim) -> tuple[str, str]:
        """Return the node that is meant, and the roles that it has; raises `StageError` where nobody leads."""
        leader, found = self.leader(), quorum([node.bootstrap for node in self.cluster.plan.nodes])
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

    def mend(self, name: str) -> None:
        """Start it again if it does not run."""
        if not self.cluster.pids(name):
            self.cluster.start([name])
