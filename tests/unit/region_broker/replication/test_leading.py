"""What a leader commits, acknowledges and proposes, rule by rule: R1, R2, R3, R4, R6, C41."""

from sys import getsizeof
from typing import ClassVar
from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication.effects import (
    Deposed,
    Enough,
    HighWatermark,
    LeaderEffect,
    LowWatermark,
    NotEnough,
    ProposeInSync,
    WentBack,
)
from region_broker.replication.events import (
    FollowerConnected,
    FollowerLost,
    FollowerReport,
    InSyncChanged,
    LeaderEpochSeen,
    LeaderEvent,
    LogClosed,
    LogOpened,
    LogsDurable,
    LogsStopped,
    LogStartMoved,
    MembersFenced,
    MinInSyncChanged,
    ProposalEnded,
    Ticked,
)
from region_broker.replication.facts import InSync
from region_broker.replication.leading import LeadingCore, LeadingSettings
from region_broker.replication.progress import FollowerProgress, LeaderLogState
from tests.fixtures.leading_groups import (
    AWAITED_MS,
    EPOCH,
    LAG_MS,
    NEWER,
    PAUSE_MS,
    A,
    B,
    C,
    Group,
    X,
    Y,
    named,
    proposal,
)

# -- HW -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("own", "second", "third", "high_watermark"),
    [(5, 5, 5, 5), (5, 4, 3, 3), (2, 5, 5, 2), (5, 0, 5, 0), (5, 3, None, 0)],
)
def test_R2_INV_RPL1_hw_is_the_least_that_is_durable_in_the_set(
    own: int, second: int, third: int | None, high_watermark: int
) -> None:
    group = Group(A, B, C)
    group.durable(x=own)
    for member, end in ((B, second), (C, third)):
        if end is not None:
            group.connect(member)
            group.report(member, x=end)
    assert group.core.high_watermark(X) == high_watermark
    assert group.core.durable_end(X) == own


def test_R8_a_region_of_one_commits_what_its_own_disk_holds() -> None:
    assert Group(A).durable(x=3) == [HighWatermark(X, 3)]


def test_R2_hw_counts_whoever_is_in_a_proposal_that_is_under_way() -> None:
    group = Group(A)
    group.durable(x=3)
    group.connect(B)
    assert proposal(group.report(B, x=3)).members == {A, B}
    assert group.durable(x=5) == []
    assert group.report(B, x=4) == [HighWatermark(X, 4)]


def test_R2_hw_counts_whoever_was_in_a_proposal_of_unknown_outcome_until_a_newer_version() -> None:
    group = Group(A)
    group.connect(B)
    asked = proposal(group.report(B))
    group.step(ProposalEnded(asked.number, is_refused=False))
    assert group.durable(x=2) == []
    assert group.changed(2, A) == [HighWatermark(X, 2)]


def test_R2_hw_counts_all_that_were_in_proposals_of_unknown_outcome_not_the_last_one_alone() -> (
    None
):
    group = Group(A)
    group.connect(B)
    first = proposal(group.report(B))
    group.step(ProposalEnded(first.number, is_refused=False))
    group.step(FollowerLost(B, 1))
    group.connect(C)
    group.report(C)
    second = proposal(group.at(PAUSE_MS))
    assert second.members == {A, C}
    group.step(ProposalEnded(second.number, is_refused=False))
    group.durable(x=2)
    assert group.report(C, x=2) == [], "B is elected where the first one is carried out late"
    assert group.changed(2, A, C) == [HighWatermark(X, 2)]


def test_R2_INV_RPL1_a_set_that_is_told_again_ends_no_proposal() -> None:
    """Each image of the metadata tells it, whatever has changed in it."""
    group = Group(A)
    group.connect(B)
    asked = proposal(group.report(B))
    assert group.changed(1, A) == []
    assert group.durable(x=2) == [], "B may be in the set already"
    group.step(ProposalEnded(asked.number, is_refused=False))
    assert group.changed(1, A) == []
    assert group.durable(x=3) == [], "nor is the doubt over"


def test_R2_a_proposal_that_was_refused_does_not_count() -> None:
    group = Group(A)
    group.connect(B)
    asked = proposal(group.report(B))
    assert group.durable(x=2) == []
    assert group.step(ProposalEnded(asked.number, is_refused=True)) == [HighWatermark(X, 2)]


def test_R2_hw_still_counts_whoever_is_to_leave_until_the_metadata_say_so() -> None:
    group = Group(A, B)
    group.connect(B)
    group.durable(x=2)
    assert proposal(group.step(FollowerLost(B, 1))).members == {A}
    assert group.durable(x=3) == []
    assert group.changed(2, A) == [HighWatermark(X, 3)]


def test_INV_RPL2_hw_does_not_go_down_when_somebody_joins_with_less() -> None:
    group = Group(A)
    group.durable(x=3)
    assert group.changed(2, A, B) == []
    assert group.core.high_watermark(X) == 3


