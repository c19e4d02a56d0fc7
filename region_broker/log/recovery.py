"""Opening a log: what a crash may have torn is cut, what was durable is proved, state is rebuilt.

INV-R1  after a clean close no segment is read; otherwise the segment of the checkpoint and those behind it are
        read, with CRC
INV-R2  only bytes at or behind the checkpoint are ever cut: the first incomplete or wrong batch there and all that
        follows it, for none of that was acknowledged
INV-R3  a wrong or missing byte below the checkpoint is `LogDamaged`: the partition fails, nothing is touched
INV-R4  what is kept from behind the checkpoint is written again before it is synced: after a failed sync the
        kernel may hold pages as clean that never reached the disk
INV-R5  state == replay(log), whichever snapshot it started from

Not here: appending and the rest of a log's life (`partition_log`).
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idempotency.partition_state import AbortedTxn, PartitionState
from idempotency.record_batch import (
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    crc_ok,
    read_header,
    read_marker,
)
from region_broker.log.cleaning.state import NEVER_CLEANED, CleanMark, finish_swap, read_mark
from region_broker.log.disk import TEMPORARY_SUFFIX, DiskFile
from region_broker.log.failures import LogDamaged
from region_broker.log.log_config import LogConfig
from region_broker.log.segment import (
    ABORTED_SUFFIX,
    INDEX_SUFFIX,
    LOG_SUFFIX,
    SealedCache,
    Segment,
    file_name,
)
from region_broker.log.side_files.aborted_index import encode_aborted
from region_broker.log.side_files.checked_file import NO_MARK, Checkpoint, FrameError, JournalMark
from region_broker.log.side_files.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.side_files.leader_epochs import LeaderEpochs
from region_broker.log.side_files.producer_snapshots import (
    load_newest,
    remove_outside,
    write_snapshot,
)
from region_broker.log.side_files.sparse_index import SparseIndex

logger: Final = logging.getLogger(__name__)

EPOCHS_NAME: Final = "leader-epochs"
SCAN_WINDOW_BYTES: Final = 8 << 20


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A log ready for use: at least one segment, the last one active with file and index in memory.

    `fence`: that of its checkpoint, to be kept in those that follow (INV-K4).
    """

    segments: list[Segment]
    state: PartitionState
    epochs: LeaderEpochs
    clean: bool
    cut_bytes: int = 0
    mark: CleanMark = NEVER_CLEANED
    fence: JournalMark = NO_MARK


