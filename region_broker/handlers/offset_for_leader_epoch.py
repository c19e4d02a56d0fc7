"""OffsetForLeaderEpoch (23), versions 2-4: where a leader epoch ended (KIP-101, KIP-320)."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.partitions import find_partition, leader_epoch_error
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext


async def handle_offset_for_leader_epoch(ctx: RequestContext, request: Any) -> Fields:
    """Answer, per partition, the largest epoch <= the one asked for and the offset behind its end."""
    return {
        "topics": [
            {
                "topic": topic.topic,
                "partitions": [_partition(ctx, topic.topic, item) for item in topic.partitions],
            }
            for topic in request.topics
        ]
    }


def _partition(ctx: RequestContext, topic: str, item: Any) -> Fields:
    partition = find_partition(ctx.services, topic, item.partition)
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


API: Final = Api(23, "OffsetForLeaderEpoch", range(2, 5), handle_offset_for_leader_epoch)
