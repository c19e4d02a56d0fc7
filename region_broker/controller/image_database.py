"""The metadata image in SQLite, through SQLAlchemy: what the quorum's log came to, and after which of its entries.

INV-M11  image and position are written in one transaction: what is stored is the image after exactly that entry
The log is what counts: a database that lags behind it is brought up to it by the next write, or the next start.
Not here: the log, and what is applied (`metadata_store`, `metadata_machine`).
"""

import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, NamedTuple, Self, TypeAlias

from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from region_broker.controller import metadata_tables
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.ports.disk import Disk

_SQLITE_MAGIC: Final = b"SQLite format 3\0"
# As Alembic makes it.
_REVISION_TABLE: Final = (
    "CREATE TABLE IF NOT EXISTS alembic_version ("
    "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num))"
)
_UNREADABLE: Final = (
    "{path} is not a readable metadata database ({why}). Restore it from a copy, or start the"
    " region with an empty data folder and let it mirror the other region."
)
_NOT_OPENED: Final = (
    "{path} cannot be opened ({why}): that is no damage, and nothing was changed. Give the disk room, or mend it or its"
    " rights, and start the node again."
)
_OF_THE_DISK: Final = frozenset(
    {
        sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_IOERR,
        sqlite3.SQLITE_FULL, sqlite3.SQLITE_CANTOPEN,
    }
)  # fmt: skip
"""Result codes that say nothing of the database itself (https://www.sqlite.org/rescode.html)."""


ConnectSqlite: TypeAlias = Callable[[Path], Awaitable[object]]
"""Opens the database at a path as aiosqlite does: SQLite's own way to the disk, in place of the machine's."""


class MetadataUnreadable(Exception):
    """The metadata cannot be used: damaged, another folder's, or written by a newer Tidemark."""


class MetadataUnwritable(OSError):
    """A command could not be made durable, or the metadata not be opened (a full disk, a read-only file system)."""


class MetadataInDoubt(MetadataUnwritable):
    """The last command may be durable, or not: a start shows it. What was noted for it on disk must stay until then."""


class MetadataUnsettled(MetadataInDoubt):
    """The quorum has not taken a command in time: it may take effect later, while this node runs, or never. No disk here is at fault."""


class Stored(NamedTuple):
    """What a database holds: the image after `position`; None where no log was applied to it yet."""

    image: MetadataImage
    position: LogPosition | None


class ImageDatabase:
    """The database of one node; `open` before use, `close` after."""

    def __init__(self, engine: AsyncEngine, path: Path, stored: Stored) -> None:
        """Use `open`; `stored` must be what the engine's database holds."""
        self._engine = engine
        self._path = path
        self.stored = stored

    @classmethod
    async def open(
        cls, path: Path, disk: Disk, *, new_cluster_id: str, connect: ConnectSqlite | None = None
    ) -> Self:
        """Open or create the database at `path` of `disk`; a new one belongs to cluster `new_cluster_id`.

        Raises `MetadataUnreadable` where the file is damaged or newer than this code, `MetadataUnwritable` where the disk
        does not let it be opened.
        """
        _refuse_other_file(path, _first_bytes(path, disk))
        options = {} if connect is None else {"async_creator": lambda *_, **__: connect(path)}
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", **options)
        event.listen(engine.sync_engine, "connect", _configure_connection)
        async with AsyncExitStack() as given_up:
            given_up.push_async_callback(engine.dispose)
            try:
                async with engine.begin() as connection:
                    stored = await connection.run_sync(_load, new_cluster_id)
            except DatabaseError as error:
                raise not_opened(path, error) from error
            given_up.pop_all()
        return cls(engine, path, stored)

    async def write(self, image: MetadataImage, position: LogPosition) -> None:
        """Store the image after `position` in place of what is stored, durably.

        Raises `MetadataUnwritable`: what was stored is stored.
        """

        def write(connection: Connection) -> None:  # INV-M11
            metadata_tables.write_difference(connection, self.stored.image, image)
            metadata_tables.write_position(connection, position)

        try:
            async with self._engine.begin() as connection:
                await connection.run_sync(write)
        except DatabaseError as error:
            raise MetadataUnwritable(f"{self._path} cannot be written: {error.orig}") from error
        self.stored = Stored(image, position)

    async def close(self) -> None:
        """Close the database."""
        await self._engine.dispose()


