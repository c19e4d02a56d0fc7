"""How cleaned segments take the place of others, in one durable step, and how far a log has been cleaned.

    <base>.log.cleaned, .index.cleaned, .txnindex.cleaned    synced before anything names them
    <offset>.snapshot.cleaned                                the state there, until it is known that it counts
    swap                                                     the durable step: from here on the new ones count
    cleaned                                                  where holes may lie, and up to where it is clean
    dropped                                                  below what tombstones, or markers, have gone

INV-CLS1  a crash at any point leaves the old segments or the new one: `swap` is done again at the next start if it is
         there, else what is called `.cleaned` is removed
INV-CLS2  before anything else changes which segments there are, a swap under way is either given up or finished, and its
         `swap` file is durably gone: done again later it would remove segments that came after. What failed of that is
         done again before the next cleaning
INV-CLS4  at most one at a time writes segments of a log anew, the cleaner or the mender: both name their files alike
INV-CLS3  offsets are missing only below `holes_below`, which is durable before the first of them is
INV-CLS5  tombstones, and markers that stood alone, have gone only below `dropped_below`, which is durable before the first of them goes, here or
         in the log that this one was copied from. A version that does not know of it leaves another `cleaned` than `dropped` was written beside:
         then that is not believed, and any of them may have gone below `holes_below`

Not here: what is kept (`rewriting`).
"""

import logging
import struct
import threading
from dataclasses import astuple, dataclass, replace
from enum import Enum, auto
from pathlib import Path
from typing import Final

from region_broker.log.failures import CutIntoCleaned
from region_broker.log.file_names import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SNAPSHOT_SUFFIX,
    file_name,
)
from region_broker.log.indexes.checked_file import FrameError, pack_frame, unpack_frame
from region_broker.log.indexes.producer_snapshots import remove_below
from region_broker.ports.disk import Disk

logger: Final = logging.getLogger(__name__)

SWAP_NAME: Final = "swap"
MARK_NAME: Final = "cleaned"
DROPPED_NAME: Final = "dropped"
CLEANED_SUFFIX: Final = ".cleaned"
DIGEST_SUFFIX: Final = ".hdr"
SEGMENT_SUFFIXES: Final = (ABORTED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX)
_SWAP_MAGIC: Final = b"TMSW"
_MARK_MAGIC: Final = b"TMCL"
_DROPPED_MAGIC: Final = b"TMDR"
_VERSION: Final = 1
_OFFSET: Final = struct.Struct(">q")
_MARK: Final = struct.Struct(">qqq")
_DROPPED: Final = struct.Struct(">qqqq")
"""The mark that it was written beside, and its own."""


@dataclass(frozen=True, slots=True)
class Swap:
    """The cleaned segment `bases[0]` takes the place of all segments of `bases`."""

    bases: tuple[int, ...]

    def encode(self) -> bytes:
        """Return the content of the swap file."""
        return pack_frame(_SWAP_MAGIC, _VERSION, b"".join(map(_OFFSET.pack, self.bases)))


@dataclass(frozen=True, slots=True)
class CleanMark:
    """Offsets may be missing below `holes_below`; no key has two values below `first_dirty_offset`.

    Below `cleaned_here_below` this region itself removed what records up to there superseded: without those, it has
    lost both. What a mirror copied with holes is not so: the log it came from has the rest. Below `dropped_below` tombstones
    and markers may have gone: what they told of lies in no copy that was made since, but may lie in one from before.
    """

    first_dirty_offset: int = 0
    cleaned_here_below: int = 0
    holes_below: int = 0
    dropped_below: int = 0


NEVER_CLEANED: Final = CleanMark()


class _Stage(Enum):
    NONE = auto()
    PREPARED = auto()
    APPLIED = auto()


