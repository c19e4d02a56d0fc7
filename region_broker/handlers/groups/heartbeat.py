"""Heartbeat (12), versions 0-4.  v3: static members."""

from typing import Any, Final

from region_broker.groups.messages import MemberIdentity
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, NONE


async def handle_heartbeat(ctx: RequestContext, request: Any) -> Fields:
    """Keep a member alive.

    A coordinator that loads answers NONE, as Kafka's does: sessions start anew when it has loaded,
    and Java clients take COORDINATOR_LOAD_IN_PROGRESS for a fatal error here.
    """
    instance_id = getattr(request, "group_instance_id", None)
    verdict = await ctx.services.groups.heartbeat(
        request.group_id, MemberIdentity(request.member_id, instance_id), request.generation_id
    )
    return {"error_code": NONE if verdict is GroupVerdict.LOADING else ERROR_OF[verdict]}


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {"error_code": error_code}


API: Final = Api(
    key=12,
    name="Heartbeat",
    versions=range(5),
    handle=handle_heartbeat,
    forward=True,
    on_error=_on_error,
)
