"""What the files of a member's folder come to, read without a change to any of them.

Not here: mending what a crash left, writing (`durable`); what the files look like (`log_file`, `snapshot_file`).
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from region_broker.controller.raft.entries import (
    BEFORE_FIRST,
    NO_TERM,
    Entry,
    HardState,
    LogIndex,
    Member,
    SnapshotPoint,
    Term,
)
from region_broker.controller.raft.failures import RaftStoreDamaged
from region_broker.controller.raft.log_content import DECODER, LogContent
from region_broker.controller.raft.log_file import HEAD_BYTES, Frames, decode_head, read_frames
from region_broker.controller.raft.snapshot_file import (
    SNAPSHOT_NAME,
    SnapshotReader,
    open_snapshot,
)
from region_broker.ports.disk import Disk

LOG_NAME: Final = "log"
FOUNDED_TERM: Final = Term(1)
"""That of a snapshot which a log begins with, before anybody voted."""
_IMAGE_STEP_BYTES: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a member was when it stopped; `entries` begin behind the snapshot, or at 1."""

    hard_state: HardState
    snapshot: tuple[SnapshotPoint, bytes] | None
    entries: tuple[Entry, ...]

    @property
    def last_index(self) -> LogIndex:
        """The index of the last entry, or that of the snapshot."""
        return self.entries[-1].index if self.entries else self._start[0]

    def term_at(self, index: LogIndex) -> Term | None:
        """Return the term of the entry at `index`, or where the snapshot stands; None where neither says it."""
        start, term = self._start
        if index == start:
            return term
        return self.entries[index - start - 1].term if start < index <= self.last_index else None

    @property
    def _start(self) -> tuple[LogIndex, Term]:
        if self.snapshot is None:
            return BEFORE_FIRST, NO_TERM
        return self.snapshot[0].index, self.snapshot[0].term


def member_of(disk: Disk, folder: Path) -> Member | None:
    """Return whose folder it is; None if nobody's: then draw an incarnation. Raises RaftStoreDamaged, OSError."""
    path = folder / LOG_NAME
    if disk.exists(path):
        return decode_head(disk.read_file(path)[:HEAD_BYTES], path)
    if disk.exists(folder / SNAPSHOT_NAME):
        raise RaftStoreDamaged(path, 0, "it is missing, and the snapshot beside it is there")
    return None


def read_log(member: Member, data: bytes, path: Path) -> tuple[LogContent, Frames]:
    """Return what a whole log file holds, as content and as frames; raises RaftStoreDamaged."""
    log = LogContent.empty()
    frames = read_frames(member, data, path)
    for at, payload in frames.payloads:
        try:
            change = DECODER.decode(payload)
        except msgspec.MsgspecError as error:
            reason = f"a frame that this version does not know ({error})"
            raise RaftStoreDamaged(path, at, reason) from error
        complaint = log.complaint(change)
        if complaint is not None:
            raise RaftStoreDamaged(path, at, f"a frame with {complaint}")
        log.apply(change)
    return log, frames


def goes_on(log: LogContent, point: SnapshotPoint | None, path: Path) -> bool:
    """Return whether a log is that of the snapshot beside it; if not, it is an older one, to be dropped (INV-RT5).

    Raises RaftStoreDamaged where the snapshot that the log starts behind is not there, or the log has not heard of its term.
    """
    if point is None:
        if log.start_index != BEFORE_FIRST:
            reason = f"the log starts behind {log.start_index}, and there is no snapshot"
            raise RaftStoreDamaged(path, HEAD_BYTES, reason)
        return True
    if point.index < log.start_index or (
        point.index == log.start_index and point.term != log.start_term
    ):
        reason = f"the log starts behind {log.start_index}, and the snapshot is at {point.index}"
        raise RaftStoreDamaged(path, HEAD_BYTES, reason)
    if point.term > max(log.hard_state.term, FOUNDED_TERM):
        reason = f"the log knows of no term behind {log.hard_state.term}, and the snapshot is of term {point.term}"
        raise RaftStoreDamaged(path, HEAD_BYTES, reason)
    return log.term_at(point.index) == point.term


def whole_image(reader: SnapshotReader) -> bytes:
    """Return all bytes of a snapshot; raises OSError."""
    parts: list[bytes] = []
    position, last = 0, False
    while not last:
        piece = reader.read(position, _IMAGE_STEP_BYTES)
        parts.append(piece.data)
        position, last = position + len(piece.data), piece.last
    return b"".join(parts)


def peek(disk: Disk, folder: Path) -> tuple[Member, Recovered] | None:
    """Return whose folder it is and what a start would find in it; None if it is nobody's. Changes nothing.

    A member may run on it: the log is read before the snapshot, which is put in force before anything of the log goes.
    Raises RaftStoreDamaged, OSError.
    """
    member = member_of(disk, folder)
    if member is None:
        return None
    path = folder / LOG_NAME
    log, _ = read_log(member, disk.read_file(path), path)
    reader = open_snapshot(disk, folder)
    try:
        point = reader.point if reader is not None else None
        if not goes_on(log, point, path):
            log.entries.clear()
        elif point is not None:
            log.drop(point.index)
        snapshot = (reader.point, whole_image(reader)) if reader is not None else None
    finally:
        if reader is not None:
            reader.close()
    return member, Recovered(log.hard_state, snapshot, tuple(log.entries))
