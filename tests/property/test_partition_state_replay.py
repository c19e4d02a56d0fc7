"""live == replay(log): a partition's state after any history equals the replay of its log (B5).

Goal: no order of client batches, mirrored batches, markers, truncations, takeovers, snapshots and
restores makes the live state differ from a replay, its snapshot from itself, or its answers from a
naive model that scans the whole log for every question.
Method: hypothesis state machine; the model keeps the log as a list and nothing else.
"""

from dataclasses import dataclass

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from idempotency.decision import DecisionId
from idempotency.fencing import leader_epoch, region_epoch
from idempotency.identity import LeaderEpoch, Round
from idempotency.partition_state import PartitionState, Verdict
from idempotency.producer_ids import TRANSACTIONAL_BLOCKS_FROM, block_for
from idempotency.record_batch import BatchHeader, ControlType, MarkerFacts
from tests.fixtures.kernel_batches import data, marker, marker_header

WRAP = 2**31
OF_TRANSACTIONS = int(block_for(0, TRANSACTIONAL_BLOCKS_FROM).first)
PRODUCER_IDS = st.sampled_from([1, 2, OF_TRANSACTIONS])
CONTROL_TYPES = st.sampled_from(list(ControlType))


@dataclass(frozen=True)
class Entry:
    """One batch of the log; `facts` iff it is a marker."""

    header: BatchHeader
    facts: MarkerFacts | None = None

    @property
    def offset(self) -> int:
        return self.header.base_offset


Log = list[Entry]


# -- the naive model: every answer is a scan of the whole log -----------------------------------------


def transactions(log: Log) -> list[tuple[int, int, int | None, ControlType | None]]:
    """Return (producer id, first offset, marker offset, outcome) of each transaction."""
    found: list[tuple[int, int, int | None, ControlType | None]] = []
    running: dict[int, int] = {}
    for entry in log:
        producer_id = entry.header.producer_id
        if entry.facts is not None:
            if producer_id in running:
                first = running.pop(producer_id)
                found.append((producer_id, first, entry.offset, entry.facts.control_type))
        elif entry.header.is_transactional:
            running.setdefault(producer_id, entry.offset)
    return found + [(producer_id, first, None, None) for producer_id, first in running.items()]


def stable_offset(log: Log, bound: int) -> int:
    unended = [first for _, first, end, _ in transactions(log) if end is None or end >= bound]
    return min([bound, *unended])


def aborted(log: Log, start: int, end: int, bound: int) -> list[tuple[int, int, int]]:
    return [
        (producer_id, first, marker_offset)
        for producer_id, first, marker_offset, outcome in transactions(log)
        if outcome is ControlType.ABORT
        and marker_offset is not None
        and start <= marker_offset < bound
        and first < end
    ]


def first_commit(log: Log, stamp: int) -> int | None:
    for entry in log:
        facts = entry.facts
        if facts is None or facts.decision is None or facts.control_type is ControlType.ABORT:
            continue
        if facts.decision.stamp >= stamp:
            return entry.offset
    return None


def epoch_of(log: Log, producer_id: int) -> int | None:
    epochs = [e.header.producer_epoch for e in log if e.header.producer_id == producer_id]
    return max(epochs, default=None)


def window(log: Log, producer_id: int) -> list[BatchHeader]:
    """Return the last five sequenced batches of the producer's newest epoch."""
    epoch = epoch_of(log, producer_id)
    seen: list[BatchHeader] = []
    newest = -1
    for entry in log:
        header = entry.header
        if header.producer_id != producer_id:
            continue
        newest = max(newest, header.producer_epoch)
        if entry.facts is None and header.base_sequence >= 0 and header.producer_epoch == newest:
            seen.append(header)
    return [header for header in seen if header.producer_epoch == epoch][-5:]


