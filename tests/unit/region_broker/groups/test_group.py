"""The group state machine alone: tokens in, effects out, time by hand."""

import weakref
from typing import Any

import pytest

from region_broker.groups.classic.group import Group
from region_broker.groups.classic.states import LEGAL, GroupState
from region_broker.groups.messages import (
    AnswerJoin,
    AnswerSync,
    Effect,
    JoinOutcome,
    MemberIdentity,
    Store,
    SyncOutcome,
)
from region_broker.groups.settings import GroupSettings
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import (
    GROUP_MEMBER_COUNT_MAX,
    GROUP_VALUE_BYTES_MAX,
    MEMBER_METADATA_BYTES_MAX,
)
from tests.unit.region_broker.groups.fakes import join_request, sync_request

SETTINGS = GroupSettings()


def joins(effects: list[Effect]) -> dict[int, JoinOutcome]:
    return {e.token: e.outcome for e in effects if isinstance(e, AnswerJoin)}


def syncs(effects: list[Effect]) -> dict[int, SyncOutcome]:
    return {e.token: e.outcome for e in effects if isinstance(e, AnswerSync)}


def stores(effects: list[Effect]) -> list[Store]:
    return [e for e in effects if isinstance(e, Store)]


def one_member(group: Group, *, now_ms: int = 0) -> JoinOutcome:
    outcome = joins(group.join(join_request(new_member_id="a"), 1, now_ms=now_ms))[1]
    stored = group.sync(sync_request(outcome, {"a": b"all"}), 2, now_ms=now_ms)
    [store] = stores(stored)
    assert syncs(group.stored(store.ticket, now_ms=now_ms))[2].assignment == b"all"
    assert group.state is GroupState.STABLE
    return outcome


def two_members(group: Group) -> tuple[JoinOutcome, JoinOutcome]:
    one_member(group)
    assert group.join(join_request(new_member_id="b"), 3, now_ms=0) == []
    answers = joins(group.join(join_request("a"), 4, now_ms=0))
    return answers[4], answers[3]


def settle(group: Group, leader: JoinOutcome, other: JoinOutcome) -> None:
    assert group.sync(sync_request(other), 10, now_ms=0) == []
    [store] = stores(group.sync(sync_request(leader, {"a": b"A", "b": b"B"}), 11, now_ms=0))
    answered = syncs(group.stored(store.ticket, now_ms=0))
    assert (answered[10].assignment, answered[11].assignment) == (b"B", b"A")


# Holds INV-GG1.
def test_every_state_has_its_row_and_dead_is_final() -> None:
    assert set(LEGAL) == set(GroupState)
    assert LEGAL[GroupState.DEAD] == set()


def test_first_member_leads_generation_one() -> None:
    group = Group("g", SETTINGS)
    outcome = one_member(group)
    assert (outcome.generation, outcome.leader, outcome.protocol_name) == (1, "a", "range")
    assert [member.member_id for member in outcome.members] == ["a"]


def test_second_member_waits_for_the_first_and_only_the_leader_sees_members() -> None:
    group = Group("g", SETTINGS)
    leader, other = two_members(group)
    assert leader.generation == other.generation == 2
    assert [member.member_id for member in leader.members] == ["a", "b"]
    assert other.members == ()
    settle(group, leader, other)


def test_INV_GG8_a_static_member_that_comes_back_while_it_waits_keeps_its_place() -> None:
    """1. It joins, and others have not rejoined yet. 2. It is started again, and joins anew. 3. Its session time-out is over, and it still waits for them."""
    group = Group("g", SETTINGS)
    one_member(group)
    assert group.join(join_request(new_member_id="b", instance_id="i"), 3, now_ms=0) == []
    again = group.join(join_request(new_member_id="c", instance_id="i"), 4, now_ms=1_000)
    assert joins(again)[3].verdict is GroupVerdict.FENCED_INSTANCE
    for now_ms in range(5_000, 15_000, 5_000):
        group.heartbeat(MemberIdentity("a"), 1, now_ms=now_ms)
        assert group.on_time(now_ms=now_ms + 1_500) == []
    answers = joins(group.join(join_request("a"), 5, now_ms=12_000))
    assert [answers[token].verdict for token in (4, 5)] == [GroupVerdict.OK, GroupVerdict.OK]


