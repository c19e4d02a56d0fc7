"""A snapshot that is taken while its state goes on changing."""

import random
from collections.abc import Callable

import pytest

from idempotency import snapshot_draft
from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    Round,
    SequenceNumber,
)
from idempotency.partition_state import PartitionState
from idempotency.pieces import Pieces
from idempotency.record_batch import (
    CONTROL_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    ControlType,
    MarkerFacts,
)
from idempotency.snapshot_draft import SnapshotDraft

DAY_MS = 24 * 3600 * 1000


def header(offset: int, producer_id: int, attributes: int, sequence: int) -> BatchHeader:
    return BatchHeader(
        offset, 100, LeaderEpoch(1), 2, 0, attributes, 0, 1000, 1000, ProducerId(producer_id), ProducerEpoch(0),
        SequenceNumber(sequence), 1,
    )  # fmt: skip


class Growing:
    """A state to which random things happen."""

    def __init__(self, seed: int) -> None:
        self.state = PartitionState()
        self._rng = random.Random(seed)
        self._sequences: dict[int, int] = {}
        self._open: set[int] = set()
        self._now_ms = 0

    def step(self) -> None:
        """Let a producer write, or end its transaction; now and then the idle ones are forgotten."""
        rng, at = self._rng, self.state.end_offset
        producer_id = rng.randrange(30)
        if rng.random() < 0.1:
            self._now_ms += DAY_MS
            gone = self.state.expire(self._now_ms, DAY_MS)
            for each in gone:
                del self._sequences[each]
        elif producer_id in self._open and rng.random() < 0.5:
            self._open.remove(producer_id)
            kind = rng.choice([ControlType.COMMIT, ControlType.ABORT])
            decision = DecisionId(0, LeaderEpoch(1), at, Round(at + 1))
            marker = MarkerFacts(
                ProducerId(producer_id), ProducerEpoch(0), kind, CoordinatorEpoch(1), decision, 1000
            )
            self.state.apply(header(at, producer_id, TRANSACTIONAL_BIT | CONTROL_BIT, -1), marker)
        else:
            is_open = producer_id in self._open or rng.random() < 0.3
            if is_open:
                self._open.add(producer_id)
            sequence = self._sequences.get(producer_id, 0)
            self._sequences[producer_id] = sequence + 1
            self.state.apply(header(at, producer_id, TRANSACTIONAL_BIT if is_open else 0, sequence))


def taken(
    pieces: Pieces[SnapshotDraft], between: Callable[[], None] = lambda: None
) -> SnapshotDraft:
    found: list[SnapshotDraft] = []

    def keeping() -> Pieces[None]:
        found.append((yield from pieces))

    for _ in keeping():
        between()
    return found[0]


@pytest.mark.parametrize("seed", range(40))
def test_INV_SDR1_a_draft_is_of_the_step_in_which_it_is_returned(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(snapshot_draft, "PRODUCERS_AT_ONCE", 3)
    growing = Growing(seed)
    for _ in range(60):
        growing.step()
    rng, pieces = random.Random(-seed), 0

    def between() -> None:
        nonlocal pieces
        pieces += 1
        for _ in range(rng.randrange(8)):
            growing.step()

    draft = taken(growing.state.draft_in_pieces(), between)
    assert pieces > 3
    expected = growing.state.encode()
    for _ in range(20):  # and stays it
        growing.step()
    assert draft.encode() == expected
    assert draft.size_bytes == len(expected)
    assert PartitionState.decode(expected).encode() == expected


def test_INV_SDR1_two_drafts_at_a_time_and_one_that_is_given_up_change_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(snapshot_draft, "PRODUCERS_AT_ONCE", 3)
    growing = Growing(1)
    for _ in range(60):
        growing.step()
    first, given_up, second = (growing.state.draft_in_pieces() for _ in range(3))
    for each in (first, given_up, second):
        next(each)
    growing.step()
    given_up.close()
    growing.step()
    drafts = [taken(each).encode() for each in (first, second)]
    assert drafts == [growing.state.encode()] * 2
