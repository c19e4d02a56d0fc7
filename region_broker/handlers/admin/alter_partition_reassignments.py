"""AlterPartitionReassignments (45), versions 0-1: a partition stays where it is, on the one node of its region.

v1: whether the number of replicas may change (it never does).
What is asked for is there already, or INVALID_REPLICA_ASSIGNMENT; there is nothing to cancel (null replicas).
Source: ReplicationControlManager.java `alterPartitionReassignments`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.partitions import assignment_problem
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding


async def handle_alter_partition_reassignments(ctx: RequestContext, request: Any) -> Fields:
    """Answer each partition by itself."""
    count = sum(1 + len(topic.partitions) for topic in request.topics)
    check_count("AlterPartitionReassignments", count)
    yielding, responses = CooperativeYield(), []
    for topic in request.topics:
        await yielding.row()

        def row(part: Any, name: str = str(topic.name)) -> Fields:
            return _answered(ctx, name, part)

        rows = await each_yielding(topic.partitions, row, yielding)
        responses.append({"name": topic.name, "partitions": rows})
    return {
        "allow_replication_factor_change": getattr(
            request, "allow_replication_factor_change", True
        ),
        "error_code": ErrorCode.none,
        "responses": responses,
    }


def _answered(ctx: RequestContext, name: str, part: Any) -> Fields:
    index, replicas = int(part.partition_index), part.replicas
    topic = ctx.services.metadata.image.topics.get(name)
    if topic is None:
        text = f"Unable to find a topic named {name:.249}."
        return _row(index, ErrorCode.unknown_topic_or_partition, text)
    if not 0 <= index < topic.partition_count:
        text = f"Unable to find partition {name}:{index}."
        return _row(index, ErrorCode.unknown_topic_or_partition, text)
    if replicas is None:
        return _row(index, ErrorCode.no_reassignment_in_progress, None)
    problem = assignment_problem(ctx.services, [tuple(int(node) for node in replicas)])
    if problem:
        return _row(index, ErrorCode.invalid_replica_assignment, problem)
    return _row(index, ErrorCode.none, None)


def _row(index: int, error: ErrorCode, text: str | None) -> Fields:
    return {"partition_index": index, "error_code": error, "error_message": text}


API: Final = Api(45, "AlterPartitionReassignments", range(2), handle_alter_partition_reassignments)
