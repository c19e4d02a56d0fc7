"""Deleting groups, and single offsets of them, by an administrator's order: who may, and which records do it.

INV-GD1  a group with members is not deleted; an offset of a topic that a member subscribes to is not deleted either
INV-GD2  what members of a classic group subscribe to is read a few rows at a time, and no more of it is kept than was asked for; whether offsets may
         go is judged in the step that writes, by what members say then
What goes, goes with everything: offsets pending in open transactions too, so that no commit brings them back. Nothing
is changed here: the records do it, once they are written.

Source: Kafka GroupCoordinatorService.deleteGroups and deleteOffsets, ClassicGroup.validateDeleteGroup,
validateOffsetDelete and isSubscribedToTopic; ConsumerProtocolSubscription.
Not here: writing and waiting (`coordinator`), what time does (`shard.tombstones`).
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import Final, TypeAlias

from idempotency.identity import TopicPartition
from idempotency.pieces import Pieces
from region_broker.groups.classic.group import Group
from region_broker.groups.classic.states import GroupState
from region_broker.groups.modern.consumer_protocol import MalformedProtocol, topic_names_said
from region_broker.groups.ports import KeyValue
from region_broker.groups.records import OffsetKey, encode_offset_key
from region_broker.groups.shard import Shard
from region_broker.groups.verdicts import GroupVerdict
from region_broker.wire.cooperative_yield import CooperativeYield, run_yielding

_CONSUMER: Final = "consumer"
_TRIES: Final = 3
_Asked: TypeAlias = set[str] | None
"""Those of the topics asked for that a member subscribes to; None: that cannot be told."""


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


async def judge_offsets(
    shard: Shard, group_id: str, partitions: Sequence[TopicPartition]
) -> tuple[GroupVerdict, dict[TopicPartition, GroupVerdict]]:
    """Return the verdict on the group, and for each partition whether its offset may go: as of the step in which this returns."""
    asked, read, term = {tp.topic for tp in partitions}, dict[bytes, _Asked](), shard.term
    for _ in range(_TRIES):
        group = shard.groups.get(group_id)
        if group is not None and asked:
            await run_yielding(_read(group, asked, read))
        if (verdict := shard.since(term)) is not GroupVerdict.OK:
            return verdict, {}
        judged = _judge_offsets(shard, group_id, partitions, read)
        if judged is not None:
            return judged
    return GroupVerdict.NOT_AVAILABLE, {}


def _judge_offsets(
    shard: Shard,
    group_id: str,
    partitions: Iterable[TopicPartition],
    read: Mapping[bytes, _Asked],
) -> tuple[GroupVerdict, dict[TopicPartition, GroupVerdict]] | None:
    """Judge by what was read; None if members say by now what was not."""
    group, modern = shard.groups.get(group_id), shard.table.modern.get(group_id)
    if not shard.table.knows(group_id) and group is None:
        return GroupVerdict.GROUP_NOT_FOUND, {}
    subscribed: AbstractSet[str] | None = frozenset()
    if modern is not None:
        subscribed = modern.all_subscribed_names()
    elif group is not None and group.state is not GroupState.EMPTY:
        if group.protocol_type != _CONSUMER:
            return GroupVerdict.NON_EMPTY_GROUP, {}
        said = set(_said_in(group))
        if partitions and not said <= read.keys():
            return None
        subscribed = _united(read[each] for each in said) if partitions else frozenset()
    return GroupVerdict.OK, {
        tp: GroupVerdict.SUBSCRIBED_TO_TOPIC
        if subscribed is None or tp.topic in subscribed
        else GroupVerdict.OK
        for tp in partitions
    }


def _said_in(group: Group) -> Iterator[bytes]:
    """Yield what members of a classic group subscribe to, for each of their protocols."""
    for member in group.roster.members.values():
        for _, metadata in member.protocols:
            yield metadata


def _read(group: Group, asked: AbstractSet[str], read: dict[bytes, _Asked]) -> Pieces[None]:
    """Read what members subscribe to, as far as it was not (INV-GD2)."""
    if group.protocol_type != _CONSUMER:
        return
    yielding = CooperativeYield()
    for metadata in tuple(_said_in(group)):
        if yielding.due():
            yield
        if metadata not in read:
            topics = yield from subscription_topics(metadata, yielding)
            read[metadata] = None if topics is None else topics & asked


def _united(each_asked: Iterable[_Asked]) -> AbstractSet[str] | None:
    """Return the topics that any member reads; None if that cannot be told of one: then it is any."""
    names: set[str] = set()
    for topics in each_asked:
        if topics is None:
            return None
        names |= topics
    return names


def subscription_topics(metadata: bytes, yielding: CooperativeYield) -> Pieces[set[str] | None]:
    """Return the topics of a ConsumerProtocolSubscription, None if it is none."""
    try:
        names = yield from topic_names_said(metadata, yielding)
    except MalformedProtocol:
        return None
    return set(names)
