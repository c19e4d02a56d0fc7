"""CreateAcls (30), versions 1-3: there is no authorizer, so SECURITY_DISABLED for each, as Kafka answers without one.

v1: pattern types.  v2: flexible.  v3: user resources.  Source: AclApis.scala `handleCreateAcls`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

NO_AUTHORIZER: Final = "No Authorizer is configured."


async def handle_create_acls(_ctx: RequestContext, request: Any) -> Fields:
    """Refuse each: nobody would keep to it."""
    row = {"error_code": ErrorCode.security_disabled, "error_message": NO_AUTHORIZER}
    return {"results": [row] * len(request.creations)}


API: Final = Api(30, "CreateAcls", range(1, 4), handle_create_acls)
