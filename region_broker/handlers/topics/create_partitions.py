"""CreatePartitions (37), versions 0-3: topics grow.  v2: compact.  v3: THROTTLING_QUOTA_EXCEEDED (KIP-599).

Mirrors grow at a tidemark that names the new partitions (T15). A topic never shrinks.
Source: Kafka ReplicationControlManager.createPartitions.
"""

from collections import Counter
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.controller.refusals import NOT_ALLOWED, TOO_MANY_PARTITIONS
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may
from region_broker.handlers.dispatch.partitions import assignment_problem
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import Refused
from region_broker.handlers.topics.mutations import THROTTLED, may_change
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.limits import CREATE_TOPICS_MAX, PARTITION_COUNT_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield

_STRICT_SINCE: Final = 3
_ERRORS: Final = {
    "unknown-topic": ErrorCode.unknown_topic_or_partition,
    NOT_ACTING: ErrorCode.not_controller,
    NOT_ALLOWED: TOPIC_DENIED,
    TOO_MANY_PARTITIONS: ErrorCode.policy_violation,
}


async def handle_create_partitions(ctx: RequestContext, request: Any) -> Fields:
    """Grow each topic or say why not; with `validate_only` only say whether it could grow."""
    times = Counter(topic.name for topic in request.topics)
    by_name = {topic.name: topic for topic in request.topics}
    rows = []
    yielding = CooperativeYield.of_a_write()
    for name in times:
        await yielding.row()
        try:
            if len(times) > CREATE_TOPICS_MAX:
                text = f"at most {CREATE_TOPICS_MAX} topics at once"
                raise Refused(ErrorCode.policy_violation, text)  # noqa: TRY301 -- one place answers
            if times[name] > 1:
                text = f"topic {name} is in the request twice"
                raise Refused(ErrorCode.invalid_request, text)  # noqa: TRY301
            if not may(ctx, Operation.ALTER, ResourceType.TOPIC, name):
                raise Refused(TOPIC_DENIED, None)  # noqa: TRY301
            await _grow(ctx, by_name[name], dry=bool(request.validate_only))
            rows.append(_row(name, ErrorCode.none, None))
        except Refused as refused:
            rows.append(_row(name, refused.error, refused.text))
    return {"results": rows}


def _row(name: str, error: int, text: str | None) -> Fields:
    return {"name": name, "error_code": error, "error_message": text}


async def _grow(ctx: RequestContext, asked: Any, *, dry: bool) -> None:
    name, count = str(asked.name), int(asked.count)
    topic = ctx.services.metadata.image.topics.get(name)
    if topic is None:
        raise Refused(ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}")
    present = topic.partition_count
    if topic.internal:
        text = f"topic {name} is a ledger of Tidemark: its {present} shards are fixed for life"
        raise Refused(ErrorCode.invalid_partitions, text)
    if count == present:
        raise Refused(ErrorCode.invalid_partitions, f"topic {name} has {count} partitions already")
    if count < present:
        text = (
            f"topic {name} has {present} partitions: {count} would be fewer, and it never shrinks"
        )
        raise Refused(ErrorCode.invalid_partitions, text)
    if count > PARTITION_COUNT_MAX:
        text = f"{count} partitions: a topic has at most {PARTITION_COUNT_MAX}"
        raise Refused(ErrorCode.invalid_partitions, text)
    _check_assignments(ctx, asked, count - present)
    if dry:
        return
    if not may_change(ctx, count - present, _STRICT_SINCE):
        raise Refused(*THROTTLED)
    try:
        await ctx.services.metadata.grow_topic(
            name, count, present, lambda: may(ctx, Operation.ALTER, ResourceType.TOPIC, name)
        )
    except (
        CommandRefused
    ) as refused:  # this region does not act any more, or another connection was first
        error = _ERRORS.get(refused.code, ErrorCode.invalid_partitions)
        raise Refused(error, refused.reason) from refused
    except MetadataUnwritable as failed:
        raise Refused(*unwritten(failed)) from failed


def _check_assignments(ctx: RequestContext, asked: Any, added: int) -> None:
    if asked.assignments is None:
        return
    if len(asked.assignments) != added:
        raise Refused(
            ErrorCode.invalid_replica_assignment,
            f"{added} partitions are new, but {len(asked.assignments)} are assigned",
        )
    problem = assignment_problem(
        ctx.services, (tuple(item.broker_ids) for item in asked.assignments)
    )
    if problem:
        raise Refused(ErrorCode.invalid_replica_assignment, problem)


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"results": [_row(topic.name, error_code, None) for topic in request.topics]}


API: Final = Api(
    37, "CreatePartitions", range(4), handle_create_partitions, forward=True, on_error=_on_error
)
