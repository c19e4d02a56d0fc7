"""A classic group that becomes one of the new protocol: what its members said is read first, then the group changes in one step.

INV-NUG1 what the members of a classic group say is read a few rows at a time, by one request at a time, and once: the step that changes the group
         takes what was read, or nothing where it is not what they say by then
INV-NUG2 a group changes its protocol where its members name UPGRADE_TOPICS_MAX topics at most, all together: who asks is refused before anything
         is read, as whoever reads the group can ask again and again
INV-NUG3 a partition that a classic leader gave to several members is the first one's: two that keep it would leave another one to nobody
INV-NX5  a classic group becomes one of the new protocol only by who may see all topics that its members subscribe to, or have by what their leader
         says: whether there is a topic of such a name showed in how the group was described. They are judged by name, there or not
Not here: members that come and go afterwards (`classic_members`), waiting for durability (`modern_groups`).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from uuid import UUID

from region_broker.groups.classic.group import Group
from region_broker.groups.classic.membership import Member
from region_broker.groups.messages import Sight
from region_broker.groups.modern.assignors.assignment import NOTHING, Partitions, frozen
from region_broker.groups.modern.consumer_protocol import (
    PROTOCOL_TYPE,
    MalformedProtocol,
    assignment_said,
    subscription_said,
    topic_count_said,
)
from region_broker.groups.modern.messages import Refused
from region_broker.groups.modern.records import (
    ClassicMember,
    Current,
    GroupEpoch,
    MemberMetadata,
    Target,
    TargetEpoch,
)
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.modern.target import Draft, TopicView, write_topics
from region_broker.groups.ports import Topic
from region_broker.groups.records import ModernKind
from region_broker.groups.verdicts import GroupVerdict as V
from region_broker.limits import UPGRADE_TOPICS_MAX
from region_broker.wire.cooperative_yield import CooperativeYield, run_yielding

Topics = Mapping[str, Topic]


def by_id(partitions: Mapping[str, frozenset[int]], topics: Topics) -> Partitions:
    """Return those that there are, by topic id: a member's leader may have given it whatever it liked (INV-NB6)."""
    found = ((topics[name], held) for name, held in partitions.items() if name in topics)
    return frozen(
        {topic.topic_id: held.intersection(range(topic.partition_count)) for topic, held in found}
    )


@dataclass(frozen=True, slots=True)
class _SaidByMember:
    """What one member says, and the bytes in which it did."""

    subscription: bytes
    assignment: bytes
    topic_names: tuple[str, ...]
    rack_id: str | None
    assigned: Partitions

    def is_said_by(self, member: Member | None) -> bool:
        return member is not None and (self.subscription, self.assignment) == _bytes_of(member)


@dataclass(frozen=True, slots=True)
class Said:
    """What the members of a classic group said, with the topics that there were as it was read."""

    members: Mapping[str, _SaidByMember]
    topics: Topics

    def is_said_in(self, classic: Group, topics: Topics) -> bool:
        """Return whether it is what they say now."""
        now = classic.roster.members
        return (
            self.topics is topics
            and len(now) == len(self.members)
            and all(said.is_said_by(now.get(each)) for each, said in self.members.items())
        )


@dataclass(slots=True)
class GroupReader:
    """Reads classic groups, each for one request at a time (INV-NUG1)."""

    _under_way: set[str] = field(default_factory=set)

    async def read(self, classic: Group, topics: Topics, sight: Sight | None) -> Said:
        """Return what the members say; raises `Refused` where the group cannot change its protocol for who has this sight."""
        _check_whole(classic)
        if classic.group_id in self._under_way:
            raise Refused(
                V.NOT_AVAILABLE, f"Group {classic.group_id} is being read for another one; retry."
            )
        self._under_way.add(classic.group_id)
        try:
            return await _read(classic, topics, sight)
        finally:
            self._under_way.remove(classic.group_id)


