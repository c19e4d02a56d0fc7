"""The door of the HTTP port: who asks, and whether that one may.

INV-HDO1  where anything is configured that says who somebody is, an unknown caller gets `/livez`, and whether the node is ready;
          every other path, also one that is not there, is answered 401
INV-HDO2  a wrong password, an unknown user, a wrong, ended or unknown token, and a header that is none are one answer, the same and slow
INV-HDO3  a password is taken over TLS, or from this machine; else anybody on the way could read it
INV-HDO4  no cookie is ever set or read. A browser that sends credentials by itself is no danger: orders are application/json, which no
          form sends, and one whose `Origin` is another host is refused
INV-HDO5  what a caller sends reaches logs without control characters, cut to `SHOWN_MAX`; and of refusals `TOLD_MAX` lines in
          `TOLD_WITHIN_MS`, the others as a number: a flood fills no disk
INV-HDO6  an order is judged again once its body is here and it is recorded: who may not any more orders nothing, however long that took
Not here: what a route needs (`needs`), how passwords are checked (`password_checks`), TLS itself.
"""

import base64
import binascii
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final, NamedTuple, Protocol
from urllib.parse import urlsplit

from aiohttp import hdrs, web

from idempotency.ports import Clock
from region_broker.http_api.needs import NO_ROUTE, Need, need_of
from region_broker.http_api.password_checks import PasswordChecks, SlowRefusals, TooManyLogins
from region_broker.http_api.problems import problem
from region_broker.security.access import CLUSTER_NAME, Operation, ResourceType
from region_broker.security.http_tokens import TOKEN_TYPE, HttpTokens, Role
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, acl_host, user
from region_broker.security.login import is_this_machine

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]

BY_TOKEN: Final = "TOKEN"  # noqa: S105 -- a mechanism
BY_PASSWORD: Final = "BASIC"  # noqa: S105 -- a mechanism
_MECHANISMS: Final = {"bearer": BY_TOKEN, "basic": BY_PASSWORD}
SHOWN_MAX: Final = 200
TOLD_MAX: Final = 20
TOLD_WITHIN_MS: Final = 10_000
_SAFE_METHODS: Final = frozenset({"GET", "HEAD"})
IN_BRIEF: Final = web.RequestKey("in_brief", bool)
IDENTITY: Final = web.RequestKey("identity", Identity)
SEES_TOPIC: Final[web.RequestKey[Callable[[str], bool]]] = web.RequestKey("sees_topic")
"""Tells of a topic that nobody named whether the caller may see it; without it all are seen."""

_log: Final = logging.getLogger("tidemark.http")


class Authorizer(Protocol):
    """Knows who may do what; as `security.authorizer` offers it."""

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        """Return whether `identity` may."""
        ...


class EverybodyMay:
    """No ACLs."""

    def allows(
        self, _identity: Identity, _operation: Operation, _resource_type: ResourceType, _name: str
    ) -> bool:
        """Return True."""
        return True


class Passed(NamedTuple):
    """What became of a request at the door, for the audit trail. `refused`: "" where it was let in.

    Of who is unknown `identity` has a mechanism if credentials were shown that prove nothing, and the name that they say.
    """

    identity: Identity
    method: str
    path: str
    refused: str


class _Caller(NamedTuple):
    identity: Identity
    role: Role | None = None


class _NotProved(Exception):
    """Credentials that prove nothing, or that nobody has judged; `tried`: whose they say they are."""

    def __init__(self, tried: Identity, *, is_judged: bool = True) -> None:
        super().__init__()
        self.tried = tried
        self.is_judged = is_judged


@dataclass(slots=True, kw_only=True)
class Doors:
    """What the door of a node goes by; the default lets everybody do everything.

    `is_closed`: something is configured that says who somebody is (INV-HDO1). `principal_of`: whom a client certificate (DER) names.
    """

    clock: Clock | None = None
    is_closed: bool = False
    tokens: HttpTokens | None = None
    passwords: PasswordChecks | None = None
    principal_of: Callable[[bytes], str] | None = None
    authorizer: Authorizer = field(default_factory=EverybodyMay)
    on_passed: Callable[[Passed], None] = lambda _passed: None
    on_refused: Callable[[str], None] = lambda _reason: None
    """Told of `unknown` callers, of a `forbidden` route, and of `cross-site` orders: for a counter."""


