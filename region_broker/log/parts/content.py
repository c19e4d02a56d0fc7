"""What one log holds: its segments, what their replay gives, where it ends, and whether it still runs.

INV-PL3  state == replay(log) after every call of a part
INV-PL4  after the first failed write or sync the log takes nothing more and says why in `failed`; nothing is retried
Offsets are contiguous from the log start to `end_offset`, but for holes below `cleaning.holes_below`; bytes once
written never change, except that a cut takes the end off.

Not here: what changes it (`appender`, `trimmer`), what of it is durable (`durability`).
"""

import logging
from typing import Final

from region_broker.log.failures import PartitionFailed
from region_broker.log.journal.cut_job import CutEnd
from region_broker.log.log_setup import LogSetup
from region_broker.log.recovery.opening import RecoveredLog
from region_broker.log.segment import Segment
from region_broker.log.segment_list import SegmentList

logger: Final = logging.getLogger(__name__)


class LogContent:
    """One for each log; its fields are for the parts to change, and for everybody to read."""

    __slots__ = (
        "active", "cache", "closed", "config", "disk", "end_offset", "epochs", "failed", "folder", "listener", "policy", "segments",
        "state", "unsettled", "wall_ms",
    )  # fmt: skip

    def __init__(self, setup: LogSetup, recovered: RecoveredLog) -> None:
        """Hold what was found on disk."""
        self.folder = setup.folder
        self.cache = setup.cache
        self.disk = setup.cache.disk
        self.config = setup.config
        """Of the topic; may be another one at any time."""
        self.policy = setup.flush_policy
        self.listener = setup.listener
        self.wall_ms = setup.wall_ms
        self.segments = SegmentList(setup.folder, setup.cache, recovered.segments)
        self.active: Segment | None = recovered.segments[-1] if recovered.segments else None
        """The open segment, the last one; None only in a log that could not be opened."""
        self.state = recovered.state
        self.epochs = recovered.epochs
        self.end_offset = self.active.next_offset if self.active is not None else 0
        self.failed: str | None = None
        self.closed = False
        self.unsettled: CutEnd | None = None
        """What is not durable yet of the last cut (INV-CTJ2)."""

    @property
    def start_offset(self) -> int:
        """The first offset that is still there."""
        bases = self.segments.bases
        return bases[0] if bases else 0

    @property
    def open_segment(self) -> Segment:
        """The segment that is written to, of a log that runs."""
        assert self.active is not None
        return self.active

    def check_running(self) -> None:
        """Raise PartitionFailed if the log has stopped."""
        if self.failed is not None:
            raise PartitionFailed(self.failed)
        if self.closed:
            raise PartitionFailed(f"{self.folder} is closed")

    def fail(self, reason: str) -> None:
        """Stop for good, loudly. Later calls change nothing."""
        if self.failed is None:
            self.failed = (
                f"{reason}; the partition takes and serves nothing until the node restarts"
            )
            logger.error("partition stopped: %s", self.failed)
            self.listener.on_stable()

    def close_segments(self) -> None:
        """Close the files of all segments."""
        for segment in self.segments.segments:
            self.cache.forget(segment.path)
            if segment.file is not None:
                segment.file.close()
