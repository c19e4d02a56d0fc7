"""Group verdicts as Kafka error numbers, and what the group handlers share.

Every `GroupVerdict` has exactly one number (checked at import).
Not here: verdicts (`groups.verdicts`), downgrades of one API (its own file).
"""

from collections.abc import Container, Iterable
from datetime import timedelta
from functools import partial
from typing import Any, Final

from idempotency.identity import LeaderEpoch, TopicName, TopicPartition
from region_broker.controller.metadata_image import TopicImage
from region_broker.groups.messages import OffsetToCommit, Sight
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.authorizing import operations_of, sees
from region_broker.handlers.dispatch.operations import NOT_ASKED
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield

NONE: Final = 0
UNKNOWN_TOPIC_OR_PARTITION: Final = 3
COORDINATOR_LOAD_IN_PROGRESS: Final = 14
COORDINATOR_NOT_AVAILABLE: Final = 15
REBALANCE_IN_PROGRESS: Final = 27
UNKNOWN_TOPIC_ID: Final = 100

ERROR_OF: Final = {
    GroupVerdict.OK: NONE,
    GroupVerdict.INVALID_GROUP_ID: 24,
    GroupVerdict.TOO_MANY_GROUPS: 24,
    GroupVerdict.NOT_COORDINATOR: 16,
    GroupVerdict.LOADING: COORDINATOR_LOAD_IN_PROGRESS,
    GroupVerdict.NOT_AVAILABLE: COORDINATOR_NOT_AVAILABLE,
    GroupVerdict.UNKNOWN_MEMBER: 25,
    GroupVerdict.FENCED_INSTANCE: 82,
    GroupVerdict.ILLEGAL_GENERATION: 22,
    GroupVerdict.REBALANCE_IN_PROGRESS: REBALANCE_IN_PROGRESS,
    GroupVerdict.MEMBER_ID_REQUIRED: 79,
    GroupVerdict.INCONSISTENT_PROTOCOL: 23,
    GroupVerdict.INVALID_SESSION_TIMEOUT: 26,
    GroupVerdict.GROUP_FULL: 81,
    GroupVerdict.REQUEST_TOO_LARGE: 42,
    GroupVerdict.METADATA_TOO_LARGE: 12,
    GroupVerdict.COMMIT_TOO_LARGE: 28,
    GroupVerdict.TOO_MANY_OFFSETS: 28,
    GroupVerdict.OFFSET_BEYOND_EPOCH: 1,
    GroupVerdict.UNKNOWN_PARTITION: UNKNOWN_TOPIC_OR_PARTITION,
    GroupVerdict.UNSTABLE_OFFSET: 88,
    GroupVerdict.GROUP_NOT_FOUND: 69,
    GroupVerdict.INVALID_REQUEST: 42,
    GroupVerdict.FENCED_MEMBER_EPOCH: 110,
    GroupVerdict.STALE_MEMBER_EPOCH: 113,
    GroupVerdict.UNRELEASED_INSTANCE: 111,
    GroupVerdict.UNSUPPORTED_ASSIGNOR: 112,
    GroupVerdict.INVALID_REGEX: 128,
    GroupVerdict.UNSUPPORTED_VERSION: 35,
    GroupVerdict.NON_EMPTY_GROUP: 68,
    GroupVerdict.SUBSCRIBED_TO_TOPIC: 86,
}
assert set(ERROR_OF) == set(GroupVerdict), "a group verdict has no Kafka error"


def group_operations(ctx: RequestContext, group_id: str, *, asked: bool) -> int:
    """Return what who asks may do with a group, or that nobody asked."""
    return operations_of(ctx, ResourceType.GROUP, group_id) if asked else NOT_ASKED


def duration_ms(duration: timedelta) -> int:
    """Return whole milliseconds."""
    return duration // timedelta(milliseconds=1)


def sight_of(ctx: RequestContext) -> Sight | None:
    """Return which topics who asks may see; None while everybody sees all."""
    if not ctx.services.authorizer.in_force:
        return None
    may_see = partial(sees, ctx, Operation.DESCRIBE, ResourceType.TOPIC)
    return Sight(may_see, since=ctx.services.metadata.image.access)


def topic_of(ctx: RequestContext, tp: TopicPartition) -> TopicImage | None:
    """Return the topic of a partition, None where the partition does not exist."""
    topic = ctx.services.metadata.image.topics.get(tp.topic)
    return topic if topic is not None and 0 <= tp.partition < topic.partition_count else None


def is_asked_for(asked: Any, topic: TopicImage) -> bool:
    """Return whether a request means this topic: one that says ids (v10) said this one's, and not that of one deleted since (INV-GV4)."""
    return hasattr(asked, "name") or asked.topic_id == topic.topic_id


async def offsets_of(
    ctx: RequestContext,
    topics: Iterable[tuple[TopicName | None, Any]],
    denied: Container[object],
    yielding: CooperativeYield,
) -> tuple[tuple[OffsetToCommit, ...], Container[TopicPartition]]:
    """Return what (name, topic of the request) commit, and the partitions that did not exist when this was asked.

    Those were not committed, even where they exist by the time of the answer. Topics that are `denied` are left out. Nothing is judged anew:
    what would be left out by that, as rights go while a request waits, would be acknowledged.
    """
    offsets: dict[
        TopicPartition, OffsetToCommit
    ] = {}  # of a partition that is named again the last counts
    unknown: set[TopicPartition] = set()
    for name, topic in topics:
        if name in denied:
            continue
        for part in topic.partitions if name is not None else ():
            assert name is not None
            await yielding.row()
            tp = TopicPartition(name, part.partition_index)
            known = topic_of(ctx, tp)
            if known is None or not is_asked_for(topic, known):
                unknown.add(tp)
                continue
            epoch = LeaderEpoch(getattr(part, "committed_leader_epoch", -1))
            offsets[tp] = OffsetToCommit(
                tp, part.committed_offset, epoch, part.committed_metadata or "", known.topic_id
            )
    return tuple(offsets.values()), unknown
