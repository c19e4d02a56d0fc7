"""Requests that destroy something without changing the metadata: they are in the audit trail before they are carried out.

INV-DAR1  records deleted, groups and offsets deleted, and markers written by an administrator are recorded before; what changes the
          metadata is recorded there (`controller.audited_commands`)
INV-DAR3  who may delete none of what a request names is refused without an intent: it would else fill the disk of the trail, without which nothing
          is changed, by what it may not. Its refusals are recorded, as all are
INV-DAR5  a record names what who asks may delete of what a request names, each once; and where its principal has been told of at length within this
          second, no more than how much it is: what nobody may delete, or is named again and again, would fill that disk as well
INV-DAR2  of such a request `refused` says that nothing was done: where a part of it was, or nobody knows, that is recorded, with the errors
INV-DAR4  what a record says of a request is made of as many letters as a record may have, while others are served: a name of 32 kB beside each of
          100,000 partitions would be gigabytes, and 20,000 rows of 300 letters, of which a record has 200, 18 MB for each request that comes at once
Nothing here is for requests that only read or write records.
Not here: the handlers.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answered_errors import any_without_error, error_names
from region_broker.handlers.dispatch.authorizing import ERROR_OF, Need, may, sees
from region_broker.handlers.dispatch.registry import Api, Fields, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.security.audit.events import (
    DETAIL_CHARS_MAX,
    LEFT_OUT,
    Actor,
    AuditEvent,
    Detail,
    Kind,
    Outcome,
    acting_as,
    clipped,
)
from region_broker.security.audit.trail import told_unless_said
from region_broker.wire.cooperative_yield import CooperativeYield

Told = tuple[str, str, Mapping[str, Detail]]
"""Type and name of what it is done to, and how."""
_NAMED_MAX: Final = 5
_ROW_CHARS: Final = 3
"""Of a row beside its text in a record: its quotes, and a comma."""
_ANSWERED = Fields | bytes | Written | None
_MAY_BE_DONE: Final = frozenset(
    code.name
    for code in (
        ErrorCode.request_timed_out,
        ErrorCode.not_leader_or_follower,
        ErrorCode.kafka_storage_error,
        ErrorCode.coordinator_not_available,
        ErrorCode.concurrent_transactions,  # an abort is decided, and its markers are not written yet (INV-TN1)
    )
)
"""What is answered where it had begun, and its end is not known (P18); where it had not begun, too, which nobody tells apart here."""


Row = tuple[str, str]
"""By which name it is judged, and how it is told."""


class _Destroys(NamedTuple):
    """What is told of the requests of an API. `owner`: what its rows belong to, where that is one thing; else it is what they name.

    `needs`: what each of `names` is judged by, each by itself; where it is None the whole is (`authorizing.refusal`). `or_nothing`: who may do that with
    none of them is refused (INV-DAR3).
    """

    resource_type: ResourceType
    detail: str
    rows: Callable[[Any], Iterable[Row]]
    names: Callable[[Any], Iterable[str]] = lambda _request: ()
    needs: Need | None = None
    owner: Callable[[Any], str] | None = None
    or_nothing: bool = False


def _topics(request: Any) -> Iterable[str]:
    return (str(topic.name) for topic in request.topics)


def _groups(request: Any) -> Iterable[str]:
    return map(str, request.groups_names)


def _records(request: Any) -> Iterable[Row]:
    return (
        (str(topic.name), f"{clipped(str(topic.name))}-{item.partition_index} below {item.offset}")
        for topic in request.topics
        for item in topic.partitions
    )


def _offsets(request: Any) -> Iterable[Row]:
    return (
        (str(topic.name), f"{clipped(str(topic.name))}-{item.partition_index}")
        for topic in request.topics
        for item in topic.partitions
    )


def _markers(request: Any) -> Iterable[Row]:
    return (
        (
            str(topic.name),
            f"{'commit' if marker.transaction_result else 'abort'} producer={marker.producer_id} on {clipped(str(topic.name))}",
        )
        for marker in request.markers
        for topic in marker.topics
    )


_OF_API: Final[Mapping[int, _Destroys]] = {
    21: _Destroys(
        ResourceType.TOPIC, "below", _records, _topics,
        Need(Operation.DELETE, ResourceType.TOPIC), or_nothing=True,
    ),
    27: _Destroys(ResourceType.CLUSTER, "markers", _markers, owner=lambda _request: "markers"),
    42: _Destroys(
        ResourceType.GROUP, "groups", lambda request: ((name, clipped(name)) for name in _groups(request)), _groups,
        Need(Operation.DELETE, ResourceType.GROUP), or_nothing=True,
    ),
    47: _Destroys(
        ResourceType.GROUP, "offsets", _offsets, _topics,
        Need(Operation.READ, ResourceType.TOPIC), owner=lambda request: str(request.group_id),
    ),
}  # fmt: skip


class _Asked(msgspec.Struct, frozen=True):
    """A request; `Acting`. Who asks is made out only where something is recorded."""

    ctx: RequestContext

    def actor(self) -> Actor:
        """See `Acting`."""
        return actor_of(self.ctx)


def actor_of(ctx: RequestContext) -> Actor:
    """Return who asks, from the client's own address, by the id that its request has in logs."""
    identity = ctx.identity
    host = identity.host or ctx.host
    return Actor(identity.principal, host, identity.mechanism, identity.token_id, ctx.request_id)


