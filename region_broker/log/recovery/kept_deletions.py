"""What deletions have put away and is kept for a while, so that they can be undone (T34).

INV-KD1  a folder is removed only after this node has run for `kept_ms` beside it: time is counted by the monotonic clock,
         and what was counted is on disk. A wall clock that jumps removes nothing early; time that the node was down, or
         that was not yet on disk when it died, does not count: a folder may stay longer, never shorter
INV-KD2  a folder names itself: topic, id, partitions, configs, why and when it was deleted. One that could not be told
         so (a full disk) is kept all the same
INV-KD3  nothing here is needed by a log that is served: folders may be removed by hand at any time, also for their room

    1. A topic is deleted. 2. Time synchronisation sets the wall clock a year ahead. 3. By the wall clock all that was
    kept is too old. So the wall clock is for people only.

    <folder>.kept, <folder>.1.kept   what was deleted
    <folder>.kept/deletion.json      what it is
    <data_dir>/kept                  how long each was kept so far, in ms

A disk that is nearly full shortens nothing: whoever deletes by mistake would else lose it to a coincidence.
Not here: putting folders away (`removal`), reading their records (`cli.inspect.log_export`).
"""

import logging
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from idempotency.ports import Clock
from region_broker.ports.disk import TEMPORARY_SUFFIX, Disk

logger: Final = logging.getLogger(__name__)

KEPT_SUFFIX: Final = ".kept"
NOTE_NAME: Final = "deletion.json"
AGES_NAME: Final = "kept"
_TOPIC_FILE_NAME: Final = "topic.json"
_SAVE_EVERY_MS: Final = 600_000


class DeletionNote(msgspec.Struct, frozen=True, kw_only=True):
    """What was deleted; `partition` None: the whole topic. `why` is for people."""

    topic_id: str = ""
    name: str = ""
    partition_count: int = 0
    partition: int | None = None
    internal: bool = False
    configs: Mapping[str, str] = {}
    why: str = ""
    deleted_wall_ms: int = 0

    def content(self) -> bytes:
        """Return it as the file is."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"


class KeptDeletion(msgspec.Struct, frozen=True, kw_only=True):
    """One folder that is kept, for `left_ms` more of this node's running time."""

    note: DeletionNote
    folder: str
    size_bytes: int
    left_ms: int


