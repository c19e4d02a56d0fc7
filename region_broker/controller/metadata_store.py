"""The metadata of a region: commands go through the log of its quorum, the image is served from memory.

INV-M6   a command is in `image` only once it is durable in the log; what was refused is in neither. Whoever asked for it goes on
         in the very step in which it is there: nobody else sees a topic before its partitions are open. Who is cancelled
         meanwhile is let go when it is settled (INV-UB1); what must follow a command is carried to its end with it
INV-M13  a database whose position is not in the log belongs to another log, or that one is an older copy: neither is used; nor
         is one without a position that the log never came to: a version without log changed it meanwhile
Commands are applied one after the other. The quorum of a region with one node is that node: its log lies in `quorum` beside
the database, and begins with what an older version had stored.

The log path never waits for this store. Not here: Raft (`raft`), SQLite (`image_database`), what a command does
(`metadata_commands`).
"""

import asyncio
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import msgspec

from idempotency.ports import Chance, Clock
from region_broker.controller import metadata_commands
from region_broker.controller.image_database import (
    ConnectSqlite,
    ImageDatabase,
    MetadataInDoubt,
    MetadataUnreadable,
    MetadataUnwritable,
    Stored,
    read_stored,
)
from region_broker.controller.metadata_commands import Command
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.metadata_machine import (
    MetadataMachine,
    decode_image,
    encode_command,
    encode_image,
    fold,
)
from region_broker.controller.raft.durable import RaftStore, check_owner
from region_broker.controller.raft.entries import LogIndex, Member, Membership, SnapshotPoint
from region_broker.controller.raft.failures import (
    Busy,
    Lost,
    NotLeader,
    RaftStoreDamaged,
    RaftStoreError,
    RaftStoreFailed,
    RaftStoreForeign,
    RaftStoreFull,
    Refused,
)
from region_broker.controller.raft.group_setup import GroupSetup
from region_broker.controller.raft.recovered import FOUNDED_TERM, Recovered, member_of, peek
from region_broker.controller.raft.settings import RaftSettings
from region_broker.controller.raft.shell import RaftGroup
from region_broker.controller.raft.snapshot_file import Piece
from region_broker.controller.unbroken import to_its_end
from region_broker.limits import MIB
from region_broker.ports.disk import Disk

_log: Final = logging.getLogger("tidemark.metadata")

QUORUM_FOLDER: Final = "quorum"
_FIRST: Final = (LogIndex(1), FOUNDED_TERM)
"""Where the snapshot stands that a log begins with: it came before all entries."""
_SETTINGS: Final = RaftSettings(payload_bytes_max=64 * MIB, uncommitted_bytes_max=80 * MIB)
"""A takeover names where it cuts each log: what the failover journal takes finds room here, or it would stop half way."""
_AFTER_A_RESTART: Final = "the metadata cannot be written, and whether the last change was is known after a restart: {why}"
_NOT_THIS_LOG: Final = (
    "{path} is what the log of the quorum had come to after entry {index} of term {term}, by member {member}, and {folder} {why}."
    " Give the whole data folder back as it was when the node stopped, all parts from one moment; or empty it: the node then"
    " joins the region that acts, and copies all from there."
)

_WITHOUT_LOG: Final = (
    "{path} was changed by a version of Tidemark that has no log of the quorum, after {folder} was begun: what is in that log"
    " was not in force then. Move {folder} away: a new log then begins with what the database holds. Or give the whole data"
    " folder back as it was when this version stopped last."
)


@dataclass(frozen=True, slots=True)
class Life:
    """Who opens a store, and with which ports."""

    member: Member
    disk: Disk
    clock: Clock
    chance: Chance


class MetadataStore:
    """Holds the image of one region; `open` before use, `run` meanwhile, `close` after."""

    def __init__(self, database: ImageDatabase, machine: MetadataMachine, group: RaftGroup) -> None:
        """Use `open`."""
        self._database = database
        self._machine = machine
        self._group = group
        self._image = machine.current
        self._write_lock = asyncio.Lock()
        self.failed = ""
        """Why no command is taken any more, empty while they are."""

    @classmethod
    async def open(
        cls, path: Path, life: Life, *, new_cluster_id: str, connect: ConnectSqlite | None = None
    ) -> Self:
        """Open or create the database at `path` and the log beside it; new ones belong to cluster `new_cluster_id`.

        Raises `MetadataUnreadable` where one of them is damaged, another's or newer than this code, `MetadataUnwritable` where
        the disk does not let them be opened.
        """
        async with AsyncExitStack() as given_up:
            database = await ImageDatabase.open(
                path, life.disk, new_cluster_id=new_cluster_id, connect=connect
            )
            given_up.push_async_callback(database.close)
            folder = path.with_name(QUORUM_FOLDER)
            machine = MetadataMachine(life.member, database)
            try:
                found = peek(life.disk, folder)
                check_log(path, folder, database.stored, found)
                _found(life, folder, database.stored.image)
                group = RaftGroup(_setup(life, folder), machine)
                given_up.callback(group.close)
                await group.begin()
            except (RaftStoreError, msgspec.MsgspecError, OSError) as error:
                raise _told(folder, error) from error
            given_up.pop_all()
        return cls(database, machine, group)

    @property
    def image(self) -> MetadataImage:
        """The image after the last command that became durable."""
        return self._image

    async def run(self) -> None:
        """Carry commands out until `close`; until this is called, who wants one does it itself."""
        try:
            await self._group.run()
        except RaftStoreFailed as error:
            self._fail(error)
            _log.error("no metadata is changed any more: %s", error)

    def stop(self) -> None:
        """Let `run` end."""
        self._group.stop()

    async def apply(self, command: Command) -> MetadataImage:
        """Apply one command durably and return the new image; raises `CommandRefused`, `MetadataUnwritable`.

        After `MetadataUnwritable` nothing has changed, unless it is `MetadataInDoubt`: then the next start shows it.
        """
        async with self._write_lock:
            metadata_commands.apply(self._image, command)  # INV-M6: refused here or nowhere
            if self.failed:
                raise MetadataInDoubt(_AFTER_A_RESTART.format(why=self.failed))
            try:
                await to_its_end(self._propose(command))
            finally:
                self._image = self._machine.current
            return self._image

    async def _propose(self, command: Command) -> None:
        try:
            await self._group.propose(encode_command(command))
        except (RaftStoreFull, Refused, Busy, NotLeader) as error:
            raise MetadataUnwritable(f"the metadata cannot be written: {error}") from error
        except (RaftStoreFailed, Lost) as error:  # known here, also where who asked is cancelled
            raise MetadataInDoubt(self._fail(error)) from error

    def _fail(self, error: Exception) -> str:
        """Take no command any more, for the first reason that is known; return it."""
        self.failed = self.failed or str(error)
        return _AFTER_A_RESTART.format(why=self.failed)

    async def close(self) -> None:
        """Close log and database."""
        self._group.close()
        await self._database.close()


