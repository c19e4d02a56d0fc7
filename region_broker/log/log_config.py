"""Settings of a log: those of the node, and those of a topic in Kafka's names.

Not here: which config keys a topic may have at all and their documentation (`handlers/describe_configs`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Final

from region_broker.log.failures import UnsupportedConfig

INT32_MAX: Final = 2**31 - 1
INT64_MAX: Final = 2**63 - 1
SEGMENT_BYTES_MIN: Final = 4096


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
    open_files_max: int = 512
    index_interval_bytes: int = 8192
    segment_bytes: int = 1 << 30
    segment_ms: int = 7 * 24 * 3_600_000
    retention_ms: int = 7 * 24 * 3_600_000
    retention_bytes: int = -1
    message_bytes_max: int = 1_048_588
    producer_id_expiration_ms: int = 86_400_000


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """Settings of one topic's logs. -1 for `retention_ms` and `retention_bytes`: without limit."""

    segment_bytes: int
    segment_ms: int
    retention_ms: int
    retention_bytes: int
    message_bytes_max: int
    index_interval_bytes: int


def topic_log_config(node: NodeLogConfig, configs: Mapping[str, str]) -> LogConfig:
    """Return the settings of a topic from its set configs; keys that are no concern of the log are skipped.

    Raises UnsupportedConfig for a value that is not served.
    """
    timestamp_type = configs.get("message.timestamp.type", "CreateTime")
    if timestamp_type != "CreateTime":
        raise UnsupportedConfig(
            f"message.timestamp.type={timestamp_type} is not served yet: only CreateTime is; leave it out"
        )

    def number(key: str, default: int, low: int, high: int) -> int:
        text = configs.get(key)
        if text is None:
            return default
        try:
            value = int(text)
        except ValueError:
            value = low - 1
        if not low <= value <= high:
            raise UnsupportedConfig(f"{key}={text} is not a whole number from {low} to {high}")
        return value

    return LogConfig(
        segment_bytes=number("segment.bytes", node.segment_bytes, SEGMENT_BYTES_MIN, INT32_MAX),
        segment_ms=number("segment.ms", node.segment_ms, 1, INT64_MAX),
        retention_ms=number("retention.ms", node.retention_ms, -1, INT64_MAX),
        retention_bytes=number("retention.bytes", node.retention_bytes, -1, INT64_MAX),
        message_bytes_max=number("max.message.bytes", node.message_bytes_max, 0, INT32_MAX),
        index_interval_bytes=node.index_interval_bytes,
    )
