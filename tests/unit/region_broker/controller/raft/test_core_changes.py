"""Changes of who votes and of who leads (thesis 3.10, 4.1 to 4.2)."""

from uuid import UUID

import pytest

from region_broker.controller.raft.effects import (
    NOBODY,
    Answered,
    BeginElection,
    Effect,
    JoinAsked,
    Joining,
    MembershipAsked,
    Outcome,
    PassedOn,
    Persist,
    Proposed,
    ReadAsked,
    Role,
    TransferAsked,
    VoteRequest,
)
from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term
from tests.unit.region_broker.controller.raft.driven_core import (
    A,
    B,
    C,
    D,
    Driven,
    of,
    point,
    sent,
)


def leader(*learners: Member) -> Driven:
    """Return a leader of three, all of whose log is committed, up to 2."""
    led = Driven(point(0, 0, A, B, C, learners=learners))
    led.elect(B)
    led.taken(B, 2)
    assert led.is_a(Role.LEADER)
    assert led.core.commit_index == 2
    return led


def outcomes(effects: list[Effect]) -> list[tuple[int, Outcome]]:
    return [(each.ticket, each.outcome) for each in of(effects, Answered)]


def asked(ticket: int, *voters: Member, learners: tuple[Member, ...] = ()) -> MembershipAsked:
    return MembershipAsked(ticket, Membership(voters, learners))


# --- memberships ---


def test_INV_RFD3_no_membership_before_an_entry_of_the_term_is_committed() -> None:
    led = Driven(point(0, 0, A, B, C))
    led.elect(B)
    assert outcomes(led.step(asked(1, A, B))) == [(1, Outcome.BUSY)]
    led.taken(B, 2)
    assert outcomes(led.step(asked(2, A, B))) == []


def test_INV_RFD3_one_membership_after_the_other() -> None:
    led = leader()
    assert outcomes(led.step(asked(1, A, B))) == []
    assert led.core.membership.voters == (A, B), "in force from the moment that it is in the log"
    assert outcomes(led.step(asked(2, A))) == [(2, Outcome.BUSY)]
    assert outcomes(led.taken(B, 3)) == [(1, Outcome.DONE)]
    assert outcomes(led.step(asked(3, A))) == [(3, Outcome.DONE)], "alone, it needs nobody"


@pytest.mark.parametrize(
    "wanted",
    [
        Membership((A, B, C)),
        Membership((A,)),
        Membership(()),
        Membership((B, A)),
        Membership((A, B, C), (C,)),
        Membership((A, B, B)),
        Membership((A, B, C, D)),
        Membership((A, B), (D,)),
    ],
)
def test_INV_RE3_what_is_not_one_step_is_refused(wanted: Membership) -> None:
    assert outcomes(leader().step(MembershipAsked(1, wanted))) == [(1, Outcome.REFUSED)]


def test_a_learner_votes_when_it_has_almost_the_whole_log_and_is_heard() -> None:
    led = leader(D)
    led.now_ms += 99
    led.taken(B, 2)
    led.now_ms += 1
    assert outcomes(led.step(asked(1, A, B, C, D))) == [(1, Outcome.REFUSED)]
    led.taken(D, 1)
    assert outcomes(led.step(asked(2, A, B, C, D))) == []
    assert outcomes(led.taken(B, 3)) == [], "two of four are no majority"
    assert outcomes(led.taken(D, 3)) == [(2, Outcome.DONE)]


def test_a_learner_does_not_commit() -> None:
    led = leader(D)
    led.step(Proposed(1, b"x"))
    assert outcomes(led.taken(D, 3)) == []
    assert outcomes(led.taken(C, 3)) == [(1, Outcome.DONE)]


def test_a_leader_that_is_removed_commits_that_without_itself_then_names_a_successor() -> None:
    led = leader()
    led.step(asked(1, B, C))
    assert outcomes(led.taken(B, 3)) == []
    assert led.is_a(Role.LEADER)
    effects = led.taken(C, 3)
    assert outcomes(effects) == [(1, Outcome.DONE)]
    assert [target for target, _ in sent(effects, BeginElection)] == [C]
    assert led.is_a(Role.FOLLOWER)
    assert not sent(led.wait(1_000), VoteRequest)


