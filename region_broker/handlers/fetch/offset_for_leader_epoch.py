"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended (KIP-101, KIP-320)."""

from collections.abc import Callable
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may, sees_cluster
from region_broker.handlers.dispatch.partitions import find_led, leader_epoch_error
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding


async def handle_offset_for_leader_epoch(ctx: RequestContext, request: Any) -> Fields:
    """Answer, per partition, the largest epoch <= the one asked for and the offset behind its end."""
    check_count("OffsetForLeaderEpoch", sum(len(topic.partitions) for topic in request.topics))
    yielding = CooperativeYield()
    topics: list[Fields] = []
    is_node = sees_cluster(ctx, Operation.CLUSTER_ACTION)
    for topic in request.topics:
        await yielding.row()
        answer: Callable[[Any], Fields] = partial(_partition, ctx, topic.topic)
        if not is_node and not may(ctx, Operation.DESCRIBE, ResourceType.TOPIC, topic.topic):
            answer = partial(_error_row, TOPIC_DENIED)
        rows = await each_yielding(topic.partitions, answer, yielding)
        topics.append({"topic": topic.topic, "partitions": rows})
    return {"topics": topics}


def _partition(ctx: RequestContext, topic: str, item: Any) -> Fields:
    partition = find_led(ctx.services, topic, item.partition)
    if isinstance(partition, ErrorCode):
        return {"error_code": partition, "partition": item.partition}
    error = leader_epoch_error(partition, item.current_leader_epoch)
    if error is not None:
        return {"error_code": error, "partition": item.partition}
    leader_epoch, end_offset = partition.epoch_end_offset(item.leader_epoch)
    return {
        "error_code": ErrorCode.none,
        "partition": item.partition,
        "leader_epoch": leader_epoch,
        "end_offset": end_offset,
    }


async def _not_here(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    yielding = CooperativeYield()
    topics: list[Fields] = []
    for topic in request.topics:
        await yielding.row()
        rows = await each_yielding(topic.partitions, partial(_error_row, error_code), yielding)
        topics.append({"topic": topic.topic, "partitions": rows})
    return {"topics": topics}


def _error_row(error_code: int, item: Any) -> Fields:
    return {"error_code": error_code, "partition": item.partition}


API: Final = Api(
    23, "OffsetForLeaderEpoch", range(2, 5), handle_offset_for_leader_epoch, not_here=_not_here
)
