"""AlterPartitionReassignments (45), versions 0-1: a partition stays where it is, on all nodes of its region.

v1: whether the number of replicas may change (it never does).
What is asked for is there already, or INVALID_REPLICA_ASSIGNMENT: each node of a region has all logs, no log leaves a node, and
which of them leads is no matter of a partition (ADR 47). So of several nodes it is all of them, in the order in which Metadata
tells them: tools compare the two. There is nothing to cancel (null replicas).
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
    problem = _problem_of(ctx, tuple(int(node) for node in replicas))
    if problem:
        return _row(index, ErrorCode.invalid_replica_assignment, problem)
    return _row(index, ErrorCode.none, None)


def _problem_of(ctx: RequestContext, replicas: tuple[int, ...]) -> str:
    nodes = ctx.services.nodes
    if nodes.is_alone:
        return assignment_problem(ctx.services, [replicas])
    if replicas == nodes.replicas:
        return ""
    return (
        f"each node of this region has all partitions, and one leads all of them: the replicas are {list(nodes.replicas)},"
        " and change with the nodes of the region only"
    )


async def _not_here(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    text = "The node that leads this region could not be asked: try again."
    yielding, responses = CooperativeYield(), list[Fields]()

    def row(part: Any) -> Fields:
        return _row(int(part.partition_index), ErrorCode(error_code), text)

    for topic in request.topics:
        await yielding.row()
        rows = await each_yielding(topic.partitions, row, yielding)
        responses.append({"name": topic.name, "partitions": rows})
    return {
        "allow_replication_factor_change": getattr(
            request, "allow_replication_factor_change", True
        ),
        "error_code": error_code,
        "error_message": text,
        "responses": responses,
    }


def _row(index: int, error: ErrorCode, text: str | None) -> Fields:
    return {"partition_index": index, "error_code": error, "error_message": text}


API: Final = Api(
    45,
    "AlterPartitionReassignments",
    range(2),
    handle_alter_partition_reassignments,
    not_here=_not_here,
)
