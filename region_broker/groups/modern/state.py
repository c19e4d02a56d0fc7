"""One group of the new protocol: the pure replay of its records.

A group is a function of its records alone: live == replay(log). `owners` and `instances` follow from the members: a
partition that a member has or must give back is owned by it, and nobody else's. Nothing that is put into a group is
changed afterwards, so that a shallow copy is a draft.
Not here: what is written when (`heartbeat`), time (`sessions`).
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import NOTHING, Partitions
from region_broker.groups.modern.records import (
    Current,
    GroupEpoch,
    MemberMetadata,
    ModernValue,
    PartitionMetadata,
    ResolvedRegex,
    Target,
    TargetEpoch,
    TopicShape,
)
from region_broker.groups.modern.states import MemberState, ModernState
from region_broker.groups.records import ModernKey, ModernKind

LEFT_FOR_NOW: Final = -2  # the epoch of a static member that will be back (KIP-848)
_JOINING: Final = Current(assigned=NOTHING, revoking=NOTHING)


@dataclass(slots=True)
class ConsumerGroup:
    """One group; `metadata`, `current` and `target` are keyed by member id.

    `epoch_began_ms` is the (wall) time of the record of its epoch. A member that goes begins an epoch, so of a group
    without members it is the time when the last one went (KIP-211).
    """

    group_id: str
    group_epoch: int = 0
    epoch_began_ms: int = 0
    assignment_epoch: int = 0
    metadata: dict[str, MemberMetadata] = field(default_factory=dict)
    current: dict[str, Current] = field(default_factory=dict)
    target: dict[str, Partitions] = field(default_factory=dict)
    topics: dict[str, TopicShape] = field(default_factory=dict)
    regexes: dict[str, ResolvedRegex] = field(default_factory=dict)
    owners: dict[tuple[UUID, int], str] = field(default_factory=dict)
    instances: dict[str, str] = field(default_factory=dict)

    # --- replay -------------------------------------------------------------------------------

    def apply(self, key: ModernKey, value: ModernValue | None) -> None:
        """Apply one record of this group, None for a tombstone."""
        match value:
            case None:
                self._remove(key)
            case GroupEpoch(group_epoch):
                self.group_epoch = group_epoch
            case TargetEpoch(assignment_epoch):
                self.assignment_epoch = assignment_epoch
            case PartitionMetadata(topics):
                self.topics = topics
            case ResolvedRegex():
                self.regexes[key.name] = value
            case MemberMetadata() | Target() | Current():
                self._apply_to_member(key.name, value)

    def _apply_to_member(self, member_id: str, value: MemberMetadata | Target | Current) -> None:
        match value:
            case MemberMetadata():
                self._forget_instance(member_id)
                self.metadata[member_id] = value
                if value.instance_id is not None:
                    self.instances[value.instance_id] = member_id
            case Target(partitions):
                self.target[member_id] = partitions
            case Current():
                self._disown(member_id)
                self.current[member_id] = value
                for place in _places(value):
                    self.owners[place] = member_id

    def _remove(self, key: ModernKey) -> None:
        match key.kind:
            case ModernKind.GROUP_EPOCH:
                self.group_epoch = 0
            case ModernKind.TARGET_EPOCH:
                self.assignment_epoch = 0
            case ModernKind.PARTITION_METADATA:
                self.topics = {}
            case ModernKind.REGEX:
                self.regexes.pop(key.name, None)
            case ModernKind.MEMBER:
                self._forget_instance(key.name)
                self.metadata.pop(key.name, None)
            case ModernKind.TARGET:
                self.target.pop(key.name, None)
            case ModernKind.CURRENT:
                self._disown(key.name)
                self.current.pop(key.name, None)

    def _disown(self, member_id: str) -> None:
        before = self.current.get(member_id)
        if before is not None:
            for place in _places(before):
                if self.owners.get(place) == member_id:
                    del self.owners[place]

    def _forget_instance(self, member_id: str) -> None:
        before = self.metadata.get(member_id)
        instance_id = None if before is None else before.instance_id
        if instance_id is not None and self.instances.get(instance_id) == member_id:
            del self.instances[instance_id]

    def draft(self) -> "ConsumerGroup":
        """Return a copy to try records on."""
        return ConsumerGroup(
            self.group_id,
            self.group_epoch,
            self.epoch_began_ms,
            self.assignment_epoch,
            dict(self.metadata),
            dict(self.current),
            dict(self.target),
            dict(self.topics),
            dict(self.regexes),
            dict(self.owners),
            dict(self.instances),
        )

    # --- looking ------------------------------------------------------------------------------

    def holder_of(self, instance_id: str | None) -> str | None:
        """Return the member that is this instance; who brings none is no instance, the empty text is one (INV-GG7)."""
        return None if instance_id is None else self.instances.get(instance_id)

    def current_of(self, member_id: str) -> Current:
        """Return what the member has; a new one has nothing, at epoch 0."""
        return self.current.get(member_id, _JOINING)

    def target_of(self, member_id: str) -> Partitions:
        """Return what the member shall have."""
        return self.target.get(member_id, NOTHING)

    def is_settled(self, member_id: str) -> bool:
        """Return whether the member has reached the newest target."""
        current = self.current_of(member_id)
        return current.state is MemberState.STABLE and current.member_epoch == self.assignment_epoch

    def uses_classic(self, member_id: str) -> bool:
        """Return whether a member speaks the classic protocol."""
        member = self.metadata.get(member_id)
        return member is not None and member.classic is not None

    @property
    def state(self) -> ModernState:
        """Return the state that tools are told."""
        if not self.metadata:
            return ModernState.EMPTY
        if self.group_epoch > self.assignment_epoch:
            return ModernState.ASSIGNING
        if all(self.is_settled(member_id) for member_id in self.metadata):
            return ModernState.STABLE
        return ModernState.RECONCILING

    def subscribed_names(self, member_id: str) -> frozenset[str]:
        """Return the topics that the member subscribes to, by name and by pattern."""
        member = self.metadata[member_id]
        names = frozenset(member.topic_names)
        if member.topic_regex is None or member.topic_regex not in self.regexes:
            return names
        return names.union(self.regexes[member.topic_regex].topic_names)

    def all_subscribed_names(self) -> set[str]:
        """Return the topics that any member subscribes to."""
        names: set[str] = set()
        for subscribed in {(each.topic_names, each.topic_regex) for each in self.metadata.values()}:
            names.update(subscribed[0])
            if subscribed[1] is not None and subscribed[1] in self.regexes:
                names.update(self.regexes[subscribed[1]].topic_names)
        return names

    def patterns(self) -> set[str]:
        """Return the patterns that any member subscribes by."""
        found = (member.topic_regex for member in self.metadata.values())
        return {pattern for pattern in found if pattern is not None}

    def preferred_assignor(self, default: str) -> str:
        """Return the assignor that most members ask for; the default wins a draw."""
        votes = Counter(
            member.assignor for member in self.metadata.values() if member.assignor is not None
        )
        return max(sorted(votes), key=lambda name: (votes[name], name == default), default=default)

    def tombstones(self) -> list[ModernKey]:
        """Return the keys of all records that the group may have, its epoch last."""
        keys = [
            ModernKey(kind, self.group_id, member_id)
            for kind, held in (
                (ModernKind.CURRENT, self.current),
                (ModernKind.TARGET, self.target),
                (ModernKind.MEMBER, self.metadata),
                (ModernKind.REGEX, self.regexes),
            )
            for member_id in held
        ]
        last = (ModernKind.TARGET_EPOCH, ModernKind.PARTITION_METADATA, ModernKind.GROUP_EPOCH)
        return [*keys, *(ModernKey(kind, self.group_id) for kind in last)]


def _places(current: Current) -> Iterator[tuple[UUID, int]]:
    for held in (current.assigned, current.revoking):
        for topic_id, partitions in held.items():
            for partition in partitions:
                yield topic_id, partition
