"""Changes of users and ACLs, made while who asks may make them.

INV-HAC1 a change of access is made from the very access that it was judged by, or judged anew: who may change it no more changes nothing
         1. Somebody's right to change ACLs is taken away. 2. A request of that one was judged before, and waits behind that. 3. It would give
         the right back.
INV-HAC2 all changes of access that come at once at this node take one turn, in the order in which they came, whatever API asks: none of them comes
         between another one's judgement and its change, where it would be judged anew again and again. Changes of tokens, which take no right, take
         turns among themselves before (`sasl.changing`): one of them at most stands before an administrator's
         1. Who holds a right renews a token all the time. 2. That right is taken away: judged, the change waits behind a renewal, and is
         refused a round of the quorum later. 3. Judged anew, it waits behind the next one.
Not here: what changes (each API's file), where it is kept (`controller.access_commands`).
"""

from collections.abc import Awaitable, Callable
from typing import Any, Final, TypeVar

from kio.schema.errors import ErrorCode

from region_broker.controller.access_commands import ACCESS_CHANGED, ACCESS_TOO_LARGE
from region_broker.controller.feature_levels import NOT_SUPPORTED
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.controller.refusals import COMMAND_TOO_LARGE
from region_broker.handlers.dispatch.authorizing import refusal
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.limits import CHANGE_ATTEMPTS
from region_broker.security.access import Access, AccessChange

Made = TypeVar("Made")
Judge = Callable[[Access], Awaitable[tuple[AccessChange | None, Made] | ErrorCode]]
"""Returns what changes, None where nothing does, and what is answered then; or why nothing may."""

_ERRORS: Final = {
    NOT_ACTING: ErrorCode.not_controller,
    NOT_SUPPORTED: ErrorCode.unsupported_version,
    ACCESS_TOO_LARGE: ErrorCode.policy_violation,
    COMMAND_TOO_LARGE: ErrorCode.policy_violation,
    ACCESS_CHANGED: ErrorCode.request_timed_out,
}


def refused_as(refused: CommandRefused) -> tuple[ErrorCode, str]:
    """Return Kafka's error and the text of a change that was refused."""
    return _ERRORS.get(refused.code, ErrorCode.invalid_request), refused.reason


async def change_as_judged(services: Services, judge: Judge[Made]) -> Made | ErrorCode:
    """Change access by what `judge` makes of that which is there, anew where other access came between; return what it says.

    Raises `CommandRefused`, with ACCESS_CHANGED where other access came between again and again, and what else `change_access` raises.
    """
    async with services.access_turn:  # INV-HAC2
        return await _changed(services, judge)


async def _changed(services: Services, judge: Judge[Made]) -> Made | ErrorCode:
    metadata = services.metadata
    for left in reversed(range(CHANGE_ATTEMPTS)):
        access = metadata.image.access
        judged = await judge(access)
        if isinstance(judged, ErrorCode):
            return judged
        change, made = judged
        if change is None:
            return made
        try:
            await metadata.change_access(change, access.number)
        except CommandRefused as refused:
            if refused.code == ACCESS_CHANGED and left:
                continue
            raise
        return made
    raise AssertionError("the last attempt returns or raises")


async def changed_while_allowed(
    ctx: RequestContext, request: Any, change: AccessChange
) -> ErrorCode | None:
    """Make a change, whatever else was changed meanwhile; return why who asks may not, else None; raises as `change_as_judged`."""

    async def judge(_access: Access) -> tuple[AccessChange, None] | ErrorCode:
        denied = refusal(ctx, request)
        return (change, None) if denied is None else denied

    return await change_as_judged(ctx.services, judge)
