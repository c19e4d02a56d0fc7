"""What a check kept of a log is made durable before anything is added to it.

INV-R4  what is kept from behind the checkpoint is written again, and cut again at its end, before it is synced: after a
        failed sync the kernel may hold pages, and a size, as clean that never reached the disk
INV-R6  the names in the folder of a log that was not closed are synced, as this start finds them: the life before may have
        made, renamed or removed files, and been killed before it synced that
The open segment has no index file: what a cut or an unfinished seal left would be wrong once it grows.

Not here: what is kept (`recovery.checking`).
"""

from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.log.indexes.checked_file import Checkpoint
from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME
from region_broker.log.indexes.producer_snapshots import remove_outside, write_snapshot
from region_broker.log.indexes.recovery_checkpoint import RECOVERY_CHECKPOINT_SUFFIX
from region_broker.log.recovery.checking import Found, LogAsLeft
from region_broker.log.replay import SCAN_WINDOW_BYTES
from region_broker.log.segment import Segment
from region_broker.ports.disk import DiskFile


def make_durable(left: LogAsLeft, found: Found, segments: list[Segment]) -> None:
    """Write the unsynced part again, sync it, and say so in the checkpoint."""
    checkpoint, active = left.checkpoint, segments[-1]
    for segment in segments:
        if segment.file is None:
            continue
        start = 0
        if checkpoint is not None and checkpoint.segment_base == segment.base_offset:
            start = checkpoint.segment_bytes
        _rewrite(segment.file, start, segment.size_bytes)
        segment.file.truncate(segment.size_bytes)
        segment.file.fdatasync()
    removed = remove_outside(left.disk, left.folder, segments[0].base_offset, active.next_offset)
    stale = _remove_stale(left, found, active)
    left.disk.fsync_dir(left.folder)
    if stale or removed or not _is_covered(left, found, segments):
        _seal_all(left, found, segments)
        left.disk.write_file_atomic(
            left.folder / CHECKPOINT_NAME,
            Checkpoint(
                synced_offset=active.next_offset,
                segment_base=active.base_offset,
                segment_bytes=active.size_bytes,
                log_start_offset=segments[0].base_offset,
                fence=left.fence,
            ).file_content(),
        )


def _remove_stale(left: LogAsLeft, found: Found, active: Segment) -> bool:
    """Remove recovery checkpoints that are not used, and what a seal that was undone left of the open segment; tell if
    there was any.

    Durable after `fsync_dir`, before anything is appended (INV-BKM2).
    """
    used = None if found.recovery_checkpoint is None else found.recovery_checkpoint.segment_base
    there_was_any = False
    for name in left.disk.list_dir(left.folder):
        is_index = name.endswith((INDEX_SUFFIX, ABORTED_SUFFIX))
        if (name.endswith(RECOVERY_CHECKPOINT_SUFFIX) and int(name[:20]) != used) or (
            is_index and int(name[:20]) == active.base_offset
        ):
            left.disk.remove(left.folder / name)
            there_was_any = True
    return there_was_any


def _is_covered(left: LogAsLeft, found: Found, segments: list[Segment]) -> bool:
    """Return whether the checkpoint says all that there is to say: nothing was behind it."""
    checkpoint, active = left.checkpoint, segments[-1]
    return (
        checkpoint is not None
        and not found.changed
        and not checkpoint.clean
        and checkpoint.segment_base == active.base_offset
        and checkpoint.segment_bytes == active.size_bytes
        and checkpoint.synced_offset == active.next_offset
        and checkpoint.log_start_offset == segments[0].base_offset
    )


def _seal_all(left: LogAsLeft, found: Found, segments: list[Segment]) -> None:
    unsealed = [segment for segment in segments[:-1] if segment.file is not None]
    for segment in unsealed:
        _seal(left, segment, *found.ends[segment.base_offset])
    if unsealed:
        left.disk.write_file_atomic(left.folder / EPOCHS_NAME, found.replayed.epochs.encode())


def _seal(left: LogAsLeft, segment: Segment, aborted: bytes, snapshot: bytes) -> None:
    assert segment.live_index is not None
    assert segment.file is not None
    index = segment.live_index.encode(segment.summary())
    left.disk.write_file_atomic(segment.index_path(), index)
    left.disk.write_file_atomic(segment.path.with_suffix(ABORTED_SUFFIX), aborted)
    write_snapshot(left.disk, left.folder, segment.next_offset, snapshot)
    segment.file.close()
    segment.file = segment.live_index = None


def _rewrite(file: DiskFile, start: int, end: int) -> None:
    while start < end:
        data = file.pread(min(SCAN_WINDOW_BYTES, end - start), start)
        file.pwrite(start, data)
        start += len(data)
