"""Opening a log: its files as a crash or a stop left them become a log that is ready for use.

INV-R1  after a clean close no segment is read, if the recovery checkpoint holds that the close left; otherwise the
        segment of the checkpoint, from its recovery checkpoint on, and those behind it are read, once, with CRC
INV-R7  a log that is refused for what its checkpoint says is refused by every later start, too, a power cut in between or
        not: the checkpoint may be in the page cache only, and an older one would take what is damaged for a torn tail
INV-R10  a log that is made says that the next start has nothing to look at once its names are durable, and not before: that start syncs none
         (INV-R6). Else a power cut took the checkpoint from under a segment that was never synced, and the log was damaged

Not here: appending and the rest of a log's life (`partition_log`), what is proved and cut (`recovery.checking`), how it
is made durable (`recovery.settling`), what batches come to (`replay`).
"""

import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

from idempotency.partition_state import PartitionState
from region_broker.log.cleaning.state import (
    DROPPED_NAME,
    MARK_NAME,
    NEVER_CLEANED,
    CleanMark,
    finish_swap,
    read_mark,
)
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX, LOG_SUFFIX, file_name
from region_broker.log.indexes.checked_file import NO_MARK, Checkpoint, FrameError, JournalMark
from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME, CheckpointFile
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.log.indexes.log_start import LOG_START_NAME
from region_broker.log.indexes.recovery_checkpoint import RECOVERY_CHECKPOINT_SUFFIX
from region_broker.log.indexes.sparse_index import SparseIndex
from region_broker.log.log_config import LogConfig
from region_broker.log.recovery.checking import Check, Found, LogAsLeft
from region_broker.log.recovery.settling import make_durable
from region_broker.log.replay import write_aborted_file
from region_broker.log.segment import SealedCache, Segment
from region_broker.ports.disk import TEMPORARY_SUFFIX, Disk, sync_as_found

logger: Final = logging.getLogger(__name__)

_DECIDING: Final = frozenset({MARK_NAME, DROPPED_NAME, LOG_START_NAME})
"""Small files of a log that count also where nothing has changed since it was closed."""
_OF_SEGMENTS: Final = (INDEX_SUFFIX, ABORTED_SUFFIX, RECOVERY_CHECKPOINT_SUFFIX)


@dataclass(slots=True, kw_only=True)
class RecoveredLog:
    """A log ready for use: at least one segment, the last one active with file and index in memory.

    `clean`: nothing was read. `settled`: the checkpoint says that the next start need not read, either.
    `fence`: that of its checkpoint, to be kept in those that follow (INV-K4). `checkpointed_bytes`: of the last
    segment, below the recovery checkpoint that is there.
    """

    segments: list[Segment]
    state: PartitionState
    epochs: LeaderEpochs
    clean: bool
    settled: bool = False
    cut_bytes: int = 0
    checkpointed_bytes: int = 0
    mark: CleanMark = NEVER_CLEANED
    fence: JournalMark = NO_MARK


def recover(
    folder: Path, cache: SealedCache, config: LogConfig, journal_mark: JournalMark = NO_MARK
) -> RecoveredLog:
    """Open or create the log in `folder`; raises LogDamaged, or OSError of the disk.

    `journal_mark`: the last block of the journal. What it has under the id of a log that is made now is of another one,
    which was dropped: the fence of a new log is that mark (INV-K4).
    """
    disk = cache.disk
    disk.make_dirs(folder)
    if _DECIDING.intersection(disk.list_dir(folder)):
        disk.fsync_dir(folder)  # INV-DK6; other names wait for INV-R6
    try:
        finish_swap(disk, folder)
        mark = read_mark(disk, folder)
    except FrameError as error:
        raise LogDamaged(
            f"{folder}: what says how far it was cleaned is damaged: {error}"
        ) from error
    bases = _tidied(folder, disk)
    checkpoint = _read_checkpoint(folder, cache)
    if (
        checkpoint is not None
        and checkpoint.segment_bytes == 0
        and checkpoint.segment_base == checkpoint.log_start_offset
        and checkpoint.segment_base not in bases
    ):  # given up as a whole (`LogTrimmer.start_at`), or just made: of a log that was cut, full segments are to stay
        return _create(folder, cache, config, checkpoint.segment_base, checkpoint.fence)
    if checkpoint is None and not any(_log_bytes(folder, cache, base) for base in bases):
        return _create(folder, cache, config, bases[0] if bases else 0, journal_mark)
    left = LogAsLeft(folder, cache, config, checkpoint, mark)
    try:
        return _checked(left, bases)
    except LogDamaged:
        if checkpoint is not None:
            _keep_the_proof(disk, folder / CHECKPOINT_NAME)
        raise


def _checked(left: LogAsLeft, bases: list[int]) -> RecoveredLog:
    check = Check(left)
    segments = check.list_segments(bases)
    try:
        return _open(check, segments)
    except (LogDamaged, OSError):
        for segment in segments:
            if segment.file is not None:
                segment.file.close()
        raise


def _keep_the_proof(disk: Disk, path: Path) -> None:
    """Make the checkpoint durable that shows the damage (INV-R7); where that fails, say so, and let the refusal stand."""
    try:
        sync_as_found(disk, path)
    except OSError:
        logger.exception(
            "%s could not be synced: after a power cut, the damage may be taken for a tail that was never acknowledged",
            path,
        )


