"""Members of the classic protocol in a group of the new one, and groups that change their protocol.

INV-NB2  a group changes its protocol in one batch of records: it is never of both, and never of none; who is refused
         changes nothing
INV-NB3  a group has the new protocol as long as one member speaks it; when the last one goes, the
         classic ones are left a classic group, and rejoin it
INV-NB4  a group can always become a classic one, whatever its members have said for protocols that nobody has read: it does so when the time of
         its last new member is over, where nobody is there to be refused
INV-NB5  what a classic member brings is bounded as in a classic group (INV-GJ2), and so is its id, which it may choose here: protocols are compared
         with those of all others, and only their subscriptions count in what a group may have
INV-NB6  of what members of the classic protocol say that they have, or were given, only partitions that there are count
A classic member rejoins (REBALANCE_IN_PROGRESS) when it must give something up, when it can be given something, and
when the group's epoch is not its own.

To a classic member its epoch is the generation; nobody leads, since the coordinator assigns. What it
has given up is what its subscription does not name as owned (KIP-848, "Online migration").
Not here: how a group of the classic protocol becomes one of the new one (`upgrade`), waiting for durability and time (`modern_groups`), the classic
group (`groups.classic`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from region_broker.groups.messages import (
    JoinOutcome,
    JoinRequest,
    MemberIdentity,
    SyncOutcome,
    SyncRequest,
)
from region_broker.groups.modern.assignors.assignment import Partitions
from region_broker.groups.modern.consumer_protocol import (
    PROTOCOL_TYPE,
    Subscription,
    version_said,
    write_assignment,
)
from region_broker.groups.modern.heartbeat import (
    check_instance,
    put_member,
    settle,
    take_place,
    unknown_member,
)
from region_broker.groups.modern.messages import HeartbeatRequest, Refused
from region_broker.groups.modern.records import (
    ClassicMember,
    MemberMetadata,
)
from region_broker.groups.modern.sight import seen_names
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.states import MemberState
from region_broker.groups.modern.target import Change, Draft, TopicView, update_target
from region_broker.groups.modern.upgrade import by_id
from region_broker.groups.ports import Topic
from region_broker.groups.records import GroupValue, MemberValue
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import (
    GROUP_MEMBER_COUNT_MAX,
    GROUP_PROTOCOL_COUNT_MAX,
    GROUP_VALUE_BYTES_MAX,
    MEMBER_ID_BYTES_MAX,
    MEMBER_METADATA_BYTES_MAX,
)

Topics = Mapping[str, Topic]


# --- joining and going on ---------------------------------------------------------------------------


def admit(
    group: ConsumerGroup, request: JoinRequest, subscription: Subscription | None, *, returns: bool
) -> Subscription:
    """Refuse who may not join, before anything is changed for it; return what it subscribes to: None, it cannot be read.

    `returns`: it came with a member id. A static one with the id of another life was replaced (KIP-345): would it be
    let in, two processes had one place. Without an id it is the newest life of its instance.
    """
    member_id = request.member_id
    _check_size(group, request)
    if returns and request.instance_id is not None:
        check_instance(group, member_id, request.instance_id)
    if len(group.metadata) >= GROUP_MEMBER_COUNT_MAX and member_id not in group.metadata:
        raise Refused(V.GROUP_FULL, "The group is full.")
    _check_protocols(group, request)
    if subscription is None:
        raise Refused(V.INCONSISTENT_PROTOCOL, "The member's subscription cannot be read.")
    return subscription


def _check_size(group: ConsumerGroup, request: JoinRequest) -> None:
    """Refuse what a classic group would not take (INV-NB5)."""
    brought_bytes = sum(len(raw) for _, raw in request.protocols)
    replaced = (request.member_id, group.holder_of(request.instance_id))
    held_bytes = sum(
        len(raw)
        for member_id, member in group.metadata.items()
        if member.classic is not None and member_id not in replaced
        for _, raw in member.classic.protocols
    )
    if (
        len(request.protocols) > GROUP_PROTOCOL_COUNT_MAX
        or brought_bytes > MEMBER_METADATA_BYTES_MAX
        or held_bytes + brought_bytes > GROUP_VALUE_BYTES_MAX
        or len(request.member_id.encode()) > MEMBER_ID_BYTES_MAX
    ):
        raise Refused(V.REQUEST_TOO_LARGE, "The member brings more than a group takes.")


def join(
    group: ConsumerGroup, request: JoinRequest, subscription: Subscription, view: TopicView
) -> tuple[tuple[Change, ...], JoinOutcome]:
    """Let a classic member in or back in that was admitted; raises `Refused`. `request.member_id` is set."""
    member_id = request.member_id
    draft = Draft.of(group)
    held_by = group.holder_of(request.instance_id)
    if held_by is not None and held_by != member_id:
        take_place(draft, held_by, member_id)
    known = draft.group.metadata.get(member_id)
    put_member(draft, member_id, known, _joining(request, subscription), view)
    update_target(draft)
    owned = by_id(subscription.owned, view.topics)
    said = HeartbeatRequest(
        group_id=group.group_id, member_id=member_id, member_epoch=0, owned=owned
    )
    current = settle(draft, said)
    outcome = JoinOutcome(
        verdict=V.OK,
        member_id=member_id,
        generation=current.member_epoch,
        protocol_type=PROTOCOL_TYPE,
        protocol_name=request.protocols[0][0],
    )
    return tuple(draft.changes), outcome


def _joining(request: JoinRequest, subscription: Subscription) -> MemberMetadata:
    return MemberMetadata(
        instance_id=request.instance_id,
        rack_id=subscription.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=seen_names(sorted(set(subscription.topic_names)), request.sight),  # INV-NX3
        rebalance_timeout_ms=request.rebalance_timeout_ms,
        classic=ClassicMember(request.session_timeout_ms, request.protocols),
    )


def _check_protocols(group: ConsumerGroup, request: JoinRequest) -> None:
    """Refuse who shares no protocol with the other classic members."""
    offered = {name for name, _ in request.protocols}
    for member_id, member in group.metadata.items():
        if member.classic is not None and member_id != request.member_id:
            offered &= {name for name, _ in member.classic.protocols}
    if request.protocol_type != PROTOCOL_TYPE or not offered:
        raise Refused(V.INCONSISTENT_PROTOCOL, "The member's protocols are not supported.")


def identify(group: ConsumerGroup, who: MemberIdentity) -> str:
    """Return the id of the classic member that speaks; raises `Refused`."""
    if who.instance_id is not None:
        check_instance(group, who.member_id, who.instance_id)
    if not group.uses_classic(who.member_id):
        raise unknown_member(who.member_id)
    return who.member_id


def check_generation(group: ConsumerGroup, member_id: str, generation: int) -> None:
    """Refuse a generation that is not the member's epoch; raises `Refused`."""
    if generation != group.current_of(member_id).member_epoch:
        raise Refused(V.ILLEGAL_GENERATION, "The generation is not the member's epoch.")


