"""Starts nodes as forks of a process that has imported all of a node: the imports are most of what a start costs.

INV-STS1  a node started so is killed, stopped and waited for as any other process
INV-STS2  it has the environment and the working folder of who starts it now, not of whoever started the first one

Not here: the process that forks (`cli.node_forks`).
"""

import atexit
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from typing import IO, Final

import msgspec

REPLY_BYTES: Final = 64
TITLE_BYTES: Final = 512
_REPLY_S: Final = 60.0
_FORKS: Final = "region_broker.cli.node_forks"


class StartOrder(msgspec.Struct, frozen=True):
    """What a node is started with: the arguments of `tidemark`, its environment, its working folder."""

    command: tuple[str, ...]
    environment: dict[str, str]
    folder: str


class ForkedProcess:
    """What `subprocess.Popen` is to a child, for a process that the starter forked (INV-STS1)."""

    def __init__(
        self, connection: socket.socket, stdin: IO[bytes] | None, stdout: IO[bytes] | None
    ) -> None:
        """Wait until it is forked; raises OSError."""
        self.stdin = stdin
        self.stdout = stdout
        self.returncode: int | None = None
        self._connection = connection
        connection.settimeout(_REPLY_S)
        self.pid = _told(connection)

    def poll(self) -> int | None:
        """Return its exit code, negative for a signal; None while it runs."""
        return self._take(0.0)

    def wait(self, timeout: float | None = None) -> int:
        """Return its exit code; raises `subprocess.TimeoutExpired`."""
        code = self._take(timeout)
        if code is None:
            raise subprocess.TimeoutExpired(f"node {self.pid}", timeout or 0.0)
        return code

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)

    def send_signal(self, number: int) -> None:
        """Send a signal, if it still runs."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)

    def _take(self, timeout_s: float | None) -> int | None:
        if self.returncode is None:
            self._connection.settimeout(timeout_s)
            try:
                self.returncode = _told(self._connection)
            except (TimeoutError, BlockingIOError):
                return None
            self._connection.close()
        return self.returncode


def _told(connection: socket.socket) -> int:
    """Return the next number that the starter says; raises OSError."""
    said = connection.recv(REPLY_BYTES)
    if not said:
        raise ConnectionError(
            "the process that forks nodes has ended, see its standard error: what becomes of its nodes is not known"
        )
    number: int = msgspec.json.decode(said)
    return number


class Starter:
    """The starter's process; it ends with this one, or with `close`, and its nodes with their standard input."""

    def __init__(self, module: str = _FORKS) -> None:
        """Start it; `module` may import more than a node does, and forks then as `cli.node_forks`. Raises OSError."""
        ours, starters = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with starters:
            self._process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                # The last argument has room for what each node is called in the list of processes.
                [sys.executable, "-m", module, " " * TITLE_BYTES],
                stdin=starters.fileno(),
                stdout=subprocess.DEVNULL,  # standard output is for who reads the command's
                start_new_session=True,  # Ctrl-C is for the command alone
            )
        self._orders = ours

    @property
    def runs(self) -> bool:
        """Return whether it can start anything."""
        return self._process.poll() is None

    def close(self) -> None:
        """End it."""
        self._orders.close()
        self._process.wait()

    def start(
        self, command: Sequence[str], errors: IO[bytes],
        environment: Mapping[str, str] = os.environ,
    ) -> ForkedProcess:  # fmt: skip
        """Start `tidemark` with the arguments `command`; raises OSError."""
        order = StartOrder(tuple(command), dict(environment), os.getcwd())  # noqa: PTH109
        with contextlib.ExitStack() as undo:
            from_here, to_node = os.pipe()
            stdin = undo.enter_context(os.fdopen(to_node, "wb"))
            from_node, to_here = os.pipe()
            stdout = undo.enter_context(os.fdopen(from_node, "rb"))
            reports, tells = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            undo.enter_context(reports)
            written = os.memfd_create("order")
            try:
                os.write(written, msgspec.json.encode(order))
                given = [written, tells.fileno(), from_here, to_here, errors.fileno()]
                socket.send_fds(self._orders, [b"start"], given)
            finally:
                tells.close()
                for number in (written, from_here, to_here):
                    os.close(number)
            process = ForkedProcess(reports, stdin, stdout)
            undo.pop_all()  # they are the process's now
            return process


_shared: Starter | None = None
"""The one of this process, from its first node on."""


def start_node(command: Sequence[str], errors: IO[bytes]) -> ForkedProcess:
    """Start `tidemark` with the arguments `command` by the starter of this process; raises OSError."""
    global _shared  # noqa: PLW0603 -- one for the process
    if _shared is None or not _shared.runs:
        if _shared is not None:
            _shared.close()
        _shared = Starter()
        atexit.register(_shared.close)
    return _shared.start(command, errors)
