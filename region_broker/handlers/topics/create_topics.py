"""CreateTopics (19), versions 2-7.  v4: -1 takes the default count.  v5: configs in the answer.  v6: THROTTLING_QUOTA_EXCEEDED (KIP-599).  v7: ids.

What is refused says what would be right; nothing of a refused topic is created. A topic named twice in one request is
refused both times (Kafka does so).
"""

from collections import Counter
from typing import Any, Final, NamedTuple

from kio.schema.errors import ErrorCode

from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import NOT_ACTING, CommandRefused
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.refusals import NOT_ALLOWED, TOO_MANY_PARTITIONS
from region_broker.controller.topic_configs import TOPIC_CONFIGS
from region_broker.controller.topic_names import name_problem
from region_broker.handlers.dispatch.authorizing import TOPIC_DENIED, may_by_cluster, sees
from region_broker.handlers.dispatch.partitions import assignment_problem
from region_broker.handlers.dispatch.registry import Api, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.config_orders import Refused
from region_broker.handlers.topics.config_resources import kept_configs
from region_broker.handlers.topics.mutations import THROTTLED, may_change
from region_broker.handlers.topics.unwritten import unwritten
from region_broker.limits import CREATE_TOPICS_MAX, PARTITION_COUNT_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.wire.cooperative_yield import CooperativeYield

_ERRORS: Final = {
    "topic-exists": ErrorCode.topic_already_exists,
    NOT_ACTING: ErrorCode.not_controller,
    NOT_ALLOWED: TOPIC_DENIED,
    TOO_MANY_PARTITIONS: ErrorCode.policy_violation,
}
_NO_CONFIGS: Final = {
    "num_partitions": -1, "replication_factor": -1, "configs": None,
    "topic_config_error_code": TOPIC_DENIED,
}  # fmt: skip
"""What is told of a new topic to who may not see configs (KIP-525)."""
_STRICT_SINCE: Final = 6
_ROWS_OF_A_TOPIC: Final = 20  # each lists its configs in the answer


class _Wanted(NamedTuple):
    """A topic that may be created; its configs as they are kept."""

    name: str
    partition_count: int
    configs: dict[str, str]


async def handle_create_topics(ctx: RequestContext, request: Any) -> Fields:
    """Create each topic or say why not; with `validate_only` only say whether it could be."""
    times = Counter(topic.name for topic in request.topics)
    rows: list[Fields] = []
    yielding = CooperativeYield.of_a_write()
    for topic in request.topics[:CREATE_TOPICS_MAX]:
        await yielding.row(_ROWS_OF_A_TOPIC)
        try:
            wanted = _validated(ctx, topic, twice=times[topic.name] > 1)
            rows.append(await _create(ctx, wanted, dry=bool(request.validate_only)))
        except Refused as refused:
            rows.append(_row(topic.name, refused.error, refused.text))
    for topic in request.topics[CREATE_TOPICS_MAX:]:
        await yielding.row()
        text = f"at most {CREATE_TOPICS_MAX} topics at once"
        rows.append(_row(topic.name, ErrorCode.policy_violation, text))
    return {"topics": rows}


def _row(name: str, error: int, text: str | None) -> Fields:
    return {
        "name": name, "topic_id": None, "error_code": error, "error_message": text,
        "num_partitions": -1, "replication_factor": -1, "configs": None,
    }  # fmt: skip


def _validated(ctx: RequestContext, topic: Any, *, twice: bool) -> _Wanted:
    """Return a topic that may be created; raises `Refused`."""
    if twice:
        raise Refused(ErrorCode.invalid_request, f"topic {topic.name} is in the request twice")
    if not may_by_cluster(ctx, Operation.CREATE, topic.name):
        raise Refused(TOPIC_DENIED, "Authorization failed.")
    image = ctx.services.metadata.image
    problem = name_problem(topic.name)
    if problem is not None:
        raise Refused(ErrorCode.invalid_topic_exception, problem)
    if topic.name in image.topics:
        # Kafka's words: tools look for "already exists" in them.
        raise Refused(ErrorCode.topic_already_exists, f"Topic '{topic.name}' already exists.")
    other = image.colliding_topic(topic.name)
    if other is not None:
        shown = sees(ctx, Operation.DESCRIBE, ResourceType.TOPIC, other)  # INV-HAZ4
        raise Refused(
            ErrorCode.invalid_topic_exception,
            f"topic {topic.name} would collide with {other if shown else 'another one'}: '.' and '_' are alike in metric names",
        )
    count = _partition_count(ctx, topic)
    configs = {config.name: config.value for config in topic.configs}
    if len(configs) != len(topic.configs):
        raise Refused(ErrorCode.invalid_config, "a config key is there twice")
    return _Wanted(topic.name, count, kept_configs(ctx.services, configs))


