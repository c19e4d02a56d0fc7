"""ElectLeaders (43), versions 0-2: who leads a partition is no client's to say, so there is nobody to be preferred.

v1: the kind of election, an error for the whole.  v2: flexible.
One node leads every partition of a region, or each group of them goes to its preferred node by itself (ADR 53).
The node that answers leads: others forward the request. A partition that has stopped there cannot be led by another node alone, as
all of them are led together: PREFERRED_LEADER_NOT_AVAILABLE, or ELIGIBLE_LEADERS_NOT_AVAILABLE where an unclean election was
asked for. Another leader is an operator's order to the region, not one of a Kafka client. Where all partitions are meant, those that need none are left out.
Source: ReplicationControlManager.java `electLeaders`; ElectLeadersRequest.java.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_UNAVAILABLE: Final = {
    0: ErrorCode.preferred_leader_not_available,
    1: ErrorCode.eligible_leaders_not_available,
}
"""By kind of election: preferred, unclean."""


async def handle_elect_leaders(ctx: RequestContext, request: Any) -> Fields:
    """Say for each partition that its leader stays."""
    kind, yielding = int(getattr(request, "election_type", 0)), CooperativeYield()
    asked = request.topic_partitions
    check_count("ElectLeaders", sum(1 + len(topic.partitions) for topic in asked or ()))
    if kind not in _UNAVAILABLE:
        unknown = (ErrorCode.invalid_request, f"Unknown election type {kind}")
        results = [
            _result(topic.topic, [_row(index, *unknown) for index in topic.partitions])
            for topic in asked or ()
        ]
        return {"error_code": ErrorCode.invalid_request, "replica_election_results": results}
    if asked is None:
        return {"replica_election_results": await _all(ctx, kind, yielding)}
    results = []
    for topic in asked:
        await yielding.row()

        def row(index: int, name: str = str(topic.topic)) -> Fields:
            return _elected(ctx, name, index, kind)

        results.append(_result(topic.topic, await each_yielding(topic.partitions, row, yielding)))
    return {"replica_election_results": results}


async def _all(ctx: RequestContext, kind: int, yielding: CooperativeYield) -> list[Fields]:
    results = []
    for name, topic in ctx.services.metadata.image.topics.items():
        rows = []
        for index in range(topic.partition_count):
            await yielding.row()
            row = _elected(ctx, name, index, kind)
            if row["error_code"] is not ErrorCode.election_not_needed:
                rows.append(row)
        results.append(_result(name, rows))
    return results


def _elected(ctx: RequestContext, name: str, index: int, kind: int) -> Fields:
    topic = ctx.services.metadata.image.topics.get(name)
    if topic is None:
        return _row(index, ErrorCode.unknown_topic_or_partition, f"No such topic as {name:.249}")
    if not 0 <= index < topic.partition_count:
        text = f"No such partition as {name}-{index}"
        return _row(index, ErrorCode.unknown_topic_or_partition, text)
    partition = ctx.services.partitions.get(name, index)
    if partition is not None and partition.failed is not None:
        return _row(index, _UNAVAILABLE[kind], f"{partition.tp} has stopped: {partition.failed}")
    text = "Leader election not needed for topic partition."
    return _row(index, ErrorCode.election_not_needed, text)


def _row(index: int, error: ErrorCode, text: str | None) -> Fields:
    return {"partition_id": index, "error_code": error, "error_message": text}


def _result(name: str, rows: Sequence[Fields]) -> Fields:
    return {"topic": name, "partition_result": rows}


async def _not_here(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    yielding, results = CooperativeYield(), list[Fields]()
    for topic in request.topic_partitions or ():
        await yielding.row()
        rows = await each_yielding(topic.partitions, partial(_elsewhere, error_code), yielding)
        results.append(_result(topic.topic, rows))
    return {"error_code": error_code, "replica_election_results": results}


def _elsewhere(error_code: int, index: int) -> Fields:
    text = "The node that leads this region could not be asked: try again."
    return _row(index, ErrorCode(error_code), text)


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    rows = [
        _result(
            topic.topic, [_row(index, ErrorCode(error_code), None) for index in topic.partitions]
        )
        for topic in request.topic_partitions or ()
    ]
    return {"error_code": error_code, "replica_election_results": rows}


API: Final = Api(
    43, "ElectLeaders", range(3), handle_elect_leaders, on_error=_on_error, not_here=_not_here
)
