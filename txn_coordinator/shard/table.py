"""The table of one ledger shard: every transactional id's entry, and indexes over them.

INV-TC1  at most one transition of an entry is pending (C14)
INV-TC10  a producer id is of one transactional id, and is found by it as long as that one has it
INV-TC15  whether a transaction has a partition is looked up, not searched: it may have tens of thousands, and be asked for all of them
INV-TC16  how many ids are in which state is kept, not counted when it is asked for: there may be tens of thousands
INV-TC13  what is open, or decided and not complete, is not forgotten; the index of open ones holds those and no others
`record` is what the ledger holds below the high watermark, except COMPLETE_*, which is applied when appended (see
`progress.Progress`).

Not here: where the values come from (`replay`, `progress`), what a driver may ask (`view`).
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

from idempotency.decision import DecisionId
from idempotency.identity import ProducerId, TopicPartition
from idempotency.ledger_records import TransactionRecord, TxnStatus
from txn_coordinator import transitions as tr
from txn_coordinator.connection_order import ConnectionOrder
from txn_coordinator.effects import Answer
from txn_coordinator.events import Request
from txn_coordinator.markers import MarkerFanout
from txn_coordinator.states import PREPARED

_SEARCHED_MAX: Final = 16
"""Of so few partitions no set is made."""


@dataclass(slots=True)
class Entry:
    """State of one transactional id."""

    record: TransactionRecord
    pending: TransactionRecord | None = None
    answers: list[Answer] = field(default_factory=list)
    """Answers to give once `pending` is durable."""
    parked: dict[int, Request] = field(default_factory=dict)
    """Requests that arrived while something was under way, by request id, in order of arrival."""
    fanout: MarkerFanout | None = None
    decision: DecisionId | None = None
    """Of the current or the last decided transaction."""
    deadline_ms: int = 0
    """Monotonic time at which an ongoing transaction is aborted."""
    connections: ConnectionOrder | None = None
    """Of the process, not of the ledger; only `connection_fence` reads and writes it."""
    _known: frozenset[TopicPartition] = field(default=frozenset(), repr=False, compare=False)
    _known_of: tuple[TopicPartition, ...] = field(default=(), repr=False, compare=False)

    @property
    def is_busy(self) -> bool:
        """Whether a transition is pending, or markers are under way."""
        return self.pending is not None or self.record.status in PREPARED

    def has(self, tp: TopicPartition) -> bool:
        """Return whether the ongoing transaction has this partition (INV-TC15)."""
        if self.record.status is not TxnStatus.ONGOING:
            return False
        partitions = self.record.partitions
        if len(partitions) <= _SEARCHED_MAX:
            return tp in partitions
        if self._known_of is not partitions:
            self._known, self._known_of = frozenset(partitions), partitions
        return tp in self._known

    def unpark(self, request_id: int) -> bool:
        """Forget a parked request; return whether it was parked."""
        return self.parked.pop(request_id, None) is not None

    def take_parked(self) -> list[Request]:
        """Return the requests that wait, in their order; none waits any more."""
        waiting, self.parked = list(self.parked.values()), {}
        return waiting

    def keep_parked(self, requests: Iterable[Request]) -> None:
        """Let requests that were taken wait on, behind those that wait already."""
        self.parked.update((request.request_id, request) for request in requests)


class TransactionTable:
    """All transactional ids of one ledger shard, orphans included."""

    def __init__(self) -> None:
        """Start empty."""
        self.entries: dict[str, Entry] = {}
        """Changed by the methods below only."""
        self._by_producer_id: dict[ProducerId, str] = {}
        self._ongoing: dict[str, Entry] = {}
        self.partition_count = 0
        """Of all transactions that are open, or decided and not complete."""
        self.status_counts = dict.fromkeys(TxnStatus, 0)
        """Transactional ids that clients may know of, by state (INV-TC16)."""

    # ---- reading

    def get(self, transactional_id: str) -> Entry | None:
        """Return the entry of a transactional id."""
        return self.entries.get(transactional_id)

    def find(self, transactional_id: str | None, producer_id: ProducerId) -> Entry | None:
        """Return the entry of the transactional id, or of the producer id if there is none given."""
        name = transactional_id
        if name is None:
            name = self._by_producer_id.get(producer_id)
        return self.entries.get(name) if name is not None else None

    def is_in(self, entry: Entry) -> bool:
        """Return whether this entry was not forgotten meanwhile."""
        return self.entries.get(entry.record.transactional_id) is entry

    def ongoing(self) -> Iterator[Entry]:
        """Yield the entries with an open transaction."""
        return iter(self._ongoing.values())

    def ongoing_of(self, transactional_id: str) -> Entry | None:
        """Return the entry of a transactional id if it has an open transaction."""
        return self._ongoing.get(transactional_id)

    def prepared(self) -> Iterator[Entry]:
        """Yield the entries that are decided and not complete."""
        return (entry for entry in self.entries.values() if entry.record.status in PREPARED)

    @property
    def ongoing_count(self) -> int:
        """Number of open transactions."""
        return len(self._ongoing)

    # ---- changing

    def get_or_add(self, transactional_id: str) -> Entry:
        """Return the entry of a transactional id, made if there is none."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            entry = self.entries[transactional_id] = Entry(tr.unborn(transactional_id))
        return entry

    def install(self, entry: Entry, record: TransactionRecord) -> None:
        """Make `record` the entry's value, and keep the indexes."""
        name = record.transactional_id
        if entry.record.producer_id != record.producer_id:
            self._unindex(entry.record)
        if not name.startswith(tr.ORPHAN_PREFIX):
            owner = self._by_producer_id.get(record.producer_id, name)
            assert owner == name, f"INV-TC10: {record.producer_id} of {owner!r} and of {name!r}"
            self._by_producer_id[record.producer_id] = name
        self.partition_count += len(record.partitions) - len(entry.record.partitions)
        self._count(entry.record, -1)
        self._count(record, 1)
        entry.record = record
        if record.status is TxnStatus.ONGOING:
            self._ongoing[name] = entry
        else:
            self._ongoing.pop(name, None)

    def forget(self, entry: Entry) -> None:
        """Remove the entry; a ledger that is read back may say so of an open one, this shard never decides it."""
        name = entry.record.transactional_id
        assert self.is_in(entry), f"INV-TC13: {name!r} is forgotten twice"
        self._ongoing.pop(name, None)
        self._unindex(entry.record)
        self._count(entry.record, -1)
        self.partition_count -= len(entry.record.partitions)
        del self.entries[name]

    def _count(self, record: TransactionRecord, by: int) -> None:
        if tr.is_visible(record):
            self.status_counts[record.status] += by

    def _unindex(self, record: TransactionRecord) -> None:
        if self._by_producer_id.get(record.producer_id) == record.transactional_id:
            del self._by_producer_id[record.producer_id]


def missing_partitions(
    entry: Entry, partitions: tuple[TopicPartition, ...]
) -> tuple[TopicPartition, ...]:
    """Return those of `partitions` that the ongoing transaction does not have, each once."""
    return tuple(tp for tp in dict.fromkeys(partitions) if not entry.has(tp))
