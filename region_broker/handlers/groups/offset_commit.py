"""OffsetCommit (8), versions 2-10.

v6: leader epoch.  v7: static members.  v9: member epochs of the new group protocol.  v10: topic ids.
Generation -1: simple.  Answered only when the offsets are durable (B15). Versions 2-4 bring a retention
time of their own, which is ignored since KIP-211.
"""

from collections.abc import Callable, Container
from functools import partial
from typing import Any, Final

from idempotency.identity import TopicName, TopicPartition
from region_broker.groups.messages import (
    CommitOutcome,
    CommitRequest,
    MemberIdentity,
)
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups.errors import (
    ERROR_OF,
    UNKNOWN_TOPIC_ID,
    UNKNOWN_TOPIC_OR_PARTITION,
    offsets_of,
)
from region_broker.handlers.groups.names import topic_name, topic_names
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_MEMBER_EPOCHS_FROM: Final = 9
_TOPIC_IDS_FROM: Final = 10


async def handle_offset_commit(ctx: RequestContext, request: Any) -> Fields:
    """Commit offsets of one group."""
    by_id = topic_names(ctx) if ctx.version >= _TOPIC_IDS_FROM else {}
    names = [topic_name(topic, by_id) for topic in request.topics]
    denied = await denied_topics(ctx, Operation.READ, names, CooperativeYield.of_a_write())
    if denied and all(name in denied for name in names):
        return await error_for_all(ctx, request, TOPIC_DENIED, _on_error)
    named = zip(names, request.topics, strict=True)
    offsets, unknown = await offsets_of(ctx, named, denied, CooperativeYield.of_a_write())
    ctx.leave_large()  # it waits for the ledger, and what it may not do is known
    outcome = await ctx.services.groups.commit_offsets(
        CommitRequest(
            group_id=request.group_id,
            offsets=offsets,
            who=MemberIdentity(request.member_id, getattr(request, "group_instance_id", None)),
            generation=request.generation_id_or_member_epoch,
            knows_epochs=ctx.version >= _MEMBER_EPOCHS_FROM,
        )
    )
    yielding = CooperativeYield()
    topics: list[Fields] = []
    for topic, name in zip(request.topics, names, strict=True):
        error_of = partial(_error, outcome, unknown, name)
        if name in denied:
            error_of = partial(_denied, name)
        rows = await each_yielding(topic.partitions, partial(_row, error_of), yielding)
        topics.append(_answered(topic, rows))
    return {"topics": topics}


def _error(
    outcome: CommitOutcome, unknown: Container[TopicPartition], name: TopicName | None, part: Any
) -> int:
    if name is None:
        return UNKNOWN_TOPIC_ID
    tp = TopicPartition(name, part.partition_index)
    return UNKNOWN_TOPIC_OR_PARTITION if tp in unknown else ERROR_OF[outcome.of(tp)]


def _denied(_name: TopicName | None, _part: Any) -> int:
    return TOPIC_DENIED


def _row(error_of: Callable[[Any], int], part: Any) -> Fields:
    return {"partition_index": part.partition_index, "error_code": error_of(part)}


def _answered(topic: Any, rows: list[Fields]) -> Fields:
    return {
        "name": getattr(topic, "name", ""),
        "topic_id": getattr(topic, "topic_id", None),
        "partitions": rows,
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    row_of = partial(_row, lambda _: error_code)
    return {
        "topics": [
            _answered(topic, list(map(row_of, topic.partitions))) for topic in request.topics
        ]
    }


API: Final = Api(
    key=8,
    name="OffsetCommit",
    versions=range(2, 11),
    handle=handle_offset_commit,
    forward=True,
    on_error=_on_error,
)
