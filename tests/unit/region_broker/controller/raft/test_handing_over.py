"""Whom a leader without room lets lead, and when (INV-RHO1, INV-RHO2)."""

from region_broker.controller.raft.effects import Outcome
from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term
from region_broker.controller.raft.group_facts import FollowerFacts, GroupFacts
from region_broker.controller.raft.handing_over import AGAIN_MS, HandingOver
from tests.fixtures.raft_groups import member

A, B, C, OBSERVER = (member(number) for number in (1, 2, 3, 4))
LAST = LogIndex(7)
FRESH_MS = 500


def facts(me: Member, **followers: tuple[int, int]) -> GroupFacts:
    """Return what a leader knows; of its followers: up to where they have its log, and when they were heard."""
    named = {"a": A, "b": B, "c": C, "observer": OBSERVER}
    known = {
        named[name]: FollowerFacts(LogIndex(matched), heard_ms)
        for name, (matched, heard_ms) in followers.items()
    }
    return GroupFacts(me, me, Term(3), LAST, LAST, Membership((A, B, C), (OBSERVER,)), known)


def test_INV_RHO1_each_voter_that_has_all_and_is_heard_has_its_turn() -> None:
    hands_over = HandingOver(FRESH_MS)
    level = (LAST, 1_000)
    assert hands_over.successor(facts(A, b=level, c=level, observer=level), 1_000) == B
    assert hands_over.successor(facts(B, a=level, c=level), 1_000) == C
    assert hands_over.successor(facts(C, a=level, b=level), 1_000) == A
    assert hands_over.successor(facts(A, b=(LAST - 1, 1_000), c=level), 1_000) == C
    assert hands_over.successor(facts(A, b=(LAST, 499), c=level), 1_000) == C
    assert hands_over.successor(facts(A, observer=level), 1_000) is None


def test_INV_RHO2_not_again_before_a_command_is_carried_out_or_where_it_came_to_nothing() -> None:
    hands_over, seen = HandingOver(FRESH_MS), facts(A, b=(LAST, 9_000))
    hands_over.begun(5)
    hands_over.ended(4, Outcome.REFUSED, 1_000)
    hands_over.ended(5, Outcome.DONE, 1_000)
    assert hands_over.successor(seen, 9_000) is None
    hands_over.carried_out()
    assert hands_over.successor(seen, 9_000) == B
    hands_over.begun(6)
    hands_over.ended(6, Outcome.REFUSED, 9_000 - AGAIN_MS + 1)
    assert hands_over.successor(seen, 9_000) is None
    assert hands_over.successor(seen, 9_001) == B
