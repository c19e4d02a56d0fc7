"""A ledger shard's image gives the state that the whole ledger gives, wherever it was taken (INV-LIM1)."""

from collections.abc import Iterable, Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from idempotency import ledger_records as lr
from idempotency.decision import DecisionId, round_of
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicPartition,
)
from idempotency.ledger_records import TransactionRecord, TxnStatus
from tests.fixtures.coordinator import LEADER_EPOCH, Row, key_of, tp
from tests.property.test_transaction_core import CoreMachine
from txn_coordinator import events as ev
from txn_coordinator.core import TxnCoordinatorCore
from txn_coordinator.image import LedgerImage
from txn_coordinator.ports import LedgerCorrupt, LedgerPosition
from txn_coordinator.states import COMPLETED
from txn_coordinator.transitions import orphan_id, unborn

S = TxnStatus


def image_of(rows: Iterable[Row]) -> LedgerImage:
    """Return the image of these rows."""
    image = LedgerImage()
    for row in rows:
        image.apply(row)
    return image


def state_of(rows: Iterable[Row]) -> object:
    """Return all that replay makes of these rows, in a form that compares."""
    core = TxnCoordinatorCore(0, region_epoch=RegionEpoch(8))
    for row in rows:
        core.replay(*row)
    core.step(ev.TimersRestarted(), now_ms=5_000, wall_ms=0)
    gate, table = core._gate, core._table
    return (
        (gate.current, gate.current_offset, gate.released, gate.held_count),
        {
            name: (entry.record, entry.decision, entry.deadline_ms, entry.pending, entry.fanout)
            for name, entry in table.entries.items()
        },
        {entry.record.transactional_id for entry in table.ongoing()},
        {entry.record.transactional_id for entry in table.prepared()},
        table._by_producer_id,
        core._pairs.since,
    )


def expect_image_at(rows: Sequence[Row], cut: int) -> None:
    """Hold INV-LIM1 and INV-LIM2 at one cut."""
    below, above = rows[:cut], rows[cut:]
    image = list(image_of(below).rows())
    assert [row for row in below if row in image] == image
    assert state_of([*image, *above]) == state_of(rows)
    assert list(image_of([*image, *above]).rows()) == list(image_of(rows).rows())


# ---- any rows that the rules allow: more corners than the coordinator alone comes to


class History:
    """Writes rows as coordinators of several terms may."""

    def __init__(self) -> None:
        """Start empty, in term 7."""
        self.rows: list[Row] = []
        self.term = 7
        self.number = 0
        self.leader_epoch = LEADER_EPOCH
        self.round = 0

    def append(self, key: bytes, value: bytes | None) -> None:
        """Append one row; the first is not at offset 0."""
        offset = self.rows[-1][0].offset + 1 if self.rows else 3
        self.rows.append((LedgerPosition(LeaderEpoch(self.leader_epoch), offset), key, value))

    def write(self, record: TransactionRecord) -> None:
        """Append an entry's value."""
        self.append(key_of(record.transactional_id), lr.encode_transaction_value(record))

    def say_round(self, stamp: int) -> None:
        """Append ROUND."""
        self.round = max(self.round, stamp)
        self.append(
            lr.encode_round_key(),
            lr.encode_round_value(lr.RoundRecord(Round(stamp), CoordinatorEpoch(1))),
        )

    def take(self, step: tuple[str, int, int]) -> None:
        """Append what `step` says: what, which entry, which variant."""
        what, which, variant = step
        name = orphan_id(ProducerId(which)) if which >= 4 else "tuvw"[which]
        if what == "round":
            self.number += 1
            self.say_round(round_of(self.term, self.number))
        elif what == "again":
            self.say_round(self.round)
        elif what == "late":
            self.say_round(round_of(6, variant))
        elif what == "term":
            self.term, self.number = self.term + 1, 0
            self.leader_epoch = LeaderEpoch(self.leader_epoch + 1)
            self.say_round(round_of(self.term, 0))
        elif what == "gone":
            self.append(key_of(name), None)
        elif what == "pairs":
            record = lr.PairsRecord(RegionEpoch(4 + which), RegionEpoch(variant))
            self.append(lr.encode_pairs_key(), lr.encode_pairs_value(record))
        elif what == "unknown":
            self.append(b"\x7f\x7f" + bytes([which]), bytes([variant]) if variant else None)
        else:
            self.write(self._record(name, TxnStatus[what], which, variant))

    def _record(self, name: str, status: TxnStatus, which: int, variant: int) -> TransactionRecord:
        partitions: tuple[TopicPartition, ...] = (tp("a", variant),)
        decision = DecisionId(0, LeaderEpoch(self.leader_epoch), 1, Round(0))
        record = replace(
            unborn(name),
            producer_id=10 * which + variant,
            producer_epoch=variant,
            timeout_ms=1_000 + variant,
            status=status,
            partitions=partitions if status is S.ONGOING or status.is_prepared else (),
            last_update_ms=len(self.rows),
        )
        if status.is_prepared:
            own = variant % 2 == 0
            return replace(record, stamp=self.round, decision=None if own else decision)
        return replace(record, decision=decision) if status in COMPLETED else record


steps = st.lists(
    st.tuples(
        st.sampled_from(
            [
                "round", "round", "again", "late", "term", "gone", "pairs", "unknown",
                *(status.name for status in S if status not in (S.DEAD, S.PREPARE_EPOCH_FENCE)),
            ]
        ),
        st.integers(0, 5),
        st.integers(0, 3),
    ),
    max_size=40,
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(steps=steps)
def test_an_image_at_every_cut_of_any_history(steps: list[tuple[str, int, int]]) -> None:
    history = History()
    for step in steps:
        history.take(step)
    for cut in range(len(history.rows) + 1):
        expect_image_at(history.rows, cut)


# ---- what the coordinator itself writes


class ImageMachine(CoreMachine):
    """The core's own random life; at its end every cut of its ledger is tried."""

    def teardown(self) -> None:
        """Hold the image against the whole ledger."""
        super().teardown()
        if hasattr(self, "fixture"):
            for cut in range(len(self.fixture.rows) + 1):
                expect_image_at(self.fixture.rows, cut)


ImageMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestImageMachine = ImageMachine.TestCase


# ---- size, and what cannot be read


def test_an_image_is_as_large_as_what_is_known_not_as_what_happened() -> None:
    history = History()
    for _ in range(200):
        for what in ("round", "ONGOING", "PREPARE_COMMIT", "COMPLETE_COMMIT"):
            history.take((what, 0, 0))
    found = list(image_of(history.rows).rows())
    assert [row[1] for row in found] == [lr.encode_round_key(), key_of("t")]


# Holds INV-TC9.
def test_T2_a_decision_keeps_the_round_it_was_taken_in() -> None:
    history = History()
    for what in ("round", "round", "PREPARE_COMMIT", "round", "round"):
        history.take((what, 0, 0))
    found = list(image_of(history.rows).rows())
    assert [row[0].offset for row in found] == [4, 5, 7]


# Holds INV-AT2.
@pytest.mark.parametrize(
    ("key", "value"),
    [(b"\x00", b"x"), (lr.encode_round_key(), b"\x00"), (lr.encode_transaction_key("t"), b"\x09")],
)
def test_C22_what_cannot_be_read_gives_no_image(key: bytes, value: bytes) -> None:
    history = History()
    history.append(key, value)
    with pytest.raises(LedgerCorrupt):
        list(image_of(history.rows).rows())