def test_R2_INV_RPL3_hw_stands_still_below_min_in_sync_and_goes_on_with_enough() -> None:
    group = Group(A, least=2)
    assert group.durable(x=3) == []
    group.connect(B)
    group.report(B, x=3)
    assert group.changed(2, A, B) == [Enough(2), HighWatermark(X, 3)]


def test_R2_INV_RPL3_who_is_only_proposed_is_not_one_of_those_that_there_must_be() -> None:
    """The proposal may be refused: then the record would be acknowledged, and be on one node."""
    group = Group(A, least=2)
    group.connect(B)
    assert proposal(group.report(B)).members == {A, B}
    group.durable(x=3)
    assert group.report(B, x=3) == []
    assert group.core.high_watermark(X) == 0


def test_INV_RPL3_a_smaller_min_in_sync_lets_hw_go_on() -> None:
    group = Group(A, least=2)
    group.durable(x=3)
    assert group.step(MinInSyncChanged(X, 1)) == [HighWatermark(X, 3)]


# -- who is taken in, and out ---------------------------------------------------------------------


def test_R3_taken_in_once_all_below_hw_is_durable() -> None:
    group = Group(A)
    group.durable(x=3)
    group.connect(B)
    assert group.report(B, x=2) == []
    assert proposal(group.report(B, x=3)) == ProposeInSync(1, EPOCH, frozenset({A, B}), 1)


def test_R3_taken_in_only_with_what_older_leader_epochs_wrote() -> None:
    group = Group(A, C, start=4, end=4)  # C holds HW at 0
    group.connect(B)
    assert group.report(B, x=3) == []
    assert proposal(group.report(B, x=4)).members == {A, B, C}


def test_R3_INV_RPL8_taken_in_for_all_logs_or_none() -> None:
    group = Group(A)
    group.step(LogOpened(Y, 2, 0, 0, 1))
    group.durable(x=3)
    group.connect(B)
    assert group.report(B, x=3, y=1) == []
    assert proposal(group.report(B, y=2)).members == {A, B}


def test_R3_INV_RPL4_a_log_that_opens_while_a_follower_is_here_is_asked_for_too() -> None:
    group = Group(A)
    group.connect(B)
    group.step(
        LogOpened(Y, 5, 5, 0, 2)
    )  # HW stands still, and what was committed before may lie below 5
    assert not [each for each in group.report(B) if isinstance(each, ProposeInSync)]
    assert not [each for each in group.report(B, y=4) if isinstance(each, ProposeInSync)]
    assert proposal(group.report(B, y=5)).members == {A, B}


def test_INV_RPP2_who_does_not_copy_a_log_that_opened_later_leaves() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    group.step(LogOpened(Y, 5, 0, 0, 1))
    assert group.at(LAG_MS) == []
    assert proposal(group.at(LAG_MS + 1)).members == {A}


def test_R3_a_log_that_is_closed_holds_nobody_up() -> None:
    group = Group(A)
    group.step(LogOpened(Y, 2, 0, 0, 1))
    group.connect(B)
    group.report(B)
    assert proposal(group.step(LogClosed(Y))).members == {A, B}


def test_INV_RPL9_while_a_log_has_stopped_at_the_leader_only_who_was_in_sync_then_is_taken_in() -> (
    None
):
    group = Group(A, C)
    group.step(LogOpened(Y, 2, 0, 0, 1))
    group.step(LogsStopped(frozenset({Y})))
    group.step(LogClosed(Y))
    group.connect(B)
    assert group.report(B) == []
    assert C in group.core.in_sync.members, "whoever is in sync stays"
    group.connect(C)
    assert proposal(group.step(FollowerLost(C, 1))).members == {A}
    group.changed(2, A)
    group.connect(C, 2)
    assert proposal(group.report(C, 2)).members == {A, C}, "and may come back: it has it all"
    group.changed(3, A, C)
    assert proposal(group.step(LogsStopped(frozenset()))).members == {A, B, C}


def test_INV_RPL9_who_was_in_sync_when_a_log_stopped_is_remembered_when_another_one_stops() -> None:
    group = Group(A, C)
    group.connect(C)
    group.report(C)
    group.step(LogsStopped(frozenset({Y})))
    group.step(FollowerLost(C, 1))
    group.changed(2, A)
    group.step(LogsStopped(frozenset({Y, LogKey(UUID(int=3), 0)})))
    group.step(LogsStopped(frozenset({Y})))
    group.connect(C, 2)
    assert proposal(group.report(C, 2)).members == {A, C}


def test_R3_whoever_has_said_nothing_in_this_session_is_not_taken_in() -> None:
    group = Group(A)
    assert group.connect(B) == []
    assert proposal(group.report(B)).members == {A, B}


def test_R3_a_fenced_member_is_not_taken_in_and_leaves_at_once() -> None:
    group = Group(A)
    group.step(MembersFenced(frozenset({B})))
    group.connect(B)
    assert group.report(B) == []
    assert proposal(group.step(MembersFenced(frozenset()))).members == {A, B}
    group.changed(2, A, B)
    assert proposal(group.step(MembersFenced(frozenset({B})))).members == {A}