def _partition_count(ctx: RequestContext, topic: Any) -> int:
    if topic.assignments:
        return _assigned_count(ctx, topic)
    count = int(topic.num_partitions)
    if count == -1:
        count = ctx.services.config.default_partition_count
    if not 1 <= count <= PARTITION_COUNT_MAX:
        raise Refused(
            ErrorCode.invalid_partitions,
            f"{count} partitions: a topic has 1 to {PARTITION_COUNT_MAX}, or -1 for the default",
        )
    _check_replicas(ctx, int(topic.replication_factor))
    return count


def _check_replicas(ctx: RequestContext, factor: int) -> None:
    """Raise `Refused` for more replicas than the region has nodes; what it has is on all of them, whatever is asked for."""
    nodes = ctx.services.nodes
    if factor == -1 or 1 <= factor <= len(nodes.replicas):
        return
    if nodes.is_alone:
        text = "this region has one node, use 1 or -1; the other regions hold mirrors"
    else:
        text = (
            f"this region has {len(nodes.replicas)} nodes, each of which has all logs; use at most that,"
            " or -1; the other regions hold mirrors"
        )
    raise Refused(ErrorCode.invalid_replication_factor, f"replication factor {factor}: {text}")


def _assigned_count(ctx: RequestContext, topic: Any) -> int:
    if topic.num_partitions != -1 or topic.replication_factor != -1:
        raise Refused(
            ErrorCode.invalid_request,
            "with an assignment the partition count and the replication factor must be -1",
        )
    assigned = {item.partition_index: tuple(item.broker_ids) for item in topic.assignments}
    count = len(topic.assignments)
    if sorted(assigned) != list(range(count)) or count > PARTITION_COUNT_MAX:
        raise Refused(
            ErrorCode.invalid_replica_assignment, "partitions must be 0, 1, 2 ... without gaps"
        )
    problem = assignment_problem(ctx.services, assigned.values())
    if problem:
        raise Refused(ErrorCode.invalid_replica_assignment, problem)
    return count


async def _create(ctx: RequestContext, topic: _Wanted, *, dry: bool) -> Fields:
    configs, partition_count = topic.configs, topic.partition_count
    created: TopicImage | None = None
    if not dry:
        if not may_change(ctx, partition_count, _STRICT_SINCE):
            raise Refused(*THROTTLED)
        try:
            created = await ctx.services.metadata.create_topic(
                topic.name, partition_count, configs, ctx.services.chance.uuid(),
                lambda: may_by_cluster(ctx, Operation.CREATE, topic.name),
            )  # fmt: skip
        except CommandRefused as refused:
            error = _ERRORS.get(refused.code, ErrorCode.invalid_request)
            raise Refused(error, refused.reason) from refused
        except MetadataUnwritable as failed:
            raise Refused(*unwritten(failed)) from failed
    row = {
        "name": topic.name,
        "topic_id": None if created is None else created.topic_id,
        "error_code": ErrorCode.none,
        "error_message": None,
    }
    if not sees(ctx, Operation.DESCRIBE_CONFIGS, ResourceType.TOPIC, topic.name):
        return row | _NO_CONFIGS
    return row | {
        "num_partitions": partition_count,
        "replication_factor": len(ctx.services.nodes.replicas),
        "configs": [
            {
                "name": known.name,
                "value": configs.get(known.name, known.default),
                "read_only": False,
                "config_source": 1 if known.name in configs else 5,
                "is_sensitive": False,
            }
            for known in TOPIC_CONFIGS.values()
        ],
    }


def _on_error(_ctx: RequestContext, request: Any, error_code: int) -> Fields:
    return {"topics": [_row(topic.name, error_code, None) for topic in request.topics]}


API: Final = Api(
    19, "CreateTopics", range(2, 8), handle_create_topics, forward=True, on_error=_on_error
)
