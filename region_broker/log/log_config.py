"""Settings of a log: those of the node, and those of a topic in Kafka's names.

Not here: which config keys a topic may have at all and their documentation (`handlers/describe_configs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from region_broker.limits import (
    JOURNAL_BYTES_DEFAULT,
    PARTITION_PRODUCERS_DEFAULT,
    PRODUCERS_DEFAULT,
)
from region_broker.log.failures import UnsupportedConfig
from region_broker.records.compression import LEVELS, Codec

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
SEGMENT_BYTES_MIN: Final = 4096
TIMESTAMP_AFTER_MS_DEFAULT: Final = 3_600_000  # Kafka 4's message.timestamp.after.max.ms


class FlushPolicy(Enum):
    """When an append counts as stable, for the whole node."""

    COMMIT = "commit"
    """Below HW only after its fdatasync: the default."""
    INTERVAL = "interval"
    """At once; synced every `flush_interval_ms`. A power loss may take that much."""
    OS = "os"
    """At once; synced at segment roll and clean close only."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLogConfig:
    """Settings of the node; the defaults of topics that say nothing else."""

    flush_policy: FlushPolicy = FlushPolicy.COMMIT
    flush_interval_ms: int = 1000
    journal_bytes: int = JOURNAL_BYTES_DEFAULT
    """Size of the node's journal; 0: none is used."""
    open_files_max: int = 512
    index_interval_bytes: int = 8192
    proves_full_segments: bool = False
    """Whether a start compares full segments with what they were sealed as after a clean stop, too (INV-R9)."""
    cached_tail_bytes: int = 0
    """How much of the open segment's end stays in memory where a log is written in bulk; 0: the system decides."""
    disk_free_bytes_min: int = 0
    """While less is free, clients' records are refused (`partitions.disk_room`); 0: never."""
    deleted_topic_retention_ms: int = 0
    """How long deletions are kept (`log.recovery.kept_deletions`); 0: not at all."""
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = -1
    message_bytes_max: int = 1_048_588
    producer_id_expiration_ms: int = 86_400_000
    partition_producers_max: int = PARTITION_PRODUCERS_DEFAULT
    producers_max: int = PRODUCERS_DEFAULT
    """How many producers one log, and all of them together, may know (`partitions.producer_room`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordRules:
    """What a topic asks of batches, and makes of them: time stamps in ms, and the codec that they are kept in.

    `codec` None: as the producer chose; `level` None: the codec's default.
    """

    log_append_time: bool = False
    before_max_ms: int = INT64_MAX
    after_max_ms: int = TIMESTAMP_AFTER_MS_DEFAULT
    codec: Codec | None = None
    level: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningRules:
    """How a topic is compacted: Kafka's min.cleanable.dirty.ratio, delete.retention.ms, min and max.compaction.lag.ms."""

    dirty_ratio_min: float = 0.5
    tombstones_ms: int = 86_400_000
    lag_min_ms: int = 0
    lag_max_ms: int = INT64_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one topic's logs. -1 for `retention_ms` and `retention_bytes`: without limit."""

    segment_bytes: int
    segment_ms: int
    retention_ms: int
    retention_bytes: int
    message_bytes_max: int
    index_interval_bytes: int
    cached_tail_bytes: int = 0
    proves_full_segments: bool = False
    records: RecordRules = RecordRules()
    compacts: bool = False
    deletes: bool = True
    cleaning: CleaningRules = CleaningRules()
    encryption: str = ""
    """The named key that batches are sealed under before they are written; "": none."""


ENCRYPTION_KEY: Final = "tidemark.encryption"


