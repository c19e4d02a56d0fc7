"""Sequences, decision ids, rounds, producer-id blocks."""

import pytest

from idempotency.decision import (
    DECISION_BYTES,
    DecisionError,
    DecisionId,
    round_number,
    round_of,
)
from idempotency.fencing import EpochExhausted, leader_epoch, region_epoch_of
from idempotency.identity import (
    NO_LEADER_EPOCH,
    LeaderEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    SequenceNumber,
)
from idempotency.producer_ids import ProducerIdBlock, ProducerIdsExhausted, block_for
from idempotency.sequence import SEQUENCE_MAX, advance, distance, is_ahead


@pytest.mark.parametrize(
    ("start", "count", "after"),
    [(0, 1, 1), (SEQUENCE_MAX, 1, 0), (SEQUENCE_MAX - 1, 3, 1), (5, 0, 5)],
)
def test_sequence_advances_and_wraps(start: int, count: int, after: int) -> None:
    assert advance(SequenceNumber(start), count) == after
    assert distance(start, after) == count


def test_sequence_ahead_is_the_shorter_way_forward() -> None:
    assert is_ahead(SequenceNumber(5), 3)
    assert not is_ahead(SequenceNumber(3), 3)
    assert not is_ahead(SequenceNumber(3), 5)
    assert is_ahead(SequenceNumber(1), SEQUENCE_MAX)
    assert not is_ahead(SequenceNumber(SEQUENCE_MAX), 1)


# Holds INV-D2.
def test_decision_order_is_leader_epoch_then_offset() -> None:
    old = DecisionId(0, LeaderEpoch(1), 100, Round(9))
    assert DecisionId(0, LeaderEpoch(1), 101, Round(9)).is_newer_than(old)
    assert DecisionId(3, LeaderEpoch(2), 0, Round(0)).is_newer_than(old)
    assert not old.is_newer_than(old)
    assert not DecisionId(0, LeaderEpoch(1), 99, Round(50)).is_newer_than(old)
    assert old.is_newer_than(None)


def test_decision_bytes_are_version_shard_epoch_offset_stamp() -> None:
    encoded = DecisionId(1, LeaderEpoch(2), 3, Round(4)).encode()
    assert encoded.hex() == "00" + "00000001" + "00000002" + f"{3:016x}" + f"{4:016x}"
    assert len(encoded) == DECISION_BYTES


@pytest.mark.parametrize("raw", [b"", b"\x00" * 24, b"\x00" * 26, b"\x01" + b"\x00" * 24])
def test_decision_bytes_of_another_shape_are_refused(raw: bytes) -> None:
    with pytest.raises(DecisionError):
        DecisionId.decode(raw)


# Holds INV-D3.
def test_T1_round_of_a_later_term_is_greater() -> None:
    assert round_of(8, 2**32 - 1) < round_of(9, 1)
    assert round_of(1, 1) == 2**32 + 1
    assert round_number(round_of(9, 7)) == 7
    assert round_of(2**31 - 1, 2**32 - 1) == 2**63 - 1
    with pytest.raises(OverflowError):
        round_of(1, 2**32)


# Holds INV-I2.
def test_producer_id_blocks_follow_each_other() -> None:
    assert block_for(0, 0) == ProducerIdBlock(ProducerId(0), 1000)
    assert block_for(0, 1) == ProducerIdBlock(ProducerId(1000), 1000)
    assert block_for(1, 0).first == 2**60
    assert list(block_for(0, 2, size=3)) == [6, 7, 8]
    assert block_for(7, 0).end < 2**63


# Holds INV-I1.
def test_producer_id_blocks_end_before_the_next_region() -> None:
    with pytest.raises(ProducerIdsExhausted):
        block_for(0, 2**60 // 1000)


def test_leader_epoch_of_nobody_belongs_to_no_region() -> None:
    assert region_epoch_of(NO_LEADER_EPOCH) == -1


def test_T19_a_region_epoch_has_65536_leader_epochs_and_not_one_more() -> None:
    last = leader_epoch(RegionEpoch(8), 65_535)
    assert last == 8 * 65_536 + 65_535
    with pytest.raises(EpochExhausted, match="under a new region epoch"):
        leader_epoch(RegionEpoch(8), 65_536)
