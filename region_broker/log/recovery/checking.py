"""What of a log's files is whole: the durable part is proved, what lies behind it is read, and cut where it is torn.

INV-R2  only bytes at or behind the checkpoint are ever cut: the first incomplete or wrong batch there and all that
        follows it, for none of that was acknowledged
INV-R3  a missing byte below the checkpoint, and a wrong one among those that are read, is `LogDamaged`: the partition
        fails, nothing is touched. What is wrong elsewhere is found when it is read (`partitions.sound_reads`)
INV-R9  where others have what is missing (a region of several nodes), a full segment that is shorter than it was sealed, or gone, is
        `LogDamaged` after a clean stop, too: by names and sizes, and the head of each offset index. Else it is found when it is read

Not here: which folders hold a log (`recovery.opening`), writing and syncing what was kept (`recovery.settling`).
"""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from idempotency.partition_state import PartitionState
from region_broker.log.cleaning.state import CleanMark
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import LOG_SUFFIX, file_name
from region_broker.log.indexes.aborted_index import encode_aborted
from region_broker.log.indexes.checked_file import NO_MARK, Checkpoint, FrameError, JournalMark
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.log.indexes.recovery_checkpoint import (
    RECOVERY_CHECKPOINT_SUFFIX,
    RecoveryCheckpoint,
    decode_recovery_checkpoint,
)
from region_broker.log.indexes.sparse_index import (
    SparseIndex,
)
from region_broker.log.log_config import LogConfig
from region_broker.log.replay import (
    Replayed,
    TornAt,
    aborted_with_marker_in,
    read_on,
    rebuild_state,
)
from region_broker.log.segment import SealedCache, Segment, remove_segment_files
from region_broker.ports.disk import Disk

logger: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class LogAsLeft:
    """A folder with a log, its checkpoint if there is a sound one, and how far it was cleaned."""

    folder: Path
    cache: SealedCache
    config: LogConfig
    checkpoint: Checkpoint | None
    mark: CleanMark

    @property
    def disk(self) -> Disk:
        """Where its files are."""
        return self.cache.disk

    @property
    def fence(self) -> JournalMark:
        """That of its checkpoint."""
        return NO_MARK if self.checkpoint is None else self.checkpoint.fence

    def is_clean(self, segments: list[Segment]) -> bool:
        """Return whether it was closed, and no segment has changed since."""
        checkpoint, active = self.checkpoint, segments[-1]
        return (
            checkpoint is not None
            and checkpoint.clean
            and checkpoint.segment_base == active.base_offset
            and checkpoint.segment_bytes == active.size_bytes
        )


@dataclass(slots=True)
class Found:
    """What a log's files came to.

    `changed`: names or sizes of segments were changed, which is durable only after `fsync_dir`. `ends`: the aborted
    index, and the state at the end, of segments that were read and are not the last.
    """

    replayed: Replayed = field(default_factory=lambda: Replayed(PartitionState(), LeaderEpochs()))
    recovery_checkpoint: RecoveryCheckpoint | None = None
    cut_bytes: int = 0
    changed: bool = False
    ends: dict[int, tuple[bytes, bytes]] = field(default_factory=dict)

    def checkpointed_bytes(self, active: Segment) -> int:
        """Return how much of the last segment lies below the recovery checkpoint that was used."""
        if (
            self.recovery_checkpoint is None
            or self.recovery_checkpoint.segment_base != active.base_offset
        ):
            return 0
        return self.recovery_checkpoint.summary.size_bytes


