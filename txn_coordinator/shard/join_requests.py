"""Partitions join a transaction: AddPartitionsToTxn, AddOffsetsToTxn, Produce and TxnOffsetCommit under TV2.

Not here: whether data may be written (`view.ShardView.verify`), the records (`decisions`).
"""

from collections.abc import Sequence

from idempotency.identity import TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import events as ev
from txn_coordinator import transitions as tr
from txn_coordinator.effects import Answer
from txn_coordinator.partition_limit import has_room
from txn_coordinator.shard.decisions import Decisions
from txn_coordinator.shard.progress import Progress
from txn_coordinator.shard.step import Step
from txn_coordinator.shard.table import Entry, TransactionTable, missing_partitions
from txn_coordinator.verdicts import TxnVerdict


class JoinRequests:
    """The rules of partitions that join."""

    def __init__(
        self, table: TransactionTable, decisions: Decisions, progress: Progress, step: Step
    ) -> None:
        """Take the table that the rules look at, and the parts that act."""
        self._table = table
        self._decisions = decisions
        self._progress = progress
        self._step = step

    def serve(self, request: ev.AddPartitionsReceived) -> None:
        """Let the partitions join, or let the request wait, or refuse."""
        entry = self._table.get(request.transactional_id)
        if entry is None:
            self._step.answer(request, TxnVerdict.UNKNOWN_PRODUCER_MAPPING)
        elif entry.is_busy:
            self._step.park(entry, request)
        else:
            self.serve_together(entry, (request,))

    def serve_together(self, entry: Entry, requests: Sequence[ev.AddPartitionsReceived]) -> None:
        """Let the partitions of `requests` join in one record; answer what needs none at once."""
        assert not entry.is_busy, entry
        joining: dict[TopicPartition, None] = {}
        writers: list[ev.AddPartitionsReceived] = []
        for request in requests:
            verdict = judge_join(
                entry.record, request, is_foreign=self._decisions.is_foreign(entry.record)
            )
            missing = missing_partitions(entry, request.partitions)
            if verdict is not None:
                self._step.answer(request, verdict)
            elif not missing:
                self._step.answer(request, TxnVerdict.OK)  # C26: no log write
            elif not has_room(
                entry.record, len(joining), [tp for tp in missing if tp not in joining]
            ):
                self._step.answer(request, TxnVerdict.INVALID_REQUEST)
            else:
                writers.append(request)
                joining.update(dict.fromkeys(missing))
        if not writers:
            return
        if entry.record.status is not TxnStatus.ONGOING:
            entry.deadline_ms = self._step.now_ms + entry.record.timeout_ms
        target = self._decisions.join(entry.record, tuple(joining), tv=writers[-1].tv)
        answers = tuple(Answer(request.request_id, TxnVerdict.OK) for request in writers)
        self._progress.prepare(entry, target, answers)


def judge_join(
    record: TransactionRecord, request: ev.AddPartitionsReceived, *, is_foreign: bool
) -> TxnVerdict | None:
    """Return why partitions may not join, None if they may."""
    if is_foreign:
        return TxnVerdict.FENCED_BY_TAKEOVER
    if record.producer_id != request.producer_id:
        return TxnVerdict.UNKNOWN_PRODUCER_MAPPING
    if record.producer_epoch != request.producer_epoch or tr.only_fences(request.producer_epoch):
        return TxnVerdict.FENCED
    return None
