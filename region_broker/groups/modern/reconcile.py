"""The way of one member to its target: a pure state machine (KIP-848, CurrentAssignmentBuilder).

INV-NC1  a member never has a partition that another member has, or has not given back yet
INV-NC2  while it must give back partitions, a member stays at its epoch; once it has, it goes on
INV-NC3  a member takes the epoch of the target only when it owns nothing that the target denies it

What a member owns it says itself in a heartbeat; saying nothing (None) acknowledges nothing.
Not here: the target (`target`), heartbeats (`heartbeat`).
"""

from collections.abc import Mapping
from dataclasses import replace
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import NOTHING, Partitions, frozen
from region_broker.groups.modern.records import Current
from region_broker.groups.modern.states import MemberState

Owners = Mapping[tuple[UUID, int], str]


def reconcile(
    member_id: str,
    current: Current,
    *,
    target_epoch: int,
    target: Partitions,
    owners: Owners,
    owned: Partitions | None,
) -> Current:
    """Return what the member has now; the same object if it cannot move on."""
    match current.state:
        case MemberState.STABLE if current.member_epoch == target_epoch:
            return current
        case MemberState.UNREVOKED_PARTITIONS if _owns_any(owned, current.revoking):
            return current
        case MemberState.UNREVOKED_PARTITIONS:
            # All was given back: the next epoch, and on towards the newest target.
            member_epoch = current.member_epoch + 1
        case _:
            member_epoch = current.member_epoch
    kept: dict[UUID, frozenset[int]] = {}
    denied: dict[UUID, frozenset[int]] = {}
    granted: dict[UUID, frozenset[int]] = {}
    unreleased = False
    for topic_id in {**target, **current.assigned}:
        wanted = target.get(topic_id, frozenset())
        had = current.assigned.get(topic_id, frozenset())
        kept[topic_id] = had & wanted
        denied[topic_id] = had - wanted
        free = {
            partition
            for partition in wanted - had
            if owners.get((topic_id, partition), member_id) == member_id
        }
        granted[topic_id] = frozenset(free)
        unreleased = unreleased or len(free) < len(wanted - had)
    revoking = frozen(denied)
    if revoking and _owns_any(owned, revoking):
        return replace(
            current,
            state=MemberState.UNREVOKED_PARTITIONS,
            member_epoch=member_epoch,
            previous_epoch=current.member_epoch,
            assigned=frozen(kept),
            revoking=revoking,
        )
    assigned = frozen({topic_id: kept[topic_id] | granted[topic_id] for topic_id in kept})
    return replace(
        current,
        state=MemberState.UNRELEASED_PARTITIONS if unreleased else MemberState.STABLE,
        member_epoch=target_epoch,
        previous_epoch=current.member_epoch,
        assigned=assigned,
        revoking=NOTHING,
    )


def _owns_any(owned: Partitions | None, partitions: Partitions) -> bool:
    """Return whether the member may still own one of these."""
    if owned is None:
        return True
    return any(owned.get(topic_id, frozenset()) & partitions[topic_id] for topic_id in partitions)


def is_subset(owned: Partitions | None, assigned: Partitions) -> bool:
    """Return whether the member says that it owns nothing but these."""
    if owned is None:
        return False
    return all(owned[topic_id] <= assigned.get(topic_id, frozenset()) for topic_id in owned)
