"""One shard of the offsets ledger as the coordinator holds it: status, table, groups.

INV-GS3  `term` grows with every load, resign and failure: who awaited compares it before going on (`since`); a shard
         that serves again, in another term, answers nothing that was begun in an earlier one
Every write is appended and applied in one step, so that the table is the ledger's replay. Nothing is answered from a
shard that is not ACTIVE.

A marker that is applied while the shard loads is kept and applied after the replay; applying it
twice is harmless, because no later record of its producer can exist before the shard is ACTIVE.
A marker for an inactive shard is in the ledger already, and the next load replays it.
Not here: requests and time (`coordinator`).
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, unique
from typing import Final
from uuid import UUID

from idempotency import fencing
from idempotency.identity import NO_LEADER_EPOCH, NO_PRODUCER_ID, RegionEpoch, TopicPartition
from region_broker.groups.classic.group import Group
from region_broker.groups.classic.states import GroupState
from region_broker.groups.messages import ClampedOffset, ClampReport, Effect
from region_broker.groups.modern.records import GroupEpoch, encode_value
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.offsets import CommittedOffset, OffsetsToPut, OffsetTable
from region_broker.groups.ports import (
    KeyValue,
    LedgerBatch,
    LedgerMarker,
    LedgerRecord,
    OffsetsLog,
    TopicsImage,
    TxnProducer,
)
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    ModernKey,
    ModernKind,
    OffsetKey,
    OffsetValue,
    encode_group_key,
    encode_group_value,
    encode_modern_key,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.groups.settings import GroupSettings
from region_broker.groups.verdicts import GroupVerdict

EndOf = Callable[[TopicPartition], int | None]
GENERATION_JUMP: Final = 1 << 16
GENERATION_MASK: Final = (1 << 31) - 1
RECORDS_PER_BATCH: Final = 500


@dataclass(frozen=True, slots=True)
class Looked:
    """One step of looking through all groups: how many offsets were looked at, how much changes, the records that do it, and the
    group that has no members, and another generation, once they are written.
    """

    offsets: int
    changes: int = 0
    records: Sequence[KeyValue] = ()
    emptied: str | None = None


_NOTHING_CHANGES: Final = Looked(1)


@unique
class ShardStatus(Enum):
    """Whether a shard serves."""

    INACTIVE = GroupVerdict.NOT_COORDINATOR
    LOADING = GroupVerdict.LOADING
    ACTIVE = GroupVerdict.OK
    FAILED = GroupVerdict.NOT_AVAILABLE


@dataclass(frozen=True, slots=True)
class ShardHooks:
    """What the owner of the shards does: wake a group at a time (monotonic ms), say whether a new group may be
    made, stop serving a shard whose ledger failed in a term, and take over a group that changed its protocol.
    """

    arm: "Callable[[str, int], None]"
    admits: "Callable[[Shard, str], bool]"
    fail: "Callable[[Shard, int], None]"
    ended_classic: "Callable[[Shard, str], None]"
    became_classic: "Callable[[Shard, str], None]"


@dataclass(slots=True)
class Shard:
    """One shard; `groups` holds those with members, an invitation, or a record in the ledger."""

    index: int
    status: ShardStatus = ShardStatus.INACTIVE
    term: int = 0
    table: OffsetTable = field(default_factory=OffsetTable)
    groups: dict[str, Group] = field(default_factory=dict)
    early_markers: list[LedgerMarker] = field(default_factory=list)
    first_generation: int = 0
    """What a new group counts on from."""

    def write(
        self, log: OffsetsLog, records: Sequence[KeyValue], producer: TxnProducer | None = None
    ) -> int:
        """Append and apply; return the offset to wait for. Raises `LedgerFailed`."""
        assert self.status is ShardStatus.ACTIVE, (self.index, self.status)
        appended = log.append(self.index, records, producer=producer)
        assert appended.next_offset - appended.base_offset == len(records), appended
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        for position, (key, value) in enumerate(records):
            offset = appended.base_offset + position
            record = LedgerRecord(offset, key, value, producer_id, appended.timestamp_ms)
            self.table.apply(record)
        return appended.next_offset

    def write_offsets(
        self,
        log: OffsetsLog,
        batch: LedgerBatch,
        offsets: OffsetsToPut,
        producer: TxnProducer | None = None,
    ) -> int:
        """As `write`, for the offsets of one commit, one to a record of `batch`. Raises `LedgerFailed`."""
        assert self.status is ShardStatus.ACTIVE, (self.index, self.status)
        appended = log.append_batch(self.index, batch, producer=producer)
        assert appended.next_offset - appended.base_offset == len(offsets.in_order), appended
        producer_id = NO_PRODUCER_ID if producer is None else producer.producer_id
        self.table.put(offsets, appended.base_offset, producer_id)
        return appended.next_offset

    def since(self, term: int) -> GroupVerdict:
        """Return OK if it serves as it did in `term`, else why not: LOADING, ask again, if it was loaded anew."""
        anew = self.term != term and self.status is ShardStatus.ACTIVE
        return GroupVerdict.LOADING if anew else self.status.value

    def knows(self, group_id: str) -> bool:
        """Return whether there is such a group, with members, offsets, or remains."""
        return group_id in self.groups or self.table.knows(group_id)

    def group_count(self) -> int:
        """Return how many groups there are; costs as much as all their names."""
        return len(self.groups.keys() | self.table.all_group_ids())

    def apply_marker(self, marker: LedgerMarker) -> None:
        """Apply a marker that is in the ledger (P14), at once or after the load."""
        if self.status is ShardStatus.ACTIVE:
            self.table.apply(marker)
        elif self.status is ShardStatus.LOADING:
            self.early_markers.append(marker)

    def leave(self, status: ShardStatus) -> list[Effect]:
        """Forget everything and take `status`; return the answers to those who wait."""
        assert status is not ShardStatus.ACTIVE
        self.status = status
        self.term += 1
        effects = [
            effect for group in self.groups.values() for effect in group.dissolve(status.value)
        ]
        self.groups = {}
        self.table = OffsetTable()
        self.early_markers = []
        return effects

    def enter(self, table: OffsetTable, settings: GroupSettings, *, now_ms: int) -> None:
        """Serve from the replayed `table`, with the groups that it holds."""
        assert self.status is ShardStatus.LOADING, self.status
        for marker in self.early_markers:
            table.apply(marker)
        self.early_markers = []
        self.table = table
        self.status = ShardStatus.ACTIVE
        self.restore_groups(settings, now_ms=now_ms)

    def restore_groups(self, settings: GroupSettings, *, now_ms: int) -> None:
        """Make every group that the table holds and that is not there yet."""
        for group_id in self.table.group_values:
            self.restore_group(group_id, settings, now_ms=now_ms)

    def restore_group(self, group_id: str, settings: GroupSettings, *, now_ms: int) -> None:
        """Make a group that the table holds as a classic one, if it is not there yet."""
        value = self.table.group_values.get(group_id)
        if value is not None and group_id not in self.groups:
            self.groups[group_id] = Group.restore(group_id, value, settings, now_ms=now_ms)

    def tombstones(
        self, group_id: str, image: TopicsImage, *, now_ms: int, retention_ms: int
    ) -> list[KeyValue]:
        """Return the records that end offsets of deleted topics, and those of an empty group after retention (C45)."""
        keys = set(self.table.foreign(group_id, image.topics, image.deleted))
        keys.update(self._expired(group_id, now_ms=now_ms, retention_ms=retention_ms))
        return [(encode_offset_key(key), None) for key in sorted(keys, key=lambda key: key.tp)]

    def _expired(self, group_id: str, *, now_ms: int, retention_ms: int) -> Iterable[OffsetKey]:
        group = self.groups.get(group_id)
        if group is not None and (group.state is not GroupState.EMPTY or group.roster.invited):
            return []
        modern = self.table.modern.get(group_id)
        if modern is not None and modern.metadata:
            return []
        empty_since_ms = None
        if modern is not None:
            empty_since_ms = modern.epoch_began_ms
        elif group is not None and group.protocol_type is not None:
            empty_since_ms = group.state_wall_ms
        return self.table.expired(
            group_id, now_ms=now_ms, retention_ms=retention_ms, empty_since_ms=empty_since_ms
        )

    def is_forgettable(self, group_id: str) -> bool:
        """Return whether nothing is left of a group but its empty metadata."""
        modern = self.table.modern.get(group_id)
        if modern is not None:
            return not modern.metadata and not self.table.has_offsets(group_id)
        group = self.groups.get(group_id)
        return (
            group is not None
            and group.state is GroupState.EMPTY
            and not group.roster.invited
            and not self.table.has_offsets(group_id)
        )

    def group_tombstones(self, group_id: str) -> list[KeyValue]:
        """Return the records that end a group, of either protocol, without its offsets."""
        modern = self.table.modern.get(group_id)
        if modern is None:
            return [(encode_group_key(GroupKey(group_id)), None)]
        return [(encode_modern_key(key), None) for key in modern.tombstones()]

    def topic_tombstones(self, topic: str, topic_id: UUID) -> Iterator[Looked]:
        """Go through all groups for the records that end the offsets of a deleted topic, pending ones too.

        What comes next is judged by then: others may be served in between, once what came so far is written.
        """
        table = self.table
        for group_id in table.group_ids():
            yield Looked(table.offset_count(group_id), 1)
            for tp in table.of_name(group_id, topic):
                changes = 1 + table.holder_count(group_id, tp)
                if table.is_of(group_id, tp, topic_id):
                    yield Looked(0, changes, [(encode_offset_key(OffsetKey(group_id, tp)), None)])
                else:
                    yield Looked(changes, 0)

    def clamp(
        self, end_of: EndOf, report: ClampReport, *, wall_ms: int, region_epoch: RegionEpoch
    ) -> Iterator[Looked]:
        """Go through all groups for what a takeover writes so that no offset points past its cut (T26), and tell it to `report`.

        Each group is emptied, behind its offsets, and its generation jumps, so that members of the old region rejoin, and none
        of their commits is accepted. What comes next is judged by then, as in `topic_tombstones`: what goes meanwhile is not
        brought back (INV-GC6).
        """
        table = self.table
        for group_id in table.group_ids():
            for tp in list(table.committed.get(group_id, ())):
                place = table.lookup(group_id, tp)
                end_offset = end_of(tp)
                if place is None or end_offset is None or place.committed_offset <= end_offset:
                    yield _NOTHING_CHANGES
                else:
                    report.note_clamped(_clamped(group_id, tp, place, end_offset))
                    yield Looked(1, 1, [_clamped_record(group_id, tp, end_offset, place, wall_ms)])
            records = self._emptying(group_id, wall_ms, region_epoch)
            if records:
                report.emptied.append(group_id)
            yield Looked(1, len(records), records, group_id if records else None)

    def _emptying(self, group_id: str, wall_ms: int, region_epoch: RegionEpoch) -> list[KeyValue]:
        """Return the records that empty a group; none of one that an earlier try of this takeover has emptied."""
        records: list[KeyValue] = []
        value = self.table.group_values.get(group_id)
        if value is not None and not _is_emptied(value.generation, value.members, region_epoch):
            emptied = GroupValue(
                protocol_type=value.protocol_type,
                generation=_jumped(value.generation, region_epoch),
                protocol_name=None,
                leader=None,
                state_timestamp_ms=wall_ms,
            )
            records.append((encode_group_key(GroupKey(group_id)), encode_group_value(emptied)))
        modern = self.table.modern.get(group_id)
        if modern is not None and not _is_emptied(
            modern.group_epoch, modern.metadata, region_epoch
        ):
            records += _emptied_modern(modern, region_epoch)
        return records


def first_generation(region_epoch: RegionEpoch) -> int:
    """Return what new groups of a region that acts under `region_epoch` count on from (T26).

    1. A group is made after the last tidemark that a mirror reaches. 2. That mirror takes over; the group is not in its
    cut, and is made again. 3. Counted from 1 again, a late commit of the lost region's members would be one of this
    group's, where they chose the same ids. Before the first takeover nothing is lost: those count as Kafka's.
    """
    if fencing.region_number_of(region_epoch) <= fencing.FIRST_REGION_NUMBER:
        return 0
    return region_epoch * GENERATION_JUMP & GENERATION_MASK


def _jumped(generation: int, region_epoch: RegionEpoch) -> int:
    """Return a generation that no region gives out under another region epoch (T26).

    1. A region takes over, and its groups jump. 2. Another takes over from a base below that jump: it sees the old
    generation. A jump of fixed width would give out the same numbers again, to members whose ids are their own.
    """
    return max(generation + GENERATION_JUMP, region_epoch * GENERATION_JUMP) & GENERATION_MASK


def _is_emptied(generation: int, members: Collection[object], region_epoch: RegionEpoch) -> bool:
    """Return whether a try of this takeover that broke off has emptied the group: its members get later generations than that.

    Emptied again it would jump into those of another region. From the region epoch just before this one the first jump led beyond
    the first generation: all of a region epoch count.
    """
    return not members and generation // GENERATION_JUMP == region_epoch


def _emptied_modern(group: ConsumerGroup, region_epoch: RegionEpoch) -> list[KeyValue]:
    """Return the records that leave nothing of a group but an epoch that nobody was ever given."""
    gone = [key for key in group.tombstones() if key.kind is not ModernKind.GROUP_EPOCH]
    epoch = GroupEpoch(_jumped(group.group_epoch, region_epoch))
    key = encode_modern_key(ModernKey(ModernKind.GROUP_EPOCH, group.group_id))
    return [*((encode_modern_key(each), None) for each in gone), (key, encode_value(epoch))]


def _clamped(
    group_id: str, tp: TopicPartition, place: CommittedOffset, end_offset: int
) -> ClampedOffset:
    return ClampedOffset(group_id, tp, place.committed_offset, end_offset, place.transactional)


def _clamped_record(
    group_id: str, tp: TopicPartition, end_offset: int, place: CommittedOffset, wall_ms: int
) -> KeyValue:
    value = OffsetValue(end_offset, NO_LEADER_EPOCH, place.metadata, wall_ms, place.topic_id)
    return encode_offset_key(OffsetKey(group_id, tp)), encode_offset_value(value)
