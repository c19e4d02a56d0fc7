"""LeaveGroup (13), versions 0-5.  v3: several members at once, also by instance id (KIP-345)."""

from typing import Any, Final

from region_broker.groups.messages import MemberIdentity
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF


async def handle_leave_group(ctx: RequestContext, request: Any) -> Fields:
    """Remove members; before v3 the one member's error is the answer's."""
    batched = ctx.version >= 3
    if batched:
        check_count("LeaveGroup", len(request.members))
    leavers = (
        [MemberIdentity(who.member_id, who.group_instance_id) for who in request.members]
        if batched
        else [MemberIdentity(request.member_id)]
    )
    outcome = await ctx.services.groups.leave(request.group_id, leavers)
    if not batched:
        verdict = outcome.verdict
        if verdict is GroupVerdict.OK:
            verdict = outcome.members[0]
        return {"error_code": ERROR_OF[verdict]}
    return {
        "error_code": ERROR_OF[outcome.verdict],
        "members": [
            {
                "member_id": who.member_id,
                "group_instance_id": who.instance_id,
                "error_code": ERROR_OF[verdict],
            }
            for who, verdict in zip(leavers, outcome.members, strict=False)
        ],
    }


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code, "members": []}


API: Final = Api(
    key=13,
    name="LeaveGroup",
    versions=range(6),
    handle=handle_leave_group,
    forward=True,
    on_error=_on_error,
)
