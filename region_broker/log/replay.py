"""Reading a log's batches back into what they stand for: index, leader epochs, and the state of producers.

INV-R8  within a log leader epochs never go back: a batch of an older one than the batch before it is damaged, or that one
        is. A batch's CRC says nothing of its leader epoch (Kafka's record format), and what is compared between regions
        would take it for another history (T23)
State == replay(log), whichever snapshot it started from. `read_on` looks at each byte once: CRC, index, leader epochs
and state come from the same pass.

Not here: what is cut, what is durable (`recovery`).
"""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from idempotency.partition_state import AbortedTxn, PartitionState
from idempotency.pieces import Pieces, drained
from idempotency.record_batch import (
    HEADER_BYTES,
    BatchError,
    BatchHeader,
    Buffer,
    MarkerFacts,
    crc_ok,
    read_header,
    read_marker,
)
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import ABORTED_SUFFIX
from region_broker.log.indexes.aborted_index import encode_aborted
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.log.indexes.producer_snapshots import (
    has_sound,
    newest_in_pieces,
    write_snapshot,
)
from region_broker.log.segment import Segment

logger: Final = logging.getLogger(__name__)

SCAN_WINDOW_BYTES: Final = 8 << 20
BATCHES_AT_ONCE: Final = 500
"""How many batches are replayed in one piece: 2 to 5 ms."""


@dataclass(frozen=True, slots=True)
class TornAt:
    """Where whole batches end in a segment, and why."""

    position: int
    reason: str


@dataclass(slots=True)
class Replayed:
    """What the batches of a log have come to so far."""

    state: PartitionState
    epochs: LeaderEpochs


def read_on(
    segment: Segment, end_bytes: int, replayed: Replayed, holes_below: int
) -> TornAt | None:
    """Take in every whole, sound batch from the segment's end as known up to `end_bytes` of its file.

    Returns where they end, if the file goes on behind them. Offsets may be missing below `holes_below`, where the
    log, or the one that it mirrors, was cleaned. Raises OSError of the disk.
    """
    file = segment.reader()
    window_bytes = SCAN_WINDOW_BYTES
    while segment.size_bytes < end_bytes:
        start = segment.size_bytes
        window = file.pread(min(window_bytes, end_bytes - start), start)
        if not window:
            return TornAt(start, "the file ends here")
        torn = _read_window(window, segment, replayed, holes_below)
        if torn is not None:
            cut_by_window = torn.cut_off and len(window) < end_bytes - start
            if not cut_by_window:
                return TornAt(segment.size_bytes, torn.reason)
            window_bytes = SCAN_WINDOW_BYTES
            if segment.size_bytes == start:  # one batch larger than the window
                window_bytes = max(window_bytes, read_header(window, 0).size_bytes)
    return None


@dataclass(frozen=True, slots=True)
class _Torn:
    reason: str
    cut_off: bool = False


def _read_window(
    window: bytes, segment: Segment, replayed: Replayed, holes_below: int
) -> _Torn | None:
    """Take in the batches of `window`, which begins at the segment's end; return why it stopped before its end."""
    at, end = 0, len(window)
    state, epochs = replayed.state, replayed.epochs
    expected_offset, epoch = segment.next_offset, epochs.latest
    while at < end:
        try:
            header = read_header(window, at)
        except BatchError as error:
            return _Torn(str(error), cut_off=end - at < HEADER_BYTES)
        size_bytes = header.size_bytes
        if at + size_bytes > end:
            return _Torn(f"the batch of offset {header.base_offset} is cut off", cut_off=True)
        base_offset = header.base_offset
        if base_offset != expected_offset and not expected_offset < base_offset <= holes_below:
            return _Torn(f"a batch of offset {base_offset} where {expected_offset} follows")
        if not crc_ok(window, at, header):
            return _Torn(f"the batch of offset {base_offset} has a wrong CRC")
        if header.leader_epoch < epoch:  # INV-R8
            return _Torn(
                f"the batch of offset {base_offset} has leader epoch {header.leader_epoch} behind {epoch}"
            )
        segment.note_batch(header)
        if header.leader_epoch > epoch:
            epochs.note(header.leader_epoch, base_offset)
            epoch = epochs.latest
        marker = read_marker(window[at : at + size_bytes]) if header.is_control else None
        state.apply(header, marker)
        expected_offset = header.next_offset
        at += size_bytes
    return None