def running_epoch(log: Log, producer_id: int) -> int | None:
    """Return the producer epoch known here while its transaction is open, else None."""
    is_open = any(p == producer_id and end is None for p, _, end, _ in transactions(log))
    return epoch_of(log, producer_id) if is_open else None


def original_of(sent: list[BatchHeader], header: BatchHeader) -> int | None:
    """Return the offset of the newest batch with the same sequences."""
    wanted = header.base_sequence, header.record_count
    found = [o.base_offset for o in sent if (o.base_sequence, o.record_count) == wanted]
    return found[-1] if found else None


def expected_verdict(
    log: Log, header: BatchHeader, gap_below: int, *, tv2: bool
) -> tuple[Verdict, int]:
    if header.base_sequence < 0:
        return Verdict.INVALID_RECORD, -1
    epoch = epoch_of(log, header.producer_id)
    if epoch is None:
        if header.producer_id == OF_TRANSACTIONS and not header.is_transactional:
            return Verdict.INVALID_TXN_STATE, -1  # INV-S6
        late_start = tv2 and header.is_transactional and header.base_sequence != 0
        return (Verdict.OUT_OF_ORDER_SEQUENCE if late_start else Verdict.FRESH), -1
    if header.producer_epoch < epoch:
        return Verdict.STALE_PRODUCER_EPOCH, -1
    ended = any(e.facts is not None and e.header.producer_id == header.producer_id for e in log)
    if ended and not header.is_transactional:
        return Verdict.INVALID_TXN_STATE, -1  # INV-S6
    return expected_of_known(log, header, gap_below, ended=ended)


