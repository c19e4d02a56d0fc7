"""OffsetFetch (9), versions 1-9.

v2: null topics mean all; an error for the whole.  v5: leader epoch.  v7: require_stable (KIP-447).
v8: several groups.  v9: member id and epoch, of use to KIP-848 groups only.
`require_stable` counts for every shape: one group or several, listed or all partitions (B4).
"""

from typing import Any, Final

from idempotency.identity import TopicName, TopicPartition
from region_broker.groups.messages import FetchedOffset, FetchOutcome
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.group_errors import ERROR_OF, coordinator
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext


async def handle_offset_fetch(ctx: RequestContext, request: Any) -> Fields:
    """Return committed offsets."""
    require_stable = bool(getattr(request, "require_stable", False))
    if ctx.version >= 8:
        groups = []
        for wanted in request.groups:
            outcome = await _fetch(ctx, wanted.group_id, wanted.topics, require_stable)
            groups.append(
                {
                    "group_id": wanted.group_id,
                    "topics": _topics(outcome),
                    "error_code": ERROR_OF[outcome.verdict],
                }
            )
        return {"groups": groups}
    outcome = await _fetch(ctx, request.group_id, request.topics, require_stable)
    if ctx.version < 2 and outcome.verdict is not GroupVerdict.OK:
        # No place for an error of the whole: each partition carries it.
        asked = _asked(request.topics) or []
        outcome = FetchOutcome(
            outcome.verdict, tuple(FetchedOffset(tp, outcome.verdict) for tp in asked)
        )
    return {"topics": _topics(outcome), "error_code": ERROR_OF[outcome.verdict]}


def _asked(topics: Any) -> list[TopicPartition] | None:
    if topics is None:
        return None
    return [
        TopicPartition(TopicName(topic.name), partition)
        for topic in topics
        for partition in topic.partition_indexes
    ]


async def _fetch(
    ctx: RequestContext, group_id: str, topics: Any, require_stable: bool
) -> FetchOutcome:
    return await coordinator(ctx).fetch_offsets(
        group_id, _asked(topics), require_stable=require_stable
    )


def _topics(outcome: FetchOutcome) -> list[dict[str, Any]]:
    topics: dict[str, list[dict[str, Any]]] = {}
    for place in outcome.offsets:
        topics.setdefault(place.tp.topic, []).append(
            {
                "partition_index": place.tp.partition,
                "committed_offset": place.committed_offset,
                "committed_leader_epoch": place.leader_epoch,
                "metadata": place.metadata,
                "error_code": ERROR_OF[place.verdict],
            }
        )
    return [{"name": name, "partitions": parts} for name, parts in topics.items()]


def _on_error(ctx: RequestContext, request: Any, error_code: int) -> Fields:
    if ctx.version >= 8:
        return {
            "groups": [
                {"group_id": wanted.group_id, "topics": [], "error_code": error_code}
                for wanted in request.groups
            ]
        }
    topics: dict[str, list[dict[str, Any]]] = {}
    for tp in _asked(request.topics) or [] if ctx.version < 2 else []:
        topics.setdefault(tp.topic, []).append(
            {
                "partition_index": tp.partition,
                "committed_offset": -1,
                "committed_leader_epoch": -1,
                "metadata": "",
                "error_code": error_code,
            }
        )
    listed = [{"name": name, "partitions": parts} for name, parts in topics.items()]
    return {"topics": listed, "error_code": error_code}


API: Final = Api(
    key=9,
    name="OffsetFetch",
    versions=range(1, 10),
    handle=handle_offset_fetch,
    forward=True,
    on_error=_on_error,
)
