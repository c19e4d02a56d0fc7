"""Static members of a classic group that come back, many at once (KIP-345): the group alone, tokens in, effects out."""

import pytest

from region_broker.groups.classic.group import Group
from region_broker.groups.classic.states import GroupState
from region_broker.groups.messages import Effect, MemberIdentity, Store
from region_broker.groups.settings import GroupSettings
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import GROUP_VALUE_BYTES_MAX, MEMBER_METADATA_BYTES_MAX
from tests.unit.region_broker.groups.fakes import join_request, sync_request
from tests.unit.region_broker.groups.test_group import joins, stores, syncs


def back(group: Group, instance_id: str, token: int, name: str = "", size: int = 3) -> list[Effect]:
    """Let a static member come back without its member id."""
    request = join_request(
        new_member_id=name or f"{instance_id}-{token}",
        instance_id=instance_id,
        protocols=(("range", bytes(size)),),
        rebalance_timeout_ms=1_000,
    )
    return group.join(request, token, now_ms=0)


def static_group(*instances: str, size: int = 3, gives: bool = True) -> Group:
    """Return a stable group of these, in generation 1; the first one leads."""
    group = Group("g", GroupSettings(initial_rebalance_delay_ms=10))
    for token, each in enumerate(instances):
        back(group, each, token, f"{each}-old", size)
    leader = joins(group.on_time(now_ms=10) + group.on_time(now_ms=20))[0]
    given = {f"{each}-old": each.encode() for each in instances if gives}
    [store] = stores(group.sync(sync_request(leader, given), 90, now_ms=20))
    group.stored(store.ticket, now_ms=20)
    assert group.state is GroupState.STABLE
    return group


def kept(store: Store) -> dict[str | None, str]:
    return {each.instance_id: each.member_id for each in store.value.members}


def test_INV_GSR1_members_that_come_back_at_once_are_written_in_two_records() -> None:
    """Each of them wrote all that its group had brought and was given: 16 MiB for 120 bytes, 64 of them at once."""
    group = static_group("i", "j", "k", "l")
    [first] = stores(back(group, "i", 1))
    assert back(group, "j", 2) == back(group, "k", 3) == []
    assert kept(first) == {"i": "i-1", "j": "j-old", "k": "k-old", "l": "l-old"}
    effects = group.stored(first.ticket, now_ms=30)
    assert {token: each.member_id for token, each in joins(effects).items()} == {1: "i-1"}
    [second] = stores(effects)
    assert kept(second) == {"i": "i-1", "j": "j-2", "k": "k-3", "l": "l-old"}
    told = joins(group.stored(second.ticket, now_ms=40))
    assert {token: (each.verdict, each.member_id, each.generation) for token, each in told.items()} == {
        2: (V.OK, "j-2", 1),
        3: (V.OK, "k-3", 1),
    }  # fmt: skip
    [later] = stores(back(group, "l", 4))
    assert list(joins(group.stored(later.ticket, now_ms=50))) == [4]


def test_INV_GSR1_of_one_instance_the_last_one_waits_and_the_others_are_fenced() -> None:
    group = static_group("i", "j")
    [store] = stores(back(group, "i", 1))
    for token in range(2, 50):
        effects = back(group, "j", token)
        assert stores(effects) == []
        fenced = {at: each.verdict for at, each in joins(effects).items()}
        assert fenced == ({} if token == 2 else {token - 1: V.FENCED_INSTANCE})
    [last] = stores(group.stored(store.ticket, now_ms=30))
    assert list(joins(group.stored(last.ticket, now_ms=40))) == [49]


def test_INV_GSR2_who_waits_for_a_record_takes_part_in_a_rebalance_that_begins() -> None:
    group = static_group("i", "j", "k")
    [store] = stores(back(group, "i", 1))
    back(group, "j", 2)
    _, effects = group.leave([MemberIdentity("", "k")], now_ms=30)
    assert group.state is GroupState.PREPARING_REBALANCE
    assert joins(effects) == {}
    assert set(joins(group.stored(store.ticket, now_ms=40))) == {1}, (
        "what was being written is told"
    )
    told = joins(back(group, "i", 3))
    assert {token: (each.verdict, each.member_id, each.generation) for token, each in told.items()} == {
        2: (V.OK, "j-2", 2),
        3: (V.OK, "i-3", 2),
    }  # fmt: skip


