"""The process that forks nodes: ``python -m region_broker.cli.node_forks TITLE``, see `workbench.starter`.

Orders come over its standard input, each with five files: what is to be started, a connection for the answers, and the node's
three standard files. The answers are its process id, and its exit code once there is one.

A fork has no thread, no signal handler and no open file of another node: nothing but what its own start would import.
It ends with its standard input, nodes end with theirs.
"""

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from region_broker.cli.lean import import_leanly
from region_broker.cli.main import run
from region_broker.workbench.starter import StartOrder

_STDIN: Final = 0
_FILES: Final = 5
_OF_A_NODE: Final = (
    "region_broker.cli.broker",
    "region_broker.cli.init",
    "region_broker.node.birth",
    "region_broker.node.growing_node",
    "region_broker.node.start_checks",
    "region_broker.ports.system.chance",
    "region_broker.ports.system.clock",
    "region_broker.ports.system.disk",
    "region_broker.ports.system.network",
    "region_broker.ports.system.threads",
    "uvloop",
)


class _Forks:
    """The starter's own side."""

    def __init__(self) -> None:
        self._orders = socket.socket(fileno=os.dup(_STDIN))
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._orders, selectors.EVENT_READ)
        self._open: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> Sequence[str] | None:
        """Return None at the end; in each child its command line."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is not self._orders:
                    self._report(key.fd)
                    continue
                said, files, _, _ = socket.recv_fds(self._orders, 16, _FILES)
                if not said:
                    return None
                command = self._fork(files)
                if command is not None:
                    return command

    def _fork(self, files: Sequence[int]) -> Sequence[str] | None:
        written, tells, *standard = files
        connection = socket.socket(fileno=tells)
        pid = os.fork()
        if pid == 0:
            connection.close()
            return self._become(written, standard)
        for each in (written, *standard):
            os.close(each)
        watched = os.pidfd_open(pid)
        self._open[watched] = (pid, connection)
        self._selector.register(watched, selectors.EVENT_READ)
        self._tell(connection, pid)
        return None

    def _become(self, written: int, standard: Sequence[int]) -> Sequence[str]:
        """Close all that is not the child's, and be what was ordered."""
        os.setsid()
        self._selector.close()
        self._orders.close()
        for watched, (_, connection) in self._open.items():
            os.close(watched)
            connection.close()
        for number, each in enumerate(standard):
            os.dup2(each, number)
            os.close(each)
        os.lseek(written, 0, os.SEEK_SET)
        with os.fdopen(written, "rb") as file:
            order = msgspec.json.decode(file.read(), type=StartOrder)
        os.environ.clear()
        os.environ.update(order.environment)
        os.chdir(order.folder)
        _entitle(" ".join(("tidemark", *order.command)))
        return order.command

    def _report(self, watched: int) -> None:
        pid, connection = self._open.pop(watched)
        self._selector.unregister(watched)
        os.close(watched)
        _, status = os.waitpid(pid, 0)
        with connection:
            self._tell(connection, os.waitstatus_to_exitcode(status))

    def _tell(self, connection: socket.socket, number: int) -> None:
        with contextlib.suppress(OSError):  # who asked for it has ended
            connection.send(msgspec.json.encode(number))


def _entitle(title: str) -> None:
    """Let the list of processes say what this one is: its arguments are memory of its own (proc(5): `arg_start`, `arg_end`)."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])
    said = title.encode(errors="replace")[: end - start - 1]
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, said, len(said))


def main() -> None:
    """Fork until standard input ends; in a fork, be `tidemark`."""
    import_leanly()
    for name in _OF_A_NODE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    command = _Forks().serve()
    if command is not None:  # what is frozen stays so: to look for cycles there copies its pages
        sys.argv = ["tidemark", *command]
        run()


if __name__ == "__main__":
    main()