def topic_log_config(node: NodeLogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return the settings of a topic from its set configs; keys that are no concern of the log are skipped.

    Raises UnsupportedConfig for a value that is not served.
    """
    values = _Values(configs)
    policies = {word.strip() for word in configs.get("cleanup.policy", "delete").split(",")}
    if not policies <= {"compact", "delete", ""}:
        raise UnsupportedConfig(
            f"cleanup.policy={configs['cleanup.policy']} is not served, only delete, compact and both"
        )
    encryption = configs.get(ENCRYPTION_KEY, "")
    if encryption and "compact" in policies:
        raise UnsupportedConfig(
            f"{ENCRYPTION_KEY}={encryption} together with cleanup.policy={configs['cleanup.policy']} is not served: who compacts must read keys,"
            " and regions would seal what stays each in its own way (docs/ROADMAP.md)"
        )
    lag_max_ms = values.number("max.compaction.lag.ms", INT64_MAX, 1, INT64_MAX)
    segment_ms = values.number("segment.ms", node.segment_ms, 1, INT64_MAX)
    return LogConfig(
        segment_bytes=values.number(
            "segment.bytes", node.segment_bytes, SEGMENT_BYTES_MIN, INT32_MAX
        ),
        # What lies in the active segment is never cleaned: it must be full in time (Kafka LogConfig).
        segment_ms=min(segment_ms, lag_max_ms) if "compact" in policies else segment_ms,
        retention_ms=values.number("retention.ms", node.retention_ms, -1, INT64_MAX),
        retention_bytes=values.number("retention.bytes", node.retention_bytes, -1, INT64_MAX),
        message_bytes_max=values.number("max.message.bytes", node.message_bytes_max, 0, INT32_MAX),
        index_interval_bytes=node.index_interval_bytes,
        cached_tail_bytes=node.cached_tail_bytes,
        proves_full_segments=node.proves_full_segments,
        records=_record_rules(values),
        compacts="compact" in policies,
        deletes="delete" in policies,
        cleaning=CleaningRules(
            dirty_ratio_min=values.ratio("min.cleanable.dirty.ratio", 0.5),
            tombstones_ms=values.number("delete.retention.ms", 86_400_000, 0, INT64_MAX),
            lag_min_ms=values.number("min.compaction.lag.ms", 0, 0, INT64_MAX),
            lag_max_ms=lag_max_ms,
        ),
        encryption=encryption,
    )


def _record_rules(values: "_Values") -> RecordRules:
    time_type = values.one_of("message.timestamp.type", "CreateTime", "LogAppendTime")
    codec = _CODECS[values.one_of("compression.type", *_CODECS)]
    level: int | None = None
    if codec is not None and codec in LEVELS:
        name = codec.name.lower()
        level = values.number(f"compression.{name}.level", *LEVELS[codec])
    return RecordRules(
        log_append_time=time_type == "LogAppendTime",
        before_max_ms=values.number("message.timestamp.before.max.ms", INT64_MAX, 0, INT64_MAX),
        after_max_ms=values.number(
            "message.timestamp.after.max.ms", TIMESTAMP_AFTER_MS_DEFAULT, 0, INT64_MAX
        ),
        codec=codec,
        level=level,
    )


_CODECS: Final[dict[str, Codec | None]] = {
    "producer": None,
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}


@dataclass(frozen=True, slots=True)
class _Values:
    """The set configs of a topic; each reading raises UnsupportedConfig for a value that is not served."""

    configs: Mapping[str, str]

    def number(self, key: str, default: int, low: int, high: int) -> int:
        text = self.configs.get(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise UnsupportedConfig(f"{key}={text} is not a whole number from {low} to {high}")
        return value

    def ratio(self, key: str, default: float) -> float:
        text = self.configs.get(key)
        try:
            value = default if text is None else float(text)
        except ValueError:
            value = -1.0
        if not 0.0 <= value <= 1.0:
            raise UnsupportedConfig(f"{key}={text} is not a number from 0 to 1")
        return value

    def one_of(self, key: str, default: str, *others: str) -> str:
        value = self.configs.get(key, default)
        if value not in (default, *others):
            served = ", ".join((default, *others))
            raise UnsupportedConfig(f"{key}={value} is not served, only {served}")
        return value
