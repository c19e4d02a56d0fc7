"""The HTTP server of a node: one aiohttp application with limits, and the middleware that all routes share.

A request is bounded in size (line, headers, body) and in time; beyond it gets an answer that says so. Every error is
problem+json, also those of aiohttp itself (RFC 9457). A failing request harms no other one.

INV-HBE1  no body is unpacked, whoever sends it: some kB of it are GiB unpacked, also where the door has answered and only the rest is read
INV-HBE2  a head is bounded as a whole, not each field alone: there may be many, and one letter beyond ASCII makes of each its fourfold
INV-HBE3  of one connection one request is read while another one is served: what is sent ahead stays in its socket

Not here: what the routes answer (`routes_health`, `routes_regions`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Final

from aiohttp import hdrs, web, web_protocol
from aiohttp.typedefs import Middleware
from prometheus_client import CollectorRegistry

from region_broker.http_api.audited_orders import audited
from region_broker.http_api.doors import IDENTITY, Doors, guarded, shown, while_allowed
from region_broker.http_api.first_bytes import Bounds, FirstBytesSite, connection_of
from region_broker.http_api.parse_log import parser_log
from region_broker.http_api.ports import RegionApi
from region_broker.http_api.problems import problem
from region_broker.http_api.region_metrics import RegionCollector
from region_broker.http_api.routes_health import Check, add_health_routes
from region_broker.http_api.routes_regions import add_region_routes
from region_broker.limits import WRITE_TIMEOUT_MS
from region_broker.ports.network import OnFailedHandshake, TlsContexts, unheard
from region_broker.security.audit.trail import NO_AUDIT, AuditTrail

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpLimits:
    """Bounds of one request; sizes in bytes, times in ms."""

    body_bytes_max: int = 64 * 1024
    line_bytes_max: int = 4 * 1024
    header_bytes_max: int = 8 * 1024
    headers_max: int = 64
    head_bytes_max: int = 32 * 1024
    request_timeout_ms: int = 30_000
    keepalive_timeout_ms: int = 30_000
    write_timeout_ms: int = WRITE_TIMEOUT_MS
    shutdown_timeout_ms: int = 1_000


DEFAULT_LIMITS: Final = HttpLimits()
OPEN_DOORS: Final = Doors()
_log: Final = logging.getLogger("tidemark.http")
web_protocol.MAX_MSG_QUEUE_SIZE = 1  # INV-HBE3: aiohttp reads 32 ahead, and has no argument for it


def make_app(  # noqa: PLR0913 - the rest by keyword
    api: RegionApi,
    checks: Mapping[str, Check],
    registry: CollectorRegistry,
    limits: HttpLimits = DEFAULT_LIMITS,
    *,
    doors: Doors = OPEN_DOORS,
    warning: Callable[[], str] = lambda: "",
    audit: AuditTrail = NO_AUDIT,
) -> web.Application:
    """Return the application. `checks` are named readiness checks; None or a reason each. `warning`: what `/readyz` says besides.

    `audit`: where orders are recorded.
    """
    app = bounded(limits, doors, audit)

    def remark() -> str:
        """Records are served, and changes are not: that is no reason to send clients elsewhere."""
        return "; ".join(filter(None, (api.remark(), audit.problem())))

    registry.register(RegionCollector(api))
    add_health_routes(app, {"region": api.not_ready, **checks}, registry, remark, warning=warning)
    add_region_routes(app, api)
    return app


def bounded(
    limits: HttpLimits, doors: Doors = OPEN_DOORS, audit: AuditTrail = NO_AUDIT
) -> web.Application:
    """Return an application without routes, that bounds requests, lets in whom `doors` do, and whose errors are problems."""
    app = web.Application(
        client_max_size=limits.body_bytes_max,
        middlewares=[
            _errors_as_problems,
            _head_limit(limits.head_bytes_max),
            _time_limit(limits.request_timeout_ms),
            guarded(doors),
            _no_packed_body,
            audited(audit),
            while_allowed,
            _holding_its_place,  # the last, so who is not let in, or is slow to send, holds none
        ],
    )
    app.on_response_prepare.append(_say_no_version)
    return app


async def _say_no_version(_request: web.Request, response: web.StreamResponse) -> None:
    response.headers[hdrs.SERVER] = "tidemark"
    if isinstance(response, web.HTTPException):
        # aiohttp answers some by itself, as an `Expect` that nobody fulfils: the frame that does so holds it (INV-HPL2).
        response.__traceback__ = None


@web.middleware
async def _errors_as_problems(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except web.HTTPException as error:
        if error.status < 400:
            raise
        code = error.reason.lower().replace(" ", "-")
        response = problem(error.status, code, error.text or error.reason)
        allow = error.headers.get("Allow")
        if allow is not None:
            response.headers["Allow"] = allow
        if error.status == 413:
            response.force_close()  # what is still to come of it may be thrown away (INV-HFB6)
        # The frames of its traceback hold the request, and that holds it where no route is found (INV-PN7).
        error.__traceback__ = None
        return response
    except Exception as error:  # noqa: BLE001 - it is logged, and harms no other request
        has_left = isinstance(error, ConnectionError) and request.transport is None
        if not has_left:
            _log.exception("%s %s failed", shown(request.method), shown(request.path))
        error.__traceback__ = None  # the body keeps the error of who left within it, and the frames keep the body (INV-PN7)
        detail = "an error in this node, which its log tells; what was ordered may have begun: ask GET /v1/region"
        return problem(500, "internal-error", detail)


def _time_limit(timeout_ms: int) -> Middleware:
    @web.middleware
    async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                return await handler(request)
        except TimeoutError:
            detail = f"no answer within {timeout_ms} ms; it may still take effect"
            return problem(504, "timed-out", detail)

    return limit


def _head_limit(bytes_max: int) -> Middleware:
    @web.middleware
    async def limit(request: web.Request, handler: Handler) -> web.StreamResponse:
        if sum(len(name) + len(value) + 4 for name, value in request.raw_headers) <= bytes_max:
            return await handler(request)
        detail = f"the headers have more than {bytes_max} bytes together: send fewer of them, or a shorter token"
        response = problem(431, "headers-too-large", detail)
        response.force_close()
        return response

    return limit


@web.middleware
async def _no_packed_body(request: web.Request, handler: Handler) -> web.StreamResponse:
    coding = request.headers.get(hdrs.CONTENT_ENCODING, "identity")
    if coding.lower() != "identity":
        detail = f"a body in Content-Encoding {shown(coding)} is not read: send it as it is"
        return problem(415, "content-encoding-not-read", detail)
    return await handler(request)


@web.middleware
async def _holding_its_place(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Let the connection give way to nobody meanwhile (INV-HFB3)."""
    connection = connection_of(request.transport)
    if connection is None:
        return await handler(request)
    connection.request_began(is_known=not request[IDENTITY].is_anonymous)
    try:
        return await handler(request)
    finally:
        connection.request_ended()


