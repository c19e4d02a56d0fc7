"""ConsumerGroupHeartbeat, decided: who may speak, what is written, what the member is told.

INV-NH2  a member is believed only with its epoch, or with the one before if it owns no more than what
         it has: then the answer was lost (KIP-848); all else is fenced
INV-NH3  an instance id has one member; another takes its place only after that one left for now (-2),
         and gets its target
INV-NN1  how many topics a member names is bounded, and how many all members of a group name together: each is looked up at each change
INV-NN2  the topics that a group names are looked up when these, or its members' subscriptions, may be others, not with each heartbeat of a member
         that has not reached its target
A refused heartbeat writes nothing. The assignment is told when the member says everything, and when it changed.

Order of a heartbeat, as Kafka's GroupMetadataManager: member, subscription, group epoch, target,
reconciliation. All of it is one batch of records.
Not here: time (`sessions`), the ledger and who waits (`modern_groups`).
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from region_broker.groups.modern.assignors.assignment import NOTHING
from region_broker.groups.modern.messages import HeartbeatOutcome, HeartbeatRequest, Refused
from region_broker.groups.modern.reconcile import is_subset, reconcile
from region_broker.groups.modern.records import Current, MemberMetadata, Target
from region_broker.groups.modern.state import LEFT_FOR_NOW, ConsumerGroup
from region_broker.groups.modern.states import MemberState
from region_broker.groups.modern.target import (
    ASSIGNORS,
    Change,
    Draft,
    TopicView,
    refresh_topics,
    topics_changed,
    update_target,
    write_topics,
)
from region_broker.groups.records import ModernKind
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import (
    GROUP_MEMBER_COUNT_MAX,
    GROUP_NAME_BYTES_MAX,
    GROUP_PATTERNS_MAX,
    GROUP_SUBSCRIPTION_BYTES_MAX,
    GROUP_TOPIC_NAMES_MAX,
    MEMBER_METADATA_BYTES_MAX,
    SUBSCRIBED_TOPICS_MAX,
)


@dataclass(frozen=True, slots=True)
class Step:
    """What a request makes of a group: its records in one batch, and the answer once they last."""

    changes: tuple[Change, ...]
    outcome: HeartbeatOutcome


# --- what needs no group --------------------------------------------------------------------------


def check(request: HeartbeatRequest) -> None:
    """Refuse what contradicts itself; raises `Refused`."""
    for name, value in (("InstanceId", request.instance_id), ("RackId", request.rack_id)):
        if value == "":
            raise Refused(V.INVALID_REQUEST, f"{name} can't be empty.")
    epoch = request.member_epoch
    if epoch < LEFT_FOR_NOW:
        raise Refused(V.INVALID_REQUEST, "MemberEpoch is invalid.")
    if not request.member_id and (epoch != 0 or request.must_know_member_id):
        raise Refused(V.INVALID_REQUEST, "MemberId can't be empty.")
    if epoch == LEFT_FOR_NOW and request.instance_id is None:
        raise Refused(V.INVALID_REQUEST, "InstanceId can't be null.")
    if epoch == 0:
        _check_joining(request)
    if request.assignor is not None and request.assignor not in ASSIGNORS:
        raise Refused(
            V.UNSUPPORTED_ASSIGNOR,
            f"ServerAssignor {request.assignor} is not supported. "
            f"Supported assignors: {', '.join(ASSIGNORS)}.",
        )
    _check_sizes(request)


def _check_joining(request: HeartbeatRequest) -> None:
    if request.rebalance_timeout_ms == -1:
        raise Refused(V.INVALID_REQUEST, "RebalanceTimeoutMs must be provided in first request.")
    if request.owned is None or request.owned:
        raise Refused(V.INVALID_REQUEST, "TopicPartitions must be empty when (re-)joining.")
    if request.topic_names is None and request.topic_regex is None:
        raise Refused(
            V.INVALID_REQUEST,
            "Either SubscribedTopicNames or SubscribedTopicRegex must be non-null when (re-)joining.",
        )


def _check_sizes(request: HeartbeatRequest) -> None:
    names = (request.member_id, request.instance_id, request.rack_id, request.client_id)
    if any(len((name or "").encode()) > GROUP_NAME_BYTES_MAX for name in names):
        raise Refused(
            V.REQUEST_TOO_LARGE,
            f"Ids of members, instances, racks and clients may have {GROUP_NAME_BYTES_MAX} bytes.",
        )
    topics = request.topic_names or ()
    size_bytes = sum(len(name.encode()) for name in topics)
    if len(topics) > SUBSCRIBED_TOPICS_MAX or size_bytes > MEMBER_METADATA_BYTES_MAX:
        raise Refused(
            V.REQUEST_TOO_LARGE,
            f"A member may subscribe to {SUBSCRIBED_TOPICS_MAX} topics by name, with "
            f"{MEMBER_METADATA_BYTES_MAX} bytes in all; use a pattern instead.",
        )


# --- going on ---------------------------------------------------------------------------------------


def patterns_needed(group: ConsumerGroup | None, request: HeartbeatRequest) -> set[str]:
    """Return the patterns that a `TopicView` for this request must have resolved."""
    needed = set() if group is None else group.patterns()
    return needed | {request.topic_regex} if request.topic_regex else needed


def beat(
    group: ConsumerGroup, request: HeartbeatRequest, view: TopicView, *, interval_ms: int
) -> Step:
    """Let a member join or go on; raises `Refused`. `request.member_id` is set."""
    members = group.metadata
    if len(members) >= GROUP_MEMBER_COUNT_MAX and request.member_id not in members:
        raise Refused(
            V.GROUP_FULL,
            f"The consumer group has reached its maximum capacity of {GROUP_MEMBER_COUNT_MAX} members.",
        )
    before = speaker(group, request)
    check_patterns(group, request)
    if not _may_change(group, request, view):
        current = group.current_of(request.member_id)
        return Step((), _told(request, current, current, interval_ms))
    draft = Draft.of(group)
    if before is not None and before != request.member_id:
        take_place(draft, before, request.member_id)
    had = draft.group.current_of(request.member_id)
    _subscribe(draft, request, view)
    update_target(draft)
    now = settle(draft, request)
    return Step(tuple(draft.changes), _told(request, had, now, interval_ms))


def check_begins(request: HeartbeatRequest) -> None:
    """Refuse a member that means to go on in a group that is not there; raises `Refused`."""
    if request.member_epoch != 0:
        # Kafka says GROUP_ID_NOT_FOUND, which ends a client. After a takeover a group may be
        # gone that a member of the lost region knows: that member shall come back (T26).
        raise Refused(V.UNKNOWN_MEMBER, f"Group {request.group_id} has no such member.")


def check_patterns(group: ConsumerGroup, request: HeartbeatRequest) -> None:
    """Refuse a pattern that would be one too many of its group (INV-NX6); raises `Refused`. What a member has already it keeps."""
    patterns = group.patterns()
    if not request.topic_regex or request.topic_regex in patterns:
        return
    others = {
        member.topic_regex
        for member_id, member in group.metadata.items()
        if member.topic_regex and member_id != request.member_id
    }
    if len(others) >= GROUP_PATTERNS_MAX:
        raise Refused(
            V.INVALID_REGEX,
            f"SubscribedTopicRegex: the members of group {request.group_id} have {len(others)} other patterns, and a group"
            f" has {GROUP_PATTERNS_MAX} at most. Let its members subscribe by the same one.",
        )


def speaker(group: ConsumerGroup, request: HeartbeatRequest) -> str | None:
    """Return the member that speaks, or the one whose place it takes; None: a new one. Raises `Refused`."""
    joins = request.member_epoch == 0
    if request.instance_id is None:
        if request.member_id not in group.metadata:
            if not joins:
                raise unknown_member(request.member_id)
            return None
        check_epoch(group, request)
        return request.member_id
    held_by = group.instances.get(request.instance_id)
    if joins:
        if held_by is not None and not group.uses_classic(held_by):
            _check_released(group, request, held_by)
        return held_by
    check_instance(group, request.member_id, request.instance_id)
    check_epoch(group, request)
    return request.member_id


def _check_released(group: ConsumerGroup, request: HeartbeatRequest, held_by: str) -> None:
    epoch = group.current_of(held_by).member_epoch
    # The very member again: the answer to its first join was lost (no one else has its id).
    again = held_by == request.member_id and group.current_of(held_by).previous_epoch <= 0
    if epoch != LEFT_FOR_NOW and not again:
        raise Refused(
            V.UNRELEASED_INSTANCE,
            f"Static member {request.member_id} with instance id {request.instance_id} cannot join "
            f"the group because the instance id is owned by {held_by} member.",
        )


def check_instance(group: ConsumerGroup, member_id: str, instance_id: str) -> None:
    """Refuse a static member that is not there or was replaced; raises `Refused`."""
    held_by = group.instances.get(instance_id)
    if held_by is None:
        raise Refused(V.UNKNOWN_MEMBER, f"Instance id {instance_id} is unknown.")
    if held_by != member_id:
        raise Refused(
            V.FENCED_INSTANCE,
            f"Static member {member_id} with instance id {instance_id} was fenced by member {held_by}.",
        )


def unknown_member(member_id: str) -> Refused:
    """Return the refusal of a member that is not in its group."""
    return Refused(V.UNKNOWN_MEMBER, f"Member {member_id} is not a member of the group.")


def check_epoch(group: ConsumerGroup, request: HeartbeatRequest) -> None:
    """Refuse a member that does not know its epoch (INV-NH2); raises `Refused`."""
    current = group.current_of(request.member_id)
    received, known = request.member_epoch, current.member_epoch
    lost_answer = received == current.previous_epoch and is_subset(request.owned, current.assigned)
    if received == known or (received < known and lost_answer):
        return
    word = "greater" if received > known else "smaller"
    raise Refused(
        V.FENCED_MEMBER_EPOCH,
        f"The consumer group member has a {word} member epoch ({received}) than the one known by the "
        f"group coordinator ({known}). The member must abandon all its partitions and rejoin.",
    )


def _may_change(group: ConsumerGroup, request: HeartbeatRequest, view: TopicView) -> bool:
    """Return whether anything can come of this heartbeat; most say nothing new."""
    member = group.metadata.get(request.member_id)
    return (
        member is None
        or updated(member, request) != member
        or group.group_epoch > group.assignment_epoch
        or not group.is_settled(request.member_id)
        or (view.is_news and topics_changed(group, view))
    )


def updated(member: MemberMetadata, request: HeartbeatRequest) -> MemberMetadata:
    """Return what is known of the member with what it says now."""
    timeout_ms = request.rebalance_timeout_ms
    regex = member.topic_regex if request.topic_regex is None else (request.topic_regex or None)
    names = member.topic_names if request.topic_names is None else request.topic_names
    return MemberMetadata(
        instance_id=member.instance_id if request.instance_id is None else request.instance_id,
        rack_id=member.rack_id if request.rack_id is None else request.rack_id,
        client_id=request.client_id,
        client_host=request.client_host,
        topic_names=tuple(sorted(set(names))),
        topic_regex=regex,
        rebalance_timeout_ms=member.rebalance_timeout_ms if timeout_ms == -1 else timeout_ms,
        assignor=member.assignor if request.assignor is None else request.assignor,
    )


def writes_again(group: ConsumerGroup, request: HeartbeatRequest) -> bool:
    """Return whether a member's record, of up to MEMBER_METADATA_BYTES_MAX, is written for a request that brings no names; raises `Refused`."""
    if request.member_epoch < 0 or request.topic_names is not None:
        return False
    before = speaker(group, request)
    if before is None:
        return False
    known = group.metadata[before]
    return before != request.member_id or updated(known, request) != known