def test_R3_whoever_lags_is_not_taken_in_though_it_has_all_below_hw() -> None:
    group = Group(A, C)
    group.durable(x=9)  # C holds HW at 0
    group.connect(B)
    assert group.report(B, x=1) == []
    group.durable(x=10)
    assert proposal(group.report(B, x=9)).members == {A, B, C}  # caught up as of when it came


def test_a_lost_member_leaves_at_once_and_may_come_back() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    assert proposal(group.step(FollowerLost(B, 1))).members == {A}
    group.changed(2, A)
    group.connect(B, 2)
    assert proposal(group.report(B, 2)).members == {A, B}


def awaiting_b(*in_sync: Member) -> Group:
    """Return a group whose leader waits for B."""
    group = Group(*in_sync)
    settings = LeadingSettings(LAG_MS, PAUSE_MS, awaited=B, awaited_ms=AWAITED_MS)
    group.core = LeadingCore(A, EPOCH, InSync(frozenset(in_sync), 1), settings=settings, now_ms=0)
    group.step(LogOpened(X, 0, 0, 0, 1))
    for member in sorted({*in_sync} - {A}):
        group.connect(member)
        group.report(member)
    return group


def test_INV_RPL13_who_is_awaited_may_connect_again_and_hw_waits_for_it() -> None:
    group = awaiting_b(A, B, C)
    assert group.step(FollowerLost(B, 1)) == []
    group.durable(x=2)
    assert group.report(C, x=2) == [], "B counts"
    assert group.at(AWAITED_MS - 1) == []
    assert group.connect(B, 2) == []
    assert group.at(AWAITED_MS + 1) == [], "HW waits for what it says in this session"
    assert group.report(B, 2, x=2) == [HighWatermark(X, 2)]


def test_INV_RPL13_who_does_not_come_back_is_fenced_or_is_another_one_leaves() -> None:
    group = awaiting_b(A, B, C)
    group.step(FollowerLost(B, 1))
    assert proposal(group.at(AWAITED_MS)).members == {A, C}
    group = awaiting_b(A, B, C)
    group.step(FollowerLost(B, 1))
    assert proposal(group.step(MembersFenced(frozenset({B})))).members == {A, C}
    group = awaiting_b(A, B, C)
    assert proposal(group.step(FollowerLost(C, 1))).members == {A, B}


def test_INV_RPL13_time_goes_on_where_a_log_is_cut_and_who_is_outside_is_not_awaited() -> None:
    group = awaiting_b(A, B)
    group.step(FollowerLost(B, 1))
    group.at(AWAITED_MS - 1)
    group.cut(1, A, B)
    group.step(LogOpened(X, 0, 0, 0, 1))
    assert proposal(group.at(AWAITED_MS)).members == {A}
    group = awaiting_b(A)
    group.connect(B)
    group.step(FollowerLost(B, 1))
    assert group.at(1) == []


def test_INV_RPL13_INV_RPL10_who_is_awaited_is_so_still_where_a_log_is_cut() -> None:
    group = awaiting_b(A, B)
    group.at(10 * AWAITED_MS)
    group.report(B)
    group.step(FollowerLost(B, 1))
    group.cut(1, A, B)
    assert group.step(LogOpened(X, 0, 0, 0, 1)) == []
    assert group.at(11 * AWAITED_MS - 1) == []
    assert proposal(group.at(11 * AWAITED_MS)).members == {A}


def test_whoever_was_never_heard_has_the_time_of_one_that_lags() -> None:
    group = Group(A, B)
    assert group.at(LAG_MS) == []
    assert proposal(group.at(LAG_MS + 1)).members == {A}


def test_INV_RPP2_whoever_lags_leaves_and_an_idle_one_does_not() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    assert group.at(10 * LAG_MS) == []
    group.durable(x=1)
    assert group.at(11 * LAG_MS) == []
    assert proposal(group.at(11 * LAG_MS + 1)).members == {A}


def test_INV_RPP2_caught_up_is_as_of_the_moment_whose_ends_are_reached() -> None:
    """Always a little behind, and never far: as Kafka's lastCaughtUpTimeMs."""
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    for end in range(1, 20):
        group.now_ms += LAG_MS // 2
        assert not [e for e in group.durable(x=end) if isinstance(e, ProposeInSync)]
        assert not [e for e in group.report(B, x=end - 1) if isinstance(e, ProposeInSync)]
    assert proposal(group.at(group.now_ms + LAG_MS)).members == {A}


def test_INV_RPP2_one_log_left_behind_is_a_member_left_behind() -> None:
    group = Group(A, B)
    group.step(LogOpened(Y, 0, 0, 0, 1))
    group.connect(B)
    group.report(B)
    group.durable(x=1, y=1)
    for end in range(2, 6):
        group.now_ms += LAG_MS // 4
        group.durable(x=end)
        assert not [e for e in group.report(B, x=end) if isinstance(e, ProposeInSync)]
    assert proposal(group.at(LAG_MS + 1)).members == {A}


