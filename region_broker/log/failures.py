"""What can go wrong with a log, one class per thing that a caller must tell apart.

Not here: Kafka's error numbers (`region_broker.handlers`).
"""

from collections.abc import Callable
from pathlib import Path


class LogError(Exception):
    """Base of all errors of a log."""


class PartitionFailed(LogError):
    """The partition has stopped: a write or a sync failed, or its files are damaged.

    Nothing that was acknowledged is lost; what still waited has an unknown outcome. The process goes on
    with its other partitions; this one starts again with the process, after recovery.
    """


class NotLeader(LogError):
    """The partition does not take writes here (any more); the outcome of a waiting write is unknown."""


class LogDamaged(LogError):
    """Bytes that were known to be durable are missing or wrong. Never repaired silently."""


class CorruptRange(LogError):
    """What lies at `offset` is not what was written: it is never given out. The rest of the log is served."""

    def __init__(self, offset: int, reason: str) -> None:
        """Carry the offset that was asked for, and what is wrong there."""
        super().__init__(reason)
        self.offset = offset


class SealedRecords(LogError):
    """The records are sealed, and this node has not the key. Whoever copies bytes needs none."""


class NotMended(LogError):
    """A damaged range stays as it is: nobody has what belongs there, or nobody can prove it. The text says which."""


class NoRangeFits(NotMended):
    """As above, and it will never be mended by a range: only another copy of the whole log has what belongs there."""


class NewerFormat(LogError):
    """The data folder was written by a newer version of Tidemark, or is not one of ours."""


class UnsupportedConfig(LogError):
    """A topic config that the log does not honour, or a value that makes no sense."""


class MirrorGap(LogError):
    """Mirrored batches do not continue the log: a gap, an overlap or a leader epoch that goes back."""


class NotABatchBoundary(LogError):
    """A log can only be cut between two batches that it holds."""


class CutIntoCleaned(LogError):
    """A log was to be cut where compaction has removed what the cut-off records superseded: both would be lost."""


class ColdRange(Exception):
    """A read that was not to wait met bytes that are not in memory: `Disk.warm` them, and read again.

    No LogError: whoever reads without waiting must say what comes then (`cold_reads`).
    """

    def __init__(self, path: Path, position: int, size_bytes: int) -> None:
        """Carry the file and the range of it that is to be warmed."""
        super().__init__(f"{path}: {size_bytes} bytes at {position} are not in memory")
        self.path = path
        self.position = position
        self.size_bytes = size_bytes
        self.is_a_try = True
        """Whether it may be met again and again (INV-CO2)."""
        self.others: tuple[ColdRange, ...] = ()
        """What the same reading also lacks: it looked on."""


class AsideRange(ColdRange):
    """A read that was not to wait met what takes long to make: call `work` in a thread, and read again."""

    def __init__(self, work: Callable[[], None], path: Path, size_bytes: int) -> None:
        """Carry what makes it, and of how many bytes."""
        super().__init__(path, 0, size_bytes)
        self.work = work


class TurnOver(AsideRange):
    """As above, with nothing to make: others have their turn. What was found by then is known when it reads again, so that this ends."""

    def __init__(self, path: Path) -> None:
        """Carry the file that is looked into next."""
        super().__init__(_nothing, path, 0)
        self.is_a_try = False


def _nothing() -> None:
    """Others have had their turn."""


class SealedRange(AsideRange):
    """As above: more sealed bytes than it opens itself."""

    def __init__(self, work: Callable[[], None], size_bytes: int) -> None:
        """Carry what opens them."""
        super().__init__(work, Path(), size_bytes)


class OffsetOutOfRange(LogError):
    """The offset is neither in the log nor its end."""

    def __init__(self, offset: int, log_start_offset: int, log_end_offset: int) -> None:
        """Carry the offset asked for and the range that there is: [start, end]."""
        super().__init__(f"offset {offset} is outside [{log_start_offset}, {log_end_offset}]")
        self.offset = offset
        self.log_start_offset = log_start_offset
        self.log_end_offset = log_end_offset
