"""Writing to one partition: batches of clients, markers, ledger batches where it leads; copied ones where it mirrors.

INV-PT3  judge, write and apply are one step without `await` (C7); after an append was written it is never answered
        with an error that means "not written" (P18)
INV-PT4  a duplicate is acknowledged only when the original is below HW (C2)
INV-PT5  only a leader takes client batches, markers and ledger batches; only a mirror takes mirrored ones

Not here: what a mirror may take (`mirrored_batches`), sequence rules (`PartitionState`), Kafka's error numbers.
"""

from collections.abc import Callable, Sequence

import msgspec

from idempotency.identity import LeaderEpoch
from idempotency.partition_state import Verdict
from idempotency.record_batch import BatchHeader, Buffer, read_header
from region_broker.log.cleaning.state import CleanMark
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.log.partition_log import PartitionLog
from region_broker.partitions.admission import (
    APPEND_VERDICTS,
    AppendOutcome,
    AppendVerdict,
    check_client_batch,
)
from region_broker.partitions.appending.marker_writes import MarkerBatch, write_markers
from region_broker.partitions.appending.mirrored_batches import (
    LogTail,
    MirroredBatches,
    check_mirrored,
    writes_of,
)
from region_broker.partitions.parts.sight import Sight
from region_broker.partitions.producer_room import ProducerRoom
from region_broker.partitions.record_rules import (
    Prepared,
    Seal,
    fitted,
    made_ahead,
    prepared,
    work_bytes,
)
from region_broker.partitions.trimming import Trimming


