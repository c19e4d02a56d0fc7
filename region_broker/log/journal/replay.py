"""Opening the journal: what it holds goes into the logs' own files before any log is opened.

INV-JR1  replay writes only what is not below a log's checkpoint and not within its fence; so doing it again changes
        nothing, and neither does a block that is left of a log that was cut, deleted or started again
INV-JR3  if one log cannot take its bytes, the old life is kept, unused, and that log is not opened: nothing is lost
A log's bytes are synced, and its checkpoint says so, before the journal begins a new life.

    1. A block is synced, its appends are acknowledged; the logs' files are still in the page cache. 2. The power
    fails: of the files, any part may be missing. 3. Replay writes all of it again and raises the checkpoint. 4. Log
    recovery finds every acknowledged byte below the checkpoint, and cuts what may be torn behind it (INV-R2).

Not here: what a block looks like (`blocks`), the rest of recovery (`recovery`).
"""

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final

from region_broker.log.file_names import LOG_SUFFIX, file_name
from region_broker.log.indexes.checked_file import Checkpoint, FrameError
from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME, CheckpointFile
from region_broker.log.journal.blocks import (
    ALIGN_BYTES,
    Entry,
    Head,
    LogId,
    read_blocks,
)
from region_broker.log.journal.writer import Journal
from region_broker.ports.disk import Disk, DiskFile

logger: Final = logging.getLogger(__name__)

JOURNAL_NAME: Final = "journal"
MANY_LOGS: Final = 32
REPLAY_THREADS: Final = 8


@dataclass(slots=True)
class OpenedJournal:
    """The journal, empty; and why some logs could not take what it held: they must not be opened (INV-JR3)."""

    journal: Journal
    refused: dict[LogId, str] = field(default_factory=dict)


def open_journal(
    disk: Disk, data_dir: Path, journal_bytes: int, first_serial: int
) -> OpenedJournal:
    """Bring the logs of `data_dir` up to the journal, and return it empty; made if it is not there.

    `first_serial`: the serial of a journal without predecessor; it must not be that of one that was removed, so
    take the wall clock. Raises LogDamaged, or OSError of the disk.
    """
    path = data_dir / JOURNAL_NAME
    half_bytes = max(journal_bytes // 2 // ALIGN_BYTES, 1) * ALIGN_BYTES
    if not disk.exists(path):
        return OpenedJournal(_create(disk, path, Head(first_serial, half_bytes)))
    file = disk.open(path)
    try:
        old = Head.read(file)
        entries = [] if old.closed else read_blocks(file, old)
        refused = _replay(_Source(disk, data_dir, file, old.serial), entries)
        if refused:
            last_number = entries[-1].block_number
            kept = Journal(file, old, last_number=last_number)
            kept.stop(
                f"{len(refused)} logs could not take what it holds: it is kept for the next start"
            )
            return OpenedJournal(kept, refused)
        head = Head(old.serial + 1, half_bytes)
        if half_bytes == old.half_bytes:
            head.write(file)
            return OpenedJournal(Journal(file, head))
    except BaseException:
        file.close()
        raise
    file.close()
    return OpenedJournal(_create(disk, path, head))


def _create(disk: Disk, path: Path, head: Head) -> Journal:
    # Written out whole, so that no block ever changes the file's size or its place on the disk.
    disk.write_file_atomic(path, head.file_content())
    return Journal(disk.open(path), head)


@dataclass(frozen=True, slots=True)
class _Source:
    """What is replayed, and where to."""

    disk: Disk
    data_dir: Path
    file: DiskFile
    serial: int


def _replay(source: _Source, entries: Sequence[Entry]) -> dict[LogId, str]:
    """Give every log what it lacks; return why some could not take it."""
    by_log: dict[LogId, list[Entry]] = {}
    for entry in entries:
        by_log.setdefault(entry.log_id, []).append(entry)
    if len(by_log) < MANY_LOGS:
        reasons = [_replay_into(source, log_id, found) for log_id, found in by_log.items()]
    else:  # each waits for the disk, and syncs of many files at once share its work
        with ThreadPoolExecutor(REPLAY_THREADS, thread_name_prefix="replay") as pool:
            reasons = list(pool.map(partial(_replay_into, source), by_log, by_log.values()))
    return {log_id: why for log_id, why in zip(by_log, reasons, strict=True) if why is not None}


def _replay_into(source: _Source, log_id: LogId, found: Sequence[Entry]) -> str | None:
    """Give one log what it lacks; return why it could not take it."""
    topic_id, partition = log_id
    folder = source.data_dir / topic_id.hex() / str(partition)
    if not source.disk.exists(folder):
        return None  # the topic was deleted
    try:
        _replay_log(source, folder, found)
    except OSError as error:
        logger.exception("%s could not take what the journal holds for it", folder)
        return f"{folder} could not take what the journal holds for it: {error}"
    return None


def _replay_log(source: _Source, folder: Path, entries: Sequence[Entry]) -> None:
    disk = source.disk
    checkpoint = _checkpoint(disk, folder)
    missing = [entry for entry in entries if _counts(source, folder, checkpoint, entry)]
    if not missing:
        return
    _write(source, folder, missing)
    last = missing[-1]
    logger.info("%s: %d appends up to offset %d come from the journal",
                folder, len(missing), last.next_offset)  # fmt: skip
    if checkpoint is None:
        return  # recovery checks the last segment whole
    raised = replace(
        checkpoint,
        synced_offset=last.next_offset,
        segment_base=last.segment_base,
        segment_bytes=last.position + last.size_bytes,
        clean=False,
    )
    _write_checkpoint(disk, folder, raised)


def _write_checkpoint(disk: Disk, folder: Path, checkpoint: Checkpoint) -> None:
    """Write it beside the one in force, as a running log does: one sync."""
    file = CheckpointFile(disk, folder, checkpoint.fence, 0, clean=False)
    try:
        file.force(checkpoint)
    finally:
        file.close()


def _write(source: _Source, folder: Path, entries: Sequence[Entry]) -> None:
    """Write entries into their segments and sync those."""
    disk = source.disk
    files: dict[int, DiskFile] = {}
    is_new = False
    try:
        for entry in entries:
            file = files.get(entry.segment_base)
            if file is None:
                path = folder / file_name(entry.segment_base, LOG_SUFFIX)
                is_new = is_new or not disk.exists(path)
                file = files[entry.segment_base] = disk.open(path, create=True)
            file.pwrite(entry.position, source.file.pread(entry.size_bytes, entry.at))
        for file in files.values():
            file.fdatasync()
    finally:
        for file in files.values():
            file.close()
    if is_new:
        disk.fsync_dir(folder)


def _checkpoint(disk: Disk, folder: Path) -> Checkpoint | None:
    try:
        return Checkpoint.decode(disk.read_file(folder / CHECKPOINT_NAME))
    except FileNotFoundError:
        return None
    except FrameError:
        return None  # recovery says it loudly


def _counts(source: _Source, folder: Path, checkpoint: Checkpoint | None, entry: Entry) -> bool:
    """Return whether the log may lack what an entry holds (INV-JR1)."""
    if checkpoint is None:  # older segments may be compacted by now
        names = source.disk.list_dir(folder)
        last = max((name for name in names if name.endswith(LOG_SUFFIX)), default="")
        return last == file_name(entry.segment_base, LOG_SUFFIX)
    fence = checkpoint.fence
    if fence.serial == source.serial and entry.block_number <= fence.number:
        return False
    return entry.next_offset > checkpoint.synced_offset
