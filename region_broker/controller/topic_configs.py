"""The configs of a topic: which keys there are, their defaults, and which values are honoured.

INV-CT2  a config that would change nothing is refused, not swallowed: a key is honoured, or only its
        default is accepted, with the reason
INV-CT3  the problems of a topic's configs are told at once, each with its key, what it may be, and the word that is near; of very many the first
        PROBLEMS_TOLD_MAX, and no more is looked at: a request may name a hundred thousand keys, and each is compared with all that there are
INV-CT4  a value has TOPIC_CONFIG_CHARS_MAX characters at most, and is kept as its type writes it (`normal`), as Kafka tells it: a number may have
        blanks and zeros before it without end, and what is kept is kept with ten thousand deleted topics, too, and told each mirror at once
Source: Kafka LogConfig.validateValues and TopicConfig, ConfigDef types. Durations ms, sizes bytes.
Not here: what the log does with them (`log.log_config`), where they are kept (`controller.metadata_image`).
"""

from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import IntEnum
from itertools import islice
from typing import Final

from region_broker.controller.cluster_image import NODES_MAX
from region_broker.controller.near_words import nearest
from region_broker.limits import (
    BATCH_BYTES_DEFAULT,
    REQUEST_BYTES_MAX,
    TOPIC_CONFIG_CHARS_MAX,
    TOPIC_CONFIG_COUNT_MAX,
)

DOMAIN_KEY: Final = "tidemark.domain"
PROBLEMS_TOLD_MAX: Final = 10
_SHOWN_MAX: Final = 200
_LOOKED_AT: Final = 64
"""Characters of a word that is none: what is near it takes the longer to find the longer it is."""
MIN_IN_SYNC: Final = "min.insync.replicas"
_INT32_MAX: Final = 2**31 - 1
_INT64_MAX: Final = 2**63 - 1
_WEEK_MS: Final = 7 * 24 * 3_600_000


class ConfigType(IntEnum):
    """The type numbers of DescribeConfigs."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """One key. Numbers are bounded by `low` and `high`; `choices` lists the values to choose from.

    `allowed` lists the only values served, and `reason` says why nothing else is, for those who ask for it.
    """

    name: str
    type: ConfigType
    default: str
    text: str
    low: int = 0
    high: int = _INT64_MAX
    choices: tuple[str, ...] = ()
    allowed: tuple[str, ...] = ()
    reason: str = ""

    def problem(self, value: str) -> str | None:
        """Return why `value` is refused, or None."""
        if len(value) > TOPIC_CONFIG_CHARS_MAX:  # INV-CT4
            return (
                f"{self.name}={_shown(value)} has {len(value)} characters, and a value has {TOPIC_CONFIG_CHARS_MAX} at most:"
                " leave out blanks and zeros that mean nothing"
            )
        if self.allowed:
            if value.strip() in self.allowed:
                return None
            served = " or ".join(value or "an empty list" for value in self.allowed)
            return f"{self.name}={_shown(value)} is not served, only {served}: {self.reason}"
        if self.choices:
            return self._problem_of_choice(value)
        if not self._is_number:
            return None
        number = self._number(value)
        if number is None:
            kind = "number" if self.type is ConfigType.DOUBLE else "whole number"
            return f"{self.name}={_shown(value)!r} is not a {kind} in {self.low}..{self.high}"
        if not self.low <= number <= self.high:
            return f"{self.name}={_shown(str(number))} is not in {self.low}..{self.high}"
        return None

    def normal(self, value: str) -> str:
        """Return `value` as it is kept (INV-CT4); one that is refused stays as it is, or stays one that is refused."""
        if self.choices or self.allowed:
            words = value.split(",") if self.type is ConfigType.LIST else [value]
            return ",".join(word.strip() for word in words)
        number = self._number(value) if self._is_number else None
        return value if number is None else str(number)

    @property
    def _is_number(self) -> bool:
        return self.type in (ConfigType.INT, ConfigType.LONG, ConfigType.DOUBLE)

    def _number(self, value: str) -> float | None:
        if "_" in value:  # Python's way to write a number, and nobody else's
            return None
        try:
            return float(value) if self.type is ConfigType.DOUBLE else int(value)
        except ValueError:
            return None

    def _problem_of_choice(self, value: str) -> str | None:
        words, served = [value.strip()], list(self.choices)
        if self.type is ConfigType.LIST:
            words = [word.strip() for word in value.split(",")]
            served = sorted({word for choice in self.choices for word in choice.split(",")})
        for word in words:
            if word not in served:
                near = nearest(word[:_LOOKED_AT], served)
                return f"{self.name}={_shown(value)} is not served, only {', '.join(self.choices)}{near}"
        twice = sorted(word for word, times in Counter(words).items() if times > 1)
        return f"{self.name}={_shown(value)} names {twice[0]} twice" if twice else None


def _shown(value: str) -> str:
    """Return what is told of a value that is refused: a text of Kafka's older answers has 32,767 bytes, and a value as many."""
    return value if len(value) <= _SHOWN_MAX else f"{value[:_SHOWN_MAX]}..."


