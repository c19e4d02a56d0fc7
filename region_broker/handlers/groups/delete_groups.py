"""DeleteGroups (42), versions 0-2 (KIP-229): groups without members go, with all their offsets."""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.authorizing import GROUP_DENIED, may
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups.errors import ERROR_OF
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, look_up_rows


async def handle_delete_groups(ctx: RequestContext, request: Any) -> Fields:
    """Delete each group or say why not; one that is named twice is answered once."""
    names = dict.fromkeys(str(name) for name in request.groups_names)
    if len(names) > ADMIN_ITEMS_MAX:
        return await error_for_all(ctx, request, ErrorCode.invalid_request, _on_error)
    groups = ctx.services.groups
    rows: list[Fields] = []
    yielding = CooperativeYield.of_a_write()
    for name in names:
        await yielding.row(1 + look_up_rows(name))
        error_code = int(GROUP_DENIED)
        if may(ctx, Operation.DELETE, ResourceType.GROUP, name):
            error_code = ERROR_OF[await groups.delete_group(name)]
        rows.append({"group_id": name, "error_code": error_code})
    return {"results": rows}


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    names = dict.fromkeys(str(name) for name in request.groups_names)
    return {"results": [{"group_id": name, "error_code": error_code} for name in names]}


API: Final = Api(
    42, "DeleteGroups", range(3), handle_delete_groups, forward=True, on_error=_on_error
)
