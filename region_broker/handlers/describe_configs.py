"""DescribeConfigs (32), versions 1-4.  v3: documentation and types.  Resources: topic (2), broker (4)."""

from collections.abc import Iterable
from enum import IntEnum
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.topic_configs import TOPIC_CONFIGS, ConfigType
from region_broker.handlers.registry import Api, Fields
from region_broker.handlers.services import RequestContext


class ResourceType(IntEnum):
    """The resource types served."""

    TOPIC = 2
    BROKER = 4


_SOURCE_TOPIC: Final = 1
_SOURCE_STATIC: Final = 4
_SOURCE_DEFAULT: Final = 5


async def handle_describe_configs(ctx: RequestContext, request: Any) -> Fields:
    """Answer the configs of topics and of this node."""
    documented = bool(getattr(request, "include_documentation", False))
    synonyms = bool(getattr(request, "include_synonyms", False))
    return {
        "results": [
            _resource(ctx, resource, documented=documented, synonyms=synonyms)
            for resource in request.resources
        ]
    }


def _resource(ctx: RequestContext, resource: Any, *, documented: bool, synonyms: bool) -> Fields:
    kind, name = int(resource.resource_type), str(resource.resource_name)
    match kind:
        case ResourceType.TOPIC:
            topic = ctx.services.metadata.image.topics.get(name)
            if topic is None:
                return _refused(
                    kind, name, ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}"
                )
            rows = _topic_rows(topic.configs)
        case ResourceType.BROKER:
            if name not in ("", str(ctx.services.region.node_id)):
                return _refused(
                    kind, name, ErrorCode.invalid_request,
                    f"this is node {ctx.services.region.node_id}; ask node {name} itself",
                )  # fmt: skip
            rows = _broker_rows(ctx)
        case _:
            return _refused(
                kind, name, ErrorCode.invalid_request,
                f"resource type {kind} is not served, only 2 (topic) and 4 (broker)",
            )  # fmt: skip
    asked = resource.configuration_keys
    # Null asks for all keys; so do older clients' empty lists (Kafka treats them alike).
    wanted = set(asked) if asked else None
    kept = [row for row in rows if wanted is None or row["name"] in wanted]
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": kind,
        "resource_name": name,
        "configs": [_trimmed(row, documented=documented, synonyms=synonyms) for row in kept],
    }


def _refused(kind: int, name: str, error: ErrorCode, text: str) -> Fields:
    return {
        "error_code": error, "error_message": text, "resource_type": kind, "resource_name": name,
        "configs": [],
    }  # fmt: skip


def _topic_rows(configs: dict[str, str]) -> Iterable[dict[str, Any]]:
    for known in TOPIC_CONFIGS.values():
        value = configs.get(known.name)
        source = _SOURCE_DEFAULT if value is None else _SOURCE_TOPIC
        yield _row(
            known.name, known.default if value is None else value, source, known.type, known.text
        )


def _broker_rows(ctx: RequestContext) -> Iterable[dict[str, Any]]:
    config = ctx.services.config
    values: tuple[tuple[str, object, ConfigType, str], ...] = (
        ("node.id", ctx.services.region.node_id, ConfigType.INT, "The number of this node."),
        ("auto.create.topics.enable", str(config.auto_create_topics).lower(), ConfigType.BOOLEAN,
         "Whether Metadata creates the topics it is asked for."),
        ("num.partitions", config.default_partition_count, ConfigType.INT,
         "Partitions of a topic created without a count."),
        ("default.replication.factor", 1, ConfigType.INT, "A region is one node yet."),
        ("transaction.state.log.num.partitions", config.shard_count, ConfigType.INT,
         "Shards of the ledgers, fixed for the domain."),
        ("offsets.topic.num.partitions", config.shard_count, ConfigType.INT,
         "Shards of the ledgers, fixed for the domain."),
    )  # fmt: skip
    for name, value, kind, text in values:
        yield _row(name, str(value), _SOURCE_STATIC, kind, text) | {"read_only": True}


def _row(name: str, value: str, source: int, kind: ConfigType, text: str) -> dict[str, Any]:
    return {
        "name": name, "value": value, "read_only": False, "is_default": source == _SOURCE_DEFAULT,
        "config_source": source, "is_sensitive": False, "config_type": int(kind),
        "documentation": text,
        "synonyms": [{"name": name, "value": value, "source": source}],
    }  # fmt: skip


def _trimmed(row: dict[str, Any], *, documented: bool, synonyms: bool) -> dict[str, Any]:
    kept = dict(row)
    if not documented:
        kept["documentation"] = None
    if not synonyms:
        kept["synonyms"] = []
    return kept


API: Final = Api(32, "DescribeConfigs", range(1, 5), handle_describe_configs)