def _subscribe(draft: Draft, request: HeartbeatRequest, view: TopicView) -> None:
    """Write the member and the topics as they are now; a change begins a group epoch."""
    known = draft.group.metadata.get(request.member_id)
    member = updated(known or MemberMetadata(), request)
    put_member(draft, request.member_id, known, member, view)


def put_member(
    draft: Draft,
    member_id: str,
    known: MemberMetadata | None,
    member: MemberMetadata,
    view: TopicView,
) -> None:
    """Write a member; a new subscription, or topics that changed, begin a group epoch."""
    if member != known:
        _check_group_size(draft.group, member_id, member)
        draft.put(ModernKind.MEMBER, member, member_id)
    subscription = (member.topic_names, member.topic_regex)
    bump = known is None or subscription != (known.topic_names, known.topic_regex)
    group = draft.group
    looks = bump or view.is_news or group.group_epoch > group.assignment_epoch
    if (looks and refresh_topics(draft, view)) or bump:
        draft.bump_epoch()


def _check_group_size(group: ConsumerGroup, member_id: str, member: MemberMetadata) -> None:
    others = (each for other_id, each in group.metadata.items() if other_id != member_id)
    members = (member, *others)
    size_bytes = sum(map(metadata_bytes, members))
    count = sum(len(each.topic_names) for each in members)
    if size_bytes > GROUP_SUBSCRIPTION_BYTES_MAX or count > GROUP_TOPIC_NAMES_MAX:
        raise Refused(
            V.REQUEST_TOO_LARGE,
            f"The subscriptions of this group would have {size_bytes} bytes and name {count} topics, of {GROUP_SUBSCRIPTION_BYTES_MAX} "
            f"and {GROUP_TOPIC_NAMES_MAX} allowed; subscribe by a pattern, or use several groups.",
        )


