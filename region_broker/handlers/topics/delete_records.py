"""DeleteRecords (21), versions 0-2 (KIP-107): move the log start up; -1 means the high watermark.

INV-HDR1 an answer without an error is durable here; mirrors follow at a tidemark that names the log start (T14), so
         a takeover at an older one brings the records back. A planned switch is never at an older one (INV-RR4)
Source: Kafka ReplicaManager.deleteRecords. Not here: when the bytes go (`partitions.partition`).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.partitions import find_partition
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.log.failures import NotLeader, OffsetOutOfRange, PartitionFailed
from region_broker.wire.cooperative_yield import CooperativeYield

_HIGH_WATERMARK: Final = -1
_NO_OFFSET: Final = -1


async def handle_delete_records(ctx: RequestContext, request: Any) -> Fields:
    """Delete below the offset given in each partition, or say why not."""
    if sum(len(topic.partitions) for topic in request.topics) > ADMIN_ITEMS_MAX:
        return _on_error(ctx, request, ErrorCode.invalid_request)
    yielding = CooperativeYield.of_a_write()
    topics: list[Fields] = []
    for topic in request.topics:
        rows: list[Fields] = []
        for item in topic.partitions:
            await yielding.row()
            rows.append(await _delete(ctx, topic.name, item.partition_index, int(item.offset)))
        topics.append({"name": topic.name, "partitions": rows})
    return {"topics": topics}


async def _delete(ctx: RequestContext, name: str, index: int, offset: int) -> Fields:
    topic = ctx.services.metadata.image.topics.get(name)
    if topic is not None and topic.internal:
        return _row(index, ErrorCode.invalid_topic_exception)
    if topic is not None and "delete" not in topic.configs.get("cleanup.policy", "delete"):
        return _row(index, ErrorCode.policy_violation)
    partition = find_partition(ctx.services, name, index)
    if isinstance(partition, ErrorCode):
        return _row(index, partition)
    if offset == _HIGH_WATERMARK:
        offset = partition.high_watermark
    try:
        with ctx.services.region.change():
            return _row(index, ErrorCode.none, await partition.retention.delete_records(offset))
    except OffsetOutOfRange:
        return _row(index, ErrorCode.offset_out_of_range)
    except (NotLeader, CommandRefused):
        return _row(index, ErrorCode.not_leader_or_follower)
    except PartitionFailed:
        gone = ctx.services.partitions.get(name, index) is not partition
        return _row(
            index, ErrorCode.unknown_topic_or_partition if gone else ErrorCode.kafka_storage_error
        )


def _row(index: int, error: int, low_watermark: int = _NO_OFFSET) -> Fields:
    return {"partition_index": index, "low_watermark": low_watermark, "error_code": error}


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [_row(item.partition_index, error_code) for item in topic.partitions],
            }
            for topic in request.topics
        ]
    }


API: Final = Api(
    21, "DeleteRecords", range(3), handle_delete_records, forward=True, on_error=_on_error
)