class CleaningState:
    """The swap under way and the mark of one log. Its lock keeps a run's thread apart from what changes the log."""

    def __init__(self, disk: Disk, folder: Path, mark: CleanMark) -> None:
        """Go on from a durable mark."""
        self._disk = disk
        self._folder = folder
        self._lock = threading.Lock()
        self._stage = _Stage.NONE
        self._swap: Swap | None = None
        self._is_taken = False
        self.mark = mark
        self.drops = 0
        """Grows with each segment that takes the place of others without tombstones or markers that these had."""
        self.interruptions = 0
        """Grows whenever the log was cut, shortened or closed: a run that began before is void."""
        self.given_up = False
        """Whether the cleaner met something in it that nobody thought of (INV-CLN4)."""

    def take(self) -> bool:
        """On the event loop: keep others from writing segments of this log anew until `release`; False if one does
        (INV-CLS4)."""
        was_taken, self._is_taken = self._is_taken, True
        return not was_taken

    def release(self) -> None:
        """Let others write segments anew."""
        self._is_taken = False

    @property
    def holes_below(self) -> int:
        """Below it offsets may be missing."""
        return self.mark.holes_below

    @property
    def dropped_below(self) -> int:
        """Below it tombstones and markers may have gone (INV-CLS5)."""
        return self.mark.dropped_below

    def check_cut(self, offset: int) -> None:
        """Raise CutIntoCleaned if a cut at `offset` would lose values with what took their place."""
        if offset < self.mark.cleaned_here_below:
            raise CutIntoCleaned(
                f"{self._folder} was compacted up to {self.mark.cleaned_here_below} and cannot be cut at {offset}: stop "
                "the node, remove that folder, and it is copied again from the primary region"
            )

    def note(self, mark: CleanMark, interruptions: int | None = None) -> bool:
        """Move a mark on, durably, unless the log was interrupted since; tell which. Each offset is the higher of what it was and is
        to be: a run and what is copied meanwhile note theirs beside each other. Raises OSError."""
        with self._lock:
            if interruptions not in (None, self.interruptions):
                return False
            mark = CleanMark(*map(max, astuple(self.mark), astuple(mark)))
            *known, dropped_below = astuple(mark)
            frame = pack_frame(_MARK_MAGIC, _VERSION, _MARK.pack(*known))
            self._disk.write_file_atomic(self._folder / MARK_NAME, frame)
            frame = pack_frame(_DROPPED_MAGIC, _VERSION, _DROPPED.pack(*known, dropped_below))
            self._disk.write_file_atomic(self._folder / DROPPED_NAME, frame)
            self.mark = mark
            return True

    def forget_snapshots(self, below: int, interruptions: int) -> bool:
        """Remove those below an offset, unless the log was interrupted since; tell which. Raises OSError.

        Batches that made them true are about to go: a marker behind them, when its transaction has left nothing.
        """
        with self._lock:
            if interruptions != self.interruptions:
                return False
            remove_below(self._disk, self._folder, below)
            return True

    def prepare(self, swap: Swap, interruptions: int) -> bool:
        """The durable step: from here on a crash ends with the new segment.

        Nothing is done, and False returned, if the log was interrupted since. Raises OSError.
        """
        with self._lock:
            if interruptions != self.interruptions:
                return False
            assert self._stage is _Stage.NONE, self._stage
            self._disk.write_file_atomic(self._folder / SWAP_NAME, swap.encode())
            self._swap = swap
            self._stage = _Stage.PREPARED
            return True

    def apply(self, swap: Swap) -> bool:
        """Let names follow, a few renames; False if this swap was given up meanwhile. Raises OSError."""
        with self._lock:
            if self._stage is not _Stage.PREPARED or self._swap is not swap:
                return False
            _apply(self._disk, self._folder, swap)
            self._stage = _Stage.APPLIED
            return True

    def settle(self) -> None:
        """Durably end the swap under way: give it up unless it was applied. Raises OSError."""
        with self._lock:
            self._settle()

    def _settle(self) -> None:
        if self._stage is _Stage.NONE:
            return
        if self._stage is _Stage.APPLIED:
            self._disk.fsync_dir(self._folder)
        if self._disk.exists(self._folder / SWAP_NAME):  # else removed, and not yet durably
            self._disk.remove(self._folder / SWAP_NAME)
        self._disk.fsync_dir(self._folder)
        self._stage = _Stage.NONE
        self._swap = None

    def interrupt(self) -> None:
        """Settle, and make void what a run has prepared: the log is about to change. Raises OSError."""
        with self._lock:
            self.interruptions += 1
            self._settle()

    def void(self) -> None:
        """Make void what a run has prepared, and wait for no thread: the log is left, and `interrupt` settles what is kept of it."""
        self.interruptions += 1

    def keep_snapshot(self, offset: int, data: bytes, interruptions: int) -> bool:
        """Durably keep the state at `offset`, unless the log was interrupted since; tell which. Raises OSError.

        A snapshot of a history that was cut off must not take its name, where it could be believed (INV-NP3).
        """
        path = self._folder / file_name(offset, SNAPSHOT_SUFFIX)
        return self.keep_file(path, data, interruptions)

    def keep_file(self, path: Path, data: bytes, interruptions: int) -> bool:
        """Durably give a file beside the segments this content, unless the log was interrupted since; tell which.

        Raises OSError.
        """
        self._disk.write_file_atomic(cleaned_path(path), data)
        with self._lock:
            if interruptions != self.interruptions:
                self._disk.remove(cleaned_path(path))
                return False
            self._disk.rename(cleaned_path(path), path)
            self._disk.fsync_dir(self._folder)
            return True

    def forget(self) -> None:
        """Start without holes, durably: the log has been emptied. Raises OSError."""
        with self._lock:
            found = [
                path
                for path in (self._folder / MARK_NAME, self._folder / DROPPED_NAME)
                if self._disk.exists(path)
            ]
            for path in found:
                self._disk.remove(path)
            if found:
                self._disk.fsync_dir(self._folder)
            self.mark = NEVER_CLEANED


