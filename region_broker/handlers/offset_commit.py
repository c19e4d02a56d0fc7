"""OffsetCommit (8), versions 2-9.  v6: leader epoch.  v7: static members.  Generation -1: simple.

Answered only when the offsets are durable (B15). Versions 2-4 bring a retention time of their own,
which is ignored since KIP-211.
"""

from typing import Any, Final

from region_broker.groups.messages import CommitRequest, MemberIdentity
from region_broker.handlers.group_errors import (
    ERROR_OF,
    UNKNOWN_TOPIC_OR_PARTITION,
    by_topic,
    coordinator,
    is_known,
    offsets_of,
    partitions_of,
)
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext


async def handle_offset_commit(ctx: RequestContext, request: Any) -> Fields:
    """Commit offsets of one group."""
    outcome = await coordinator(ctx).commit_offsets(
        CommitRequest(
            group_id=request.group_id,
            offsets=offsets_of(ctx, request),
            who=MemberIdentity(request.member_id, getattr(request, "group_instance_id", None)),
            generation=request.generation_id_or_member_epoch,
        )
    )
    return by_topic(
        (tp, ERROR_OF[outcome.of(tp)] if is_known(ctx, tp) else UNKNOWN_TOPIC_OR_PARTITION)
        for tp in partitions_of(request)
    )


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return by_topic((tp, error_code) for tp in partitions_of(request))


API: Final = Api(
    key=8,
    name="OffsetCommit",
    versions=range(2, 10),
    handle=handle_offset_commit,
    forward=True,
    on_error=_on_error,
)
