"""The journal at work: blocks go into one half while the logs of the other are synced.

INV-JN1  a group's block is written and synced before anything in it is acknowledged; blocks are synced one after
        the other, in the order of their numbers
INV-JN2  a half is written over only when every log with bytes in it has them synced in its own file, or was cut
        or closed since
INV-JN3  after a failed write or sync of the journal no block is written in this life, and nothing is retried;
        the logs of that group stop, the others sync their own files from then on
A number is given out on the loop before its block is written: whoever notes `mark` and makes that durable has fenced
every block that was begun.

Not here: the bytes (`blocks`), the start (`replay`), what goes in and when (`group_commit`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from region_broker.log.indexes.checked_file import JournalMark
from region_broker.log.journal.blocks import (
    ENTRIES_MAX,
    Head,
    Piece,
    block_bytes,
    encode_block,
    has_look_alikes,
)
from region_broker.log.journal.sync_job import SyncTarget
from region_broker.ports.disk import DiskFile

logger: Final = logging.getLogger(__name__)

BLOCK_BYTES_MAX: Final = 256 * 1024
PIECE_BYTES_MAX: Final = 64 * 1024


@dataclass(frozen=True, slots=True)
class JournalBlock:
    """One block on its way; run in a thread or on the loop."""

    file: DiskFile
    position: int
    data: bytes
    seals: tuple[()] = ()

    @property
    def size_bytes(self) -> int:
        """How much is written."""
        return len(self.data)

    def start_writeback(self) -> None:
        """Nothing is written before `run`."""

    def run(self) -> OSError | None:
        """Write and sync; return the error instead of raising it. Never called twice."""
        try:
            self.file.pwrite(self.position, self.data)
            self.file.fdatasync()
        except OSError as error:
            return error
        return None


@dataclass(slots=True)
class _Half:
    start: int
    used_bytes: int = 0
    logs: dict[SyncTarget, tuple[int, int]] = field(default_factory=dict)
    """What each log has in here: generation, and the offset behind it."""

    def waiting(self) -> list[SyncTarget]:
        """Return the logs whose files lag behind this half; the others are forgotten."""
        self.logs = {log: until for log, until in self.logs.items() if not log.in_file(*until)}
        return list(self.logs)


class Journal:
    """See the module's head. Belongs to the event loop."""

    def __init__(self, file: DiskFile, head: Head, *, last_number: int = 0) -> None:
        """Use a file without blocks of `head`'s life; or, to be stopped at once, one with `last_number` of them."""
        self.failed: str | None = None
        self._file = file
        self._head = head
        self._number = last_number
        self._halves = tuple(_Half(start) for start in head.starts)
        self._turn = 0

    @property
    def mark(self) -> JournalMark:
        """The last block that was begun."""
        return JournalMark(self._head.serial, self._number)

    @property
    def _half(self) -> _Half:
        return self._halves[self._turn]

    def begin(self, logs: Sequence[SyncTarget], pieces: Sequence[Piece]) -> JournalBlock | None:
        """Return the next block with one piece of each log; None if the logs must be synced themselves."""
        if self.failed is not None or len(pieces) > ENTRIES_MAX:
            return None
        needed_bytes = block_bytes(len(pieces), sum(piece.size_bytes for piece in pieces))
        if not self._has_room(needed_bytes):
            return None
        half = self._half
        data = encode_block(self._head.serial, self._number + 1, pieces)
        assert len(data) == needed_bytes
        if has_look_alikes(data):
            return None
        self._number += 1
        block = JournalBlock(self._file, half.start + half.used_bytes, data)
        half.used_bytes += needed_bytes
        for log, piece in zip(logs, pieces, strict=True):
            half.logs[log] = (log.generation, piece.next_offset)
        return block

    def _has_room(self, needed_bytes: int) -> bool:
        if self._half.used_bytes + needed_bytes <= self._head.half_bytes:
            return True
        other = self._halves[1 - self._turn]
        if other.waiting() or needed_bytes > self._head.half_bytes:
            return False
        other.used_bytes = 0
        self._turn = 1 - self._turn
        return True

    def stop(self, reason: str) -> None:
        """Begin no block any more in this life, loudly (INV-JN3)."""
        if self.failed is None:
            self.failed = f"{reason}; appends are synced log by log until the node restarts"
            logger.error("the journal is not used: %s", self.failed)

    def lagging(self) -> list[SyncTarget]:
        """Return the logs whose files must be synced so that the journal can go on (INV-JN2)."""
        if self.failed is not None:
            return list(dict.fromkeys(log for half in self._halves for log in half.waiting()))
        return self._halves[1 - self._turn].waiting()

    def close(self) -> None:
        """Close the file; say in it that the next start need not read it, if that is so. OSError of the disk."""
        try:
            if self.failed is None and not any(half.waiting() for half in self._halves):
                Head(self._head.serial + 1, self._head.half_bytes, closed=True).write(self._file)
        finally:
            self._file.close()
