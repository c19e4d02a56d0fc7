"""DescribeAcls (29), versions 1-3: there is no authorizer, so SECURITY_DISABLED, as Kafka answers without one.

v1: pattern types.  v2: flexible.  v3: user resources.  Source: AclApis.scala `handleDescribeAcls`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext


async def handle_describe_acls(_ctx: RequestContext, _request: Any) -> Fields:
    """Say that there are no ACLs to describe."""
    return {
        "error_code": ErrorCode.security_disabled,
        "error_message": "No Authorizer is configured on the broker",
        "resources": [],
    }


API: Final = Api(29, "DescribeAcls", range(1, 4), handle_describe_acls)