def read_mark(disk: Disk, folder: Path) -> CleanMark:
    """Return the mark of a log, that of a log never cleaned if there is none.

    Raises FrameError if it is damaged: without it, holes could not be told from losses.
    """
    path = folder / MARK_NAME
    if not disk.exists(path):
        return NEVER_CLEANED
    try:
        mark = CleanMark(*_MARK.unpack(unpack_frame(_MARK_MAGIC, _VERSION, disk.read_file(path))))
    except struct.error as error:
        raise FrameError(f"{path}: {error}") from error
    return replace(mark, dropped_below=_read_dropped(disk, folder, mark))


def _read_dropped(disk: Disk, folder: Path, mark: CleanMark) -> int:
    """Return below which offset tombstones and markers may have gone (INV-CLS5): at most where holes are, or may have been copied."""
    path = folder / DROPPED_NAME
    if not disk.exists(path):
        return mark.holes_below
    try:
        payload = unpack_frame(_DROPPED_MAGIC, _VERSION, disk.read_file(path))
        *beside, dropped_below = _DROPPED.unpack(payload)
    except (FrameError, struct.error) as error:
        logger.warning("%s is not believed: %s", path, error)
        return mark.holes_below
    is_believed = tuple(beside) == astuple(mark)[: len(beside)]
    return int(dropped_below if is_believed else max(dropped_below, mark.holes_below))


def finish_swap(disk: Disk, folder: Path) -> None:
    """At a start: do what `swap` says, remove what nothing names (INV-CLS1). Raises OSError, FrameError."""
    names = disk.list_dir(folder)
    if SWAP_NAME in names:
        payload = unpack_frame(_SWAP_MAGIC, _VERSION, disk.read_file(folder / SWAP_NAME))
        bases = tuple(base for (base,) in _OFFSET.iter_unpack(payload))
        _apply(disk, folder, Swap(bases))
        disk.fsync_dir(folder)
        disk.remove(folder / SWAP_NAME)
        disk.fsync_dir(folder)
    for name in disk.list_dir(folder):
        if name.endswith(CLEANED_SUFFIX):
            disk.remove(folder / name)


def _apply(disk: Disk, folder: Path, swap: Swap) -> None:
    first, *others = swap.bases
    for suffix in SEGMENT_SUFFIXES:
        path = folder / file_name(first, suffix)
        cleaned = cleaned_path(path)
        if disk.exists(cleaned):
            disk.rename(cleaned, path)
    stale = [folder / file_name(first, DIGEST_SUFFIX)]
    stale += [
        folder / file_name(base, suffix)
        for base in others
        for suffix in (*SEGMENT_SUFFIXES, DIGEST_SUFFIX)
    ]
    for path in stale:
        if disk.exists(path):
            disk.remove(path)


def cleaned_path(path: Path) -> Path:
    """Return what a segment's file is called until it counts."""
    return path.with_name(path.name + CLEANED_SUFFIX)
