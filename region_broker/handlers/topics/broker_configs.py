"""Configs of a node while it runs (KIP-226): what is told of them, and what may be changed.

INV-BKC1  a resource is changed as a whole, or not at all; what is validated is what is written: if another change came between,
          it is validated again
A resource without a name stands for all nodes of the region: what is set there counts where a node has nothing of its own. A
node answers for itself and for all, in any region: its configs are its own affair, and are not forwarded.
Source: KIP-226; Kafka DynamicBrokerConfig, ConfigHelper. Not here: what keys may be (the node's `NodeConfigService`).
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from kio.schema.errors import ErrorCode

from region_broker.controller.config_changes import (
    ChangeRefused,
    ConfigChange,
    ConfigOp,
    check_shape,
)
from region_broker.controller.metadata_commands import CommandRefused
from region_broker.controller.metadata_image import ALL_NODES
from region_broker.controller.topic_configs import TOPIC_CONFIGS, ConfigType
from region_broker.handlers.dispatch.node_configs import NodeConfigRow
from region_broker.handlers.dispatch.registry import Fields
from region_broker.handlers.dispatch.services import RequestContext, Services
from region_broker.handlers.topics.config_orders import NewConfigs, Refused, check_may_ask_again
from region_broker.limits import CHANGE_ATTEMPTS, REQUEST_BYTES_MAX

_SOURCE_NODE: Final = 2
_SOURCE_ALL_NODES: Final = 3
_SOURCE_STATIC: Final = 4
_SOURCE_DEFAULT: Final = 5
_FACTS: Final = frozenset(
    {
        "node.id", "tidemark.acting", "advertised.listeners", "listener.security.protocol.map",
        "default.replication.factor",
        "transaction.state.log.num.partitions", "offsets.topic.num.partitions", "log.dirs",
        "delete.topic.enable", "socket.request.max.bytes", "message.max.bytes",
    }
)  # fmt: skip
"""Kafka's names of what is so, and no key of a node says otherwise."""


def node_of(services: Services, name: str) -> int:
    """Return the node that a resource stands for; raises `Refused` for another one than this."""
    if not name:
        return ALL_NODES
    own = services.region.node_id
    if name != str(own):
        raise Refused(
            ErrorCode.invalid_request,
            f"this is node {own}; ask node {name:.100} itself, or name none for all nodes",
        )
    return own


async def change_broker(
    services: Services, name: str, changes: Sequence[ConfigChange],
    plan: Callable[[Sequence[ConfigChange]], NewConfigs], *, dry: bool,
) -> None:  # fmt: skip
    """Change what is set of a node, or of all; `plan` makes new configs of changes. Raises `Refused`, `MalformedChange`."""
    node_id, keys = node_of(services, name), services.node_configs
    changes = [replace(change, name=keys.key_of(change.name)) for change in changes]
    check_shape(changes)  # one key may have been named twice, in Kafka's words and in ours
    new_configs = plan(changes)
    for _ in range(CHANGE_ATTEMPTS):
        stored = keys.stored(node_id)
        _check_names(services, changes, stored)
        try:
            configs = new_configs(stored)
        except ChangeRefused as refused:
            raise Refused(ErrorCode.invalid_config, str(refused)) from refused
        problem = keys.problem(node_id, configs)
        if problem is not None:
            raise Refused(ErrorCode.invalid_config, problem)
        if dry or configs == stored:
            return
        try:
            await keys.replace(node_id, configs, stored)
        except CommandRefused as refused:
            check_may_ask_again(refused)
            continue  # another change came between: look again
        return
    raise Refused(ErrorCode.request_timed_out, f"node {name} is being changed by others: try again")


def _check_names(
    services: Services, changes: Sequence[ConfigChange], stored: Mapping[str, str]
) -> None:
    """Refuse what can never change while the node runs; what another version set may be removed, whatever it is."""
    for change in changes:
        if change.op == ConfigOp.DELETE and change.name in stored:
            continue
        problem = services.node_configs.fixed_problem(change.name)
        if problem is None and change.name in _FACTS:
            problem = f"{change.name} follows from the node's configuration file, or is fixed: it cannot change while the node runs"
        if problem is not None:
            raise Refused(ErrorCode.invalid_request, problem)