@pytest.mark.parametrize("how", ["it leaves", "its session ends"])
def test_INV_GSR2_who_waits_for_a_record_and_goes_is_told_so(how: str) -> None:
    group = static_group("i", "j")
    [store] = stores(back(group, "i", 1))
    back(group, "j", 2)
    if how == "it leaves":
        _, effects = group.leave([MemberIdentity("", "j")], now_ms=30)
    else:
        effects = group.on_time(now_ms=10_000)
    assert joins(effects)[2].verdict is V.UNKNOWN_MEMBER
    assert 2 not in joins(group.stored(store.ticket, now_ms=40))


def test_INV_GSR1_who_waits_for_a_record_is_answered_when_the_group_is_no_more() -> None:
    group = static_group("i", "j")
    [store] = stores(back(group, "i", 1))
    back(group, "j", 2)
    told = joins(group.dissolve(V.NOT_COORDINATOR))
    assert {token: each.verdict for token, each in told.items()} == {
        1: V.NOT_COORDINATOR,
        2: V.NOT_COORDINATOR,
    }
    assert group.stored(store.ticket, now_ms=40) == []


# --- how large the record is ----------------------------------------------------------------------


@pytest.mark.parametrize(("more", "verdict"), [(0, V.OK), (1, V.REQUEST_TOO_LARGE)])
def test_INV_GJ3_what_members_bring_and_are_given_fits_one_record(more: int, verdict: V) -> None:
    group = Group("g", GroupSettings())
    brought = bytes(MEMBER_METADATA_BYTES_MAX)
    request = join_request(new_member_id="a", protocols=(("range", brought),))
    joined = joins(group.join(request, 1, now_ms=0))[1]
    given = bytes(GROUP_VALUE_BYTES_MAX - MEMBER_METADATA_BYTES_MAX + more)
    effects = group.sync(sync_request(joined, {"a": given}), 2, now_ms=0)
    if verdict is V.OK:
        [store] = stores(effects)
        effects = group.stored(store.ticket, now_ms=0)
    assert syncs(effects)[2].verdict is verdict
    if verdict is not V.OK:
        [store] = stores(group.sync(sync_request(joined, {"a": given[more:]}), 3, now_ms=0))
        assert syncs(group.stored(store.ticket, now_ms=0))[3].verdict is V.OK


def test_INV_GJ3_who_comes_back_with_more_than_a_record_holds_has_the_group_rebalance() -> None:
    group = static_group("i", size=MEMBER_METADATA_BYTES_MAX - 1)
    group.roster.members["i-old"].assignment = bytes(GROUP_VALUE_BYTES_MAX - MEMBER_METADATA_BYTES_MAX)  # fmt: skip
    [store] = stores(back(group, "i", 1, size=MEMBER_METADATA_BYTES_MAX))
    assert group.state is GroupState.STABLE
    group.stored(store.ticket, now_ms=30)
    group.roster.members["i-1"].assignment += b"1"
    effects = back(group, "i", 2, size=MEMBER_METADATA_BYTES_MAX)
    assert stores(effects) == []
    assert joins(effects)[2].generation == 2, "it is the only one, and is given anew"


def test_INV_GJ2_a_static_member_of_a_full_group_comes_back() -> None:
    """What it had brought before counted beside what it brings now."""
    group = static_group("i", "j", size=GROUP_VALUE_BYTES_MAX // 2, gives=False)
    [store] = stores(back(group, "i", 1, size=GROUP_VALUE_BYTES_MAX // 2))
    assert joins(group.stored(store.ticket, now_ms=30))[1].verdict is V.OK
    refused = joins(back(group, "k", 2, size=1))[2]
    assert refused.verdict is V.REQUEST_TOO_LARGE
