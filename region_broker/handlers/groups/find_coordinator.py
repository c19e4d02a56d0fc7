"""FindCoordinator (10), versions 0-6.  v1: key type (0 group, 1 transaction).  v4: several keys at once.

The node that leads the region coordinates everything, in a mirror region too: what arrives there is forwarded to the primary
region, so clients keep their connection through a failover. While nobody leads, or the leader of several nodes has not loaded
what it coordinates, nobody does: clients ask again.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import ERROR_OF, may
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_HIDDEN: Final = "where the node that coordinates is met by the listener of this connection is not known; its log and doctor say what to do"
_KEY_TYPES: Final = {0: ResourceType.GROUP, 1: ResourceType.TRANSACTIONAL_ID}


async def handle_find_coordinator(ctx: RequestContext, request: Any) -> Fields:
    """Answer which node coordinates a group or a transactional id."""
    key_type = int(getattr(request, "key_type", 0))
    if ctx.version >= 4:
        keys = request.coordinator_keys
        check_count("FindCoordinator", len(keys))
        rows = await each_yielding(keys, lambda key: _row(ctx, key, key_type), CooperativeYield())
        return {"coordinators": rows}
    return _row(ctx, request.key, key_type)


def _row(ctx: RequestContext, key: str, key_type: int) -> Fields:
    if key_type not in _KEY_TYPES:
        return {
            "key": key, "node_id": -1, "host": "", "port": -1,
            "error_code": ErrorCode.invalid_request,
            "error_message": f"key type {key_type} is not served, only 0 (group) and 1 (transaction)",
        }  # fmt: skip
    resource_type = _KEY_TYPES[key_type]
    if not may(ctx, Operation.DESCRIBE, resource_type, key):
        return {
            "key": key, "node_id": -1, "host": "", "port": -1,
            "error_code": ERROR_OF[resource_type], "error_message": None,
        }  # fmt: skip
    nodes = ctx.nodes
    loads = (
        not nodes.is_alone and nodes.leads and nodes.is_primary and not ctx.services.region.acting
    )
    if nodes.leader is None or loads:
        return {
            "key": key, "node_id": -1, "host": "", "port": -1,
            "error_code": ErrorCode.coordinator_not_available,
            "error_message": _HIDDEN if nodes.hides_leader else "no node of this region coordinates now; ask again",
        }  # fmt: skip
    leader = nodes.leader
    return {
        "key": key, "node_id": leader.node_id, "host": leader.kafka_host,
        "port": leader.kafka_port, "error_code": ErrorCode.none, "error_message": None,
    }  # fmt: skip


API: Final = Api(10, "FindCoordinator", range(7), handle_find_coordinator)
