"""Committed and pending offsets of one ledger shard: the pure replay of its partition.

INV-GO2  an offset of an open transaction is invisible until its marker is applied (C43)
INV-GO5  nothing with a pending offset expires (C45)
INV-GO6  an offset belongs to the topic whose id its record carries: one that has its name later has no offset. A topic
         that is not there takes nothing away: only a deletion does. The metadata name it, or another topic under the name
         proves it (T34): whoever leads next forgets what the leader of then had no time to forget
INV-GO7  what open transactions have staged takes bounded memory: beyond PENDING_OFFSETS_MAX a transaction stages no more than a few offsets, in however
         many TxnOffsetCommits; a client that is told to wait asks again
INV-GO8  whether an open transaction holds a partition's offset, and which ones do, is known without looking through what any of them has staged
The table is a function of the ledger alone: live == replay(log) after every step (B5). At a commit marker the pending
offset wins iff its record lies behind the committed one's in the ledger; at an abort marker it is dropped (C44). A
tombstone removes the committed offset and every pending one of that partition (C45).

A live write is applied by the very call that replay uses, with the offset that the ledger gave it; offsets that a client
commits are made ready before (`OffsetsToPut`), so that twenty thousand of them are put in their places in one step.
A marker may be applied later than it was appended: no record of the same producer can come between
(the coordinator verifies each commit, and it is in PREPARE_* until the marker is confirmed), and
records of others commute with it because record offsets are compared, not times.
Not here: who may commit (`group`), the ledger (`ports`).
"""

from collections.abc import Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias
from uuid import UUID

from idempotency.identity import NO_PRODUCER_ID, LeaderEpoch, ProducerId, TopicPartition
from region_broker.groups.modern.records import decode_value
from region_broker.groups.modern.state import ConsumerGroup
from region_broker.groups.ports import LedgerEntry, LedgerMarker, LedgerRecord
from region_broker.groups.records import (
    GroupKey,
    GroupValue,
    ModernKey,
    ModernKind,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_key,
    decode_offset_value,
)


class Identified(Protocol):
    """A topic, as far as this table knows one."""

    @property
    def topic_id(self) -> UUID:
        """Return its id."""
        ...


@dataclass(slots=True)
class CommittedOffset:
    """One offset with the ledger offset of the record that carries it; not changed once it is in a table."""

    committed_offset: int
    leader_epoch: LeaderEpoch
    metadata: str
    commit_timestamp_ms: int
    record_offset: int
    transactional: bool = False
    topic_id: UUID | None = None

    def is_of(self, topic: Identified | None, deleted: Container[UUID]) -> bool:
        """Return whether it is an offset of the topic that has its name now, as far as is known (INV-GO6)."""
        if self.topic_id is None:
            return True
        return self.topic_id not in deleted if topic is None else self.topic_id == topic.topic_id


Places: TypeAlias = dict[TopicPartition, CommittedOffset]
NOWHERE: Final = -1
WEIGHED_CHARS: Final = 64


@dataclass(slots=True)
class OffsetsToPut:
    """The offsets of one commit before the ledger has them: all in the order of their records, and the last of each
    partition.
    """

    group_id: str
    in_order: list[CommittedOffset] = field(default_factory=list)
    places: Places = field(default_factory=dict)
    weight: int = 0
    """Of the places, by `_weight`."""

    def add(self, tp: TopicPartition, value: OffsetValue, *, transactional: bool) -> None:
        """Take the offset of the next record."""
        place = _place(value, NOWHERE, transactional=transactional)
        self.in_order.append(place)
        self.weight += _weight(place.metadata) - _weight_at(self.places, tp)
        self.places[tp] = place


