"""The table of APIs: one `Api` per Kafka API that this node serves.

An API is served in a contiguous range of versions, each of which kio has a schema for. A write that reaches a region
that does not act is forwarded whole, never half executed here.
Not here: how a request gets here and leaves (`dispatch`, `wire.server`), what each API does (its own file).
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.wire.codec.gathered import AnswerBytes
from region_broker.wire.codec.schemas import has_schema
from region_broker.wire.connection import DESCRIBING_KEYS, LISTING_KEYS

Fields: TypeAlias = Mapping[str, Any]


class Written(NamedTuple):
    """An answer of a fast path, header included, and the names of the errors in it."""

    answer: AnswerBytes
    errors: Sequence[str] = ()


# `request` is what `wire.codec.requests` makes of the body; the answer is a version-neutral dict keyed by
# kio field names, or an already encoded body, or None when no answer is due (Produce with acks=0).
Handle: TypeAlias = Callable[[RequestContext, Any], Awaitable[Fields | bytes | Written | None]]
Finish: TypeAlias = Callable[[Written | Exception | None], None]
"""Takes the answer, None when none is due, or what went wrong; called once, on the event loop."""


Begin: TypeAlias = Callable[[RequestContext, Any, Finish], bool]
"""Serves a request without a task: it hands the answer to `Finish`, perhaps before it returns; or it returns False and
has done nothing: then `Api.handle` serves the request."""


@dataclass(frozen=True, slots=True)
class Api:
    """One Kafka API as served here.

    `on_error(ctx, request, error_code) -> fields` builds the answer that carries one error for
    everything that was asked (unsupported version, forwarding failed); None: such a request can only be
    answered by closing the connection. It reads nothing but these, as it may run in a thread (`whole_errors`).

    `is_own`: whether a request is this node's own affair: such a one is executed here even if others are forwarded.

    `not_here(ctx, request, error_code)` builds the answer of a node that does not lead the region's logs, where that says more than
    `on_error`, or there is no such: who leads (KIP-951). It gives way as handlers do (INV-HW2).

    `at_followers(ctx.services, request)`: whether a node that does not lead serves the request itself now, other than `not_led_here` says.

    `lists(request)`: whether an answer lists all that there is: few of those are made at once (INV-HD10). None: of no request.

    `describes`: its handler takes a place among those itself, once it knows that the answer is large (`described`, INV-AB3).

    `waits`: an answer may wait on other clients for long; the frame is handed back once it is decoded (INV-WQ4).

    `kept(request)`: what is kept of a decoded request while it waits: what it is judged by once more, and `on_error` reads (INV-HD11). `handle`
    of such an API is no coroutine function, and returns what holds no more of the request than it needs. None: all is.
    """

    key: int
    name: str
    versions: range
    handle: Handle
    forward: bool = False
    is_own: Callable[[Any], bool] | None = None
    waits: bool = False
    kept: Callable[[Any], Any] | None = None
    lists: Callable[[Any], bool] | None = None
    describes: bool = False
    on_error: Callable[[RequestContext, Any, int], Fields] | None = None
    begin: Begin | None = None
    not_here: Callable[[RequestContext, Any, int], Awaitable[Fields | Written]] | None = None
    at_followers: Callable[[Services, Any], bool] | None = None


def always(_request: Any) -> bool:
    """Say so of each request."""
    return True


@dataclass(frozen=True, slots=True)
class ApiTable:
    """The APIs by key; built once at start, from `handlers.apis.all_apis()` in production."""

    by_key: Mapping[int, Api]

    @classmethod
    def of(cls, *apis: Api) -> "ApiTable":
        """Return the table of these APIs; a key used twice is a programmer error."""
        by_key = {api.key: api for api in sorted(apis, key=lambda api: api.key)}
        assert len(by_key) == len(apis), "an API key is registered twice"
        for api in apis:
            assert (api.lists is None) == (api.key not in LISTING_KEYS), api.name
            assert api.describes == (api.key in DESCRIBING_KEYS), api.name
            unknown = [version for version in api.versions if not has_schema(api.key, version)]
            assert not unknown, (api.name, unknown)
        return cls(by_key)
