"""ListOffsets (2), versions 1-11.  v2: isolation.  v4: leader epoch.  v7: max timestamp.  v8, v9, v11: tiers.

INV-H7  "latest" is what the reader may read up to: the last stable offset under read committed (C37), on a
        mirror what the last tidemark reached shows
There are no tiers, so the local log is the whole log, and nothing lies in or on its way to another tier: -1.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.partitions import find_partition, isolation_of, leader_epoch_error
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext
from region_broker.limits import LOOKUPS_MAX
from region_broker.log.failures import CorruptRange, PartitionFailed
from region_broker.replication.partition import Isolation, Partition
from region_broker.wire.server import CloseConnection

LATEST: Final = -1
EARLIEST: Final = -2
MAX_TIMESTAMP: Final = -3
EARLIEST_LOCAL: Final = -4
LATEST_TIERED: Final = -5
EARLIEST_PENDING_UPLOAD: Final = -6
_SINCE_VERSION: Final = {
    MAX_TIMESTAMP: 7, EARLIEST_LOCAL: 8, LATEST_TIERED: 9, EARLIEST_PENDING_UPLOAD: 11,
}  # fmt: skip


async def handle_list_offsets(ctx: RequestContext, request: Any) -> Fields:
    """Answer, per partition, the offset at a time or at an end."""
    isolation = isolation_of(int(getattr(request, "isolation_level", 0)))
    if sum(len(topic.partitions) for topic in request.topics) > LOOKUPS_MAX:
        raise CloseConnection(f"a ListOffsets request names more than {LOOKUPS_MAX} partitions")
    return {
        "topics": [
            {
                "name": topic.name,
                "partitions": [
                    await _partition(ctx, topic.name, item, isolation) for item in topic.partitions
                ],
            }
            for topic in request.topics
        ]
    }


async def _partition(
    ctx: RequestContext, topic: str, item: Any, isolation: Isolation | None
) -> Fields:
    index = item.partition_index
    if isolation is None:
        return {"partition_index": index, "error_code": ErrorCode.invalid_request}
    partition = find_partition(ctx.services, topic, index)
    if isinstance(partition, ErrorCode):
        return {"partition_index": index, "error_code": partition}
    error = leader_epoch_error(partition, int(getattr(item, "current_leader_epoch", -1)))
    if error is not None:
        return {"partition_index": index, "error_code": error}
    if not _served(ctx.version, int(item.timestamp)):
        return {"partition_index": index, "error_code": ErrorCode.unsupported_version}
    try:
        offset, timestamp_ms, leader_epoch = await _position(
            partition, int(item.timestamp), isolation
        )
    except CorruptRange:
        return {"partition_index": index, "error_code": ErrorCode.corrupt_message}
    except PartitionFailed:
        return {"partition_index": index, "error_code": ErrorCode.kafka_storage_error}
    return {
        "partition_index": index,
        "error_code": ErrorCode.none,
        "timestamp": timestamp_ms,
        "offset": offset,
        "leader_epoch": leader_epoch,
    }


def _served(version: int, timestamp: int) -> bool:
    return timestamp >= EARLIEST or version >= _SINCE_VERSION.get(timestamp, version + 1)


async def _position(
    partition: Partition, timestamp: int, isolation: Isolation
) -> tuple[int, int, int]:
    """Return (offset, timestamp in ms, leader epoch); -1 for what there is none of."""
    if timestamp == LATEST:
        return partition.readable_end(isolation), -1, partition.leader_epoch
    if timestamp in (EARLIEST, EARLIEST_LOCAL):
        return (
            partition.log_start_offset,
            -1,
            partition.log.epochs.epoch_at(partition.log_start_offset),
        )
    if timestamp in (LATEST_TIERED, EARLIEST_PENDING_UPLOAD):
        return -1, -1, -1
    lookup = partition.lookup(isolation)
    found = await (lookup.latest() if timestamp == MAX_TIMESTAMP else lookup.first(timestamp))
    return (-1, -1, -1) if found is None else found


API: Final = Api(2, "ListOffsets", range(1, 12), handle_list_offsets)
