"""The process that forks nodes: ``python -m chaos.starting.forks PATH`` listens at PATH, see `chaos.starting.starter`.

One connection per node, with its command line and its three standard files; the answers are its process id, and its exit
code once there is one.

A fork has no thread, no signal handler and no open file of another node: nothing but what its own start would import.
It ends with its standard input, nodes end with theirs.
"""

import contextlib
import gc
import importlib
import os
import selectors
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click
import msgspec

from chaos.starting.starter import REQUEST_BYTES
from region_broker.cli.lean import import_leanly
from region_broker.cli.main import run

_STANDARD_FILES: Final = 3
_OF_A_NODE: Final = (
    "region_broker.cli.broker",
    "region_broker.cli.init",
    "region_broker.node",
    "region_broker.node.birth",
    "region_broker.node.start_checks",
)


class _Forks:
    """The starter's own side."""

    def __init__(self, path: Path) -> None:
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(path))
        self._listener.listen()
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listener, selectors.EVENT_READ)
        self._selector.register(sys.stdin, selectors.EVENT_READ)
        self._open: dict[int, tuple[int, socket.socket]] = {}

    def serve(self) -> Sequence[str] | None:
        """Return None at the end; in each child its command line."""
        click.echo("listens")
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    return None
                if key.fileobj is not self._listener:
                    self._report(key.fd)
                    continue
                command = self._fork()
                if command is not None:
                    return command

    def _fork(self) -> Sequence[str] | None:
        connection, _ = self._listener.accept()
        request, files, _, _ = socket.recv_fds(connection, REQUEST_BYTES, _STANDARD_FILES)
        if not request:  # who has called has ended
            connection.close()
            return None
        pid = os.fork()
        if pid == 0:
            self._become(files)
            connection.close()
            command: list[str] = msgspec.json.decode(request)
            return command
        for each in files:
            os.close(each)
        watched = os.pidfd_open(pid)
        self._open[watched] = (pid, connection)
        self._selector.register(watched, selectors.EVENT_READ)
        self._tell(connection, pid)
        return None

    def _become(self, files: Sequence[int]) -> None:
        """Close all that is not the child's."""
        os.setsid()
        self._selector.close()
        self._listener.close()
        for watched, (_, connection) in self._open.items():
            os.close(watched)
            connection.close()
        for number, each in enumerate(files):
            os.dup2(each, number)
            os.close(each)

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


def main() -> None:
    """Fork until standard input ends; in a fork, be `tidemark`."""
    import_leanly()
    for name in _OF_A_NODE:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    command = _Forks(Path(sys.argv[1])).serve()
    if command is not None:
        gc.unfreeze()
        sys.argv = ["tidemark", *command]
        run()


if __name__ == "__main__":
    main()
