"""Where leader epochs start is known of a log that was cleaned, and of a copy that was made of it (INV-CLW3, INV-RPH1).

The numbers are those of one life: X leads in epoch 3 and writes 100 to 150, which no other node gets. A writes from 100 on in epoch 5, and from
200 on in epoch 7, cleans its log, and Y copies it anew.
"""

from collections.abc import Sequence
from itertools import pairwise

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.record_batch import iter_headers
from region_broker.log.indexes.leader_epochs import EPOCHS_NAME, LeaderEpochs
from region_broker.region.cluster.replica_logs import history_of
from region_broker.replication.facts import EpochStart, LogHistory, MeetAt, compare, trusted
from tests.fixtures.node_logs import (
    LEADER_EPOCH,
    Fixture,
    all_bytes,
    fixture,
)
from tests.fixtures.older_cleaner import clean_as_before
from tests.unit.region_broker.log.test_cleaning import COMPACT, clean, put, roll

THIRD, FIFTH, SEVENTH = (LeaderEpoch(LEADER_EPOCH + number) for number in (3, 5, 7))
STARTS = [(THIRD, 0), (FIFTH, 100), (SEVENTH, 200)]
X = LogHistory((EpochStart(THIRD, 0),), 0, 150)


def write(some: Fixture, keys: str, count: int) -> None:
    """Put `count` records, ten in a batch: one for each of the keys `keys`0 to `keys`9."""
    for _ in range(count // 10):
        put(some, *[(f"{keys}{number}", "v" * 40) for number in range(10)])


def lead(some: Fixture, leader_epoch: LeaderEpoch) -> None:
    some.partition.become_leader(leader_epoch)


def cleaned(*, all_is_gone: bool) -> Fixture:
    """Return A, whose epoch 5 was superseded up to 160, or all before epoch 7, and cleaned."""
    some = fixture(COMPACT)
    lead(some, THIRD)
    write(some, "again" if all_is_gone else "third", 100)
    lead(some, FIFTH)
    write(some, "again", 60)
    write(some, "again" if all_is_gone else "fifth", 40)
    lead(some, SEVENTH)
    write(some, "again", 100)
    roll(some)
    assert some.partition.log.epochs.entries() == STARTS
    assert clean(some)
    return some


def copy_of(some: Fixture, starts: Sequence[tuple[LeaderEpoch, int]] = ()) -> Fixture:
    """Return Y, which has copied what is left of A's log, and was told these starts."""
    copy = fixture(COMPACT, leads=False)
    copy.partition.become_mirror()
    copy.partition.writer.cleaned_at_primary = some.partition.log.cleaning.holes_below
    copy.partition.writer.leader_starts = starts
    copy.partition.writer.append_mirrored(all_bytes(some.partition))
    copy.sync()
    return copy


@pytest.mark.parametrize("all_is_gone", [False, True])
def test_INV_CLW3_INV_RPH1_who_copied_a_cleaned_log_knows_where_each_epoch_starts(
    all_is_gone: bool,
) -> None:
    original = cleaned(all_is_gone=all_is_gone)
    headers = [header for _, header in iter_headers(all_bytes(original.partition))]
    assert any(a.next_offset < b.base_offset for a, b in pairwise(headers)), "there are holes"
    copy = copy_of(original)
    assert copy.partition.log.epochs.entries() == STARTS
    answered = history_of(copy.partition).end_of(THIRD)
    assert compare(X, THIRD, answered) == MeetAt(100), "what X alone has is cut"


def test_INV_CLW3_starts_stay_when_it_is_cleaned_again_and_the_table_is_made_anew() -> None:
    some = cleaned(all_is_gone=True)
    write(some, "third", 10)
    write(some, "again", 10)
    roll(some)
    assert clean(some)
    some.disk.remove(some.folder / EPOCHS_NAME)
    some.leads = False
    some.kill_and_reopen()
    assert some.partition.log.epochs.entries()[:3] == STARTS
    assert copy_of(some).partition.log.epochs.entries()[:3] == STARTS


@pytest.mark.parametrize("all_is_gone", [False, True])
def test_INV_E4_a_copy_takes_the_leaders_word_for_what_the_batches_cannot_tell(
    all_is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_as_before(monkeypatch)
    original = cleaned(all_is_gone=all_is_gone)
    assert copy_of(original).partition.log.epochs.entries() != STARTS
    copy = copy_of(original, STARTS)
    assert copy.partition.log.epochs.entries() == STARTS
    end = copy.partition.log_end_offset
    lead(original, LeaderEpoch(SEVENTH + 1))
    write(original, "later", 10)
    original.sync()
    copy.partition.writer.append_mirrored(original.partition.reader.read_raw(end, 1 << 20))
    assert copy.partition.log.epochs.entries() == [*STARTS, (SEVENTH + 1, end)]


def test_INV_E4_a_word_that_the_batches_belie_counts_for_nothing() -> None:
    epochs = LeaderEpochs()
    epochs.note(LeaderEpoch(3), 0)
    wrong = [
        (LeaderEpoch(4), 99),
        (LeaderEpoch(6), 120),
        (LeaderEpoch(5), 170),
        (LeaderEpoch(5), 110),
    ]
    epochs.note_missing(wrong, 100, LeaderEpoch(5), 160)
    epochs.note(LeaderEpoch(5), 160)
    assert epochs.entries() == [(3, 0), (5, 110)]


@pytest.mark.parametrize("all_is_gone", [False, True])
def test_INV_RPH4_who_knows_starts_too_late_says_where_its_batches_end(
    all_is_gone: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    clean_as_before(monkeypatch)
    copy = copy_of(cleaned(all_is_gone=all_is_gone)).partition
    answered = history_of(copy).end_of(THIRD)
    held_to = copy.reader.end_before(answered.end_offset)
    assert held_to <= 100
    meets = compare(X, THIRD, answered)
    if not all_is_gone:
        assert isinstance(meets, MeetAt)
        assert meets.offset > 100, "the table alone is wrong"
        assert trusted(meets.offset, answered, held_to, committed=0) == held_to == 100
    newest = copy.log_end_offset
    assert copy.reader.end_before(newest) == newest