def read_stored(path: Path) -> Stored | None:
    """Return what the database at `path` holds, and change nothing; raises `MetadataUnreadable`, `MetadataUnwritable`.

    None where there is none yet, or one that a start would first migrate or recover.
    """
    if not path.is_file():
        return None
    with path.open("rb") as file:
        _refuse_other_file(path, file.read(len(_SQLITE_MAGIC)))
    log, index = path.with_name(f"{path.name}-wal"), path.with_name(f"{path.name}-shm")
    if log.exists() and not index.exists():
        return None
    # Without a log SQLite would make one, with the rights of whoever only looks; nothing is in it.
    how = "mode=ro" if log.exists() else "immutable=1"
    engine = create_engine(f"sqlite:///file:{path}?{how}&uri=true")
    try:
        with engine.connect() as connection:
            return _read(connection)
    except DatabaseError as error:
        raise not_opened(path, error) from error
    finally:
        engine.dispose()


def _read(connection: Connection) -> Stored | None:
    if not inspect(connection).has_table("alembic_version"):
        return None
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is None or found < metadata_tables.SCHEMA_REVISION:
        return None
    _refuse_newer(found)
    image = metadata_tables.read_image(connection)
    position = metadata_tables.read_position(connection)
    return None if image is None else Stored(image, position)


def not_opened(path: Path, error: DatabaseError) -> MetadataUnreadable | MetadataUnwritable:
    """Tell a database that is damaged from a disk that does not let it be opened."""
    code = getattr(error.orig, "sqlite_errorcode", sqlite3.SQLITE_ERROR) & 0xFF
    if code in _OF_THE_DISK:
        return MetadataUnwritable(_NOT_OPENED.format(path=path, why=error.orig))
    return MetadataUnreadable(_UNREADABLE.format(path=path, why=error.orig))


def _first_bytes(path: Path, disk: Disk) -> bytes:
    if not disk.exists(path):
        return b""
    file = disk.open(path)
    try:
        return file.pread(len(_SQLITE_MAGIC), 0)
    finally:
        file.close()


def _refuse_other_file(path: Path, first_bytes: bytes) -> None:
    if first_bytes not in (b"", _SQLITE_MAGIC):
        raise MetadataUnreadable(_UNREADABLE.format(path=path, why="no SQLite header"))


def _configure_connection(connection: object, _record: object) -> None:
    cursor = connection.cursor()  # type: ignore[attr-defined]
    for pragma in ("journal_mode=WAL", "synchronous=FULL", "busy_timeout=5000"):
        cursor.execute(f"PRAGMA {pragma}")
    cursor.close()


def _load(connection: Connection, new_cluster_id: str) -> Stored:
    _migrate(connection)
    image = metadata_tables.read_image(connection)
    if image is None:
        image = MetadataImage(version=0, cluster_id=new_cluster_id)
        metadata_tables.write_difference(connection, None, image)
    return Stored(image, metadata_tables.read_position(connection))


def _migrate(connection: Connection) -> None:
    """Bring the schema to `SCHEMA_REVISION`; Alembic is imported only where there is an older one.

    A new database gets the tables as they are now: what all migrations together make, which a test compares. One
    whose making was interrupted has no revision yet, and gets what is missing.
    """
    connection.execute(text(_REVISION_TABLE))
    found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
    if found is None:
        metadata_tables.metadata.create_all(connection)
        revision = {"revision": metadata_tables.SCHEMA_REVISION}
        connection.execute(text("INSERT INTO alembic_version VALUES (:revision)"), revision)
        return
    if found == metadata_tables.SCHEMA_REVISION:
        return
    _refuse_newer(found)
    upgrade(connection)


def _refuse_newer(revision: str) -> None:
    if revision > metadata_tables.SCHEMA_REVISION:
        raise MetadataUnreadable(
            f"the metadata database has schema {revision}, this Tidemark knows up to"
            f" {metadata_tables.SCHEMA_REVISION}: it was written by a newer version."
            " Upgrade this node, or give it another data_dir."
        )


def upgrade(connection: Connection) -> None:
    """Run the migrations that are due."""
    from alembic import command  # noqa: PLC0415 -- 10 MB and 0.2 s that a start without migration need not pay
    from alembic.config import Config  # noqa: PLC0415

    config = Config()
    config.set_main_option("script_location", "region_broker.controller:migrations")
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    command.upgrade(config, metadata_tables.SCHEMA_REVISION)
