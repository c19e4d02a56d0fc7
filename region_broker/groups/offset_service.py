"""Offsets committed and fetched on one shard: who may, what is refused, when it is answered.

INV-GV1  a commit is judged and its records appended without an `await` between
INV-GV2  a member of either protocol commits at its generation or epoch only; a commit that no
         generation fences is refused if it points past where a takeover cut the log (T26)
Not here: the table (`offsets`), which shard and when offsets expire (`coordinator`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from idempotency.fencing import FIRST_LEADER_EPOCH
from idempotency.identity import TopicPartition
from region_broker.groups.messages import (
    CommitOutcome,
    CommitRequest,
    FetchedOffset,
    FetchOutcome,
    OffsetToCommit,
)
from region_broker.groups.modern.commits import judge_commit, judge_fetch
from region_broker.groups.offsets import OffsetTable
from region_broker.groups.ports import GroupPorts, KeyValue, LedgerFailed, TxnProducer
from region_broker.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.groups.shard import Shard, ShardHooks, ShardStatus
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import OFFSET_METADATA_BYTES_MAX


@dataclass(frozen=True, slots=True)
class Asker:
    """Who asks for offsets: a member of the new protocol says its epoch, others say nothing."""

    member_id: str | None = None
    member_epoch: int = -1


ADMINISTRATOR = Asker()


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """Which offsets: of these partitions, or of all (None)."""

    group_id: str
    partitions: Sequence[TopicPartition] | None
    require_stable: bool
    asker: Asker = ADMINISTRATOR


class OffsetService:
    """Commits and fetches offsets; the caller picks the shard."""

    def __init__(self, ports: GroupPorts, hooks: ShardHooks) -> None:
        """Write to the ledger of `ports`."""
        self._ports = ports
        self._hooks = hooks

    async def commit(
        self, shard: Shard, request: CommitRequest, producer: TxnProducer | None
    ) -> CommitOutcome:
        """Commit offsets, in the transaction of `producer` if there is one; returns when durable."""
        verdict = self._judge(shard, request, transactional=producer is not None)
        if verdict is not GroupVerdict.OK:
            return CommitOutcome(verdict)
        refused = self._refused_offsets(shard, request)
        accepted = [wanted for wanted in request.offsets if wanted.tp not in refused]
        if not accepted:
            return CommitOutcome(GroupVerdict.OK, refused)
        wall_ms = self._ports.clock.wall_ms()
        records = [_offset_record(request.group_id, wanted, wall_ms) for wanted in accepted]
        term = shard.term
        try:
            next_offset = shard.write(self._ports.log, records, producer)
            await self._ports.log.committed(shard.index, next_offset)
        except LedgerFailed:
            self._hooks.fail(shard, term)
            return CommitOutcome(GroupVerdict.NOT_AVAILABLE)
        return CommitOutcome(GroupVerdict.OK, refused)

    def _judge(self, shard: Shard, request: CommitRequest, *, transactional: bool) -> GroupVerdict:
        verdict: GroupVerdict = shard.status.value
        if verdict is not GroupVerdict.OK:
            return verdict
        modern = shard.table.modern.get(request.group_id)
        if modern is not None:
            return judge_commit(modern, request, transactional=transactional)
        group = shard.groups.get(request.group_id)
        if group is None:
            # Unknown group: a simple consumer's, or a generation from before a takeover (C42).
            simple = request.generation < 0
            return GroupVerdict.OK if simple else GroupVerdict.ILLEGAL_GENERATION
        now_ms = self._ports.clock.monotonic_ms()
        verdict = group.judge_commit(
            request.who, request.generation, transactional=transactional, now_ms=now_ms
        )
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._hooks.arm(request.group_id, deadline_ms)
        return verdict

    def _refused_offsets(
        self, shard: Shard, request: CommitRequest
    ) -> dict[TopicPartition, GroupVerdict]:
        # Members of the new protocol draw their ids themselves, so one may come back to a group that a
        # takeover made anew, at an epoch that it had in the lost region: its offsets are looked at too.
        unfenced = request.generation < 0 or request.group_id in shard.table.modern
        refused: dict[TopicPartition, GroupVerdict] = {}
        for wanted in request.offsets:
            if len(wanted.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
                refused[wanted.tp] = GroupVerdict.METADATA_TOO_LARGE
            elif unfenced and self._is_beyond_epoch(wanted):
                refused[wanted.tp] = GroupVerdict.OFFSET_BEYOND_EPOCH
        return refused

    def _is_beyond_epoch(self, wanted: OffsetToCommit) -> bool:
        """Tell whether the record read was cut off by a takeover (T26).

        Under an epoch that no region ever gave, nothing was read: a made-up one, or one of another cluster. Kafka
        takes it, and so do we.
        """
        if wanted.leader_epoch < FIRST_LEADER_EPOCH:
            return False
        end_offset = self._ports.ends.end_of_epoch(wanted.tp, wanted.leader_epoch)
        return end_offset is not None and wanted.committed_offset > end_offset

    async def fetch(self, shard: Shard, request: FetchRequest) -> FetchOutcome:
        """Return committed offsets, durable ones only."""
        if shard.status is not ShardStatus.ACTIVE:
            return FetchOutcome(shard.status.value)
        table, term, group_id = shard.table, shard.term, request.group_id
        modern = table.modern.get(group_id)
        if modern is not None:
            asker = request.asker
            verdict = judge_fetch(modern, asker.member_id, asker.member_epoch)
            if verdict is not GroupVerdict.OK:
                return FetchOutcome(verdict)
        partitions = request.partitions
        if partitions is None:
            partitions = table.partitions(group_id)
            if not request.require_stable:
                partitions = [tp for tp in partitions if table.lookup(group_id, tp) is not None]
        offsets = tuple(
            _fetched(table, group_id, tp, require_stable=request.require_stable)
            for tp in partitions
        )
        last_offset = table.last_record_offset.get(group_id)
        if last_offset is not None:
            try:
                await self._ports.log.committed(shard.index, last_offset + 1)
            except LedgerFailed:
                self._hooks.fail(shard, term)
        if shard.term != term:
            return FetchOutcome(shard.status.value)
        return FetchOutcome(GroupVerdict.OK, offsets)


def _offset_record(group_id: str, wanted: OffsetToCommit, wall_ms: int) -> KeyValue:
    value = OffsetValue(wanted.committed_offset, wanted.leader_epoch, wanted.metadata, wall_ms)
    return encode_offset_key(OffsetKey(group_id, wanted.tp)), encode_offset_value(value)


def _fetched(
    table: OffsetTable, group_id: str, tp: TopicPartition, *, require_stable: bool
) -> FetchedOffset:
    if require_stable and table.is_pending(group_id, tp):
        return FetchedOffset(tp, GroupVerdict.UNSTABLE_OFFSET)
    place = table.lookup(group_id, tp)
    if place is None:
        return FetchedOffset(tp, GroupVerdict.OK)
    return FetchedOffset(
        tp, GroupVerdict.OK, place.committed_offset, place.leader_epoch, place.metadata
    )
