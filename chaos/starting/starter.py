"""Starts nodes as forks of a process that has imported all of a node: the imports are most of what a start costs.

INV-STS1  a node started so is killed, stopped and waited for as any other process

Not here: the process that forks (`chaos.starting.forks`).
"""

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import IO, Final, Self

import msgspec

from region_broker.workbench.local_cluster import NodeProcess, StartsProcess

REQUEST_BYTES: Final = 1 << 16
_REPLY_S: Final = 60.0


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
    said = connection.recv(REQUEST_BYTES)
    if not said:
        raise ConnectionError(
            "the process that forks nodes has ended, see its standard error: what becomes of its nodes is not known"
        )
    number: int = msgspec.json.decode(said)
    return number


class Starter:
    """A context manager: the starter's process. `path`: where it listens."""

    def __init__(self, path: Path) -> None:
        """Nothing is started before it is entered."""
        self.path = path
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        """Start it; return when it listens. Raises OSError."""
        self._process = subprocess.Popen(
            [sys.executable, "-m", "chaos.starting.forks", str(self.path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert self._process.stdout is not None
        if not self._process.stdout.readline():
            self._process.communicate()
            raise OSError(
                f"the starter at {self.path} ended with exit code {self._process.returncode}, see its standard error"
            )
        return self

    def __exit__(self, *_exc_info: object) -> None:
        """End it."""
        assert self._process is not None
        self._process.communicate()
        self.path.unlink(missing_ok=True)


def start_by(path: Path, command: Sequence[str], errors: IO[bytes]) -> NodeProcess:
    """Let the starter at `path` start `tidemark` with the arguments `command`; raises OSError."""
    with contextlib.ExitStack() as undo:
        connection = undo.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET))
        connection.settimeout(_REPLY_S)
        connection.connect(str(path))
        from_here, to_node = os.pipe()
        stdin = undo.enter_context(os.fdopen(to_node, "wb"))
        from_node, to_here = os.pipe()
        stdout = undo.enter_context(os.fdopen(from_node, "rb"))
        try:
            socket.send_fds(
                connection, [msgspec.json.encode(command)], [from_here, to_here, errors.fileno()]
            )
        finally:
            os.close(from_here)
            os.close(to_here)
        process = ForkedProcess(connection, stdin, stdout)
        undo.pop_all()  # they are the process's now
        return process


@contextmanager
def forked_starts() -> Iterator[StartsProcess]:
    """Yield a way to start nodes as forks, for `LocalCluster.start_by`; the cluster is to be left first."""
    with (
        tempfile.TemporaryDirectory(prefix="tidemark-starter-") as own,
        Starter(Path(own) / "starter") as starter,
    ):
        yield partial(start_by, starter.path)
