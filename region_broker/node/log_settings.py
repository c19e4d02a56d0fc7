"""What the logs of a node are opened with: their settings, and the keys of sealed topics.

Not here: opening them (`storage`).
"""

from pathlib import Path
from typing import Final

from idempotency.ports import Clock
from region_broker.config.node_config import NodeConfig
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.ports.disk import Disk
from region_broker.security.sealing.key_ring import RingError
from region_broker.security.sealing.sealing import KeysFile, Sealing

KeysRefused: Final = RingError
"""The file of keys that the configuration names cannot be used (INV-SEA1)."""


def log_settings(config: NodeConfig, present: NodeConfig) -> NodeLogConfig:
    """Return the settings of a file; `present` is what counts now of what may change."""
    return NodeLogConfig(
        flush_policy=FlushPolicy(config.flush_policy),
        flush_interval_ms=config.flush_interval_ms,
        journal_bytes=config.journal_bytes,
        proves_full_segments=len(config.own.nodes) > 1,  # INV-R9: others have what is missing
        cached_tail_bytes=config.cached_tail_bytes,
        disk_free_bytes_min=present.disk_free_bytes_min,
        deleted_topic_retention_ms=present.deleted_topic_retention_ms,
        partition_producers_max=present.partition_producers_max,
        producers_max=present.producers_max,
    )


def sealing_of(config: NodeConfig, disk: Disk, clock: Clock) -> Sealing:
    """Return the keys that a node has, read; raises `KeysRefused`. Blocks."""
    path = config.encryption_keys_file
    sealing = Sealing(KeysFile(disk, Path(path)) if path else None, clock.monotonic_ms)
    sealing.read()
    return sealing
