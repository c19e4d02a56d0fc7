"""Elections by hand: what a member asks and answers (Raft 5.2, 5.4; thesis 4.2.3, 6.4, 9.6)."""

from uuid import UUID

import pytest

from region_broker.controller.raft.effects import (
    AppendAnswer,
    AppendRequest,
    BeginElection,
    Committed,
    DropLog,
    PeerLost,
    Persist,
    Role,
    RoleChanged,
    Send,
    Ticked,
    VoteAnswer,
    VoteRequest,
)
from region_broker.controller.raft.entries import HardState, LogIndex, Member, Term
from region_broker.controller.raft.settings import RaftSettings
from tests.unit.region_broker.controller.raft.driven_core import (
    A,
    B,
    C,
    D,
    Driven,
    E,
    entries,
    of,
    point,
    sent,
)


def asks(term: int, last_index: int, last_term: int, **more: bool) -> VoteRequest:
    return VoteRequest(Term(term), LogIndex(last_index), Term(last_term), **{"pre": False, **more})


def heartbeat(term: int, previous: int = 0, previous_term: int = 0) -> AppendRequest:
    at = LogIndex(previous), Term(previous_term)
    return AppendRequest(Term(term), *at, (), LogIndex(0), 1)


def test_who_votes_alone_leads_at_once_and_commits_behind_its_own_disk() -> None:
    lone = Driven(point(0, 0, A))
    assert [type(each) for each in lone.began] == [
        RoleChanged, Persist, RoleChanged, RoleChanged, Persist, Committed, Persist, Committed,
    ]  # fmt: skip
    assert of(lone.began, Persist)[0].hard_state == HardState(Term(1), A)
    assert lone.is_a(Role.LEADER)


def test_INV_RFV3_asking_beforehand_changes_neither_term_nor_vote() -> None:
    asker = Driven(point(0, 0, A, B, C), term=4)
    effects = asker.wait(100)
    assert sent(effects, VoteRequest) == [(each, asks(5, 0, 0, pre=True)) for each in (B, C)]
    asked = Driven(point(0, 0, A, B, C), term=4)
    effects += asked.hear(B, asks(5, 0, 0, pre=True))
    assert sent(effects, VoteAnswer) == [(B, VoteAnswer(Term(5), pre=True, granted=True))]
    assert not of(effects, Persist)
    assert (asker.core.term, asked.core.term) == (4, 4)


def test_INV_RFS1_a_vote_is_durable_before_it_is_told_and_is_given_once() -> None:
    voter = Driven(point(0, 0, A, B, C))
    effects = voter.hear(B, asks(3, 0, 0))
    kinds = [type(each) for each in effects if isinstance(each, Persist | Send)]
    assert kinds == [Persist, Persist, Send]
    assert of(effects, Persist)[-1].hard_state == HardState(Term(3), B)
    again, other = voter.hear(B, asks(3, 0, 0)), voter.hear(C, asks(3, 9, 2))
    assert sent(again, VoteAnswer) == [(B, VoteAnswer(Term(3), pre=False, granted=True))]
    assert sent(other, VoteAnswer) == [(C, VoteAnswer(Term(3), pre=False, granted=False))]


def test_INV_RFS1_a_vote_outlives_a_restart() -> None:
    voter = Driven(point(0, 0, A, B, C), term=3, voted_for=B)
    [(_, answer)] = sent(voter.hear(C, asks(3, 9, 2)), VoteAnswer)
    assert not answer.granted


@pytest.mark.parametrize(
    ("last_index", "last_term", "granted"),
    [(3, 2, True), (4, 2, True), (1, 3, True), (2, 2, False), (9, 1, False)],
)
def test_INV_RFV1_INV_RFC2_the_later_term_wins_and_then_the_longer_log(
    last_index: int, last_term: int, *, granted: bool
) -> None:
    voter = Driven(point(0, 0, A, B, C), entries(1, 1, 2), term=3)
    [(_, answer)] = sent(voter.hear(B, asks(4, last_index, last_term)), VoteAnswer)
    assert answer.granted is granted
    assert voter.core.term == 4


def test_INV_RFV2_who_has_a_fresh_leader_keeps_its_term_unless_that_leader_gave_the_order() -> None:
    follower = Driven(point(0, 0, A, B, C))
    follower.hear(B, heartbeat(1))
    follower.now_ms += 99
    assert sent(follower.hear(C, asks(7, 9, 1)), VoteAnswer) == [
        (C, VoteAnswer(Term(1), pre=False, granted=False))
    ]
    assert sent(follower.hear(C, asks(7, 9, 1, by_order=True)), VoteAnswer) == [
        (C, VoteAnswer(Term(7), pre=False, granted=True))
    ]
    other = Driven(point(0, 0, A, B, C))
    other.hear(B, heartbeat(1))
    other.now_ms += 100
    [(_, answer)] = sent(other.hear(C, asks(7, 9, 1)), VoteAnswer)
    assert answer.granted


@pytest.mark.parametrize(
    ("voters", "enough"),
    [((A, B), 1), ((A, B, C), 1), ((A, B, C, D), 2), ((A, B, C, D, E), 2)],
)
def test_INV_RFV4_INV_RFM1_a_majority_of_all_voters_elects_and_no_voter_counts_twice(
    voters: tuple[Member, ...], enough: int
) -> None:
    candidate = Driven(point(0, 0, *voters))
    others = voters[1:]
    candidate.elect(*others[: enough - 1], *others[: enough - 1])
    assert candidate.is_a(Role.CANDIDATE)
    candidate.elect(*others[:enough])
    assert candidate.is_a(Role.LEADER)


