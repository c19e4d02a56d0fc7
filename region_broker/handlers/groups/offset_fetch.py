"""OffsetFetch (9), versions 1-10.

v2: null topics mean all; an error for the whole.  v5: leader epoch.  v7: require_stable (KIP-447).
v8: several groups.  v9: member id and epoch, for groups of the new protocol.  v10: topic ids.
`require_stable` counts for every shape: one group or several, listed or all partitions (B4).
INV-OFE1 a request that has a place among those that list keeps it to its end, and waits for offsets to be durable up to DURABLE_MS_MAX behind it; a group
         whose offsets are not durable by then is COORDINATOR_NOT_AVAILABLE. It holds rows of groups by then: were it to wait for a place, or for
         room, once more, many that wait would hold all of the room that each of them waits for
"""

from collections.abc import Container, Mapping
from typing import Any, Final, NamedTuple
from uuid import UUID

from idempotency.identity import TopicPartition
from region_broker.groups.messages import FetchedOffset, FetchOutcome
from region_broker.groups.offset_service import Asker
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch.answer_budget import TOO_LARGE, check_count, described
from region_broker.handlers.dispatch.authorizing import (
    GROUP_DENIED,
    TOPIC_DENIED,
    denied_topics,
    may,
    sees,
)
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups.errors import ERROR_OF, UNKNOWN_TOPIC_ID
from region_broker.handlers.groups.names import topic_name, topic_names
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield, look_up_rows

_TOPIC_IDS_FROM: Final = 10
NO_NAMES: Final[Mapping[UUID, str]] = {}
DURABLE_MS_MAX: Final = 5_000
"""A hundred times what it takes while enough nodes are there, and little for who waits for the place."""


class _ById(NamedTuple):
    """The topics that there are, made once for all groups of a request; nothing where it names none by id."""

    names: Mapping[UUID, str]
    ids: Mapping[str, UUID]


class _Patience:
    """How long a request waits until offsets are durable (INV-OFE1)."""

    __slots__ = ("_ctx", "_until_ms")

    def __init__(self, ctx: RequestContext) -> None:
        self._ctx = ctx
        self._until_ms: int | None = None

    def left_s(self) -> float | None:
        """Return what is left of it, None for no end: without a place it is in nobody's way."""
        place = self._ctx.listing
        if place is None or not place.is_taken:
            return None
        now_ms = self._ctx.services.clock.monotonic_ms()
        if self._until_ms is None:
            self._until_ms = now_ms + DURABLE_MS_MAX
        return max(0, self._until_ms - now_ms) / 1_000


class _Fetched(NamedTuple):
    """What of a group was asked for and may be seen, what of it was denied, and what was found."""

    asked: list[TopicPartition] | None
    denied: Container[object]
    outcome: FetchOutcome


async def handle_offset_fetch(ctx: RequestContext, request: Any) -> Fields:
    """Return committed offsets."""
    require_stable = bool(getattr(request, "require_stable", False))
    if ctx.version >= 8:
        return {"groups": await _groups(ctx, request.groups, require_stable=require_stable)}
    check_count("OffsetFetch", _count(request.topics))
    if not may(ctx, Operation.DESCRIBE, ResourceType.GROUP, request.group_id):
        return await error_for_all(ctx, request, GROUP_DENIED, _on_error)
    fetched = await _fetched(ctx, request, NO_NAMES, _Patience(ctx), require_stable=require_stable)

    async def describe(_group_id: str, yielding: CooperativeYield) -> Fields:
        return await _of_one_group(ctx, request.topics, fetched, yielding)

    (row,) = await described(ctx, [request.group_id], describe, _never_refused)
    return row


def _never_refused(group_id: str) -> Fields:
    raise AssertionError(f"INV-AB1: the first thing is always described, so {group_id} is")


async def _of_one_group(
    ctx: RequestContext, asked_topics: Any, fetched: _Fetched, yielding: CooperativeYield
) -> Fields:
    """Return the whole answer before version 8."""
    asked, denied, outcome = fetched
    if ctx.version < 2 and outcome.verdict is not GroupVerdict.OK:
        # No place for an error of the whole: each partition carries it.
        outcome = FetchOutcome(
            outcome.verdict, tuple(FetchedOffset(tp, outcome.verdict) for tp in asked or [])
        )
    topics: list[dict[str, Any]] = [
        {"name": name, "partitions": parts}
        for name, parts in (await _by_topic(outcome, yielding)).items()
        if _shows(ctx, asked_topics, name)
    ]
    if ctx.version < 2 or outcome.verdict is GroupVerdict.OK:
        topics += [_refused_topic(topic) for topic in asked_topics or () if topic.name in denied]
    return {"topics": topics, "error_code": ERROR_OF[outcome.verdict]}


async def _groups(ctx: RequestContext, wanted: Any, *, require_stable: bool) -> list[Fields]:
    """Answer for each group, as often as it is asked for; what makes the answer too large is refused."""
    check_count("OffsetFetch", sum(1 + _count(each.topics) for each in wanted))
    names = topic_names(ctx) if ctx.version >= _TOPIC_IDS_FROM else NO_NAMES
    topics = _ById(names, {name: topic_id for topic_id, name in names.items()})
    fetched: dict[int, _Fetched] = {}
    patience = _Patience(ctx)

    async def describe(index: int, yielding: CooperativeYield) -> Fields:
        each = wanted[index]
        if not may(ctx, Operation.DESCRIBE, ResourceType.GROUP, each.group_id):
            return {"group_id": each.group_id, "topics": [], "error_code": GROUP_DENIED}
        if index not in fetched:  # it is described a second time where it is large
            fetched.clear()
            fetched[index] = await _fetched(
                ctx, each, names, patience, require_stable=require_stable
            )
        return await _group(ctx, each, topics, fetched[index], yielding)

    def too_large(index: int) -> Fields:
        return {"group_id": wanted[index].group_id, "topics": [], "error_code": TOO_LARGE}

    return await described(ctx, range(len(wanted)), describe, too_large)


