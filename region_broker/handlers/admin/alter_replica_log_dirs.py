"""AlterReplicaLogDirs (34), versions 1-2: a node has one log folder, so a partition can be moved to where it is only.

v2: flexible.  Another folder is LOG_DIR_NOT_FOUND. A mirror answers for its own logs, as DescribeLogDirs does.
Source: ReplicaManager.scala `alterReplicaLogDirs`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding


async def handle_alter_replica_log_dirs(ctx: RequestContext, request: Any) -> Fields:
    """Answer each partition by itself."""
    asked = [(folder.path, topic) for folder in request.dirs for topic in folder.topics]
    check_count("AlterReplicaLogDirs", sum(1 + len(topic.partitions) for _, topic in asked))
    own, yielding, results = str(ctx.services.partitions.data_dir), CooperativeYield(), []
    for path, topic in asked:
        await yielding.row()

        def row(index: int, name: str = str(topic.name), found: bool = path == own) -> Fields:
            error = _error(ctx, name, index) if found else ErrorCode.log_dir_not_found
            return {"partition_index": index, "error_code": error}

        rows = await each_yielding(topic.partitions, row, yielding)
        results.append({"topic_name": topic.name, "partitions": rows})
    return {"results": results}


def _error(ctx: RequestContext, name: str, index: int) -> ErrorCode:
    partition = ctx.services.partitions.get(name, index)
    if partition is None:
        return ErrorCode.unknown_topic_or_partition
    return ErrorCode.none if partition.failed is None else ErrorCode.kafka_storage_error


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    rows = [
        {
            "topic_name": topic.name,
            "partitions": [
                {"partition_index": index, "error_code": error_code} for index in topic.partitions
            ],
        }
        for folder in request.dirs
        for topic in folder.topics
    ]
    return {"results": rows}


API: Final = Api(
    34, "AlterReplicaLogDirs", range(1, 3), handle_alter_replica_log_dirs, on_error=_on_error
)