class Name(str):
    """One that a test sees go."""

    __slots__ = ("__weakref__",)


def test_INV_GL4_nothing_is_kept_of_what_a_leader_brings_for_nobody() -> None:
    """Its names are counted nowhere, and the record may wait for other nodes."""
    group = Group("g", SETTINGS)
    leader, _ = two_members(group)
    name = Name("nobody" * 1_000)
    [store] = stores(group.sync(sync_request(leader, {"a": b"A", name: b""}), 11, now_ms=0))
    kept = weakref.ref(name)
    del name
    assert kept() is None
    assert syncs(group.stored(store.ticket, now_ms=0))[11].assignment == b"A"


# Holds INV-GG4.
def test_nobody_gets_an_assignment_before_it_is_stored() -> None:
    group = Group("g", SETTINGS)
    leader, other = two_members(group)
    effects = group.sync(sync_request(leader, {"a": b"A"}), 11, now_ms=0)
    assert syncs(effects) == {}
    assert group.state is GroupState.COMPLETING_REBALANCE
    [store] = stores(effects)
    group.stored(store.ticket, now_ms=0)
    late = syncs(group.sync(sync_request(other), 12, now_ms=0))
    assert late[12].assignment == b""  # the leader gave it nothing


def test_a_store_that_a_rebalance_overtook_is_ignored() -> None:
    group = Group("g", SETTINGS)
    leader, _ = two_members(group)
    [store] = stores(group.sync(sync_request(leader, {"a": b"A"}), 11, now_ms=0))
    verdicts, effects = group.leave([MemberIdentity("b")], now_ms=0)
    assert verdicts == [GroupVerdict.OK]
    assert syncs(effects)[11].verdict is GroupVerdict.REBALANCE_IN_PROGRESS
    assert group.stored(store.ticket, now_ms=0) == []
    assert group.state is GroupState.PREPARING_REBALANCE


# Holds INV-GL3.
def test_a_store_of_an_older_generation_does_not_complete_a_newer_one() -> None:
    group = Group("g", SETTINGS)
    leader, _ = two_members(group)
    [old] = stores(group.sync(sync_request(leader, {"a": b"A"}), 11, now_ms=0))
    group.join(join_request("b", protocols=(("range", b"changed"),)), 12, now_ms=0)
    again = joins(group.join(join_request("a"), 13, now_ms=0))[13]
    assert (again.generation, group.state) == (3, GroupState.COMPLETING_REBALANCE)
    assert group.stored(old.ticket, now_ms=0) == []
    assert group.state is GroupState.COMPLETING_REBALANCE
    [new] = stores(group.sync(sync_request(again, {"a": b"new"}), 14, now_ms=0))
    assert group.stored(old.ticket, now_ms=0) == []
    assert syncs(group.stored(new.ticket, now_ms=0))[14].assignment == b"new"


def test_protocol_is_the_common_one_that_most_prefer() -> None:
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=10))
    offers = [
        (("only-mine", b""), ("range", b""), ("sticky", b"")),
        (("sticky", b""), ("range", b"")),
        (("sticky", b""), ("range", b"")),
    ]
    for index, protocols in enumerate(offers):
        request = join_request(new_member_id=f"m{index}", protocols=protocols)
        assert group.join(request, index, now_ms=0) == []
    group.on_time(now_ms=10)
    answered = joins(group.on_time(now_ms=20))
    assert {outcome.protocol_name for outcome in answered.values()} == {"sticky"}


def test_member_without_a_common_protocol_is_refused() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    wrong: list[dict[str, Any]] = [
        {"protocols": (("other", b""),)},
        {"protocol_type": "connect"},
    ]
    for changes in wrong:
        request = join_request(new_member_id="b", **changes)
        refused = joins(group.join(request, 9, now_ms=0))[9]
        assert refused.verdict is GroupVerdict.INCONSISTENT_PROTOCOL
    assert group.state is GroupState.STABLE


@pytest.mark.parametrize("changes", [{"protocols": ()}, {"protocol_type": ""}])
def test_no_protocols_at_all_is_refused(changes: dict[str, Any]) -> None:
    group = Group("g", SETTINGS)
    refused = joins(group.join(join_request(**changes), 1, now_ms=0))[1]
    assert refused.verdict is GroupVerdict.INCONSISTENT_PROTOCOL


