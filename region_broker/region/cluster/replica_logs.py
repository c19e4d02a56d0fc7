"""A partition as replication sees it: its history by leader epochs, and how far it is known to be committed.

Not here: what is made of it (`replication.facts`, `replication.following`).
"""

from collections.abc import Callable, Iterator
from typing import Protocol

from idempotency.identity import LogKey
from region_broker.log.cold_reads import ColdReads
from region_broker.partitions.disk_room import DiskRoom
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.replication.events import LocalLog
from region_broker.replication.facts import EpochStart, LogHistory


class LogSet(Protocol):
    """The logs that are copied together: the table of all, or those of one replica group (`GroupLogs`)."""

    @property
    def cold_reads(self) -> ColdReads:
        """What reads in what memory has not."""
        ...

    @property
    def room(self) -> DiskRoom:
        """Whether the disk has room."""
        ...

    def __iter__(self) -> Iterator[Partition]:
        """Yield the logs, those that have stopped, too."""
        ...


class GroupLogs:
    """The logs of one replica group. `takes`: whether a log belongs to it now; None: all do."""

    def __init__(
        self, table: PartitionTable, takes: Callable[[], Callable[[LogKey], bool] | None]
    ) -> None:
        """Look into `table`, each time anew."""
        self._table = table
        self._takes = takes

    @property
    def cold_reads(self) -> ColdReads:
        """See `LogSet`."""
        return self._table.cold_reads

    @property
    def room(self) -> DiskRoom:
        """See `LogSet`."""
        return self._table.room

    def __iter__(self) -> Iterator[Partition]:
        """See `LogSet`."""
        takes = self._takes()
        return iter(self._table) if takes is None else (p for p in self._table if takes(p.key))


def noted_high_watermark(partition: Partition) -> int:
    """Return up to where the log is known to be committed: what a leader has said of it in this life of the process, or the log start.

    Never the durable end itself: what lies between may have to be cut.
    """
    noted = partition.log.durability.committed_offset
    known = partition.log_start_offset if noted is None else max(noted, partition.log_start_offset)
    return min(known, partition.commits.durable_end)


def history_of(partition: Partition) -> LogHistory:
    """Return where the leader epochs of the log start, those without a record left out (INV-E3)."""
    end_offset = partition.log_end_offset
    starts = tuple(
        EpochStart(leader_epoch, start_offset)
        for leader_epoch, start_offset in partition.log.epochs.entries()
        if start_offset < end_offset
    )
    return LogHistory(starts, partition.kept_from, end_offset)


def drops_of(partition: Partition) -> tuple[int, int]:
    """Return what compaction has dropped of the log here, as `Drops` has it; after the log was read (INV-RPF10)."""
    return partition.log.cleaning.dropped_below, partition.log.cleaning.drops


def local_log(partition: Partition) -> LocalLog:
    """Return the log as a follower begins a session with it."""
    return LocalLog(
        history_of(partition), partition.commits.durable_end, noted_high_watermark(partition),
        partition.log.cleaning.mark.cleaned_here_below,
    )  # fmt: skip
