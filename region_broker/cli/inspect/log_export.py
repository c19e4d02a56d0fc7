"""`tidemark log export`: the committed records of a topic's folder as lines that `tidemark produce` takes.

INV-EX2  what is printed is what `consume -o json` would have printed: neither markers, nor records of transactions that were
         aborted or have no end, nor what DeleteRecords took
INV-EX4  what is sealed and cannot be opened by the keys given counts as damage does: it is named with its key, and never printed
INV-EX3  damage is named with its position, and the exit code is 1; of that partition, what lies before it is printed. A full segment that is
         shorter than it was sealed, and one that is gone from between two others, are damage: what follows may hold the end of another transaction
The files are only read, and no node is asked: a deleted topic that is kept, a folder of a node that is down.
Not here: what a line looks like (`cli.records.lines`), which deletions are kept (`log.recovery.kept_deletions`).
"""

import sys
from bisect import bisect
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from idempotency.record_batch import BatchError, BatchHeader, ControlType, crc_ok, read_marker
from region_broker.cli.inspect.log_dump import batches_of, log, segments_of
from region_broker.cli.inspect.sealed_logs import (
    QUARANTINED_TAILS,
    NotOpened,
    keys_of,
    keys_option,
    opened,
)
from region_broker.cli.output import EXIT_FAILED, EXIT_NOT_FOUND, EXIT_USAGE, fail
from region_broker.cli.records.lines import json_line
from region_broker.log.cleaning.state import read_mark
from region_broker.log.file_names import INDEX_SUFFIX
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.indexes.log_start import read_log_start
from region_broker.log.indexes.sparse_index import SUMMARY_BYTES, SegmentSummary, peek_summary
from region_broker.log.recovery.kept_deletions import DeletionNote, note_of
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import RecordsError, iter_records
from region_broker.security.sealing.sealing import Sealing

__all__ = ["log"]

_QUARANTINED: Final = (
    "{} holds quarantined tails, and of their transactions nobody can say here which were committed: `tidemark log dump --records` prints what is"
    " in each of its files"
)
Ends = dict[int, list[tuple[int, ControlType]]]
"""Of each producer: where its transactions ended, and how."""


@log.command(
    "export",
    epilog="""\b
Examples:
  tidemark log export ./cluster/eu/logs/8f0c2b5de1d94f6e8d6b7c1f5a2e9d30.kept > orders.ndjson
  tidemark topic create orders --partitions 4
  tidemark produce orders --format json --file orders.ndjson
""",
)
@click.argument("folder", type=click.Path(path_type=Path))
@keys_option
def export(folder: Path, keys_file: Path | None) -> None:
    """Print the committed records of a topic, or of one partition, from its FOLDER: JSON, an object a line.

    For a topic that was deleted by mistake: `tidemark topic deleted` names the folder. The records get new offsets where
    they are produced again; the order within each partition stays.
    """
    partitions = _partitions(folder)
    note = note_of(RealDisk(), folder if folder not in partitions else folder.parent)
    if note.internal:
        fail(f"{folder} is of a ledger: it holds no records of clients", EXIT_USAGE)
    sealing = keys_of(keys_file)
    damage = []
    count = 0
    for partition in partitions:
        try:
            for line in lines_of(partition, note.name, sealing):
                sys.stdout.buffer.write(line + b"\n")
                count += 1
        except (_Damaged, NotOpened, FrameError, BatchError, RecordsError, OSError) as error:
            damage.append(f"{partition}: {error}")
    sys.stdout.buffer.flush()
    if damage:
        fail(f"{count} records, but not all: " + "; ".join(damage), EXIT_FAILED)
    click.echo(_told(note, len(partitions), count), err=True)


def _told(note: DeletionNote, partition_count: int, record_count: int) -> str:
    configs = "".join(f" --config {key}={value}" for key, value in sorted(note.configs.items()))
    made = f"tidemark topic create {note.name or 'NAME'} --partitions {partition_count}{configs}"
    return f"{record_count} committed records. The topic was as `{made}` makes it."


