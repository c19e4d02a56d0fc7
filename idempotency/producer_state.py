"""The producers of one partition: epoch, window, open transaction, last decision; as the log left them.

INV-P1  A function of the batches applied, apart from `expire`: nothing here judges, so replaying a
        log can never fail on a sequence.
INV-P2  The producer epoch of an entry never falls; when it grows, the window is empty (C4, KIP-360,
        KIP-890: a marker may be what raises it).
INV-P3  A producer with an open transaction never expires; any other once nothing of it was applied here for that
        long, by the time that this process has been through: event times and wall clocks say nothing of it (C8). Where
        there are more than a log is to keep, that is shorter (`expire_beyond`).
INV-P4  `last_decision` never gets older (T6).

Not here: verdicts (`partition_state`), last stable offset (`visibility`), bytes (`snapshot_codec`).
Source: Kafka ProducerStateEntry.java, ProducerAppendInfo.java, ProducerStateManager.java.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple

from idempotency.decision import DecisionId
from idempotency.fencing import region_epoch_of
from idempotency.identity import (
    NO_COORDINATOR_EPOCH,
    NO_LEADER_EPOCH,
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
)
from idempotency.record_batch import BatchHeader, MarkerFacts
from idempotency.sequence import distance, is_ahead
from idempotency.window import BatchWindow, SentBatch


class AcceptedGap(NamedTuple):
    """Sequences of an idempotent producer that were lost with the old region (T22).

    Lost are the records with sequences `expected_sequence` up to, not including, `first_sequence`;
    `offset` is where the producer went on.
    """

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    expected_sequence: SequenceNumber
    first_sequence: SequenceNumber
    offset: int

    @property
    def lost_records(self) -> int:
        """How many records are missing."""
        return distance(self.expected_sequence, self.first_sequence)


@dataclass(slots=True)
class ProducerEntry:
    """One producer id in one partition; -1 stands for "none yet"."""

    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    window: BatchWindow = field(default_factory=BatchWindow)
    coordinator_epoch: CoordinatorEpoch = NO_COORDINATOR_EPOCH
    last_timestamp_ms: int = -1
    last_leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    """Leader epoch that the newest sequenced batch was written under."""
    txn_first_offset: int = -1
    last_decision: DecisionId | None = None
    idle_since_ms: int | None = field(default=None, compare=False)
    """When `expire` first found it with nothing new, monotonic; of this process, not of the log."""

    @property
    def ended_transactions(self) -> bool:
        """Whether a transaction of this producer has ended here: it is one that writes in transactions."""
        return self.coordinator_epoch != NO_COORDINATOR_EPOCH

    @property
    def writes_in_transactions(self) -> bool:
        """Whether any transaction of this producer is known here."""
        return self.in_transaction or self.ended_transactions

    @property
    def in_transaction(self) -> bool:
        """Whether a transaction of this producer is open here."""
        return self.txn_first_offset >= 0


class ProducerTable:
    """All producer entries of a partition, by producer id."""

    __slots__ = ("_entries", "_watching")

    def __init__(self, entries: Iterable[ProducerEntry] = ()) -> None:
        """Start empty or with the entries of a snapshot."""
        self._entries = {entry.producer_id: entry for entry in entries}
        self._watching: list[set[ProducerId]] = []

    def __len__(self) -> int:
        """Return the number of known producers."""
        return len(self._entries)

    def __iter__(self) -> Iterator[ProducerEntry]:
        """Yield the entries by rising producer id, so that every copy has one order."""
        return (self._entries[producer_id] for producer_id in sorted(self._entries))

    def __contains__(self, producer_id: ProducerId) -> bool:
        """Return whether anything is known of a producer."""
        return producer_id in self._entries

    def ids(self) -> list[ProducerId]:
        """Return the ids of all known producers, in no order."""
        return list(self._entries)

    @contextmanager
    def watched(self) -> Iterator[set[ProducerId]]:
        """Note in the set that is yielded which entries are made, changed or forgotten (`snapshot_draft`)."""
        changed: set[ProducerId] = set()
        self._watching.append(changed)
        try:
            yield changed
        finally:
            self._watching = [each for each in self._watching if each is not changed]

    def get(self, producer_id: ProducerId) -> ProducerEntry | None:
        """Return the entry of a producer, None if it is unknown or expired."""
        return self._entries.get(producer_id)

    def apply_data(self, header: BatchHeader) -> AcceptedGap | None:
        """Note a data batch of a producer; return the gap it left behind a change of region.

        Batches without a sequence (staged offset commits of the group coordinator) raise the epoch
        and timestamp only.
        """
        entry = self._entry_at(header.producer_id, header.producer_epoch)
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, header.max_timestamp_ms)
        if header.base_sequence < 0 or header.producer_epoch < entry.producer_epoch:
            return None
        gap = _gap_across_regions(entry, header)
        entry.window.push(
            SentBatch(
                header.base_sequence,
                header.last_sequence,
                header.base_offset,
                header.last_offset,
                header.max_timestamp_ms,
            )
        )
        entry.last_leader_epoch = header.leader_epoch
        return gap

    def apply_marker(self, marker: MarkerFacts) -> ProducerEntry:
        """Note a marker: its epoch, its coordinator, its decision; return the entry."""
        entry = self._entry_at(marker.producer_id, marker.producer_epoch)
        entry.coordinator_epoch = max(entry.coordinator_epoch, marker.coordinator_epoch)
        entry.last_timestamp_ms = max(entry.last_timestamp_ms, marker.timestamp_ms)
        if marker.decision is not None and marker.decision.is_newer_than(entry.last_decision):
            entry.last_decision = marker.decision
        return entry

    def expire(self, monotonic_ms: int, retention_ms: int) -> list[ProducerId]:
        """Forget producers idle for `retention_ms` with no open transaction; return their ids (C8).

        To be called now and then: a producer counts as idle from the first call that finds nothing new of it.

        1. A producer writes events of two days ago, or the wall clock is set a day ahead. 2. By their times it is
        idle, and forgotten. 3. Its retry, a second after the first try, is written again. So what counts is when
        a batch or marker came, not what stands in it; a restart begins to count anew.
        """
        expired: list[ProducerId] = []
        for entry in self._entries.values():
            if entry.in_transaction:
                continue
            if entry.idle_since_ms is None:
                entry.idle_since_ms = monotonic_ms
            elif monotonic_ms - entry.idle_since_ms >= retention_ms:
                expired.append(entry.producer_id)
        self._forget(expired)
        return expired

    def expire_beyond(self, kept: int, monotonic_ms: int, idle_ms: int) -> list[ProducerId]:
        """Forget the idlest of those that `expire` has found idle for `idle_ms` until `kept` are left; return their ids.

        Who never ended a transaction here goes first: ids of transactions are given out, others a client can make up.
        """
        excess = len(self._entries) - kept
        if excess <= 0:
            return []
        idle = [
            (entry.ended_transactions, entry.idle_since_ms, producer_id)
            for producer_id, entry in self._entries.items()
            if entry.idle_since_ms is not None and monotonic_ms - entry.idle_since_ms >= idle_ms
        ]
        expired = [producer_id for _, _, producer_id in sorted(idle)[:excess]]
        self._forget(expired)
        return expired

    def _forget(self, expired: Iterable[ProducerId]) -> None:
        for producer_id in expired:
            gone = self._entries.pop(producer_id)
            assert not gone.in_transaction, f"INV-P3: {gone}"
            for changed in self._watching:
                changed.add(producer_id)

    def _entry_at(self, producer_id: ProducerId, producer_epoch: ProducerEpoch) -> ProducerEntry:
        entry = self._entries.get(producer_id)
        if entry is None:
            entry = self._entries[producer_id] = ProducerEntry(producer_id, producer_epoch)
        elif producer_epoch > entry.producer_epoch:
            entry.producer_epoch = producer_epoch
            entry.window.clear()
        entry.idle_since_ms = None  # markers keep a producer alive as data does (P13)
        for changed in self._watching:
            changed.add(producer_id)
        return entry


def _gap_across_regions(entry: ProducerEntry, header: BatchHeader) -> AcceptedGap | None:
    """Return the gap between the producer's last batch of an older region epoch and this one.

    Only the log is asked (leader epochs carry the region epoch, T19), so a replay, a mirror and the
    region that accepted the gap all record the same.
    """
    if header.is_transactional or entry.last_leader_epoch < 0:
        return None
    expected = entry.window.expected_sequence
    if not is_ahead(header.base_sequence, expected):
        return None
    if region_epoch_of(header.leader_epoch) <= region_epoch_of(entry.last_leader_epoch):
        return None
    return AcceptedGap(
        header.producer_id,
        header.producer_epoch,
        expected,
        header.base_sequence,
        header.base_offset,
    )
