"""Regions as separate processes on loopback: what `dev`, `demo`, the tests and the chaos suites start.

INV-LC1  only processes started here are ever signalled, and of each node one at a time
A node is up when its process has said so on its standard output; nobody polls or guesses. A cluster is born once, by
who made its folder: before the first node of its primary region starts for the first time (T32).

The folder holds one sub-folder per region, in which each node has its own where the region has several of them, and
`cluster.json` with the cluster id and the ports, so that the same folder gives the same cluster again. What is ordered
by name is ordered of the node of that name, or of all nodes of that region.

Not here: names and ports (`cluster_plan`), how a process is started (`starter`).
"""

import contextlib
import queue
import signal
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self
from uuid import UUID

import msgspec

from region_broker.security.login import is_this_machine
from region_broker.workbench.cluster_plan import (
    PLAN_FILE,
    ClusterError,
    ClusterPlan,
    NodePlace,
    RegionPlace,
    planned,
    write_plan,
)
from region_broker.workbench.starter import start_node

_INIT: Final = ("init", "--no-history-elsewhere")
_BROKER: Final = ("broker", "--stop-with-stdin")
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
_SAID_NOTHING: Final = b""


class NodeProcess(Protocol):
    """What is needed of a `subprocess.Popen`."""

    pid: int
    stdin: IO[bytes] | None
    stdout: IO[bytes] | None

    def poll(self) -> int | None:
        """Return the exit code, None while it runs."""
        ...

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit code; raises `subprocess.TimeoutExpired`."""
        ...

    def kill(self) -> None:
        """Send SIGKILL."""
        ...

    def send_signal(self, sig: int, /) -> None:
        """Send a signal."""
        ...


StartsProcess = Callable[[Sequence[str], IO[bytes]], NodeProcess]
"""Starts `tidemark` with these arguments and this standard error, in a session of its own, with pipes for the rest."""


class _Started:
    """The process of a node, and the first line of its standard output once there is one."""

    def __init__(self, process: NodeProcess) -> None:
        self.process = process
        self.said: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._listener = threading.Thread(target=self._listen, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        self.said.put(self.process.stdout.readline())

    def let_go(self) -> None:
        """Close its pipes; to be called once it has ended."""
        self._listener.join()  # nobody closes what another thread reads from
        _close_pipes(self.process)


class LocalCluster:
    """A context manager: leaving it stops what was started. Not thread-safe.

    `settings` are top-level keys of every node's configuration file.
    """

    def __init__(
        self, folder: Path, plan: ClusterPlan, settings: Mapping[str, Any],
        held: contextlib.ExitStack,
    ) -> None:  # fmt: skip
        """Use `open`."""
        self._held = held
        self.folder = folder
        self.plan = plan
        self._settings = dict(settings)
        self._settings_of_node: Mapping[str, Mapping[str, Any]] = {}
        self._started: dict[str, _Started] = {}
        self._peer_routes: Mapping[tuple[str, str], int] = {}
        self._starts: StartsProcess = start_node

    @classmethod
    def open(
        cls, folder: Path, *, region_count: int, port: int | None, new_cluster_id: UUID,
        settings: Mapping[str, Any] | None = None, node_count: int = 1,
    ) -> Self:  # fmt: skip
        """Plan a new cluster in `folder` or find the one that is there; `node_count`: in each region.

        `port` 0 takes free ports; None those that the cluster had, of a new one from `FIRST_PORT` on. Raises
        `ClusterError`, `OSError`.
        """
        path = folder / PLAN_FILE
        with contextlib.ExitStack() as held:
            plan = planned(path, str(new_cluster_id), (region_count, node_count), port, held)
            plan = plan.speaking("http")
            folder.mkdir(parents=True, exist_ok=True)
            write_plan(path, plan)
            return cls(folder, plan, settings or {}, held.pop_all())

    def __enter__(self) -> Self:
        """Return self; nothing is started yet."""
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Stop every node that is still running."""
        self.stop()

    @property
    def bootstrap(self) -> str:
        """All regions' bootstrap addresses, with commas."""
        return ",".join(place.bootstrap for place in self.plan.regions)

    @property
    def http(self) -> str:
        """All nodes' HTTP addresses, with commas: what `--url` takes."""
        return ",".join(node.http for node in self.plan.nodes)

    def place(self, name: str) -> RegionPlace:
        """Return where region `name` lives; raises `ClusterError` for an unknown one."""
        for place in self.plan.regions:
            if place.name == name:
                return place
        raise ClusterError(f"there is no region {name}")

    def data_dir(self, name: str) -> Path:
        """Return the data folder of a node, or the one that those of a region's nodes are in."""
        return self.folder / name

    def node(self, name: str) -> NodePlace:
        """Return where node `name` lives; raises `ClusterError` for an unknown one."""
        for node in self.plan.nodes:
            if node.name == name:
                return node
        raise ClusterError(f"there is no node {name}")

    def _meant(self, name: str) -> list[str]:
        """Return the names of the nodes that are meant by a name: a node's own, or its region's."""
        regions = [region for region in self.plan.regions if region.name == name]
        nodes = [node.name for region in regions for node in region.nodes]
        return nodes or [self.node(name).name]

    def route_peers(self, ports: Mapping[tuple[str, str], int]) -> None:
        """Let nodes dial each other at these ports of this machine: (who dials, whom) -> port.

        For what stands between them, and can be cut. Counts from the next start of each.
        """
        self._peer_routes = dict(ports)

    def tell(
        self, settings: Mapping[str, Any], of_node: Mapping[str, Mapping[str, Any]], http_scheme: str
    ) -> None:  # fmt: skip
        """Put more keys into the configurations: of every node, and of each by its name; counts from the next start on."""
        self._settings |= settings
        self._settings_of_node = of_node
        self.plan = self.plan.speaking(http_scheme)

    def start_by(self, starts: StartsProcess) -> None:
        """Start processes in another way from now on."""
        self._starts = starts

    def start(
        self,
        names: Sequence[str] | None = None,
        *,
        on_up: Callable[[str], None] = lambda _name: None,
    ) -> None:
        """Start these (all, when None) and return when each has said that it is up; `on_up` is told of one after the other."""
        wanted = self._each(names)
        self._spawn_all(wanted)
        for name in wanted:
            self._await_ready(name)
            on_up(name)

    def _each(self, names: Sequence[str] | None) -> list[str]:
        """Return the nodes that several names mean; None: all."""
        if names is None:
            return [node.name for node in self.plan.nodes]
        return [node for name in names for node in self._meant(name)]

    def launch(self, name: str) -> None:
        """Start a node or a region and return at once: what waits for a peer or an operator is never up."""
        self._spawn_all(self._meant(name))

    def why_ended(self, name: str) -> str | None:
        """Return the last word of a node that was launched and has ended, None while it runs."""
        if self._started[name].process.poll() is None:
            return None
        self._started.pop(name).let_go()
        return _reason(self._log(name))

    @property
    def running(self) -> list[str]:
        """The nodes whose processes have not ended."""
        return [name for name in self._started if self.pids(name)]

    def pids(self, name: str) -> list[int]:
        """Return the process ids of a node, or of a region's nodes, as far as they are running."""
        started = [self._started[node] for node in self._meant(name) if node in self._started]
        return [each.process.pid for each in started if each.process.poll() is None]

    def kill(self, name: str) -> None:
        """SIGKILL a node, or a region as if its site were gone; returns when it is dead."""
        for node in self._known(name):
            started = self._started.pop(node)
            started.process.kill()
            started.process.wait()
            started.let_go()

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a node's process, or to those of a region's nodes."""
        for node in self._known(name):
            self._started[node].process.send_signal(number)

    def _known(self, name: str) -> list[str]:
        """Return which of the nodes that are meant were started; raises `ClusterError` where none was."""
        known = [node for node in self._meant(name) if node in self._started]
        if not known:
            raise ClusterError(f"{name} was not started, or has ended")
        return known

    def dead(self) -> dict[str, int]:
        """Return the exit codes of nodes that ended by themselves since the last call."""
        ended = {}
        for name, started in list(self._started.items()):
            code = started.process.poll()
            if code is not None:
                ended[name] = code
                self._started.pop(name).let_go()
        return ended

    def stop(self, names: Sequence[str] | None = None) -> None:
        """SIGTERM these, wait, and SIGKILL those that do not end in time; None: all, and their ports are given back."""
        if names is None:
            with self._held:
                self._stop(list(self._started))
        else:
            wanted = self._each(names)
            self._stop([name for name in self._started if name in wanted])

    def _stop(self, wanted: Sequence[str]) -> None:
        for name in wanted:
            self.signal(name, signal.SIGTERM)
        for name in wanted:
            try:
                self._started[name].process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill(name)
            else:
                self._started.pop(name).let_go()

    def _spawn_all(self, names: Sequence[str]) -> None:
        """Start nodes, or none of them where one runs."""
        for name in names:
            if self.pids(name):
                raise ClusterError(
                    f"{self.node(name).title} runs already: stop it before it is started again"
                )
        for name in names:
            self._spawn(name)

    def _spawn(self, name: str) -> None:
        if name in self._started:
            self._started.pop(name).let_go()
        folder = self.data_dir(name)
        folder.mkdir(parents=True, exist_ok=True)
        config_path = folder / "node.json"
        config_path.write_bytes(msgspec.json.format(msgspec.json.encode(self._config(name))))
        if not self.plan.born and name == self.plan.nodes[0].name:
            self._begin(name, config_path)
            self._note(born=True)
        for region in self.plan.regions[1:]:
            is_first = region.siblings and region.nodes[0].name == name
            if is_first and region.name not in self.plan.founded:
                self._begin(name, config_path)
                self._note(founded=(*self.plan.founded, region.name))
        with self._log(name).open("ab") as log:
            self._started[name] = _Started(
                self._starts([*_BROKER, "--config", str(config_path)], log)
            )

    def _begin(self, name: str, config_path: Path) -> None:
        log_path = self._log(name)
        with log_path.open("ab") as log:
            process = self._starts([*_INIT, "--config", str(config_path)], log)
        try:
            code = process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        _close_pipes(process)
        if code != 0:
            raise ClusterError(f"{self.node(name).title} does not begin: {_reason(log_path)}")

    def _note(self, **values: Any) -> None:
        self.plan = msgspec.structs.replace(self.plan, **values)
        write_plan(self.folder / PLAN_FILE, self.plan)

    def _config(self, name: str) -> dict[str, Any]:
        region = next(each for each in self.plan.regions if self.node(name) in each.nodes)
        return {
            "region": region.name,
            **({"node_id": self.node(name).node_id} if region.siblings else {}),
            "cluster_id": self.plan.cluster_id,
            "data_dir": str(self.data_dir(name)),
            "initial_primary_region": self.plan.regions[0].name,
            # Who gives nodes networks of their own has nobody else in there.
            **({} if is_this_machine(self.node(name).host) else {"insecure": True}),
            **self._settings,
            **self._settings_of_node.get(name, {}),
            "regions": [self._entry(place, name) for place in self.plan.regions],
        }

    def _entry(self, place: RegionPlace, name: str) -> dict[str, Any]:
        """Return the `[[regions]]` entry of `place` as node `name` is given it."""
        nodes = [node.as_config(self._peer_routes.get((name, node.name))) for node in place.nodes]
        own = {"nodes": nodes} if len(nodes) > 1 else nodes[0]
        return {"name": place.name, "ordinal": place.ordinal, **own}

    def _await_ready(self, name: str) -> None:
        started = self._started[name]
        try:
            line = started.said.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            raise ClusterError(
                f"{self.node(name).title} runs, and is not up after {START_TIMEOUT_S:.0f} s: {_reason(self._log(name))}"
            ) from None
        if line.startswith(b"ready"):
            return
        if line == _SAID_NOTHING:  # its standard output is closed: it is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(STOP_TIMEOUT_S)
        raise ClusterError(f"{self.node(name).title} did not start: {_reason(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self.data_dir(name) / "node.log"


def _close_pipes(process: NodeProcess) -> None:
    for pipe in (process.stdout, process.stdin):
        if pipe is not None:
            pipe.close()


def _reason(log: Path, line_count: int = 15) -> str:
    """Return the node's own last word, or the end of its log where it has none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = len(lines) - 1
    while said >= 0 and lines[said].startswith(" "):  # a word of several lines goes on indented
        said -= 1
    if said >= 0 and lines[said].startswith("tidemark: "):
        return "\n".join([lines[said].removeprefix("tidemark: "), *lines[said + 1 :]])
    return "\n".join([f"the end of {log} says:", *(lines[-line_count:] or ["(nothing)"])])