class _RefusalLog:
    """Tells refusals, and no more of them than somebody reads (INV-HDO5)."""

    def __init__(self, clock: Clock | None) -> None:
        self._clock = clock
        self._since_ms = self._told = self._untold = 0

    def tell(self, passed: Passed) -> None:
        now_ms = 0 if self._clock is None else self._clock.monotonic_ms()
        if now_ms - self._since_ms > TOLD_WITHIN_MS:
            if self._untold:
                _log.warning("%d more requests were refused", self._untold)
            self._since_ms, self._told, self._untold = now_ms, 0, 0
        if self._told >= TOLD_MAX:
            self._untold += 1
            return
        self._told += 1
        identity = passed.identity
        _log.warning(
            "%s %s of %s at %s was refused: %s",
            passed.method, passed.path, shown(identity.principal), identity.host, passed.refused,
        )  # fmt: skip


def guarded(doors: Doors) -> Any:
    """Return the middleware that lets nobody by whom `doors` do not."""
    guard = _Guard(doors)

    @web.middleware
    async def let_in(request: web.Request, handler: Handler) -> web.StreamResponse:
        caller = await guard.judged(request)
        if isinstance(caller, web.Response):
            return caller
        request[_GUARD] = guard
        request[IN_BRIEF] = not _may(caller, _need(request), request, doors)
        request[IDENTITY] = caller.identity
        sees_topic: Callable[[str], bool] = partial(_sees_topic, caller, doors)
        request[SEES_TOPIC] = sees_topic
        if _need(request).role is not None:
            doors.on_passed(_passed(request, caller.identity, ""))
        return await handler(request)

    return let_in