class PartitionWriter:
    """Appends; what it has appended counts once it is below HW."""

    def __init__(
        self,
        log: PartitionLog,
        sight: Sight,
        trimming: Trimming,
        follow_term: Callable[[LeaderEpoch], None],
        seal: Seal,
        producers: ProducerRoom,
    ) -> None:
        """Write to `log`; `follow_term` hears the leader epoch of what was mirrored."""
        self._seal = seal
        self._producers = producers
        self.cleaned_at_primary = 0
        """How far the primary region has cleaned this log, as it said last: a mirror goes no further (T13)."""
        self.dropped_at_primary = 0
        """Below what tombstones and markers have gone where this log is copied from; as far as that was cleaned, where it does not say."""
        self.leader_starts: Sequence[tuple[LeaderEpoch, int]] = ()
        """Where leader epochs start, as the leader of the region has said of this copy: for where offsets are missing (INV-E4)."""
        self.written_bytes = 0
        """What was written here since the start of the node."""
        self._tp = trimming.tp
        self._log = log
        self._content = log.content
        self._appender = log.appender
        self._sight = sight
        self._trimming = trimming
        self._follow_term = follow_term

    def let_go(self) -> None:
        """Hold nothing that holds this: the partition is closed (INV-PT12)."""
        self._follow_term = _nobody_hears

    # -- where it leads --------------------------------------------------------------------------

    def append(
        self, data: Buffer, *, tv2: bool = False, ahead: Prepared | None = None
    ) -> AppendOutcome:
        """Take one client batch: check, judge, stamp, write. Answer when `next_offset` is below HW.

        `ahead`: what `prepared` made of it.
        """
        refused = self._refusal()
        if refused is not None:
            return refused
        header = check_client_batch(data)
        if isinstance(header, AppendOutcome):
            return header
        judgement = self._content.state.judge(header, tv2=tv2)
        if judgement.verdict is Verdict.FRESH:
            return self._write_new(data, header, ahead)
        if judgement.verdict is Verdict.DUPLICATE:
            return AppendOutcome(
                AppendVerdict.DUPLICATE,
                judgement.base_offset,
                judgement.base_offset + header.last_offset_delta + 1,
                judgement.timestamp_ms,
            )
        return AppendOutcome(APPEND_VERDICTS[judgement.verdict], detail=judgement.detail)

    def _write_new(
        self, data: Buffer, header: BatchHeader, ahead: Prepared | None
    ) -> AppendOutcome:
        """Write a batch that is fresh, unless its producer is one too many (INV-PRR1)."""
        known = self._content.state.producer_table
        if header.producer_id < 0 or header.is_transactional or header.producer_id in known:
            return self._write_fitted(data, header, ahead)
        why = self._producers.refusal(self._tp, len(known))
        if why is not None:
            return AppendOutcome(AppendVerdict.TOO_MANY_PRODUCERS, detail=why)
        outcome = self._write_fitted(data, header, ahead)
        if outcome.verdict is AppendVerdict.APPENDED:
            self._producers.let_in()
        return outcome

    def _write_fitted(
        self, data: Buffer, header: BatchHeader, ahead: Prepared | None
    ) -> AppendOutcome:
        config = self._content.config
        found = fitted(data, header, config, self._content.wall_ms(), self._seal, ahead)
        if isinstance(found, AppendOutcome):
            return found
        outcome = self._write(*found)
        if config.records.log_append_time and outcome.verdict is AppendVerdict.APPENDED:
            return msgspec.structs.replace(outcome, log_append_time_ms=found[1].max_timestamp_ms)
        return outcome

    def work_bytes(self, data: Buffer) -> int:
        """Return how many bytes `append` works through unless a client batch went through `prepared` before."""
        return work_bytes(data, self._content.config)

    @property
    def seals(self) -> bool:
        """Return whether `append` seals what it is given (INV-FIT4)."""
        return bool(self._content.config.encryption)

    def prepared(self, data: Buffer) -> Prepared:
        """Return what the topic's rules make of a client batch; may run in a thread."""
        return prepared(data, self._content.config, self._seal)

    def is_prepared(self, ahead: Prepared | None) -> bool:
        """Return whether `append` has no work left to do by what was made ahead: rules and keys are what they were."""
        return made_ahead(ahead, self._content.config, self._seal) is not None

    def append_markers(self, markers: Sequence[MarkerBatch]) -> list[AppendOutcome]:
        """Write transaction markers by one write, but for decisions that are in the log already (T6, C30, C31).

        Returns what became of each.
        """
        refused = self._refusal()
        if refused is not None:
            return [refused] * len(markers)
        return write_markers(self._log, self._sight.leader_epoch, markers)

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
            stamped = self._appender.append(data, header, self._sight.leader_epoch)
        except PartitionFailed as error:
            return AppendOutcome(AppendVerdict.STORAGE_FAILED, detail=str(error))
        self.written_bytes += stamped.size_bytes
        return AppendOutcome(AppendVerdict.APPENDED, stamped.base_offset, stamped.next_offset)

    def _refusal(self) -> AppendOutcome | None:
        failed = self._content.failed
        if failed is not None:
            return AppendOutcome(AppendVerdict.STORAGE_FAILED, detail=failed)
        if not self._sight.is_leader:
            return AppendOutcome(
                AppendVerdict.NOT_LEADER, detail=f"{self._tp} takes no writes in this region"
            )
        return None

    # -- where it mirrors ------------------------------------------------------------------------

    def append_mirrored(self, data: Buffer) -> int:
        """Write whole batches of the primary region as they are; return the new log end offset.

        Offsets may be missing where the primary region has cleaned. Raises MirrorGap if the batches do not continue
        this log, BatchError if one is damaged, NotLeader, PartitionFailed. All of `data` is written, or nothing, unless
        the disk fails.
        """
        if self._sight.is_leader:
            raise NotLeader(f"{self._tp} leads here: it takes no mirrored batches")
        content = self._content
        content.check_running()
        checked = self._check_mirrored(data)
        known_starts = self.leader_starts if checked.has_holes else ()
        for part, found in writes_of(data, checked.batches, content.end_offset):
            self._appender.append_verbatim(part, found, known_starts)
            self.written_bytes += len(part)
            self._follow_term(content.epochs.latest)
        return content.end_offset

    def _check_mirrored(self, data: Buffer) -> MirroredBatches:
        cleaning = self._log.cleaning
        end_offset, newest = self._content.end_offset, self._content.epochs.latest
        found = check_mirrored(self._tp, data, LogTail(end_offset, newest, self.cleaned_at_primary))
        # Also where no offset is missing: of a batch that was cleaned records may be.
        holes_below = self.cleaned_at_primary if end_offset < self.cleaned_at_primary else 0
        dropped_below = self.dropped_at_primary if end_offset < self.dropped_at_primary else 0
        if holes_below > cleaning.holes_below or dropped_below > cleaning.dropped_below:
            # Durable before the first hole: a start must tell holes from losses (INV-CLS3), and a leader of what it copied what is not
            # in it (INV-CLS5).
            with self._trimming.stops_on_disk_errors("noting holes"):
                cleaning.note(CleanMark(holes_below=holes_below, dropped_below=dropped_below))
        return found


def _nobody_hears(_leader_epoch: LeaderEpoch) -> None:
    return None
