"""Changes of users and ACLs, made while who asks may make them.

INV-HAC1 a change of access is made from the very access that it was judged by, or judged anew: who may change it no more changes nothing
         1. Somebody's right to change ACLs is taken away. 2. A request of that one was judged before, and waits behind that. 3. It would give
         the right back.
Not here: what changes (each API's file), where it is kept (`controller.access_commands`).
"""

from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.access_commands import ACCESS_CHANGED
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.authorizing import refusal
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.security.access import AccessChange

_ATTEMPTS: Final = 8


async def changed_while_allowed(
    ctx: RequestContext, request: Any, change: AccessChange
) -> ErrorCode | None:
    """Make a change, whatever else was changed meanwhile; return why who asks may not, else None.

    Raises `CommandRefused`, with ACCESS_CHANGED where other access came between again and again, and what else `change_access` raises.
    """
    metadata = ctx.services.metadata
    async with ctx.services.access_turn:
        for left in reversed(range(_ATTEMPTS)):
            number = metadata.image.access.number
            denied = refusal(ctx, request)
            if denied is not None:
                return denied
            try:
                await metadata.change_access(change, number)
            except CommandRefused as refused:
                if refused.code == ACCESS_CHANGED and left:
                    continue
                raise
            return None
    raise AssertionError("the last attempt returns or raises")
