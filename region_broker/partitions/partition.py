"""One partition of one topic in this region: its log, its role, and how far readers may see.

INV-PT1  log_start_offset <= last_stable_offset <= visible end <= high_watermark <= log_end_offset; the visible
        end is HW where the partition leads, D of the last shown tidemark (at most HW) where it is a mirror (T17);
        the last stable offset of a mirror lies at or below its whole cut
INV-PT2  HW never moves back but by `truncate_to` and `start_at`; what is below it survives a crash
INV-PT3  judge, write and apply are one step without `await` (C7); after an append was written it is never answered
        with an error that means "not written" (P18)
INV-PT4  a duplicate is acknowledged only when the original is below HW (C2)
INV-PT5  only a leader takes client batches, markers and ledger batches; only a mirror takes mirrored ones
INV-PT8  the leader epoch that clients are told never goes back, whatever role this has, and a mirror's is that of the
        acting region's term as soon as it is known here (`follow_term`, KIP-320)

Not here: bytes and recovery (`log.partition_log`), what goes from the log's two ends (`trimming`), damaged bytes
(`sound_reads`), what a mirror may take (`mirrored_batches`), sequence rules (`PartitionState`), Kafka's error numbers.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from enum import Enum, auto
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from idempotency.fencing import leader_epoch, region_epoch_of
from idempotency.identity import TopicPartition
from idempotency.partition_state import AbortedTxn, PartitionState, Verdict
from idempotency.record_batch import (
    BatchHeader,
    Buffer,
    MarkerFacts,
    read_header,
)
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import (
    LogError,
    NotLeader,
    OffsetOutOfRange,
    PartitionFailed,
)
from region_broker.log.partition_log import PartitionLog
from region_broker.log.side_files.log_start import LogStart
from region_broker.partitions.admission import (
    APPEND_VERDICTS,
    AppendOutcome,
    AppendVerdict,
    check_client_batch,
)
from region_broker.partitions.appending.marker_writes import MarkerBatch, write_markers
from region_broker.partitions.appending.mirrored_batches import LogTail, check_mirrored, writes_of
from region_broker.partitions.commit_waiters import CommitFuture, CommitListener, CommitWaiters
from region_broker.partitions.readable_watchers import ReadableWatchers
from region_broker.partitions.record_rules import Prepared, fitted, is_heavy, prepared
from region_broker.partitions.sound_reads import SoundReads
from region_broker.partitions.time_lookup import TimeLookup
from region_broker.partitions.trimming import Trimming

NO_EPOCH: Final = -1


class Isolation(Enum):
    """How far a reader sees."""

    READ_UNCOMMITTED = auto()
    """Up to the visible end."""
    READ_COMMITTED = auto()
    """Up to the last stable offset."""
    DURABLE = auto()
    """Up to HW, also on a mirror: for links and ledger loaders."""


class FetchSlice(NamedTuple):
    """Whole batches from one fetch; `next_offset` is where to go on, the fetch offset if `data` is empty.

    `diverging` says to a reader ahead of a log that was cut which leader epoch ends where (T26).
    """

    data: bytes | bytearray
    aborted: list[AbortedTxn]
    high_watermark: int
    last_stable_offset: int
    log_start_offset: int
    next_offset: int
    diverging: tuple[int, int] | None = None


class Partition:
    """See the module's head. Belongs to the event loop."""

    def __init__(
        self,
        tp: TopicPartition,
        topic_id: UUID,
        log: PartitionLog,
        start: LogStart,
        cold_reads: ColdReads,
    ) -> None:
        """Start as a mirror that shows nothing; `become_leader` or `become_mirror` follows."""
        self.tp = tp
        self.topic_id = topic_id
        self.log = log
        self.leader_epoch = NO_EPOCH
        self.leader_epoch_start_offset = -1
        self.is_leader = False
        self.shown_cut_offset = 0
        self.whole_end = 0
        """Where the whole cut of a mirror ends here: no transaction is shown in a part of its logs (T17)."""
        self.cleaned_at_home = 0
        """How far the acting region has cleaned this log, as it said last: a mirror goes no further (T13)."""
        self.readers_ahead = False
        """Readers may have read further in a region that was lost: they wait until their groups bring them back."""
        self._start = start
        self._trimming = Trimming(tp, log, start)
        self._reads = SoundReads(tp, log)
        self.cold_reads = cold_reads
        """Runs `fetch` and `read_raw` without `wait`, and waits elsewhere for what is not in memory."""
        self.written_bytes = 0
        self.read_bytes = 0
        """What was written here, and given to readers, since the start of the node."""
        self._waiters = CommitWaiters()
        self.watchers = ReadableWatchers()
        log.listener.on_stable = self._stable_moved

    # -- where it is -----------------------------------------------------------------------------

    @property
    def state(self) -> PartitionState:
        """The replay of the log (read access)."""
        return self.log.state

    @property
    def written_epoch(self) -> int:
        """Return the newest leader epoch that something in the log was written under, -1 if nothing was."""
        return self.log.epochs.latest

    @property
    def failed(self) -> str | None:
        """Why the partition has stopped; None while it runs."""
        return self.log.failed

    @property
    def high_watermark(self) -> int:
        """The durable end of the log: one node per region."""
        return self.log.durability.stable_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may ask for: what lies below was deleted, by age, size or order."""
        return max(self.log.log_start_offset, self._start.offset)

    @property
    def kept_from(self) -> int:
        """The first offset whose bytes are still there, at or below the log start: a batch begins there."""
        return self.log.log_start_offset

    @property
    def corrupt_reads(self) -> int:
        """How many reads were refused because stored bytes are wrong."""
        return self._reads.corrupt_count

    @property
    def log_end_offset(self) -> int:
        """One past the last offset that is written."""
        return self.log.log_end_offset

    @property
    def visible_end(self) -> int:
        """What takes HW's place for readers: HW of a leader, D of the last shown tidemark of a mirror."""
        high_watermark = self.log.durability.stable_offset
        if self.is_leader:
            return high_watermark
        return max(min(self.shown_cut_offset, high_watermark), self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided, as far as readers here may know (C36, T17)."""
        state = self.log.state
        bound = self.visible_end
        if bound < state.forgotten_below:
            # A region just back as a mirror, before it knows its cut: show nothing rather than guess.
            return self.log_start_offset
        stable = state.last_stable_offset(bound)
        if not self.is_leader:
            stable = min(stable, self.whole_end)
        return max(stable, self.log_start_offset)

    def readable_end(self, isolation: Isolation) -> int:
        """Return how far a reader sees (C37, T17)."""
        if isolation is Isolation.DURABLE:
            return self.log.durability.stable_offset
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.visible_end
        return self.last_stable_offset

    # -- roles -----------------------------------------------------------------------------------

    def become_leader(self, leader_epoch: int) -> None:
        """Take writes from now on under `leader_epoch`, which must be newer than all in the log."""
        assert leader_epoch >= self.log.epochs.latest, (leader_epoch, self.log.epochs.latest)
        if self.is_leader and self.leader_epoch == leader_epoch:
            return
        self.is_leader = True
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = self.log.log_end_offset
        self.log.epochs.note(leader_epoch, self.log.log_end_offset)
        self.watchers.tell()

    def become_mirror(self) -> None:
        """Take only mirrored batches from now on, and show no more than `show_up_to` says.

        A term of this region without a record ends here: the history that it mirrors may go on at this very offset,
        under an older leader epoch (INV-E3).
        """
        self.log.epochs.truncate_end(self.log.log_end_offset)
        if self.is_leader:
            self.is_leader = False
            self._waiters.fail(NotLeader(f"{self.tp} is a mirror here now; the outcome is unknown"))
        self.follow_term(self.log.epochs.latest)
        self.watchers.tell()

    def follow_term(self, leader_epoch: int) -> None:
        """Tell clients of a mirror the leader epoch of the acting region's term, under which this log may be idle.

        1. A region takes over and tells its clients a new leader epoch, of every partition. 2. One of them comes to
        a mirror, whose newest batch is of an older epoch. 3. It would hear UNKNOWN_LEADER_EPOCH, and ignore metadata
        that go back, until somebody writes.
        """
        if not self.is_leader and leader_epoch > self.leader_epoch:
            self.leader_epoch = leader_epoch
            self.watchers.tell()

    def show_up_to(self, cut_offset: int, whole_end: int) -> None:
        """Let readers of this mirror see what lies below D of a reached tidemark, and read-committed ones what
        lies below the end of the whole cut, too; neither goes down (T16).
        """
        if cut_offset > self.shown_cut_offset or whole_end > self.whole_end:
            self.shown_cut_offset = max(self.shown_cut_offset, cut_offset)
            self.whole_end = max(self.whole_end, whole_end)
            self.watchers.tell()

    def rewind_cut(self, cut_offset: int) -> None:
        """Take readers back to `cut_offset`: only when a forced takeover has voided what was shown (T25).

        Read-committed readers see nothing more until a tidemark shows them a whole cut again.
        """
        self.shown_cut_offset = cut_offset
        self.whole_end = 0
        self.watchers.tell()

    # -- appending -------------------------------------------------------------------------------

    def append(
        self, data: Buffer, *, tv2: bool = False, ahead: Prepared | None = None
    ) -> AppendOutcome:
        """Take one client batch: check, judge, stamp, write. Answer when `next_offset` is below HW.

        `ahead`: what `prepared` made of it.
        """
        refused = self._refusal()
        if refused is not None:
            return refused
        header = check_client_batch(data, self.log.config.message_bytes_max)
        if isinstance(header, AppendOutcome):
            return header
        judgement = self.log.state.judge(header, tv2=tv2)
        if judgement.verdict is Verdict.FRESH:
            return self._write_fitted(data, header, ahead)
        if judgement.verdict is Verdict.DUPLICATE:
            return AppendOutcome(
                AppendVerdict.DUPLICATE,
                judgement.base_offset,
                judgement.base_offset + header.last_offset_delta + 1,
                judgement.timestamp_ms,
            )
        return AppendOutcome(APPEND_VERDICTS[judgement.verdict], detail=judgement.detail)

    def _write_fitted(
        self, data: Buffer, header: BatchHeader, ahead: Prepared | None
    ) -> AppendOutcome:
        config = self.log.config
        found = fitted(data, header, config, self.log.content.wall_ms(), ahead)
        if isinstance(found, AppendOutcome):
            return found
        outcome = self._write(*found)
        if config.records.log_append_time and outcome.verdict is AppendVerdict.APPENDED:
            return msgspec.structs.replace(outcome, log_append_time_ms=found[1].max_timestamp_ms)
        return outcome

    def is_heavy(self, data: Buffer) -> bool:
        """Tell whether a client batch should go through `prepared`, in a thread, before it is appended."""
        return is_heavy(data, self.log.config)

    def prepared(self, data: Buffer) -> Prepared:
        """Return what the topic's rules make of a client batch; may run in a thread."""
        return prepared(data, self.log.config)

    def append_markers(self, markers: Sequence[MarkerBatch]) -> list[AppendOutcome]:
        """Write transaction markers by one write, but for decisions that are in the log already (T6, C30, C31).

        Returns what became of each.
        """
        refused = self._refusal()
        if refused is not None:
            return [refused] * len(markers)
        return write_markers(self.log, self.leader_epoch, markers)

    def append_ledger(self, batch: Buffer) -> AppendOutcome:
        """Write one batch that this node's coordinators built; no sequence is judged."""
        refused = self._refusal()
        if refused is not None:
            return refused
        header = read_header(batch)
        assert header.size_bytes == len(batch), (header.size_bytes, len(batch))
        assert header.record_count == header.last_offset_delta + 1 > 0, header
        assert not header.is_control, "markers go through append_markers"
        return self._write(batch, header)

    def _write(self, data: Buffer, header: BatchHeader) -> AppendOutcome:
        try:
            stamped = self.log.appender.append(data, header, self.leader_epoch)
        except PartitionFailed as error:
            return AppendOutcome(AppendVerdict.STORAGE_FAILED, detail=str(error))
        self.written_bytes += stamped.size_bytes
        return AppendOutcome(AppendVerdict.APPENDED, stamped.base_offset, stamped.next_offset)

    def _refusal(self) -> AppendOutcome | None:
        if self.log.failed is not None:
            return AppendOutcome(AppendVerdict.STORAGE_FAILED, detail=self.log.failed)
        if not self.is_leader:
            return AppendOutcome(
                AppendVerdict.NOT_LEADER, detail=f"{self.tp} takes no writes in this region"
            )
        return None

    def append_mirrored(self, data: Buffer) -> int:
        """Write whole batches of the acting region as they are; return the new log end offset.

        Offsets may be missing where the acting region has cleaned. Raises MirrorGap if the batches do not continue
        this log, BatchError if one is damaged, NotLeader, PartitionFailed. All of `data` is written, or nothing, unless
        the disk fails.
        """
        if self.is_leader:
            raise NotLeader(f"{self.tp} leads here: it takes no mirrored batches")
        self.log.check_running()
        batches = self._check_mirrored(data)
        for part, found in writes_of(data, batches, self.log.log_end_offset):
            self.log.appender.append_verbatim(part, found)
            self.written_bytes += len(part)
            self.follow_term(self.log.epochs.latest)
        return self.log.log_end_offset

    def _check_mirrored(self, data: Buffer) -> list[tuple[BatchHeader, MarkerFacts | None]]:
        tail = LogTail(self.log.log_end_offset, self.log.epochs.latest, self.cleaned_at_home)
        found = check_mirrored(self.tp, data, tail)
        if found.has_holes and self.cleaned_at_home > self.log.cleaning.holes_below:
            # Durable before the first hole: a start must tell holes from losses (INV-CLS3).
            with self._trimming.stops_on_disk_errors("noting holes"):
                mark = replace(self.log.cleaning.mark, holes_below=self.cleaned_at_home)
                self.log.cleaning.note(mark)
        return found.batches

    # -- waiting ---------------------------------------------------------------------------------

    async def wait_committed(self, offset: int) -> None:
        """Return once HW >= `offset`. Raises PartitionFailed or NotLeader: the outcome is unknown then."""
        waiting = CommitFuture()
        self.tell_committed(offset, waiting)
        await waiting.future

    def tell_committed(self, offset: int, listener: CommitListener) -> None:
        """Tell `listener` once HW >= `offset`, perhaps at once; or of PartitionFailed or NotLeader."""
        if self.log.failed is not None:
            listener.not_committed(PartitionFailed(self.log.failed))
        elif self.log.durability.stable_offset >= offset:
            listener.committed()
        else:
            self._waiters.tell(offset, listener)

    def on_readable(self, callback: Callable[[], None]) -> Callable[[], None]:
        """Call `callback`, which must be cheap, whenever a readable end may have moved, the role has changed
        or the partition has stopped. Return what ends that.
        """
        return self.watchers.add(callback)

    def _stable_moved(self) -> None:
        if self.log.failed is not None:
            self._waiters.fail(PartitionFailed(self.log.failed))
        else:
            self._waiters.reached(self.log.durability.stable_offset)
        self.watchers.tell()

    def stop(self, reason: str) -> None:
        """Take and serve nothing any more, loudly, until the process starts again."""
        self.log.fail(reason)

    def close(self, reason: str) -> None:
        """Stop for good, cleanly: waiters get PartitionFailed with `reason`."""
        self.log.close()
        self._waiters.fail(PartitionFailed(reason))
        self.watchers.tell()

    # -- reading ---------------------------------------------------------------------------------

    def fetch(
        self,
        offset: int,
        max_bytes: int,
        isolation: Isolation,
        *,
        first_batch_always: bool = True,
        wait: bool = True,
    ) -> FetchSlice:
        """Return whole batches from `offset` on (C38, C39); empty if nothing is readable there yet.

        Raises OffsetOutOfRange, PartitionFailed, CorruptRange, and ColdRange unless `wait` (see `cold_reads`).
        """
        data: bytes | bytearray = b""
        next_offset = offset
        if self._is_behind(offset):
            self.log.check_running()
        else:
            self._check_range(offset, self.log_start_offset)
            end = self.readable_end(isolation)
            data, next_offset = self._reads.read(offset, max_bytes, end, wait=wait)
        if not first_batch_always and len(data) > max_bytes:
            data, next_offset = b"", offset
        self.read_bytes += len(data)
        diverging = (
            self._end_of_older_regions()
            if self.is_leader and offset > self.log.log_end_offset
            else None
        )
        aborted: list[AbortedTxn] = []
        if data and isolation is Isolation.READ_COMMITTED:
            aborted = self._reads.aborted_in(offset, next_offset, self.visible_end, wait=wait)
        return FetchSlice(
            data=data,
            aborted=aborted,
            high_watermark=self.visible_end,
            last_stable_offset=self.last_stable_offset,
            log_start_offset=self.log_start_offset,
            next_offset=next_offset,
            diverging=diverging,
        )

    def read_raw(
        self, offset: int, max_bytes: int, limit: int | None = None, *, wait: bool = True
    ) -> bytes | bytearray:
        """Return whole batches from `offset` up to `limit` (default and at most HW), byte for byte.

        At least one batch if there is one; also from below the log start, while the bytes are there: a mirror
        may be behind. Raises OffsetOutOfRange, PartitionFailed, CorruptRange, and ColdRange unless `wait`.
        """
        self._check_range(offset, self.kept_from)
        high_watermark = self.log.durability.stable_offset
        end = high_watermark if limit is None else min(limit, high_watermark)
        return self._reads.read(offset, max_bytes, end, wait=wait)[0]

    def readable_bytes(
        self, offset: int, isolation: Isolation, enough: int, *, wait: bool = True
    ) -> int:
        """Return how many bytes a fetch from `offset` could get; stops counting at `enough`.

        An offset out of range, what cannot be read, and a partition that has stopped, or stops at this very look, count as
        enough: the reader must be told. Raises ColdRange unless `wait`.
        """
        log = self.log
        if log.failed is None and self._is_behind(offset):
            return 0
        if log.failed is not None or not self.log_start_offset <= offset <= log.log_end_offset:
            return enough
        end = self.readable_end(isolation)
        if offset >= end:
            return 0
        if enough <= 1:
            return enough
        try:
            return self._reads.bytes_between(offset, end, enough, wait=wait)
        except LogError:
            return enough  # said and counted already; whoever reads it hears of it

    def _is_behind(self, offset: int) -> bool:
        """Tell whether a mirror has not copied up to `offset` yet, or a takeover has cut the log below it (T26).

        1. A consumer reads to the end in the acting region. 2. Its next metadata comes from the mirror's
        node, which is some ms behind. 3. OFFSET_OUT_OF_RANGE would send it to `auto.offset.reset`, and it
        would read everything again: it has to wait instead. So do those who had read what a takeover cut
        off: their groups were emptied, and they go on from the offset committed once they have rejoined.
        """
        return offset > self.log.log_end_offset and (not self.is_leader or self.readers_ahead)

    def _end_of_older_regions(self) -> tuple[int, int] | None:
        """Return the last leader epoch of the regions that acted before this one, and where it ends here."""
        before = leader_epoch(region_epoch_of(self.leader_epoch), 0) - 1
        found = self.epoch_end_offset(before)
        return found if found[0] >= 0 else None

    def _check_range(self, offset: int, start: int) -> None:
        self.log.check_running()
        if not start <= offset <= self.log.log_end_offset:
            raise OffsetOutOfRange(offset, start, self.log.log_end_offset)

    def lookup(self, isolation: Isolation) -> TimeLookup:
        """Return what finds readable records by time. Raises PartitionFailed."""
        self.log.check_running()
        end = self.readable_end(isolation)
        return TimeLookup(self._reads, self.cold_reads, self.log_start_offset, end)

    def epoch_end_offset(self, leader_epoch: int) -> tuple[int, int]:
        """Return (largest leader epoch <= `leader_epoch`, its end offset); (-1, -1) if unknown (KIP-101)."""
        if self.log.epochs.latest < leader_epoch <= self.leader_epoch:
            return leader_epoch, self.log.log_end_offset  # a mirror's log, idle in this term
        return self.log.epochs.end_offset(leader_epoch, self.log.log_end_offset)

    def end_of_older(self, leader_epoch: int) -> int:
        """Return where the records of leader epochs below `leader_epoch` end."""
        if self.log.epochs.latest < leader_epoch:
            return self.log_end_offset
        return self.epoch_end_offset(leader_epoch - 1)[1]

    # -- deleting by order -----------------------------------------------------------------------

    async def delete_records(self, offset: int) -> int:
        """Delete all below `offset`, durably; return the log start. What mirrors still copy stays on disk a while.

        Raises OffsetOutOfRange for an offset beyond HW, NotLeader, PartitionFailed.
        """
        self.log.check_running()
        if not self.is_leader:
            raise NotLeader(f"{self.tp} is a mirror here")
        if not 0 <= offset <= self.high_watermark:
            raise OffsetOutOfRange(offset, self.log_start_offset, self.high_watermark)
        if offset > self.log_start_offset:
            if not await self._trimming.raise_start_in_thread(offset):
                raise NotLeader(f"{self.tp} was cut while its records below {offset} were deleted")
            self.watchers.tell()
        return self.log_start_offset

    def forget_below(self, offset: int) -> None:
        """Follow home's log start on a mirror, durably; whole segments below it go (T14). Raises PartitionFailed."""
        if offset > self.log_start_offset:
            self._trimming.raise_start(offset)
            self.watchers.tell()
        self.log.trimmer.delete_segments_below(min(offset, self.log_start_offset))

    # -- cutting ---------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut the log off at `offset`, a batch boundary, durably; the state is rebuilt (C9, T20).

        Waiters for more get NotLeader. Raises NotABatchBoundary, CutIntoCleaned, LogDamaged, PartitionFailed.
        """
        cuts = offset < self.log.log_end_offset
        self._trimming.cut(offset)
        if cuts:
            self._show_no_more_than(
                offset, f"{self.tp} was cut at {offset}: what lay above is gone"
            )

    def start_at(self, offset: int) -> None:
        """Give up all records and go on, empty, at `offset` (a mirror that is seeded, T13, T14)."""
        self._trimming.start_at(offset)
        self._show_no_more_than(offset, f"{self.tp} starts again at {offset}")

    def _show_no_more_than(self, offset: int, reason: str) -> None:
        self._waiters.fail(NotLeader(reason))
        self.shown_cut_offset = min(self.shown_cut_offset, offset)
        self.whole_end = min(self.whole_end, offset)
        self.watchers.tell()

    def maintain(
        self,
        *,
        now_ms: int,
        monotonic_ms: int,
        producer_expiration_ms: int,
        hold_offset: int | None = None,
    ) -> int:
        """Forget what nobody needs: old segments below `hold_offset`, idle producers (C8). Return deletions.

        Retention never passes the last stable offset: what is undecided stays. A mirror deletes nothing by itself
        (T14: `forget_below`). `now_ms` is wall time: record times are held against it. Raises LogDamaged, PartitionFailed.
        """
        if self.log.failed is not None:
            return 0
        # A mirror's transactions are needed until they are shown (`geo_replicator.whole_cut`).
        bound = self.visible_end if self.is_leader else self.last_stable_offset
        self.log.state.forget_completed_below(bound)
        self.log.state.expire(monotonic_ms, producer_expiration_ms)
        if not self.is_leader:
            return 0
        deleted = self._trimming.retain(
            now_ms=now_ms, stable_offset=self.last_stable_offset, hold_offset=hold_offset
        )
        if deleted:
            self.watchers.tell()
        return deleted
