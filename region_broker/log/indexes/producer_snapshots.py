"""Snapshots of a partition's state, so that opening a log does not replay all of it.

INV-NP2  a damaged snapshot is said loudly and skipped: an older one, or none, and more replay give the same
        state
         (so the cleaner leaves none below what it has cleaned: the batches that followed it are gone)
INV-NP3  no snapshot survives a cut below its offset: the offsets above are used again
The snapshot named N is the state after exactly the batches below offset N, and N is durable in the log.

Not here: the content (`idempotency.partition_state`), replay (`recovery`).
"""

import logging
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final

from idempotency.partition_state import PartitionState, SnapshotError
from idempotency.pieces import Pieces, drained
from idempotency.snapshot_codec import check_snapshot
from region_broker.log.file_names import SNAPSHOT_SUFFIX, file_name
from region_broker.ports.disk import Disk

logger: Final = logging.getLogger(__name__)

RECENT_KEPT: Final = 4
"""How many snapshots within the open segment are kept, each written with a recovery checkpoint: a cut replays from one of them (INV-BKD3)."""


def snapshot_offsets(names: Iterable[str]) -> list[int]:
    """Return the offsets of the snapshots among the names of a partition's folder, newest first."""
    return sorted(
        (
            int(name[:20])
            for name in names
            if name.endswith(SNAPSHOT_SUFFIX) and name[:20].isdigit()
        ),
        reverse=True,
    )


def load_newest(
    disk: Disk, folder: Path, log_start_offset: int, end_offset: int
) -> tuple[int, PartitionState] | None:
    """Return all of `newest_in_pieces` at once."""
    return drained(newest_in_pieces(disk, folder, log_start_offset, end_offset))


def newest_in_pieces(
    disk: Disk, folder: Path, log_start_offset: int, end_offset: int
) -> Pieces[tuple[int, PartitionState] | None]:
    """Return (offset, state) of the newest sound snapshot in [log start, end]; None without one."""
    for offset in snapshot_offsets(disk.list_dir(folder)):
        if not log_start_offset <= offset <= end_offset:
            continue
        path = folder / file_name(offset, SNAPSHOT_SUFFIX)
        try:
            state = yield from PartitionState.decode_in_pieces(disk.read_file(path))
        except SnapshotError as error:
            logger.warning(
                "%s is damaged and ignored, more of the log is replayed: %s", path, error
            )
        else:
            return offset, state
    return None


def has_sound(disk: Disk, folder: Path, offset: int) -> bool:
    """Return whether there is a snapshot at `offset`, whole by its CRC; raises OSError of the disk."""
    path = folder / file_name(offset, SNAPSHOT_SUFFIX)
    try:
        check_snapshot(disk.read_file(path))
    except FileNotFoundError:
        return False
    except SnapshotError as error:
        logger.warning("%s is damaged, it is made again: %s", path, error)
        return False
    return True


def write_snapshot(disk: Disk, folder: Path, offset: int, data: bytes) -> None:
    """Write the snapshot durably; the log must be durable up to `offset`."""
    disk.write_file_atomic(folder / file_name(offset, SNAPSHOT_SUFFIX), data)


def remove_outside(disk: Disk, folder: Path, log_start_offset: int, end_offset: int) -> bool:
    """Remove the snapshots below the log's start and above its end; durable after `fsync_dir`. Return whether there
    was any."""
    found = False
    for offset in snapshot_offsets(disk.list_dir(folder)):
        if not log_start_offset <= offset <= end_offset:
            disk.remove(folder / file_name(offset, SNAPSHOT_SUFFIX))
            found = True
    return found


def remove_below(disk: Disk, folder: Path, offset: int) -> None:
    """Remove the snapshots below `offset`; durable after `fsync_dir`."""
    for older in snapshot_offsets(disk.list_dir(folder)):
        if older < offset:
            disk.remove(folder / file_name(older, SNAPSHOT_SUFFIX))


def recent_inside(disk: Disk, folder: Path, base: int) -> list[int]:
    """Return the snapshots within the open segment, which begins at `base`, that are kept: the newest `RECENT_KEPT`."""
    return _behind(disk, folder, base)[:RECENT_KEPT]


def remove_older_inside(disk: Disk, folder: Path, base: int) -> None:
    """Remove the snapshots within the open segment but those that are kept; durable after `fsync_dir`."""
    for offset in _behind(disk, folder, base)[RECENT_KEPT:]:
        disk.remove(folder / file_name(offset, SNAPSHOT_SUFFIX))


def _behind(disk: Disk, folder: Path, base: int) -> list[int]:
    return [offset for offset in snapshot_offsets(disk.list_dir(folder)) if offset > base]


def remove_inside(disk: Disk, folder: Path, bounds: Sequence[int]) -> None:
    """Remove the snapshots within sealed segments in a row, from each of `bounds` to the next; durable after `fsync_dir`."""
    for offset in snapshot_offsets(disk.list_dir(folder)):
        if bounds[0] < offset < bounds[-1] and offset not in bounds:
            disk.remove(folder / file_name(offset, SNAPSHOT_SUFFIX))


def remove_between(disk: Disk, folder: Path, keep: Iterable[int]) -> None:
    """Remove the snapshots of earlier closes: all but those at the offsets to `keep`."""
    kept = set(keep)
    for offset in snapshot_offsets(disk.list_dir(folder)):
        if offset not in kept:
            disk.remove(folder / file_name(offset, SNAPSHOT_SUFFIX))
