"""Regions as separate processes on loopback: what `dev`, `demo`, the tests and the chaos suites start.

INV-LC1  only processes started here are ever signalled, and of each region one at a time
INV-LC4  a port that a region is given is none that the system takes for what it dials: while the region is down, its port
         stays free
INV-LC5  nor is it one that another cluster was given, as long as that one is open: both would be free at once
A region is up when its process has said so on its standard output; nobody polls or guesses. A cluster is born once, by
who made its folder: before its primary region starts for the first time (T32).

The folder holds one sub-folder per region and `cluster.json` with the cluster id and the ports, so that the
same folder gives the same cluster again.
"""

import contextlib
import errno
import queue
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Final, Protocol, Self
from uuid import UUID

import msgspec

from region_broker.ports.system.chance import SystemChance

REGION_NAMES: Final = ("eu", "us", "ap", "sa", "af", "me", "oc", "an")
FIRST_PORT: Final = 9092
# Below what systems use for ports of their own choice (Linux: 32768 on), above FIRST_PORT and its like.
PORTS_OF_OUR_OWN: Final = (20_000, 32_768)
_PORTS_TRIED_MAX: Final = 1_000
# Who is given a port of 127.0.0.1 holds the same one here until its cluster is closed (INV-LC5). Where a system has no such
# address, ports are only looked at.
_HELD_AT: Final = "127.0.0.77"
PORTS_PER_REGION: Final = 10
PLAN_FILE: Final = "cluster.json"
_TIDEMARK: Final = (sys.executable, "-m", "region_broker")
_INIT: Final = ("init", "--no-history-elsewhere")
_BROKER: Final = ("broker", "--stop-with-stdin")
START_TIMEOUT_S: Final = 60.0
STOP_TIMEOUT_S: Final = 20.0
_SAID_NOTHING: Final = b""


class ClusterError(Exception):
    """The local cluster cannot do what was asked; the text says why and what to do."""


class RegionPlace(msgspec.Struct, frozen=True, kw_only=True):
    """Where one region lives on this machine."""

    name: str
    ordinal: int
    kafka_port: int
    http_port: int
    peer_port: int

    @property
    def bootstrap(self) -> str:
        """The Kafka bootstrap address."""
        return f"127.0.0.1:{self.kafka_port}"

    @property
    def http(self) -> str:
        """The base address of the HTTP API."""
        return f"http://127.0.0.1:{self.http_port}"

    def as_config(self) -> dict[str, Any]:
        """Return the `[[regions]]` entry."""
        return {
            "name": self.name,
            "ordinal": self.ordinal,
            "node_id": self.ordinal + 1,
            "kafka": self.bootstrap,
            "peer": f"127.0.0.1:{self.peer_port}",
            "http": f"127.0.0.1:{self.http_port}",
        }


