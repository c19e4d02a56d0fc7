"""Which partitions were made in this folder, and which of them a start misses.

INV-T6  a partition that was made and is gone, or whose folder was emptied, is named in `lost`, also after an empty one
        took its place (T36)
INV-T7  only a start misses partitions: one that is made later was not there before, whatever the manifest still says of
        one of its number whose drop was interrupted
INV-T8  only what was opened whole counts as made: a disk that fails at the making leaves folders that never were more, and
        that a later start makes anew

Not here: the file (`log.indexes.log_manifest`), what a lost log means for who acts (`region.failover.steps`).
"""

import logging
from collections.abc import Callable, Container, Iterable
from pathlib import Path
from typing import Final
from uuid import UUID

from region_broker.log.file_names import LOG_SUFFIX
from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.indexes.log_manifest import Key, LogEntry, LogManifest
from region_broker.ports.disk import Disk

_log: Final = logging.getLogger(__name__)


class MadePartitions:
    """What the manifest says, held against the folders. Make it before anything is put into one of them."""

    def __init__(self, disk: Disk, data_dir: Path, folder_of: Callable[[UUID, int], Path]) -> None:
        """Read the manifest, and look at every folder that it names; raises OSError."""
        self._disk = disk
        self._data_dir = data_dir
        self._folder_of = folder_of
        self._manifest = LogManifest(disk, data_dir)
        self._starting = True
        self._emptied = self._emptied_folders()

    def _emptied_folders(self) -> frozenset[Key]:
        """Return which partitions that were made have a folder without what every log has from its making on."""
        found = set()
        for topic_id, number in self._manifest.named(LogEntry.MADE):
            folder = self._folder_of(topic_id, number)
            if not self._disk.exists(folder / CHECKPOINT_NAME) and self._disk.exists(folder):
                names = self._disk.list_dir(folder)
                if not any(name.endswith(LOG_SUFFIX) for name in names):
                    found.add((topic_id, number))
        return frozenset(found)

    def miss(self, topic_id: UUID, partition_count: int, held: Container[int]) -> None:
        """At a start, note which of a topic's partitions, but for those `held`, were made and are gone; raises OSError."""
        if not self._starting:
            return
        made = (
            number
            for number in range(partition_count)
            if number not in held and self._manifest.of((topic_id, number)) is LogEntry.MADE
        )
        gone = [
            number
            for number in made
            if (topic_id, number) in self._emptied
            or not self._disk.exists(self._folder_of(topic_id, number))
        ]
        self._manifest.note([(topic_id, number) for number in gone], LogEntry.LOST)

    def started(self, is_held: Callable[[Key], bool]) -> None:
        """Miss nothing any more. Name no partition that nobody has, and that is gone: its drop was interrupted (INV-T7)."""
        self._starting = False
        gone = [
            key
            for key in self._manifest.named(LogEntry.MADE)
            if not is_held(key) and not self._disk.exists(self._folder_of(*key))
        ]
        self._note(gone, LogEntry.REMOVED)

    def note_made(self, topic_id: UUID, numbers: Iterable[int]) -> None:
        """Name those of a topic's partitions, all opened whole (INV-T8), that have a folder and are not named yet."""
        new = [n for n in numbers if self._manifest.of((topic_id, n)) is LogEntry.REMOVED]
        made = [(topic_id, n) for n in new if self._disk.exists(self._folder_of(topic_id, n))]
        self._note(made, LogEntry.MADE)

    def note_lost(self, topic_id: UUID, number: int) -> None:
        """Name one that was made as lost: an empty one takes its place (INV-T6); raises OSError."""
        self._manifest.note([(topic_id, number)], LogEntry.LOST)

    def note_removed(self, keys: Iterable[Key]) -> None:
        """Name these no more: they are about to be removed."""
        self._note(list(keys), LogEntry.REMOVED)

    def lost(self) -> list[Key]:
        """Return the partitions that were made, and were gone at a start (INV-T6)."""
        return self._manifest.lost()

    def take_note_of_lost(self) -> None:
        """Forget what was lost: who decides who acts has, durably, taken note."""
        self._note(self._manifest.lost(), LogEntry.MADE)

    def close(self) -> None:
        """Close the manifest."""
        self._manifest.close()

    def _note(self, keys: list[Key], entry: LogEntry) -> None:
        try:
            self._manifest.note(keys, entry)
        except OSError:
            # INV-MF3: they are not missed if they go, and the disk's error is told where it matters.
            _log.exception("%s: the manifest cannot be written", self._data_dir)