class KeptDeletions:
    """Of one folder of logs. All but `listed`, `measured`, `is_named` and `write` belongs to the event loop."""

    def __init__(self, disk: Disk, data_dir: Path, clock: Clock, kept_ms: int) -> None:
        """Know how long was counted; folders are told by `found`. Raises OSError."""
        self._disk = disk
        self._data_dir = data_dir
        self._clock = clock
        self.kept_ms = kept_ms
        """How long; another value counts for what is kept already, too."""
        self._began_ms: dict[Path, int] = {}
        self._sizes_bytes: dict[Path, int] = {}
        self._writing = threading.Lock()
        self._saved = self._read()

    @property
    def wanted(self) -> bool:
        """Whether deletions are kept at all."""
        return self.kept_ms > 0

    def _read(self) -> dict[str, int]:
        path = self._data_dir / AGES_NAME
        if not self._disk.exists(path):
            return {}
        try:
            return msgspec.json.decode(self._disk.read_file(path), type=dict[str, int])
        except msgspec.MsgspecError as error:
            logger.warning("%s is ignored, deleted topics are kept anew: %s", path, error)
            return {}

    def found(self, folder: Path) -> None:
        """Go on with a folder that was kept before this start."""
        if folder in self._began_ms:
            return
        counted_ms = min(max(self._saved.get(self._name(folder), 0), 0), self.kept_ms)
        self._began_ms[folder] = self._clock.monotonic_ms() - counted_ms

    def take(self, folder: Path) -> None:
        """Begin to keep a folder that was just put away."""
        self._began_ms[folder] = self._clock.monotonic_ms()

    def is_named(self, folder: Path) -> bool:
        """Return whether time was counted for a folder of that name, which a start would go on with (INV-KD1); for any thread."""
        return self._name(folder) in self._saved

    def due(self) -> list[Path]:
        """Return what was kept long enough; forget what somebody else has removed."""
        for folder in [each for each in self._began_ms if not self._disk.exists(each)]:
            self.gone(folder)
        return [folder for folder in self._began_ms if self._age_ms(folder) >= self.kept_ms]

    def gone(self, folder: Path) -> None:
        """Forget a folder that is removed."""
        self._began_ms.pop(folder, None)
        self._sizes_bytes.pop(folder, None)

    @property
    def count(self) -> int:
        """How many folders are kept."""
        return len(self._began_ms)

    @property
    def size_bytes(self) -> int:
        """What they take of the disk, as far as they were measured."""
        return sum(self._sizes_bytes.values())

    def unmeasured(self) -> list[Path]:
        """Return the folders whose size is not known yet."""
        return [folder for folder in self._began_ms if folder not in self._sizes_bytes]

    def measured(self, folders: Sequence[Path]) -> dict[Path, int]:
        """Return the sizes of these folders, those that have gone left out; may run in any thread."""
        found = {}
        for folder in folders:
            try:
                found[folder] = self._size_bytes(folder)
            except OSError as error:
                logger.info("%s is on its way out: %s", folder, error)
        return found

    def note_sizes(self, sizes_bytes: Mapping[Path, int]) -> None:
        """Take note of what was measured, of folders that are still kept."""
        self._sizes_bytes |= {
            folder: size for folder, size in sizes_bytes.items() if folder in self._began_ms
        }

    def worth_saving(self) -> dict[str, int] | None:
        """Return what was counted, if it is worth being written, or if what is on disk names what is gone; else None."""
        gone = self._saved.keys() - set(map(self._name, self._began_ms))
        if gone or any(
            self._age_ms(each) - self._saved.get(self._name(each), 0) >= _SAVE_EVERY_MS
            for each in self._began_ms
        ):
            return self._ages_ms()
        return None

    def _ages_ms(self) -> dict[str, int]:
        return {self._name(folder): self._age_ms(folder) for folder in self._began_ms}

    def save(self) -> None:
        """Make durable what was counted; if the disk fails, it counts from where it was."""
        ages_ms = self._ages_ms()
        if ages_ms != self._saved:
            self.write(ages_ms)

    def write(self, ages_ms: dict[str, int]) -> None:
        """Make durable that so much was counted; for any thread, one after the other."""
        with self._writing:
            try:
                self._disk.write_file_atomic(
                    self._data_dir / AGES_NAME, msgspec.json.encode(ages_ms)
                )
                self._saved = ages_ms
            except OSError as error:
                logger.warning("how long deleted topics were kept is not saved: %s", error)

    def _age_ms(self, folder: Path) -> int:
        return self._clock.monotonic_ms() - self._began_ms[folder]

    def _name(self, folder: Path) -> str:
        return str(folder.relative_to(self._data_dir))

    def listed(self) -> list[KeptDeletion]:
        """Return what is kept, by name of the topic; reads the disk, may run in any thread."""
        began_ms = dict(self._began_ms)
        found = [
            KeptDeletion(
                note=note_of(self._disk, folder),
                folder=str(folder),
                size_bytes=size_bytes,
                left_ms=max(0, began_ms[folder] + self.kept_ms - self._clock.monotonic_ms()),
            )
            for folder, size_bytes in self.measured(list(began_ms)).items()
        ]
        return sorted(found, key=lambda kept: (kept.note.name, kept.folder))

    def _size_bytes(self, folder: Path) -> int:
        names = self._disk.list_dir(folder)
        logs = [folder / name for name in names if name.isdecimal()] or [folder]
        return sum(
            self._disk.file_size(log / name)
            for log in logs
            for name in self._disk.list_dir(log)
            if not name.endswith((TEMPORARY_SUFFIX, KEPT_SUFFIX))
        )


def note_of(disk: Disk, folder: Path) -> DeletionNote:
    """Return what a kept folder says of itself, as far as it does (INV-KD2)."""
    for name in (NOTE_NAME, _TOPIC_FILE_NAME):
        try:
            return msgspec.json.decode(disk.read_file(folder / name), type=DeletionNote)
        except FileNotFoundError:
            continue
        except (OSError, msgspec.MsgspecError) as error:
            logger.warning("%s is not readable: %s", folder / name, error)
    return DeletionNote()
