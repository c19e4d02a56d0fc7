"""Faults that last until they are mended, for the nodes of a cluster: a network that is cut, a disk that is full or answers EIO.

Not here: which node, and when (`stage`, `chaos.regions.stage`).
"""

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import IO

from chaos.nodes.disks import FailingDisks, SmallDisks
from chaos.nodes.network import NodeNetworks
from chaos.nodes.plan import LASTING_FAULTS, NETWORK_FAULTS, Fault
from region_broker.workbench.local_cluster import LocalCluster, NodeProcess


class LastingFaults:
    """The networks and disks that `faults` need, and how nodes are started on them."""

    def __init__(self, cluster: LocalCluster, folder: Path, faults: Collection[Fault]) -> None:
        """Make them for each node that is planned, before any is started; raises OSError."""
        self._cluster = cluster
        names = [node.name for node in cluster.plan.nodes]
        self._networks = NodeNetworks(names) if set(NETWORK_FAULTS) & set(faults) else None
        self._small = self._failing = None
        if Fault.FULL in faults:
            data_dirs = {name: cluster.data_dir(name) for name in names}
            self._small = SmallDisks(folder / "disks", data_dirs)
        if Fault.EIO in faults:
            self._failing = FailingDisks(folder / "disks", names)
        if self._networks is not None:
            cluster.plan = self._networks.placed(cluster.plan)
        if set(faults) & set(LASTING_FAULTS):
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
        """Let one of `LASTING_FAULTS` befall a node."""
        match fault:
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
            case Fault.KILL | Fault.PAUSE | Fault.RESTART:
                raise AssertionError(f"{fault.name} does not last")

    def end(self, fault: Fault, name: str) -> None:
        """Take it back. A node whose disk it was must be started anew."""
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
                raise AssertionError(f"{fault.name} does not last")

    def close(self) -> None:
        """Let the disks go, once no node runs."""
        if self._small is not None:
            self._small.close()