def _check_whole(classic: Group) -> None:
    """Refuse a group that is none of consumers, or names too many topics (INV-NUG2)."""
    if classic.protocol_type != PROTOCOL_TYPE:
        raise Refused(
            V.GROUP_NOT_FOUND,
            f"Group {classic.group_id} is not a consumer group: its members speak "
            f"{classic.protocol_type}, not {PROTOCOL_TYPE}.",
        )
    members = classic.roster.members.values()
    count = sum(topic_count_said(raw) for member in members for raw in _bytes_of(member))
    if count > UPGRADE_TOPICS_MAX:
        raise Refused(
            V.GROUP_NOT_FOUND,
            f"Group {classic.group_id} cannot change its protocol: its members name {count} topics, of {UPGRADE_TOPICS_MAX} allowed."
            " End some of those members first.",
        )


def _bytes_of(member: Member) -> tuple[bytes, bytes]:
    """Return the subscription that counts, and the assignment."""
    return member.protocols[0][1], member.assignment


async def _read(classic: Group, topics: Topics, sight: Sight | None) -> Said:
    yielding = CooperativeYield.of_a_write()
    members: dict[str, _SaidByMember] = {}
    for member in tuple(classic.roster.members.values()):
        await yielding.row()
        member_id, (subscription, assignment) = member.member_id, _bytes_of(member)
        try:
            said = await run_yielding(subscription_said(subscription, yielding))
            held = await run_yielding(assignment_said(assignment, yielding))
        except MalformedProtocol as error:
            raise Refused(
                V.GROUP_NOT_FOUND,
                f"Group {classic.group_id} cannot change its protocol: what member "
                f"{member_id} says cannot be read ({error}).",
            ) from error
        names = tuple(sorted(set(said.topic_names)))
        await _check_seen(classic.group_id, {*names, *held}, sight, yielding)
        members[member_id] = _SaidByMember(
            subscription, assignment, names, said.rack_id, by_id(held, topics)
        )
    return Said(members, topics)


async def _check_seen(
    group_id: str, names: Iterable[str], sight: Sight | None, yielding: CooperativeYield
) -> None:
    """Refuse who may not see all of them (INV-NX5)."""
    if sight is None:
        return
    for name in names:
        await yielding.row()
        if not sight.sees(name):
            raise Refused(
                V.GROUP_NOT_FOUND,
                f"Group {group_id} cannot change its protocol: its members name topics that this client may not"
                " describe. Let it describe them, or end those members first.",
            )


def upgrade(classic: Group, view: TopicView, said: Said | None) -> Draft:
    """Return a classic group as one of the new protocol, its members with what they have; raises `Refused`."""
    if said is None or not said.is_said_in(classic, view.topics):
        raise Refused(
            V.NOT_AVAILABLE,
            f"The members of group {classic.group_id} changed while they were read; retry.",
        )
    draft = Draft(ConsumerGroup(classic.group_id))
    draft.put(ModernKind.GROUP_EPOCH, GroupEpoch(classic.generation))
    taken: set[tuple[UUID, int]] = set()
    for member in classic.roster.members.values():
        _put(draft, member, said.members[member.member_id], classic.generation, taken)
    write_topics(draft, view)
    draft.put(ModernKind.TARGET_EPOCH, TargetEpoch(classic.generation))
    return draft


def _put(
    draft: Draft, member: Member, said: _SaidByMember, epoch: int, taken: set[tuple[UUID, int]]
) -> None:
    """Write one member with what it has, and nobody before it (INV-NUG3)."""
    metadata = MemberMetadata(
        instance_id=member.instance_id,
        rack_id=said.rack_id,
        client_id=member.client_id,
        client_host=member.client_host,
        topic_names=said.topic_names,
        rebalance_timeout_ms=member.rebalance_timeout_ms,
        classic=ClassicMember(member.session_timeout_ms, member.protocols),
    )
    assigned = _not_taken(said.assigned, taken)
    draft.put(ModernKind.MEMBER, metadata, member.member_id)
    draft.put(ModernKind.TARGET, Target(assigned), member.member_id)
    current = Current(member_epoch=epoch, previous_epoch=epoch, assigned=assigned, revoking=NOTHING)
    draft.put(ModernKind.CURRENT, current, member.member_id)


def _not_taken(assigned: Partitions, taken: set[tuple[UUID, int]]) -> Partitions:
    """Return what of it nobody has yet, which is taken from now on."""
    own = {
        topic_id: [each for each in held if (topic_id, each) not in taken]
        for topic_id, held in assigned.items()
    }
    taken.update((topic_id, each) for topic_id, held in own.items() for each in held)
    return frozen(own)
