"""Requests that destroy something without changing the metadata: they are in the audit trail before they are carried out.

INV-DAR1  records deleted, groups and offsets deleted, and markers written by an administrator are recorded before; what changes the
          metadata is recorded there (`controller.audited_commands`)
INV-DAR3  who may delete none of what a request names is refused without an intent: it would else fill the disk of the trail, without which nothing
          is changed, by what it may not. Its refusals are recorded, as all are
INV-DAR2  of such a request `refused` says that nothing was done: where a part of it was, or nobody knows, that is recorded, with the errors
INV-DAR4  what a record says of a request is made of so many of its rows as a record may have: a name of 32 kB beside each of 100,000 partitions
          would be gigabytes
Nothing here is for requests that only read or write records.
Not here: the handlers.
"""

from collections.abc import Awaitable, Callable, Iterable, Mapping
from itertools import islice
from typing import Any, Final, NamedTuple

import msgspec
from kio.schema.errors import ErrorCode

from region_broker.handlers.dispatch.answered_errors import any_without_error, error_names
from region_broker.handlers.dispatch.authorizing import ERROR_OF, may, sees
from region_broker.handlers.dispatch.registry import Api, Fields, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.security.audit.events import (
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
_ROWS_MAX: Final = 20_000
"""What no record has room for with names of one letter (`security.audit.events`)."""
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


def _few(rows: Iterable[str], count: int) -> list[str]:
    """Return as many of `count` rows as a record may have: it says how many it leaves out (INV-DAR4)."""
    shown = list(islice(rows, _ROWS_MAX))
    return shown if count <= _ROWS_MAX else [*shown, f"...(+{count - _ROWS_MAX})"]


def _count(request: Any) -> int:
    return sum(len(topic.partitions) for topic in request.topics)


def _delete_records(request: Any) -> Told:
    rows = (
        f"{clipped(str(topic.name))}-{item.partition_index} below {item.offset}"
        for topic in request.topics
        for item in topic.partitions
    )
    below = _few(rows, _count(request))
    return "TOPIC", _named([str(topic.name) for topic in request.topics]), {"below": below}


def _delete_groups(request: Any) -> Told:
    groups = request.groups_names
    return "GROUP", _named([str(each) for each in groups]), {"groups": _few((clipped(str(each)) for each in groups), len(groups))}  # fmt: skip


def _delete_offsets(request: Any) -> Told:
    rows = (
        f"{clipped(str(topic.name))}-{item.partition_index}"
        for topic in request.topics
        for item in topic.partitions
    )
    return "GROUP", str(request.group_id), {"offsets": _few(rows, _count(request))}


def _write_markers(request: Any) -> Told:
    rows = (
        f"{'commit' if marker.transaction_result else 'abort'} producer={marker.producer_id} on {clipped(str(topic.name))}"
        for marker in request.markers
        for topic in marker.topics
    )
    count = sum(len(marker.topics) for marker in request.markers)
    return "CLUSTER", "markers", {"markers": _few(rows, count)}


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


_OF_API: Final[Mapping[int, Callable[[Any], Told]]] = {
    21: _delete_records,
    27: _write_markers,
    42: _delete_groups,
    47: _delete_offsets,
}


class _Each(NamedTuple):
    """What a request needs the right to delete, each of them by itself; of the others the whole is judged (`authorizing.refusal`)."""

    resource_type: ResourceType
    names: Callable[[Any], Iterable[str]]


_EACH: Final[Mapping[int, _Each]] = {
    21: _Each(ResourceType.TOPIC, lambda request: (str(each.name) for each in request.topics)),
    42: _Each(ResourceType.GROUP, lambda request: map(str, request.groups_names)),
}


def _named(names: list[str]) -> str:
    shown = ",".join(names[:_NAMED_MAX])
    return shown if len(names) <= _NAMED_MAX else f"{shown},...(+{len(names) - _NAMED_MAX})"


async def handled(
    api: Api, ctx: RequestContext, request: Any, handle: Callable[[], Awaitable[_ANSWERED]]
) -> _ANSWERED:
    """Carry a request out by `handle` for whoever asked; one that destroys is recorded before. Raises as that, and `AuditUnwritable`."""
    with acting_as(_Asked(ctx)):
        told = _OF_API.get(api.key)
        if told is None:
            return await handle()
        if (refused := await _refused(api, ctx, request)) is not None:
            return refused
        resource_type, resource, details = told(request)
        recorded = await ctx.services.audit.intended(
            AuditEvent(
                kind=Kind.CHANGE,
                operation=api.name,
                outcome=Outcome.INTENDED,
                actor=actor_of(ctx),
                resource_type=resource_type,
                resource=resource,
                details=details,
            )
        )
        with told_unless_said(recorded):
            answer = await handle()
            assert isinstance(answer, Mapping), "these APIs answer with fields"
            recorded.ended(*_outcome(answer))
            return answer


async def _refused(api: Api, ctx: RequestContext, request: Any) -> Fields | None:
    """Return the answer to who may do nothing of what it asks, None to all others (INV-DAR3)."""
    each = _EACH.get(api.key)
    if each is None or not ctx.services.authorizer.in_force:
        return None
    assert api.on_error is not None, "each thing that it names has an answer"
    names = dict.fromkeys(each.names(request))
    if len(names) > ADMIN_ITEMS_MAX:
        return await api.error_for_all(ctx, request, ErrorCode.invalid_request)
    yielding = CooperativeYield.of_a_write()
    for name in names:
        await yielding.row()
        if sees(ctx, Operation.DELETE, each.resource_type, name):
            return None
    for name in names:
        await yielding.row()
        may(ctx, Operation.DELETE, each.resource_type, name)  # it is told
    return await api.error_for_all(ctx, request, ERROR_OF[each.resource_type])


def _outcome(fields: Fields) -> tuple[Outcome, str]:
    """Return what came of a request, and its errors (INV-DAR2)."""
    names = sorted({*error_names(fields)})
    told = ",".join(names)
    if not names:
        return Outcome.DONE, ""
    if not _MAY_BE_DONE.isdisjoint(names):
        return Outcome.UNKNOWN, told
    return (Outcome.DONE, f"in part: {told}") if any_without_error(fields) else (Outcome.REFUSED, told)  # fmt: skip
