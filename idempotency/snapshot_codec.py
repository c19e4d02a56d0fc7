"""The bytes of a partition-state snapshot.

    magic "TMPS" | version u16 | body bytes u32 | CRC32C of the body u32 | body

INV-N1  unpack(pack(content)) == content, and equal contents have equal bytes.
INV-N2  A damaged or cut-off snapshot, or one of a newer version, is refused, never half read.

Not here: when a snapshot is taken and where it lies (`region_broker.log.indexes.producer_snapshots`).
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from crc32c import crc32c

from idempotency.decision import DecisionId
from idempotency.identity import LeaderEpoch, Round
from idempotency.pieces import Pieces, drained
from idempotency.producer_state import AcceptedGap, ProducerEntry
from idempotency.visibility import AbortedEntry, CompletedTxn
from idempotency.window import BatchWindow, SentBatch

SNAPSHOT_VERSION: Final = 2
ROWS_AT_ONCE: Final = 500
"""How many producers or transactions are read in one piece: 3 to 7 ms for producers, less for the others."""
_MAGIC: Final = b"TMPS"
_HEAD: Final = struct.Struct(">4sHII")
_COUNTS: Final = struct.Struct(">qqqIIIII")
_PRODUCER: Final = struct.Struct(">qhiqiq?iiqqB")
_SENT: Final = struct.Struct(">iiqqq")
_COMPLETED: Final = struct.Struct(">qqqqh??biqq")
_ABORTED: Final = struct.Struct(">qqqq")
_CUT: Final = struct.Struct(">qq")
_GAP: Final = struct.Struct(">qhiiq")
_NO_DECISION: Final = DecisionId(0, LeaderEpoch(0), 0, Round(0))


class SnapshotError(ValueError):
    """A snapshot that cannot be used; the message says why and what to do."""


@dataclass(slots=True)
class SnapshotContent:
    """All that a snapshot holds; lists in the order the state keeps them."""

    end_offset: int
    gap_allowed_below: int
    forgotten_below: int
    producers: list[ProducerEntry]
    completed: list[CompletedTxn]
    aborted: list[AbortedEntry]
    cuts: list[tuple[Round, int]]
    gaps: list[AcceptedGap]


def pack(content: SnapshotContent) -> bytes:
    """Return the bytes of a snapshot."""
    return pack_around(content, [pack_producer(entry) for entry in content.producers])


def pack_around(content: SnapshotContent, producers: Sequence[bytes]) -> bytes:
    """Return the bytes of a snapshot with these producers, by rising id, instead of those that `content` names."""
    body = bytearray(
        _COUNTS.pack(
            content.end_offset, content.gap_allowed_below, content.forgotten_below,
            len(producers), len(content.completed), len(content.aborted),
            len(content.cuts), len(content.gaps),
        )
    )  # fmt: skip
    body += b"".join(producers)
    for completed in content.completed:
        decision = completed.decision or _NO_DECISION
        body += _COMPLETED.pack(
            *completed[:6], completed.decision is not None,
            decision.shard, decision.leader_epoch, decision.offset, decision.stamp,
        )  # fmt: skip
    for aborted in content.aborted:
        body += _ABORTED.pack(*aborted)
    for cut in content.cuts:
        body += _CUT.pack(*cut)
    for gap in content.gaps:
        body += _GAP.pack(*gap)
    frozen = bytes(body)
    return _HEAD.pack(_MAGIC, SNAPSHOT_VERSION, len(frozen), crc32c(frozen)) + frozen


def size_around(content: SnapshotContent) -> int:
    """Return how many bytes a snapshot has beside its producers."""
    rows = (_COMPLETED, content.completed), (_ABORTED, content.aborted), (_CUT, content.cuts), (_GAP, content.gaps)  # fmt: skip
    return _HEAD.size + _COUNTS.size + sum(layout.size * len(found) for layout, found in rows)


def unpack(data: bytes) -> SnapshotContent:
    """Return all of `unpack_in_pieces` at once."""
    return drained(unpack_in_pieces(data))


def unpack_in_pieces(data: bytes) -> Pieces[SnapshotContent]:
    """Return the content of a snapshot, `ROWS_AT_ONCE` in one piece.

    Raises:
        SnapshotError: not a snapshot, damaged, cut off, or of a newer version.
    """
    body = _checked_body(data)
    try:
        content, pos = yield from _unpack_body(body)
    except struct.error as error:
        raise SnapshotError(f"snapshot body is too short for its counts: {error}") from error
    if pos != len(body):
        raise SnapshotError(f"snapshot has {len(body) - pos} bytes behind its content")
    return content


def check_snapshot(data: bytes) -> None:
    """Raise SnapshotError as `unpack_in_pieces` does for what is damaged, cut off or newer, without reading its rows."""
    _checked_body(data)


def _checked_body(data: bytes) -> bytes:
    if len(data) < _HEAD.size:
        raise SnapshotError(f"snapshot of {len(data)} bytes is cut off: rebuild it from the log")
    magic, version, body_bytes, crc = _HEAD.unpack_from(data)
    if magic != _MAGIC:
        raise SnapshotError("not a partition-state snapshot: rebuild it from the log")
    if version > SNAPSHOT_VERSION:
        raise SnapshotError(
            f"snapshot version {version} was written by a newer version of Tidemark; this one reads "
            f"up to {SNAPSHOT_VERSION}: start the newer version, or delete the snapshot to rebuild "
            "it from the log"
        )
    if version < SNAPSHOT_VERSION:
        raise SnapshotError(
            f"snapshot version {version} is not read any more: rebuild it from the log"
        )
    body = bytes(data[_HEAD.size :])
    if len(body) != body_bytes:
        raise SnapshotError(
            f"snapshot body has {len(body)} bytes, its head says {body_bytes}: rebuild it"
        )
    if crc32c(body) != crc:
        raise SnapshotError("snapshot is damaged (CRC32C differs): rebuild it from the log")
    return body


def _unpack_body(body: bytes) -> Pieces[tuple[SnapshotContent, int]]:
    end_offset, gap_below, forgotten_below, *counts = _COUNTS.unpack_from(body)
    pos = _COUNTS.size
    producers: list[ProducerEntry] = []
    for number in range(counts[0]):
        entry, pos = _unpack_producer(body, pos)
        producers.append(entry)
        if number % ROWS_AT_ONCE == ROWS_AT_ONCE - 1:
            yield
    completed: list[CompletedTxn] = []
    for start in range(0, counts[1], ROWS_AT_ONCE):
        rows, pos = _rows(_COMPLETED, body, pos, min(ROWS_AT_ONCE, counts[1] - start))
        completed += map(_completed_txn, rows)
        yield
    aborted: list[AbortedEntry] = []
    for start in range(0, counts[2], ROWS_AT_ONCE):
        rows, pos = _rows(_ABORTED, body, pos, min(ROWS_AT_ONCE, counts[2] - start))
        aborted += [AbortedEntry(*row) for row in rows]
        yield
    cuts, pos = _rows(_CUT, body, pos, counts[3])
    gaps, pos = _rows(_GAP, body, pos, counts[4])
    content = SnapshotContent(
        end_offset=end_offset,
        gap_allowed_below=gap_below,
        forgotten_below=forgotten_below,
        producers=producers,
        completed=completed,
        aborted=aborted,
        cuts=[(stamp, offset) for stamp, offset in cuts],
        gaps=[AcceptedGap(*row) for row in gaps],
    )
    return content, pos


def _completed_txn(row: tuple[Any, ...]) -> CompletedTxn:
    producer_id, first, marker, last, epoch, committed, has_decision, *decision = row
    return CompletedTxn(
        producer_id, first, marker, last, epoch, committed,
        DecisionId(*decision) if has_decision else None,
    )  # fmt: skip


def _rows(
    layout: struct.Struct, body: bytes, pos: int, count: int
) -> tuple[list[tuple[Any, ...]], int]:
    end = pos + layout.size * count
    if end > len(body):
        raise SnapshotError(f"snapshot body ends before its {count} rows: rebuild it from the log")
    return list(layout.iter_unpack(body[pos:end])), end


def pack_producer(entry: ProducerEntry) -> bytes:
    """Return the bytes of one producer within a snapshot."""
    decision = entry.last_decision or _NO_DECISION
    batches = entry.window.batches
    head = _PRODUCER.pack(
        entry.producer_id, entry.producer_epoch, entry.coordinator_epoch, entry.last_timestamp_ms,
        entry.last_leader_epoch, entry.txn_first_offset, entry.last_decision is not None,
        decision.shard, decision.leader_epoch, decision.offset, decision.stamp, len(batches),
    )  # fmt: skip
    return head + b"".join([_SENT.pack(*batch) for batch in batches])


def _unpack_producer(body: bytes, pos: int) -> tuple[ProducerEntry, int]:
    (
        producer_id, producer_epoch, coordinator_epoch, last_timestamp_ms, last_leader_epoch,
        txn_first_offset, has_decision, shard, leader_epoch, offset, stamp, batch_count,
    ) = _PRODUCER.unpack_from(body, pos)  # fmt: skip
    batches, pos = _rows(_SENT, body, pos + _PRODUCER.size, batch_count)
    entry = ProducerEntry(
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        window=BatchWindow([SentBatch(*row) for row in batches]),
        coordinator_epoch=coordinator_epoch,
        last_timestamp_ms=last_timestamp_ms,
        last_leader_epoch=last_leader_epoch,
        txn_first_offset=txn_first_offset,
        last_decision=DecisionId(shard, leader_epoch, offset, stamp) if has_decision else None,
    )
    return entry, pos
