"""Folders on their way out: a deletion that was begun is finished, in this life or at the next start.

INV-RM2  what is about to be deleted is marked before the registry forgets it, so that a start can tell a deletion that
        was interrupted from a registry that has lost something: only what is marked goes
INV-RM3  a disk that fails here is nobody's error: what could not be put away now is left to a later try
INV-RM4  what could not be put away is marked as deleted, if the disk lets us: a start does not take it for the next topic of
        that id
INV-RM5  what held records is kept for a while before it is removed, if that is asked for (`kept_deletions`)
INV-RM6  what was kept long enough is removed in a thread: of a large topic the file system takes seconds to let go, and
         nobody waits for that
A folder is put away by a rename that is durable before anything in it is removed: a crash leaves it whole under its
name, or under one that no log has.

    <folder>/deleting                      the mark: an empty file, so that it finds room on a full disk
    <folder>/deleted                       it should be away, and could not be put away
    <folder>/deletion.json                 what is deleted, and why
    <folder>.kept, <folder>.1.kept         put away, to be removed later
    <folder>.deleted, <folder>.1.deleted   put away, to be removed
    <folder>.damaged, <folder>.1.damaged   a damaged log: for people, who remove it
    <folder>.uncut.damaged                 the same, which may hold what a takeover has made void, and is in no quarantine

Not here: what is to be deleted (`partitions.table`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from region_broker.log.recovery.kept_deletions import (
    KEPT_SUFFIX,
    NOTE_NAME,
    DeletionNote,
    KeptDeletions,
)
from region_broker.ports.disk import Disk
from region_broker.ports.offload import Offload

OnGone = Callable[[], None]

logger: Final = logging.getLogger(__name__)

MARK_NAME: Final = "deleting"
DELETED_NAME: Final = "deleted"
DELETED_SUFFIX: Final = ".deleted"
ASIDE_SUFFIX: Final = ".damaged"
UNCUT_SUFFIX: Final = ".uncut" + ASIDE_SUFFIX
TOPIC_ID_CHARS: Final = 32
"""The folder of a topic is called by its id, in hexadecimal digits."""
_LEFT: Final = "%s is left for the next start to remove: %s"


class Removal:
    """Of folders on one disk. Belongs to the event loop."""

    def __init__(
        self, disk: Disk, kept: KeptDeletions, *, offload: Offload = asyncio.to_thread
    ) -> None:
        """Nothing is on its way out."""
        self._disk = disk
        self._kept = kept
        self._offload = offload
        self._left: dict[Path, tuple[OnGone, bool]] = {}

    def mark(self, folder: Path, note: DeletionNote) -> None:
        """Say durably that a folder is about to be deleted. Without the mark a crash leaves it, which is logged.

        The note of the first mark stays.
        """
        self._mark(folder, MARK_NAME)
        path = folder / NOTE_NAME
        if not self._kept.wanted or self._disk.exists(path):
            return
        try:
            self._disk.write_file_atomic(path, note.content())
        except OSError as error:
            logger.warning("%s does not say what it is: %s", folder, error)

    def _mark(self, folder: Path, name: str) -> None:
        try:
            self._disk.open(folder / name, create=True).close()
            self._disk.fsync_dir(folder)
        except OSError as error:
            logger.warning("%s cannot be marked, a crash now would leave it: %s", folder, error)

    def unmark(self, folder: Path) -> None:
        """Take that back: it stays."""
        try:
            if self._disk.exists(folder / MARK_NAME):
                if self._disk.exists(folder / NOTE_NAME):
                    self._disk.remove(folder / NOTE_NAME)
                self._disk.remove(folder / MARK_NAME)
                self._disk.fsync_dir(folder)
        except OSError as error:
            logger.warning("%s stays, but its mark cannot be removed: %s", folder, error)

    def is_marked(self, folder: Path) -> bool:
        """Return whether its deletion was begun."""
        return self._disk.exists(folder / MARK_NAME)

    def put_away(self, folder: Path, on_gone: OnGone = lambda: None, *, keep: bool = True) -> bool:
        """Take a folder out of the way durably, remove it or keep it for a while, then call `on_gone`.

        False if it is there, or may come back: it is tried again later. `keep` False: it holds nothing.
        """
        try:
            if not self._disk.exists(folder):
                self._disk.fsync_dir(folder.parent)
            elif keep and self._kept.wanted:
                self._keep(folder)
            else:
                self._remove(self._renamed(folder, folder, DELETED_SUFFIX))
        except OSError:
            logger.exception("%s cannot be put away, it is tried again later", folder)
            self._left[folder] = (on_gone, keep)
            if self._disk.exists(folder):
                self._mark(folder, DELETED_NAME)
            return False
        self._left.pop(folder, None)
        on_gone()
        return True

    def is_there(self, folder: Path) -> bool:
        """Return whether a folder has that name now, durably or not."""
        return self._disk.exists(folder)

    def set_aside(self, folder: Path, *, uncut: bool = False) -> Path:
        """Give a damaged log's folder another name, durably, under which nobody removes it; return that. Raises OSError."""
        kept = self._renamed(folder, folder, UNCUT_SUFFIX if uncut else ASIDE_SUFFIX)
        self._disk.fsync_dir(kept.parent)
        return kept

    def uncut_under(self, folder: Path) -> list[Path]:
        """Return what was set aside uncut, of the logs of all topics under a folder. Raises OSError."""
        topics = [
            folder / name for name in self._disk.list_dir(folder) if len(name) == TOPIC_ID_CHARS
        ]
        return [
            topic / name
            for topic in topics
            for name in self._disk.list_dir(topic)
            if name.endswith(UNCUT_SUFFIX)
        ]

    def _keep(self, folder: Path) -> None:
        kept = self._renamed(folder, folder, KEPT_SUFFIX)
        self._kept.take(kept)
        self._disk.fsync_dir(kept.parent)

    def _renamed(self, folder: Path, stem: Path, suffix: str) -> Path:
        """Give a folder a name that begins as `stem` does; durable after `fsync_dir`."""
        gone = stem.with_name(stem.name + suffix)
        numbers = count(1)
        while self._disk.exists(gone):  # an earlier one of that name is still there
            gone = stem.with_name(f"{stem.name}.{next(numbers)}{suffix}")
        self._disk.rename(folder, gone)
        return gone

    def _remove(self, gone: Path) -> None:
        # The name first: a tree that is half removed must not come back under its old one.
        self._disk.fsync_dir(gone.parent)
        try:
            self._disk.remove_tree(gone)
        except OSError as error:
            logger.warning(_LEFT, gone, error)

    async def purge(self) -> None:
        """Remove what was kept long enough (INV-KD1, INV-RM6), and learn how large the rest is."""
        gone = [self._expired(folder) for folder in self._kept.due()]
        unmeasured = self._kept.unmeasured()
        sizes_bytes: dict[Path, int] = {}

        def work() -> None:
            self._remove_all([folder for folder in gone if folder is not None])
            sizes_bytes.update(self._kept.measured(unmeasured))

        if gone or unmeasured:
            await self._offload(work)
            self._kept.note_sizes(sizes_bytes)
        self._kept.save_now_and_then()

    def _expired(self, folder: Path) -> Path | None:
        """Give a folder that was kept long enough its last name; None if the disk fails."""
        try:
            stem = folder.with_name(folder.name.partition(".")[0])
            gone = self._renamed(folder, stem, DELETED_SUFFIX)
        except OSError as error:
            logger.warning("%s was kept long enough, and cannot be removed: %s", folder, error)
            return None
        self._kept.gone(folder)
        logger.info("%s was kept long enough: it is removed", folder)
        return gone

    def _remove_all(self, folders: Sequence[Path]) -> None:
        for gone in folders:
            try:
                self._remove(gone)
            except OSError as error:
                logger.warning(_LEFT, gone, error)

    def again(self) -> None:
        """Try once more to put away what is left."""
        for folder in list(self._left):
            self.is_away(folder)

    def is_free(self, folder: Path) -> bool:
        """Return whether nothing of what had that name is still to be put away; changes nothing."""
        return folder not in self._left and not self._disk.exists(folder / DELETED_NAME)

    def is_away(self, folder: Path) -> bool:
        """Try once more to put this folder away, if it should be; False if it is still there."""
        if self.is_free(folder):
            return True
        on_gone, keep = self._left.get(folder, (lambda: None, True))
        return self.put_away(folder, on_gone, keep=keep)

    def sweep(self, parent: Path) -> None:
        """At a start: remove what was put away in `parent`, go on with what is kept."""
        names = self._disk.list_dir(parent)
        for name in names:
            if name.endswith(KEPT_SUFFIX):
                self._kept.found(parent / name)
        self._remove_all([parent / name for name in names if name.endswith(DELETED_SUFFIX)])