def _number(name: str, default: int, low: int, text: str, high: int = _INT64_MAX) -> TopicConfig:
    kind = ConfigType.INT if high <= _INT32_MAX else ConfigType.LONG
    return TopicConfig(name=name, type=kind, default=str(default), text=text, low=low, high=high)


def _fixed(name: str, kind: ConfigType, value: str, reason: str, *more: str) -> TopicConfig:
    return TopicConfig(
        name=name, type=kind, default=value, text=f"Only {value or 'none'}: {reason}.",
        allowed=(value, *more), reason=reason,
    )  # fmt: skip


def _choice(name: str, text: str, *choices: str) -> TopicConfig:
    return TopicConfig(
        name=name, type=ConfigType.STRING, default=choices[0], text=text, choices=choices
    )


def _level(codec: str, default: int, low: int, high: int) -> TopicConfig:
    return TopicConfig(
        name=f"compression.{codec}.level", type=ConfigType.INT, default=str(default), low=low, high=high,
        text=f"The level of {codec} where compression.type={codec} makes the broker compress.",
    )  # fmt: skip


_FLUSHED: Final = (
    "Honoured by more: with flush_policy = commit all is synced before any answer. A node with another"
    " policy refuses it."
)
_ONE_NODE: Final = "a region is one node: there are no followers"
_NO_TIERS: Final = "there is no tiered storage yet"

