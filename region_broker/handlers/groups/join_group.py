"""JoinGroup (11), versions 0-9.

v1: rebalance time-out of its own.  v4: MEMBER_ID_REQUIRED for new dynamic members (KIP-394).
v5: static members (KIP-345).  v7: protocol type, null protocol on errors.  v9: skip assignment.
"""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from region_broker.groups.messages import JoinOutcome, JoinRequest
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, duration_ms, sight_of
from region_broker.handlers.groups.names import client_host, client_id


def handle_join_group(ctx: RequestContext, request: Any) -> Awaitable[Fields]:
    """Join or rejoin; answered when the join phase ends."""
    check_count("JoinGroup", len(request.protocols))
    session_timeout_ms = duration_ms(request.session_timeout)
    has_own_timeout = ctx.version >= 1
    instance_id = getattr(request, "group_instance_id", None)
    joined = ctx.services.groups.join(
        request.group_id,
        JoinRequest(
            member_id=request.member_id,
            new_member_id="",
            instance_id=instance_id,
            client_id=client_id(ctx),
            client_host=client_host(ctx),
            session_timeout_ms=session_timeout_ms,
            rebalance_timeout_ms=(
                duration_ms(request.rebalance_timeout) if has_own_timeout else session_timeout_ms
            ),
            protocol_type=request.protocol_type,
            protocols=tuple((offer.name, bytes(offer.metadata)) for offer in request.protocols),
            must_know_member_id=ctx.version >= 4,
            may_skip_assignment=ctx.version >= 9,
            sight=sight_of(ctx),
        ),
    )
    return _fields(ctx, joined)


async def _fields(ctx: RequestContext, joined: Awaitable[JoinOutcome]) -> Fields:
    outcome = await joined
    no_protocol = None if ctx.version >= 7 else ""
    return {
        "error_code": ERROR_OF[outcome.verdict],
        "generation_id": outcome.generation,
        "protocol_type": outcome.protocol_type,
        "protocol_name": no_protocol if outcome.protocol_name is None else outcome.protocol_name,
        "leader": outcome.leader,
        "skip_assignment": outcome.skip_assignment,
        "member_id": outcome.member_id,
        "members": [
            {
                "member_id": member.member_id,
                "group_instance_id": member.instance_id,
                "metadata": member.metadata,
            }
            for member in outcome.members
        ],
    }


def _kept(request: Any) -> Any:
    kept = replace(request, protocols=())
    return replace(kept, reason=None) if hasattr(kept, "reason") else kept


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {
        "error_code": error_code,
        "generation_id": -1,
        "protocol_type": None,
        "protocol_name": None if ctx.version >= 7 else "",
        "leader": "",
        "skip_assignment": False,
        "member_id": request.member_id,
        "members": [],
    }


API: Final = Api(
    key=11,
    name="JoinGroup",
    versions=range(10),
    handle=handle_join_group,
    forward=True,
    waits=True,
    kept=_kept,
    on_error=_on_error,
)