def metadata_bytes(member: MemberMetadata) -> int:
    """Return about how much a member's subscription takes."""
    protocols = () if member.classic is None else member.classic.protocols
    return sum(map(len, member.topic_names)) + sum(len(raw) for _, raw in protocols)


def take_place(draft: Draft, old_id: str, new_id: str) -> None:
    """Give a static member's place to its next life: same target, nothing owned yet."""
    group = draft.group
    target, member = group.target_of(old_id), group.metadata[old_id]
    had = group.current_of(old_id)
    draft.remove_member(old_id)
    draft.put(ModernKind.MEMBER, member, new_id)
    draft.put(ModernKind.TARGET, Target(target), new_id)
    # What the old life had stays with the new one: nobody else may have got it meanwhile. So does what it had not
    # given back, until the new one says that it has it no more (INV-NC1).
    state = MemberState.UNREVOKED_PARTITIONS if had.revoking else MemberState.STABLE
    current = replace(had, member_epoch=0, previous_epoch=0, state=state)
    draft.put(ModernKind.CURRENT, current, new_id)


def settle(draft: Draft, request: HeartbeatRequest) -> Current:
    """Move the member towards its target; return what it has then."""
    group = draft.group
    current = group.current_of(request.member_id)
    if group.is_settled(request.member_id):
        return current
    moved = reconcile(
        request.member_id,
        current,
        target_epoch=group.assignment_epoch,
        target=group.target_of(request.member_id),
        owners=group.owners,
        owned=request.owned,
    )
    if moved != current or request.member_id not in group.current:
        draft.put(ModernKind.CURRENT, moved, request.member_id)
    return moved