def must_rejoin(group: ConsumerGroup, member_id: str) -> bool:
    """Return whether a heartbeat is answered with REBALANCE_IN_PROGRESS."""
    current = group.current_of(member_id)
    if current.member_epoch < group.group_epoch:
        return True
    match current.state:
        case MemberState.STABLE:
            return False
        case MemberState.UNREVOKED_PARTITIONS:
            return True
        case MemberState.UNRELEASED_PARTITIONS:
            return not _waits_for_others(group, member_id)


def _waits_for_others(group: ConsumerGroup, member_id: str) -> bool:
    return any(
        group.owners.get((topic_id, partition), member_id) != member_id
        for topic_id, partitions in group.target_of(member_id).items()
        for partition in partitions
    )


def sync(group: ConsumerGroup, request: SyncRequest, topics: Topics) -> SyncOutcome:
    """Return a classic member's assignment; raises `Refused`."""
    member_id = identify(group, MemberIdentity(request.member_id, request.instance_id))
    check_generation(group, member_id, request.generation)
    classic = group.metadata[member_id].classic
    assert classic is not None, member_id
    name, raw = classic.protocols[0]
    if request.protocol_type not in (None, PROTOCOL_TYPE) or (
        request.protocol_name not in (None, name)
    ):
        raise Refused(V.INCONSISTENT_PROTOCOL, "Another protocol was agreed on.")
    current = group.current_of(member_id)
    behind = group.group_epoch > current.member_epoch
    if behind and current.state is not MemberState.UNREVOKED_PARTITIONS:
        raise Refused(V.REBALANCE_IN_PROGRESS, "The member shall rejoin to catch up.")
    assignment = write_assignment(version_said(raw), _by_name(current.assigned, topics))
    return SyncOutcome(
        verdict=V.OK, protocol_type=PROTOCOL_TYPE, protocol_name=name, assignment=assignment
    )


