"""Which keys of a node's configuration may change while it runs, and what comes of the file and of what was set meanwhile.

INV-CHG1  what was set for the node itself goes before what was set for all nodes, and that before the file (KIP-226)
INV-CHG2  what was set and is not right (any more) counts for nothing: an older version set it, or the file has changed. It is
          told, and never keeps a node from starting
INV-CHG3  the configuration that counts has passed the checks of the file: each value by itself, and all of them together
INV-CHG4  of very many problems of a change the first PROBLEMS_TOLD_MAX are told, and no more is looked at: a request may name twenty thousand keys that
          are none, and each is compared with all that there are

Kafka's names stand for ours where they mean exactly the same. What is set is kept under our names, as text.
Pure. Not here: where it is kept (`controller.metadata_image`), what follows a change (`node.config_effects`), who may ask for
one (`handlers.admin.broker_configs`).
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final, get_type_hints

import msgspec

from region_broker.config.node_config import NodeConfig
from region_broker.config.relations import problems_together
from region_broker.config.rules import Problem, checked
from region_broker.controller.near_words import nearest

CHANGEABLE: Final = frozenset(
    {
        "auto_create_topics", "catch_up_sent_bytes_per_s", "catch_up_taken_bytes_per_s", "committed_offsets_max", "connection_order_fence", "connection_rate_per_address",
        "connections_per_address_max", "default_partition_count", "deleted_topic_retention_ms",
        "disk_free_bytes_min", "group_consumer_heartbeat_interval_ms",
        "group_consumer_session_timeout_ms", "group_count_max", "group_initial_rebalance_delay_ms",
        "group_min_session_timeout_ms", "log_level", "metrics_names_max", "mirror_whole_wait_ms",
        "partition_producers_max", "producers_max", "replica_selector", "request_memory_bytes", "retention_check_interval_ms", "tidemark_interval_ms",
        "transaction_max_timeout_ms", "transactional_id_count_max",
    }
)  # fmt: skip
KAFKA_NAMES: Final[Mapping[str, str]] = {
    "auto.create.topics.enable": "auto_create_topics",
    "num.partitions": "default_partition_count",
    "max.connections.per.ip": "connections_per_address_max",
    "leader.replication.throttled.rate": "catch_up_sent_bytes_per_s",
    "follower.replication.throttled.rate": "catch_up_taken_bytes_per_s",
    "transaction.max.timeout.ms": "transaction_max_timeout_ms",
    "group.initial.rebalance.delay.ms": "group_initial_rebalance_delay_ms",
    "group.min.session.timeout.ms": "group_min_session_timeout_ms",
    "group.consumer.session.timeout.ms": "group_consumer_session_timeout_ms",
    "group.consumer.heartbeat.interval.ms": "group_consumer_heartbeat_interval_ms",
}
"""Names in Kafka of keys that mean exactly the same there."""
KEYS: Final = tuple(
    key for key in NodeConfig.__struct_fields__ if key not in {"regions", "listeners"}
)
_TYPES: Final = get_type_hints(NodeConfig, include_extras=True)
_NAME_LOOKED_AT: Final = 64
PROBLEMS_TOLD_MAX: Final = 10
_EDIT: Final = "cannot change while the node runs: edit its configuration file and restart it"


@dataclass(frozen=True, slots=True)
class Counting:
    """What counts now. `own`, `common`: what of it was set, for the node itself and for all; `ignored`: why some counts not."""

    config: NodeConfig
    own: Mapping[str, str]
    common: Mapping[str, str]
    ignored: tuple[str, ...]


def text_of(value: Any) -> str:
    """Return a value as it is set, and told."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def fixed_problem(name: str) -> str | None:
    """Return why a key stays as it is while the node runs; None if it may change, or is none."""
    return f"{name} {_EDIT}" if name in _TYPES and name not in CHANGEABLE else None


def unknown_problem(name: str) -> str | None:
    """Return what is wrong with a name that is no key's, None where it is one's."""
    if name in _TYPES:
        return None
    return str(
        Problem(
            f"{name:.100}",
            "is unknown",
            "there is no such key" + nearest(name[:_NAME_LOOKED_AT], CHANGEABLE),
        )
    )


def counting(file: NodeConfig, own: Mapping[str, str], common: Mapping[str, str]) -> Counting:
    """Return what counts where `own` and `common` were set."""
    ignored: list[str] = []
    right_common, right_own = _right(common, ignored), _right(own, ignored)
    values, said = _fitting(file, {**right_common, **right_own})  # INV-CHG1
    ignored += said
    return Counting(
        config=msgspec.structs.replace(file, **values),
        own=_texts(right_own, values),
        common=_texts(right_common, values),
        ignored=tuple(ignored),
    )


def problem_of_change(
    file: NodeConfig, before: tuple[Mapping[str, str], Mapping[str, str]],
    after: tuple[Mapping[str, str], Mapping[str, str]],
) -> str | None:  # fmt: skip
    """Return what is wrong with a change of (own, common), None if nothing is; what was wrong before does not count."""
    known = set(_all_problems(file, *before))
    found = (problem for problem in _all_problems(file, *after) if problem not in known)
    return "; ".join(islice(found, PROBLEMS_TOLD_MAX)) or None  # INV-CHG4


def normal(configs: Mapping[str, str]) -> dict[str, str]:
    """Return configs as they are kept: each value as its key's type writes it, what is not right as it is."""
    right = _right(configs, [])
    return {
        key: text_of(right[key]) if key in right else value
        for key, value in sorted(configs.items())
    }


def _all_problems(
    file: NodeConfig, own: Mapping[str, str], common: Mapping[str, str]
) -> Iterator[str]:
    values: dict[str, Any] = {}
    for configs in (common, own):
        for key, value, problem in _judged(configs):
            if problem is None:
                values[key] = value
            else:
                yield problem
    for together in problems_together({**_of_file(file), **values}, ()):
        yield str(together)


def _right(configs: Mapping[str, str], told: list[str]) -> dict[str, Any]:
    """Return the values that are right by themselves; tell what is wrong with the others."""
    values = {}
    for key, value, problem in _judged(configs):
        if problem is None:
            values[key] = value
        else:
            told.append(problem)
    return values


def _judged(configs: Mapping[str, str]) -> Iterator[tuple[str, Any, str | None]]:
    """Yield each key with its value, or what is wrong with it; a key is looked at when it is asked for."""
    for key, text in sorted(configs.items()):
        value, problem = None, unknown_problem(key) or fixed_problem(key)
        if problem is None:
            value, wrong = checked(key, _TYPES[key], text)
            problem = None if wrong is None else str(wrong)
        yield key, value, problem


def _fitting(file: NodeConfig, values: Mapping[str, Any]) -> tuple[dict[str, Any], list[str]]:
    """Return the values that go together with each other and the file: all, or as many as can be put in one by one."""
    present = _of_file(file)
    problems = [str(problem) for problem in problems_together({**present, **values}, ())]
    if not problems:
        return dict(values), []
    taken: dict[str, Any] = {}
    before = -1
    while len(taken) > before:
        before = len(taken)
        for key in sorted(values.keys() - taken.keys()):
            more = {**taken, key: values[key]}
            if not any(problems_together({**present, **more}, ())):
                taken = more
    return taken, problems


def _of_file(file: NodeConfig) -> dict[str, Any]:
    return {key: getattr(file, key) for key in CHANGEABLE}


def _texts(right: Mapping[str, Any], counting_values: Mapping[str, Any]) -> dict[str, str]:
    return {key: text_of(value) for key, value in right.items() if key in counting_values}
