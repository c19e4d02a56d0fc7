"""The mutants: each takes one rule out of the product, and names the scene that must notice it and what it says then.

INV-MUT1  noticed is only what shows as the violation that is expected; the same scene is clean without the edits
INV-MUT2  a scene is played from one seed after the other, up to `SEEDS_MAX`, until it shows: which moment a fault meets changes with all that the
          product does, and what one seed meets no more another one does
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Final

from tests.simulation.mutants.lives import LIVES, play_life
from tests.simulation.mutants.patch import Edit, edited
from tests.simulation.mutants.scenes import SCENES, play_scene


@dataclass(frozen=True, slots=True)
class Mutant:
    """`rule` is what the edits take out, `scene` who notices it, and `expected` a pattern of what is said then."""

    name: str
    rule: str
    scene: str
    expected: str
    edits: tuple[Edit, ...]


SEEDS_MAX: Final = 12


def played(mutant: Mutant, scene: str = "") -> tuple[str, ...]:
    """Return what the judges say of a mutant in its scene; raises DoesNotApply, and whatever is no judgement."""
    said: tuple[str, ...] = ()
    with edited(mutant.edits):
        for nth in range(SEEDS_MAX):
            said = _said_in(scene or mutant.scene, nth) or said
            if caught(mutant, said):
                break
    return said


def caught(mutant: Mutant, said: tuple[str, ...]) -> bool:
    """Return whether what was expected is among what is said."""
    return any(re.search(mutant.expected, each) for each in said)


@cache
def clean(scene: str, say: Callable[[str], None] | None = None) -> tuple[str, ...]:
    """Return what the judges say of a scene without an edit, from its first seed: nothing."""
    return _said_in(scene, 0, say)


def _said_in(scene: str, nth: int, say: Callable[[str], None] | None = None) -> tuple[str, ...]:
    """Return what they say of it from its `nth` seed, from 0."""
    return (
        play_life(scene, nth) if scene in LIVES else play_scene(SCENES[scene], nth, say).violations
    )


def _mutant(
    name: str, rule: str, scene: str, expected: str, *edits: tuple[str, str, str]
) -> Mutant:
    return Mutant(name, rule, scene, expected, tuple(Edit(*edit) for edit in edits))


MUTANTS: Final = (
    _mutant(
        "a-retry-is-not-known",
        "C2",
        "power goes",
        "a producer is refused",
        (
            "idempotency.window:BatchWindow.find",
            "if batch.base_sequence == base_sequence and batch.last_sequence == last_sequence:",
            "if False:",
        ),
    ),
    _mutant(
        "a-retry-is-written-again",
        "C2",
        "power goes",
        "doubled",
        (
            "idempotency.partition_state:PartitionState._judge_known",
            "return _duplicate(entry, header, original)",
            "return FRESH",
        ),
    ),
    _mutant(
        "a-window-of-one",
        "C2",
        "power goes",
        "a producer is refused",
        (
            "idempotency.window:BatchWindow.push",
            "if len(self._batches) > BATCHES_TO_RETAIN:",
            "if len(self._batches) > 1:",
        ),
    ),
    _mutant(
        "new-epoch-keeps-sequences",
        "C4",
        "power goes",
        "INV-IVE4",
        ("idempotency.producer_state:ProducerTable._entry_at", "entry.window.clear()", "pass"),
    ),
    _mutant(
        "readers-see-open-transactions",
        "C36",
        "power goes",
        "shown although it was aborted",
        (
            "region_broker.partitions.parts.sight:Sight.last_stable_offset",
            "stable = state.last_stable_offset(bound)",
            "stable = bound",
        ),
    ),
    _mutant(
        "aborted-transactions-are-not-named",
        "C38",
        "power goes",
        "ABORTED_READ|although it was aborted",
        (
            "region_broker.partitions.parts.reader:PartitionReader.fetch",
            "aborted = self._reads.aborted_in(offset, next_offset, sight.visible_end, wait=wait)",
            "aborted = []",
        ),
    ),
    _mutant(
        "mirror-shows-its-high-watermark",
        "T17",
        "the primary lost",
        "gone without a word.*plain|INV-IVA5",
        (
            "region_broker.partitions.parts.sight:Sight.visible_end",
            "return max(min(self.shown_cut_offset, high_watermark), self.log_start_offset)",
            "return high_watermark",
        ),
    ),
    _mutant(
        "mirror-shows-each-log-by-itself",
        "T17",
        "mirror restarts",
        "torn in the view of mirror",
        (
            "region_broker.region.mirror.mirror_view:MirrorView._whole_ends",
            "ends = whole_cut(logs, self._round_before)",
            "ends = {key: log.stable_offset for key, log in logs.items()}",
        ),
    ),
    _mutant(
        "one-partition-gets-no-marker",
        "C28",
        "power goes",
        "not within .* all is decided",
        (
            "region_broker.ledgers.marker_channel:PartitionMarkerChannel._write_to",
            "partition = self._partitions.get(tp.topic, tp.partition)",
            "partition = self._partitions.get(tp.topic, tp.partition)\n    if tp.partition == 3:\n        for marker in markers:\n            marker.order.listener.marked(marker.order, tp, MarkerResult.DONE)\n        return",
        ),
    ),
    _mutant(
        "quarantine-keeps-nothing",
        "T20",
        "the primary lost",
        "gone and not named by losses",
        (
            "region_broker.region.failover.log_surgery:_cut_one",
            "moved = await quarantine.move_in(msgspec.structs.replace(provenance, first_offset=first), read)",
            "moved = provenance",
        ),
    ),
    _mutant(
        "every-marker-aborts",
        "C28",
        "power goes",
        "gone without a word",
        (
            "region_broker.ledgers.marker_channel:_batch",
            "ControlType.COMMIT if order.commit else ControlType.ABORT",
            "ControlType.ABORT",
        ),
    ),
    _mutant(
        "a-commit-is-answered-before-it-is-durable",
        "C20",
        "power goes",
        "gone without a word|TORN",
        (
            "txn_coordinator.shard.end_requests:EndRequests._end",
            "self._progress.prepare(entry, target, (answer,))",
            "self._progress.prepare(entry, target)\n        self._step.do(answer)",
        ),
    ),
    _mutant(
        "every-marker-commits",
        "C28",
        "power goes",
        "ABORTED_READ|although it was aborted|has too much",
        (
            "region_broker.ledgers.marker_channel:_batch",
            "ControlType.COMMIT if order.commit else ControlType.ABORT",
            "ControlType.COMMIT",
        ),
    ),
    _mutant(
        "staged-offsets-never-count",
        "C35",
        "power goes",
        "has too much",
        (
            "region_broker.ledgers.marker_channel:PartitionMarkerChannel._notify_groups",
            "order.producer_id, order.commit)",
            "order.producer_id, False)",
        ),
    ),
    _mutant(
        "a-start-forgets-producers",
        "C9",
        "power goes",
        "INV-IVE5",
        (
            "region_broker.log.replay:_read_window",
            "state.apply(header, marker)",
            "state._end_offset = header.next_offset",
        ),
    ),
    _mutant(
        "the-journal-is-not-synced",
        "INV-DK2",
        "power goes",
        "a log is not opened: the journal|the journal has block",
        ("region_broker.log.journal.writer:JournalBlock.run", "self.file.fdatasync()", "pass"),
    ),
    _mutant(
        "nothing-is-synced",
        "INV-DK2",
        "killed",
        "it lacks|out of range|a log is not opened|were durable: restore|the journal has block",
        ("region_broker.log.journal.writer:JournalBlock.run", "self.file.fdatasync()", "pass"),
        ("region_broker.log.journal.sync_job:FileSync._run", "file.fdatasync()", "pass"),
    ),
    _mutant(
        "decided-markers-are-not-sent-again",
        "C22",
        "power goes",
        "all clients get on although all is well",
        ("txn_coordinator.shard.progress:Progress.resume_all", "self._resume(entry)", "pass"),
    ),
    _mutant(
        "readers-see-what-is-not-durable",
        "INV-PT1",
        "power goes",
        "INV-IVE1",
        (
            "region_broker.partitions.parts.sight:Sight.visible_end",
            "if self.is_leader or self.is_copy_shown:\n        return high_watermark",
            "if self.is_leader or self.is_copy_shown:\n        return self._content.end_offset",
        ),
    ),
    _mutant(
        "read-committed-reads-all",
        "C37",
        "power goes",
        "gone without a word",
        (
            "region_broker.partitions.parts.sight:Sight.readable_end",
            "return self.last_stable_offset",
            "return self.visible_end",
        ),
    ),
    _mutant(
        "deleted-records-come-back",
        "INV-PT7",
        "killed",
        "trimmed-0 .* started at",
        (
            "region_broker.log.indexes.log_start:LogStart._write",
            "self._disk.write_file_atomic(self._path, data)",
            "pass",
        ),
    ),
    _mutant(
        "an-epoch-is-not-bumped",
        "C15",
        "power goes",
        "INV-TC12",
        (
            "txn_coordinator.transitions:bump_epoch",
            "producer_epoch=record.producer_epoch + 1,",
            "producer_epoch=record.producer_epoch,",
        ),
    ),
    _mutant(
        "committed-offsets-are-not-loaded",
        "C43",
        "power goes, groups",
        "the committed offset at eu is -1",
        (
            "region_broker.groups.offsets:OffsetTable._put",
            "self._commit(key.group_id, {key.tp: place}, _weight(place.metadata))",
            "pass",
        ),
    ),
    _mutant(
        "producers-expire-at-once",
        "C8",
        "both restart",
        "INV-IVE5",
        (
            "idempotency.producer_state:ProducerTable.expire",
            "elif monotonic_ms - entry.idle_since_ms >= retention_ms:",
            "else:",
        ),
    ),
    _mutant(
        "an-aborted-transaction-is-forgotten",
        "C38",
        "power goes",
        "has too much",
        ("idempotency.visibility:Visibility.complete", "if not ended.committed:", "if False:"),
    ),
    _mutant(
        "the-first-aborted-transaction-is-not-named",
        "C38",
        "power goes",
        "has too much",
        (
            "idempotency.visibility:Visibility.aborted_in",
            "if entry.first_offset < end:",
            "if entry.first_offset < end and found:",
        ),
    ),
    _mutant(
        "a-transaction-is-not-seen-to-begin",
        "C36",
        "power goes",
        "ABORTED_READ",
        (
            "idempotency.partition_state:PartitionState._apply_data",
            "if not entry.in_transaction:",
            "if not entry.in_transaction and header.base_sequence % 2:",
        ),
    ),
    _mutant(
        "an-answer-names-the-next-offset",
        "INV-HPW1",
        "power goes",
        "gone without a word",
        (
            "region_broker.handlers.produce.wait:Item.row",
            "outcome.base_offset,",
            "outcome.base_offset + 1,",
        ),
    ),
    _mutant(
        "reached-is-not-durable",
        "T16",
        "both restart",
        "INV-IVA2",
        (
            "region_broker.region.tidemarks.reached_store:ReachedFile._write",
            "file.fdatasync()",
            "pass",
        ),
    ),
    _mutant(
        "partitions-that-joined-first-get-no-marker",
        "C28",
        "power goes",
        "all clients get on",
        (
            "txn_coordinator.transitions:join_partitions",
            "partitions=_grouped(record.partitions + partitions),",
            "partitions=partitions,",
        ),
    ),
    _mutant(
        "a-decision-forgets-its-partitions",
        "C28",
        "power goes",
        "all clients get on although all is well",
        (
            "txn_coordinator.transitions:prepare_end",
            "partitions=record.partitions if record.status is TxnStatus.ONGOING else (),",
            "partitions=record.partitions[:1] if record.status is TxnStatus.ONGOING else (),",
        ),
    ),
    _mutant(
        "every-decision-is-a-commit",
        "C17",
        "power goes",
        "ABORTED_READ",
        (
            "txn_coordinator.transitions:prepare_end",
            "TxnStatus.PREPARE_COMMIT if decision.commit else TxnStatus.PREPARE_ABORT",
            "TxnStatus.PREPARE_COMMIT",
        ),
    ),
    _mutant(
        "a-fence-commits",
        "C24",
        "power goes",
        "ABORTED_READ",
        (
            "txn_coordinator.transitions:prepare_fence",
            "status=TxnStatus.PREPARE_ABORT,",
            "status=TxnStatus.PREPARE_COMMIT,",
        ),
    ),
    _mutant(
        "a-mirror-shows-what-it-copies",
        "T17",
        "the primary lost",
        "gone without a word",
        (
            "region_broker.partitions.parts.sight:Sight.show_up_to",
            "self.shown_cut_offset = max(self.shown_cut_offset, cut_offset)",
            "self.shown_cut_offset = 1 << 60",
        ),
    ),
    _mutant(
        "a-cut-is-where-the-logs-end",
        "T3, T7",
        "transfers",
        r"TidemarkPoint|check\(history\)",
        (
            "txn_coordinator.rounds:RoundGate.is_free",
            "return stamp < self.current or stamp <= self.released",
            "return True",
        ),
        (
            "idempotency.cut_index:CutIndex.first_commit_marker",
            "return self._offsets[at] if at < len(self._offsets) else None",
            "return None",
        ),
        (
            "txn_coordinator.serving.ledger_rounds:LedgerRounds.enter_round",
            "return entered",
            "await __import__('asyncio').sleep(0.005)\n    return entered",
        ),
    ),
    _mutant(
        "a-candidate-cuts-nothing",
        "T20",
        "transfers",
        "loss.statement",
        (
            "region_broker.region.failover.log_surgery:cut_logs",
            "by_key = {key_of(log): log for log in logs}",
            "return []",
        ),
    ),
    _mutant(
        "producers-expire-by-event-times",
        "C8",
        "pipelined",
        "twice, or out of order|refused_for_good",
        (
            "idempotency.producer_state:ProducerTable.expire",
            "if entry.idle_since_ms is None:",
            "if entry.last_timestamp_ms <= 1_700_000_000_000 + __import__('asyncio').get_running_loop().time() * 1000 - retention_ms:\n            expired.append(entry.producer_id)\n        elif entry.idle_since_ms is None:",
        ),
    ),
    _mutant(
        "a-failed-produce-is-overtaken",
        "INV-HD4",
        "pipelined",
        "refused_for_good",
        (
            "region_broker.region.peers.forwarder:_refuse_behind_failure",
            "if channel.produce_number != channel.number:",
            "if False:",
        ),
        (
            "region_broker.handlers.dispatch.dispatcher:Dispatcher._forward",
            "ctx.connection_state.produce_broken = True",
            "pass",
        ),
        (
            "region_broker.handlers.dispatch.dispatcher:Dispatcher._forward",
            'raise CloseConnection(f"a produce request failed: {error}", answer=answer) from error',
            "return answer",
        ),
        (
            "region_broker.handlers.dispatch.dispatcher:_check_order",
            "if state.produce_broken or others:",
            "if False:",
        ),
    ),
    _mutant(
        "answers-before-the-sync",
        "INV-PT2",
        "power goes",
        "T11: L of shard|gone without a word",
        (
            "region_broker.log.parts.durability:LogDurability.durable_offset",
            "self.synced_offset if self._waits_for_sync else self._content.end_offset",
            "self._content.end_offset",
        ),
    ),
    _mutant(
        "a-region-forgets-what-was-decided",
        "C22",
        "power goes",
        "all is decided|gone without a word",
        (
            "txn_coordinator.shard.replay:LedgerReplay._take_value",
            "record = lr.decode_transaction_value(name, value)",
            "record = lr.decode_transaction_value(name, value)\n    if record.status in PREPARED:\n        return",
        ),
    ),
    _mutant(
        "a-region-forgets-producer-epochs",
        "C22",
        "power goes",
        "gone without a word|all clients get on",
        (
            "txn_coordinator.shard.replay:LedgerReplay._take_value",
            "self._table.install(entry, record)",
            "self._table.install(entry, record.__class__(**{**{f: getattr(record, f) for f in record.__struct_fields__}, 'producer_epoch': 0}))",
        ),
    ),
    _mutant(
        "a-duplicate-gets-another-offset",
        "C2",
        "power goes",
        "gone without a word",
        (
            "idempotency.partition_state:_duplicate",
            "return Judgement(Verdict.DUPLICATE, original.base_offset, original.timestamp_ms)",
            "return Judgement(Verdict.DUPLICATE, original.base_offset + 1, original.timestamp_ms)",
        ),
    ),
    _mutant(
        "groups-miss-the-markers-at-a-start",
        "C35",
        "power goes",
        "all clients get on although all is well",
        (
            "region_broker.groups.offsets:OffsetTable.apply",
            "self._end_transaction(producer_id, commit=commit)",
            "pass",
        ),
    ),
    _mutant(
        "access-comes-behind-what-is-under-it",
        "INV-SAC1",
        "access",
        "was answered, is behind .* and is not there at us",
        (
            "region_broker.region.mirror.mirror_access:MirrorAccess.take",
            "await to_its_end(self._take(access))",
            "async def later():\n        await __import__('asyncio').sleep(1.0)\n        await self._take(access)\n    self._late = __import__('asyncio').get_running_loop().create_task(later())",
        ),
    ),
    _mutant(
        "a-mirror-keeps-what-was-removed",
        "INV-SAC1, INV-ACC2",
        "access",
        "has removed .* and that is there at us",
        (
            "region_broker.controller.access_commands:_followed",
            "return msgspec.structs.replace(theirs, **same)",
            "return msgspec.structs.replace(theirs, acls=tuple(sorted({*ours.acls, *theirs.acls})))",
        ),
    ),
    _mutant(
        "a-mirror-takes-access-as-its-session-begins-alone",
        "INV-SAC1",
        "access",
        "was answered, is behind .* and is not there at us",
        (
            "region_broker.region.mirror.region_link:_FetchUnderWay._decoded",
            "if fetched.access is not None:",
            "if False:",
        ),
        (
            "region_broker.region.mirror.region_link:PeerPrimarySession.registry",
            "if answer.access is not None:",
            "if answer.access is not None and not self.__dict__.get('took') and not self.__dict__.update(took=True):",
        ),
    ),
    _mutant(
        "a-mirror-takes-no-quotas",
        "INV-SAC1",
        "access",
        "and is not there at us",
        (
            "region_broker.controller.access_commands:_followed",
            "return msgspec.structs.replace(theirs, **same)",
            "return msgspec.structs.replace(theirs, **(same | {'quotas': ours.quotas}))",
        ),
    ),
)
