"""Opening a log: what a crash may have torn is cut, what was durable is proved, state is rebuilt.

INV-R1  after a clean close no segment is read; otherwise the segment of the checkpoint, from its bookmark on, and
        those behind it are read, once, with CRC
INV-R2  only bytes at or behind the checkpoint are ever cut: the first incomplete or wrong batch there and all that
        follows it, for none of that was acknowledged
INV-R3  a missing byte below the checkpoint, and a wrong one among those that are read, is `LogDamaged`: the partition
        fails, nothing is touched. What is wrong elsewhere is found when it is read (`replication.sound_reads`)
INV-R4  what is kept from behind the checkpoint is written again, and cut again at its end, before it is synced: after a
        failed sync the kernel may hold pages, and a size, as clean that never reached the disk
INV-R5  the open segment has no index file: what a cut or an unfinished seal left would be wrong once it grows

Not here: appending and the rest of a log's life (`partition_log`), what batches come to (`replay`).
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idempotency.partition_state import PartitionState
from region_broker.log.cleaning.state import NEVER_CLEANED, CleanMark, finish_swap, read_mark
from region_broker.log.disk import TEMPORARY_SUFFIX, DiskFile
from region_broker.log.failures import LogDamaged
from region_broker.log.log_config import LogConfig
from region_broker.log.replay import (
    SCAN_WINDOW_BYTES,
    Replayed,
    TornAt,
    aborted_with_marker_in,
    read_on,
    rebuild_state,
    write_aborted_file,
)
from region_broker.log.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SealedCache,
    Segment,
    file_name,
)
from region_broker.log.side_files.aborted_index import encode_aborted
from region_broker.log.side_files.bookmark import BOOKMARK_SUFFIX, Bookmark, decode_bookmark
from region_broker.log.side_files.checked_file import NO_MARK, Checkpoint, FrameError, JournalMark
from region_broker.log.side_files.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.side_files.leader_epochs import LeaderEpochs
from region_broker.log.side_files.producer_snapshots import remove_outside, write_snapshot
from region_broker.log.side_files.sparse_index import SparseIndex

logger: Final = logging.getLogger(__name__)

EPOCHS_NAME: Final = "leader-epochs"
_OF_SEGMENTS: Final = (INDEX_SUFFIX, ABORTED_SUFFIX, BOOKMARK_SUFFIX)


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A log ready for use: at least one segment, the last one active with file and index in memory.

    `clean`: nothing was read. `settled`: the checkpoint says that the next start need not read, either.
    `fence`: that of its checkpoint, to be kept in those that follow (INV-K4). `bookmarked_bytes`: of the last segment,
    below the bookmark that is there.
    """

    segments: list[Segment]
    state: PartitionState
    epochs: LeaderEpochs
    clean: bool
    settled: bool = False
    cut_bytes: int = 0
    bookmarked_bytes: int = 0
    mark: CleanMark = NEVER_CLEANED
    fence: JournalMark = NO_MARK


def recover(folder: Path, cache: SealedCache, config: LogConfig) -> RecoveredLog:
    """Open or create the log in `folder`; raises LogDamaged, or OSError of the disk."""
    disk = cache.disk
    disk.make_dirs(folder)
    try:
        finish_swap(disk, folder)
        mark = read_mark(disk, folder)
    except FrameError as error:
        raise LogDamaged(
            f"{folder}: what says how far it was cleaned is damaged: {error}"
        ) from error
    names = disk.list_dir(folder)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(folder / name)
    bases = sorted(int(name[:20]) for name in names if name.endswith(LOG_SUFFIX))
    for name in names:
        # The power went while a segment was removed: no later segment of that base may find its indexes.
        if name.endswith(_OF_SEGMENTS) and int(name[:20]) not in bases:
            disk.remove(folder / name)
    checkpoint = read_checkpoint(folder, cache)
    if (
        checkpoint is not None
        and checkpoint.segment_bytes == 0
        and checkpoint.segment_base not in bases
    ):
        return _create(folder, cache, config, checkpoint.segment_base, checkpoint.fence)
    if checkpoint is None and not any(_log_bytes(folder, cache, base) for base in bases):
        return _create(folder, cache, config, bases[0] if bases else 0)
    recovery = _Recovery(folder, cache, config, checkpoint, mark)
    return recovery.run(bases)