def test_INV_RPL7_one_proposal_at_a_time_and_the_next_after_a_pause() -> None:
    group = Group(A)
    group.connect(B)
    first = proposal(group.report(B))
    group.connect(C)
    assert group.report(C) == []
    assert group.step(ProposalEnded(first.number, is_refused=True)) == []
    assert group.at(PAUSE_MS - 1) == []
    second = proposal(group.at(PAUSE_MS))
    assert second.members == {A, B, C}
    assert second.expected_version == 1
    assert group.step(ProposalEnded(first.number, is_refused=True)) == []
    assert group.at(10 * PAUSE_MS) == []  # the second one is under way


def test_INV_RPL7_doubt_about_somebody_who_is_gone_is_settled_by_a_new_version() -> None:
    group = Group(A)
    group.connect(B)
    asked = proposal(group.report(B))
    group.step(ProposalEnded(asked.number, is_refused=False))
    group.step(FollowerLost(B, 1))
    assert proposal(group.at(PAUSE_MS)).members == {A}


def test_the_metadata_may_take_somebody_out_unasked() -> None:
    group = Group(A, B)
    group.durable(x=2)
    assert group.changed(2, A) == [HighWatermark(X, 2)]
    assert group.core.in_sync == InSync(frozenset({A}), 2)
    assert group.changed(1, A, B) == []
    assert group.core.in_sync.version == 2


def test_INV_RPP1_a_follower_that_has_less_than_it_said_leaves() -> None:
    group = Group(A, B)
    group.durable(x=5)
    group.connect(B)
    group.report(B, x=5)
    group.connect(B, 2)
    effects = group.report(B, 2, x=3)
    assert effects[0] == WentBack(B, (X,))
    assert proposal(effects).members == {A}
    group.changed(2, A)
    assert proposal(group.report(B, 2, x=5)).members == {A, B}


# -- what counts ----------------------------------------------------------------------------------


def test_R4_INV_RPL5_reports_of_other_sessions_epochs_and_incarnations_change_nothing() -> None:
    group = Group(A, B)
    group.durable(x=5)
    group.connect(B, 2)
    emptied = Member(B.node_id, UUID(int=99))
    assert group.report(B, 1, x=5) == []
    assert group.report(emptied, 2, x=5) == []
    assert group.step(FollowerReport(B, 2, LeaderEpoch(4), {X: 5})) == []
    assert group.step(FollowerConnected(B, 3, LeaderEpoch(4))) == []
    group.connect(B, 1)  # an older connection, heard late
    assert group.report(B, 2, x=4) == [HighWatermark(X, 4)]
    group.step(FollowerLost(B, 2))
    assert group.report(B, 2, x=5) == []
    assert group.core.high_watermark(X) == 4


def test_R4_an_older_session_that_ends_takes_nobody_out() -> None:
    group = Group(A, B)
    group.connect(B, 2)
    assert group.step(FollowerLost(B, 1)) == []


@pytest.mark.parametrize(
    "news",
    [
        LeaderEpochSeen(NEWER),
        FollowerConnected(B, 9, NEWER),
        FollowerReport(B, 1, NEWER, {X: 5}),
        InSyncChanged(NEWER, InSync(frozenset({B}), 9)),
    ],
)
def test_R4_INV_RPL6_a_leader_that_knows_a_newer_epoch_stops_for_good(news: LeaderEvent) -> None:
    group = Group(A, B)
    group.connect(B)
    group.durable(x=5)
    assert group.step(news) == [Deposed(NEWER)]
    assert group.core.is_deposed
    assert group.report(B, x=5) == []
    assert group.step(LeaderEpochSeen(NEWER)) == []
    assert group.core.high_watermark(X) == 0


def test_INV_RPL6_nothing_is_proposed_in_the_step_that_ends_the_leader_epoch() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    group.now_ms = 10 * LAG_MS
    group.durable(x=5)
    group.now_ms = 20 * LAG_MS
    assert group.step(LeaderEpochSeen(NEWER)) == [Deposed(NEWER)], (
        "B lags, and is not told to leave"
    )


def test_R4_an_older_epoch_deposes_nobody() -> None:
    group = Group(A)
    assert group.step(LeaderEpochSeen(EPOCH)) == []
    assert group.step(InSyncChanged(LeaderEpoch(4), InSync(frozenset({B}), 9))) == []
    assert not group.core.is_deposed


# -- what is answered -----------------------------------------------------------------------------


def test_R1_acks_all_is_taken_while_the_set_is_large_enough_for_the_log() -> None:
    group = Group(A, B, C, least=2)
    group.step(LogOpened(Y, 0, 0, 0, 3))
    assert group.core.has_enough(X)
    assert group.core.has_enough(Y)
    assert group.changed(2, A, B) == [NotEnough(3)]
    assert group.core.has_enough(X)
    assert not group.core.has_enough(Y)
    assert group.changed(3, A) == [NotEnough(2)]
    assert group.changed(4, A, B, C) == [Enough(2), Enough(3)]
    group.step(LogClosed(Y))
    assert group.changed(5, A, B) == []


