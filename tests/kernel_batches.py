"""Batches and markers for tests of the kernel: only what a test names differs from plain.

Not here: records (the kernel never looks inside a data batch).
"""

from collections.abc import Iterable

from idempotency.decision import DecisionId
from idempotency.partition_state import PartitionState
from idempotency.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlType,
    MarkerFacts,
    read_header,
    stamped_front,
)

PRODUCER = 4711
HOME_LEADER_EPOCH = 8 << 16


def data(
    offset: int = 0,
    *,
    sequence: int = 0,
    count: int = 1,
    producer_id: int = PRODUCER,
    producer_epoch: int = 0,
    transactional: bool = False,
    timestamp_ms: int = 1_000,
    leader_epoch: int = HOME_LEADER_EPOCH,
) -> BatchHeader:
    """Return the header of a data batch of `count` records."""
    return BatchHeader(
        base_offset=offset,
        batch_length=49 + 10 * count,
        leader_epoch=leader_epoch,
        magic=2,
        crc=0,
        attributes=TRANSACTIONAL_BIT if transactional else 0,
        last_offset_delta=count - 1,
        base_timestamp_ms=timestamp_ms,
        max_timestamp_ms=timestamp_ms,
        producer_id=producer_id,
        producer_epoch=producer_epoch,
        base_sequence=sequence,
        record_count=count,
    )


def marker(
    control_type: ControlType = ControlType.COMMIT,
    *,
    producer_id: int = PRODUCER,
    producer_epoch: int = 0,
    coordinator_epoch: int = 1,
    decision: DecisionId | None = None,
    timestamp_ms: int = 1_000,
) -> MarkerFacts:
    """Return the facts of a marker."""
    return MarkerFacts(
        producer_id, producer_epoch, control_type, coordinator_epoch, decision, timestamp_ms
    )


def marker_header(
    offset: int, facts: MarkerFacts, *, leader_epoch: int = HOME_LEADER_EPOCH
) -> BatchHeader:
    """Return the header of the control batch of `facts`."""
    return data(
        offset,
        sequence=-1,
        producer_id=facts.producer_id,
        producer_epoch=facts.producer_epoch,
        timestamp_ms=facts.timestamp_ms,
        leader_epoch=leader_epoch,
    )._replace(attributes=TRANSACTIONAL_BIT | CONTROL_BIT)


def decision(offset: int, *, stamp: int = 0, leader_epoch: int = 1, shard: int = 0) -> DecisionId:
    """Return the id of the decision whose PREPARE record lies at `offset`."""
    return DecisionId(shard, leader_epoch, offset, stamp)


def state_of(*batches: BatchHeader | tuple[BatchHeader, MarkerFacts]) -> PartitionState:
    """Return the state after a log of these batches."""
    return replayed(batches)


def replayed(log: Iterable[BatchHeader | tuple[BatchHeader, MarkerFacts]]) -> PartitionState:
    """Return the state that a replay of `log` gives."""
    state = PartitionState()
    for batch in log:
        if isinstance(batch, BatchHeader):
            state.apply(batch)
        else:
            state.apply(*batch)
    return state


def end(
    offset: int, facts: MarkerFacts, *, leader_epoch: int = HOME_LEADER_EPOCH
) -> tuple[BatchHeader, MarkerFacts]:
    """Return a marker as it lies in a log at `offset`."""
    return marker_header(offset, facts, leader_epoch=leader_epoch), facts


def stamp(buf: bytearray, pos: int, *, base_offset: int, leader_epoch: int) -> None:
    """Stamp the batch at `pos` as the log does."""
    header = read_header(buf, pos).stamped(base_offset=base_offset, leader_epoch=leader_epoch)
    front = stamped_front(header)
    buf[pos : pos + len(front)] = front