class HttpServer:
    """Binds an application; `start`, then `stop`."""

    def __init__(
        self, app: web.Application, limits: HttpLimits = DEFAULT_LIMITS,
        *, tls: TlsContexts | None = None, on_failed: OnFailedHandshake = unheard,
    ) -> None:  # fmt: skip
        """Serve `app`; nothing is bound yet. `tls`: speak TLS, and tell `on_failed` of handshakes that failed."""
        self._tls = tls
        self._on_failed = on_failed
        self._bounds = Bounds(
            silence_ms=limits.keepalive_timeout_ms,
            write_timeout_ms=limits.write_timeout_ms,
            unended_bytes_max=limits.body_bytes_max
            + limits.head_bytes_max,  # a body, and the head behind it
        )
        self._runner = web.AppRunner(
            app,
            access_log=None,
            logger=parser_log(),
            handle_signals=False,
            keepalive_timeout=limits.keepalive_timeout_ms / 1000,
            shutdown_timeout=limits.shutdown_timeout_ms / 1000,
            max_line_size=limits.line_bytes_max,
            max_field_size=limits.header_bytes_max,
            max_headers=limits.headers_max,
            auto_decompress=False,  # INV-HBE1
        )

    async def start(self, host: str, port: int) -> tuple[str, int]:
        """Bind and serve, and return the address; raises OSError when the port is not free."""
        await self._runner.setup()
        site = FirstBytesSite(
            self._runner, host, port, self._bounds, tls=self._tls, on_failed=self._on_failed
        )
        try:
            await site.start()
        except OSError:
            await self._runner.cleanup()
            raise
        bound: tuple[str, int] = self._runner.addresses[0][:2]
        return bound

    async def stop(self) -> None:
        """Stop serving; requests under way get a moment to end."""
        await self._runner.cleanup()
