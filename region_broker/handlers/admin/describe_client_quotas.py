"""DescribeClientQuotas (48), versions 0-1: the limits of the entities that a filter names, as this region knows them.

Strict: entities that name exactly the types of the filter; else those that name them and perhaps others. A filter that Kafka refuses is
refused.  v1: flexible.  Source: ClientQuotasImage.java `describe` (KIP-546).
"""

from collections.abc import Sequence
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import Quota
from region_broker.security.quotas.entities import CLIENT_ID, IP, USER
from region_broker.wire.cooperative_yield import CooperativeYield

_EXACT, _DEFAULT, _SPECIFIED = 0, 1, 2


async def handle_describe_client_quotas(ctx: RequestContext, request: Any) -> Fields:
    """Answer with what there is, or with what is wrong with the filter."""
    error, text = _problem(request.components)
    if error is not ErrorCode.none:
        return {"error_code": error, "error_message": text, "entries": None}
    yielding = CooperativeYield()
    entries: list[Fields] = []
    for quota in ctx.services.metadata.image.access.quotas:
        await yielding.row()
        if _matches(quota, request.components, strict=bool(request.strict)):
            entries.append(_entry(quota))
    return {"error_code": error, "error_message": text, "entries": entries}


def _matches(quota: Quota, components: Sequence[Any], *, strict: bool) -> bool:
    named = dict(quota.entity)
    if strict and len(named) != len(components):
        return False
    return all(
        component.entity_type in named
        and (component.match_type == _SPECIFIED or named[component.entity_type] == component.match)
        for component in components
    )


def _entry(quota: Quota) -> Fields:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in quota.entity],
        "values": [{"key": key, "value": value} for key, value in sorted(quota.limits.items())],
    }


def _problem(components: Sequence[Any]) -> tuple[ErrorCode, str]:
    seen: set[str] = set()
    for component in components:
        kind, how = str(component.entity_type), int(component.match_type)
        if not kind:
            return ErrorCode.invalid_request, "Invalid empty entity type."
        if kind in seen:
            text = f"Entity type {kind} cannot appear more than once in the filter."
            return ErrorCode.invalid_request, text
        if kind not in (USER, CLIENT_ID, IP):
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
    if IP in seen and len(seen) > 1:
        return ErrorCode.invalid_request, (
            "Invalid entity filter component combination. IP filter component should not be used"
            " with user or clientId filter component."
        )
    return ErrorCode.none, ""


API: Final = Api(48, "DescribeClientQuotas", range(2), handle_describe_client_quotas, lists=always)