@dataclass(slots=True)
class _Staging:
    """What open transactions hold of one group: which producers, of all and of each partition (INV-GO8).

    Nearly all partitions have one, whose id stands there alone: twenty thousand sets would take 4 MB.
    """

    producers: set[ProducerId] = field(default_factory=set)
    holders: dict[TopicPartition, ProducerId | set[ProducerId]] = field(default_factory=dict)

    def hold(self, producer_id: ProducerId, tps: Iterable[TopicPartition]) -> None:
        """Note that a producer holds each of these, which it did not."""
        holders = self.holders
        if not holders:
            holders.update(dict.fromkeys(tps, producer_id))
            return
        for tp in tps:
            held_by = holders.setdefault(tp, producer_id)
            if isinstance(held_by, set):
                held_by.add(producer_id)
            elif held_by != producer_id:
                holders[tp] = {held_by, producer_id}

    def let_go(self, producer_id: ProducerId, tps: Iterable[TopicPartition]) -> None:
        """Note that a producer, which held each of these, does so no more."""
        holders = self.holders
        for tp in tps:
            held_by = holders[tp]
            if isinstance(held_by, set):
                held_by.remove(producer_id)
                if len(held_by) == 1:
                    holders[tp] = held_by.pop()
            else:
                del holders[tp]

    def holders_of(self, tp: TopicPartition) -> tuple[ProducerId, ...]:
        """Return the producers that hold a partition, as of now."""
        held_by = self.holders.get(tp)
        if held_by is None:
            return ()
        return tuple(held_by) if isinstance(held_by, set) else (held_by,)


