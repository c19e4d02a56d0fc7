"""The log of one partition: a folder of segments, the state that their replay gives, and what of it is durable.

    content     what it holds, and whether it runs      (`parts.content`)
    appender    what goes in                            (`parts.appender`)
    durability  what is durable, and how the rest gets there (`parts.durability`)
    trimmer     what goes from its two ends             (`parts.trimmer`)
    cleaning    holes, by key                           (`cleaning.state`)

Appending is synchronous (into the page cache); making durable is a matter of the node (`group_commit`).
Not here: judging a client's batch, roles, waiters (`partitions.partition`).
"""

import logging
from pathlib import Path
from typing import Final

from idempotency.partition_state import AbortedTxn, PartitionState
from region_broker.log.cleaning.state import CleaningState
from region_broker.log.failures import PartitionFailed
from region_broker.log.indexes.leader_epochs import LeaderEpochs
from region_broker.log.journal.sync_job import SyncJob
from region_broker.log.log_config import LogConfig
from region_broker.log.log_setup import LogSetup
from region_broker.log.parts.appender import LogAppender
from region_broker.log.parts.content import LogContent
from region_broker.log.parts.durability import LogDurability
from region_broker.log.parts.trimmer import LogTrimmer
from region_broker.log.recovery.opening import RecoveredLog, recover
from region_broker.log.segment_list import SegmentList

logger: Final = logging.getLogger(__name__)


class PartitionLog:
    """See the module's head. Belongs to the event loop."""

    def __init__(self, setup: LogSetup, recovered: RecoveredLog) -> None:
        """Use `PartitionLog.open`."""
        self.folder = setup.folder
        self.listener = setup.listener
        self.is_opened = True
        """False where it could not be opened: what it tells is not what is on disk."""
        self.recovered_clean = recovered.clean
        self.content = content = LogContent(setup, recovered)
        self.durability = LogDurability(
            content, setup.log_id, checkpointed_bytes=recovered.checkpointed_bytes
        )
        self.appender = LogAppender(content, self.durability)
        self.cleaning = CleaningState(content.disk, setup.folder, recovered.mark)
        self.trimmer = LogTrimmer(content, self.durability, self.cleaning, setup.journal_mark)

    @classmethod
    def open(cls, setup: LogSetup) -> "PartitionLog":
        """Open or create the log; raises LogDamaged, or OSError of the disk."""
        recovered = recover(setup.folder, setup.cache, setup.config, setup.journal_mark())
        log = cls(setup, recovered)
        log.durability.open_checkpoint(recovered.fence, clean=recovered.settled)
        log.listener.on_read(log.durability)
        return log

    @classmethod
    def broken(cls, setup: LogSetup, reason: str) -> "PartitionLog":
        """Return a log that could not be opened: empty, failed, and touching nothing on disk."""
        nothing = RecoveredLog(
            segments=[], state=PartitionState(), epochs=LeaderEpochs(), clean=False
        )
        log = cls(setup, nothing)
        log.content.failed, log.is_opened = reason, False
        return log

    # -- where it is -----------------------------------------------------------------------------

    @property
    def config(self) -> LogConfig:
        """The settings of the topic."""
        return self.content.config

    def reconfigure(self, config: LogConfig) -> None:
        """Go on under other settings of the topic."""
        self.content.config = config

    @property
    def state(self) -> PartitionState:
        """The replay of the log (read access)."""
        return self.content.state

    @property
    def epochs(self) -> LeaderEpochs:
        """Which leader epoch began where."""
        return self.content.epochs

    @property
    def segments(self) -> SegmentList:
        """The segments, for reading; `cleaning` replaces sealed ones."""
        return self.content.segments

    @property
    def log_start_offset(self) -> int:
        """The first offset that is still there."""
        return self.content.start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset that is written."""
        return self.content.end_offset

    @property
    def size_bytes(self) -> int:
        """Bytes of all segments."""
        return sum(segment.size_bytes for segment in self.segments.segments)

    def sealed_paths(self) -> list[Path]:
        """Return the paths of the sealed segments, oldest first."""
        return [segment.path for segment in self.segments.segments if segment.file is None]

    def aborted_in(
        self, start: int, end: int, bound: int, *, wait: bool = True
    ) -> list[AbortedTxn]:
        """Return the aborted transactions that touch [start, end), markers below `bound` (C38)."""
        found = set(self.content.state.aborted_in(start, end, bound))
        found.update(self.content.segments.aborted_in_sealed(start, end, bound, wait=wait))
        return sorted(found, key=lambda txn: txn.first_offset)

    # -- running and stopping --------------------------------------------------------------------

    @property
    def failed(self) -> str | None:
        """Why the log has stopped; None while it runs (INV-PL4)."""
        return self.content.failed

    @property
    def is_running(self) -> bool:
        """Whether it has files, and takes what is written."""
        content = self.content
        return content.failed is None and not content.closed and content.active is not None

    def check_running(self) -> None:
        """Raise PartitionFailed if the log has stopped."""
        self.content.check_running()

    def fail(self, reason: str) -> None:
        """Stop for good, loudly. Later calls change nothing."""
        self.content.fail(reason)

    def settle(self) -> None:
        """Let the next start believe all that is there, if all of it is synced (INV-CLG2). Nothing is written meanwhile; may be
        called in a thread. Raises OSError."""
        content = self.content
        with self.durability.files.lock:
            if (
                content.failed is None
                and not content.closed
                and content.unsettled is None
                and self.durability.begin_last_sync() is None
            ):
                self.cleaning.interrupt()
                self.durability.write_clean_state(self.cleaning.holes_below)

    def close(self) -> None:
        """Close for good; cleanly, unless the log has failed: then the next start recovers it."""
        content, files = self.content, self.durability.files
        if content.closed:
            return
        if content.failed is None and content.active is not None:
            try:
                self.durability.sync_now()
                self.settle()
            except OSError as error:
                content.fail(f"closing {content.folder} failed: {error}")
            except PartitionFailed:
                logger.warning("%s is not closed cleanly", content.folder)
        with files.lock:
            content.closed = True
            files.void()
            self.durability.close_files()

    # -- a log that is deleted (`log.leaving`) -------------------------------------------------

    def settle_left(self, last: SyncJob | None) -> None:
        """Make durable all that a log holds that was left, in a thread. Raises OSError."""
        durability = self.durability
        error = None if last is None else durability.files.run_last(last)
        if error is not None:
            raise error
        with durability.files.lock:
            if self.content.unsettled is not None:
                self.content.unsettled.settle()
            self.cleaning.interrupt()
            durability.write_clean_state(self.cleaning.holes_below)
        durability.owes_sync = False

    def close_left(self) -> None:
        """Close the files of a log that was left."""
        with self.durability.files.lock:
            self.durability.close_files()
