"""UnregisterBroker (64), versions 0-0: nodes of a region that it no longer counts on (KIP-500).

A node that is none of this region's is BROKER_ID_NOT_REGISTERED, as in Kafka; nodes of other regions are such. The only node
cannot be let go: it is the region, which Kafka would find out by losing its partitions' only replicas. Nor can one of several, by
this order: it votes in the quorum, and holds what is committed, so that letting it go is a change of both (a later version).
Source: ReplicationControlManager.java `unregisterBroker`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_unregister_broker(ctx: RequestContext, request: Any) -> Fields:
    """Refuse: there is no node that could go."""
    asked, members = int(request.broker_id), ctx.services.quorum().membership
    nodes = ctx.services.nodes
    voting = {each.node_id for each in (*members.voters, *members.learners)}
    if asked not in voting.union(nodes.replicas):
        return {
            "error_code": ErrorCode.broker_id_not_registered,
            "error_message": f"Broker ID {asked} is not currently registered",
        }
    if not nodes.is_alone:
        return {
            "error_code": ErrorCode.invalid_request,
            "error_message": f"node {asked} has all logs of its region, and votes for its metadata: letting nodes go comes in a"
            " later version. One that is stopped keeps its place",
        }
    return {
        "error_code": ErrorCode.invalid_request,
        "error_message": f"node {asked} keeps the metadata and all partitions of its region: stop the node, or let another"
        " region act, before its folder goes",
    }


API: Final = Api(64, "UnregisterBroker", range(1), handle_unregister_broker)
