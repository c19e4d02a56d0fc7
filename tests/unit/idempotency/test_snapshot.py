"""Snapshots of a partition's state: round trip, damage, versions."""

import pytest

from idempotency.identity import Round
from idempotency.partition_state import PartitionState, SnapshotError
from idempotency.record_batch import ControlType
from tests.fixtures.kernel_batches import data, decision, end, marker, state_of


def rich_state() -> PartitionState:
    state = state_of(
        data(0, sequence=0, count=3),
        data(3, producer_id=1, transactional=True),
        data(4, producer_id=2, transactional=True),
        end(5, marker(ControlType.ABORT, producer_id=1, decision=decision(1, stamp=3))),
        end(6, marker(producer_id=3, decision=decision(2, stamp=4))),
        data(7, sequence=9, leader_epoch=17 << 16),
    )
    state.allow_gap_once()
    state.forget_completed_below(2)
    return state


# Holds INV-N1.
def test_snapshot_round_trips_and_answers_alike() -> None:
    state = rich_state()
    copy = PartitionState.decode(state.encode())
    assert copy == state
    assert copy.end_offset == 8
    assert copy.producers() == state.producers()
    assert copy.open_transactions() == state.open_transactions()
    assert copy.accepted_gaps == state.accepted_gaps
    assert len(copy.accepted_gaps) == 1
    assert copy.first_commit_marker(Round(4)) == 6
    assert copy.last_stable_offset(8) == 4


def test_snapshot_does_not_share_state_with_the_live_one() -> None:
    state = rich_state()
    encoded = state.encode()
    copy = PartitionState.decode(encoded)
    copy.apply(data(8, sequence=10))
    assert state.encode() == encoded


# Holds INV-N2.
def test_every_flipped_byte_is_noticed() -> None:
    encoded = rich_state().encode()
    for position in range(len(encoded)):
        damaged = bytearray(encoded)
        damaged[position] ^= 0x40
        with pytest.raises(SnapshotError):
            PartitionState.decode(bytes(damaged))


# Holds INV-N2.
def test_every_cut_off_snapshot_is_noticed() -> None:
    encoded = rich_state().encode()
    for length in range(len(encoded)):
        with pytest.raises(SnapshotError):
            PartitionState.decode(encoded[:length])
    with pytest.raises(SnapshotError):
        PartitionState.decode(encoded + b"x")


def test_newer_version_is_refused_with_advice() -> None:
    encoded = rich_state().encode()
    with pytest.raises(SnapshotError, match=r"newer version of Tidemark.*delete the snapshot"):
        PartitionState.decode(encoded[:4] + b"\x00\x03" + encoded[6:])


def test_older_version_is_refused_with_advice() -> None:
    encoded = rich_state().encode()
    with pytest.raises(SnapshotError, match="rebuild it from the log"):
        PartitionState.decode(encoded[:4] + b"\x00\x01" + encoded[6:])


def test_empty_state_round_trips() -> None:
    assert PartitionState.decode(PartitionState().encode()) == PartitionState()


def test_states_that_differ_are_not_equal() -> None:
    assert state_of(data(0)) != state_of(data(0, timestamp_ms=2_000))
    assert PartitionState() != "a string"