def read_checkpoint(folder: Path, cache: SealedCache) -> Checkpoint | None:
    """Return the checkpoint; None, said loudly unless the folder is new, if there is no sound one."""
    path = folder / CHECKPOINT_NAME
    try:
        return Checkpoint.decode(cache.disk.read_file(path))
    except FileNotFoundError:
        return None
    except FrameError as error:
        logger.warning("%s is ignored, the last segment is checked whole: %s", path, error)
        return None


def _log_bytes(folder: Path, cache: SealedCache, base: int) -> int:
    return cache.disk.file_size(folder / file_name(base, LOG_SUFFIX))


def _create(
    folder: Path,
    cache: SealedCache,
    config: LogConfig,
    base_offset: int,
    fence: JournalMark = NO_MARK,
) -> RecoveredLog:
    """Start an empty log at `base_offset`; whatever else is in the folder belongs to a log given up."""
    disk = cache.disk
    disk.write_file_atomic(
        folder / CHECKPOINT_NAME,
        Checkpoint(
            synced_offset=base_offset,
            segment_base=base_offset,
            segment_bytes=0,
            log_start_offset=base_offset,
            clean=True,
            fence=fence,
        ).file_content(),
    )
    for name in disk.list_dir(folder):
        if name[:20].isdigit() or name == EPOCHS_NAME:
            disk.remove(folder / name)
    segment = new_segment(folder, cache, config, base_offset)
    disk.fsync_dir(folder)
    return RecoveredLog(
        segments=[segment],
        state=PartitionState(),
        epochs=LeaderEpochs(),
        clean=False,
        settled=True,
        fence=fence,
    )


def new_segment(folder: Path, cache: SealedCache, config: LogConfig, base_offset: int) -> Segment:
    """Create an empty active segment; its name is durable after `fsync_dir`."""
    path = folder / file_name(base_offset, LOG_SUFFIX)
    segment = Segment(path, base_offset, cache, config, next_offset=base_offset)
    segment.file = cache.disk.open(path, create=True)
    segment.live_index = SparseIndex(config.index_interval_bytes)
    return segment