def test_R6_the_latest_offset_is_known_once_hw_covers_older_leader_epochs() -> None:
    group = Group(A, B, start=4, end=4)
    assert not group.core.knows_latest(X)
    group.connect(B)
    group.report(B, x=3)
    assert not group.core.knows_latest(X)
    group.report(B, x=4)
    assert group.core.knows_latest(X)


# -- where a log was cut --------------------------------------------------------------------------


def test_INV_RPL10_nothing_that_was_reported_before_a_cut_counts_after_it() -> None:
    group = Group(A, B)
    group.connect(B)
    group.durable(x=10)
    group.report(B, x=10)
    group.cut(1, A, B)
    group.step(LogOpened(X, 8, 8, 8, 1))
    assert group.core.high_watermark(X) == 8
    assert group.durable(x=12) == [], "B has the 10 records of another history"
    assert group.report(B, x=12) == [], "of a session before the cut"
    group.connect(B, 2)
    assert HighWatermark(X, 12) in group.report(B, 2, x=12)


def test_INV_RPL10_a_proposal_that_was_under_way_at_a_cut_counts_until_its_end_is_known() -> None:
    group = Group(A, B)
    group.connect(C)
    wish = group.report(C, x=0)
    assert any(isinstance(each, ProposeInSync) and C in each.members for each in wish)
    group.cut(1, A, B)
    group.step(LogOpened(X, 0, 0, 0, 1))
    group.connect(B, 2)
    group.durable(x=3)
    assert group.report(B, 2, x=3) == [], "C may be elected without it"
    group.cut(1, A, B)
    group.step(LogOpened(X, 3, 3, 0, 1))
    group.connect(B, 3)
    assert group.report(B, 3, x=3) == [], "nor is it forgotten at the next cut"
    assert HighWatermark(X, 3) in group.changed(2, A, B)


def test_INV_RPL10_who_was_proposed_before_a_cut_counts_as_the_first_log_is_opened() -> None:
    group = Group(A)
    group.connect(C)
    assert proposal(group.report(C)).members == {A, C}
    group.cut(1, A)
    opened = group.step(LogOpened(X, 3, 3, 0, 1, 2))
    assert not [each for each in opened if isinstance(each, HighWatermark | LowWatermark)]
    assert group.core.high_watermark(X) == 0


def test_INV_RPL10_a_proposal_of_an_older_version_is_void_after_a_cut() -> None:
    group = Group(A, B)
    group.connect(C)
    group.report(C, x=0)
    group.cut(2, A, B)
    group.step(LogOpened(X, 3, 3, 0, 1))
    group.connect(B, 2)
    assert HighWatermark(X, 3) in group.report(B, 2, x=3)


def test_INV_RPL10_who_was_lost_before_a_cut_is_taken_out_after_it() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B, x=0)
    group.step(FollowerLost(B, 1))
    group.cut(2, A, B)
    [asked] = group.step(LogOpened(X, 3, 3, 0, 1))
    assert isinstance(asked, ProposeInSync)
    assert asked.members == {A}


def test_INV_RPL10_who_was_fenced_before_a_cut_is_taken_in_no_sooner_after_it() -> None:
    group = Group(A)
    group.step(MembersFenced(frozenset({B})))
    group.cut(1, A)
    group.step(LogOpened(X, 0, 0, 0, 1))
    group.connect(B)
    assert group.report(B, x=0) == []
    assert proposal(group.step(MembersFenced(frozenset()))).members == {A, B}


def test_INV_RPL10_who_went_back_before_a_cut_is_taken_out_after_it() -> None:
    group = Group(A, B)
    group.durable(x=5)
    group.connect(B)
    group.report(B, x=5)
    group.connect(B, 2)
    assert proposal(group.report(B, 2, x=3)).members == {A}
    group.cut(2, A, B)
    assert proposal(group.step(LogOpened(X, 3, 3, 0, 1))).members == {A}


def test_INV_RPL10_a_member_that_is_in_sync_has_time_to_connect_again_after_a_cut() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B, x=0)
    group.now_ms = 10 * LAG_MS
    group.cut(1, A, B)
    group.step(LogOpened(X, 3, 3, 0, 1))
    assert group.at(11 * LAG_MS - 1) == []
    assert group.at(11 * LAG_MS + 1) != []


def test_INV_RPL10_INV_RPL9_who_was_in_sync_when_a_log_stopped_is_remembered_over_a_cut() -> None:
    group = Group(A, B)
    group.step(LogsStopped(frozenset({Y})))
    group.cut(1, A, B)
    group.step(LogOpened(X, 0, 0, 0, 1))
    group.connect(B, 1)
    group.report(B, 1, x=0)
    group.connect(C, 2)
    assert group.report(C, 2, x=0) == []


