"""DescribeConfigs (32), versions 1-4.  v1: sources and synonyms.  v3: documentation and types.

Resources: topic (2), broker (4). Source: Kafka ConfigHelper.
"""

from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, TypeAlias

from kio.schema.errors import ErrorCode

from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.topic_configs import (
    BROKER_NAMES,
    DOMAIN_KEY,
    TOPIC_CONFIGS,
    TopicConfig,
)
from region_broker.handlers.dispatch.answer_budget import (
    TOO_LARGE,
    TOO_LARGE_TEXT,
    check_count,
    described,
)
from region_broker.handlers.dispatch.answered_errors import error_names
from region_broker.handlers.dispatch.registry import Api, Fields, Written
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.topics.broker_configs import broker_rows, config_row
from region_broker.handlers.topics.config_orders import Refused, ResourceType
from region_broker.handlers.topics.config_resources import check_may
from region_broker.limits import DESCRIBED_RESOURCES_MAX, YIELD_ROWS
from region_broker.security.access import Operation
from region_broker.wire.codec.answers import RowPath, encode_response, encode_row
from region_broker.wire.codec.struct_writers import EncodedRow
from region_broker.wire.cooperative_yield import CooperativeYield, each_yielding

_SOURCE_TOPIC: Final = 1
_SOURCE_DEFAULT: Final = 5
_RESOURCE_COST: Final = YIELD_ROWS // 20
"""A topic with all its configs, most of them written already, takes some ten microseconds."""


async def handle_describe_configs(ctx: RequestContext, request: Any) -> Fields | Written:
    """Answer the configs of topics and of this node."""
    yielding = CooperativeYield()
    if len(request.resources) > DESCRIBED_RESOURCES_MAX:
        return {"results": await each_yielding(request.resources, _too_many, yielding)}
    check_count(
        "DescribeConfigs", sum(len(each.configuration_keys or ()) for each in request.resources)
    )
    shape = _Shape(
        ctx.version,
        documented=bool(getattr(request, "include_documentation", False)),
        synonyms=bool(getattr(request, "include_synonyms", False)),
    )
    brokers: _BrokerRows = {}

    async def describe(resource: _Asked, yielding: CooperativeYield) -> Fields:
        await yielding.row(_RESOURCE_COST)
        return _resource(ctx, resource, shape, brokers)

    rows = await described(ctx, list(map(_asked, request.resources)), describe, _too_large)
    path = RowPath(32, ctx.version, ("results",))
    results = await each_yielding(rows, partial(encode_row, path), yielding)
    answer = encode_response(32, ctx.version, ctx.correlation_id, {"results": results})
    return Written(answer, error_names({"results": rows}))


_BrokerRows: TypeAlias = dict[str, list[tuple[str, EncodedRow]]]
"""The configs of each node that one request has asked for so far, by their names: asked again, they are not written anew."""


class _Asked(NamedTuple):
    """A resource, and the keys that are asked for; None: all."""

    kind: int
    name: str
    keys: tuple[str, ...] | None


def _asked(resource: Any) -> _Asked:
    # Null asks for all keys; so do older clients' empty lists (Kafka treats them alike).
    keys = tuple(map(str, resource.configuration_keys or ())) or None
    return _Asked(int(resource.resource_type), str(resource.resource_name), keys)


def _too_large(asked: _Asked) -> Fields:
    return _refused(asked.kind, asked.name, TOO_LARGE, TOO_LARGE_TEXT)


@dataclass(frozen=True, slots=True)
class _Shape:
    """What rows of configs hold in one answer."""

    version: int
    documented: bool
    synonyms: bool

    @property
    def path(self) -> RowPath:
        return RowPath(32, self.version, ("results", "configs"))

    def trimmed(self, row: dict[str, Any]) -> dict[str, Any]:
        kept = dict(row)
        if not self.documented:
            kept["documentation"] = None
        if not self.synonyms:
            kept["synonyms"] = []
        return kept


@lru_cache(maxsize=16)
def _defaults(shape: _Shape) -> dict[str, EncodedRow]:
    """Return the rows of a topic's configs that were not set, which all topics share."""
    return {
        known.name: encode_row(shape.path, shape.trimmed(_topic_row(known, {})))
        for known in TOPIC_CONFIGS.values()
    }


def _topic_rows(shape: _Shape, topic: TopicImage, wanted: set[str] | None) -> list[EncodedRow]:
    rows = _defaults(shape)
    if topic.configs:
        rows = rows | {
            name: encode_row(shape.path, shape.trimmed(_topic_row(known, topic.configs)))
            for name in topic.configs
            if (known := TOPIC_CONFIGS.get(name)) is not None
        }
    return [row for name, row in rows.items() if wanted is None or name in wanted]


def _resource(ctx: RequestContext, asked: _Asked, shape: _Shape, brokers: _BrokerRows) -> Fields:
    kind, name = asked.kind, asked.name
    wanted = None if asked.keys is None else set(asked.keys)
    try:
        check_may(ctx, Operation.DESCRIBE_CONFIGS, kind, name)
    except Refused as refused:
        return _refused(kind, name, refused.error, refused.text)
    match kind:
        case ResourceType.TOPIC:
            topic = ctx.services.metadata.image.topics.get(name)
            if topic is None:
                return _refused(
                    kind, name, ErrorCode.unknown_topic_or_partition, f"there is no topic {name!r}"
                )
            configs: list[EncodedRow] = _topic_rows(shape, topic, wanted)
        case ResourceType.BROKER:
            try:
                if name not in brokers:
                    brokers[name] = [
                        (row["name"], encode_row(shape.path, shape.trimmed(row)))
                        for row in broker_rows(ctx, name)
                    ]
            except Refused as refused:
                return _refused(kind, name, refused.error, refused.text)
            configs = [row for key, row in brokers[name] if wanted is None or key in wanted]
        case _:
            return _refused(
                kind, name, ErrorCode.invalid_request,
                f"resource type {kind} is not served, only 2 (topic) and 4 (broker)",
            )  # fmt: skip
    return {
        "error_code": ErrorCode.none,
        "error_message": None,
        "resource_type": kind,
        "resource_name": name,
        "configs": configs,
    }


def _too_many(asked: Any) -> Fields:
    text = f"at most {DESCRIBED_RESOURCES_MAX} resources at once"
    return _refused(int(asked.resource_type), asked.resource_name, ErrorCode.invalid_request, text)


def _refused(kind: int, name: str, error: ErrorCode, text: str | None) -> Fields:
    return {
        "error_code": error, "error_message": text, "resource_type": kind, "resource_name": name,
        "configs": [],
    }  # fmt: skip


def _topic_row(known: TopicConfig, configs: dict[str, str]) -> dict[str, Any]:
    synonyms: list[Fields] = []
    value = configs.get(known.name)
    if value is not None:
        value = known.normal(value)  # an older version kept it as it came (INV-CT4)
        synonyms.append({"name": known.name, "value": value, "source": _SOURCE_TOPIC})
    common = BROKER_NAMES.get(known.name)
    if common is not None:
        synonyms.append({"name": common, "value": known.default, "source": _SOURCE_DEFAULT})
    source = _SOURCE_DEFAULT if value is None else _SOURCE_TOPIC
    shown = known.default if value is None else value
    row = config_row(known.name, shown, source, known.type, known.text, synonyms)
    return row | {"read_only": known.name == DOMAIN_KEY}


API: Final = Api(32, "DescribeConfigs", range(1, 5), handle_describe_configs, describes=True)