class _Recovery:
    """One run over a folder that holds a log."""

    def __init__(
        self,
        folder: Path,
        cache: SealedCache,
        config: LogConfig,
        checkpoint: Checkpoint | None,
        mark: CleanMark,
    ) -> None:
        self._folder = folder
        self._cache = cache
        self._disk = cache.disk
        self._config = config
        self._checkpoint = checkpoint
        self._mark = mark
        self._fence = NO_MARK if checkpoint is None else checkpoint.fence
        self._cut_bytes = 0
        self._changed = False
        """Whether names or sizes of segments were changed: durable only after `fsync_dir`."""
        self._replayed = Replayed(PartitionState(), LeaderEpochs())
        self._bookmark: Bookmark | None = None
        self._ends: dict[int, tuple[bytes, bytes]] = {}
        """Aborted index, and state at the end, of segments that are read and not the last."""

    def run(self, bases: list[int]) -> RecoveredLog:
        """Check, cut, rebuild."""
        segments = self._list_segments(bases)
        try:
            return self._open(segments)
        except (LogDamaged, OSError):
            for segment in segments:
                if segment.file is not None:
                    segment.file.close()
            raise

    def _open(self, segments: list[Segment]) -> RecoveredLog:
        clean = self._is_clean(segments)
        if clean:
            self._open_clean(segments)
        else:
            self._check(segments)
            self._make_durable(segments)
        self._complete_aborted_files(segments)
        state = self._replayed.state
        state.forget_aborted_below(segments[-1].base_offset)
        self._replayed.epochs.truncate_start(segments[0].base_offset)
        return RecoveredLog(
            segments=segments,
            state=state,
            epochs=self._replayed.epochs,
            clean=clean,
            settled=clean,
            cut_bytes=self._cut_bytes,
            bookmarked_bytes=self._bookmarked_bytes(segments[-1]),
            mark=self._mark,
            fence=self._fence,
        )

    def _bookmarked_bytes(self, active: Segment) -> int:
        bookmark = self._bookmark
        if bookmark is None or bookmark.segment_base != active.base_offset:
            return 0
        return bookmark.summary.size_bytes

    def _list_segments(self, bases: list[int]) -> list[Segment]:
        start = self._checkpoint.log_start_offset if self._checkpoint is not None else 0
        live = [base for base in bases if base >= start]
        for base in bases:
            if base < start:  # retention was interrupted by a crash
                self._changed = True
                remove_segment_files(self._folder, self._cache, base)
        if not live:
            raise LogDamaged(
                f"{self._folder}: the checkpoint says {self._checkpoint}, but no segment is left: "
                "restore the folder, or remove it to copy the partition from a mirror region again"
            )
        segments = []
        for base, following in zip(live, [*live[1:], live[-1]], strict=True):
            path = self._folder / file_name(base, LOG_SUFFIX)
            size_bytes = self._disk.file_size(path)
            segments.append(Segment(path, base, self._cache, self._config, size_bytes, following))
        return segments

    def _is_clean(self, segments: list[Segment]) -> bool:
        checkpoint = self._checkpoint
        return (
            checkpoint is not None
            and checkpoint.clean
            and checkpoint.segment_base == segments[-1].base_offset
            and checkpoint.segment_bytes == segments[-1].size_bytes
        )

    def _open_clean(self, segments: list[Segment]) -> None:
        assert self._checkpoint is not None
        active = segments[-1]
        active.next_offset = self._checkpoint.synced_offset
        active.file = self._disk.open(active.path)
        size_bytes, next_offset = active.size_bytes, active.next_offset
        if self._begin_at_bookmark(active, size_bytes) and active.size_bytes == size_bytes:
            return
        self._bookmark = None
        if self._remove_stale(active):
            self._disk.fsync_dir(self._folder)
        active.size_bytes, active.next_offset = size_bytes, next_offset
        active.live_index = active.rebuild_index()
        self._replayed.epochs = self._read_epochs(segments)
        self._replayed.state = rebuild_state(self._folder, segments, active.next_offset)

    def _begin_at_bookmark(self, segment: Segment, durable_bytes: int) -> bool:
        """Let the segment be as its bookmark says, if there is one that holds; tell which (INV-BKM3)."""
        path = segment.path.with_suffix(BOOKMARK_SUFFIX)
        assert segment.file is not None
        try:
            found = decode_bookmark(
                self._disk.read_file(path), segment.file, self._config.index_interval_bytes
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
        self._replayed = Replayed(found.state, found.epochs)
        self._bookmark = found
        return True

    def _remove_stale(self, active: Segment) -> bool:
        """Remove bookmarks that are not used, and what a seal that was undone left of the open segment; tell if there was any.

        Durable after `fsync_dir`, before anything is appended (INV-BKM2, INV-R5).
        """
        used = None if self._bookmark is None else self._bookmark.segment_base
        found = False
        for name in self._disk.list_dir(self._folder):
            is_index = name.endswith((INDEX_SUFFIX, ABORTED_SUFFIX))
            if (name.endswith(BOOKMARK_SUFFIX) and int(name[:20]) != used) or (
                is_index and int(name[:20]) == active.base_offset
            ):
                self._disk.remove(self._folder / name)
                found = True
        return found

    def _check(self, segments: list[Segment]) -> None:
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
        """Take in what lies behind the bookmark, or the whole segment; return where it is torn, if it is.

        The first one that is read begins at its bookmark, or at the snapshot of its base; the next ones go on from it.
        """
        segment = segments[at]
        end_bytes = segment.size_bytes
        segment.file = self._disk.open(segment.path)
        is_first = not any(before.file is not None for before in segments[:at])
        if not is_first or not self._begin_at_bookmark(segment, durable_bytes):
            segment.size_bytes, segment.next_offset = 0, segment.base_offset
            segment.live_index = SparseIndex(self._config.index_interval_bytes)
            if is_first:
                self._begin_at_base(segments, at)
        return read_on(segment, end_bytes, self._replayed, self._mark.holes_below)

    def _begin_at_base(self, segments: list[Segment], at: int) -> None:
        base_offset = segments[at].base_offset
        epochs = LeaderEpochs()
        if at > 0:
            epochs = self._read_epochs(segments[:at])
            epochs.truncate_end(base_offset)
        state = rebuild_state(self._folder, segments, base_offset)
        self._replayed = Replayed(state, epochs)

    def _note_end(self, segment: Segment) -> None:
        """Keep what its seal needs, while the state is that of its end."""
        state = self._replayed.state
        start, end = segment.base_offset, segment.next_offset
        aborted = encode_aborted(aborted_with_marker_in(state, start, end))
        self._ends[start] = (aborted, state.encode())

    def _first_unsynced(self, segments: list[Segment]) -> tuple[int, int]:
        """Return (index of the segment where checking starts, its durable bytes)."""
        checkpoint = self._checkpoint
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
        self._cut_bytes += cut_bytes
        self._changed = True
        segment.file.truncate(torn.position)

    def _drop(self, segments: list[Segment], start: int, reason: str) -> None:
        for segment in reversed(segments[start:]):
            logger.warning(
                "%s: removed with %d bytes that were never acknowledged: %s",
                segment.path, segment.size_bytes, reason,
            )  # fmt: skip
            self._cut_bytes += segment.size_bytes
            self._changed = True
            remove_segment_files(self._folder, self._cache, segment.base_offset)
        del segments[start:]

    def _make_durable(self, segments: list[Segment]) -> None:
        """Write the unsynced part again, sync it, and say so in the checkpoint."""
        checkpoint = self._checkpoint
        for segment in segments:
            if segment.file is None:
                continue
            at_checkpoint = (
                checkpoint is not None and checkpoint.segment_base == segment.base_offset
            )
            start = checkpoint.segment_bytes if checkpoint is not None and at_checkpoint else 0
            _rewrite(segment.file, start, segment.size_bytes)
            segment.file.truncate(segment.size_bytes)
            segment.file.fdatasync()
        active = segments[-1]
        removed = remove_outside(
            self._disk, self._folder, segments[0].base_offset, active.next_offset
        )
        if self._remove_stale(active) or removed or not self._is_covered(segments):
            self._disk.fsync_dir(self._folder)
            self._seal_all(segments)
            self._write_checkpoint(segments)

    def _is_covered(self, segments: list[Segment]) -> bool:
        """Tell whether the checkpoint says all that there is to say: nothing was behind it."""
        checkpoint, active = self._checkpoint, segments[-1]
        return (
            checkpoint is not None
            and not self._changed
            and not checkpoint.clean
            and checkpoint.segment_base == active.base_offset
            and checkpoint.segment_bytes == active.size_bytes
            and checkpoint.synced_offset == active.next_offset
            and checkpoint.log_start_offset == segments[0].base_offset
        )

    def _seal_all(self, segments: list[Segment]) -> None:
        unsealed = [segment for segment in segments[:-1] if segment.file is not None]
        for segment in unsealed:
            self._seal(segment)
        if unsealed:
            epochs = self._replayed.epochs.encode()
            self._disk.write_file_atomic(self._folder / EPOCHS_NAME, epochs)

    def _write_checkpoint(self, segments: list[Segment]) -> None:
        active = segments[-1]
        self._disk.write_file_atomic(
            self._folder / CHECKPOINT_NAME,
            Checkpoint(
                synced_offset=active.next_offset,
                segment_base=active.base_offset,
                segment_bytes=active.size_bytes,
                log_start_offset=segments[0].base_offset,
                fence=self._fence,
            ).file_content(),
        )

    def _seal(self, segment: Segment) -> None:
        assert segment.live_index is not None
        assert segment.file is not None
        aborted, snapshot = self._ends[segment.base_offset]
        index = segment.live_index.encode(segment.summary())
        self._disk.write_file_atomic(segment.index_path(), index)
        self._disk.write_file_atomic(segment.path.with_suffix(ABORTED_SUFFIX), aborted)
        write_snapshot(self._disk, self._folder, segment.next_offset, snapshot)
        segment.file.close()
        segment.file = segment.live_index = None

    def _read_epochs(self, segments: list[Segment]) -> LeaderEpochs:
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

    def _complete_aborted_files(self, segments: list[Segment]) -> None:
        present = set(self._disk.list_dir(self._folder))
        for segment in segments[:-1]:
            if file_name(segment.base_offset, ABORTED_SUFFIX) not in present:
                write_aborted_file(self._folder, segments, segment)


def _rewrite(file: DiskFile, start: int, end: int) -> None:
    while start < end:
        data = file.pread(min(SCAN_WINDOW_BYTES, end - start), start)
        file.pwrite(start, data)
        start += len(data)


def remove_segment_files(folder: Path, cache: SealedCache, base_offset: int) -> None:
    """Remove all files of one segment; durable after `fsync_dir`."""
    cache.forget(folder / file_name(base_offset, LOG_SUFFIX))
    prefix = file_name(base_offset, ".")
    for name in cache.disk.list_dir(folder):
        if name.startswith(prefix):
            cache.disk.remove(folder / name)
