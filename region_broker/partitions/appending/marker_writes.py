"""Markers of many transactions, written to one partition by one write.

INV-MW1  each marker is judged over the log as the markers before it leave it; one that is not fresh writes nothing
The bytes of a decision's marker are made once, whatever the number of its partitions: only place and leader epoch
differ, and both lie outside the CRC.

Not here: who sends markers (`txn_coordinator`), what they mean (`PartitionState`).
"""

from collections.abc import Sequence

from idempotency.identity import LeaderEpoch
from idempotency.partition_state import PartitionState, Verdict
from idempotency.record_batch import (
    FRONT_BYTES,
    BatchHeader,
    MarkerFacts,
    build_marker,
    read_header,
    stamped_front,
)
from region_broker.log.failures import PartitionFailed
from region_broker.log.partition_log import PartitionLog
from region_broker.partitions.admission import APPEND_VERDICTS, AppendOutcome, AppendVerdict


class MarkerBatch:
    """One marker, for any number of partitions; `tv2`: see `PartitionState.judge_marker`."""

    __slots__ = ("body", "facts", "header", "tv2")

    def __init__(self, facts: MarkerFacts, *, tv2: bool) -> None:
        """Build its bytes."""
        batch = build_marker(facts)
        self.facts = facts
        self.tv2 = tv2
        self.header = read_header(batch)
        self.body = batch[FRONT_BYTES:]


def write_markers(
    log: PartitionLog, leader_epoch: LeaderEpoch, markers: Sequence[MarkerBatch]
) -> list[AppendOutcome]:
    """Write those of `markers` whose decision is not in the log yet; return what became of each."""
    outcomes: list[AppendOutcome] = []
    run = _Run(log, leader_epoch)
    for marker in markers:
        if marker.facts.producer_id in run.producers:  # it is judged over what stands before it
            outcomes += run.write()
            run = _Run(log, leader_epoch)
        refused = _refusal(log.state, marker)
        if refused is None:
            run.add(marker)
            continue
        outcomes += run.write()
        run = _Run(log, leader_epoch)
        # The marker of that decision is somewhere below the end: wait for all of it.
        applied = refused.verdict is AppendVerdict.MARKER_ALREADY_APPLIED
        end = log.log_end_offset if applied else -1
        outcomes.append(AppendOutcome(refused.verdict, next_offset=end, detail=refused.detail))
    return outcomes + run.write()


def _refusal(state: PartitionState, marker: MarkerBatch) -> AppendOutcome | None:
    judgement = state.judge_marker(marker.facts, tv2=marker.tv2)
    if judgement.verdict is Verdict.FRESH:
        return None
    return AppendOutcome(APPEND_VERDICTS[judgement.verdict], detail=judgement.detail)


class _Run:
    """Fresh markers of different producers, one behind the other."""

    def __init__(self, log: PartitionLog, leader_epoch: LeaderEpoch) -> None:
        self.producers: set[int] = set()
        self._log = log
        self._leader_epoch = leader_epoch
        self._end_offset = log.log_end_offset
        self._bytes: list[bytes] = []
        self._batches: list[tuple[BatchHeader, MarkerFacts | None]] = []

    def add(self, marker: MarkerBatch) -> None:
        header = marker.header.stamped(
            base_offset=self._end_offset, leader_epoch=self._leader_epoch
        )
        self.producers.add(marker.facts.producer_id)
        self._bytes += (stamped_front(header), marker.body)
        self._batches.append((header, marker.facts))
        self._end_offset += 1

    def write(self) -> list[AppendOutcome]:
        if not self._batches:
            return []
        try:
            self._log.appender.append_verbatim(b"".join(self._bytes), self._batches)
        except PartitionFailed as error:
            failed = AppendOutcome(AppendVerdict.STORAGE_FAILED, detail=str(error))
            return [failed] * len(self._batches)
        return [
            AppendOutcome(AppendVerdict.APPENDED, header.base_offset, header.next_offset)
            for header, _ in self._batches
        ]
