"""Where two histories meet, found by asking for leader epochs, is the end of what the two logs share (R5, KIP-101, KIP-279).

Goal: no two logs that leaders and followers can come to are cut too far, or not far enough.
Method: each leader epoch begins on a beginning of an earlier leader's log, and adds records; the two logs are beginnings of two of
these. The model compares them record by record. A log may have been cleaned, and copied from what was left by a node that knows of leader
epochs what the batches say, again and again: by the cleaner's rule the first one that is left of each leader epoch stays, and the last of all (INV-CLW3).
"""

from hypothesis import given
from hypothesis import strategies as st

from idempotency.identity import LeaderEpoch
from region_broker.replication.facts import (
    AskAgain,
    EpochStart,
    LogHistory,
    compare,
    first_asked,
    trusted,
)

Rows = list[tuple[LeaderEpoch, int]]
"""Leader epoch and number of each record."""


@st.composite
def leaders(draw: st.DrawFn) -> list[Rows]:
    """Draw the logs of some leaders, each at the end of its leader epoch; the first is empty."""
    logs: list[Rows] = [[]]
    for number in range(1, draw(st.integers(1, 7)) + 1):
        former = draw(st.sampled_from(logs))
        kept = former[: draw(st.integers(0, len(former)))]
        added = [(LeaderEpoch(number), place) for place in range(draw(st.integers(0, 3)))]
        logs.append([*kept, *added])
    return logs


def history(rows: Rows, start: int = 0) -> LogHistory:
    """Return the history of a log, of which all below `start` was deleted."""
    starts: dict[LeaderEpoch, int] = {}
    for offset, (leader_epoch, _) in enumerate(rows):
        if offset >= start:
            starts.setdefault(leader_epoch, offset)
    return LogHistory(tuple(EpochStart(*each) for each in starts.items()), start, len(rows))


@st.composite
def left_of(draw: st.DrawFn, rows: Rows) -> set[int]:
    """Draw which offsets of a log are left once it was cleaned, copied, and cleaned again, several times."""
    left = set(range(len(rows)))
    for _ in range(draw(st.integers(0, 3))):
        starts = {start for _, start in learned(rows, left).epochs}
        superseded = draw(st.sets(st.sampled_from(sorted(left)))) if left else set()
        left -= superseded - starts - {len(rows) - 1}
    return left


def learned(rows: Rows, left: set[int]) -> LogHistory:
    """Return the history of a log as it is known to who was given the records that are left, and no others."""
    starts: dict[LeaderEpoch, int] = {}
    for offset in sorted(left):
        starts.setdefault(rows[offset][0], offset)
    return LogHistory(tuple(EpochStart(*each) for each in starts.items()), 0, len(rows))


def shared(own: Rows, leaders_rows: Rows) -> int:
    """Return how much two logs have in common."""
    pairs = zip(own, leaders_rows, strict=False)
    return next(
        (offset for offset, (ours, theirs) in enumerate(pairs) if ours != theirs),
        min(len(own), len(leaders_rows)),
    )


def meeting(own: LogHistory, leader: LogHistory) -> tuple[int, int]:
    """Ask until the histories meet; return where, and how often was asked."""
    asked, count = first_asked(own), 1
    while isinstance(found := compare(own, asked, leader.end_of(asked)), AskAgain):
        assert found.leader_epoch < asked, "INV-RPH2"
        asked, count = found.leader_epoch, count + 1
    return found.offset, count


@given(st.data(), leaders())
def test_R5_INV_RPH1_INV_RPH2_histories_meet_where_the_logs_part(
    data: st.DataObject, logs: list[Rows]
) -> None:
    own, other = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    own = own[: data.draw(st.integers(0, len(own)))]
    other = other[: data.draw(st.integers(0, len(other)))]
    meets_at, count = meeting(history(own), history(other))
    assert meets_at == shared(own, other)
    assert count <= len(history(own).epochs) + 1


@given(st.data(), leaders())
def test_R5_INV_RPH1_a_deleted_beginning_keeps_nothing_that_the_leader_lacks(
    data: st.DataObject, logs: list[Rows]
) -> None:
    own, other = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    common = shared(own, other)
    own_start = data.draw(st.integers(0, common))
    start = data.draw(st.integers(0, common))
    meets_at, _ = meeting(history(own, own_start), history(other, start))
    assert meets_at <= common
    assert meets_at == common or common <= max(start, own_start)


@given(st.data(), leaders())
def test_R5_INV_RPH3_a_log_that_starts_above_what_is_shared_meets_below_its_start(
    data: st.DataObject, logs: list[Rows]
) -> None:
    """A leader that was elected uncleanly, and is shorter than what was deleted here."""
    own, other = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    common = shared(own, other)
    own_start = data.draw(st.integers(common, len(own)))
    meets_at, _ = meeting(history(own, own_start), history(other))
    assert meets_at <= (common if own_start < len(own) else max(common, min(own_start, len(other))))


@given(st.data(), leaders())
def test_R5_INV_RPH1_INV_CLW3_logs_that_were_cleaned_and_copied_from_what_is_left_meet_where_they_part(
    data: st.DataObject, logs: list[Rows]
) -> None:
    own, other = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    own = own[: data.draw(st.integers(0, len(own)))]
    other = other[: data.draw(st.integers(0, len(other)))]
    own_left, others_left = data.draw(left_of(own)), data.draw(left_of(other))
    meets_at, _ = meeting(learned(own, own_left), learned(other, others_left))
    assert meets_at == shared(own, other)


def meeting_of_cleaned(own: LogHistory, leader: LogHistory, left: set[int], committed: int) -> int:
    """Ask until the histories meet, where the leader's log holds what is `left` of it; return where."""
    asked = first_asked(own)
    while True:
        end = leader.end_of(asked)
        held_to = max((at + 1 for at in left if at < end.end_offset), default=0)
        found = compare(own, asked, end)
        if not isinstance(found, AskAgain):
            is_newest = end.leader_epoch == leader.latest
            return trusted(found.offset, end, end.end_offset if is_newest else held_to, committed)
        asked = found.leader_epoch


@given(st.data(), leaders())
def test_R5_INV_RPH4_a_leader_that_knows_starts_too_late_keeps_no_follower_from_its_cut(
    data: st.DataObject, logs: list[Rows]
) -> None:
    """What was cleaned by a version that kept no first batch of a leader epoch: any record below what is committed may be gone."""
    own, other = data.draw(st.sampled_from(logs)), data.draw(st.sampled_from(logs))
    own = own[: data.draw(st.integers(0, len(own)))]
    other = other[: data.draw(st.integers(0, len(other)))]
    common = shared(own, other)
    committed = data.draw(st.integers(0, common))
    exact = data.draw(st.booleans())
    own_left, left = (
        set(range(len(rows)))
        - (data.draw(st.sets(st.integers(0, max(end - 1, 0)))) - {len(rows) - 1})
        for rows, end in ((own, committed), (other, len(other)))
    )
    others = history(other) if exact else learned(other, left)
    owns = history(own) if exact else learned(own, own_left)
    meets_at = meeting_of_cleaned(owns, others, left, committed)
    assert meets_at <= common
    assert meets_at >= committed or not exact
