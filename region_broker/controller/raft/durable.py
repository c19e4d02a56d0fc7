"""What a member must not forget, in one folder: hard state, log and snapshot.

INV-RT1  `persist` returns once all that it was given is on stable storage, as one frame with one sync: after a crash, all
         of it is there or nothing
INV-RT3  after an error of a write or a sync that leaves anything in doubt, the store is closed for good (INV-DK3); a new
         one is opened from what the disk holds
INV-RT4  a full disk leaves the store as it was, and usable: room for what comes is taken before it is needed
         (`make_room`), so that nobody has to take back what a core has decided already
INV-RT5  a snapshot is in force before anything of the log goes that it holds; a log that is not the snapshot's (the
         power went between the two, while a leader's snapshot was installed) is dropped at the next start
INV-RT6  what a start read last is written and synced once more before it counts: a process whose sync failed may have
         ended, and left it in the page cache alone (INV-DK3, INV-DK6)

The log's file grows by `ROOM_BYTES` of zeros, and is written anew, beside the old one, when the log's beginning is
dropped, or most of it is outdated.
Not here: what the files look like (`log_file`, `snapshot_file`), what the frames come to (`log_content`), who calls when
(`shell`); where the incarnation of an empty folder comes from: it is drawn whenever `member_of` finds nobody.
"""

import errno
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NoReturn, Self

import msgspec

from region_broker.controller.raft.effects import Persist
from region_broker.controller.raft.entries import (
    LogIndex,
    Member,
    SnapshotPoint,
)
from region_broker.controller.raft.failures import (
    RaftStoreFailed,
    RaftStoreForeign,
    RaftStoreFull,
)
from region_broker.controller.raft.log_content import Change, LogContent, merged
from region_broker.controller.raft.log_file import (
    encode_frame,
    encode_head,
)
from region_broker.controller.raft.recovered import (
    LOG_NAME,
    Recovered,
    goes_on,
    member_of,
    read_log,
    whole_image,
)
from region_broker.controller.raft.snapshot_file import (
    LEADERS_NAME,
    OWN_NAME,
    Piece,
    SnapshotReader,
    SnapshotWriter,
    drop_partial,
    open_snapshot,
)
from region_broker.ports.disk import TEMPORARY_SUFFIX, Disk, DiskFile

logger: Final = logging.getLogger(__name__)

ROOM_BYTES: Final = 64 * 1024
"""How much the file grows by at least: many votes fit into it while the disk is full."""
OUTDATED_BYTES_MIN: Final = 1024 * 1024
OUTDATED_FACTOR: Final = 4
"""A file that is larger by this factor than when it was written anew is written anew."""
CHANGE_BYTES_MAX: Final = 512
"""What a `Persist` takes at most besides its entries: hard state, index of the cut, and the frame."""
ENTRY_BYTES_MAX: Final = 96
"""What an entry takes at most besides its payload."""
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})


