"""DescribeAcls (29), versions 1-3.  v1: pattern types (KIP-290).  v2: compact.  v3: user resources (KIP-373).

Source: AclApis.scala `handleDescribeAcls`, DescribeAclsResponse.java `aclsResources`.
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.access.acl_filters import (
    NO_AUTHORIZER,
    SECURITY_DISABLED,
    AclFilter,
    Malformed,
    matching,
    pattern,
    told,
)
from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_describe_acls(ctx: RequestContext, request: Any) -> Fields:
    """Return the ACLs that the filter means, by what they are about."""
    if not ctx.services.authorizer.in_force:
        return _refused(SECURITY_DISABLED, f"{NO_AUTHORIZER[:-1]} on the broker")
    try:
        asked = AclFilter.of(request)
    except Malformed as malformed:
        return _refused(ErrorCode.invalid_request, str(malformed))
    yielding = CooperativeYield()
    resources: dict[tuple[int, str, int], list[Fields]] = {}
    for acl in await matching(ctx.services.metadata.image.access.acls, asked, yielding):
        await yielding.row()
        resources.setdefault(pattern(acl), []).append(told(acl))
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resources": [
            {"resource_type": kind, "resource_name": name, "pattern_type": how, "acls": acls}
            for (kind, name, how), acls in resources.items()
        ],
    }


def _refused(error: int, text: str | None) -> Fields:
    return {"error_code": error, "error_message": text, "resources": []}


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return _refused(error_code, None)


API: Final = Api(
    29, "DescribeAcls", range(1, 4), handle_describe_acls, lists=always, on_error=_on_error
)
