"""DescribeGroups (15), versions 0-6.  v3: operations.  v4: instance ids.  v6: GROUP_ID_NOT_FOUND.

Before v6 an unknown group is described as Dead without an error (KIP-1043); to this API, so is a group of
the new protocol: ConsumerGroupDescribe tells of it.
"""

from typing import Any, Final

from region_broker.groups.messages import GroupDescription
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.group_errors import ERROR_OF, NONE, coordinator, group_operations
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext


async def handle_describe_groups(ctx: RequestContext, request: Any) -> Fields:
    """Return the groups asked for."""
    asked = bool(getattr(request, "include_authorized_operations", False))
    operations = group_operations(asked=asked)
    found = [coordinator(ctx).describe(group_id) for group_id in request.groups]
    return {"groups": [_group(ctx, group, operations) for group in found]}


def _group(ctx: RequestContext, group: GroupDescription, operations: int) -> dict[str, Any]:
    missing = group.verdict is GroupVerdict.GROUP_NOT_FOUND
    return {
        "error_code": NONE if missing and ctx.version < 6 else ERROR_OF[group.verdict],
        "error_message": group.message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "client_id": member.client_id,
                "client_host": member.client_host,
                "member_metadata": member.metadata,
                "member_assignment": member.assignment,
            }
            for member in group.members
        ],
        "authorized_operations": operations,
    }


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    operations = group_operations(asked=False)
    none = [GroupDescription(GroupVerdict.OK, group_id) for group_id in request.groups]
    rows = [_group(ctx, group, operations) | {"error_code": error_code} for group in none]
    return {"groups": rows}


API: Final = Api(
    key=15,
    name="DescribeGroups",
    versions=range(7),
    handle=handle_describe_groups,
    forward=True,
    on_error=_on_error,
)
