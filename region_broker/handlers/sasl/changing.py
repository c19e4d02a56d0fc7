"""A change of users or tokens as handlers ask for it: refusals and failures as Kafka's numbers.

INV-TKC1  what is judged by what is there changes nothing where other access came between: it is judged anew, as if it had come second
          1. A token is made to go, because somebody has stolen it. 2. The thief renews it; that is judged before the token has gone, and
          would put it back behind that.
Not here: what is changed (each API's file), where it is kept (`controller.access_commands`).
"""

from typing import Any

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.handlers.dispatch.access_changes import (
    Judge,
    Made,
    change_as_judged,
    changed_while_allowed,
    refused_as,
)
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.security.access import AccessChange


async def changed(
    ctx: RequestContext, request: Any, change: AccessChange
) -> tuple[ErrorCode, str | None]:
    """Change access; return NONE, or Kafka's error and a text."""
    try:
        denied = await changed_while_allowed(ctx, request, change)
    except CommandRefused as refused:
        return refused_as(refused)
    except MetadataUnwritable as failed:
        return unwritten(failed)
    return denied or ErrorCode.none, None


async def changed_as_judged(services: Services, judge: Judge[Made]) -> Made | ErrorCode:
    """Change tokens by what `judge` makes of the access that is there; return what is answered, or Kafka's error (INV-TKC1, INV-HAC2)."""
    try:
        async with services.tokens_turn:
            return await change_as_judged(services, judge)
    except CommandRefused as refused:
        return refused_as(refused)[0]
    except MetadataUnwritable as failed:
        return unwritten(failed)[0]