def _named(names: list[str]) -> str:
    shown = ",".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown},...(+{len(names) - _NAMED_MAX})"


async def handled(
    api: Api, ctx: RequestContext, request: Any, handle: Callable[[], Awaitable[_ANSWERED]]
) -> _ANSWERED:
    """Carry a request out by `handle` for whoever asked; one that destroys is recorded before. Raises as that, and `AuditUnwritable`."""
    with acting_as(_Asked(ctx)):
        destroys = _OF_API.get(api.key)
        if destroys is None:
            del request  # INV-HD11
            return await handle()
        yielding = CooperativeYield.of_a_write()
        denied = await _denied(ctx, request, destroys, yielding)
        if isinstance(denied, ErrorCode):
            assert api.on_error is not None, "each thing that it names has an answer"
            return await error_for_all(ctx, request, denied, api.on_error)
        told = await _told(ctx, request, destroys, denied, yielding)
        recorded = await ctx.services.audit.intended(_intent(api, ctx, *told))
        with told_unless_said(recorded):
            answer = await handle()
            assert isinstance(answer, Mapping), "these APIs answer with fields"
            recorded.ended(*_outcome(answer))
            return answer


async def _denied(
    ctx: RequestContext, request: Any, destroys: _Destroys, yielding: CooperativeYield
) -> frozenset[str] | ErrorCode:
    """Return which of the names who asks may not delete; an error where it is all of them, and nothing would be done (INV-DAR3)."""
    needs = destroys.needs
    if needs is None or not ctx.services.authorizer.in_force:
        return frozenset()
    names = dict.fromkeys(destroys.names(request))
    if destroys.or_nothing and len(names) > ADMIN_ITEMS_MAX:
        return ErrorCode.invalid_request
    denied: set[str] = set()
    for name in names:
        await yielding.row()
        if not sees(ctx, *needs, name):
            denied.add(name)
    if not destroys.or_nothing or len(denied) < len(names):
        return frozenset(denied)
    for name in names:
        await yielding.row()
        may(ctx, *needs, name)  # it is told
    return ERROR_OF[needs.resource_type]


async def _told(
    ctx: RequestContext, request: Any, destroys: _Destroys, denied: frozenset[str], yielding: CooperativeYield,
) -> Told:  # fmt: skip
    """Return what is told of a request, without what is denied (INV-DAR5)."""
    if destroys.owner is not None:
        resource = destroys.owner(request)
    else:
        resource = _named([name for name in dict.fromkeys(destroys.names(request)) if name not in denied])  # fmt: skip
    shown: dict[str, None] = {}
    left_out = shown_chars = 0
    has_room = ctx.services.audit.has_room_for_details(ctx.identity.principal)
    for name, row in destroys.rows(request):
        await yielding.row()
        if name in denied or row in shown:
            continue
        if has_room and shown_chars < DETAIL_CHARS_MAX:
            shown[row] = None
            shown_chars += len(row) + _ROW_CHARS
        else:
            left_out += 1
    has_room = has_room and ctx.services.audit.has_room_for_details(ctx.identity.principal)
    if not has_room:  # others were told of meanwhile
        return destroys.resource_type.name, resource, {LEFT_OUT: left_out + len(shown)}
    details: dict[str, Detail] = {destroys.detail: [*shown]}
    if left_out:
        details[LEFT_OUT] = left_out  # INV-DAR4
    return destroys.resource_type.name, resource, details


def _intent(
    api: Api, ctx: RequestContext, resource_type: str, resource: str, details: Mapping[str, Detail]
) -> AuditEvent:
    return AuditEvent(
        kind=Kind.CHANGE,
        operation=api.name,
        outcome=Outcome.INTENDED,
        actor=actor_of(ctx),
        resource_type=resource_type,
        resource=resource,
        details=details,
    )


def _outcome(fields: Fields) -> tuple[Outcome, str]:
    """Return what came of a request, and its errors (INV-DAR2)."""
    names = sorted({*error_names(fields)})
    told = ",".join(names)
    if not names:
        return Outcome.DONE, ""
    if not _MAY_BE_DONE.isdisjoint(names):
        return Outcome.UNKNOWN, told
    return (Outcome.DONE, f"in part: {told}") if any_without_error(fields) else (Outcome.REFUSED, told)  # fmt: skip
