"""ConsumerGroupHeartbeat (68), versions 0-1 (KIP-848).

v1: the member draws its id; patterns of topics (KIP-1082).  Epoch 0 joins, -1 leaves, -2 leaves a static
member's place free for its next life.
"""

from typing import Any, Final
from uuid import UUID

from region_broker.groups.modern.assignors.assignment import Partitions, frozen
from region_broker.groups.modern.messages import HeartbeatOutcome, HeartbeatRequest
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, denied_topics, sees_topic
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, duration_ms, sight_of
from region_broker.handlers.groups.names import client_host, client_id
from region_broker.security.access import Operation
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_consumer_group_heartbeat(ctx: RequestContext, request: Any) -> Fields:
    """Let a member join, go on or leave; answered when what it is told is durable."""
    names = request.subscribed_topic_names
    if await denied_topics(ctx, Operation.DESCRIBE, names or (), CooperativeYield.of_a_write()):
        return _on_error(ctx, request, TOPIC_DENIED)
    outcome = await ctx.services.groups.consumer_heartbeat(
        HeartbeatRequest(
            group_id=request.group_id,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            instance_id=request.instance_id,
            rack_id=request.rack_id,
            rebalance_timeout_ms=duration_ms(request.rebalance_timeout),
            topic_names=None if names is None else tuple(names),
            topic_regex=getattr(request, "subscribed_topic_regex", None),
            assignor=request.server_assignor,
            owned=await _owned(request.topic_partitions),
            client_id=client_id(ctx),
            client_host=client_host(ctx),
            must_know_member_id=ctx.version >= 1,
            sight=sight_of(ctx),
        )
    )
    return _fields(ctx, outcome)


async def _owned(topics: Any) -> Partitions | None:
    if topics is None:
        return None
    yielding, found = CooperativeYield.of_a_write(), dict[UUID, set[int]]()
    for topic in topics:
        await yielding.row()
        if topic.topic_id:
            found.setdefault(topic.topic_id, set()).update(topic.partitions)
    return frozen(found)


def _fields(ctx: RequestContext, outcome: HeartbeatOutcome) -> Fields:
    assignment = outcome.assignment
    if assignment is not None:
        # Members share what a pattern stands for (INV-NX3), and rights go at any moment (INV-HAZ4).
        assignment = {
            topic_id: numbers
            for topic_id, numbers in assignment.items()
            if sees_topic(ctx, Operation.DESCRIBE, topic_id)
        }
    return {
        "error_code": ERROR_OF[outcome.verdict],
        "error_message": outcome.message,
        "member_id": outcome.member_id,
        "member_epoch": outcome.member_epoch,
        "heartbeat_interval": outcome.heartbeat_interval_ms,
        "assignment": None if assignment is None else {"topic_partitions": by_id(assignment)},
    }


def by_id(partitions: Partitions) -> list[dict[str, Any]]:
    """Return an assignment as the answer lists it."""
    return [
        {"topic_id": topic_id, "partitions": sorted(partitions[topic_id])}
        for topic_id in partitions
    ]


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {
        "error_code": error_code,
        "error_message": None,
        "member_id": None,
        "member_epoch": 0,
        "heartbeat_interval": 0,
        "assignment": None,
    }


API: Final = Api(
    key=68,
    name="ConsumerGroupHeartbeat",
    versions=range(2),
    handle=handle_consumer_group_heartbeat,
    forward=True,
    on_error=_on_error,
)