def leave(group: ConsumerGroup, leavers: Sequence[MemberIdentity]) -> tuple[list[V], list[str]]:
    """Judge who leaves by the classic protocol; return a verdict each, and the members that go."""
    verdicts: list[V] = []
    gone: dict[str, None] = {}  # a request may name thousands, again and again
    for who in leavers:
        try:
            held_by = group.holder_of(who.instance_id)
            anyone = not who.member_id and held_by is not None
            member_id = identify(group, replace(who, member_id=held_by or "") if anyone else who)
        except Refused as refusal:
            verdicts.append(refusal.verdict)
        else:
            verdicts.append(V.OK if member_id not in gone else V.UNKNOWN_MEMBER)
            gone[member_id] = None
    return verdicts, list(gone)


def _by_name(partitions: Partitions, topics: Topics) -> dict[str, frozenset[int]]:
    names: dict[UUID, str] = {topic.topic_id: name for name, topic in topics.items()}
    return {names[topic_id]: held for topic_id, held in partitions.items() if topic_id in names}


# --- changing the protocol --------------------------------------------------------------------------


def can_downgrade(group: ConsumerGroup, leaving: Iterable[str]) -> bool:
    """Return whether only classic members are left when these go, and at least one (INV-NB3)."""
    going = set(leaving)
    left = [member_id for member_id in group.metadata if member_id not in going]
    return bool(left) and all(group.uses_classic(member_id) for member_id in left)


def downgrade(
    group: ConsumerGroup, leaving: Iterable[str], topics: Topics, *, wall_ms: int
) -> GroupValue:
    """Return the classic group that is left when these members go."""
    going = set(leaving)
    kept = {each: member for each, member in group.metadata.items() if each not in going}
    common = _common_protocol([member.classic for member in kept.values() if member.classic])
    members = [
        _as_classic(member_id, member, group, common, topics) for member_id, member in kept.items()
    ]
    return GroupValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol_name=common,
        leader=next(iter(kept)),
        state_timestamp_ms=wall_ms,
        members=tuple(members),
    )


def emptied(group: ConsumerGroup, *, wall_ms: int) -> GroupValue:
    """Return the classic group without members that a group of the new protocol becomes.

    There is one, though nobody is in it, because offsets of a group that had members age from when it became empty,
    not from their commits (KIP-211).
    """
    return GroupValue(
        protocol_type=PROTOCOL_TYPE,
        generation=group.group_epoch,
        protocol_name=None,
        leader=None,
        state_timestamp_ms=wall_ms,
    )


def _common_protocol(members: Sequence[ClassicMember]) -> str:
    shared = set.intersection(*({name for name, _ in member.protocols} for member in members))
    common = next((name for name, _ in members[0].protocols if name in shared), None)
    assert common is not None, "a member was let in without a common protocol"
    return common


def _as_classic(
    member_id: str, member: MemberMetadata, group: ConsumerGroup, protocol: str, topics: Topics
) -> MemberValue:
    classic = member.classic
    assert classic is not None, member_id
    subscription = next(raw for name, raw in classic.protocols if name == protocol)
    held = _by_name(group.current_of(member_id).assigned, topics)
    return MemberValue(
        member_id=member_id,
        instance_id=member.instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        session_timeout_ms=classic.session_timeout_ms,
        subscription=subscription,
        assignment=write_assignment(version_said(subscription), held),  # INV-NB4
    )
