"""DescribeGroups (15), versions 0-6.  v3: operations.  v4: instance ids.  v6: GROUP_ID_NOT_FOUND.

Before v6 an unknown group is described as Dead without an error (KIP-1043); to this API, so is a group of
the new protocol: ConsumerGroupDescribe tells of it.
"""

from typing import Any, Final

from region_broker.groups.messages import DescribedMember, GroupDescription
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.answer_budget import (
    TOO_LARGE,
    TOO_LARGE_TEXT,
    check_count,
    described,
)
from region_broker.handlers.dispatch.authorizing import GROUP_DENIED, may
from region_broker.handlers.dispatch.operations import NOT_ASKED
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, NONE, group_operations
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding, look_up_rows


async def handle_describe_groups(ctx: RequestContext, request: Any) -> Fields:
    """Return the groups asked for."""
    asked = bool(getattr(request, "include_authorized_operations", False))
    check_count("DescribeGroups", len(request.groups))

    async def describe(group_id: str, yielding: CooperativeYield) -> Fields:
        if not may(ctx, Operation.DESCRIBE, ResourceType.GROUP, group_id):
            return _refused(group_id, GROUP_DENIED)
        await yielding.row(look_up_rows(group_id))
        group = ctx.services.groups.describe(group_id)
        members = await each_yielding(group.members, _member, yielding)
        missing = group.verdict is GroupVerdict.GROUP_NOT_FOUND
        error_code = NONE if missing and ctx.version < 6 else ERROR_OF[group.verdict]
        operations = group_operations(ctx, group_id, asked=asked and error_code == NONE)
        return _row(group, error_code, members, operations)

    return {"groups": await described(ctx, request.groups, describe, _too_large)}


def _row(
    group: GroupDescription, error_code: int, members: list[Fields], operations: int
) -> Fields:
    return {
        "error_code": error_code,
        "error_message": group.message,
        "group_id": group.group_id,
        "group_state": group.state,
        "protocol_type": group.protocol_type,
        "protocol_data": group.protocol_name,
        "members": members,
        "authorized_operations": operations,
    }


def _member(member: DescribedMember) -> Fields:
    return {
        "member_id": member.member_id,
        "group_instance_id": member.instance_id,
        "client_id": member.client_id,
        "client_host": member.client_host,
        "member_metadata": member.metadata,
        "member_assignment": member.assignment,
    }


def _too_large(group_id: str) -> Fields:
    return _refused(group_id, TOO_LARGE, TOO_LARGE_TEXT)


def _refused(group_id: str, error_code: int, text: str | None = None) -> Fields:
    none = GroupDescription(GroupVerdict.OK, group_id, message=text)
    return _row(none, error_code, [], NOT_ASKED)


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"groups": [_refused(group_id, error_code) for group_id in request.groups]}


API: Final = Api(
    key=15,
    name="DescribeGroups",
    versions=range(7),
    handle=handle_describe_groups,
    forward=True,
    describes=True,
    on_error=_on_error,
)
