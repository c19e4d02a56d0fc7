"""Partitions of the model: rows with ghosts of what wrote them, and the real state that they replay to.

Not here: what can happen to them (`mirror`, `adoption`).
"""

from functools import lru_cache
from typing import Final, NamedTuple

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)
from idempotency.partition_state import PartitionState
from idempotency.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlType,
    MarkerFacts,
)

DATA, COMMIT, ABORT = "data", "commit", "abort"
_TYPES: Final = {COMMIT: ControlType.COMMIT, ABORT: ControlType.ABORT}


class Row(NamedTuple):
    """A batch of a partition. `txn` is the transaction that a client wrote it in, which no log knows."""

    producer_id: int
    producer_epoch: int
    kind: str = DATA
    txn: int = -1
    sequence: int = 0
    decision: DecisionId | None = None
    coordinator_epoch: int = 0


Rows = tuple[Row, ...]


def header_of(row: Row, offset: int) -> BatchHeader:
    """Return the header of a row that lies at `offset`."""
    control = 0 if row.kind == DATA else CONTROL_BIT
    return BatchHeader(
        base_offset=offset, batch_length=61, leader_epoch=LeaderEpoch(0), magic=2, crc=0,
        attributes=TRANSACTIONAL_BIT | control, last_offset_delta=0,
        base_timestamp_ms=0, max_timestamp_ms=0, producer_id=ProducerId(row.producer_id),
        producer_epoch=ProducerEpoch(row.producer_epoch), base_sequence=SequenceNumber(-1 if control else row.sequence),
        record_count=1,
    )  # fmt: skip


def marker_of(row: Row) -> MarkerFacts | None:
    """Return what a marker says, None for data."""
    if row.kind == DATA:
        return None
    return MarkerFacts(
        ProducerId(row.producer_id),
        ProducerEpoch(row.producer_epoch),
        _TYPES[row.kind],
        CoordinatorEpoch(row.coordinator_epoch),
        row.decision,
        0,
    )


@lru_cache(maxsize=65536)
def replayed(rows: Rows) -> PartitionState:
    """Return the real state of a partition that holds these rows; to be asked only."""
    state = PartitionState()
    for offset, row in enumerate(rows):
        state.apply(header_of(row, offset), marker_of(row))
    return state
