"""All that one partition knows about its producers and transactions: the pure replay of its log.

INV-S1  live == replay(log): `apply` is the only way in, takes any batch of any log and never fails on
        a sequence; whether a client's batch may enter is asked of `judge` before it is written (B5).
INV-S2  `judge` and `judge_marker` change nothing and await nothing: judge, write and apply are one
        step of the event loop (C7).
INV-S3  A duplicate is answered from the window with the offset it got first (C2).
INV-S4  A batch never joins a transaction of another producer epoch (B9, P2).
INV-S6  No batch outside transactions takes the place of one of a producer that writes in them, nor stands in the way of its first one: who
        reads a log knows its ids and sequences, and who was given an id knows those beside it (INV-I4)
INV-S5  A decision is carried out at most once per partition (T6).

Verdicts follow Kafka's order: duplicate, producer epoch, sequence, transaction state (P10).
Not here: offsets assignment and bytes (`region_broker.log`), answers on the wire.
Source: Kafka storage/internals/log/ProducerAppendInfo.java, UnifiedLog.scala (4.0); KIP-98/360/890.
"""

from typing import NamedTuple, Self

from idempotency.cut_index import CutIndex
from idempotency.decision import DecisionId
from idempotency.identity import (
    NO_SEQUENCE,
    CoordinatorEpoch,
    ProducerEpoch,
    ProducerId,
    Round,
    SequenceNumber,
)
from idempotency.pieces import Pieces, drained
from idempotency.producer_ids import is_of_transactions
from idempotency.producer_state import AcceptedGap, ProducerEntry, ProducerTable
from idempotency.record_batch import CONTROL_BIT, BatchHeader, ControlType, MarkerFacts
from idempotency.sequence import is_ahead
from idempotency.snapshot_codec import SnapshotContent, SnapshotError, pack, unpack_in_pieces
from idempotency.snapshot_draft import SnapshotDraft, packed_in_pieces
from idempotency.verdicts import FRESH, Judgement, Verdict
from idempotency.verification import Verifications
from idempotency.visibility import AbortedTxn, CompletedTxn, Visibility
from idempotency.window import SentBatch

__all__ = [
    "AbortedTxn", "AcceptedGap", "CompletedTxn", "Judgement", "OpenTxn", "PartitionState",
    "ProducerFacts", "SnapshotError", "UnendedTxn", "Verdict",
]  # fmt: skip


class OpenTxn(NamedTuple):
    """A transaction with data here and no marker yet."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: int
    last_timestamp_ms: int


class UnendedTxn(NamedTuple):
    """A transaction with data below a bound and no marker below it.

    `decision` is that of a marker at or above the bound; without one, `decided_before` is the producer's last
    decision here, which is an older transaction's.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    first_offset: int
    decision: DecisionId | None
    decided_before: DecisionId | None