def _partitions(folder: Path) -> list[Path]:
    if not folder.is_dir():
        fail(f"there is no folder {folder}; `tidemark topic deleted` names them", EXIT_NOT_FOUND)
    numbered = sorted(
        (path for path in folder.iterdir() if path.name.isdecimal() and path.is_dir()),
        key=lambda path: int(path.name),
    )
    if numbered:
        return numbered
    if any(folder.glob(QUARANTINED_TAILS)):
        fail(_QUARANTINED.format(folder), EXIT_USAGE)
    if not folder.name.partition(".")[0].isdecimal():
        fail(f"{folder} is no topic's folder: it holds no partitions (0, 1, ...)", EXIT_NOT_FOUND)
    return [folder]


class _Damaged(Exception):
    """Bytes that are a batch by their form and not by their checksum, or a segment that is not what it was."""


def lines_of(partition: Path, topic: str, sealing: Sealing) -> Iterator[bytes]:
    """Yield the committed records of a partition's folder as JSON; raises what damage raises."""
    ends = _ends(partition)
    number = int(partition.name.partition(".")[0])
    log_start_offset = read_log_start(RealDisk(), partition)
    for header, batch in _sound_batches(partition):
        if header.is_control or not _is_committed(header, ends):
            continue
        for record in iter_records(opened(batch, header, partition / "0", sealing)):
            if record.offset >= log_start_offset:
                yield json_line(
                    topic, number, record.offset, record.timestamp_ms,
                    record.key, record.value, record.headers,
                )  # fmt: skip


def _sound_batches(partition: Path) -> Iterator[tuple[BatchHeader, bytes]]:
    segments = segments_of(partition)
    holes_below = read_mark(RealDisk(), partition).holes_below
    for at, segment in enumerate(segments):
        end, next_offset = 0, int(segment.stem)
        for position, header, batch in batches_of(segment):
            if not crc_ok(batch, 0, header):
                raise _Damaged(f"{segment.name}: at byte {position}: the checksum is wrong")
            end, next_offset = position + header.size_bytes, header.last_offset + 1
            yield header, batch
        if at + 1 < len(segments):
            _check_sealed(segment, end, next_offset, segments[at + 1], holes_below)


def _check_sealed(
    segment: Path, end: int, next_offset: int, following: Path, holes_below: int
) -> None:
    """Hold what a full segment came to against what it was sealed with, and where the next one begins (INV-EX3)."""
    next_base = int(following.stem)
    summary = _summary_of(segment)
    if summary is not None:
        next_offset = summary.next_offset
        if end != summary.size_bytes:
            raise _Damaged(
                f"{segment.name}: it ends at byte {end}, and was sealed with {summary.size_bytes} bytes"
            )
    elif next_offset <= holes_below:
        return  # what was compacted may end before the next one begins
    if next_offset != next_base:
        raise _Damaged(
            f"{segment.name}: it ends at offset {next_offset}, and the next one is {following.name}: what lies between is gone"
        )


def _summary_of(segment: Path) -> SegmentSummary | None:
    try:
        with segment.with_suffix(INDEX_SUFFIX).open("rb") as file:
            return peek_summary(file.read(SUMMARY_BYTES))
    except FileNotFoundError:
        return None


def _ends(partition: Path) -> Ends:
    """Read the markers. What is damaged ends it: what lies before is printed, judged by what is known."""
    ends: Ends = {}
    try:
        for header, batch in _sound_batches(partition):
            if header.is_control:
                marker = read_marker(batch)
                ends.setdefault(marker.producer_id, []).append(
                    (header.base_offset, marker.control_type)
                )
    except (_Damaged, BatchError):
        return ends  # the second reading comes to it, and says so
    return ends


def _is_committed(header: BatchHeader, ends: Ends) -> bool:
    """Return whether a batch stands by itself, or the next end of its producer's transactions is a commit.

    A commit's marker stays for as long as a record of its transaction (INV-CLX2).
    """
    if not header.is_transactional:
        return True
    own = ends.get(header.producer_id, [])
    at = bisect(own, header.last_offset, key=lambda end: end[0])
    return at < len(own) and own[at][1] is ControlType.COMMIT
