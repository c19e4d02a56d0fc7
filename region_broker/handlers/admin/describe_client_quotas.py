"""DescribeClientQuotas (48), versions 0-1: there are no quotas; a filter that Kafka refuses is refused.

v1: flexible.  Source: ClientQuotasImage.java `describe` (KIP-546).
"""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2
_USER, _CLIENT_ID, _IP = "user", "client-id", "ip"


async def handle_describe_client_quotas(_ctx: RequestContext, request: Any) -> Fields:
    """Answer with none, or what is wrong with the filter."""
    error, text = _problem(request.components)
    entries: list[Fields] | None = [] if error is ErrorCode.none else None
    return {"error_code": error, "error_message": text, "entries": entries}


def _problem(components: Sequence[Any]) -> tuple[ErrorCode, str]:
    seen: set[str] = set()
    for component in components:
        kind, how = str(component.entity_type), int(component.match_type)
        if not kind:
            return ErrorCode.invalid_request, "Invalid empty entity type."
        if kind in seen:
            text = f"Entity type {kind} cannot appear more than once in the filter."
            return ErrorCode.invalid_request, text
        if kind not in (_USER, _CLIENT_ID, _IP):
            return ErrorCode.unsupported_version, f"Unsupported entity type {kind:.200}"
        seen.add(kind)
        if how == _EXACT and component.match is None:
            text = "Request specified MATCH_TYPE_EXACT, but set match string to null."
            return ErrorCode.invalid_request, text
        if how in (_DEFAULT, _SPECIFIED) and component.match is not None:
            name = "DEFAULT" if how == _DEFAULT else "SPECIFIED"
            text = f"Request specified MATCH_TYPE_{name}, but also specified a match string."
            return ErrorCode.invalid_request, text
        if how not in (_EXACT, _DEFAULT, _SPECIFIED):
            return ErrorCode.invalid_request, f"Unknown match type {how}"
    if _IP in seen and len(seen) > 1:
        return ErrorCode.invalid_request, (
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return ErrorCode.none, ""


API: Final = Api(48, "DescribeClientQuotas", range(2), handle_describe_client_quotas)