def test_INV_RFV4_answers_of_learners_and_of_former_elections_are_not_counted() -> None:
    candidate = Driven(point(0, 0, A, B, C, learners=[D]))
    candidate.elect(D)
    candidate.wait(100)
    candidate.hear(C, VoteAnswer(Term(0), pre=True, granted=True))
    assert candidate.core.term == 0
    candidate.hear(B, VoteAnswer(Term(1), pre=True, granted=True))
    assert candidate.core.term == 1
    candidate.hear(B, VoteAnswer(Term(1), pre=True, granted=True))
    candidate.hear(C, VoteAnswer(Term(0), pre=False, granted=True))
    assert candidate.is_a(Role.CANDIDATE)
    candidate.hear(C, VoteAnswer(Term(1), pre=False, granted=True))
    assert candidate.is_a(Role.LEADER)


@pytest.mark.parametrize("membership", [point(0, 0, B, C, learners=[A]), point(0, 0, B, C)])
def test_INV_RFV4_learners_and_others_never_ask(membership: object) -> None:
    assert isinstance(membership, type(point(0, 0)))
    member = Driven(membership)
    assert not sent(member.wait(1_000), VoteRequest)
    member.hear(B, heartbeat(1))
    assert not sent(member.hear(B, BeginElection(Term(1))), VoteRequest)


def test_an_order_is_taken_from_the_leader_of_the_present_term_only() -> None:
    follower = Driven(point(0, 0, A, B, C))
    follower.hear(B, heartbeat(2))
    assert not follower.hear(C, BeginElection(Term(2)))
    assert not follower.hear(B, BeginElection(Term(1)))
    asked = sent(follower.hear(B, BeginElection(Term(2))), VoteRequest)
    assert asked == [(each, asks(3, 0, 0, by_order=True)) for each in (B, C)]


def test_INV_RFC1_who_asks_in_a_former_term_is_told_the_present_one() -> None:
    member = Driven(point(0, 0, A, B, C), term=5)
    before = member.core.leader
    effects = member.hear(B, heartbeat(4)) + member.hear(C, asks(4, 9, 3))
    effects += member.hear(C, asks(4, 9, 3, pre=True))
    answers = [each.message for each in of(effects, Send)]
    assert all(isinstance(each, AppendAnswer | VoteAnswer) for each in answers)
    assert [getattr(each, "term", None) for each in answers] == [5, 5, 5]
    assert len(effects) == 3
    assert member.core.leader is before


def test_INV_RFL2_a_log_that_a_newer_snapshot_took_the_place_of_is_dropped_at_the_start() -> None:
    stale = Driven(point(5, 4, A, B, C), entries(1, 1, 1, 2, 2, 2), term=4)
    assert of(stale.began, DropLog) == [DropLog(LogIndex(6))]
    going_on = Driven(point(5, 2, A, B, C), entries(1, 1, 1, 2, 2, 2), term=4)
    assert not of(going_on.began, DropLog)
    [(_, request), _] = sent(going_on.wait(100), VoteRequest)
    assert (request.last_index, request.last_term) == (6, 2)


def test_INV_RFV2_a_leader_whose_connection_ended_is_waited_for_no_longer_than_a_heartbeat_may_take() -> (
    None
):
    """Of three voters one led: the two that are left ask in the order of their node ids, long before the whole time-out."""
    settings = RaftSettings(election_timeout_ms=1_000, heartbeat_ms=10, lost_leader_ms=50)
    follower = Driven(point(0, 0, A, B, C), settings=settings)
    follower.hear(C, heartbeat(1))
    follower.step(PeerLost(B))  # no leader: nothing follows
    follower.now_ms += 49
    assert sent(follower.step(Ticked()), VoteRequest) == []
    follower.step(PeerLost(C))
    assert sent(follower.hear(B, asks(7, 9, 1)), VoteAnswer) == [
        (B, VoteAnswer(Term(7), pre=False, granted=True))
    ]
    asking = Driven(point(0, 0, A, B, C), settings=settings)
    asking.hear(C, heartbeat(1))
    asking.step(PeerLost(C))
    asking.now_ms += 49
    assert sent(asking.step(Ticked()), VoteRequest) == []
    asking.now_ms += 1
    assert [target for target, _ in sent(asking.step(Ticked()), VoteRequest)] == [B, C]
    first = Member(0, UUID(int=9))
    second = Driven(point(0, 0, first, A, C), settings=settings)
    second.hear(C, heartbeat(1))
    second.step(PeerLost(C))
    second.now_ms += 99
    assert sent(second.step(Ticked()), VoteRequest) == []
    second.now_ms += 1
    assert [target for target, _ in sent(second.step(Ticked()), VoteRequest)] == [first, C]


def test_INV_RFV2_a_leader_that_is_heard_again_keeps_its_followers() -> None:
    follower = Driven(point(0, 0, A, B, C))
    follower.hear(B, heartbeat(1))
    follower.step(PeerLost(B))
    follower.now_ms += 10
    follower.hear(B, heartbeat(1))
    assert sent(follower.hear(C, asks(7, 9, 1)), VoteAnswer) == [
        (C, VoteAnswer(Term(1), pre=False, granted=False))
    ]
    follower.now_ms += 99
    assert sent(follower.step(Ticked()), VoteRequest) == []