def _tidied(folder: Path, disk: Disk) -> list[int]:
    """Return the base offsets of the segments; remove what was half written, and what belongs to none of them."""
    names = disk.list_dir(folder)
    for name in names:
        if name.endswith(TEMPORARY_SUFFIX):
            disk.remove(folder / name)
    bases = {int(name[:20]) for name in names if name.endswith(LOG_SUFFIX)}
    for name in names:
        # The power went while a segment was removed: no later segment of that base may find its indexes.
        if name.endswith(_OF_SEGMENTS) and int(name[:20]) not in bases:
            disk.remove(folder / name)
    return sorted(bases)


def _read_checkpoint(folder: Path, cache: SealedCache) -> Checkpoint | None:
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
    fence: JournalMark,
) -> RecoveredLog:
    """Start an empty log at `base_offset`; whatever else is in the folder belongs to a log given up."""
    disk = cache.disk
    for name in disk.list_dir(folder):
        if name[:20].isdigit() or name == EPOCHS_NAME:
            disk.remove(folder / name)
    _claim_empty(folder, disk, base_offset, fence)
    segment = Segment.create(folder, cache, config, base_offset)
    _settle_empty(folder, disk, base_offset, fence)
    return RecoveredLog(
        segments=[segment],
        state=PartitionState(),
        epochs=LeaderEpochs(),
        clean=False,
        settled=True,
        fence=fence,
    )


def _claim_empty(folder: Path, disk: Disk, base_offset: int, fence: JournalMark) -> None:
    """Say that an empty log begins here, before its only segment is there: what the journal has of an earlier one is none of it (INV-K4)."""
    path = folder / CHECKPOINT_NAME
    content = _empty_checkpoint(base_offset, fence).file_content()
    if disk.exists(path):  # what it says counts, so it is replaced as a whole
        disk.fsync_dir(folder)
        disk.write_file_atomic(path, content)
    else:
        _write_new(disk, path, content)


def _settle_empty(folder: Path, disk: Disk, base_offset: int, fence: JournalMark) -> None:
    """Make it durable, now that its segment is there, and let the next start believe it (INV-R10)."""
    disk.fsync_dir(folder)
    checkpoint = CheckpointFile(disk, folder, fence, base_offset, clean=False)
    try:
        checkpoint.force(replace(_empty_checkpoint(base_offset, fence), clean=True))
    finally:
        checkpoint.close()


def _empty_checkpoint(base_offset: int, fence: JournalMark) -> Checkpoint:
    return Checkpoint(
        synced_offset=base_offset,
        segment_base=base_offset,
        segment_bytes=0,
        log_start_offset=base_offset,
        fence=fence,
    )


def _write_new(disk: Disk, path: Path, data: bytes) -> None:
    file = disk.open(path, create=True)
    try:
        file.pwrite(0, data)
        file.fdatasync()
    finally:
        file.close()


def lay_out(folder: Path, disk: Disk, fence: JournalMark) -> None:
    """Make an empty log that begins at 0, of which nothing is on the disk, for somebody to open; in any thread. Raises OSError.

    `fence`: see `recover`.
    """
    disk.make_dirs(folder)
    _claim_empty(folder, disk, 0, fence)
    disk.open(folder / file_name(0, LOG_SUFFIX), create=True).close()
    _settle_empty(folder, disk, 0, fence)


def _open(check: Check, segments: list[Segment]) -> RecoveredLog:
    """Check, cut, rebuild."""
    left = check.left
    clean = (
        left.is_clean(segments) and check.are_as_sealed(segments) and _is_as_closed(check, segments)
    )
    if not clean:
        check.run(segments)
        make_durable(left, check.found, segments)
    present = set(left.disk.list_dir(left.folder))
    for segment in segments[:-1]:
        if file_name(segment.base_offset, ABORTED_SUFFIX) not in present:
            write_aborted_file(left.folder, segments, segment)
    found = check.found
    found.replayed.state.forget_aborted_below(segments[-1].base_offset)
    found.replayed.epochs.truncate_start(segments[0].base_offset)
    return RecoveredLog(
        segments=segments,
        state=found.replayed.state,
        epochs=found.replayed.epochs,
        clean=clean,
        settled=clean,
        cut_bytes=found.cut_bytes,
        checkpointed_bytes=found.checkpointed_bytes(segments[-1]),
        mark=left.mark,
        fence=left.fence,
    )


def _is_as_closed(check: Check, segments: list[Segment]) -> bool:
    """Take a log that was closed as its recovery checkpoint says; False if there is none that holds: then it is read.

    Without one, leader epochs and the state would be those of the last seal. Only a log that never held anything has
    none.
    """
    left, active = check.left, segments[-1]
    assert left.checkpoint is not None
    size_bytes = active.size_bytes
    active.next_offset = left.checkpoint.synced_offset
    active.file = left.disk.open(active.path)
    if check.begin_at_recovery_checkpoint(active, size_bytes) and active.size_bytes == size_bytes:
        return True
    check.found = Found()
    if size_bytes == 0 and len(segments) == 1:
        active.live_index = SparseIndex(left.config.index_interval_bytes)
        check.begin_at_base(segments, 0)
        return True
    active.file.close()
    active.file = active.live_index = None
    active.size_bytes, active.next_offset = size_bytes, active.base_offset
    return False
