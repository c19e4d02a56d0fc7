"""One folder that is put away: what blocks of it is done in a thread, or by who needs it done at once.

INV-PAW1  it is done once, in order: what is said before (`first`), then the rename, and that made durable. Who comes while a thread is at it
          waits for that one; who comes behind it finds it done. A disk that refuses the rename leaves it for the next who comes
INV-PAW2  folders that lie in it, and are on their way out, too, come first: they keep their own names, and nothing is renamed under a thread
Not here: which folders go, and what becomes of them then (`removal`).
"""

import logging
import threading
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Final

from region_broker.ports.disk import Disk

DELETED_NAME: Final = "deleted"
logger: Final = logging.getLogger(__name__)


def nothing() -> None:
    """Do nothing."""


class PuttingAway:
    """One folder on its way out; `work` may be called in any thread, all else belongs to the event loop.

    `suffix`: what it is called then; `is_taken`: whether such a name is not free, though no file has it. `inner`: see INV-PAW2.
    """

    def __init__(
        self, disk: Disk, folder: Path, suffix: str, *, is_taken: Callable[[Path], bool],
        inner: Sequence["PuttingAway"] = (), first: Callable[[], None] = nothing,
    ) -> None:  # fmt: skip
        """Do nothing yet."""
        self.folder = folder
        self.is_away = False
        """Whether nothing has that name any more, durably."""
        self.became: Path | None = None
        """What the folder is called then; None where there was none."""
        self._disk = disk
        self._suffix = suffix
        self._is_taken = is_taken
        self.inner = inner
        self._first: Callable[[], None] | None = first
        self._lock = threading.Lock()

    def work(self) -> None:
        """Put it away, unless it is (INV-PAW1)."""
        for each in self.inner:
            each.work()
        with self._lock:
            if self.is_away:
                return
            if self._first is not None:
                self._first()
                self._first = None
            try:
                self._put()
            except OSError:
                logger.exception("%s cannot be put away, it is tried again later", self.folder)
                self._mark_left()
                return
        for each in self.inner:  # what a disk refused has gone with this
            each.work()

    def _put(self) -> None:
        if self._disk.exists(self.folder):  # else it was renamed, and that was not durable
            self.became = renamed(
                self._disk, self.folder, self.folder, self._suffix, self._is_taken
            )
        if self._disk.exists(self.folder.parent):  # else it went with that
            self._disk.fsync_dir(self.folder.parent)
        self.is_away = True

    def _mark_left(self) -> None:
        """Say that this is not the next topic of that id (INV-RM4)."""
        try:
            if self._disk.exists(self.folder):
                self._disk.open(self.folder / DELETED_NAME, create=True).close()
                self._disk.fsync_dir(self.folder)
        except OSError as error:
            logger.warning("%s cannot be marked as deleted: %s", self.folder, error)


def renamed(
    disk: Disk, folder: Path, stem: Path, suffix: str,
    is_taken: Callable[[Path], bool] = lambda _path: False,
) -> Path:  # fmt: skip
    """Give a folder a name that begins as `stem` does; durable after `fsync_dir`. Raises OSError."""
    gone = free_name(disk, stem, suffix, is_taken)
    disk.rename(folder, gone)
    return gone


def free_name(
    disk: Disk, stem: Path, suffix: str, is_taken: Callable[[Path], bool] = lambda _path: False
) -> Path:
    """Return a name that begins as `stem` does, and that nothing has."""
    gone = stem.with_name(stem.name + suffix)
    numbers = count(1)
    while is_taken(gone) or disk.exists(gone):  # an earlier one of that name is still there
        gone = stem.with_name(f"{stem.name}.{next(numbers)}{suffix}")
    return gone