# -- log starts -----------------------------------------------------------------------------------


def ordered(*in_sync: Member, start: int = 2, end: int = 3) -> Group:
    """Return a group in which all have all of X, and an order to delete below `start` is durable at the leader."""
    group = Group(*in_sync, end=end)
    for member in sorted({*in_sync} - {A}):
        group.connect(member)
        group.starts(member, ends={"x": end})
    assert LowWatermark(X, start) not in group.step(LogStartMoved(X, start)) or {*in_sync} == {A}
    return group


def test_INV_RPL11_an_order_to_delete_waits_for_all_that_may_lead_next() -> None:
    group = ordered(A, B, C)
    assert group.core.low_watermark(X) == 0
    assert group.starts(B, x=2) == []
    assert group.starts(C, x=1) == [LowWatermark(X, 1)]
    assert group.starts(C, x=5) == [LowWatermark(X, 2)], "the leader counts, too"
    assert group.starts(B, x=4) == []
    assert group.step(LogStartMoved(X, 1)) == [], "it does not go down"


def test_INV_RPL11_a_region_of_one_needs_its_own_disk_alone() -> None:
    group = Group(A, end=3)
    assert group.step(LogStartMoved(X, 2)) == [LowWatermark(X, 2)]
    assert group.step(LogStartMoved(Y, 2)) == [], "a log that is not led"
    assert group.step(LogOpened(Y, 3, 0, 3, 1, 2)) == [LowWatermark(Y, 2)]


def test_INV_RPL11_whoever_is_in_a_proposal_counts_until_it_has_ended() -> None:
    group = Group(A, end=3)
    group.connect(B)
    asked = proposal(group.starts(B, ends={"x": 3}))
    assert group.step(LogStartMoved(X, 2)) == []
    assert group.step(ProposalEnded(asked.number, is_refused=False)) == []
    assert group.changed(2, A) == [LowWatermark(X, 2)]


def test_INV_RPL11_whoever_leaves_counts_until_the_metadata_say_so() -> None:
    group = ordered(A, B)
    asked = proposal(group.step(FollowerLost(B, 1)))
    assert asked.members == {A}
    assert LowWatermark(X, 2) in group.changed(2, A)


def test_INV_RPL11_nobody_is_taken_in_below_the_leaders_start() -> None:
    group = Group(A, end=3)
    group.step(LogStartMoved(X, 2))
    group.connect(B)
    assert group.starts(B, ends={"x": 3}) == []
    assert group.starts(B, x=1) == []
    assert proposal(group.starts(B, x=2)).members == {A, B}


@pytest.mark.parametrize("is_connected", [False, True])
def test_INV_RPL11_who_leads_anew_takes_in_nobody_below_the_start_that_it_began_with(
    *, is_connected: bool
) -> None:
    group = Group(A, end=3)
    if is_connected:
        group.connect(B)
    group.step(LogOpened(Y, 3, 0, 3, 1, 2))
    if not is_connected:
        group.connect(B)
    assert group.starts(B, ends={"x": 3, "y": 3}) == []
    closed = group.step(LogClosed(Y))
    assert proposal(closed).members == {A, B}, "a log that is gone keeps nobody"


def test_INV_RPL11_what_was_said_in_another_session_counts_for_nothing() -> None:
    group = ordered(A, B)
    group.connect(B, 2)
    assert group.starts(B, 1, x=2) == []
    assert group.starts(B, 2, x=3) == [LowWatermark(X, 2)]
    group.connect(B, 3)
    assert group.step(LogStartMoved(X, 3)) == []
    assert group.starts(B, 3) == [], "not even the start that it had said"
    assert group.core.low_watermark(X) == 2


def test_INV_RPL11_INV_RPL10_no_start_that_was_said_before_a_cut_counts_after_it() -> None:
    group = ordered(A, B)
    group.starts(B, x=2)
    group.cut(1, A, B)
    assert group.step(LogOpened(X, 3, 3, 3, 1, 2)) == []
    assert group.core.low_watermark(X) == 0
    assert group.starts(B, 1, x=2) == [], "of a session before the cut"
    group.connect(B, 2)
    assert group.starts(B, 2, ends={"x": 3}) == []
    assert group.starts(B, 2, x=2) == [LowWatermark(X, 2)]


def test_INV_RPL11_what_was_answered_stands_when_another_log_was_cut() -> None:
    group = ordered(A, B)
    group.starts(B, x=2)
    group.cut(1, A, B)
    assert group.step(LogOpened(X, 3, 3, 3, 1, 2, 2)) == []
    assert group.core.low_watermark(X) == 2
    group.connect(B, 2)
    assert group.starts(B, 2, ends={"x": 3}, x=1) == [], "it does not go down"
    assert group.core.low_watermark(X) == 2
    assert group.step(LogStartMoved(X, 3)) == []
    assert group.starts(B, 2, x=3) == [LowWatermark(X, 3)]