class RaftStore:
    """One member's folder. One call at a time; all of them may wait for the disk."""

    def __init__(self, disk: Disk, folder: Path, member: Member) -> None:
        """See `open`."""
        self._disk = disk
        self._folder = folder
        self._member = member
        self._path = folder / LOG_NAME
        self._failed: str | None = None
        self._log = LogContent.empty()
        self._end = self._room_end = self._rewritten_bytes = 0
        self._file: DiskFile | None = None
        self._writer: SnapshotWriter | None = None
        self._reader: SnapshotReader | None = None

    # -- opening ---------------------------------------------------------------------------------

    @classmethod
    def open(cls, disk: Disk, folder: Path, member: Member) -> tuple[Self, Recovered]:
        """Open the folder of `member`, made if it is nobody's, and return what it holds.

        Raises RaftStoreForeign, RaftStoreDamaged, RaftStoreFull, RaftStoreFailed.
        """
        store = cls(disk, folder, member)
        try:
            with store._working("opening"):
                return store, store._recover()
        except BaseException:
            store.close()
            raise

    def _recover(self) -> Recovered:
        self._disk.make_dirs(self._folder)
        owner = member_of(self._disk, self._folder)
        if owner is None:  # a new member: its file has its name once its head is durable
            self._replace_log(encode_head(self._member))
        else:
            check_owner(self._folder, owner, self._member)
        drop_partial(self._disk, self._folder)
        self._disk.fsync_dir(self._folder)  # INV-DK6; a file has its name when it is durable
        self._file = self._disk.open(self._path)
        self._read_log(self._file)
        return self._join_snapshot()

    def _read_log(self, file: DiskFile) -> None:
        data = file.pread(file.size(), 0)
        self._log, frames = read_log(self._member, data, self._path)
        last_at = frames.payloads[-1][0] if frames.payloads else frames.end
        file.truncate(frames.end)
        file.pwrite(last_at, data[last_at : frames.end])  # INV-RT6
        file.fdatasync()
        self._end = self._room_end = self._rewritten_bytes = frames.end

    def _join_snapshot(self) -> Recovered:
        """Bring the log in line with the snapshot (INV-RT5), and return both."""
        log = self._log
        self._reader = open_snapshot(self._disk, self._folder)
        if self._reader is None:
            assert goes_on(log, None, self._path), "INV-RT5"
            return Recovered(log.hard_state, None, tuple(log.entries))
        point = self._reader.point
        if goes_on(log, point, self._path):
            log.drop(point.index)
        else:
            self._append(_restart(point))
        return Recovered(log.hard_state, (point, whole_image(self._reader)), tuple(log.entries))

    # -- the log ---------------------------------------------------------------------------------

    def has_room(self, size_bytes: int) -> bool:
        """Return whether `make_room` would have nothing to do."""
        return self._end + size_bytes <= self._room_end

    def make_room(self, size_bytes: int) -> None:
        """Take room for that many bytes of one frame now; raises RaftStoreFull, and then nothing is changed (INV-RT4).

        See `CHANGE_BYTES_MAX` and `ENTRY_BYTES_MAX`.
        """
        with self._working("taking room in"):
            if self._end > max(OUTDATED_FACTOR * self._rewritten_bytes, OUTDATED_BYTES_MIN):
                self._rewrite()
            missing = self._end + size_bytes - self._room_end
            if missing > 0:
                self._write_zeros(max(missing, ROOM_BYTES))

    def _write_zeros(self, size_bytes: int) -> None:
        with self._room_or_back(self._room_end):
            self._log_file().pwrite(self._room_end, bytes(size_bytes))
        self._room_end += size_bytes

    def persist(self, wanted: Sequence[Persist]) -> None:
        """Make all of it durable, as if one after the other (INV-RT1).

        Raises RaftStoreFull: nothing was changed (it cannot be for want of room that `make_room` took, unless the file
        system never writes a block twice); RaftStoreFailed.
        """
        with self._working("writing"):
            self._append(merged(wanted))

    def _append(self, change: Change) -> None:
        complaint = self._log.complaint(change)
        # INV-RE1, INV-RT2
        assert complaint is None, complaint
        frame = encode_frame(self._member, self._end, msgspec.msgpack.encode(change))
        with self._room_or_back(self._end):
            self._log_file().pwrite(self._end, frame)
        self._log_file().fdatasync()
        self._end += len(frame)
        self._room_end = max(self._room_end, self._end)
        self._log.apply(change)

    @contextmanager
    def _room_or_back(self, end: int) -> Iterator[None]:
        """If what is written does not fit, cut the file to `end`; if that cannot be done, the store has failed."""
        try:
            yield
        except OSError as error:
            if error.errno not in _FULL:
                raise
            self._log_file().truncate(end)
            self._room_end = end
            raise RaftStoreFull(f"{self._path} has no room: {error}") from error

    def drop_log(self, up_to: LogIndex) -> None:
        """Let the log go up to an index that the snapshot holds (INV-RT5); its bytes, if it can be written anew."""
        assert up_to <= self._snapshot().point.index, (up_to, self._snapshot().point)
        with self._working("writing anew"):
            self._log.drop(up_to)
            self._rewrite()

    def _rewrite(self) -> None:
        """Write the log anew, with the room that was taken behind it, if the disk has room for that beside the old one."""
        content = encode_head(self._member)
        for change in self._log.changes():
            content += encode_frame(self._member, len(content), msgspec.msgpack.encode(change))
        room = bytes(self._room_end - self._end)  # somebody may count on it (INV-RT4)
        try:
            self._replace_log(content + room)
        except RaftStoreFull as error:
            logger.warning("the quorum's log keeps bytes that nobody needs: %s", error)
            return
        old, self._file = self._log_file(), self._disk.open(self._path)
        old.close()
        self._end = self._rewritten_bytes = len(content)
        self._room_end = len(content) + len(room)

    def _replace_log(self, content: bytes) -> None:
        """Put a new file in the log's place, durably; RaftStoreFull: the old one is as it was."""
        beside = self._path.with_name(LOG_NAME + TEMPORARY_SUFFIX)
        if self._disk.exists(beside):
            self._disk.remove(beside)
        try:
            file = self._disk.open(beside, create=True)
            try:
                file.pwrite(0, content)
                file.fdatasync()
            finally:
                file.close()
        except OSError as error:
            if error.errno not in _FULL:
                raise
            raise RaftStoreFull(f"{beside} has no room: {error}") from error
        self._disk.rename(beside, self._path)
        self._disk.fsync_dir(self._folder)

    # -- the snapshot ----------------------------------------------------------------------------

    def keep_snapshot(self, point: SnapshotPoint, image: bytes) -> None:
        """Put the state machine's image at `point` in force; the log stays, see `drop_log`.

        Raises RaftStoreFull: the snapshot before stays in force; RaftStoreFailed.
        """
        assert self._log.term_at(point.index) == point.term, (point, self._log.start_index)
        with self._working("keeping a snapshot in"):
            writer: SnapshotWriter | None = None
            try:
                writer = SnapshotWriter(self._disk, self._folder, point, OWN_NAME)
                writer.write(image)
                writer.finish()
            except OSError as error:
                if writer is not None:
                    writer.close()
                if error.errno not in _FULL:
                    raise
                if writer is not None:
                    writer.drop()
                raise RaftStoreFull(f"no room for a snapshot in {self._folder}: {error}") from error
            self._put_in_place(writer)

    def expect_room(self, size_bytes: int) -> None:
        """Raise RaftStoreFull unless the volume has that much room: for a piece that is not handed to the core else."""
        with self._working("asking for the room of"):
            free_bytes = self._disk.volume_bytes(self._folder)[1]
        if free_bytes < size_bytes:
            raise RaftStoreFull(f"{free_bytes} bytes are free in {self._folder}, not {size_bytes}")

    def keep_piece(self, piece: Piece) -> None:
        """Write a piece of a leader's snapshot; the last one puts it in force, and drops the whole log.

        Raises RaftStoreFailed, for want of room, too: the core is already behind it. Ask `expect_room` before.
        """
        with self._working("keeping a leader's snapshot in"):
            writer = self._writer
            if piece.position == 0:
                writer = self._begin_leaders(piece.point)
            assert writer is not None, piece.point
            assert writer.point == piece.point, (writer.point, piece.point)
            assert writer.have_bytes == piece.position, (writer.have_bytes, piece.position)
            writer.write(piece.data)
            if piece.last:
                writer.finish()
                self._writer = None
                self._put_in_place(writer)
                self._follow_snapshot(piece.point)

    def _follow_snapshot(self, point: SnapshotPoint) -> None:
        try:
            self._append(_restart(point))
        except RaftStoreFull as error:
            self._fail("dropping the log behind a snapshot in", error)
        self._rewrite()

    def read_piece(self, position: int, size_bytes: int) -> Piece:
        """Return a piece of the snapshot in force, from its beginning where it does not reach `position`."""
        with self._working("reading the snapshot of"):
            return self._snapshot().read(position, size_bytes)

    def image(self) -> bytes:
        """Return the whole snapshot in force."""
        with self._working("reading the snapshot of"):
            return whole_image(self._snapshot())

    def _begin_leaders(self, point: SnapshotPoint) -> SnapshotWriter:
        if self._writer is not None:
            writer, self._writer = self._writer, None
            writer.close()
        self._writer = SnapshotWriter(self._disk, self._folder, point, LEADERS_NAME)
        return self._writer

    def _put_in_place(self, writer: SnapshotWriter) -> None:
        writer.put_in_place()
        old, self._reader = self._reader, open_snapshot(self._disk, self._folder)
        if old is not None:
            old.close()

    # -- failing ---------------------------------------------------------------------------------

    @contextmanager
    def _working(self, what: str) -> Iterator[None]:
        """Do nothing once something has failed; what fails in here closes the store for good (INV-RT3)."""
        if self._failed is not None:
            raise RaftStoreFailed(self._failed)
        try:
            yield
        except OSError as error:
            self._fail(what, error)

    def _fail(self, what: str, error: Exception) -> NoReturn:
        self._failed = (
            f"{what} {self._folder} failed ({error}). This process writes nothing more there: a sync that failed is not tried"
            " again. Mend the disk, and start the node again; what was durable is read back then."
        )
        raise RaftStoreFailed(self._failed) from error

    def _log_file(self) -> DiskFile:
        assert self._file is not None, "opened first"
        return self._file

    def _snapshot(self) -> SnapshotReader:
        assert self._reader is not None, "there is no snapshot"
        return self._reader

    def close(self) -> None:
        """Close all files; what is durable stays."""
        for held in (self._file, self._reader, self._writer):
            if held is not None:
                held.close()
        self._failed = self._failed or f"{self._folder} is closed"


def check_owner(folder: Path, owner: Member, member: Member) -> None:
    """Raise RaftStoreForeign unless the folder of `owner` is that of `member`."""
    if owner != member:
        raise RaftStoreForeign(
            f"{folder} is the folder of member {owner}, and {member} was to be started on it: folders were"
            " exchanged or copied, or the node's id was changed. Give each node its own folder back; or empty this one,"
            " and let the node join as a new member."
        )


def _restart(point: SnapshotPoint) -> Change:
    return Change((point.index, point.term), None, None, ())
