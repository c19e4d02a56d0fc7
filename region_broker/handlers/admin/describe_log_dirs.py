"""DescribeLogDirs (35), versions 1-4: what the logs of this node take on its one disk folder.

v2: compact.  v3: an error for the whole answer (KIP-784).  v4: size and free space of the volume (KIP-827).
A mirror answers for its own logs, as Kafka's followers do.
"""

from collections import defaultdict
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.partitions.partition import Partition
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding


async def handle_describe_log_dirs(ctx: RequestContext, request: Any) -> Fields:
    """Describe the partitions named, or all; those that are not here are left out."""
    table = ctx.services.partitions
    yielding = CooperativeYield()
    asked = request.topics
    if asked is None:
        found = list(table)
    elif sum(len(topic.partitions) for topic in asked) > ADMIN_ITEMS_MAX:
        return {"error_code": ErrorCode.invalid_request, "results": []}
    else:
        named = dict.fromkeys((topic.topic, index) for topic in asked for index in topic.partitions)
        maybe = await each_yielding(named, lambda place: table.get(*place), yielding)
        found = [partition for partition in maybe if partition is not None]
    try:
        total_bytes, usable_bytes = table.volume_bytes()
        error = ErrorCode.none
    except OSError:
        total_bytes = usable_bytes = -1
        error = ErrorCode.kafka_storage_error
    result = {
        "error_code": error,
        "log_dir": str(table.data_dir),
        "topics": await _topics(found, yielding),
        "total_bytes": total_bytes,
        "usable_bytes": usable_bytes,
    }
    return {"error_code": ErrorCode.none, "results": [result]}


async def _topics(partitions: list[Partition], yielding: CooperativeYield) -> list[Fields]:
    rows: dict[str, list[Fields]] = defaultdict(list)
    for partition in partitions:
        await yielding.row()
        rows[partition.tp.topic].append(
            {
                "partition_index": partition.tp.partition,
                "partition_size": partition.log.size_bytes,
                # How far a replica is behind; the only one here is the leader.
                "offset_lag": 0,
                "is_future_key": False,
            }
        )
    return [{"name": name, "partitions": found} for name, found in rows.items()]


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "results": []}


API: Final = Api(
    35, "DescribeLogDirs", range(1, 5), handle_describe_log_dirs, lists=always, on_error=_on_error
)
