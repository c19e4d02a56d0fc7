"""Whom a leader without room lets lead, and when (INV-RHO1, INV-RHO2)."""

from region_broker.controller.raft.effects import Outcome
from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term
from region_broker.controller.raft.group_facts import FollowerFacts, GroupFacts
from region_broker.controller.raft.handing_over import AGAIN_MS, PAUSE_MS_MIN, HandingOver
from tests.fixtures.raft_groups import member

A, B, C, D, E, OBSERVER = (member(number) for number in range(1, 7))
NAMED = {"a": A, "b": B, "c": C, "d": D, "e": E, "observer": OBSERVER}
LAST = LogIndex(7)
FRESH_MS = 500
LEVEL = (LAST, 1_000)


def facts(me: Member, voters: str = "abc", **followers: tuple[int, int]) -> GroupFacts:
    """Return what a leader knows; of its followers: up to where they have its log, and when they were heard."""
    known = {
        NAMED[name]: FollowerFacts(LogIndex(matched), heard_ms)
        for name, (matched, heard_ms) in followers.items()
    }
    membership = Membership(tuple(NAMED[name] for name in voters), (OBSERVER,))
    return GroupFacts(me, me, Term(3), LAST, LAST, membership, known)


def test_INV_RHO1_each_voter_that_has_all_and_is_heard_has_its_turn() -> None:
    hands_over = HandingOver(FRESH_MS)
    assert hands_over.successor(facts(A, b=LEVEL, c=LEVEL, observer=LEVEL), 1_000) == B
    assert hands_over.successor(facts(B, a=LEVEL, c=LEVEL), 1_000) == C
    assert hands_over.successor(facts(C, a=LEVEL, b=LEVEL), 1_000) == A
    for not_ready in ((LAST - 1, 1_000), (LAST, 499)):
        some = facts(A, "abcde", b=not_ready, c=LEVEL, d=LEVEL, e=LEVEL)
        assert hands_over.successor(some, 1_000) == C


def test_INV_RHO1_it_leads_on_where_nothing_can_be_committed_without_it() -> None:
    hands_over = HandingOver(FRESH_MS)
    for not_ready in ((LAST - 1, 1_000), (LAST, 499)):
        assert hands_over.successor(facts(A, b=LEVEL, c=not_ready, observer=LEVEL), 1_000) is None
    assert hands_over.successor(facts(A, "ab", b=LEVEL), 1_000) is None
    assert hands_over.successor(facts(A, "abcd", b=LEVEL, c=LEVEL), 1_000) is None
    assert hands_over.successor(facts(A, observer=LEVEL), 1_000) is None
    assert hands_over.successor(facts(A, b=LEVEL, c=LEVEL), 1_000) == B


def test_INV_RHO2_not_again_before_a_command_is_carried_out_or_where_it_came_to_nothing() -> None:
    hands_over, seen = HandingOver(FRESH_MS), facts(A, b=(LAST, 9_000), c=(LAST, 9_000))
    hands_over.begun(5)
    hands_over.ended(4, Outcome.REFUSED, 1_000)
    assert hands_over.successor(seen, 9_000) is None
    hands_over.ended(5, Outcome.DONE, 1_000)
    assert hands_over.successor(seen, 9_000) is None
    hands_over.carried_out()
    assert hands_over.successor(seen, 9_000) == B
    hands_over.begun(6)
    hands_over.ended(6, Outcome.REFUSED, 9_000 - AGAIN_MS + 1)
    assert hands_over.successor(seen, 9_000) is None
    assert hands_over.successor(seen, 9_001) == B


def test_INV_RHO2_again_after_a_pause_that_doubles_until_a_command_is_carried_out() -> None:
    hands_over, now_ms = HandingOver(FRESH_MS), 0

    def pause_ms() -> int:
        """Hand over, and return how long it is before the next time."""
        nonlocal now_ms
        hands_over.begun(1)
        hands_over.ended(1, Outcome.DONE, now_ms)
        began_ms = now_ms
        while hands_over.successor(facts(A, b=(LAST, now_ms), c=(LAST, now_ms)), now_ms) is None:
            now_ms += 1_000
        return now_ms - began_ms

    assert [pause_ms() // 1_000 for _ in range(7)] == [30, 60, 120, 240, 480, 600, 600]
    hands_over.carried_out()
    assert pause_ms() == PAUSE_MS_MIN
