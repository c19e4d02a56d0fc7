"""One partition of one topic in this region: its log, its role, and who waits for it.

    log        the bytes                                  (`log.partition_log`)
    sight      its role, and how far readers may see      (`parts.sight`)
    writer     what goes in                               (`parts.writer`)
    reader     what comes out                             (`parts.reader`)
    retention  what goes from its beginning               (`parts.retention`)
    commits    who waits for HW, or for this disk alone, or for an order to delete (`parts.commits`)
    copies     which other node of the region is told     (`parts.copies`)
    copy_view  whether readers see a follower's copy      (`parts.copy_view`)
    watchers   who is told that readers may see more      (`readable_watchers`)

INV-PT2  HW never moves back but by `truncate_to` and `start_at`; what is below it survives a crash
INV-PT12  one that is closed is freed at once: none of its parts holds it, as the cycle collector comes too seldom for topics by thousands
Whoever waits for a commit, or watches, is told of every change of role, of a cut and of a stop: each of them goes
through this class.

Not here: what goes from the log's two ends (`trimming`), Kafka's error numbers.
"""

from functools import partial
from typing import NamedTuple
from uuid import UUID

from idempotency.identity import LeaderEpoch, LogKey, TopicPartition
from idempotency.partition_state import PartitionState
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.log.indexes.log_start import LogStart
from region_broker.log.partition_log import PartitionLog
from region_broker.partitions.commit_waiters import when_told
from region_broker.partitions.noted_starts import NotedStarts
from region_broker.partitions.opening_sealed import OpenedAside, OpeningSealed
from region_broker.partitions.parts.commits import Commits
from region_broker.partitions.parts.copies import Copies
from region_broker.partitions.parts.copy_view import CopyView
from region_broker.partitions.parts.reader import PartitionReader
from region_broker.partitions.parts.retention import Retention
from region_broker.partitions.parts.sight import Sight
from region_broker.partitions.parts.writer import PartitionWriter
from region_broker.partitions.producer_room import ProducerRoom
from region_broker.partitions.readable_watchers import ReadableWatchers
from region_broker.partitions.record_rules import Seal
from region_broker.partitions.record_threads import RecordThreads
from region_broker.partitions.trimming import Trimming
from region_broker.partitions.unreadable_records import UnreadableRecords
from region_broker.security.sealing.sealed_batch import LogPlace
from region_broker.security.sealing.sealing import Sealing


class SharedParts(NamedTuple):
    """What all partitions of a node share."""

    cold_reads: ColdReads
    sealing: Sealing
    opened_aside: OpenedAside
    producers: ProducerRoom
    lookup_threads: RecordThreads
    noted_starts: NotedStarts
    unreadable: UnreadableRecords