async def _fetched(
    ctx: RequestContext,
    wanted: Any,
    names: Mapping[UUID, str],
    patience: _Patience,
    *,
    require_stable: bool,
) -> _Fetched:
    """Return what is known of a group, once that is durable."""
    yielding = CooperativeYield()
    denied = await _denied(ctx, wanted.topics, names, yielding)
    await yielding.row(look_up_rows(wanted.group_id))
    asked = await _asked(wanted.topics, names, denied)
    outcome = await ctx.services.groups.fetch_offsets(
        wanted.group_id,
        asked,
        require_stable=require_stable,
        asker=Asker(getattr(wanted, "member_id", None), getattr(wanted, "member_epoch", -1)),
        durable_within_s=patience.left_s(),
    )
    return _Fetched(asked, denied, outcome)


def _count(topics: Any) -> int:
    return sum(1 + len(topic.partition_indexes) for topic in topics or ())


async def _group(
    ctx: RequestContext,
    wanted: Any,
    by_ids: _ById,
    fetched: _Fetched,
    yielding: CooperativeYield,
) -> Fields:
    by_id = ctx.version >= _TOPIC_IDS_FROM
    names, ids = by_ids
    _, denied, outcome = fetched
    topics: list[dict[str, Any]] = [
        {"name": name, "topic_id": ids.get(name), "partitions": parts}
        for name, parts in (await _by_topic(outcome, yielding)).items()
        if not by_id or _is_still(ctx, name, ids.get(name))
        if _shows(ctx, wanted.topics, name)
    ]
    if outcome.verdict is GroupVerdict.OK:
        topics += [
            _refused_topic(topic)
            for topic in wanted.topics or ()
            if topic_name(topic, names) in denied
        ]
    if outcome.verdict is GroupVerdict.OK and by_id:
        asked = ((names.get(topic.topic_id, ""), topic) for topic in wanted.topics or ())
        topics += [
            _unknown(topic)
            for name, topic in asked
            if name not in denied and not _is_still(ctx, name, topic.topic_id)
        ]
    return {
        "group_id": wanted.group_id,
        "topics": topics,
        "error_code": ERROR_OF[outcome.verdict],
    }


def _is_still(ctx: RequestContext, name: str, topic_id: UUID | None) -> bool:
    """Return whether the topic of this id has the name: it may be deleted, and another one made, while a group's offsets are waited for (INV-GV4)."""
    topic = ctx.services.metadata.image.topics.get(name)
    return topic is not None and topic.topic_id == topic_id


def _unknown(topic: Any) -> dict[str, Any]:
    parts = [_part(index, UNKNOWN_TOPIC_ID) for index in topic.partition_indexes]
    return {"name": "", "topic_id": topic.topic_id, "partitions": parts}


async def _denied(
    ctx: RequestContext, topics: Any, names: Mapping[UUID, str], yielding: CooperativeYield
) -> Container[object]:
    """Return the topics asked for that who asks may not see."""
    if topics is None:
        return ()
    found = (topic_name(topic, names) for topic in topics)
    return await denied_topics(ctx, Operation.DESCRIBE, found, yielding)


def _shows(ctx: RequestContext, asked: Any, name: str) -> bool:
    """Return whether a topic is told that nobody named: all of a group are asked for then."""
    return asked is not None or sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, name)


def _refused_topic(topic: Any) -> dict[str, Any]:
    parts = [_part(index, TOPIC_DENIED) for index in topic.partition_indexes]
    name, topic_id = getattr(topic, "name", ""), getattr(topic, "topic_id", None)
    return {"name": name, "topic_id": topic_id, "partitions": parts}


async def _asked(
    topics: Any, names: Mapping[UUID, str], denied: Container[object]
) -> list[TopicPartition] | None:
    if topics is None:
        return None
    yielding = CooperativeYield()
    asked: list[TopicPartition] = []
    for topic in topics:
        name = topic_name(topic, names)
        if name is None or name in denied:
            continue
        for partition in topic.partition_indexes:
            await yielding.row()
            asked.append(TopicPartition(name, partition))
    return asked


async def _by_topic(
    outcome: FetchOutcome, yielding: CooperativeYield
) -> dict[str, list[dict[str, Any]]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for place in outcome.offsets:
        await yielding.row()
        part = _part(place.tp.partition, ERROR_OF[place.verdict], place)
        topics.setdefault(place.tp.topic, []).append(part)
    return topics


def _part(index: int, error_code: int, place: FetchedOffset | None = None) -> dict[str, Any]:
    return {
        "partition_index": index,
        "committed_offset": -1 if place is None else place.committed_offset,
        "committed_leader_epoch": -1 if place is None else place.leader_epoch,
        "metadata": "" if place is None else place.metadata,
        "error_code": error_code,
    }


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    if ctx.version >= 8:
        return {
            "groups": [
                {"group_id": wanted.group_id, "topics": [], "error_code": error_code}
                for wanted in request.groups
            ]
        }
    topics: dict[str, list[dict[str, Any]]] = {}
    for topic in request.topics or () if ctx.version < 2 else ():
        parts = [_part(index, error_code) for index in topic.partition_indexes]
        topics.setdefault(topic.name, []).extend(parts)
    listed = [{"name": name, "partitions": parts} for name, parts in topics.items()]
    return {"topics": listed, "error_code": error_code}


API: Final = Api(
    key=9,
    name="OffsetFetch",
    versions=range(1, 11),
    handle=handle_offset_fetch,
    forward=True,
    describes=True,
    on_error=_on_error,
)
