"""Who leads next, and what an operator's order costs: R7."""

from uuid import UUID

import pytest

from idempotency.identity import LogKey, Member
from region_broker.replication.choosing import Election, OrderedElection, choose, choose_by_order

A, B, C = (Member(node_id, UUID(int=1)) for node_id in (1, 2, 3))
B_EMPTIED = Member(2, UUID(int=2))
X, Y = (LogKey(UUID(int=number), 0) for number in (1, 2))


@pytest.mark.parametrize(
    ("in_sync", "alive", "preferred", "leader", "stays"),
    [
        ({A, B, C}, {A, B, C}, (), A, {A, B, C}),
        ({A, B, C}, {B, C}, (), B, {B, C}),
        ({A, B, C}, {A, B, C}, (C, B), C, {A, B, C}),
        ({A, B}, {A, B, C}, (C, B), B, {A, B}),
        ({A, B}, {B_EMPTIED, A}, (B, A), A, {A}),
        ({A, B}, {A}, (B,), A, {A}),
    ],
)
def test_INV_RPC1_INV_RPC2_the_first_preferred_member_that_is_in_sync_and_alive(
    in_sync: set[Member],
    alive: set[Member],
    preferred: tuple[Member, ...],
    leader: Member,
    stays: set[Member],
) -> None:
    assert choose(in_sync, alive, preferred) == Election(leader, frozenset(stays))


@pytest.mark.parametrize("alive", [set(), {C}, {B_EMPTIED}])
def test_INV_RPC1_nobody_outside_the_set_leads(alive: set[Member]) -> None:
    assert choose({A, B}, alive, (C, B_EMPTIED)) is None


def test_R7_INV_RPC3_an_order_says_what_may_be_lost() -> None:
    ordered = choose_by_order(
        C, {A, B}, {C}, durable_ends={X: 3, Y: 9}, high_watermarks={X: 5, Y: 9}
    )
    assert ordered == OrderedElection(
        Election(C, frozenset({C})), (A, B), {X: (3, 5)}, may_lose_unknown=True
    )


def test_R7_an_order_for_a_member_in_sync_loses_nothing() -> None:
    ordered = choose_by_order(B, {A, B}, {B, C}, durable_ends={}, high_watermarks={X: 5})
    assert ordered == OrderedElection(Election(B, frozenset({B})), (), {}, may_lose_unknown=False)


def test_R7_a_log_that_the_ordered_member_does_not_have_is_lost_whole() -> None:
    ordered = choose_by_order(C, {A}, {C}, durable_ends={}, high_watermarks={X: 5})
    assert ordered is not None
    assert ordered.lost_ranges == {X: (0, 5)}


def test_R7_a_dead_member_does_not_lead_by_order() -> None:
    assert choose_by_order(B, {A, B}, {A}, durable_ends={}, high_watermarks={}) is None
