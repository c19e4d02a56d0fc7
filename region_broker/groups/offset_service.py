"""Offsets committed and fetched on one shard: who may, what is refused, when it is answered.

INV-GV1  a commit is judged and its records appended without an `await` between; its records, one batch, are written
         before that, those of a large one in pieces
INV-GV2  a member of either protocol commits at its generation or epoch only; a commit that no
         generation fences is refused if it points past where a takeover cut the log (T26)
INV-GV3  a fetch answers with the offsets of one moment, though a large one is answered in pieces
INV-GV4  an offset is written for the topic that was there when it was asked for, or not at all; it is shown for no other
Not here: the table (`offsets`), how much it may take (`offset_room`), which shard and when offsets expire (`coordinator`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from uuid import UUID

from idempotency.fencing import FIRST_LEADER_EPOCH
from idempotency.identity import NO_PRODUCER_ID, TopicName, TopicPartition
from idempotency.pieces import Pieces
from region_broker.groups.messages import (
    CommitOutcome,
    CommitRequest,
    FetchedOffset,
    FetchOutcome,
    OffsetToCommit,
)
from region_broker.groups.modern.commits import judge_commit, judge_fetch
from region_broker.groups.offset_room import GroupRoom, OffsetRoom
from region_broker.groups.offsets import CommittedOffset, OffsetsToPut, OffsetTable
from region_broker.groups.ports import (
    GroupPorts,
    LedgerBatch,
    LedgerFailed,
    Topic,
    TopicsImage,
    TxnProducer,
)
from region_broker.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.groups.shard import Shard, ShardHooks, ShardStatus
from region_broker.groups.verdicts import GroupVerdict
from region_broker.limits import (
    ELEMENTS_AT_ONCE_MAX,
    OFFSET_COMMIT_BYTES_MAX,
    OFFSET_METADATA_BYTES_MAX,
    PIECE_ELEMENTS,
    YIELD_ROWS,
)
from region_broker.wire.cooperative_yield import CooperativeYield, run_yielding


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
    durable_within_s: float | None = None
    """How long to wait until they are durable; NOT_AVAILABLE is answered then. None: as long as it takes."""


@dataclass(slots=True)
class _ReadyCommit:
    """A commit that is made ready: what was refused, the batch of its records, and where they belong in the table."""

    term: int
    unfenced: bool
    batch: LedgerBatch
    offsets: OffsetsToPut
    topics: Mapping[str, Topic]
    room: GroupRoom | None
    """None in a transaction, of which all offsets are taken or none."""
    topic_ids: dict[TopicName, UUID] = field(default_factory=dict)
    refused: dict[TopicPartition, GroupVerdict] = field(default_factory=dict)


def _nothing() -> None:
    """Verify nothing."""


class OffsetService:
    """Commits and fetches offsets; the caller picks the shard."""

    def __init__(self, ports: GroupPorts, hooks: ShardHooks, room: OffsetRoom) -> None:
        """Write to the ledger of `ports`, what there is room for."""
        self._ports = ports
        self._hooks = hooks
        self._room = room

    async def commit(
        self,
        shard: Shard,
        request: CommitRequest,
        producer: TxnProducer | None,
        verify: Callable[[], None] = _nothing,
    ) -> CommitOutcome:
        """Commit offsets, in the transaction of `producer` if there is one; returns when durable.

        `verify` is called in the step that judges and appends; what it raises goes through.
        """
        pieces = self._ready(shard, request, transactional=producer is not None)
        ready = await run_yielding(pieces, self._pause)
        verify()
        verdict = self._judge(shard, request, transactional=producer is not None)
        if verdict is GroupVerdict.OK and not self._holds(ready, shard, request):
            verdict = GroupVerdict.LOADING
        if verdict is GroupVerdict.OK and ready.batch.size_bytes > OFFSET_COMMIT_BYTES_MAX:
            verdict = GroupVerdict.COMMIT_TOO_LARGE
        if verdict is GroupVerdict.OK:
            verdict = self._judge_room(shard, ready.offsets, producer)
        if verdict is not GroupVerdict.OK:
            return CommitOutcome(verdict)
        if ready.room is not None and ready.room.refused:
            self._room.refuse(request.group_id, ready.room.refused)
        if not ready.offsets.in_order:
            return CommitOutcome(GroupVerdict.OK, ready.refused)
        term = shard.term
        try:
            next_offset = shard.write_offsets(self._ports.log, ready.batch, ready.offsets, producer)
            await self._ports.log.committed(shard.index, next_offset)
        except LedgerFailed:
            self._hooks.fail(shard, term)
            return CommitOutcome(GroupVerdict.NOT_AVAILABLE)
        return CommitOutcome(GroupVerdict.OK, ready.refused)

    def _ready(
        self, shard: Shard, request: CommitRequest, *, transactional: bool
    ) -> Pieces[_ReadyCommit]:
        """Make everything of a commit that can be made before it is judged, large ones in pieces."""
        ready = _ReadyCommit(
            term=shard.term,
            unfenced=_is_unfenced(shard, request),
            batch=self._ports.log.batch(),
            offsets=OffsetsToPut(request.group_id),
            topics=self._ports.image().topics,
            room=None if transactional else self._room.of_group(shard, request.group_id),
        )
        in_pieces = len(request.offsets) > ELEMENTS_AT_ONCE_MAX
        wall_ms = self._ports.clock.wall_ms()
        yielding = CooperativeYield(YIELD_ROWS)
        for wanted in request.offsets:
            topic = ready.topics.get(wanted.tp.topic)
            refused = self._refusal(wanted, topic, ready)
            if refused is not None:
                ready.refused[wanted.tp] = refused
            else:
                epoch, metadata = wanted.leader_epoch, wanted.metadata
                topic_id = None if topic is None else topic.topic_id
                if topic_id is not None:
                    ready.topic_ids[wanted.tp.topic] = topic_id
                value = OffsetValue(wanted.committed_offset, epoch, metadata, wall_ms, topic_id)
                key = encode_offset_key(OffsetKey(request.group_id, wanted.tp))
                ready.batch.add(key, encode_offset_value(value))
                ready.offsets.add(wanted.tp, value, transactional=transactional)
            if ready.batch.size_bytes > OFFSET_COMMIT_BYTES_MAX:
                break
            if in_pieces and yielding.due():
                yield
        return ready

    def _holds(self, ready: _ReadyCommit, shard: Shard, request: CommitRequest) -> bool:
        """Return whether what was made ready is what would be made now.

        1. A large commit is made ready under one term: some of it was held against the ends of this region's
        epochs. 2. The shard is given up and loaded again, by a takeover that cut logs (T26); or the group goes over
        to the new protocol; or a topic is deleted, and its offsets with it. 3. It would be appended as it was judged
        before, behind the records that end its offsets. So clients are told to ask again.
        """
        if ready.term != shard.term or ready.unfenced != _is_unfenced(shard, request):
            return False
        topics = self._ports.image().topics
        return topics is ready.topics or all(
            name in topics and topics[name].topic_id == topic_id
            for name, topic_id in ready.topic_ids.items()
        )

    async def _pause(self) -> None:
        await self._ports.clock.sleep_ms(0)

    def _judge_room(
        self, shard: Shard, offsets: OffsetsToPut, producer: TxnProducer | None
    ) -> GroupVerdict:
        """Judge all of a commit as things stand now: what it was made ready by may have changed."""
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        return self._room.judge(shard, offsets, producer_id)

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
            if request.generation >= 0:
                return GroupVerdict.ILLEGAL_GENERATION
            admitted = self._hooks.admits(shard, request.group_id)
            return GroupVerdict.OK if admitted else GroupVerdict.TOO_MANY_GROUPS
        now_ms = self._ports.clock.monotonic_ms()
        verdict = group.judge_commit(
            request.who, request.generation, transactional=transactional, now_ms=now_ms
        )
        deadline_ms = group.next_deadline_ms()
        if deadline_ms is not None:
            self._hooks.arm(request.group_id, deadline_ms)
        return verdict

    def _refusal(
        self, wanted: OffsetToCommit, topic: Topic | None, ready: _ReadyCommit
    ) -> GroupVerdict | None:
        if wanted.topic_id is not None and (topic is None or topic.topic_id != wanted.topic_id):
            return GroupVerdict.UNKNOWN_PARTITION
        if len(wanted.metadata.encode()) > OFFSET_METADATA_BYTES_MAX:
            return GroupVerdict.METADATA_TOO_LARGE
        if ready.unfenced and self._is_beyond_epoch(wanted):
            return GroupVerdict.OFFSET_BEYOND_EPOCH
        if ready.room is not None and not ready.room.takes_offset(wanted.tp, wanted.metadata):
            return GroupVerdict.TOO_MANY_OFFSETS
        return None

    def _is_beyond_epoch(self, wanted: OffsetToCommit) -> bool:
        """Return whether the record read was cut off by a takeover (T26).

        Clients that say no leader epoch (aiokafka, kafka-python) are held against the end of the log, where a
        takeover may have cut it: 1. one without a group's generation has read 0..3 of the lost region; 2. here the
        log ends at 1; 3. it commits 4, and whoever goes on from there skips what is written at 1..3.
        Under an epoch that no region ever gave, nothing was read: a made-up one, or one of another cluster. Kafka
        takes it, and so do we.
        """
        if wanted.leader_epoch < 0:
            log_end_offset = self._ports.ends.end_after_takeover(wanted.tp)
            return log_end_offset is not None and wanted.committed_offset > log_end_offset
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
        last_offset = table.last_record_offset.get(group_id)
        pieces = _fetched(table, request, self._ports.image())
        offsets = await run_yielding(pieces, self._pause)
        if last_offset is not None:
            try:
                async with asyncio.timeout(request.durable_within_s):
                    await self._ports.log.committed(shard.index, last_offset + 1)
            except LedgerFailed:
                self._hooks.fail(shard, term)
            except TimeoutError:
                return FetchOutcome(GroupVerdict.NOT_AVAILABLE)
        verdict = shard.since(term)
        return FetchOutcome(verdict, offsets if verdict is GroupVerdict.OK else ())


def _is_unfenced(shard: Shard, request: CommitRequest) -> bool:
    """Return whether no generation fences this commit.

    Members of the new protocol draw their ids themselves, so one may come back to a group that a takeover made anew,
    at an epoch that it had in the lost region: its offsets are looked at too.
    """
    return request.generation < 0 or request.group_id in shard.table.modern


def _fetched(
    table: OffsetTable, request: FetchRequest, image: TopicsImage
) -> Pieces[tuple[FetchedOffset, ...]]:
    """Return the offsets asked for as they are at the first step, many of them in pieces (INV-GV3)."""
    places: Mapping[TopicPartition, CommittedOffset] = table.committed.get(request.group_id, {})
    pending: AbstractSet[TopicPartition] = frozenset()
    if request.require_stable:
        pending = table.pending_partitions(request.group_id)
    partitions = request.partitions
    if partitions is None or len(partitions) > YIELD_ROWS:
        places, pending = dict(places), frozenset(pending)
    if partitions is None:
        partitions = yield from _sorted(places.keys() | pending)
    offsets: list[FetchedOffset] = []
    yielding = CooperativeYield(YIELD_ROWS)
    for tp in partitions:
        place = places.get(tp)
        if tp in pending:
            offsets.append(FetchedOffset(tp, GroupVerdict.UNSTABLE_OFFSET))
        elif place is None or not place.is_of(image.topics.get(tp.topic), image.deleted):
            if request.partitions is not None:
                offsets.append(FetchedOffset(tp, GroupVerdict.OK))
        else:
            at, epoch = place.committed_offset, place.leader_epoch
            offsets.append(FetchedOffset(tp, GroupVerdict.OK, at, epoch, place.metadata))
        if yielding.due():
            yield
    return tuple(offsets)


def _sorted(partitions: Iterable[TopicPartition]) -> Pieces[list[TopicPartition]]:
    """Return partitions in order, topic by topic: a topic has PARTITION_COUNT_MAX of them at most."""
    topics: dict[TopicName, list[TopicPartition]] = {}
    yielding = CooperativeYield(PIECE_ELEMENTS)
    for tp in partitions:
        topics.setdefault(tp.topic, []).append(tp)
        if yielding.due():
            yield
    in_order: list[TopicPartition] = []
    for topic in sorted(topics):
        in_order += sorted(topics[topic])
        yield
    return in_order
