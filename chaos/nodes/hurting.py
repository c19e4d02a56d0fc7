"""Faults that last until they are mended, for the nodes of a cluster: a network that is cut, a disk that is full or answers EIO.

Not here: which node, and when (`stage`, `chaos.regions.stage`).
"""

import os
import subprocess
import sys
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import IO

from chaos.nodes.disks import FailingDisks, SmallDisks
from chaos.nodes.network import NodeNetworks
from chaos.nodes.plan import NETWORK_FAULTS, Fault
from region_broker.workbench.local_cluster import LocalCluster, NodeProcess

_Way = Callable[[str], None]


class LastingFaults:
    """The networks and disks that `faults` need, and how nodes are started on them."""

    def __init__(self, cluster: LocalCluster, folder: Path, faults: Collection[Fault]) -> None:
        """Make them for each node that is planned, before any is started; raises OSError."""
        self._cluster = cluster
        names = [node.name for node in cluster.plan.nodes]
        self._networks: NodeNetworks | None = None
        self._small: SmallDisks | None = None
        self._failing: FailingDisks | None = None
        self._ways: dict[Fault, tuple[_Way, _Way]] = {}
        """How each fault is done to a node, and how it is taken back."""
        if set(NETWORK_FAULTS) & set(faults):
            networks = self._networks = NodeNetworks(names)
            self._ways[Fault.CUT] = networks.cut, networks.heal
            self._ways[Fault.PART] = networks.part, networks.join
        if Fault.FULL in faults:
            data_dirs = {name: cluster.data_dir(name) for name in names}
            small = self._small = SmallDisks(folder / "disks", data_dirs)
            self._ways[Fault.FULL] = small.fill, small.free
        if Fault.EIO in faults:
            failing = self._failing = FailingDisks(folder / "disks", names)
            self._ways[Fault.EIO] = failing.fail, failing.mend
        if self._networks is not None:
            cluster.plan = self._networks.placed(cluster.plan)
        if self._ways:
            cluster.start_by(self._start_process)

    def _start_process(self, command: Sequence[str], errors: IO[bytes]) -> NodeProcess:
        """Start a node in its network and on its disk; the command names its configuration last."""
        config, nodes = Path(command[-1]), self._cluster.plan.nodes
        (name,) = [n.name for n in nodes if self._cluster.data_dir(n.name) == config.parent]
        prefix = [] if self._networks is None else self._networks.prefix(name)
        extra = {} if self._failing is None else self._failing.environment(name)
        return subprocess.Popen(
            [*prefix, sys.executable, "-m", "region_broker", *command],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True,
            env={**os.environ, **extra},
        )  # fmt: skip

    def begin(self, fault: Fault, name: str) -> None:
        """Let one of the faults that this was made for befall a node."""
        self._ways[fault][0](name)

    def end(self, fault: Fault, name: str) -> None:
        """Take it back. A node whose disk it was must be started anew."""
        self._ways[fault][1](name)

    def close(self) -> None:
        """Let the disks go, once no node runs."""
        if self._small is not None:
            self._small.close()