@dataclass(frozen=True, slots=True)
class TornAt:
    """Where whole batches end in a segment, and why."""

    position: int
    reason: str


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
        if name.endswith((INDEX_SUFFIX, ABORTED_SUFFIX)) and int(name[:20]) not in bases:
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
            fence=fence,
        ).encode(),
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
        self._read_from = 0
        self._epochs = LeaderEpochs()

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
        epochs_known = self._load_epochs()
        clean = self._is_clean(segments)
        if clean:
            self._open_clean(segments[-1])
        else:
            self._check(segments)
            self._make_durable(segments)
        if not epochs_known and (clean or self._read_from > 0):
            self._rebuild_epochs(segments)
        end_offset = segments[-1].next_offset
        state = rebuild_state(self._folder, segments, end_offset)
        self._complete_aborted_files(segments)
        state.forget_aborted_below(segments[-1].base_offset)
        return RecoveredLog(
            segments=segments,
            state=state,
            epochs=self._epochs,
            clean=clean,
            cut_bytes=self._cut_bytes,
            mark=self._mark,
            fence=self._fence,
        )

    def _list_segments(self, bases: list[int]) -> list[Segment]:
        start = self._checkpoint.log_start_offset if self._checkpoint is not None else 0
        live = [base for base in bases if base >= start]
        for base in bases:
            if base < start:  # retention was interrupted by a crash
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

    def _open_clean(self, active: Segment) -> None:
        assert self._checkpoint is not None
        active.next_offset = self._checkpoint.synced_offset
        active.file = self._disk.open(active.path)
        found = active.read_index_file()
        if found is not None and found[1].size_bytes == active.size_bytes:
            active.adopt(*found)
        else:
            active.live_index = active.rebuild_index()

    def _check(self, segments: list[Segment]) -> None:
        """Prove the durable part, read the rest, cut behind the last whole batch."""
        first, durable_bytes = self._first_unsynced(segments)
        self._read_from = first
        for at, segment in enumerate(segments[:first]):
            self._check_sealed(segment, segments[at + 1].base_offset)
        self._epochs.truncate_end(segments[first].base_offset)
        for at in range(first, len(segments)):
            segment = segments[at]
            if at > first and segment.base_offset != segments[at - 1].next_offset:
                self._drop(segments, at, f"it starts at {segment.base_offset}, not at the end")
                break
            torn = self._read_whole(segment)
            if torn is None:
                continue
            if torn.position < durable_bytes and at == first:
                raise LogDamaged(
                    f"{segment.path}: {torn.reason} at byte {torn.position}, but {durable_bytes} bytes "
                    "were durable: restore the file from a mirror region; nothing was changed"
                )
            self._drop(segments, at + 1, "the segment before it is torn")
            self._cut(segment, torn)
            break

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

    def _read_whole(self, segment: Segment) -> TornAt | None:
        """Index every whole batch; return where they end if that is not the end of the file."""
        size_bytes = segment.size_bytes
        segment.size_bytes, segment.next_offset = 0, segment.base_offset
        segment.file = self._disk.open(segment.path)
        segment.live_index = SparseIndex(self._config.index_interval_bytes)
        holes_below = self._mark.holes_below
        for item in scan(segment.file, size_bytes, segment.base_offset, holes_below):
            if isinstance(item, TornAt):
                return item
            segment.note_batch(item)
            self._epochs.note(item.leader_epoch, item.base_offset)
        return None

    def _cut(self, segment: Segment, torn: TornAt) -> None:
        assert segment.file is not None
        cut_bytes = segment.file.size() - torn.position
        logger.warning(
            "%s: %s at byte %d: %d bytes that were never acknowledged are cut off",
            segment.path, torn.reason, torn.position, cut_bytes,
        )  # fmt: skip
        self._cut_bytes += cut_bytes
        segment.file.truncate(torn.position)

    def _drop(self, segments: list[Segment], start: int, reason: str) -> None:
        for segment in reversed(segments[start:]):
            logger.warning(
                "%s: removed with %d bytes that were never acknowledged: %s",
                segment.path, segment.size_bytes, reason,
            )  # fmt: skip
            self._cut_bytes += segment.size_bytes
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
            segment.file.fdatasync()
        active = segments[-1]
        remove_outside(self._disk, self._folder, segments[0].base_offset, active.next_offset)
        self._disk.fsync_dir(self._folder)
        for segment in segments[:-1]:
            if segment.file is not None:
                self._seal(segment)
        self._disk.write_file_atomic(
            self._folder / CHECKPOINT_NAME,
            Checkpoint(
                synced_offset=active.next_offset,
                segment_base=active.base_offset,
                segment_bytes=active.size_bytes,
                log_start_offset=segments[0].base_offset,
                fence=self._fence,
            ).encode(),
        )

    def _seal(self, segment: Segment) -> None:
        assert segment.live_index is not None
        assert segment.file is not None
        data = segment.live_index.encode(segment.summary())
        self._disk.write_file_atomic(segment.index_path(), data)
        segment.file.close()
        segment.file = segment.live_index = None
        aborted = segment.path.with_suffix(ABORTED_SUFFIX)
        if self._disk.exists(aborted):
            self._disk.remove(aborted)

    def _load_epochs(self) -> bool:
        path = self._folder / EPOCHS_NAME
        try:
            self._epochs = LeaderEpochs.decode(self._disk.read_file(path))
        except FileNotFoundError:
            return False
        except FrameError as error:
            logger.warning("%s is built again from the whole log: %s", path, error)
            return False
        return True

    def _rebuild_epochs(self, segments: list[Segment]) -> None:
        self._epochs = LeaderEpochs()
        for segment in segments:
            for _, header in segment.walk(0):
                self._epochs.note(header.leader_epoch, header.base_offset)

    def _complete_aborted_files(self, segments: list[Segment]) -> None:
        present = set(self._disk.list_dir(self._folder))
        for segment in segments[:-1]:
            if file_name(segment.base_offset, ABORTED_SUFFIX) not in present:
                write_aborted_file(self._folder, segments, segment)


