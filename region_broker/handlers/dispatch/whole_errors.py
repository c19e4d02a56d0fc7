"""One error for all that a request asks for: such an answer goes over all of it, however much a client names.

INV-HWE1  of a large request it is made in a thread, one at a time at a node: many at once would take the threads that the log of the quorum, the
          audit trail and logins wait for, as patterns would (INV-HLT1); in the turn of who asks. Who is cut off gives the turn back when the thread has
          ended. Who waits for it keeps its place among large requests, or lists: so few wait at once, and what they hold is bounded
Not here: what such an answer looks like (`Api.on_error` of each API).
"""

import asyncio
from collections.abc import Callable
from typing import Any

from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.ports.unbroken import to_its_end


async def error_for_all(
    ctx: RequestContext, request: Any, error_code: int,
    on_error: Callable[[RequestContext, Any, int], Fields] | None,
) -> Fields:  # fmt: skip
    """Return what `on_error` builds, which reads nothing but what it is given here; there must be one."""
    assert on_error is not None, "such a request has no answer of errors"
    if not ctx.is_large:
        return on_error(ctx, request, error_code)
    async with ctx.services.turns.errors.turn(ctx.asked_by):
        return await to_its_end(asyncio.to_thread(on_error, ctx, request, error_code))
