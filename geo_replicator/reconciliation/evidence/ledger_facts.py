"""What `__transaction_state` says, reduced to what a check of transactions needs.

Every decision (PREPARE_*) and completion (COMPLETE_*) is kept; of all other states only the last of each transactional
id in the segment. A record that cannot be read is counted and named, never skipped in silence.

Not here: the codecs (`idempotency.ledger_records`), the judgement (`transactions`).
"""

from collections.abc import Iterator
from typing import Final

import msgspec
import numpy as np
import numpy.typing as npt

from geo_replicator.reconciliation.plan import SegmentSpec
from geo_replicator.reconciliation.segments.batch_table import CRC_COVERS_FROM, BatchTable
from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
)
from idempotency.ledger_records import (
    LedgerError,
    OrphanKey,
    TransactionKey,
    TransactionRecord,
    TxnStatus,
    decode_key,
    decode_transaction_value,
    transaction_status,
)
from idempotency.record_batch import CODEC_MASK, CONTROL_BIT, HEADER_BYTES, SEALED_BIT, read_varint

UNREADABLE: Final = -1


class LedgerFact(msgspec.Struct, frozen=True, array_like=True):
    """One record of the ledger. `offset` is its position in shard `shard`, `side` 0 source and 1 mirror."""

    side: int
    shard: int
    offset: int
    leader_epoch: LeaderEpoch
    transactional_id: str
    producer_id: ProducerId
    previous_producer_id: ProducerId
    producer_epoch: ProducerEpoch
    status: int
    """A `TxnStatus` number, or UNREADABLE."""
    partitions: tuple[tuple[str, int], ...]
    decision: tuple[int, int, int] | None
    """(shard, leader epoch, offset) of the decision a completion speaks of."""
    last_update_ms: int
    timeout_ms: int
    detail: str = ""

    @property
    def producer_ids(self) -> set[ProducerId]:
        """Return the producer ids whose checks need this fact."""
        return {self.producer_id, self.previous_producer_id} - {NO_PRODUCER_ID} or {
            self.producer_id
        }


def iter_records(batch: bytes) -> Iterator[tuple[int, bytes | None, bytes | None]]:
    """Yield (offset delta, key, value) of an uncompressed batch, as coordinators write them.

    Raises LedgerError if the batch is compressed or its records are malformed.
    """
    attributes = int.from_bytes(batch[CRC_COVERS_FROM : CRC_COVERS_FROM + 2], "big")
    if attributes & SEALED_BIT:
        raise LedgerError("the records are sealed: only a reader that has the key opens them")
    if attributes & CODEC_MASK:
        raise LedgerError("a ledger batch is compressed: coordinators never do that")
    position = HEADER_BYTES
    try:
        while position < len(batch):
            length, position = read_varint(batch, position)
            end = position + length
            if length <= 0 or end > len(batch):
                raise LedgerError(f"a record of {length} bytes at {position} runs past its batch")
            _, inner = read_varint(batch, position + 1)
            delta, inner = read_varint(batch, inner)
            key, inner = _block(batch, inner)
            value, _ = _block(batch, inner)
            yield delta, key, value
            position = end
    except (IndexError, ValueError) as error:
        raise LedgerError(f"malformed record in a ledger batch: {error}") from error


def _block(batch: bytes, position: int) -> tuple[bytes | None, int]:
    length, position = read_varint(batch, position)
    if length < 0:
        return None, position
    return batch[position : position + length], position + length


class LedgerReader:
    """A `BatchVisitor` that keeps the facts of one segment of `__transaction_state`."""

    def __init__(self, spec: SegmentSpec) -> None:
        """Read for the segment `spec`."""
        self._shard = spec.partition
        self._side = 0 if spec.side.value == "source" else 1
        self._kept: list[LedgerFact] = []
        self._last: dict[str, tuple[bytes, int, LeaderEpoch]] = {}
        self._names: dict[bytes, str] = {}

    @property
    def facts(self) -> list[LedgerFact]:
        """Return the facts by offset."""
        last = [self._decoded(name, *state) for name, state in self._last.items()]
        return sorted([*self._kept, *last], key=lambda fact: fact.offset)

    def _decoded(
        self, name: str, value: bytes, offset: int, leader_epoch: LeaderEpoch
    ) -> LedgerFact:
        try:
            return self._fact(decode_transaction_value(name, value), offset, leader_epoch)
        except LedgerError as error:
            return self._unreadable(offset, leader_epoch, error)

    def _unreadable(self, offset: int, leader_epoch: LeaderEpoch, error: LedgerError) -> LedgerFact:
        return LedgerFact(
            self._side, self._shard, offset, leader_epoch, "", NO_PRODUCER_ID, NO_PRODUCER_ID, NO_PRODUCER_EPOCH, UNREADABLE,
            (), None, 0, 0, str(error),
        )  # fmt: skip

    def __call__(
        self, rows: BatchTable, window: npt.NDArray[np.uint8], window_position: int
    ) -> None:
        """Take the records of all sound data batches of a window."""
        data = rows[(rows["crc_ok"] == 1) & ((rows["attributes"] & CONTROL_BIT) == 0)]
        for position, size, base_offset, leader_epoch in zip(
            (data["position"] - window_position).tolist(),
            data["size_bytes"].tolist(),
            data["base_offset"].tolist(),
            data["leader_epoch"].tolist(),
            strict=True,
        ):
            self._take(window[position : position + size].tobytes(), base_offset, leader_epoch)

    def _take(self, batch: bytes, base_offset: int, leader_epoch: LeaderEpoch) -> None:
        try:
            for delta, key, value in iter_records(batch):
                if key is not None and value is not None:
                    self._take_record(key, value, base_offset + delta, leader_epoch)
        except LedgerError as error:
            self._kept.append(self._unreadable(base_offset, leader_epoch, error))

    def _take_record(
        self, key: bytes, value: bytes, offset: int, leader_epoch: LeaderEpoch
    ) -> None:
        transactional_id = self._names.get(key)
        if transactional_id is None:
            transactional_id = self._names[key] = _name_of(key)
        if not transactional_id:
            return
        if _is_decided(transaction_status(value)):
            record = decode_transaction_value(transactional_id, value)
            self._kept.append(self._fact(record, offset, leader_epoch))
            self._last.pop(transactional_id, None)
        else:
            self._last[transactional_id] = (value, offset, leader_epoch)

    def _fact(
        self, record: TransactionRecord, offset: int, leader_epoch: LeaderEpoch
    ) -> LedgerFact:
        decision = record.decision
        return LedgerFact(
            self._side, self._shard, offset, leader_epoch, record.transactional_id,
            record.producer_id, record.previous_producer_id, record.producer_epoch,
            int(record.status), tuple((str(tp.topic), tp.partition) for tp in record.partitions),
            None if decision is None
            else (decision.shard, decision.leader_epoch, decision.offset),
            record.last_update_ms, record.timeout_ms,
        )  # fmt: skip


def _name_of(key: bytes) -> str:
    """Return the transactional id of a key, or a name for an orphan; empty for what is no transaction."""
    match decode_key(key):
        case TransactionKey(transactional_id):
            return transactional_id
        case OrphanKey(producer_id):
            return f"(orphan of producer id {producer_id})"
        case _:
            return ""


def _is_decided(status: int) -> bool:
    return status in (
        TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT,
        TxnStatus.COMPLETE_COMMIT, TxnStatus.COMPLETE_ABORT,
    )  # fmt: skip
