"""Requests of many elements: few of them are objects at once.

INV-HLR1 a request that has more elements than are read at once is decoded once it has one of LARGE_REQUESTS_MAX places, and keeps it until it is
         answered: as objects it takes up to 25 times its bytes, which no budget counts. One that lists has its place among those instead (INV-HD10)
INV-HLR2 it leaves its place before what others may draw out: once it is forwarded and none of it is held but its bytes; or is carried out as far as it can be
         here, and waits for those it shares a group, a log or a connection with (Produce, Fetch, JoinGroup, SyncGroup, commits of offsets). Who may do
         none of that has been refused by then, in its place
While nobody leads, a change waits with its place, for LEADER_WAIT_MS at most.
Not here: how those who wait take turns (`request_places`), one error for all that such a request names (`whole_errors`).
"""

from typing import Any

from region_broker.handlers.dispatch.request_places import RequestPlace
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.wire.codec.bounded import ManyElements
from region_broker.wire.codec.requests import decode_request, request_pieces
from region_broker.wire.cooperative_yield import run_yielding


async def decoded(ctx: RequestContext, api_name: str, body: memoryview) -> Any:
    """Return a request, read at once or in its turn; raises `DecodeRefused`, `UnknownSchema` and, where it waited in vain, `CloseConnection`."""
    try:
        return decode_request(ctx.api_key, ctx.version, body)
    except ManyElements:
        return await decoded_in_turn(ctx, api_name, body)


async def decoded_in_turn(ctx: RequestContext, api_name: str, body: memoryview) -> Any:
    """Return a request of many elements, read in pieces once it has its place (INV-HLR1); it is left by `ctx.leave_large`."""
    ctx.is_large = True
    if ctx.listing is None or not ctx.listing.is_taken:
        if ctx.large is None:
            ctx.large = RequestPlace(ctx.services.turns.large, api_name, ctx.asked_by)
        await ctx.large.take()
    return await run_yielding(request_pieces(ctx.api_key, ctx.version, body))
