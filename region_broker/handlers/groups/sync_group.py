"""SyncGroup (14), versions 0-5.  v3: static members.  v5: protocol type and name, both ways."""

from collections.abc import Awaitable
from dataclasses import replace
from typing import Any, Final

from region_broker.groups.messages import SyncOutcome, SyncRequest
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.answer_budget import check_count
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.groups.errors import ERROR_OF, REBALANCE_IN_PROGRESS


def handle_sync_group(ctx: RequestContext, request: Any) -> Awaitable[Fields]:
    """Return the member's assignment; answered when the leader's is durable."""
    check_count("SyncGroup", len(request.assignments))
    synced = ctx.services.groups.sync(
        request.group_id,
        SyncRequest(
            member_id=request.member_id,
            instance_id=getattr(request, "group_instance_id", None),
            generation=request.generation_id,
            protocol_type=getattr(request, "protocol_type", None),
            protocol_name=getattr(request, "protocol_name", None),
            assignments=tuple(
                (item.member_id, bytes(item.assignment)) for item in request.assignments
            ),
        ),
    )
    return _fields(synced)


async def _fields(synced: Awaitable[SyncOutcome]) -> Fields:
    """A coordinator that loads has lost the rebalance: the member shall join again (as Kafka)."""
    outcome = await synced
    loading = outcome.verdict is GroupVerdict.LOADING
    return {
        "error_code": REBALANCE_IN_PROGRESS if loading else ERROR_OF[outcome.verdict],
        "protocol_type": outcome.protocol_type,
        "protocol_name": outcome.protocol_name,
        "assignment": outcome.assignment,
    }


def _kept(request: Any) -> Any:
    return replace(request, assignments=())


def _on_error(_ctx: RequestContext, _request: Any, error_code: int) -> Fields:
    return {
        "error_code": error_code,
        "protocol_type": None,
        "protocol_name": None,
        "assignment": b"",
    }


API: Final = Api(
    key=14,
    name="SyncGroup",
    versions=range(6),
    handle=handle_sync_group,
    forward=True,
    waits=True,
    kept=_kept,
    on_error=_on_error,
)
