"""Errors over HTTP: one shape, `application/problem+json` (RFC 9457).

Every error answer has type, title, status and detail; `code` is stable and for programs.
Not here: which errors there are.
"""

from typing import Any, Final

import orjson
from aiohttp import web

PROBLEM_TYPE: Final = "application/problem+json"
_TITLES: Final = {
    307: "Ask elsewhere",
    400: "Bad request",
    401: "Unknown caller",
    403: "Forbidden",
    404: "Not found",
    405: "Method not allowed",
    409: "Conflict",
    413: "Too large",
    415: "Unsupported media type",
    431: "Headers too large",
    500: "Internal error",
    503: "Not available",
    504: "Timed out",
}


def problem(status: int, code: str, detail: str, **more: Any) -> web.Response:
    """Return an RFC 9457 answer; `more` are extension members."""
    body = {
        "type": f"urn:tidemark:problem:{code}",
        "title": _TITLES.get(status, "Error"),
        "status": status,
        "code": code,
        "detail": detail,
        **more,
    }
    return web.Response(status=status, body=orjson.dumps(body), content_type=PROBLEM_TYPE)


def answer(body: Any, status: int = 200) -> web.Response:
    """Return `body` as JSON."""
    return web.Response(
        status=status, body=orjson.dumps(body), content_type="application/json", charset="utf-8"
    )