def test_INV_RPL11_a_start_that_went_back_keeps_nobody_out() -> None:
    group = Group(A, end=3)
    group.step(LogStartMoved(X, 2))
    group.cut(1, A)
    assert group.step(LogOpened(X, 3, 3, 3, 1, 0)) == []
    group.connect(B)
    assert proposal(group.starts(B, ends={"x": 3})).members == {A, B}
    assert group.step(LogStartMoved(X, 1)) == [], "the next order waits for it, too"
    assert group.starts(B, x=1) == [LowWatermark(X, 1)]


def test_INV_RPL11_who_cannot_follow_the_start_leaves_after_the_lag_time() -> None:
    """Its log has stopped, and nobody writes: it lacks nothing else, and would hold the answer up for ever."""
    group = ordered(A, B)
    group.at(LAG_MS)
    assert group.starts(B) == []
    group.now_ms = LAG_MS + 1
    assert proposal(group.starts(B)).members == {A}


def test_a_follower_of_a_version_that_does_not_tell_its_starts_holds_nothing_up() -> None:
    group = ordered(A, B, C)
    assert group.step(FollowerReport(B, 1, EPOCH, {})) == []
    assert group.starts(C, x=2) == [LowWatermark(X, 2)]
    assert group.step(LogStartMoved(X, 3)) == []
    assert group.starts(C, x=3) == [LowWatermark(X, 3)]
    assert proposal(group.changed(2, A, C)).members == {A, B, C}


# -- logs that have stopped at a follower ---------------------------------------------------------


def lacking(group: Group, *keys: LogKey, session: int = 1, **ends: int) -> list[LeaderEffect]:
    """Let B say which of its logs do not run."""
    return group.step(FollowerReport(B, session, EPOCH, named(ends), {}, frozenset(keys)))


def test_INV_RPL12_a_follower_whose_log_stops_leaves_at_once_and_is_in_again_once_it_has_copied_it() -> (
    None
):
    group = Group(A, B, end=3)
    group.connect(B)
    group.report(B, x=3)
    assert proposal(lacking(group, X)).members == {A}
    group.changed(2, A)
    assert group.at(PAUSE_MS) == []
    assert lacking(group) == [], (
        "an empty log is in its place: nothing that was said counts (INV-RPP1)"
    )
    assert group.report(B, x=2) == []
    assert proposal(group.report(B, x=3)).members == {A, B}


def test_INV_RPL12_a_follower_with_a_stopped_log_is_not_taken_in_though_the_log_was_empty() -> None:
    group = Group(A)
    group.connect(B)
    assert lacking(group, X) == []
    assert group.at(PAUSE_MS) == []
    assert proposal(lacking(group)).members == {A, B}


def test_INV_RPL12_nor_where_that_log_has_stopped_at_the_leader_too() -> None:
    group = Group(A, B)
    group.step(LogsStopped(frozenset({X})))
    group.step(LogClosed(X))
    group.connect(B)
    assert proposal(lacking(group, X)).members == {A}
    group.changed(2, A)
    assert group.at(PAUSE_MS) == []
    topic_deleted = group.step(LogsStopped(frozenset()))
    assert proposal(topic_deleted).members == {A, B}


def test_INV_HRD1_what_is_deleted_elsewhere_is_known_of_who_is_connected() -> None:
    group = ordered(A, B)
    group.starts(B, x=2)
    assert [group.core.is_deleted_elsewhere(X, offset) for offset in (1, 2)] == [True, False]
    group.step(FollowerLost(B, 1))
    assert not group.core.is_deleted_elsewhere(X, 1)


def test_INV_CAN2_a_member_counts_that_is_proposed_or_has_not_said_that_a_log_stopped() -> None:
    group = Group(A)
    assert group.core.counts_on(B, X), "nothing was heard of it"
    group.connect(B)
    assert group.core.counts_on(B, X)
    lacking(group, X)
    assert not group.core.counts_on(B, X)
    assert group.core.counts_on(B, Y)
    group.at(PAUSE_MS)
    taken_in = proposal(lacking(group))
    assert taken_in.members == {A, B}
    lacking(group, X)
    assert group.core.counts_on(B, X), "it may be carried out still"
    group.step(ProposalEnded(taken_in.number, is_refused=False))
    assert group.core.counts_on(B, X), "nobody knows whether it was"


def test_INV_RPP1_INV_RPL11_a_follower_that_was_updated_tells_its_starts_from_then_on() -> None:
    group = Group(A, B, end=3)
    group.connect(B)
    group.report(B, x=3)  # of a version that does not tell
    group.connect(B, 2)
    group.starts(B, 2, ends={"x": 3})
    assert group.step(LogStartMoved(X, 2)) == [], "B may lead next, and has not deleted them"
    assert group.starts(B, 2, x=2) == [LowWatermark(X, 2)]


def test_INV_RPP1_what_a_follower_has_only_grows_within_a_session() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B, x=5)
    assert group.report(B, x=3) == []
    assert group.durable(x=5) == [HighWatermark(X, 5)]


