"""What the routes share that take an order about the region's metadata: its body, and the answer where the metadata refuse it.

An order must be sent as application/json, so no web page can give one by a plain form.
"""

from typing import Final, TypeVar

import msgspec
from aiohttp import web

from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable
from region_broker.controller.refusals import CommandRefused
from region_broker.http_api.problems import problem

_JSON: Final = "application/json"

Body = TypeVar("Body")


async def order_of(request: web.Request, kind: type[Body], example: str) -> Body | web.Response:
    """Return the body of an order, or the answer that says what is wrong with it, and shows an `example`."""
    if request.content_type != _JSON:
        return problem(415, "not-json", f"send the order as {_JSON}")
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        return problem(400, "bad-order", f"{error}; send {example}")


def metadata_problem(error: CommandRefused | MetadataUnwritable) -> web.Response:
    """Return the answer where the metadata refused a change, or cannot take one now."""
    if isinstance(error, CommandRefused):
        return problem(409, error.code, error.reason)
    if isinstance(error, MetadataInDoubt):
        return problem(504, "outcome-unknown", str(error))
    return problem(503, "metadata-unwritable", str(error))
