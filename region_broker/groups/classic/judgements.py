"""Who may join, sync, leave and commit in a classic group: verdicts on a request as the group is now; nothing is changed.

INV-GJ2  what members bring is bounded in number and bytes, each alone and all together
INV-GJ3  one record holds what is kept of a group, subscriptions and assignments, in GROUP_VALUE_BYTES_MAX: who would make it larger is refused, or
         has the group rebalance, where that is judged anew
A judgement only looks: whoever asks twice is told the same.

After Kafka's GroupCoordinator / ClassicGroup; sizes are ours. Not here: what an accepted request does (`group`).
"""

from typing import Protocol

from region_broker.groups.classic.membership import Roster
from region_broker.groups.classic.states import GroupState
from region_broker.groups.messages import JoinRequest, MemberIdentity, SyncRequest
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import (
    GROUP_MEMBER_COUNT_MAX,
    GROUP_PROTOCOL_COUNT_MAX,
    GROUP_VALUE_BYTES_MAX,
    MEMBER_METADATA_BYTES_MAX,
)


class GroupFacts(Protocol):
    """What a request to a classic group is judged by, and answered from."""

    @property
    def state(self) -> GroupState:
        """Where the group stands."""
        ...

    @property
    def generation(self) -> int:
        """The number of its join phases."""
        ...

    @property
    def protocol_type(self) -> str | None:
        """What its members are to each other, "consumer" for most."""
        ...

    @property
    def protocol_name(self) -> str | None:
        """The assignor that all of them know."""
        ...

    @property
    def roster(self) -> Roster:
        """Its members, and who was invited."""
        ...


def refuse_join(group: GroupFacts, request: JoinRequest) -> GroupVerdict | None:
    """Return why the member may not join, None if it may."""
    if group.state is GroupState.DEAD:
        return GroupVerdict.NOT_AVAILABLE
    known = request.member_id in group.roster.members or (
        request.instance_id in group.roster.instances
    )
    taken = len(group.roster) + len(group.roster.invited)
    if not known and request.member_id not in group.roster.invited:
        if taken >= GROUP_MEMBER_COUNT_MAX:
            return GroupVerdict.GROUP_FULL
        if request.member_id:
            return GroupVerdict.UNKNOWN_MEMBER
    if not request.protocol_type or not request.protocols:
        return GroupVerdict.INCONSISTENT_PROTOCOL
    if group.roster.members and request.protocol_type != group.protocol_type:
        return GroupVerdict.INCONSISTENT_PROTOCOL
    replaced = request.member_id or group.roster.holder_of(request.instance_id)
    if not group.roster.supports(request.protocols, without=replaced):
        return GroupVerdict.INCONSISTENT_PROTOCOL
    return _refuse_size(group.roster, request, replaced)


def _refuse_size(roster: Roster, request: JoinRequest, replaced: str | None) -> GroupVerdict | None:
    brought_bytes = sum(len(raw) for _, raw in request.protocols)
    held_bytes = sum(
        len(raw)
        for member in roster.members.values()
        if member.member_id != replaced
        for _, raw in member.protocols
    )
    if (
        len(request.protocols) > GROUP_PROTOCOL_COUNT_MAX
        or brought_bytes > MEMBER_METADATA_BYTES_MAX
        or held_bytes + brought_bytes > GROUP_VALUE_BYTES_MAX
    ):
        return GroupVerdict.REQUEST_TOO_LARGE
    return None


def judge_sync(group: GroupFacts, request: SyncRequest) -> GroupVerdict:
    """Return whether a member may ask for its assignment now, and the leader bring everyone's."""
    if group.state is GroupState.DEAD:
        return GroupVerdict.NOT_AVAILABLE
    identity = MemberIdentity(request.member_id, request.instance_id)
    verdict = group.roster.identify(identity)
    if verdict is not GroupVerdict.OK:
        return verdict
    if request.generation != group.generation:
        return GroupVerdict.ILLEGAL_GENERATION
    if request.protocol_type not in (None, group.protocol_type) or (
        request.protocol_name not in (None, group.protocol_name)
    ):
        return GroupVerdict.INCONSISTENT_PROTOCOL
    if group.state is GroupState.PREPARING_REBALANCE:
        return GroupVerdict.REBALANCE_IN_PROGRESS
    assigned_bytes = sum(len(raw) for _, raw in request.assignments)
    if assigned_bytes and (
        _subscribed_bytes(group.roster, group.protocol_name) + assigned_bytes
        > GROUP_VALUE_BYTES_MAX
    ):
        return GroupVerdict.REQUEST_TOO_LARGE
    return GroupVerdict.OK


def fits_one_record(roster: Roster, protocol_name: str | None) -> bool:
    """Return whether the group may be written as it is, with what its members have (INV-GJ3)."""
    assigned_bytes = sum(len(member.assignment) for member in roster.members.values())
    return _subscribed_bytes(roster, protocol_name) + assigned_bytes <= GROUP_VALUE_BYTES_MAX


def _subscribed_bytes(roster: Roster, protocol_name: str | None) -> int:
    return sum(len(member.metadata(protocol_name)) for member in roster.members.values())


def judge_leave(group: GroupFacts, who: MemberIdentity) -> GroupVerdict:
    """Return whether this member can be removed."""
    if group.state is GroupState.DEAD:
        return GroupVerdict.NOT_AVAILABLE
    if who.member_id in group.roster.invited and who.instance_id is None:
        return GroupVerdict.OK
    if not who.member_id and who.instance_id in group.roster.instances:
        return GroupVerdict.OK
    return group.roster.identify(who)


def judge_commit(
    group: GroupFacts, who: MemberIdentity, generation: int, *, transactional: bool
) -> GroupVerdict:
    """Return whether these offsets may be committed (C42)."""
    if group.state is GroupState.DEAD:
        return GroupVerdict.NOT_AVAILABLE
    if generation < 0 and group.state is GroupState.EMPTY:
        return GroupVerdict.OK  # admin clients and consumers without group management
    if generation >= 0 or who.member_id or who.instance_id is not None:
        verdict = group.roster.identify(who)
        if verdict is not GroupVerdict.OK:
            return verdict
        if generation != group.generation:
            return GroupVerdict.ILLEGAL_GENERATION
    elif not transactional:
        return GroupVerdict.UNKNOWN_MEMBER
    if not transactional and group.state is GroupState.COMPLETING_REBALANCE:
        return GroupVerdict.REBALANCE_IN_PROGRESS
    return GroupVerdict.OK