def test_INV_RPP1_a_log_that_was_put_aside_did_not_go_back() -> None:
    group = Group(A, B)
    group.durable(x=5)
    group.connect(B)
    group.report(B, x=5)
    group.connect(B, 2)
    group.step(FollowerReport(B, 2, EPOCH, {}, {}, frozenset({X})))
    group.changed(2, A)
    copied_anew = group.step(FollowerReport(B, 2, EPOCH, {X: 2}, {}, frozenset()))
    assert not [each for each in copied_anew if isinstance(each, WentBack)]


def test_who_has_left_is_not_told_as_connected() -> None:
    group = Group(A, B)
    group.connect(B)
    group.report(B)
    assert group.core.standings(0)[B].is_heard
    group.step(FollowerLost(B, 1))
    assert not group.core.standings(0)[B].is_heard


def test_INV_RPP1_a_session_begins_with_no_log_that_has_stopped() -> None:
    """Who lacks nothing says nothing of it (INV-RPF9)."""
    group = Group(A, end=3)
    group.connect(B)
    assert lacking(group, X) == []
    group.connect(B, 2)
    assert proposal(group.report(B, 2, x=3)).members == {A, B}


def test_INV_RPP1_what_comes_with_the_news_that_a_log_has_stopped_counts_behind_it() -> None:
    """The log that took its place may be said in the same report."""
    group = Group(A, end=3)
    group.connect(B)
    assert lacking(group, X, Y, x=3) == []
    assert proposal(lacking(group)).members == {A, B}


def test_INV_RPL12_a_follower_whose_log_was_put_aside_is_behind_and_its_log_starts_at_0() -> None:
    group = Group(A, end=3)
    group.step(LogStartMoved(X, 2))
    group.connect(B)
    assert proposal(group.starts(B, ends={"x": 3}, x=2)).members == {A, B}
    group.changed(2, A, B)
    assert proposal(lacking(group, X)).members == {A}
    assert group.core.standings(group.now_ms)[B].records_behind == 3
    group.changed(3, A)
    group.at(PAUSE_MS)
    assert lacking(group) == []
    assert group.starts(B, ends={"x": 3}) == [], (
        "it has not said that its log starts where the leader's does"
    )
    assert proposal(group.starts(B, x=2)).members == {A, B}


def test_INV_RPL2_INV_RPL12_hw_does_not_go_down_with_a_log_that_stops() -> None:
    group = Group(A, B, end=3)
    group.connect(B)
    group.report(B, x=3)
    lacking(group, X)
    assert group.core.high_watermark(X) == 3
    group.durable(x=5)
    assert group.core.high_watermark(X) == 3, "it counts until the metadata have it out"
    assert HighWatermark(X, 5) in group.changed(2, A)


class _CountedId(UUID):
    """A topic's id that counts how often a log of it is looked for."""

    looks: ClassVar[int] = 0

    def __hash__(self) -> int:
        _CountedId.looks += 1
        return super().__hash__()


def looks_of_steps(log_count: int) -> list[int]:
    """Return how often each step of a region looks for a log, while C, in which nothing has stopped, is away."""
    first, *others = [LogKey(_CountedId(int=9), number) for number in range(log_count)]
    group = Group(A, B, least_of_all=2)
    for key in (first, *others):
        group.step(LogOpened(key, 3, 3, 3, 1, log_start_offset=1, low_watermark=1))
    for member, has in ((B, (first, *others)), (C, others)):
        group.connect(member)
        ends, starts = dict.fromkeys(has, 3), dict.fromkeys(has, 1)
        group.step(FollowerReport(member, 1, EPOCH, ends, starts, frozenset()))
    group.step(FollowerLost(C, 1))
    events = (
        LogsDurable({first: 4}),
        FollowerReport(B, 1, EPOCH, {first: 4}),
        LogOpened(LogKey(_CountedId(int=10), 0), 0, 0, 0, 1),
        Ticked(),
    )
    looks = []
    for event in events:
        before = _CountedId.looks
        assert not any(isinstance(effect, ProposeInSync) for effect in group.step(event))
        looks.append(_CountedId.looks - before)
    return looks


def test_INV_RPL15_a_step_looks_at_the_logs_that_it_names_while_a_follower_is_away() -> None:
    assert looks_of_steps(400) == looks_of_steps(40)


def test_INV_RPP3_what_a_follower_was_behind_in_is_not_walked_through_again() -> None:
    keys = [LogKey(UUID(int=9), number) for number in range(1_000)]
    follower, logs = FollowerProgress(B, None), {key: opened(key, 1) for key in keys}
    follower.begin(1, logs, 0)
    follower.report(dict.fromkeys(keys, 1), logs, 0)
    logs[X] = opened(X, 1)
    follower.leader_moved([X], logs, 0)
    assert getsizeof(follower._behind) == getsizeof({X})


def opened(key: LogKey, end: int) -> LeaderLogState:
    return LeaderLogState(LogOpened(key, end, end, 0, 1))