def _told(
    request: HeartbeatRequest, had: Current, now: Current, interval_ms: int
) -> HeartbeatOutcome:
    tell = request.is_full or had.assigned != now.assigned
    return HeartbeatOutcome(
        verdict=V.OK,
        member_id=request.member_id,
        member_epoch=now.member_epoch,
        heartbeat_interval_ms=interval_ms,
        assignment=now.assigned if tell else None,
    )


# --- leaving ----------------------------------------------------------------------------------------


def leave(group: ConsumerGroup, request: HeartbeatRequest, view: TopicView) -> Step:
    """Let a member go, for good or (static, -2) for now; raises `Refused`."""
    member_id = request.member_id
    if request.instance_id is not None:
        check_instance(group, member_id, request.instance_id)
    elif member_id not in group.metadata:
        raise unknown_member(member_id)
    outcome = HeartbeatOutcome(verdict=V.OK, member_id=member_id, member_epoch=request.member_epoch)
    if request.member_epoch != LEFT_FOR_NOW:
        return Step(fence(group, (member_id,), view), outcome)
    draft = Draft.of(group)
    current = group.current_of(member_id)
    draft.put(
        ModernKind.CURRENT,
        replace(current, member_epoch=LEFT_FOR_NOW, revoking=NOTHING),
        member_id,
    )
    return Step(tuple(draft.changes), outcome)


def fence(group: ConsumerGroup, member_ids: Iterable[str], view: TopicView) -> tuple[Change, ...]:
    """Return the records that remove these members and begin a group epoch.

    The target waits for the next heartbeat, as do patterns that would stand for other topics now.
    """
    draft = Draft.of(group)
    for member_id in member_ids:
        draft.remove_member(member_id)
    write_topics(draft, view)
    draft.bump_epoch()
    return tuple(draft.changes)