def test_follower_that_rejoins_unchanged_gets_the_current_generation() -> None:
    group = Group("g", SETTINGS)
    settle(group, *two_members(group))
    again = joins(group.join(join_request("b"), 20, now_ms=0))[20]
    assert (again.verdict, again.generation) == (GroupVerdict.OK, 2)
    assert group.state is GroupState.STABLE


def test_leader_that_rejoins_starts_a_rebalance() -> None:
    group = Group("g", SETTINGS)
    settle(group, *two_members(group))
    assert group.join(join_request("a"), 20, now_ms=0) == []
    assert group.state is GroupState.PREPARING_REBALANCE


def test_changed_subscription_starts_a_rebalance() -> None:
    group = Group("g", SETTINGS)
    settle(group, *two_members(group))
    changed = join_request("b", protocols=(("range", b"other topics"),))
    assert group.join(changed, 20, now_ms=0) == []
    assert group.state is GroupState.PREPARING_REBALANCE


def test_member_that_does_not_rejoin_in_time_is_left_behind() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    group.join(join_request(new_member_id="b", rebalance_timeout_ms=7_000), 3, now_ms=0)
    for now_ms in range(0, 60_000, 5_000):  # it heartbeats but does not rejoin
        group.heartbeat(MemberIdentity("a"), 1, now_ms=now_ms)
        assert group.on_time(now_ms=now_ms) == []
    group.heartbeat(MemberIdentity("a"), 1, now_ms=59_999)
    answered = joins(group.on_time(now_ms=60_000))[3]
    assert (answered.generation, answered.leader) == (2, "b")
    assert [member.member_id for member in answered.members] == ["b"]


def test_silent_member_loses_its_session_and_the_last_one_empties_the_group() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    assert group.next_deadline_ms() == 10_000
    assert group.on_time(now_ms=9_999) == []
    [store] = stores(group.on_time(now_ms=10_000))
    assert (store.value.generation, store.value.members) == (2, ())
    assert group.state is GroupState.EMPTY
    assert group.next_deadline_ms() is None


def test_heartbeat_prolongs_the_session() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    assert group.heartbeat(MemberIdentity("a"), 1, now_ms=9_000) is GroupVerdict.OK
    assert group.on_time(now_ms=10_000) == []
    assert group.next_deadline_ms() == 19_000


def test_heartbeat_says_who_is_unknown_behind_or_to_rejoin() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    beat = group.heartbeat
    assert beat(MemberIdentity("x"), 1, now_ms=0) is GroupVerdict.UNKNOWN_MEMBER
    assert beat(MemberIdentity("a"), 0, now_ms=0) is GroupVerdict.ILLEGAL_GENERATION
    group.join(join_request(new_member_id="b"), 3, now_ms=0)
    assert beat(MemberIdentity("a"), 1, now_ms=0) is GroupVerdict.REBALANCE_IN_PROGRESS


def test_member_that_never_syncs_is_removed() -> None:
    group = Group("g", SETTINGS)
    leader, _ = two_members(group)
    [store] = stores(group.sync(sync_request(leader, {"a": b"A"}), 11, now_ms=0))
    group.stored(store.ticket, now_ms=0)
    for now_ms in range(0, 60_000, 5_000):
        group.heartbeat(MemberIdentity("a"), 2, now_ms=now_ms)
        group.heartbeat(MemberIdentity("b"), 2, now_ms=now_ms)
        group.on_time(now_ms=now_ms)
    assert sorted(group.roster.members) == ["a", "b"]
    group.heartbeat(MemberIdentity("a"), 2, now_ms=59_999)
    group.heartbeat(MemberIdentity("b"), 2, now_ms=59_999)
    group.on_time(now_ms=60_000)
    assert list(group.roster.members) == ["a"]
    assert group.state is GroupState.PREPARING_REBALANCE


# Holds INV-GF1.
def test_initial_delay_waits_for_more_members_up_to_the_rebalance_timeout() -> None:
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=3_000))
    assert group.join(join_request(new_member_id="a"), 1, now_ms=0) == []
    assert group.join(join_request(new_member_id="b"), 2, now_ms=1_000) == []
    assert group.on_time(now_ms=3_000) == []  # b came: wait once more
    answered = joins(group.on_time(now_ms=6_000))
    assert sorted(answered) == [1, 2]


