"""A partition as replication sees it: its history by leader epochs, and how far it is known to be committed.

Not here: what is made of it (`replication.facts`, `replication.following`).
"""

from region_broker.partitions.partition import Partition
from region_broker.replication.events import LocalLog
from region_broker.replication.facts import EpochStart, LogHistory


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


def local_log(partition: Partition) -> LocalLog:
    """Return the log as a follower begins a session with it."""
    return LocalLog(
        history_of(partition),
        partition.commits.durable_end,
        noted_high_watermark(partition),
        partition.log_start_offset,
    )