def expected_of_known(
    log: Log, header: BatchHeader, gap_below: int, *, ended: bool
) -> tuple[Verdict, int]:
    """Say the same of a producer that is known and not fenced; `ended`: a transaction of it has ended."""
    epoch = epoch_of(log, header.producer_id)
    running = running_epoch(log, header.producer_id)
    sent = window(log, header.producer_id)
    expected = 0
    if header.producer_epoch == epoch:
        original = original_of(sent, header)
        if original is not None and header.is_transactional and running is None and not ended:
            return Verdict.OUT_OF_ORDER_SEQUENCE, -1  # INV-S6
        if original is not None:
            return Verdict.DUPLICATE, original
        if sent:
            expected = (sent[-1].base_sequence + sent[-1].record_count) % WRAP
    ahead = (header.base_sequence - expected) % WRAP
    allowed = bool(sent) and sent[-1].last_offset < gap_below and not header.is_transactional
    if ahead != 0 and not (allowed and ahead < WRAP // 2):
        return Verdict.OUT_OF_ORDER_SEQUENCE, -1
    if running is not None and not (header.is_transactional and header.producer_epoch == running):
        return Verdict.INVALID_TXN_STATE, -1
    return Verdict.FRESH, -1


def expected_marker_verdict(log: Log, facts: MarkerFacts) -> Verdict:
    markers = [
        e.facts for e in log if e.facts is not None and e.facts.producer_id == facts.producer_id
    ]
    decisions = [(m.decision.leader_epoch, m.decision.offset) for m in markers if m.decision]
    decided = facts.decision
    if decided and decisions and (decided.leader_epoch, decided.offset) <= max(decisions):
        return Verdict.MARKER_ALREADY_APPLIED
    if any(m.coordinator_epoch > facts.coordinator_epoch for m in markers):
        return Verdict.COORDINATOR_FENCED
    epoch = epoch_of(log, facts.producer_id)
    if epoch is not None and facts.producer_epoch < epoch:
        return Verdict.STALE_PRODUCER_EPOCH
    return Verdict.FRESH


def replay(log: Log, state: PartitionState | None = None) -> PartitionState:
    state = state or PartitionState()
    for entry in log:
        if entry.offset >= state.end_offset:
            state.apply(entry.header, entry.facts)
    return state


class PartitionHistory(RuleBasedStateMachine):
    """One partition through clients, coordinators, mirrors, crashes and takeovers."""

    def __init__(self) -> None:
        super().__init__()
        self.log: Log = []
        self.state = PartitionState()
        self.snapshots: list[tuple[int, bytes]] = []
        self.region_number = 1
        self.takeovers: list[int] = []
        self.forgotten = 0

    @property
    def end(self) -> int:
        return self.log[-1].header.next_offset if self.log else 0

    @property
    def leader_epoch(self) -> int:
        return leader_epoch(region_epoch(self.region_number, 0), 0)

    def append(self, entry: Entry) -> None:
        self.log.append(entry)
        self.state.apply(entry.header, entry.facts)

    def told(self, state: PartitionState) -> PartitionState:
        """Tell a rebuilt state what the node tells it beside the log."""
        for base in self.takeovers:
            state.allow_gap_once(below_offset=base)
        state.forget_completed_below(self.forgotten)
        return state

    def rebuilt(self) -> PartitionState:
        """Return the state as recovery builds it: newest usable snapshot, then the log."""
        usable = [encoded for end, encoded in self.snapshots if end <= self.end]
        start = PartitionState.decode(usable[-1]) if usable else None
        return self.told(replay(self.log, start))

    @rule(
        producer_id=PRODUCER_IDS,
        epoch_step=st.sampled_from([0, 0, 0, 0, 1, -1]),
        sequence_step=st.sampled_from([0, 0, 0, 0, 0, 1, 5, -1, -3]),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        tv2=st.booleans(),
    )
    def client_batch(
        self,
        producer_id: int,
        epoch_step: int,
        sequence_step: int,
        count: int,
        transactional: bool,
        tv2: bool,
    ) -> None:
        epoch = max((epoch_of(self.log, producer_id) or 0) + epoch_step, 0)
        sent = window(self.log, producer_id)
        following = (
            (sent[-1].base_sequence + sent[-1].record_count) if sent and not epoch_step else 0
        )
        header = data(
            self.end,
            sequence=(following + sequence_step) % WRAP,
            count=count,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=transactional,
            timestamp_ms=1_000 + self.end,
            leader_epoch=self.leader_epoch,
        )
        self.judge_and_append(header, tv2=tv2)

    @rule(producer_id=PRODUCER_IDS, back=st.integers(1, 7), tv2=st.booleans())
    def client_retry(self, producer_id: int, back: int, tv2: bool) -> None:
        sent = [
            e.header for e in self.log if e.facts is None and e.header.producer_id == producer_id
        ]
        if len(sent) >= back:
            again = sent[-back].stamped(
                base_offset=self.end, leader_epoch=LeaderEpoch(self.leader_epoch)
            )
            self.judge_and_append(again, tv2=tv2)

    def judge_and_append(self, header: BatchHeader, *, tv2: bool) -> None:
        gap_below = max(self.takeovers, default=0)
        judgement = self.state.judge(header, tv2=tv2)
        expected = expected_verdict(self.log, header, gap_below, tv2=tv2)
        assert (judgement.verdict, judgement.base_offset) == expected
        if judgement.verdict is Verdict.FRESH:
            self.append(Entry(header))

    @rule(
        producer_id=PRODUCER_IDS,
        epoch=st.integers(0, 3),
        sequence=st.one_of(st.integers(0, 20), st.integers(WRAP - 3, WRAP - 1), st.just(-1)),
        count=st.integers(1, 3),
        transactional=st.booleans(),
        hole=st.integers(0, 2),
    )
    def mirrored_batch(
        self,
        producer_id: int,
        epoch: int,
        sequence: int,
        count: int,
        transactional: bool,
        hole: int,
    ) -> None:
        """Any batch may be in a log that is copied; apply takes it whatever its sequence."""
        header = data(
            self.end + hole,
            sequence=sequence,
            count=count,
            producer_id=producer_id,
            producer_epoch=epoch,
            transactional=transactional,
            leader_epoch=self.leader_epoch,
        )
        self.append(Entry(header))

    @rule(
        producer_id=PRODUCER_IDS,
        epoch_step=st.sampled_from([0, 0, 1, -1]),
        control_type=CONTROL_TYPES,
        coordinator_epoch=st.integers(0, 2),
        decision=st.one_of(
            st.none(),
            st.builds(
                DecisionId,
                st.integers(0, 1),
                st.integers(1, 2),
                st.integers(0, 30),
                st.integers(0, 9),
            ),
        ),
        judged=st.booleans(),
    )
    def coordinator_marker(
        self,
        producer_id: int,
        epoch_step: int,
        control_type: ControlType,
        coordinator_epoch: int,
        decision: DecisionId | None,
        judged: bool,
    ) -> None:
        facts = marker(
            control_type,
            producer_id=producer_id,
            producer_epoch=max((epoch_of(self.log, producer_id) or 0) + epoch_step, 0),
            coordinator_epoch=coordinator_epoch,
            decision=decision,
        )
        verdict = self.state.judge_marker(facts).verdict
        assert verdict is expected_marker_verdict(self.log, facts)
        if verdict is Verdict.FRESH or not judged:
            header = marker_header(self.end, facts, leader_epoch=self.leader_epoch)
            self.append(Entry(header, facts))

    @rule()
    def take_snapshot(self) -> None:
        self.snapshots.append((self.end, self.state.encode()))

    @rule()
    def crash_and_recover(self) -> None:
        self.state = self.rebuilt()

    @precondition(lambda self: self.log)
    @rule(data=st.data())
    def truncate(self, data: st.DataObject) -> None:
        """Cut at a batch boundary not below what was shown (C9)."""
        kept = len(self.log) - data.draw(st.integers(0, min(4, len(self.log))))
        end = self.log[kept - 1].header.next_offset if kept else 0
        if end < self.forgotten:
            return
        del self.log[kept:]
        self.snapshots = [(at, encoded) for at, encoded in self.snapshots if at <= end]
        self.takeovers = [base for base in self.takeovers if base <= end]
        self.state = self.rebuilt()

    @rule()
    def take_over(self) -> None:
        self.region_number += 1
        self.takeovers.append(self.end)
        self.state.allow_gap_once()

    @rule(share=st.floats(0, 1))
    def forget(self, share: float) -> None:
        self.forgotten = max(self.forgotten, int(self.end * share))
        self.state.forget_completed_below(self.forgotten)

    @invariant()
    def live_is_replay(self) -> None:
        assert self.state == self.told(replay(self.log))

    @invariant()
    def snapshot_round_trips(self) -> None:
        assert PartitionState.decode(self.state.encode()) == self.state

    @invariant()
    def readers_see_what_the_model_sees(self) -> None:
        for bound in range(self.forgotten, self.end + 1):
            assert self.state.last_stable_offset(bound) == stable_offset(self.log, bound)
        bounds = sorted({0, self.end // 3, self.end // 2, self.end})
        for bound in bounds:
            for start in bounds:
                for stop in bounds:
                    found = self.state.aborted_in(start, stop, bound)
                    if start < stop:
                        assert [tuple(txn) for txn in found] == aborted(
                            self.log, start, stop, bound
                        )

    @invariant()
    def cuts_are_where_the_model_finds_them(self) -> None:
        for stamp in range(11):
            assert self.state.first_commit_marker(Round(stamp)) == first_commit(self.log, stamp)

    @invariant()
    def open_transactions_are_those_without_a_marker(self) -> None:
        unended = [(p, first) for p, first, end, _ in transactions(self.log) if end is None]
        found = [(txn.producer_id, txn.first_offset) for txn in self.state.open_transactions()]
        assert found == sorted(unended, key=lambda item: item[1])


PartitionHistory.TestCase.settings = settings(
    max_examples=250, stateful_step_count=60, deadline=None
)
TestPartitionHistory = pytest.mark.slow(PartitionHistory.TestCase)
