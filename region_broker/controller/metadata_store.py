"""The metadata of a region, kept in SQLite through SQLAlchemy, served from memory.

INV-M6  `image` equals what the database holds after every `apply`: a command is in memory only once it is
        durable (WAL, synchronous=FULL)
Commands are applied one after the other; one task writes.

A later issue feeds the same `apply` from a replicated log. The log path never waits for this store.
"""

import asyncio
import sqlite3
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Final, Self, TypeAlias
from uuid import UUID

from sqlalchemy import Connection, create_engine, event, inspect, text
from sqlalchemy.exc import DatabaseError, OperationalError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from region_broker.controller import metadata_commands, metadata_tables
from region_broker.controller.metadata_commands import Command, CommandRefused
from region_broker.controller.metadata_image import MetadataImage, TopicImage
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
    """The metadata file cannot be used: damaged, or written by a newer Tidemark."""


class MetadataUnwritable(OSError):
    """A command could not be made durable, or the database not be opened (a full disk, a read-only file system);
    nothing has changed.
    """


class MetadataStore:
    """Holds the image of one region; `open` before use, `close` after.

    Raises `MetadataUnreadable` on open where the file is damaged or newer than this code, `MetadataUnwritable` where
    the disk does not let it be opened.
    """

    def __init__(self, engine: AsyncEngine, image: MetadataImage) -> None:
        """Use `open`; the image must be what the engine's database holds."""
        self._engine = engine
        self._image = image
        self._write_lock = asyncio.Lock()

    @classmethod
    async def open(
        cls, path: Path, disk: Disk, *, new_cluster_id: str, connect: ConnectSqlite | None = None
    ) -> Self:
        """Open or create the database at `path` of `disk`; a new one belongs to cluster `new_cluster_id`."""
        _refuse_other_file(path, _first_bytes(path, disk))
        options = {} if connect is None else {"async_creator": lambda *_, **__: connect(path)}
        engine = create_async_engine(f"sqlite+aiosqlite:///{path}", **options)
        event.listen(engine.sync_engine, "connect", _configure_connection)
        async with AsyncExitStack() as given_up:
            given_up.push_async_callback(engine.dispose)
            try:
                async with engine.begin() as connection:
                    image = await connection.run_sync(_load, new_cluster_id)
            except DatabaseError as error:
                raise _not_opened(path, error) from error
            given_up.pop_all()
        return cls(engine, image)

    @property
    def image(self) -> MetadataImage:
        """The image after the last command that became durable."""
        return self._image

    async def apply(self, command: Command) -> MetadataImage:
        """Apply one command durably and return the new image; raises `CommandRefused`, `MetadataUnwritable`."""
        async with self._write_lock:
            new = metadata_commands.apply(self._image, command)
            old = self._image
            try:
                async with self._engine.begin() as connection:
                    await connection.run_sync(metadata_tables.write_difference, old, new)
            except OperationalError as error:
                raise MetadataUnwritable(f"the metadata cannot be written: {error.orig}") from error
            self._image = new
            return new

    async def create_topic(
        self, name: str, partition_count: int, configs: dict[str, str], topic_id: UUID
    ) -> TopicImage:
        """Create a topic; raises `CommandRefused` (`topic-exists`)."""
        topic = TopicImage(
            topic_id=topic_id, name=name, partition_count=partition_count, configs=configs
        )
        await self.apply(metadata_commands.CreateTopic(topic))
        return topic

    async def delete_topic(self, name: str) -> TopicImage:
        """Delete a topic by name; raises `CommandRefused` (`unknown-topic`, `internal-topic`)."""
        topic = self._image.topics.get(name)
        if topic is None:
            raise CommandRefused("unknown-topic", f"there is no topic called {name}")
        await self.apply(metadata_commands.DeleteTopic(topic.topic_id))
        return topic

    async def close(self) -> None:
        """Close the database."""
        await self._engine.dispose()


def stored_image(path: Path) -> MetadataImage | None:
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
            if not inspect(connection).has_table("alembic_version"):
                return None
            found = connection.execute(text("SELECT version_num FROM alembic_version")).scalar()
            if found is None or found < metadata_tables.SCHEMA_REVISION:
                return None
            _refuse_newer(found)
            return metadata_tables.read_image(connection)
    except DatabaseError as error:
        raise _not_opened(path, error) from error
    finally:
        engine.dispose()


def _not_opened(path: Path, error: DatabaseError) -> "MetadataUnreadable | MetadataUnwritable":
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


def _load(connection: Connection, new_cluster_id: str) -> MetadataImage:
    _migrate(connection)
    image = metadata_tables.read_image(connection)
    if image is None:
        image = MetadataImage(version=0, cluster_id=new_cluster_id)
        metadata_tables.write_difference(connection, None, image)
    return image


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
