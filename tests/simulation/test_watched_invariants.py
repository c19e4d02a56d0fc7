"""Each invariant of a simulated life is silent where all is well, and says so where a fault was planted."""

from collections.abc import Iterator

import pytest

from geo_replicator.lineage import TidemarkPoint
from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch, SequenceNumber
from idempotency.partition_state import PartitionState
from idempotency.producer_state import ProducerEntry
from idempotency.window import BatchWindow, SentBatch
from region_broker.partitions.parts.sight import Sight
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import batch, fixture
from tests.simulation.swarm.invariants.rules import (
    Ends,
    replayed,
    wrong_actors,
    wrong_ends,
    wrong_epochs,
    wrong_history,
    wrong_producers,
    wrong_quarantine,
    wrong_reached,
    wrong_shown,
    wrong_state,
)
from tests.simulation.swarm.life import play
from tests.simulation.swarm.plan import Choice

pytestmark = pytest.mark.simulation

SOUND = Ends(1, 2, 3, 4, 5, 7)


def said(found: Iterator[str]) -> list[str]:
    """Return the names of the invariants that are broken."""
    return [text.split(" ", 1)[0] for text in found]


def producer(*batches: SentBatch) -> ProducerEntry:
    return ProducerEntry(ProducerId(1), ProducerEpoch(0), BatchWindow(list(batches)))


@pytest.mark.parametrize("field", ["log_start", "last_stable", "visible", "high_watermark"])
def test_INV_IVE1_an_end_beyond_the_next_one_is_seen(field: str) -> None:
    assert said(wrong_ends(None, SOUND)) == []
    assert said(wrong_ends(None, SOUND._replace(**{field: getattr(SOUND, field) + 2}))) == ["INV-IVE1"]  # fmt: skip


def test_INV_IVE2_a_leader_that_goes_back_in_its_term_is_seen() -> None:
    back = SOUND._replace(visible=2, high_watermark=3)
    assert said(wrong_ends(SOUND, back)) == ["INV-IVE2"]
    assert said(wrong_ends(SOUND._replace(log_end=6), SOUND)) == ["INV-IVE2"]
    assert said(wrong_ends(SOUND, back._replace(term=8))) == []
    assert said(wrong_ends(SOUND._replace(term=None), back._replace(term=None))) == []


def test_INV_IVE3_leader_epochs_that_do_not_rise_are_seen() -> None:
    assert said(wrong_epochs([(1, 0), (3, 4)], 4)) == []
    assert said(wrong_epochs([(3, 0), (3, 4)], 4)) == ["INV-IVE3"]
    assert said(wrong_epochs([(1, 4), (3, 4)], 4)) == ["INV-IVE3"]
    assert said(wrong_epochs([(1, 0), (3, 5)], 4)) == ["INV-IVE3"]


def test_INV_IVE4_a_window_that_is_not_of_this_log_is_seen() -> None:
    one, other = (
        SentBatch(SequenceNumber(0), SequenceNumber(1), 10, 11, 0),
        SentBatch(SequenceNumber(2), SequenceNumber(2), 12, 12, 0),
    )
    assert said(wrong_producers([producer(one, other)], 13)) == []
    assert said(wrong_producers([producer(one, other)], 12)) == ["INV-IVE4"]
    assert said(wrong_producers([producer(other, one)], 13)) == ["INV-IVE4"]
    with_gap = producer(one, SentBatch(SequenceNumber(3), SequenceNumber(3), 12, 12, 0))
    assert said(wrong_producers([with_gap], 13)) == ["INV-IVE4"]
    assert said(wrong_producers([with_gap], 13, holes_below=11)) == ["INV-IVE4"]
    assert said(wrong_producers([with_gap], 13, holes_below=12)) == []
    wraps = (
        SentBatch(SequenceNumber((1 << 31) - 1), SequenceNumber((1 << 31) - 1), 10, 10, 0),
        SentBatch(SequenceNumber(0), SequenceNumber(0), 11, 11, 0),
    )
    assert said(wrong_producers([producer(*wraps)], 13)) == []


def test_INV_IVA1_two_that_act_under_one_epoch_are_seen_also_one_after_the_other() -> None:
    known: dict[int, str] = {}
    assert said(wrong_actors(known, [("eu", 1)])) == []
    assert said(wrong_actors(known, [("eu", 1), ("us", 2)])) == []
    assert said(wrong_actors(known, [("us", 1)])) == ["INV-IVA1"]


def test_INV_IVA2_a_tidemark_that_goes_back_is_seen() -> None:
    assert (
        said(wrong_reached(TidemarkPoint(RegionEpoch(8), 9), TidemarkPoint(RegionEpoch(9), 1)))
        == []
    )
    assert said(
        wrong_reached(TidemarkPoint(RegionEpoch(9), 1), TidemarkPoint(RegionEpoch(8), 9))
    ) == ["INV-IVA2"]


def test_INV_IVA3_what_leaves_quarantine_or_is_changed_in_it_is_seen() -> None:
    assert said(wrong_quarantine({"a": b"1"}, {"a": b"1", "b": b"2"})) == []
    assert said(wrong_quarantine({"a": b"1"}, {"b": b"2"})) == ["INV-IVA3"]
    assert said(wrong_quarantine({"a": b"1"}, {"a": b"2"})) == ["INV-IVA3"]


def test_INV_IVA4_what_is_shown_beyond_the_tidemark_is_seen() -> None:
    assert said(wrong_shown({"t-0": 3}, {"t-0": 3})) == []
    assert said(wrong_shown({"t-0": 4}, {"t-0": 3})) == ["INV-IVA4"]
    assert said(wrong_shown({"t-0": 1}, {})) == ["INV-IVA4"]


def test_INV_IVA5_lost_records_that_are_shown_are_seen() -> None:
    assert said(wrong_history(visible=3, own_end=9, base=3)) == []
    assert said(wrong_history(visible=9, own_end=3, base=3)) == []
    assert said(wrong_history(visible=9, own_end=4, base=3)) == ["INV-IVA5"]


def test_INV_IVE5_a_state_that_is_not_its_logs_is_seen() -> None:
    some = fixture()
    for number in range(3):
        some.partition.writer.append(
            batch(
                origin=Origin(
                    ProducerId(7), ProducerEpoch(0), SequenceNumber(number), transactional=True
                )
            )
        )
    [segment] = some.partition.log.segments.segments
    data = bytes(some.disk.content(segment.path))
    live, one = some.partition.state, len(data) // 3
    assert said(wrong_state(live, replayed(data))) == []
    assert set(said(wrong_state(live, replayed(data[: 2 * one])))) == {"INV-IVE5"}
    assert said(wrong_state(PartitionState(), replayed(data))) != []


@pytest.mark.slow
@pytest.mark.usefixtures("silence")
def test_INV_IVA4_a_life_whose_mirrors_show_all_they_have_is_blamed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Sight, "visible_end", property(lambda self: self.high_watermark))
    outcome = play(1, minutes=0.02, choice=Choice(only=()))
    assert any(text.startswith("INV-IVA4") for text in outcome.violations), outcome.violations