def test_who_is_removed_by_an_entry_that_is_not_committed_asks_on() -> None:
    """Of two, A removed itself, and only A holds that: B alone cannot be elected (thesis 4.2.2)."""
    led = Driven(point(0, 0, A, B))
    led.elect(B)
    led.taken(B, 2)
    led.step(asked(1, B))
    for _ in range(12):
        led.wait(10)
    assert not led.is_a(Role.LEADER)
    assert [target for target, _ in sent(led.wait(100), VoteRequest)] == [B]


# --- hand-over ---


def test_the_order_goes_out_when_the_target_has_all_and_again_with_heartbeats() -> None:
    led = leader()
    led.step(Proposed(1, b"x"))
    assert not sent(led.step(TransferAsked(2, C)), BeginElection)
    assert outcomes(led.step(Proposed(3, b"y"))) == [(3, Outcome.BUSY)]
    assert outcomes(led.step(asked(4, A, B))) == [(4, Outcome.BUSY)]
    assert outcomes(led.step(TransferAsked(5, B))) == [(5, Outcome.BUSY)]
    assert not outcomes(led.step(ReadAsked(6)))
    order = (C, BeginElection(led.core.term))
    assert sent(led.taken(C, 3), BeginElection) == [order]
    assert sent(led.wait(10), BeginElection) == [order]
    term = Term(led.core.term + 1)
    request = VoteRequest(term, LogIndex(3), led.core.term, pre=False, by_order=True)
    assert (2, Outcome.DONE) in outcomes(led.hear(C, request))
    assert led.is_a(Role.FOLLOWER)


def test_a_hand_over_is_given_up_after_an_election_timeout() -> None:
    led = leader()
    led.step(TransferAsked(1, C))
    for _ in range(9):
        led.now_ms += 11
        led.taken(B, 2)
    assert outcomes(led.step(Proposed(2, b"x"))) == [(2, Outcome.BUSY)]
    assert outcomes(led.wait(1)) == [(1, Outcome.REFUSED)]
    assert outcomes(led.step(Proposed(3, b"x"))) == []


@pytest.mark.parametrize("target", [A, D])
def test_only_another_voter_takes_over(target: Member) -> None:
    assert outcomes(leader(D).step(TransferAsked(1, target))) == [(1, Outcome.REFUSED)]


def test_a_hand_over_is_lost_when_somebody_else_takes_over() -> None:
    led = leader()
    led.step(TransferAsked(1, C))
    request = VoteRequest(Term(9), LogIndex(9), Term(8), pre=False, by_order=True)
    assert outcomes(led.hear(B, request)) == [(1, Outcome.LOST)]


# --- who asks to be taken in, and wishes that were passed on ---


def other_folder_of(known: Member) -> Member:
    return Member(known.node_id, UUID(int=99))


def test_a_leader_tells_of_a_folder_that_wants_to_join_and_others_do_not() -> None:
    assert leader().hear(D, JoinAsked(Term(0))) == [Joining(D, None)]
    assert leader(D).hear(D, JoinAsked(Term(0))) == [], "it is in"
    assert Driven(point(0, 0, A, B, C)).hear(D, JoinAsked(Term(0))) == []


def test_INV_RFC4_a_folder_displaces_only_a_silent_one_of_its_node() -> None:
    led = leader()
    assert led.hear(other_folder_of(B), JoinAsked(Term(0))) == [], "B was heard"
    assert led.hear(other_folder_of(A), JoinAsked(Term(0))) == [], "that is this very leader"
    for _ in range(3):  # C answers, B does not
        led.wait(60)
        led.taken(C, 2)
    assert led.hear(other_folder_of(B), JoinAsked(Term(0))) == [Joining(other_folder_of(B), B)]


def test_INV_RFC3_a_wish_that_was_passed_on_is_appended_by_who_leads_and_else_lost() -> None:
    led = leader()
    effects = led.hear(B, PassedOn(Term(0), b"x"))
    assert [each.payload for persist in of(effects, Persist) for each in persist.entries] == [b"x"]
    assert {ticket for ticket, _ in outcomes(led.taken(B, 3))} <= {NOBODY}
    assert led.core.commit_index == 3
    assert Driven(point(0, 0, A, B, C)).hear(B, PassedOn(Term(0), b"x")) == []