def scan(
    file: DiskFile, size_bytes: int, base_offset: int, holes_below: int = 0
) -> Iterator[BatchHeader | TornAt]:
    """Yield the header of each whole, sound batch in order, then a TornAt if the file goes on behind them.

    Offsets may be missing below `holes_below`, where the log, or the one that it mirrors, was cleaned.
    """
    position = 0
    expected_offset = base_offset
    window_bytes = SCAN_WINDOW_BYTES
    while position < size_bytes:
        window = file.pread(min(window_bytes, size_bytes - position), position)
        at = 0
        while at < len(window):
            try:
                header = read_header(window, at)
            except BatchError as error:
                if len(window) - at < HEADER_BYTES and position + len(window) < size_bytes:
                    break  # the header is cut by the window, not by the file
                yield TornAt(position + at, str(error))
                return
            end = at + header.size_bytes
            if end > len(window) and position + end <= size_bytes:
                break
            reason = _fault(window, at, header, expected_offset, holes_below)
            if reason:
                yield TornAt(position + at, reason)
                return
            yield header
            expected_offset = header.next_offset
            at = end
        window_bytes = SCAN_WINDOW_BYTES
        if at == 0:  # one batch larger than the window
            window_bytes = max(window_bytes, read_header(window, 0).size_bytes)
        position += at


def _fault(
    window: bytes, at: int, header: BatchHeader, expected_offset: int, holes_below: int
) -> str:
    if at + header.size_bytes > len(window):
        return f"the batch of offset {header.base_offset} is cut off"
    hole = expected_offset < header.base_offset <= holes_below
    if header.base_offset != expected_offset and not hole:
        return f"a batch of offset {header.base_offset} where {expected_offset} follows"
    if not crc_ok(window, at, header):
        return f"the batch of offset {header.base_offset} has a wrong CRC"
    return ""


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


def rebuild_state(folder: Path, segments: list[Segment], end_offset: int) -> PartitionState:
    """Return the state after exactly the batches below `end_offset`: newest sound snapshot, then replay."""
    start_offset = segments[0].base_offset
    found = load_newest(segments[0].cache.disk, folder, start_offset, end_offset)
    offset, state = found if found is not None else (start_offset, PartitionState())
    replay(segments, state, offset, end_offset)
    return state


def keep_state_at(folder: Path, segments: list[Segment], offset: int) -> None:
    """Make sure of a snapshot at `offset`, durably."""
    disk = segments[0].cache.disk
    if load_newest(disk, folder, offset, offset) is None:
        state = rebuild_state(folder, segments, offset)
        write_snapshot(disk, folder, offset, state.encode())


def replay(segments: list[Segment], state: PartitionState, start: int, end: int) -> None:
    """Apply the batches of [start, end), both batch boundaries, to `state`."""
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end:
            continue
        for position, header in segment.walk(segment.position_of(start), segment.position_of(end)):
            if header.is_control:
                batch = segment.reader().pread(header.size_bytes, position)
                state.apply(header, read_marker(batch))
            else:
                state.apply(header)


def write_aborted_file(
    folder: Path, segments: list[Segment], segment: Segment
) -> tuple[AbortedTxn, ...]:
    """Build the aborted index of a sealed segment again by replay, and write it durably."""
    path = segment.path.with_suffix(ABORTED_SUFFIX)
    logger.info("%s is built again", path)
    disk = segment.cache.disk
    state = rebuild_state(folder, segments, segment.base_offset)
    replay(segments, state, segment.base_offset, segment.next_offset)
    entries = aborted_with_marker_in(state, segment.base_offset, segment.next_offset)
    disk.write_file_atomic(path, encode_aborted(entries))
    return entries


def aborted_with_marker_in(state: PartitionState, start: int, end: int) -> tuple[AbortedTxn, ...]:
    """Return the aborted transactions whose marker lies in [start, end)."""
    return tuple(entry for entry in state.aborted_in(start, end, end) if entry.last_offset >= start)
