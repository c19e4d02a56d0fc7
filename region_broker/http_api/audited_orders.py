"""Every order over HTTP is in the audit trail before it is carried out, and with what came of it behind.

INV-HAO1  whatever is not a question (GET, HEAD, OPTIONS) and has a route is an order: a new route is recorded without being named here
INV-HAO2  of a body only the fields in `_TOLD` are recorded, so a field that holds a secret is not, unless it is named there
INV-HAO3  what may have been done, as a whole or in part, is recorded as unknown, whatever the answer's status says to who asked: `refused` and
          `failed` say that nothing has changed
          1. An abort is decided, durably. 2. Its markers are not written in time, or its coordinator moves. 3. It is answered 409, or 503
Who asks is known from the door (`http_api.doors`), which is outside of this: who is refused there orders nothing.
Not here: what an order changes in the metadata, which is recorded by itself, with the same request id (`controller.audited_commands`).
"""

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

import msgspec
import orjson
from aiohttp import web
from aiohttp.typedefs import Middleware

from region_broker.http_api.doors import IDENTITY
from region_broker.http_api.problems import PROBLEM_TYPE, problem
from region_broker.security.audit.events import (
    Actor,
    AuditEvent,
    Detail,
    Kind,
    Outcome,
    acting_as,
)
from region_broker.security.audit.trail import (
    AuditTrail,
    AuditUnwritable,
    Recorded,
    told_unless_said,
)
from region_broker.security.identity import ANONYMOUS

_QUESTIONS: Final = frozenset({"GET", "HEAD", "OPTIONS"})
_TOLD: Final = frozenset(
    {
        "accept_behind", "confirm", "domain", "dry_run", "http", "kafka", "level", "node_id", "partition", "peer", "rack", "start_offset",
        "to", "topic", "transactional_id", "unreached",
    }
)  # fmt: skip
"""Fields of orders that are recorded (INV-HAO2)."""
_MAY_BE_DONE: Final[Mapping[str, frozenset[str]]] = {
    "/v1/transactions/abort": frozenset({"busy", "no-coordinator"}),
    "/v1/cluster/remove": frozenset({"membership-unchanged"}),
}
"""Codes of answers to what had begun, by path; where it had not begun, too, which nobody tells apart here (INV-HAO3)."""
_JSON: Final = "application/json"

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class _Order(msgspec.Struct, frozen=True):
    """A request that is an order; `Acting`."""

    by: Actor

    def actor(self) -> Actor:
        """See `Acting`."""
        return self.by


def audited(trail: AuditTrail) -> Middleware:
    """Return the middleware that records orders in `trail`, and carries none out that it cannot record."""
    count = 0

    @web.middleware
    async def record(request: web.Request, handler: Handler) -> web.StreamResponse:
        nonlocal count
        if not trail.is_on or request.method in _QUESTIONS or request.match_info.http_exception:
            return await handler(request)
        count += 1
        order = _Order(_actor(request, count))
        with acting_as(order):
            try:
                recorded = await trail.intended(await _event(request, order.by))
            except AuditUnwritable as error:
                return problem(503, "audit-unwritable", f"nothing has changed: {error}")
            with told_unless_said(recorded):
                return await _carried_out(request, handler, recorded)

    return record


async def _carried_out(
    request: web.Request, handler: Handler, recorded: Recorded
) -> web.StreamResponse:
    try:
        response = await handler(request)
    except web.HTTPException as error:
        recorded.ended(_outcome(error.status), str(error.status))
        raise
    told_by = _told_by(response)
    is_in_doubt = response.status >= 300 and told_by in _MAY_BE_DONE.get(request.path, ())
    outcome = Outcome.UNKNOWN if is_in_doubt else _outcome(response.status)
    recorded.ended(outcome, f"{response.status} {told_by}".rstrip())
    return response


def _actor(request: web.Request, count: int) -> Actor:
    """Return who asks; the request id is the peer's address, and which of this node's orders it is."""
    peer = request.transport.get_extra_info("peername") if request.transport else None
    host, port = (str(peer[0]), peer[1]) if peer else (request.remote or "", 0)
    identity = request.get(IDENTITY, ANONYMOUS)
    if not identity.host:
        identity = msgspec.structs.replace(identity, host=host)
    return Actor.of(identity, f"http {host}:{port}#{count}")


async def _event(request: web.Request, actor: Actor) -> AuditEvent:
    return AuditEvent(
        kind=Kind.ORDER,
        operation=f"{request.method} {request.path}",
        outcome=Outcome.INTENDED,
        actor=actor,
        resource_type="HTTP",
        resource=request.path,
        details=await _details(request),
    )


async def _details(request: web.Request) -> Mapping[str, Detail]:
    """Return the fields of the body that may be told; a body that is none is judged by who carries the order out."""
    if request.content_type != _JSON:
        return {}
    try:
        body = msgspec.json.decode(await request.read())
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {"body": "no JSON"}
    return told(body)


def told(body: Any) -> Mapping[str, Detail]:
    """Return the fields of a body that are recorded, and the names of none that are not."""
    if not isinstance(body, dict):
        return {}
    return {
        key: value
        for key, value in body.items()
        if key in _TOLD and isinstance(value, str | int | bool)
    }


def _outcome(status: int) -> Outcome:
    if status < 300:
        return Outcome.DONE
    if status == 504:
        return Outcome.UNKNOWN
    return Outcome.REFUSED if status < 500 else Outcome.FAILED


def _told_by(response: web.StreamResponse) -> str:
    """Return the code of a problem, or the operation that was begun; "" of what has neither."""
    body = response.body if isinstance(response, web.Response) else None
    if not isinstance(body, bytes) or response.content_type not in {_JSON, PROBLEM_TYPE}:
        return ""
    found = orjson.loads(body)
    if not isinstance(found, dict):
        return ""
    told_by = found.get("code") if response.status >= 300 else found.get("operation_id")
    return told_by if isinstance(told_by, str) else ""
