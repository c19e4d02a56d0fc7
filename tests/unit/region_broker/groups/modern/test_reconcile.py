"""One member's way to its target: the cases and values of Kafka's CurrentAssignmentBuilderTest."""

from collections.abc import Mapping
from uuid import UUID

import pytest

from region_broker.groups.modern.assignors.assignment import NOTHING, Partitions
from region_broker.groups.modern.reconcile import is_subset, reconcile
from region_broker.groups.modern.records import Current
from region_broker.groups.modern.states import MemberState as S

T1, T2 = UUID(int=1), UUID(int=2)
ALL_HELD = {(topic, part): "other" for topic in (T1, T2) for part in range(10)}


def parts(one: str, two: str) -> Partitions:
    named = {T1: frozenset(map(int, one)), T2: frozenset(map(int, two))}
    return {topic_id: held for topic_id, held in named.items() if held}


def current(
    state: S, epochs: tuple[int, int], assigned: Partitions, revoking: Partitions = NOTHING
) -> Current:
    return Current(
        member_epoch=epochs[0],
        previous_epoch=epochs[1],
        state=state,
        assigned=assigned,
        revoking=revoking,
    )


HAD = parts("123", "456")
LEFT = parts("23", "56")
UNREVOKED = current(S.UNREVOKED_PARTITIONS, (10, 10), LEFT, parts("1", "4"))
UNRELEASED = current(S.UNRELEASED_PARTITIONS, (11, 11), LEFT)
FREE: Mapping[tuple[UUID, int], str] = {}

CASES = {
    "StableToStable": (
        current(S.STABLE, (10, 10), HAD), 11, HAD, ALL_HELD, None,
        current(S.STABLE, (11, 10), HAD),
    ),
    "StableToStableWithNewPartitions": (
        current(S.STABLE, (10, 10), HAD), 11, parts("1234", "4567"), FREE, None,
        current(S.STABLE, (11, 10), parts("1234", "4567")),
    ),
    "StableToUnrevokedPartitions": (
        current(S.STABLE, (10, 10), HAD), 11, parts("234", "567"), FREE, None,
        current(S.UNREVOKED_PARTITIONS, (10, 10), LEFT, parts("1", "4")),
    ),
    "StableToUnreleasedPartitions": (
        current(S.STABLE, (10, 10), HAD), 11, parts("1234", "4567"), ALL_HELD, None,
        current(S.UNRELEASED_PARTITIONS, (11, 10), HAD),
    ),
    "StableToUnreleasedPartitionsWithOwnedPartitionsNotHavingRevokedPartitions": (
        current(S.STABLE, (10, 10), HAD), 11, parts("123", "457"), {(T2, 7): "other"}, NOTHING,
        current(S.UNRELEASED_PARTITIONS, (11, 10), parts("123", "45")),
    ),
    "UnrevokedPartitionsToStable": (
        UNREVOKED, 11, LEFT, FREE, LEFT,
        current(S.STABLE, (11, 10), LEFT),
    ),
    "RemainsInUnrevokedPartitionsNothingSaid": (
        UNREVOKED, 12, parts("3", "6"), FREE, None, UNREVOKED,
    ),
    "RemainsInUnrevokedPartitionsFirstTopic": (
        UNREVOKED, 12, parts("3", "6"), FREE, parts("123", "56"), UNREVOKED,
    ),
    "RemainsInUnrevokedPartitionsSecondTopic": (
        UNREVOKED, 12, parts("3", "6"), FREE, parts("23", "456"), UNREVOKED,
    ),
    "UnrevokedPartitionsToUnrevokedPartitions": (
        UNREVOKED, 12, parts("3", "6"), FREE, LEFT,
        current(S.UNREVOKED_PARTITIONS, (11, 10), parts("3", "6"), parts("2", "5")),
    ),
    "UnrevokedPartitionsToUnreleasedPartitions": (
        current(S.UNREVOKED_PARTITIONS, (11, 10), LEFT), 11, parts("234", "567"), ALL_HELD, LEFT,
        current(S.UNRELEASED_PARTITIONS, (11, 11), LEFT),
    ),
    "UnreleasedPartitionsToStable": (
        UNRELEASED, 12, LEFT, ALL_HELD, None,
        current(S.STABLE, (12, 11), LEFT),
    ),
    "UnreleasedPartitionsToStableWithNewPartitions": (
        UNRELEASED, 11, parts("234", "567"), FREE, None,
        current(S.STABLE, (11, 11), parts("234", "567")),
    ),
    "UnreleasedPartitionsToUnreleasedPartitions": (
        UNRELEASED, 11, parts("234", "567"), ALL_HELD, None, UNRELEASED,
    ),
    "UnreleasedPartitionsToUnrevokedPartitions": (
        UNRELEASED, 12, parts("3", "6"), ALL_HELD, None,
        current(S.UNREVOKED_PARTITIONS, (11, 11), parts("3", "6"), parts("2", "5")),
    ),
}  # fmt: skip


# Holds INV-NC2.
@pytest.mark.parametrize("name", CASES)
def test_a_member_moves_as_in_Kafka(name: str) -> None:
    before, target_epoch, target, owners, owned, expected = CASES[name]
    # What the member has is in the table of owners under its own name, as in the ledger.
    held = dict(owners)
    for partitions in (before.assigned, before.revoking):
        held |= {(topic, part): "member" for topic in partitions for part in partitions[topic]}
    moved = reconcile(
        "member",
        before,
        target_epoch=target_epoch,
        target=target,
        owners=held,
        owned=owned,
    )
    assert moved == expected


def test_a_member_gets_back_what_it_gave_back_a_moment_ago() -> None:
    """Kafka makes it wait for another heartbeat, as if a stranger held the partition."""
    owners = {(T1, part): "member" for part in (1, 2, 3)}
    before = current(S.UNREVOKED_PARTITIONS, (10, 10), parts("23", ""), parts("1", ""))
    moved = reconcile(
        "member",
        before,
        target_epoch=12,
        target=parts("123", ""),
        owners=owners,
        owned=parts("23", ""),
    )
    assert moved == current(S.STABLE, (12, 10), parts("123", ""))


def test_nothing_said_is_no_subset() -> None:
    assert not is_subset(None, HAD)
    assert is_subset(NOTHING, NOTHING)
    assert is_subset(parts("1", ""), HAD)
    assert not is_subset(parts("19", ""), HAD)
    assert not is_subset(parts("1", "4"), parts("1", ""))
