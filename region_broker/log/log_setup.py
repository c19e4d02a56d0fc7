"""What a log is opened with, and whom it tells.

Not here: the log (`partition_log`), a topic's settings (`log_config`).
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from region_broker.log.indexes.checked_file import NO_MARK, JournalMark
from region_broker.log.journal.blocks import LogId
from region_broker.log.journal.sync_job import DirtyLog, RecoveryCheckpointTarget
from region_broker.log.log_config import FlushPolicy, LogConfig
from region_broker.log.segment import SealedCache


@dataclass(slots=True)
class LogListener:
    """Who is told: `on_dirty` after an append, `on_stable` when `stable_offset` moved or the log failed.

    `on_grown(log, bytes)`: that much was appended, and lies behind the recovery checkpoint. `on_read(log)`: what lies there was read, as the
    log was opened or cut.
    """

    on_dirty: Callable[[DirtyLog], None]
    on_stable: Callable[[], None] = field(default=lambda: None)
    on_grown: Callable[[RecoveryCheckpointTarget, int], None] = field(
        default=lambda _log, _bytes: None
    )
    on_read: Callable[[RecoveryCheckpointTarget], None] = field(default=lambda _log: None)


@dataclass(slots=True, kw_only=True)
class LogSetup:
    """What a log is opened with. Without `log_id` it never uses the journal; `journal_mark` names its last block."""

    folder: Path
    cache: SealedCache
    config: LogConfig
    flush_policy: FlushPolicy
    listener: LogListener
    wall_ms: Callable[[], int] = field(default=lambda: 0)
    log_id: LogId | None = None
    journal_mark: Callable[[], JournalMark] = field(default=lambda: NO_MARK)
