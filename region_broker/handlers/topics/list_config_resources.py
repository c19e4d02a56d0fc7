"""ListConfigResources (74), versions 0-1 (KIP-1142): what has configs: topics, and this node.

v0 asks for client metrics only: there are none.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import ResourceType


async def handle_list_config_resources(ctx: RequestContext, request: Any) -> Fields:
    """List the resources of the types asked for, all types for an empty list."""
    if ctx.version == 0:
        return {"error_code": ErrorCode.none, "config_resources": []}
    asked = {int(kind) for kind in request.resource_types} or set(ResourceType)
    if asked - set(ResourceType):
        return {"error_code": ErrorCode.unsupported_version, "config_resources": []}
    rows = []
    if ResourceType.TOPIC in asked:
        names = sorted(ctx.services.metadata.image.topics)
        rows += [{"resource_name": name, "resource_type": ResourceType.TOPIC} for name in names]
    if ResourceType.BROKER in asked:
        name = str(ctx.services.region.node_id)
        rows.append({"resource_name": name, "resource_type": ResourceType.BROKER})
    return {"error_code": ErrorCode.none, "config_resources": rows}


API: Final = Api(74, "ListConfigResources", range(2), handle_list_config_resources)
