"""ListGroups (16), versions 0-5.  v4: state filter (KIP-518).  v5: type filter (KIP-848)."""

from typing import Any, Final

from region_broker.groups.messages import GroupListing
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.authorizing import sees, sees_cluster
from region_broker.handlers.dispatch.registry import Api, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield


async def handle_list_groups(ctx: RequestContext, request: Any) -> Fields:
    """Return the groups, filtered by state and type without regard to case."""
    asked_states = getattr(request, "states_filter", ())
    asked_types = getattr(request, "types_filter", ())
    check_count("ListGroups", len(asked_states) + len(asked_types))
    states, types = set(map(str.lower, asked_states)), set(map(str.lower, asked_types))
    verdict, listings = ctx.services.groups.list()
    every = sees_cluster(ctx, Operation.DESCRIBE)
    yielding, rows = CooperativeYield(), []
    for group in listings:
        await yielding.row()
        is_asked = (not states or group.state.lower() in states) and (
            not types or group.kind in types
        )
        if is_asked and (
            every or sees(ctx, Operation.DESCRIBE, ResourceType.GROUP, group.group_id)
        ):
            rows.append(_row(group))
    return {"error_code": ERROR_OF[verdict], "groups": rows}


def _row(group: GroupListing) -> Fields:
    return {
        "group_id": group.group_id, "protocol_type": group.protocol_type,
        "group_state": group.state, "group_type": group.kind,
    }  # fmt: skip


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "groups": []}


API: Final = Api(
    key=16,
    name="ListGroups",
    versions=range(6),
    handle=handle_list_groups,
    forward=True,
    lists=always,
    on_error=_on_error,
)