_CONFIGS: Final = (
    _number("retention.ms", _WEEK_MS, -1, "How long records are kept; -1: for ever."),
    _number("retention.bytes", -1, -1, "Bytes kept per partition; -1: no limit."),
    TopicConfig(
        name="cleanup.policy", type=ConfigType.LIST, default="delete",
        text="What becomes of old records: deleted by age and size, compacted by key, or both.",
        choices=("delete", "compact", "compact,delete", "delete,compact"),
    ),
    _number("delete.retention.ms", 86_400_000, 0, "How long a tombstone stays once it was cleaned. A node that was away for longer copies the log whole."),
    TopicConfig(
        name="min.cleanable.dirty.ratio", type=ConfigType.DOUBLE, default="0.5", high=1,
        text="The part of a log that must be new before it is cleaned.",
    ),
    _number("min.compaction.lag.ms", 0, 0, "How old a record is at least when it is cleaned."),
    _number("max.compaction.lag.ms", _INT64_MAX, 1, "How old a record is at most before it is cleaned."),
    _number("segment.bytes", 1 << 30, 4096, "Size at which a segment is sealed.", _INT32_MAX),
    _number("segment.ms", _WEEK_MS, 1, "Age at which a segment is sealed."),
    _number(
        "max.message.bytes", BATCH_BYTES_DEFAULT, 0, "Largest batch accepted.", REQUEST_BYTES_MAX
    ),
    _choice(
        "compression.type",
        "The codec that batches are kept in; producer: as they come. Others are compressed anew.",
        "producer", "uncompressed", "gzip", "snappy", "lz4", "zstd",
    ),
    _level("gzip", -1, -1, 9),
    _level("lz4", 9, 1, 17),
    _level("zstd", 3, -131_072, 22),
    _choice(
        "message.timestamp.type",
        "Whose clock records carry: the producer's, or this node's when it appends.",
        "CreateTime", "LogAppendTime",
    ),
    _number(
        "message.timestamp.before.max.ms", _INT64_MAX, 0,
        "How far a batch's first or highest timestamp may lie in the past.",
    ),
    _number(
        "message.timestamp.after.max.ms", 3_600_000, 0,
        "How far a batch's first or highest timestamp may lie in the future.",
    ),
    TopicConfig(
        name=DOMAIN_KEY, type=ConfigType.STRING, default="main",
        text="The domain that the topic fails over with; fixed at creation.",
    ),
    TopicConfig(
        name="tidemark.encryption", type=ConfigType.STRING, default="",
        text="The named key that records are sealed under at rest; empty: none. Of batches that come from then on.",
    ),
    _number(
        MIN_IN_SYNC, 1, 1,
        "Nodes of the region that must be in sync for a write with acks=all; at most as many as the region has. A topic that does not say it has 2 in"
        " a region of three nodes or more.",
        NODES_MAX,
    ),
    _fixed("unclean.leader.election.enable", ConfigType.BOOLEAN, "false", "it would lose data"),
    _number("flush.messages", _INT64_MAX, 1, _FLUSHED),
    _number("flush.ms", _INT64_MAX, 0, _FLUSHED),
    _fixed("file.delete.delay.ms", ConfigType.LONG, "60000", "segments are deleted at once"),
    _fixed("index.interval.bytes", ConfigType.INT, "4096", "the index keeps its own spacing"),
    _fixed("segment.index.bytes", ConfigType.INT, "10485760", "indexes have no fixed size"),
    _fixed("segment.jitter.ms", ConfigType.LONG, "0", "segments are sealed without jitter"),
    _fixed("preallocate", ConfigType.BOOLEAN, "false", "segments grow as they are written"),
    _fixed("remote.storage.enable", ConfigType.BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.log.copy.disable", ConfigType.BOOLEAN, "false", _NO_TIERS),
    _fixed("remote.log.delete.on.disable", ConfigType.BOOLEAN, "false", _NO_TIERS),
    _fixed("local.retention.ms", ConfigType.LONG, "-2", _NO_TIERS),
    _fixed("local.retention.bytes", ConfigType.LONG, "-2", _NO_TIERS),
    _fixed("leader.replication.throttled.replicas", ConfigType.LIST, "", _ONE_NODE),
    _fixed("follower.replication.throttled.replicas", ConfigType.LIST, "", _ONE_NODE),
)  # fmt: skip
TOPIC_CONFIGS: Final[Mapping[str, TopicConfig]] = {config.name: config for config in _CONFIGS}


# What Kafka calls the default of all topics among its broker configs (ServerTopicConfigSynonyms). Those without a
# default of that very name (log.retention.ms, log.roll.ms ...) are left out, as Kafka does.
BROKER_NAMES: Final[Mapping[str, str]] = {
    "cleanup.policy": "log.cleanup.policy",
    "compression.gzip.level": "compression.gzip.level",
    "compression.lz4.level": "compression.lz4.level",
    "compression.type": "compression.type",
    "compression.zstd.level": "compression.zstd.level",
    "delete.retention.ms": "log.cleaner.delete.retention.ms",
    "file.delete.delay.ms": "log.segment.delete.delay.ms",
    "flush.messages": "log.flush.interval.messages",
    "index.interval.bytes": "log.index.interval.bytes",
    "local.retention.bytes": "log.local.retention.bytes",
    "local.retention.ms": "log.local.retention.ms",
    "max.compaction.lag.ms": "log.cleaner.max.compaction.lag.ms",
    "max.message.bytes": "message.max.bytes",
    "message.timestamp.after.max.ms": "log.message.timestamp.after.max.ms",
    "message.timestamp.before.max.ms": "log.message.timestamp.before.max.ms",
    "message.timestamp.type": "log.message.timestamp.type",
    "min.cleanable.dirty.ratio": "log.cleaner.min.cleanable.ratio",
    "min.compaction.lag.ms": "log.cleaner.min.compaction.lag.ms",
    "min.insync.replicas": "min.insync.replicas",
    "preallocate": "log.preallocate",
    "retention.bytes": "log.retention.bytes",
    "segment.bytes": "log.segment.bytes",
    "segment.index.bytes": "log.index.size.max.bytes",
    "unclean.leader.election.enable": "unclean.leader.election.enable",
}


def config_problem(configs: Mapping[str, str | None], domains: Collection[str]) -> str | None:
    """Return the reasons to refuse `configs`, all that a topic will have, or None; `domains` that exist."""
    judged = (_problem_of(name, value, domains) for name, value in configs.items())
    found = (problem for problem in judged if problem is not None)
    problems = list(islice(found, PROBLEMS_TOLD_MAX))  # INV-CT3
    if not problems:
        problems += _together(configs)
    return "; ".join(problems) or None


def normal(configs: Mapping[str, str]) -> dict[str, str]:
    """Return configs as they are kept, each value as its key's type writes it (INV-CT4)."""
    return {
        name: value if (known := TOPIC_CONFIGS.get(name)) is None else known.normal(value)
        for name, value in configs.items()
    }


def told_to_mirror(configs: Mapping[str, str]) -> dict[str, str]:
    """Return configs as a mirror is told them: as they are, but what a version before INV-CT4 kept in megabytes."""
    is_long = any(len(value) > TOPIC_CONFIG_CHARS_MAX for value in configs.values())
    return normal(configs) if is_long else dict(configs)


def told_by_primary(configs: Mapping[str, str]) -> dict[str, str]:
    """Return the configs that another region tells of, as they are kept; ValueError where no version keeps such ones.

    A newer version may know more keys. One before INV-CT4 kept values as they came, which are normal here.
    """
    kept = normal(configs)
    if len(kept) > TOPIC_CONFIG_COUNT_MAX:
        raise ValueError(f"{len(kept)} configs, of {TOPIC_CONFIG_COUNT_MAX} at most")
    for name, value in kept.items():
        if max(len(name), len(value)) > TOPIC_CONFIG_CHARS_MAX:
            raise ValueError(
                f"{_shown(name)}={_shown(value)}, which is longer than {TOPIC_CONFIG_CHARS_MAX} characters"
            )
    return kept


def _problem_of(name: str, value: str | None, domains: Collection[str]) -> str | None:
    known = TOPIC_CONFIGS.get(name)
    if known is None:
        looked_at = name[:_LOOKED_AT]
        return (
            f"there is no topic config {looked_at!r}{nearest(looked_at, TOPIC_CONFIGS)}"
            " (`tidemark topic describe NAME --configs` lists those there are)"
        )
    if value is None:
        return f"{name} has no value; leave the key out to get the default {known.default}"
    problem = known.problem(value)
    if problem is None and name == DOMAIN_KEY and value not in domains:
        return f"{DOMAIN_KEY}={_shown(value)}: there is no such domain, only {', '.join(sorted(domains))}"
    return problem


def _together(configs: Mapping[str, str | None]) -> list[str]:
    """Return what contradicts another key (LogConfig.validateValues)."""

    def number(name: str) -> int:
        return int(configs.get(name) or TOPIC_CONFIGS[name].default)

    least_ms, most_ms = number("min.compaction.lag.ms"), number("max.compaction.lag.ms")
    if least_ms <= most_ms:
        return []
    wrong = f"min.compaction.lag.ms={least_ms} is above max.compaction.lag.ms={most_ms}"
    return [f"{wrong}: a record would have to be cleaned before it may be"]
