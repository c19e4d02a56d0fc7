"""Whether bytes of the primary region continue a mirror's log: pure, before anything is written.

INV-MBT1  batches continue at the log's end, with leader epochs that never go down; offsets are missing only below what
          the primary region said it has cleaned (T13)
INV-MBT3  what is written by one write spans no more offsets than a segment may have, whatever was compacted between
Every CRC is checked: what is damaged on the way, or at the primary, never gets into a second log.

Not here: fetching (`geo_replicator`), writing (`partition`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from idempotency.identity import LeaderEpoch, TopicPartition
from idempotency.record_batch import (
    BatchHeader,
    Buffer,
    MarkerFacts,
    crc_ok,
    iter_headers,
    read_marker,
)
from region_broker.log.failures import MirrorGap
from region_broker.log.log_config import INT32_MAX


@dataclass(frozen=True, slots=True)
class LogTail:
    """Where a mirror's log ends, and below which offset the primary region's may have holes."""

    end_offset: int
    leader_epoch: LeaderEpoch
    cleaned_at_primary: int


CheckedBatch: TypeAlias = tuple[BatchHeader, MarkerFacts | None]


@dataclass(frozen=True, slots=True)
class MirroredBatches:
    """Whole, sound batches in order; `has_holes`: offsets are missing in front of one of them."""

    batches: list[CheckedBatch]
    has_holes: bool


def check_mirrored(tp: TopicPartition, data: Buffer, tail: LogTail) -> MirroredBatches:
    """Return the batches of `data`. Raises MirrorGap if they do not continue the log, BatchError if one is damaged."""
    batches: list[CheckedBatch] = []
    expected_offset, epoch = tail.end_offset, tail.leader_epoch
    end = 0
    has_holes = False
    for position, header in iter_headers(data):
        hole = expected_offset < header.base_offset <= tail.cleaned_at_primary
        has_holes = has_holes or hole
        if (header.base_offset != expected_offset and not hole) or header.leader_epoch < epoch:
            raise MirrorGap(
                f"{tp}: a batch of offset {header.base_offset} and leader epoch "
                f"{header.leader_epoch} cannot follow offset {expected_offset}, epoch {epoch}"
            )
        if header.last_offset - expected_offset > INT32_MAX:
            raise MirrorGap(
                f"{tp}: the batch of {header.base_offset} is further from offset {expected_offset} than any hole"
                " that compaction leaves"
            )
        if not crc_ok(data, position, header):
            raise MirrorGap(f"{tp}: the batch of {header.base_offset} has a wrong CRC")
        end = position + header.size_bytes
        marker = read_marker(data[position:end]) if header.is_control else None
        batches.append((header, marker))
        expected_offset, epoch = header.next_offset, header.leader_epoch
    if end != len(data):
        raise MirrorGap(f"{tp}: {len(data) - end} bytes behind the last whole batch")
    return MirroredBatches(batches, has_holes)


def writes_of(
    data: Buffer, batches: list[CheckedBatch], end_offset: int
) -> Iterator[tuple[Buffer, list[CheckedBatch]]]:
    """Yield checked batches, which follow `end_offset`, by what may be written at once (INV-MBT3): nearly always all."""
    if batches and batches[-1][0].last_offset - end_offset <= INT32_MAX:
        yield data, batches
        return
    start = end = 0
    part: list[CheckedBatch] = []
    for header, marker in batches:
        if part and header.last_offset - end_offset > INT32_MAX:
            yield memoryview(data)[start:end], part
            start, end_offset, part = end, part[-1][0].next_offset, []
        part.append((header, marker))
        end += header.size_bytes
    if part:
        yield memoryview(data)[start:end], part
