"""DeleteAcls (31), versions 1-3: there is no authorizer, so SECURITY_DISABLED for each, as Kafka answers without one.

v1: pattern types.  v2: flexible.  v3: user resources.  Source: AclApis.scala `handleDeleteAcls`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.admin.create_acls import NO_AUTHORIZER
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_delete_acls(_ctx: RequestContext, request: Any) -> Fields:
    """Refuse each filter: there is nothing that it could match."""
    row = {
        "error_code": ErrorCode.security_disabled,
        "error_message": NO_AUTHORIZER,
        "matching_acls": [],
    }
    return {"filter_results": [row] * len(request.filters)}


API: Final = Api(31, "DeleteAcls", range(1, 4), handle_delete_acls)