def broker_rows(ctx: RequestContext, name: str) -> Iterator[dict[str, Any]]:
    """Yield the configs of this node; without a `name` those that were set for all nodes. Raises `Refused`."""
    node_id = node_of(ctx.services, name)
    for row in ctx.services.node_configs.rows():
        if node_id != ALL_NODES:
            yield _row(row, _synonyms(row))
        elif row.common is not None:
            yield _row(row, [_synonym(row, row.common, _SOURCE_ALL_NODES)])
    if node_id != ALL_NODES:
        yield from _fact_rows(ctx)


def _synonyms(row: NodeConfigRow) -> list[Fields]:
    """Return where a value comes from, the one that counts first."""
    found = (
        (row.own, _SOURCE_NODE), (row.common, _SOURCE_ALL_NODES),
        (row.file, _SOURCE_STATIC), (row.default, _SOURCE_DEFAULT),
    )  # fmt: skip
    return [_synonym(row, value, source) for value, source in found if value is not None]


def _synonym(row: NodeConfigRow, value: str, source: int) -> Fields:
    return {"name": row.name, "value": value, "source": source}


def _row(row: NodeConfigRow, synonyms: list[Fields]) -> dict[str, Any]:
    counts = synonyms[0]
    return config_row(
        row.name, counts["value"], counts["source"], row.kind, row.text, synonyms
    ) | {"read_only": not row.is_changeable}  # fmt: skip


def _fact_rows(ctx: RequestContext) -> Iterator[dict[str, Any]]:
    config, region = ctx.services.config, ctx.services.region
    listeners = config.told_listeners
    values: tuple[tuple[str, object, ConfigType, str], ...] = (
        ("node.id", region.node_id, ConfigType.INT, "The number of this node."),
        ("tidemark.acting", str(region.acting).lower(), ConfigType.BOOLEAN,
         "Whether this region takes writes now; one that does not shows what it has reached."),
        ("advertised.listeners", ",".join(f"{name}://{at}" for name, _, at in listeners),
         ConfigType.STRING, "Where clients find this node, by each of its listeners."),
        ("listener.security.protocol.map", ",".join(f"{name}:{spoken}" for name, spoken, _ in listeners),
         ConfigType.STRING, "What each of its listeners speaks."),
        ("default.replication.factor", len(ctx.services.nodes.replicas), ConfigType.INT,
         "Each node of a region has all of its logs."),
        ("transaction.state.log.num.partitions", config.shard_count, ConfigType.INT,
         "Shards of the ledgers, fixed for the domain."),
        ("offsets.topic.num.partitions", config.shard_count, ConfigType.INT,
         "Shards of the ledgers, fixed for the domain."),
        ("log.dirs", ctx.services.partitions.data_dir, ConfigType.LIST, "The folder of all logs."),
        ("delete.topic.enable", "true", ConfigType.BOOLEAN, "Topics can be deleted."),
        ("socket.request.max.bytes", REQUEST_BYTES_MAX, ConfigType.INT, "The largest request."),
        ("message.max.bytes", TOPIC_CONFIGS["max.message.bytes"].default, ConfigType.INT,
         "The largest batch, where a topic does not say otherwise."),
    )  # fmt: skip
    assert {row[0] for row in values} == _FACTS, "each name that is told is refused to be changed"
    for name, value, kind, text in values:
        synonyms: list[Fields] = [{"name": name, "value": str(value), "source": _SOURCE_STATIC}]
        row = config_row(name, str(value), _SOURCE_STATIC, kind, text, synonyms)
        yield row | {"read_only": True}


def config_row(
    name: str, value: str, source: int, kind: ConfigType, text: str, synonyms: list[Fields]
) -> dict[str, Any]:
    """Return a config as DescribeConfigs tells it."""
    return {
        "name": name, "value": value, "read_only": False, "is_default": source == _SOURCE_DEFAULT,
        "config_source": source, "is_sensitive": False, "config_type": int(kind),
        "documentation": text, "synonyms": synonyms,
    }  # fmt: skip
