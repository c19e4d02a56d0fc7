"""SQLite under the simulation: its databases lie on the simulated disk, and no thread runs them.

A database is in memory while it is open; what a commit leaves is on the disk durably as a whole, or not at all; where
writing it fails, the commit fails and nothing has changed. A statement runs at once; a commit is a job as those of
threads are, and takes as long.

One connection at a time: a node has one.
"""

import asyncio
import sqlite3
from collections.abc import Callable, Generator
from contextlib import closing
from pathlib import Path
from typing import Any

import aiosqlite
from typing_extensions import override

from tests.simulation.disk import SimulatedDisk

Work = tuple[asyncio.Future[Any] | None, Callable[[], Any]]


class _AtOnce:
    """In place of a thread's queue: what is put is done."""

    def put_nowait(self, work: Work) -> None:
        future, function = work
        try:
            result = function()
        except Exception as error:  # noqa: BLE001 - whoever awaits the call gets it, as from the thread
            if future is not None:
                future.set_exception(error)
        else:
            if future is not None:
                future.set_result(result)


class SimulatedSqlite(aiosqlite.Connection):
    """A connection of aiosqlite's kind, to a database on a simulated disk."""

    def __init__(self, path: Path, disk: SimulatedDisk) -> None:
        """Open nothing yet; await it."""
        super().__init__(self._opened, iter_chunk_size=64)
        self._tx = _AtOnce()  # type: ignore[assignment]
        self._path, self._disk = path, disk
        self._durable = b""

    def __del__(self) -> None:
        """Say nothing: a process that is killed closes nothing."""

    @override
    def __await__(self) -> Generator[Any, None, "SimulatedSqlite"]:
        return self._connect().__await__()  # type: ignore[return-value]

    @override
    async def commit(self) -> None:
        """See aiosqlite; durable on the simulated disk when it returns."""
        await asyncio.get_running_loop().run_in_executor(None, self._commit)

    def _commit(self) -> None:
        connection = self._conn
        connection.commit()
        image = connection.serialize()
        if image == self._durable:
            return
        try:
            self._disk.commit_file(self._path, image)
        except OSError as error:
            connection.deserialize(self._durable or _nothing())
            failure = sqlite3.OperationalError(f"disk I/O error: {error.strerror}")
            failure.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise failure from error
        self._durable = image

    def _opened(self) -> sqlite3.Connection:
        connection = sqlite3.connect(":memory:", check_same_thread=False)
        if self._disk.exists(self._path):
            self._durable = self._disk.read_file(self._path)
            connection.deserialize(self._durable)
        return connection


def _nothing() -> bytes:
    """Return a database without a table; `deserialize` takes no image without a page."""
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.executescript("CREATE TABLE t(x); DROP TABLE t")
        return connection.serialize()