def rebuild_state(folder: Path, segments: Sequence[Segment], end_offset: int) -> PartitionState:
    """Return what `state_in_pieces` does, at once."""
    return drained(state_in_pieces(folder, segments, end_offset))


def state_in_pieces(
    folder: Path, segments: Sequence[Segment], end_offset: int
) -> Pieces[PartitionState]:
    """Return the state after exactly the batches below `end_offset`: newest sound snapshot, then replay."""
    start_offset = segments[0].base_offset
    disk = segments[0].cache.disk
    found = yield from newest_in_pieces(disk, folder, start_offset, end_offset)
    offset, state = found if found is not None else (start_offset, PartitionState())
    yield from _replay_in_pieces(segments, state, offset, end_offset)
    return state


def keep_state_at(folder: Path, segments: list[Segment], offset: int) -> None:
    """Make sure of a snapshot at `offset`, durably; one that is there is not unpacked: of many producers that takes long."""
    disk = segments[0].cache.disk
    if not has_sound(disk, folder, offset):
        state = rebuild_state(folder, segments, offset)
        write_snapshot(disk, folder, offset, state.encode())


def replay(segments: Sequence[Segment], state: PartitionState, start: int, end: int) -> None:
    """Apply the batches of [start, end), both batch boundaries, to `state`; raises LogDamaged if one cannot be."""
    drained(_replay_in_pieces(segments, state, start, end))


def _replay_in_pieces(
    segments: Sequence[Segment], state: PartitionState, start: int, end: int
) -> Pieces[None]:
    left = BATCHES_AT_ONCE
    for segment in segments:
        if segment.next_offset <= start or segment.base_offset >= end:
            continue
        first, last = segment.position_of(start), segment.position_of(end)
        for header, control in segment.walk_markers(first, last):
            state.apply(header, None if control is None else _marker_of(segment, header, control))
            left -= 1
            if not left:
                left = BATCHES_AT_ONCE
                yield


def _marker_of(segment: Segment, header: BatchHeader, batch: Buffer) -> MarkerFacts:
    try:
        return read_marker(batch)
    except BatchError as error:
        raise LogDamaged(
            f"{segment.path}: no marker at offset {header.base_offset}: {error}"
        ) from error


def write_aborted_file(
    folder: Path, segments: list[Segment], segment: Segment
) -> tuple[AbortedTxn, ...]:
    """Build the aborted index of a sealed segment again, and write it; if that fails, the next read does it again."""
    path = segment.path.with_suffix(ABORTED_SUFFIX)
    logger.info("%s is built again", path)
    entries = aborted_by_replay(folder, segments, segment)
    try:
        segment.cache.disk.write_file_atomic(path, encode_aborted(entries))
    except OSError as error:
        logger.warning("%s cannot be written, it is built again when it is read: %s", path, error)
    return entries


def aborted_by_replay(
    folder: Path, segments: Sequence[Segment], segment: Segment
) -> tuple[AbortedTxn, ...]:
    """Return what belongs into the aborted index of a sealed segment, one of `segments`; raises LogDamaged, OSError."""
    start, end = segment.base_offset, segment.next_offset
    state = rebuild_state(folder, segments, start)
    replay(segments, state, start, end)
    return aborted_with_marker_in(state, start, end)


def aborted_with_marker_in(state: PartitionState, start: int, end: int) -> tuple[AbortedTxn, ...]:
    """Return the aborted transactions whose marker lies in [start, end)."""
    return tuple(entry for entry in state.aborted_in(start, end, end) if entry.last_offset >= start)
