"""Deleting groups, and single offsets of them, by an administrator's order: who may, and which records do it.

INV-GD1  a group with members is not deleted; an offset of a topic that a member subscribes to is not deleted either
What goes, goes with everything: offsets pending in open transactions too, so that no commit brings them back. Nothing
is changed here: the records do it, once they are written.

Source: Kafka GroupCoordinatorService.deleteGroups and deleteOffsets, ClassicGroup.validateDeleteGroup,
validateOffsetDelete and isSubscribedToTopic; ConsumerProtocolSubscription.
Not here: writing and waiting (`coordinator`), what time does (`shard.tombstones`).
"""

from collections.abc import Iterable
from typing import Final

from idempotency.identity import TopicPartition
from region_broker.groups.classic.group import Group
from region_broker.groups.classic.states import GroupState
from region_broker.groups.modern.consumer_protocol import MalformedProtocol, read_topic_names
from region_broker.groups.ports import KeyValue
from region_broker.groups.records import OffsetKey, encode_offset_key
from region_broker.groups.shard import Shard
from region_broker.groups.verdicts import GroupVerdict

_CONSUMER: Final = "consumer"


def judge_deletion(shard: Shard, group_id: str) -> GroupVerdict:
    """Return whether the group may be deleted."""
    group, modern = shard.groups.get(group_id), shard.table.modern.get(group_id)
    if not shard.table.knows(group_id) and group is None:
        return GroupVerdict.GROUP_NOT_FOUND
    occupied = (group is not None and group.state is not GroupState.EMPTY) or (
        modern is not None and bool(modern.metadata)
    )
    return GroupVerdict.NON_EMPTY_GROUP if occupied else GroupVerdict.OK


def deletion_records(shard: Shard, group_id: str) -> list[KeyValue]:
    """Return the records that end the group: its offsets first, then itself."""
    offsets = offset_records(group_id, shard.table.partitions(group_id))
    return [*offsets, *shard.group_tombstones(group_id)]


def offset_records(group_id: str, partitions: Iterable[TopicPartition]) -> list[KeyValue]:
    """Return the records that end these offsets, pending ones too."""
    return [(encode_offset_key(OffsetKey(group_id, tp)), None) for tp in partitions]


def judge_offsets(
    shard: Shard, group_id: str, partitions: Iterable[TopicPartition]
) -> tuple[GroupVerdict, dict[TopicPartition, GroupVerdict]]:
    """Return the verdict on the group, and for each partition whether its offset may go."""
    group, modern = shard.groups.get(group_id), shard.table.modern.get(group_id)
    if not shard.table.knows(group_id) and group is None:
        return GroupVerdict.GROUP_NOT_FOUND, {}
    subscribed: set[str] | None = set()
    if modern is not None:
        subscribed = modern.all_subscribed_names()
    elif group is not None and group.state is not GroupState.EMPTY:
        if group.protocol_type != _CONSUMER:
            return GroupVerdict.NON_EMPTY_GROUP, {}
        subscribed = _subscribed(group)
    return GroupVerdict.OK, {
        tp: GroupVerdict.SUBSCRIBED_TO_TOPIC
        if subscribed is None or tp.topic in subscribed
        else GroupVerdict.OK
        for tp in partitions
    }


def _subscribed(group: Group) -> set[str] | None:
    """Return the topics that members of a classic group read; None if that cannot be told: then it is any."""
    names: set[str] = set()
    for member in group.roster.members.values():
        for _, metadata in member.protocols:
            topics = subscription_topics(metadata)
            if topics is None:
                return None
            names |= topics
    return names


def subscription_topics(metadata: bytes) -> set[str] | None:
    """Return the topics of a ConsumerProtocolSubscription, None if it is none."""
    try:
        return set(read_topic_names(metadata))
    except MalformedProtocol:
        return None