# Holds INV-GJ2.
def test_group_full() -> None:
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=10))
    for index in range(GROUP_MEMBER_COUNT_MAX):
        group.join(join_request(new_member_id=f"m{index}"), index, now_ms=0)
    refused = joins(group.join(join_request(new_member_id="late"), 9_999, now_ms=0))[9_999]
    assert refused.verdict is GroupVerdict.GROUP_FULL


# Holds INV-GJ2.
def test_huge_member_metadata_is_refused() -> None:
    group = Group("g", SETTINGS)
    huge = (("range", bytes(MEMBER_METADATA_BYTES_MAX + 1)),)
    refused = joins(group.join(join_request(protocols=huge), 1, now_ms=0))[1]
    assert refused.verdict is GroupVerdict.REQUEST_TOO_LARGE


def test_INV_GJ2_a_full_group_takes_no_other_member_and_its_own_come_again() -> None:
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=10))
    large = (("range", bytes(MEMBER_METADATA_BYTES_MAX)),)
    members = GROUP_VALUE_BYTES_MAX // MEMBER_METADATA_BYTES_MAX
    for index in range(members):
        group.join(join_request(new_member_id=f"m{index}", protocols=large), index, now_ms=0)
    late = join_request(new_member_id="late", protocols=(("range", b"1"),))
    assert joins(group.join(late, 98, now_ms=0))[98].verdict is GroupVerdict.REQUEST_TOO_LARGE
    assert 99 not in joins(group.join(join_request("m0", protocols=large), 99, now_ms=0))
    assert len(group.roster) == members


def test_sync_with_another_protocol_is_inconsistent() -> None:
    group = Group("g", SETTINGS)
    outcome = one_member(group)
    request = sync_request(outcome)
    for changes in ({"protocol_type": "connect"}, {"protocol_name": "sticky"}):
        changed = type(request)(
            **{**{f: getattr(request, f) for f in request.__slots__}, **changes}
        )
        answered = syncs(group.sync(changed, 5, now_ms=0))[5]
        assert answered.verdict is GroupVerdict.INCONSISTENT_PROTOCOL


def test_leader_that_retries_its_sync_does_not_store_twice() -> None:
    group = Group("g", SETTINGS)
    leader, _ = two_members(group)
    request = sync_request(leader, {"a": b"A"})
    assert len(stores(group.sync(request, 11, now_ms=0))) == 1
    again = group.sync(request, 12, now_ms=0)
    assert stores(again) == []
    assert syncs(again)[11].verdict is GroupVerdict.REBALANCE_IN_PROGRESS


def test_dissolve_answers_everyone_once() -> None:
    group = Group("g", SETTINGS)
    one_member(group)
    group.join(join_request(new_member_id="b"), 3, now_ms=0)
    answered = joins(group.dissolve(GroupVerdict.NOT_COORDINATOR))
    assert answered[3].verdict is GroupVerdict.NOT_COORDINATOR
    assert group.state is GroupState.DEAD
    assert group.dissolve(GroupVerdict.NOT_COORDINATOR) == []
    verdict = joins(group.join(join_request("a"), 8, now_ms=0))[8].verdict
    assert verdict is GroupVerdict.NOT_AVAILABLE


def test_INV_GG7_who_is_no_instance_is_not_judged_as_if_it_took_the_place_of_one() -> None:
    """A member whose instance id is the empty text was left out of the common protocols of whoever had none."""
    group = Group("g", SETTINGS)
    group.join(join_request(new_member_id="a", instance_id=""), 1, now_ms=0)
    other = join_request(new_member_id="b", protocols=(("roundrobin", b""),))
    assert joins(group.join(other, 2, now_ms=0))[2].verdict is GroupVerdict.INCONSISTENT_PROTOCOL
    again = joins(group.join(join_request(new_member_id="c", instance_id=""), 3, now_ms=0))
    assert again[3].verdict is GroupVerdict.OK  # the empty text is an instance like another
    assert list(group.roster.members) == ["c"]