class ProducerFacts(NamedTuple):
    """One producer as DescribeProducers shows it (KIP-664); -1 stands for none."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_sequence: SequenceNumber
    last_timestamp_ms: int
    coordinator_epoch: CoordinatorEpoch
    txn_first_offset: int


class PartitionState:
    """Producer table, visibility and cut index of one partition."""

    __slots__ = (
        "_cut_index", "_end_offset", "_gap_below", "_gaps",
        "producer_table", "verifications", "visibility",
    )  # fmt: skip

    def __init__(self) -> None:
        """Start with an empty log."""
        self.producer_table = ProducerTable()
        """Who is known (read access)."""
        self.visibility = Visibility()
        """Who may see what (read access)."""
        self._cut_index = CutIndex()
        self._gaps: list[AcceptedGap] = []
        self._gap_below = 0
        self._end_offset = 0
        self.verifications = Verifications()

    @property
    def end_offset(self) -> int:
        """Offset behind the last batch applied."""
        return self._end_offset

    @property
    def forgotten_below(self) -> int:
        """The lowest bound that `last_stable_offset` can still be asked for."""
        return self.visibility.forgotten_below

    @property
    def accepted_gaps(self) -> tuple[AcceptedGap, ...]:
        """What idempotent producers lost with an old region, in log order (T22)."""
        return tuple(self._gaps)

    # -- judging -------------------------------------------------------------------------------

    def judge(self, header: BatchHeader, *, tv2: bool = False) -> Judgement:
        """Say whether a client's data batch may be appended now (C1-C6, C10, B9, T22).

        `tv2`: the client speaks transactions v2 (Produce v12 or later, KIP-890).
        """
        producer_id = header.producer_id
        if header.attributes & CONTROL_BIT:
            return Judgement(Verdict.INVALID_RECORD, detail="only the broker writes markers")
        if producer_id < 0:
            if header.is_transactional:
                return Judgement(Verdict.INVALID_RECORD, detail="transactional, but no producer id")
            return FRESH
        if header.base_sequence < 0 or header.producer_epoch < 0:
            return Judgement(
                Verdict.INVALID_RECORD, detail="a producer id needs an epoch and a sequence"
            )
        entry = self.producer_table.get(producer_id)
        if entry is None:
            return self._judge_unknown(header, tv2=tv2)
        return self._judge_known(entry, header)

    def judge_marker(self, marker: MarkerFacts, *, tv2: bool = False) -> Judgement:
        """Say whether a marker may be appended now (T6, C30, C31, P8, P9).

        `tv2`: the transaction ended under transactions v2, so that its epoch is the bumped one and
        a transaction open under that same epoch is a later one (KIP-1228).
        """
        entry = self.producer_table.get(marker.producer_id)
        if entry is None:
            return FRESH
        decision = marker.decision
        if decision is not None and not decision.is_newer_than(entry.last_decision):
            return Judgement(
                Verdict.MARKER_ALREADY_APPLIED,
                detail=f"decision {decision} is not newer than {entry.last_decision}",
            )
        if marker.coordinator_epoch < entry.coordinator_epoch:
            return Judgement(
                Verdict.COORDINATOR_FENCED,
                detail=f"coordinator epoch {marker.coordinator_epoch} of the marker is older than "
                f"{entry.coordinator_epoch}, which wrote here",
            )
        if marker.producer_epoch < entry.producer_epoch:
            return _stale_epoch(marker.producer_epoch, entry)
        if tv2 and entry.in_transaction and marker.producer_epoch == entry.producer_epoch:
            return _stale_epoch(marker.producer_epoch, entry)
        return FRESH

    def _judge_unknown(self, header: BatchHeader, *, tv2: bool) -> Judgement:
        if tv2 and header.is_transactional and header.base_sequence != 0:
            return Judgement(
                Verdict.OUT_OF_ORDER_SEQUENCE,
                detail=f"first sequence {header.base_sequence} of producer {header.producer_id}, "
                "which has no state here: transactions v2 start at 0",
            )
        if not header.is_transactional and is_of_transactions(header.producer_id):
            return _outside_of_transactions(header.producer_id)
        return self._judge_reordered(header)

    def _judge_known(self, entry: ProducerEntry, header: BatchHeader) -> Judgement:
        first = header.base_sequence
        if header.producer_epoch < entry.producer_epoch:
            return _stale_epoch(header.producer_epoch, entry)
        if not header.is_transactional and entry.ended_transactions:
            return _outside_of_transactions(entry.producer_id)
        expected = SequenceNumber(0)
        if header.producer_epoch == entry.producer_epoch:
            original = entry.window.find(first, header.last_sequence)
            if original is not None:
                return _duplicate(entry, header, original)
            expected = entry.window.expected_sequence
        if first != expected and not self._gap_allowed(entry, header, expected):
            return Judgement(
                Verdict.OUT_OF_ORDER_SEQUENCE,
                detail=f"sequence {first} of producer {entry.producer_id} epoch "
                f"{header.producer_epoch}: expected {expected}",
            )
        if entry.in_transaction and not _may_join(entry, header):
            return Judgement(
                Verdict.INVALID_TXN_STATE,
                detail=f"producer {entry.producer_id} has a transaction of epoch "
                f"{entry.producer_epoch} open from offset {entry.txn_first_offset}: "
                "it must be ended first",
            )
        return FRESH

    def _judge_reordered(self, header: BatchHeader) -> Judgement:
        """Refuse a first batch that overtook an earlier one while both were being verified (C5)."""
        lowest = self.verifications.lowest_sequence(header.producer_id, header.producer_epoch)
        if lowest is not None and is_ahead(header.base_sequence, lowest):
            return Judgement(
                Verdict.OUT_OF_ORDER_SEQUENCE,
                detail=f"sequence {header.base_sequence} overtook {lowest} during verification",
            )
        return FRESH

    def _gap_allowed(self, entry: ProducerEntry, header: BatchHeader, expected: int) -> bool:
        newest = entry.window.newest
        return (
            newest is not None
            and newest.last_offset < self._gap_below
            and not header.is_transactional
            and is_ahead(header.base_sequence, expected)
        )

    # -- applying ------------------------------------------------------------------------------

    def apply(self, header: BatchHeader, marker: MarkerFacts | None = None) -> None:
        """Take in a batch that is in the log: appended, mirrored or replayed.

        `header` carries the offsets and leader epoch as written; `marker` is given iff it is a
        control batch.
        """
        assert (marker is not None) == header.is_control, header
        assert header.base_offset >= self._end_offset, (
            f"INV-S1: {header}, the end is {self._end_offset}"
        )
        self._end_offset = header.next_offset
        if marker is not None:
            self._apply_marker(header.base_offset, marker)
        elif header.producer_id >= 0:
            self._apply_data(header)

    def allow_gap_once(self, below_offset: int | None = None) -> None:
        """After a takeover: accept one gap of each idempotent producer known by now (T22).

        A producer may leave one gap as long as its newest batch lies below `below_offset` (default:
        the end of the log as of now); so any batch it gets in uses the allowance up, and calling
        this again with the base of the takeover, after a restart, changes nothing. The allowance
        never reaches past the end of the log, or a later truncation would widen it.
        """
        below = self._end_offset if below_offset is None else min(below_offset, self._end_offset)
        self._gap_below = max(self._gap_below, below)

    def expire(self, monotonic_ms: int, retention_ms: int) -> list[ProducerId]:
        """Forget idle producers without an open transaction; return their ids (C8)."""
        return self.producer_table.expire(monotonic_ms, retention_ms)

    def expire_beyond(self, kept: int, monotonic_ms: int, idle_ms: int) -> list[ProducerId]:
        """Forget the idlest producers beyond `kept`, none idle for less than `idle_ms`; return their ids."""
        return self.producer_table.expire_beyond(kept, monotonic_ms, idle_ms)

    def _apply_data(self, header: BatchHeader) -> None:
        gap = self.producer_table.apply_data(header)
        if gap is not None:
            self._gaps.append(gap)
        if not header.is_transactional:
            return
        entry = self.producer_table.get(header.producer_id)
        assert entry is not None
        assert entry.producer_epoch >= header.producer_epoch, f"INV-P2: {entry}, {header}"
        if not entry.in_transaction:
            entry.txn_first_offset = header.base_offset
            self.visibility.begin(header.producer_id, header.base_offset)

    def _apply_marker(self, offset: int, marker: MarkerFacts) -> None:
        self.verifications.end(marker.producer_id, marker.producer_epoch)
        before = self.producer_table.get(marker.producer_id)
        if before is not None and before.in_transaction:
            # Read before the marker is applied: its epoch may be the bumped one, which empties the window.
            newest = before.window.newest
            self.visibility.complete(
                CompletedTxn(
                    marker.producer_id,
                    before.txn_first_offset,
                    offset,
                    max(before.txn_first_offset, -1 if newest is None else newest.last_offset),
                    before.producer_epoch,
                    marker.control_type is ControlType.COMMIT,
                    marker.decision,
                )
            )
            before.txn_first_offset = -1
        self.producer_table.apply_marker(marker)
        if marker.control_type is ControlType.COMMIT and marker.decision is not None:
            self._cut_index.record(marker.decision.stamp, offset)

    # -- asking --------------------------------------------------------------------------------

    def last_stable_offset(self, bound: int) -> int:
        """Return what a read-committed reader may see up to; `bound` = HW or D(k) (C36, T17)."""
        return self.visibility.last_stable_offset(bound)

    def aborted_in(self, start: int, end: int, bound: int) -> list[AbortedTxn]:
        """Return aborted transactions overlapping [start, end), markers below `bound` (C38)."""
        return self.visibility.aborted_in(start, end, bound)

    def first_commit_marker(self, stamp_at_least: Round) -> int | None:
        """Return the offset of the first COMMIT marker with a stamp >= `stamp_at_least` (T7)."""
        return self._cut_index.first_commit_marker(stamp_at_least)

    def open_transactions(self) -> list[OpenTxn]:
        """Return the transactions without a marker, oldest first."""
        found: list[OpenTxn] = []
        for producer_id, first_offset in self.visibility.open_items():
            entry = self.producer_table.get(producer_id)
            assert entry is not None, producer_id
            found.append(
                OpenTxn(producer_id, entry.producer_epoch, first_offset, entry.last_timestamp_ms)
            )
        return found

    def committed_below(self, bound: int, start: int = 0) -> list[CompletedTxn]:
        """Return the committed transactions with a marker in [start, bound) that were not forgotten."""
        return [txn for txn in self.visibility.completed_in(start, bound) if txn.committed]

    def unended_at(self, bound: int) -> list[UnendedTxn]:
        """Return the transactions with data below `bound` and no marker below it."""
        found = [
            UnendedTxn(txn.producer_id, txn.producer_epoch, txn.first_offset, txn.decision, None)
            for txn in self.visibility.completed_from(bound)
            if txn.first_offset < bound
        ]
        for producer_id, first_offset in self.visibility.open_items():
            if first_offset >= bound:
                break
            entry = self.producer_table.get(producer_id)
            assert entry is not None, producer_id
            found.append(
                UnendedTxn(
                    producer_id, entry.producer_epoch, first_offset, None, entry.last_decision
                )
            )
        return found

    def producer(self, producer_id: ProducerId) -> ProducerFacts | None:
        """Return what is known of one producer, None if it is unknown or expired."""
        entry = self.producer_table.get(producer_id)
        return None if entry is None else _facts(entry)

    def producers(self) -> list[ProducerFacts]:
        """Return every known producer, by rising id."""
        return [_facts(entry) for entry in self.producer_table]

    # -- bounding memory -----------------------------------------------------------------------

    def prune_cut_index(self, below_stamp: Round) -> None:
        """Forget the firsts of rounds below the last published one (T7)."""
        self._cut_index.prune(below_stamp)

    def forget_completed_below(self, bound: int) -> None:
        """Forget completed transactions with markers below HW or D(k); bounds never move back."""
        self.visibility.forget_completed_below(bound)

    def forget_aborted_below(self, log_start_offset: int) -> None:
        """Forget aborted transactions that retention has deleted."""
        self.visibility.forget_aborted_below(log_start_offset)

    # -- snapshot ------------------------------------------------------------------------------

    def encode(self) -> bytes:
        """Return the snapshot of this state, valid at `end_offset`; equal states, equal bytes."""
        return pack(self._content(list(self.producer_table)))

    def draft_in_pieces(self) -> Pieces[SnapshotDraft]:
        """Return what encodes to the snapshot as of the step in which it is returned (INV-SDR1)."""
        packed = yield from packed_in_pieces(self.producer_table)
        return SnapshotDraft(self._content([]), packed)

    def _content(self, producers: list[ProducerEntry]) -> SnapshotContent:
        return SnapshotContent(
            end_offset=self._end_offset,
            gap_allowed_below=self._gap_below,
            forgotten_below=self.visibility.forgotten_below,
            producers=producers,
            completed=list(self.visibility.completed),
            aborted=list(self.visibility.aborted),
            cuts=self._cut_index.entries(),
            gaps=list(self._gaps),
        )

    @classmethod
    def decode(cls, data: bytes) -> Self:
        """Return all of `decode_in_pieces` at once."""
        return drained(cls.decode_in_pieces(data))

    @classmethod
    def decode_in_pieces(cls, data: bytes) -> Pieces[Self]:
        """Return the state whose snapshot is `data`.

        Raises:
            SnapshotError: damaged, or written by a newer version; rebuild by replay or upgrade.
        """
        content = yield from unpack_in_pieces(data)
        state = cls()
        state._end_offset = content.end_offset
        state._gap_below = content.gap_allowed_below
        state._gaps = content.gaps
        state.producer_table = ProducerTable(content.producers)
        yield
        state._cut_index = CutIndex(content.cuts)
        open_items = [
            (entry.producer_id, entry.txn_first_offset)
            for entry in content.producers
            if entry.txn_first_offset >= 0
        ]
        yield
        state.visibility.restore(
            open_items=open_items,
            completed=content.completed,
            aborted=content.aborted,
            forgotten_below=content.forgotten_below,
        )
        return state

    def __eq__(self, other: object) -> bool:
        """Compare what the log determines; pending verifications are of the process, not the log."""
        if not isinstance(other, PartitionState):
            return NotImplemented
        return self.encode() == other.encode()

    __hash__ = None  # type: ignore[assignment]  # mutable


def _may_join(entry: ProducerEntry, header: BatchHeader) -> bool:
    # B9: data of a newer epoch while an older transaction is open would get the older one's outcome.
    # Readers tell transactions of a producer apart by markers only, so it has to wait for one.
    return header.is_transactional and header.producer_epoch == entry.producer_epoch


def _outside_of_transactions(producer_id: ProducerId) -> Judgement:
    return Judgement(
        Verdict.INVALID_TXN_STATE,
        detail=f"producer {producer_id} writes in transactions, and this batch is in none",
    )


def _duplicate(entry: ProducerEntry, header: BatchHeader, original: SentBatch) -> Judgement:
    if header.is_transactional and not entry.writes_in_transactions:  # INV-S6
        return Judgement(
            Verdict.OUT_OF_ORDER_SEQUENCE,
            detail=f"sequences {header.base_sequence} to {header.last_sequence} of producer {entry.producer_id} were written outside of any"
            " transaction",
        )
    return Judgement(Verdict.DUPLICATE, original.base_offset, original.timestamp_ms)


def _stale_epoch(producer_epoch: ProducerEpoch, entry: ProducerEntry) -> Judgement:
    return Judgement(
        Verdict.STALE_PRODUCER_EPOCH,
        detail=f"epoch {producer_epoch} of producer {entry.producer_id} is fenced: "
        f"epoch {entry.producer_epoch} is current here",
    )


def _facts(entry: ProducerEntry) -> ProducerFacts:
    newest = entry.window.newest
    return ProducerFacts(
        entry.producer_id,
        entry.producer_epoch,
        NO_SEQUENCE if newest is None else newest.last_sequence,
        entry.last_timestamp_ms,
        entry.coordinator_epoch,
        entry.txn_first_offset,
    )