@dataclass(slots=True)
class OffsetTable:
    """All groups of one shard; `group_values` holds the last metadata record of each classic group,
    `modern` the groups of the new protocol.
    """

    committed: dict[str, Places] = field(default_factory=dict)
    pending: dict[ProducerId, dict[str, Places]] = field(default_factory=dict)
    """By producer and group."""
    group_values: dict[str, GroupValue] = field(default_factory=dict)
    modern: dict[str, ConsumerGroup] = field(default_factory=dict)
    last_record_offset: dict[str, int] = field(default_factory=dict)
    _staging: dict[str, _Staging] = field(default_factory=dict, compare=False, repr=False)
    """By group, what `pending` has of it."""
    committed_weight: int = 0
    """How much memory `committed` takes, by `_weight` (INV-GOR1)."""
    _noted: set[str] = field(default_factory=set, compare=False, repr=False)
    """Groups of which some committed offset weighs more than 1, by its metadata, or has."""
    pending_weight: int = field(default=0, compare=False)
    """How much memory `pending` takes, by `_weight`."""
    _weights: dict[ProducerId, int] = field(default_factory=dict, compare=False, repr=False)
    """By producer."""
    _topic_ids: dict[UUID, UUID] = field(default_factory=dict, compare=False, repr=False)
    """Each id once, for all the offsets that carry it."""

    def apply(self, entry: LedgerEntry) -> None:
        """Apply one entry in ledger order; raises `LedgerRecordError` on a damaged record."""
        match entry:
            case LedgerMarker(producer_id=producer_id, commit=commit):
                self._end_transaction(producer_id, commit=commit)
            case LedgerRecord():
                self._apply_record(entry)

    def _apply_record(self, record: LedgerRecord) -> None:
        key = decode_key(record.key)
        if isinstance(key, GroupKey):
            if record.value is None:
                self.group_values.pop(key.group_id, None)
            else:
                self.group_values[key.group_id] = decode_group_value(record.value)
        elif isinstance(key, ModernKey):
            self._apply_modern(key, record.value, record.timestamp_ms)
        elif record.value is None:
            self._remove(key)
        else:
            self._put(key, record, record.value)
        self._note_write(key.group_id, record.offset)

    def _apply_modern(self, key: ModernKey, raw: bytes | None, timestamp_ms: int) -> None:
        """Apply a record of the new protocol; the tombstone of its epoch ends a group."""
        group = self.modern.get(key.group_id)
        if raw is not None:
            if group is None:
                group = self.modern[key.group_id] = ConsumerGroup(key.group_id)
            group.apply(key, decode_value(key.kind, raw))
            if key.kind is ModernKind.GROUP_EPOCH:
                group.epoch_began_ms = timestamp_ms
        elif key.kind is ModernKind.GROUP_EPOCH:
            self.modern.pop(key.group_id, None)
        elif group is not None:
            group.apply(key, None)

    def _note_write(self, group_id: str, record_offset: int) -> None:
        if self.knows(group_id):
            self.last_record_offset[group_id] = record_offset
        else:
            self.last_record_offset.pop(group_id, None)

    def _put(self, key: OffsetKey, record: LedgerRecord, raw: bytes) -> None:
        transactional = record.producer_id != NO_PRODUCER_ID
        place = _place(decode_offset_value(raw), record.offset, transactional=transactional)
        if place.topic_id is not None:
            place.topic_id = self._topic_ids.setdefault(place.topic_id, place.topic_id)
        if transactional:
            added = {key.tp: place}
            self._stage(key.group_id, record.producer_id, added, _weight(place.metadata))
        else:
            self._commit(key.group_id, {key.tp: place}, _weight(place.metadata))

    def _commit(self, group_id: str, added: Places, weight: int) -> None:
        """Put offsets of so much weight in the places of others; those are not looked at where each weighs 1, as nearly all do."""
        places = self.committed.setdefault(group_id, {})
        if weight > len(added):
            self._noted.add(group_id)
        if group_id in self._noted:
            self.committed_weight += weight - _weight_of(places, added)
            places.update(added)
        else:
            self.committed_weight -= len(places)
            places.update(added)
            self.committed_weight += len(places)

    def put(self, offsets: OffsetsToPut, base_offset: int, producer_id: ProducerId) -> None:
        """Apply one commit whose records lie at `base_offset`, +1, ..; cheap for many."""
        record_offset = base_offset
        for place in offsets.in_order:
            place.record_offset = record_offset
            record_offset += 1
        if producer_id == NO_PRODUCER_ID:
            self._commit(offsets.group_id, offsets.places, offsets.weight)
        else:
            self._stage(offsets.group_id, producer_id, offsets.places, offsets.weight)
        self._note_write(offsets.group_id, record_offset - 1)

    def staged_weight(self, offsets: OffsetsToPut, producer_id: ProducerId) -> int:
        """Return what these, staged by a producer, would add to `pending_weight`."""
        staged = self.pending.get(producer_id, {}).get(offsets.group_id, {})
        return offsets.weight - _weight_of(staged, offsets.places)

    def growth(self, group_id: str, tp: TopicPartition, metadata: str) -> int:
        """Return what an offset would add to `committed_weight`; nothing in the place of one that is not lighter."""
        return max(0, _weight(metadata) - _weight_at(self.committed.get(group_id, {}), tp))

    def added(self, offsets: OffsetsToPut, producer_id: ProducerId) -> int:
        """Return what these, committed or staged by a producer, may add to what is committed beside what it has staged before."""
        committed = self.committed.get(offsets.group_id, {})
        staged = self.pending.get(producer_id, {}).get(offsets.group_id, {})
        return sum(
            max(0, _weight(place.metadata) - max(_weight_at(committed, tp), _weight_at(staged, tp)))
            for tp, place in offsets.places.items()
        )

    def weight_of_group(self, group_id: str, *, up_to: int) -> int:
        """Return what a group has of both weights, or what is more than `up_to` of it."""
        weight = 0
        for place in self._places_of(group_id):
            weight += _weight(place.metadata)
            if weight > up_to:
                break
        return weight

    def _places_of(self, group_id: str) -> Iterator[CommittedOffset]:
        yield from self.committed.get(group_id, {}).values()
        staging = self._staging.get(group_id)
        for producer_id in () if staging is None else staging.producers:
            yield from self.pending[producer_id][group_id].values()

    def staged_by(self, producer_id: ProducerId) -> int:
        """Return what a producer has in `pending_weight`, of all groups."""
        return self._weights.get(producer_id, 0)

    def _stage(self, group_id: str, producer_id: ProducerId, added: Places, weight: int) -> None:
        staging = self._staging.setdefault(group_id, _Staging())
        staging.producers.add(producer_id)
        places = self.pending.setdefault(producer_id, {}).setdefault(group_id, {})
        self._weigh(producer_id, weight - _weight_of(places, added))
        anew = [tp for tp in added if tp not in places] if places else added
        staging.hold(producer_id, anew)
        places.update(added)

    def _weigh(self, producer_id: ProducerId, by: int) -> None:
        self.pending_weight += by
        self._weights[producer_id] = self._weights.get(producer_id, 0) + by

    def _forget_producer(self, group_id: str, producer_id: ProducerId) -> None:
        staging = self._staging[group_id]
        staging.producers.remove(producer_id)
        if not staging.producers:
            del self._staging[group_id]

    def _remove(self, key: OffsetKey) -> None:
        places = self.committed.get(key.group_id)
        if places is not None:
            self.committed_weight -= _weight_at(places, key.tp)
            places.pop(key.tp, None)
            if not places:
                del self.committed[key.group_id]
                self._noted.discard(key.group_id)
        staging = self._staging.get(key.group_id)
        if staging is not None:
            for producer_id in staging.holders_of(key.tp):
                self._unstage(staging, key, producer_id)

    def _unstage(self, staging: _Staging, key: OffsetKey, producer_id: ProducerId) -> None:
        staged = self.pending[producer_id]
        held = staged[key.group_id]
        staging.let_go(producer_id, (key.tp,))
        self._weigh(producer_id, -_weight(held.pop(key.tp).metadata))
        if not held:
            del staged[key.group_id]
            self._forget_producer(key.group_id, producer_id)
            if not staged:
                del self.pending[producer_id]
                del self._weights[producer_id]

    def _end_transaction(self, producer_id: ProducerId, *, commit: bool) -> None:
        self.pending_weight -= self._weights.pop(producer_id, 0)
        for group_id, staged in self.pending.pop(producer_id, {}).items():
            staging = self._staging[group_id]
            if len(staging.producers) > 1:
                staging.let_go(producer_id, staged)
            self._forget_producer(group_id, producer_id)
            if commit:
                won = self._won(group_id, staged)
                self._commit(group_id, won, sum(_weight(each.metadata) for each in won.values()))
            elif not self.knows(group_id):
                self.last_record_offset.pop(group_id, None)

    def _won(self, group_id: str, staged: Places) -> Places:
        """Return those of a transaction that commits which nobody has committed behind them (C44)."""
        places = self.committed.get(group_id)
        if not places:
            return staged
        return {
            tp: place
            for tp, place in staged.items()
            if (existing := places.get(tp)) is None or place.record_offset > existing.record_offset
        }

    def lookup(self, group_id: str, tp: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None; never a pending one."""
        return self.committed.get(group_id, {}).get(tp)

    def pending_partitions(self, group_id: str) -> AbstractSet[TopicPartition]:
        """Return the partitions that some open transaction holds an offset of, as a view that changes with the table."""
        staging = self._staging.get(group_id)
        return frozenset() if staging is None else staging.holders.keys()

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """Return all partitions with a committed or a pending offset, sorted (B4)."""
        return sorted(self.pending_partitions(group_id) | self.committed.get(group_id, {}).keys())

    def has_offset(self, group_id: str, tp: TopicPartition) -> bool:
        """Return whether the partition has an offset in the group, committed or pending."""
        return tp in self.committed.get(group_id, ()) or tp in self.pending_partitions(group_id)

    def offset_count(self, group_id: str) -> int:
        """Return about how many offsets the group has: what it costs to look at all."""
        return len(self.committed.get(group_id, ())) + len(self.pending_partitions(group_id))

    def of_name(self, group_id: str, topic: str) -> list[TopicPartition]:
        """Return the partitions with offsets in the group of any topic that has, or had, this name."""
        held = (self.committed.get(group_id, ()), self.pending_partitions(group_id))
        return sorted({tp for partitions in held for tp in partitions if tp.topic == topic})

    def is_of(self, group_id: str, tp: TopicPartition, topic_id: UUID) -> bool:
        """Return whether a partition has offsets in the group, and none of another topic of its name (INV-GO6)."""
        ids = self._ids_of(group_id, tp)
        return bool(ids) and ids <= {topic_id, None}

    def holder_count(self, group_id: str, tp: TopicPartition) -> int:
        """Return how many open transactions hold an offset of the partition."""
        staging = self._staging.get(group_id)
        return 0 if staging is None else len(staging.holders_of(tp))

    def _ids_of(self, group_id: str, tp: TopicPartition) -> set[UUID | None]:
        """Return the ids of the topics that the offsets of a partition belong to, as far as these are known."""
        place = self.lookup(group_id, tp)
        ids: set[UUID | None] = set() if place is None else {place.topic_id}
        staging = self._staging.get(group_id)
        if staging is not None:
            staged = (self.pending[each][group_id][tp] for each in staging.holders_of(tp))
            ids.update(each.topic_id for each in staged)
        return ids

    def has_offsets(self, group_id: str) -> bool:
        """Return whether the group has any offset, committed or pending."""
        return group_id in self.committed or group_id in self._staging

    def knows(self, group_id: str) -> bool:
        """Return whether the ledger holds anything of the group."""
        return (
            group_id in self.group_values or group_id in self.modern or self.has_offsets(group_id)
        )

    def group_ids(self) -> list[str]:
        """Return every group the ledger knows, sorted."""
        return sorted(self.all_group_ids())

    def all_group_ids(self) -> set[str]:
        """Return every group the ledger knows."""
        return {*self.committed, *self.group_values, *self.modern, *self._staging}

    def foreign(
        self, group_id: str, topics: Mapping[str, Identified], deleted: Container[UUID]
    ) -> Iterator[OffsetKey]:
        """Yield the offsets of topics that were deleted: they are known to be, or others have their names now (INV-GO6)."""
        pending = self.pending_partitions(group_id)
        for tp, place in self.committed.get(group_id, {}).items():
            if not place.is_of(topics.get(tp.topic), deleted) and tp not in pending:
                yield OffsetKey(group_id, tp)

    def expired(
        self, group_id: str, *, now_ms: int, retention_ms: int, empty_since_ms: int | None
    ) -> Iterator[OffsetKey]:
        """Yield the offsets of an empty group that retention removes (KIP-211, C45).

        A group that once had members ages from the moment it became empty; a simple one (None)
        from each commit.
        """
        pending = self.pending_partitions(group_id)
        for tp, place in self.committed.get(group_id, {}).items():
            since_ms = place.commit_timestamp_ms
            if empty_since_ms is not None:
                since_ms = max(since_ms, empty_since_ms)
            if now_ms - since_ms >= retention_ms and tp not in pending:
                yield OffsetKey(group_id, tp)


def _weight(metadata: str) -> int:
    """Return 1 for an offset, of some 300 bytes, and 1 for each WEIGHED_CHARS of its metadata, of up to four bytes each."""
    return 1 + len(metadata) // WEIGHED_CHARS


def _weight_at(places: Places, tp: TopicPartition) -> int:
    place = places.get(tp)
    return 0 if place is None else _weight(place.metadata)


def _weight_of(places: Places, partitions: Iterable[TopicPartition]) -> int:
    if not places:  # as for most commits: the first of their transaction
        return 0
    return sum(
        _weight(place.metadata) for tp in partitions if (place := places.get(tp)) is not None
    )


def _place(value: OffsetValue, record_offset: int, *, transactional: bool) -> CommittedOffset:
    return CommittedOffset(
        value.committed_offset,
        value.leader_epoch,
        value.metadata,
        value.commit_timestamp_ms,
        record_offset,
        transactional,
        value.topic_id,
    )