class Partition:
    """See the module's head. Belongs to the event loop."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        start: LogStart,
        shared: SharedParts,
    ) -> None:
        """Start as a mirror that shows nothing; `become_leader` or `become_mirror` follows."""
        place = LogPlace.of(topic_id, tp.partition)
        self.tp = tp
        self.topic_id = topic_id
        self.key = LogKey(topic_id, tp.partition)
        self.log = log
        self.sight = sight = Sight(log, start)
        self.watchers = ReadableWatchers()
        self._start = start
        self.trimming = Trimming(tp, log, start, shared.noted_starts)
        self.commits = Commits(log.content, log.durability)
        self.copies = Copies(log.listener)
        self.copy_view = CopyView(sight, self.watchers)
        self.writer = PartitionWriter(
            log, sight, self.trimming, self.follow_term,
            Seal(shared.sealing, place), shared.producers,
        )  # fmt: skip
        opening = OpeningSealed(tp, place, shared.sealing, shared.opened_aside)
        self.reader = PartitionReader(
            tp, log, sight, shared.cold_reads, opening,
            lookup_threads=shared.lookup_threads, unreadable=shared.unreadable,
        )  # fmt: skip
        self.retention = Retention(
            log, sight, self.trimming, self.watchers, self.copies, self.commits
        )
        log.listener.on_stable = self._stable_moved

    # -- where it is -----------------------------------------------------------------------------

    @property
    def state(self) -> PartitionState:
        """The replay of the log (read access)."""
        return self.log.content.state

    @property
    def failed(self) -> str | None:
        """Why the partition has stopped; None while it runs."""
        return self.log.content.failed

    @property
    def high_watermark(self) -> int:
        """The end of what is durable here, and on all in-sync members where other nodes of the region copy this log."""
        return self.log.durability.stable_offset

    def commit_up_to(self, offset: int | None) -> None:
        """Take `offset` for the end of what all in-sync members have; None: nobody else in the region has this log (INV-PL6)."""
        durability = self.log.durability
        if durability.committed_offset == offset:
            return
        durability.committed_offset = offset
        self.commits.moved()
        self.watchers.notify()

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may ask for: what lies below was deleted, by age, size or order."""
        return self.sight.log_start_offset

    @property
    def kept_from(self) -> int:
        """The first offset whose bytes are still there, at or below the log start: a batch begins there."""
        return self.log.content.start_offset

    @property
    def log_end_offset(self) -> int:
        """One past the last offset that is written."""
        return self.log.content.end_offset

    # -- roles -----------------------------------------------------------------------------------

    @property
    def is_leader(self) -> bool:
        """Whether the partition takes writes here."""
        return self.sight.is_leader

    @property
    def written_epoch(self) -> LeaderEpoch:
        """Return the newest leader epoch that something in the log was written under, -1 if nothing was."""
        return self.log.content.epochs.latest

    def epoch_end_offset(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
        """Return (largest leader epoch <= `leader_epoch`, its end offset); (-1, -1) if unknown (KIP-101)."""
        return self.sight.epoch_end_offset(leader_epoch)

    def end_of_older(self, leader_epoch: LeaderEpoch) -> int:
        """Return where the records of leader epochs below `leader_epoch` end."""
        return self.sight.end_of_older(leader_epoch)

    def become_leader(self, leader_epoch: LeaderEpoch) -> None:
        """Take writes from now on under `leader_epoch`; a log that holds a newer one is damaged, and stops (INV-R8)."""
        if leader_epoch < self.written_epoch:
            self.stop(
                f"its last batch has leader epoch {self.written_epoch}, and this term is {leader_epoch}: a damaged one. Restore"
                " the file from a mirror region"
            )
            return
        if not self.is_leader or self.sight.leader_epoch != leader_epoch:
            self.sight.lead(leader_epoch)
            self.watchers.notify()

    def become_mirror(self) -> None:
        """Take only mirrored batches from now on, and show no more than `show_up_to` says.

        A term of this region without a record ends here: the history that it mirrors may go on at this very offset,
        under an older leader epoch (INV-E3).
        """
        self.log.epochs.truncate_end(self.log_end_offset)
        if self.is_leader:
            self.sight.is_leader = False
            self.commits.fail(NotLeader(f"{self.tp} is a mirror here now; the outcome is unknown"))
        self.sight.is_copy_shown = False
        self.follow_term(self.written_epoch)
        self.watchers.notify()

    def follow_term(self, leader_epoch: LeaderEpoch) -> None:
        """Tell clients of a mirror the leader epoch of the primary region's term, under which this log may be idle.

        1. A region takes over and tells its clients a new leader epoch, of every partition. 2. One of them comes to
        a mirror, whose newest batch is of an older epoch. 3. It would hear UNKNOWN_LEADER_EPOCH, and ignore metadata
        that go back, until somebody writes.
        """
        if self.sight.follow_term(leader_epoch):
            self.watchers.notify()

    # -- what readers of a mirror see ------------------------------------------------------------

    @property
    def readers_ahead(self) -> bool:
        """Whether readers beyond the end wait: they may have read on in a region that was lost (T26)."""
        return self.sight.readers_ahead

    @readers_ahead.setter
    def readers_ahead(self, are_ahead: bool) -> None:
        self.sight.readers_ahead = are_ahead

    def show_up_to(
        self, cut_offset: int, whole_end: int, *, is_end: bool = True, is_whole_end: bool = True
    ) -> None:
        """Let readers of this mirror see what lies below D of a reached tidemark, and read-committed ones what
        lies below the end of the whole cut, too; neither goes down (T16). `is_end`, `is_whole_end`: see `Sight`.
        """
        if self.sight.show_up_to(cut_offset, whole_end, is_end=is_end, is_whole_end=is_whole_end):
            self.watchers.notify()

    def doubt_start(self) -> None:
        """Tell nobody where this begins until `retention.confirm_start`, if an order has hidden what is still there (INV-PT10)."""
        if self.log_start_offset > self.kept_from:
            self.sight.start_is_known = False
            self.watchers.notify()

    def rewind_cut(self, cut_offset: int, *, is_end: bool = True) -> None:
        """Take readers back to `cut_offset`, and show them nothing new: only where what was shown is void (T25, T31).

        Without `is_end` nobody is told that this is the end, until something is shown again (INV-PT9).

        Read-committed readers see nothing more until a tidemark shows them a whole cut again. A base that this log does
        not hold shows nothing: what is copied up to it is shown by tidemarks (T17).
        """
        self.sight.shown_cut_offset = min(self.sight.shown_cut_offset, cut_offset)
        self.sight.whole_end = 0
        self.sight.end_is_known &= is_end
        self.sight.is_shown &= is_end
        self.watchers.notify()

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_committed(self, offset: int) -> None:
        """Return once HW >= `offset`. Raises PartitionFailed or NotLeader: the outcome is unknown then."""
        await when_told(partial(self.commits.notify, offset))

    def _stable_moved(self) -> None:
        self.copies.on_durable()
        self.commits.moved()
        self.watchers.notify()

    def stop(self, reason: str) -> None:
        """Take and serve nothing any more, loudly, until the process starts again."""
        self.log.fail(reason)

    def close(self, reason: str) -> None:
        """Stop for good, cleanly: waiters get PartitionFailed with `reason`."""
        self.log.close()
        self.trimming.leave()
        self.commits.fail(PartitionFailed(reason))
        self.watchers.notify()
        self.log.listener.on_stable = _nobody_hears  # INV-PT12
        self.writer.let_go()

    # -- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int, *, settles: bool = True) -> None:
        """Cut the log off at `offset`, a batch boundary, durably; the state is rebuilt (C9, T20).

        Without `settles` it is durable once `trimming.settle` has returned, which comes next (INV-CTJ2). Waiters for more get
        NotLeader. Raises NotABatchBoundary, CutIntoCleaned, LogDamaged, PartitionFailed.
        """
        cuts = offset < self.log_end_offset
        self.trimming.cut(offset, settles=settles)
        if cuts:
            self.commits.doubt_start()
            self.copies.on_cut()
            self._show_no_more_than(
                offset, f"{self.tp} was cut at {offset}: what lay above is gone"
            )

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset` (a mirror that is seeded, T13, T14)."""
        reason = f"{self.tp} starts again at {offset}"
        self.commits.fail(NotLeader(reason))  # first: HW may pass over what they wait for (P18)
        self.trimming.start_at(offset)
        self.commits.doubt_start()
        self.copies.on_cut()
        self._show_no_more_than(offset, reason)

    def _show_no_more_than(self, offset: int, reason: str) -> None:
        self.commits.fail(NotLeader(reason))
        self.sight.show_no_more_than(offset)
        self.watchers.notify()


def _nobody_hears() -> None:
    return None