@web.middleware
async def while_allowed(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Carry an order out only if its caller may order it still, behind all that it waited for (INV-HDO6)."""
    guard = request.get(_GUARD)
    if guard is None or request.method in _SAFE_METHODS or request.match_info.http_exception:
        return await handler(request)
    await request.read()  # it is kept for the handler
    caller = await guard.judged(request)
    return caller if isinstance(caller, web.Response) else await handler(request)


class _Guard:
    """Judges requests by `doors`, and tells of those that it refuses."""

    def __init__(self, doors: Doors) -> None:
        self._doors = doors
        self._refusals = None if doors.clock is None else SlowRefusals(doors.clock)
        self._log = _RefusalLog(doors.clock)

    async def judged(self, request: web.Request) -> _Caller | web.Response:
        """Return who asks, if that one may as things stand now, or the answer that refuses."""
        doors = self._doors
        try:
            caller = await _caller_of(request, doors, self._refusals)
        except _NotProved as error:
            if error.is_judged:
                return self._unknown(request, error.tried)
            self._refuse(request, error.tried, "too-many-logins")
            return _too_many()
        need = _need(request)
        if not _may(caller, need, request, doors) and not _may_in_brief(caller, need, doors):
            if caller.identity.is_anonymous:
                return self._unknown(request, caller.identity)
            self._refuse(request, caller.identity, "forbidden")
            return problem(
                403, "forbidden", "you may not: whoever administers this cluster can say who may"
            )
        if request.method not in _SAFE_METHODS and _is_cross_site(request):
            self._refuse(request, caller.identity, "cross-site")
            return problem(403, "cross-site", "orders from pages of other hosts are refused")
        return caller

    def _refuse(self, request: web.Request, identity: Identity, reason: str) -> None:
        self._doors.on_refused(reason)
        passed = _passed(request, identity, reason)
        self._doors.on_passed(passed)
        self._log.tell(passed)

    def _unknown(self, request: web.Request, identity: Identity) -> web.Response:
        self._refuse(request, identity, "unknown")
        return _unknown(offers_basic=self._doors.passwords is not None)


_GUARD: Final = web.RequestKey("guard", _Guard)


def _too_many() -> web.Response:
    response = problem(
        503, "too-many-logins", "too many logins are being checked: wait, and try again"
    )
    response.headers[hdrs.RETRY_AFTER] = "1"
    return response


def _need(request: web.Request) -> Need:
    resource = request.match_info.route.resource
    return need_of(request.method, NO_ROUTE if resource is None else resource.canonical)


def _may(caller: _Caller, need: Need, request: web.Request, doors: Doors) -> bool:
    """Return whether the caller may have all of a route (INV-HND2)."""
    if need.role is None:
        return True
    if caller.role is not None:
        return caller.role.covers(need.role)
    if caller.identity.is_anonymous and doors.is_closed:
        return False
    return doors.authorizer.allows(caller.identity, need.operation, *need.resource(request.query))


def _sees_topic(caller: _Caller, doors: Doors, topic: str) -> bool:
    """Return whether the caller may be told of a topic (INV-HND4): a token whose role covers the route may, and who may describe all."""
    if caller.role is not None:
        return True
    allows = partial(doors.authorizer.allows, caller.identity, Operation.DESCRIBE)
    return allows(ResourceType.CLUSTER, CLUSTER_NAME) or allows(ResourceType.TOPIC, topic)


def _may_in_brief(caller: _Caller, need: Need, doors: Doors) -> bool:
    known = not caller.identity.is_anonymous or not doors.is_closed
    return need.in_brief and (known or not need.known_only)


async def _caller_of(request: web.Request, doors: Doors, refusals: SlowRefusals | None) -> _Caller:
    """Return who asks; raises `_NotProved` once that may be told."""
    host = acl_host(request.remote or "")
    header = request.headers.get(hdrs.AUTHORIZATION)
    if header is None:
        return _certified(request, doors, host)
    scheme, _, said = header.partition(" ")
    kind = _MECHANISMS.get(scheme.lower(), "HTTP")
    if kind == BY_TOKEN and (found := _of_token(said.strip(), doors, host)) is not None:
        return found
    tried, judge = Identity(ANONYMOUS_PRINCIPAL, host, kind), _nobody
    named = _Caller(tried)
    checks = doors.passwords
    if kind == BY_PASSWORD and checks is not None and _is_private(request, request.remote or ""):
        name, password = _name_and_password(said.strip())
        if name:
            tried = Identity(user(shown(name)), host, kind)
            named = _Caller(Identity(user(name), host, kind))
            if checks.knows(name, password):
                return named
            judge = partial(checks.proves, name, password)
    try:
        is_right = await (judge() if refusals is None else refusals.judged(host, judge))
    except TooManyLogins as error:
        raise _NotProved(tried, is_judged=False) from error
    if not is_right:
        raise _NotProved(tried)
    return named


async def _nobody() -> bool:
    return False


def _of_token(said: str, doors: Doors, host: str) -> _Caller | None:
    if doors.tokens is None or doors.clock is None:
        return None
    doors.tokens.look()
    row = doors.tokens.row_of(said, doors.clock.wall_ms())
    if row is None:
        return None
    return _Caller(Identity(f"{TOKEN_TYPE}:{row.name}", host, BY_TOKEN), row.role)


def _certified(request: web.Request, doors: Doors, host: str) -> _Caller:
    ssl_object = (
        None if request.transport is None else request.transport.get_extra_info("ssl_object")
    )
    der = None if ssl_object is None else ssl_object.getpeercert(binary_form=True)
    if der is None or doors.principal_of is None:
        return _Caller(Identity(ANONYMOUS_PRINCIPAL, host))
    return _Caller(Identity(doors.principal_of(der), host, "TLS"))


def _is_private(request: web.Request, host: str) -> bool:
    """Return whether nobody on the way reads what is said (INV-HDO3)."""
    return request.secure or is_this_machine(host)


def _name_and_password(said: str) -> tuple[str, str]:
    """Return both parts of RFC 7617's credentials; empty ones where there are none."""
    try:
        name, colon, password = base64.b64decode(said, validate=True).decode().partition(":")
    except (binascii.Error, ValueError):
        return "", ""
    return (name, password) if colon else ("", "")


def _unknown(*, offers_basic: bool) -> web.Response:
    response = problem(
        401,
        "unknown-caller",
        "say who you are: by a token, a password or a certificate that counts here",
    )
    response.headers.add(hdrs.WWW_AUTHENTICATE, 'Bearer realm="tidemark"')
    if offers_basic:
        response.headers.add(hdrs.WWW_AUTHENTICATE, 'Basic realm="tidemark", charset="UTF-8"')
    return response


def _passed(request: web.Request, identity: Identity, refused: str) -> Passed:
    return Passed(identity, shown(request.method), shown(request.path), refused)


def _is_cross_site(request: web.Request) -> bool:
    """Return whether a browser says that a page of another host sends this (INV-HDO4)."""
    if request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"}:
        return True
    origin = request.headers.get(hdrs.ORIGIN)
    try:
        return origin is not None and urlsplit(origin).netloc.lower() != request.host.lower()
    except ValueError:
        return True  # no browser sends what is no origin


def shown(text: str) -> str:
    """Return a caller's text as logs may show it (INV-HDO5)."""
    cut = text[:SHOWN_MAX]
    return "".join(letter if letter.isprintable() else "?" for letter in cut)