def _setup(life: Life, folder: Path) -> GroupSetup:
    return GroupSetup(
        member=life.member, founders=Membership((life.member,)), disk=life.disk, folder=folder,
        clock=life.clock, chance=life.chance, settings=_SETTINGS,
    )  # fmt: skip


def _found(life: Life, folder: Path, image: MetadataImage) -> None:
    """Begin the log of a quorum of one with `image` as its snapshot, where there is none; a start that ended here goes on."""
    store, found = RaftStore.open(life.disk, folder, life.member)
    try:
        if found.snapshot is None:
            assert not found.entries, "a log of ours begins with a snapshot"
            snapshot = encode_image(image)
            store.expect_room(2 * len(snapshot))
            point = SnapshotPoint(*_FIRST, Membership((life.member,)))
            store.keep_piece(Piece(point, 0, snapshot, last=True))
    finally:
        store.close()


def check_log(
    path: Path, folder: Path, stored: Stored, found: tuple[Member, Recovered] | None
) -> None:
    """Raise `MetadataUnreadable` unless the log may be the one that made what is stored (INV-M13)."""
    if stored.position is None:
        if found is not None and not _has_been(stored.image, found[1]):
            raise MetadataUnreadable(_WITHOUT_LOG.format(path=path, folder=folder))
        return
    member, index, term = stored.position.member, stored.position.index, stored.position.term
    if found is None:
        why = "is not there"
    elif found[0] != member:
        why = f"is the log of member {found[0]}"
    elif found[1].last_index < index:
        why = f"ends at entry {found[1].last_index}"
    elif found[1].term_at(index) not in {None, term}:
        why = f"has an entry of term {found[1].term_at(index)} there"
    else:
        return
    raise MetadataUnreadable(
        _NOT_THIS_LOG.format(
            path=path, index=index, term=term, member=member, folder=folder, why=why
        )
    )


def _has_been(image: MetadataImage, found: Recovered) -> bool:
    """Return whether the log came to `image` once, or began later than that."""
    if found.snapshot is None or image.version == 0:
        return True
    past = decode_image(found.snapshot[1])
    if image.version < past.version:
        return True
    for entry in found.entries:
        if past.version == image.version:
            break
        past = fold(past, [entry])
    return past == image


def _told(folder: Path, error: Exception) -> Exception:
    """Return what a start says of an error of the log."""
    if isinstance(error, RaftStoreDamaged | RaftStoreForeign):
        return MetadataUnreadable(str(error))
    if isinstance(error, msgspec.MsgspecError):
        return MetadataUnreadable(
            f"{folder} holds what this version does not know ({error}): it was written by a newer one. Upgrade this node, or"
            " give it another data_dir."
        )
    return MetadataUnwritable(
        f"{folder} cannot be opened ({error}): that is no damage. Give the disk room, or mend it or its rights, and start the"
        " node again."
    )


def stored_image(path: Path, disk: Disk, member: Member | None = None) -> MetadataImage | None:
    """Return what the metadata at `path` came to, and change nothing; raises `MetadataUnreadable`, `MetadataUnwritable`.

    None where there is none yet, or one that a start would first migrate or recover. `member`: whose log it has to be.
    """
    stored = read_stored(path)
    if stored is None:
        return None
    folder = path.with_name(QUORUM_FOLDER)
    try:
        found = peek(disk, folder)
        check_log(path, folder, stored, found)
        if found is not None and member is not None:
            check_owner(folder, found[0], member)
        if found is None or found[1].snapshot is None:
            return stored.image
        return fold(decode_image(found[1].snapshot[1]), found[1].entries)
    except (RaftStoreError, msgspec.MsgspecError, OSError) as error:
        raise _told(folder, error) from error


def incarnation_of(path: Path, disk: Disk) -> UUID | None:
    """Return the incarnation of whose log lies beside the database at `path`; None if there is none.

    Raises `MetadataUnreadable`, `MetadataUnwritable`.
    """
    folder = path.with_name(QUORUM_FOLDER)
    try:
        member = member_of(disk, folder)
    except (RaftStoreError, OSError) as error:
        raise _told(folder, error) from error
    return None if member is None else member.incarnation