class ClusterPlan(msgspec.Struct, frozen=True, kw_only=True):
    """What `cluster.json` keeps."""

    cluster_id: str
    regions: list[RegionPlace]
    born: bool = True
    """A plan that does not say so is of a version whose clusters were born by their first start."""


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
    """The process of a region, and the first line of its standard output once there is one."""

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
        self._started: dict[str, _Started] = {}
        self._peer_routes: Mapping[tuple[str, str], int] = {}
        self._starts: StartsProcess = _start

    @classmethod
    def open(
        cls, folder: Path, *, region_count: int, port: int | None, new_cluster_id: UUID,
        settings: Mapping[str, Any] | None = None,
    ) -> Self:  # fmt: skip
        """Plan a new cluster in `folder` or find the one that is there.

        `port` 0 takes free ports; None those that the cluster had, of a new one from `FIRST_PORT` on. Raises
        `ClusterError`, `OSError`.
        """
        path = folder / PLAN_FILE
        with contextlib.ExitStack() as held:
            if path.exists():
                plan = _read_plan(path)
                if len(plan.regions) != region_count:
                    raise ClusterError(
                        f"{folder} holds a cluster of {len(plan.regions)} regions, not {region_count}: give"
                        " another --data-dir or the same --regions"
                    )
                plan = plan if port is None else _moved(plan, port, held)
            else:
                places = _places(region_count, FIRST_PORT if port is None else port, held)
                plan = ClusterPlan(cluster_id=str(new_cluster_id), regions=places, born=False)
            folder.mkdir(parents=True, exist_ok=True)
            _write_plan(path, plan)
            return cls(folder, plan, settings or {}, held.pop_all())

    def __enter__(self) -> Self:
        """Return self; nothing is started yet."""
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """Stop every region that is still running."""
        self.stop()

    @property
    def bootstrap(self) -> str:
        """All regions' bootstrap addresses, with commas."""
        return ",".join(place.bootstrap for place in self.plan.regions)

    @property
    def http(self) -> str:
        """All regions' HTTP addresses, with commas: what `--url` takes."""
        return ",".join(place.http for place in self.plan.regions)

    def place(self, name: str) -> RegionPlace:
        """Return where region `name` lives; raises `ClusterError` for an unknown one."""
        for place in self.plan.regions:
            if place.name == name:
                return place
        raise ClusterError(f"there is no region {name}")

    def data_dir(self, name: str) -> Path:
        """Return the data folder of region `name`."""
        return self.folder / name

    def route_peers(self, ports: Mapping[tuple[str, str], int]) -> None:
        """Let regions dial each other at these ports of this machine: (who dials, whom) -> port.

        For what stands between them, and can be cut. Counts from the next start of each.
        """
        self._peer_routes = dict(ports)

    def start_by(self, starts: StartsProcess) -> None:
        """Start processes in another way from now on."""
        self._starts = starts

    def start(self, names: Sequence[str] | None = None) -> None:
        """Start these regions (all, when None) and return when each has said that it is up."""
        wanted = [place.name for place in self.plan.regions] if names is None else list(names)
        for name in wanted:
            self._spawn(name)
        for name in wanted:
            self._await_ready(name)

    def launch(self, name: str) -> None:
        """Start a region and return at once: one that waits for a peer or an operator is never up."""
        self._spawn(name)

    def why_ended(self, name: str) -> str | None:
        """Return the last word of a region that was launched and has ended, None while it runs."""
        if self._started[name].process.poll() is None:
            return None
        self._started.pop(name).let_go()
        return _reason(self._log(name))

    @property
    def running(self) -> list[str]:
        """The regions whose processes have not ended."""
        return [name for name in self._started if self.pids(name)]

    def pids(self, name: str) -> list[int]:
        """Return the process ids of a region that is running."""
        started = self._started.get(name)
        runs = started is not None and started.process.poll() is None
        return [started.process.pid] if started is not None and runs else []

    def kill(self, name: str) -> None:
        """SIGKILL a region, as if its site were gone; returns when it is dead."""
        started = self._started.pop(name)
        started.process.kill()
        started.process.wait()
        started.let_go()

    def signal(self, name: str, number: int) -> None:
        """Send a signal to a region's process."""
        self._started[name].process.send_signal(number)

    def dead(self) -> dict[str, int]:
        """Return the exit codes of regions that ended by themselves since the last call."""
        ended = {}
        for name, started in list(self._started.items()):
            code = started.process.poll()
            if code is not None:
                ended[name] = code
                self._started.pop(name).let_go()
        return ended

    def stop(self, names: Sequence[str] | None = None) -> None:
        """SIGTERM these regions, wait, and SIGKILL those that do not end in time; None: all, and their ports are given back."""
        if names is None:
            with self._held:
                self._stop(list(self._started))
        else:
            self._stop([name for name in self._started if name in names])

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

    def _spawn(self, name: str) -> None:
        if self.pids(name):
            raise ClusterError(f"region {name} runs already: stop it before it is started again")
        if name in self._started:
            self._started.pop(name).let_go()
        folder = self.data_dir(name)
        folder.mkdir(parents=True, exist_ok=True)
        config_path = folder / "node.json"
        config_path.write_bytes(msgspec.json.format(msgspec.json.encode(self._config(name))))
        if not self.plan.born and name == self.plan.regions[0].name:
            self._be_born(config_path)
        with self._log(name).open("ab") as log:
            self._started[name] = _Started(
                self._starts([*_BROKER, "--config", str(config_path)], log)
            )

    def _be_born(self, config_path: Path) -> None:
        log_path = self._log(self.plan.regions[0].name)
        with log_path.open("ab") as log:
            process = self._starts([*_INIT, "--config", str(config_path)], log)
        try:
            code = process.wait(START_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            code = process.wait()
        _close_pipes(process)
        if code != 0:
            raise ClusterError(f"the cluster was not born: {_reason(log_path)}")
        self.plan = msgspec.structs.replace(self.plan, born=True)
        _write_plan(self.folder / PLAN_FILE, self.plan)

    def _config(self, name: str) -> dict[str, Any]:
        return {
            "region": name,
            "cluster_id": self.plan.cluster_id,
            "data_dir": str(self.data_dir(name)),
            "initial_primary_region": self.plan.regions[0].name,
            **self._settings,
            "regions": [self._entry(place, name) for place in self.plan.regions],
        }

    def _entry(self, place: RegionPlace, name: str) -> dict[str, Any]:
        """Return the `[[regions]]` entry of `place` as region `name` is given it."""
        routed = self._peer_routes.get((name, place.name))
        entry = place.as_config()
        return entry if routed is None else {**entry, "peer": f"127.0.0.1:{routed}"}

    def _await_ready(self, name: str) -> None:
        started = self._started[name]
        try:
            line = started.said.get(timeout=START_TIMEOUT_S)
        except queue.Empty:
            raise ClusterError(
                f"region {name} runs, and is not up after {START_TIMEOUT_S:.0f} s: {_reason(self._log(name))}"
            ) from None
        if line.startswith(b"ready"):
            return
        if line == _SAID_NOTHING:  # its standard output is closed: it is about to end
            with contextlib.suppress(subprocess.TimeoutExpired):
                started.process.wait(STOP_TIMEOUT_S)
        raise ClusterError(f"region {name} did not start: {_reason(self._log(name))}")

    def _log(self, name: str) -> Path:
        return self.data_dir(name) / "node.log"


def _close_pipes(process: NodeProcess) -> None:
    for pipe in (process.stdout, process.stdin):
        if pipe is not None:
            pipe.close()


def _read_plan(path: Path) -> ClusterPlan:
    try:
        return msgspec.json.decode(path.read_bytes(), type=ClusterPlan)
    except (msgspec.MsgspecError, OSError) as error:
        raise ClusterError(
            f"{path} does not describe a local cluster ({error}): give another --data-dir"
        ) from error


def _write_plan(path: Path, plan: ClusterPlan) -> None:
    """Replace it as a whole: half a plan would keep a cluster with all its data from being started again."""
    temporary = path.with_name(f"{path.name}.tmp")
    temporary.write_bytes(msgspec.json.encode(plan))
    temporary.replace(path)


def _start(command: Sequence[str], errors: IO[bytes]) -> NodeProcess:
    return subprocess.Popen(  # noqa: S603 -- our own interpreter and module
        [*_TIDEMARK, *command],
        stdin=subprocess.PIPE,  # closes with this process: no orphan is left behind
        stdout=subprocess.PIPE,
        stderr=errors,
        start_new_session=True,
    )


def _reason(log: Path, line_count: int = 15) -> str:
    """Return the node's own last word, or the end of its log where it has none."""
    lines = log.read_text(errors="replace").splitlines() if log.exists() else []
    said = len(lines) - 1
    while said >= 0 and lines[said].startswith(" "):  # a word of several lines goes on indented
        said -= 1
    if said >= 0 and lines[said].startswith("tidemark: "):
        return "\n".join([lines[said].removeprefix("tidemark: "), *lines[said + 1 :]])
    return "\n".join([f"the end of {log} says:", *(lines[-line_count:] or ["(nothing)"])])


def _places(region_count: int, port: int, held: contextlib.ExitStack) -> list[RegionPlace]:
    if not 1 <= region_count <= len(REGION_NAMES):
        raise ClusterError(f"--regions {region_count} is not in 1..{len(REGION_NAMES)}")
    last = port + PORTS_PER_REGION * (region_count - 1) + 2
    if last > 65_535:
        raise ClusterError(
            f"--port {port} leaves no room: {region_count} regions would need ports up to {last}"
        )
    ports = (
        _free_ports(3 * region_count, held)
        if port == 0
        else [port + PORTS_PER_REGION * i + j for i in range(region_count) for j in range(3)]
    )
    return [
        RegionPlace(
            name=REGION_NAMES[i],
            ordinal=i,
            kafka_port=ports[3 * i],
            http_port=ports[3 * i + 1],
            peer_port=ports[3 * i + 2],
        )
        for i in range(region_count)
    ]


def _moved(plan: ClusterPlan, port: int, held: contextlib.ExitStack) -> ClusterPlan:
    return msgspec.structs.replace(plan, regions=_places(len(plan.regions), port, held))


def _free_ports(count: int, held: contextlib.ExitStack) -> list[int]:
    """Return ports that are free now, that the system gives to no connection that is dialled (INV-LC4), and that `held` keeps
    from other clusters (INV-LC5)."""
    chance = SystemChance()
    first, last = PORTS_OF_OUR_OWN
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        for _ in range(_PORTS_TRIED_MAX):
            port = int(chance.uniform(first, last))
            one = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                one.bind(("127.0.0.1", port))
                if _hold(port, held):
                    found.append(port)
            if len(found) == count:
                return found
    raise ClusterError(
        f"of {_PORTS_TRIED_MAX} ports of this machine from {first} to {last} not {count} are free: name free ones"
        " by --port"
    )


def _hold(port: int, held: contextlib.ExitStack) -> bool:
    """Keep other clusters from a port; return whether none holds it."""
    guard = socket.socket()
    try:
        guard.bind((_HELD_AT, port))
    except OSError as error:
        guard.close()
        return error.errno == errno.EADDRNOTAVAIL
    held.enter_context(guard)
    return True