class Check:
    """One check of a folder that holds a log."""

    def __init__(self, left: LogAsLeft) -> None:
        """Prepare; nothing is read or changed yet."""
        self.left = left
        self.found = Found()
        self._folder = left.folder
        self._cache = left.cache
        self._disk = left.cache.disk

    def list_segments(self, bases: list[int]) -> list[Segment]:
        """Return the segments that hold the log, files closed; what retention was about to delete goes."""
        start = self.left.checkpoint.log_start_offset if self.left.checkpoint is not None else 0
        live = [base for base in bases if base >= start]
        deleted = [base for base in bases if base < start]  # retention was interrupted by a crash
        if deleted:
            self.found.changed = True
            remove_segment_files(self._folder, self._cache, deleted)
        if not live:
            raise LogDamaged(
                f"{self._folder}: the checkpoint says {self.left.checkpoint}, but no segment is left: "
                "restore the folder, or remove it to copy the partition from a mirror region again"
            )
        segments = []
        for base, following in zip(live, [*live[1:], live[-1]], strict=True):
            path = self._folder / file_name(base, LOG_SUFFIX)
            size_bytes = self._disk.file_size(path)
            segments.append(
                Segment(path, base, self._cache, self.left.config, size_bytes, following)
            )
        return segments

    def are_as_sealed(self, segments: list[Segment]) -> bool:
        """Return whether the full segments of a log that was closed seem to be all there, where that is to be proved (INV-R9).

        Where it is False they are to be checked as after a kill. Raises LogDamaged, OSError.
        """
        if not self.left.config.proves_full_segments:
            return True
        checkpoint, first = self.left.checkpoint, segments[0].base_offset
        if checkpoint is not None and first != checkpoint.log_start_offset:
            raise LogDamaged(
                f"{self._folder} begins with segment {first}, but its log began at {checkpoint.log_start_offset} when it was closed:"
                " restore it from a mirror region"
            )
        return all(
            (found := segment.sealed_as()) is not None
            and (found.size_bytes, found.next_offset) == (segment.size_bytes, segment.next_offset)
            for segment in segments[:-1]
        )

    def begin_at_recovery_checkpoint(self, segment: Segment, durable_bytes: int) -> bool:
        """Let the segment be as its recovery checkpoint says, if there is one that holds; tell which (INV-BKM3)."""
        path = segment.path.with_suffix(RECOVERY_CHECKPOINT_SUFFIX)
        assert segment.file is not None
        try:
            found = decode_recovery_checkpoint(
                self._disk.read_file(path), segment.file, self.left.config.index_interval_bytes
            )
        except FileNotFoundError:
            return False
        except FrameError as error:
            logger.warning("%s is ignored, its segment is read whole: %s", path, error)
            return False
        position = found.summary.size_bytes
        if position > durable_bytes or found.segment_base != segment.base_offset:
            logger.warning(
                "%s is ignored, its segment is read whole: it speaks of %d bytes, %d are durable",
                path, position, durable_bytes,
            )  # fmt: skip
            return False
        segment.adopt(found.index, found.summary)
        found.epochs.truncate_end(segment.next_offset)  # INV-E3
        self.found.replayed = Replayed(found.state, found.epochs)
        self.found.recovery_checkpoint = found
        return True

    def run(self, segments: list[Segment]) -> None:
        """Prove the durable part, read the rest, cut behind the last whole batch."""
        first, durable_bytes = self._first_unsynced(segments)
        for at, segment in enumerate(segments[:first]):
            self._check_sealed(segment, segments[at + 1].base_offset)
        for at in range(first, len(segments)):
            segment = segments[at]
            if at > first and segment.base_offset != segments[at - 1].next_offset:
                self._drop(segments, at, f"it starts at {segment.base_offset}, not at the end")
                break
            torn = self._read(segments, at, durable_bytes if at == first else 0)
            if torn is None:
                if at + 1 < len(segments):
                    self._note_end(segment)
                continue
            if torn.position < durable_bytes and at == first:
                raise LogDamaged(
                    f"{segment.path}: {torn.reason} at byte {torn.position}, but {durable_bytes} bytes "
                    "were durable: restore the file from a mirror region; nothing was changed"
                )
            self._drop(segments, at + 1, "the segment before it is torn")
            self._cut(segment, torn)
            break

    def _read(self, segments: list[Segment], at: int, durable_bytes: int) -> TornAt | None:
        """Take in what lies behind the recovery checkpoint, or the whole segment; return where it is torn, if it is.

        The first one that is read begins at its recovery checkpoint, or at the snapshot of its base; the next ones go
        on from it.
        """
        segment = segments[at]
        end_bytes = segment.size_bytes
        segment.file = self._disk.open(segment.path)
        is_first = not any(before.file is not None for before in segments[:at])
        if not is_first or not self.begin_at_recovery_checkpoint(segment, durable_bytes):
            segment.size_bytes, segment.next_offset = 0, segment.base_offset
            segment.live_index = SparseIndex(self.left.config.index_interval_bytes)
            if is_first:
                self.begin_at_base(segments, at)
        return read_on(segment, end_bytes, self.found.replayed, self.left.mark.holes_below)

    def begin_at_base(self, segments: list[Segment], at: int) -> None:
        """Let the log be as it was at the base of a segment, of which nothing is read yet."""
        base_offset = segments[at].base_offset
        epochs = LeaderEpochs()
        if at > 0:
            epochs = self.read_epochs(segments[:at])
            epochs.truncate_end(base_offset)
        state = rebuild_state(self._folder, segments, base_offset)
        self.found.replayed = Replayed(state, epochs)

    def _note_end(self, segment: Segment) -> None:
        """Keep what its seal needs, while the state is that of its end."""
        state = self.found.replayed.state
        start, end = segment.base_offset, segment.next_offset
        aborted = encode_aborted(aborted_with_marker_in(state, start, end))
        self.found.ends[start] = (aborted, state.encode())

    def _first_unsynced(self, segments: list[Segment]) -> tuple[int, int]:
        """Return (index of the segment where checking starts, its durable bytes)."""
        checkpoint = self.left.checkpoint
        if checkpoint is None:
            return len(segments) - 1, 0
        for at, segment in enumerate(segments):
            if segment.base_offset == checkpoint.segment_base:
                if segment.size_bytes < checkpoint.segment_bytes:
                    raise LogDamaged(
                        f"{segment.path} has {segment.size_bytes} bytes, but "
                        f"{checkpoint.segment_bytes} were durable: restore it from a mirror region"
                    )
                return at, checkpoint.segment_bytes
        raise LogDamaged(
            f"{self._folder}: segment {checkpoint.segment_base} of the checkpoint is not there: "
            "restore it from a mirror region"
        )

    def _check_sealed(self, segment: Segment, next_base: int) -> None:
        found = segment.read_index_file()
        if found is None:
            segment.rebuild_index()  # raises LogDamaged unless the file is whole batches
            return
        summary = found[1]
        if summary.size_bytes != segment.size_bytes or summary.next_offset != next_base:
            raise LogDamaged(
                f"{segment.path} has {segment.size_bytes} bytes up to offset {next_base}, but was sealed "
                f"with {summary.size_bytes} up to {summary.next_offset}: restore it from a mirror region"
            )

    def _cut(self, segment: Segment, torn: TornAt) -> None:
        assert segment.file is not None
        cut_bytes = segment.file.size() - torn.position
        logger.warning(
            "%s: %s at byte %d: %d bytes that were never acknowledged are cut off",
            segment.path, torn.reason, torn.position, cut_bytes,
        )  # fmt: skip
        self.found.cut_bytes += cut_bytes
        self.found.changed = True
        segment.file.truncate(torn.position)

    def _drop(self, segments: list[Segment], start: int, reason: str) -> None:
        for segment in reversed(segments[start:]):
            logger.warning(
                "%s: removed with %d bytes that were never acknowledged: %s",
                segment.path, segment.size_bytes, reason,
            )  # fmt: skip
            self.found.cut_bytes += segment.size_bytes
            self.found.changed = True
        bases = [segment.base_offset for segment in reversed(segments[start:])]
        remove_segment_files(self._folder, self._cache, bases)
        del segments[start:]

    def read_epochs(self, segments: list[Segment]) -> LeaderEpochs:
        """Return the leader epochs that the file knows, or those of the batches in `segments`."""
        path = self._folder / EPOCHS_NAME
        try:
            return LeaderEpochs.decode(self._disk.read_file(path))
        except FileNotFoundError:
            logger.info("%s is not there, it is built again from the whole log", path)
        except FrameError as error:
            logger.warning("%s is built again from the whole log: %s", path, error)
        epochs = LeaderEpochs()
        for segment in segments:
            for _, header in segment.walk(0):
                epochs.note(header.leader_epoch, header.base_offset)
        return epochs
