"""Committed and pending offsets of one ledger shard: the pure replay of its partition.

INV-GO2  an offset of an open transaction is invisible until its marker is applied (C43)
INV-GO5  nothing with a pending offset expires (C45)
INV-GO6  an offset belongs to the topic whose id its record carries: one that has its name later has no offset. A topic
         that is not there takes nothing away: only a deletion does. The metadata name it, or another topic under the name
         proves it (T34): whoever leads next forgets what the leader of then had no time to forget
INV-GO7  what open transactions have staged takes bounded memory: beyond PENDING_OFFSETS_MAX a TxnOffsetCommit of more than a few offsets waits, as clients
         ask again
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

    def add(self, tp: TopicPartition, value: OffsetValue, *, transactional: bool) -> None:
        """Take the offset of the next record."""
        place = _place(value, NOWHERE, transactional=transactional)
        self.in_order.append(place)
        self.places[tp] = place


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
    _staging: dict[str, set[ProducerId]] = field(default_factory=dict, compare=False, repr=False)
    """Which producers have an offset of a group in `pending`: a tombstone does not look through all open transactions."""
    pending_weight: int = field(default=0, compare=False)
    """How much memory `pending` takes, by `_weight`."""
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
        places = self._places(key.group_id, record.producer_id)
        if transactional:
            self.pending_weight += _weight((place,)) - _weight_of(places, (key.tp,))
        places[key.tp] = place

    def put(self, offsets: OffsetsToPut, base_offset: int, producer_id: ProducerId) -> None:
        """Apply one commit whose records lie at `base_offset`, +1, ..; cheap for many."""
        record_offset = base_offset
        for place in offsets.in_order:
            place.record_offset = record_offset
            record_offset += 1
        places = self._places(offsets.group_id, producer_id)
        if producer_id != NO_PRODUCER_ID:
            self.pending_weight += _weight(offsets.places.values()) - _weight_of(places, offsets.places)  # fmt: skip
        places.update(offsets.places)
        self._note_write(offsets.group_id, record_offset - 1)

    def staged_weight(self, offsets: OffsetsToPut, producer_id: ProducerId) -> int:
        """Return what these, staged by a producer, would add to `pending_weight`."""
        staged = self.pending.get(producer_id, {}).get(offsets.group_id, {})
        return _weight(offsets.places.values()) - _weight_of(staged, offsets.places)

    def _places(self, group_id: str, producer_id: ProducerId) -> Places:
        if producer_id == NO_PRODUCER_ID:
            return self.committed.setdefault(group_id, {})
        self._staging.setdefault(group_id, set()).add(producer_id)
        return self.pending.setdefault(producer_id, {}).setdefault(group_id, {})

    def _unstage(self, group_id: str, producer_id: ProducerId) -> None:
        producers = self._staging[group_id]
        producers.remove(producer_id)
        if not producers:
            del self._staging[group_id]

    def _remove(self, key: OffsetKey) -> None:
        places = self.committed.get(key.group_id)
        if places is not None:
            places.pop(key.tp, None)
            if not places:
                del self.committed[key.group_id]
        for producer_id in tuple(self._staging.get(key.group_id, ())):
            staged = self.pending[producer_id]
            held = staged[key.group_id]
            gone = held.pop(key.tp, None)
            if gone is None:
                continue
            self.pending_weight -= _weight((gone,))
            if not held:
                del staged[key.group_id]
                self._unstage(key.group_id, producer_id)
                if not staged:
                    del self.pending[producer_id]

    def _end_transaction(self, producer_id: ProducerId, *, commit: bool) -> None:
        for group_id, staged in self.pending.pop(producer_id, {}).items():
            self._unstage(group_id, producer_id)
            self.pending_weight -= _weight(staged.values())
            if commit:
                places = self.committed.setdefault(group_id, {})
                for tp, place in staged.items():
                    existing = places.get(tp)
                    if existing is None or place.record_offset > existing.record_offset:
                        places[tp] = place
            elif not self.knows(group_id):
                self.last_record_offset.pop(group_id, None)

    def lookup(self, group_id: str, tp: TopicPartition) -> CommittedOffset | None:
        """Return the committed offset, or None; never a pending one."""
        return self.committed.get(group_id, {}).get(tp)

    def pending_partitions(self, group_id: str) -> set[TopicPartition]:
        """Return the partitions that some open transaction holds an offset of."""
        found: set[TopicPartition] = set()
        for producer_id in self._staging.get(group_id, ()):
            found.update(self.pending[producer_id][group_id])
        return found

    def partitions(self, group_id: str) -> list[TopicPartition]:
        """Return all partitions with a committed or a pending offset, sorted (B4)."""
        return sorted(self.pending_partitions(group_id).union(self.committed.get(group_id, ())))

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


def _weight(places: Iterable[CommittedOffset]) -> int:
    """Return 1 for each offset, of some 300 bytes, and 1 for each WEIGHED_CHARS of its metadata, of up to four bytes each."""
    return sum(1 + len(place.metadata) // WEIGHED_CHARS for place in places)


def _weight_of(places: Places, partitions: Iterable[TopicPartition]) -> int:
    return _weight(place for tp in partitions if (place := places.get(tp)) is not None)


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
