"""What a reader of one partition may see: open transactions, last stable offset, aborted ranges.

The `bound` of every question is the high watermark at the primary and D(k) on a mirror (T17): only markers
below it count, whatever else is in the log.

INV-V1  last_stable_offset(bound) <= bound.
INV-V2  last_stable_offset(bound) <= first offset of every transaction without a marker below bound
        (C36): a transaction whose marker is copied but not below the cut counts as open.
INV-V3  aborted_in names every aborted transaction that overlaps the asked range and whose marker lies
        below bound (C38), in marker order.
INV-V4  A function of the log alone, apart from the two `forget_*` calls; those may only drop what no
        later question can ask for.

Not here: who decides commit or abort (txn_coordinator), sequences (`window`).
Source: Kafka ProducerStateManager.java `firstUnstableOffset`, TransactionIndex.java.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from operator import itemgetter
from typing import NamedTuple

from idempotency.decision import DecisionId
from idempotency.identity import ProducerEpoch, ProducerId


class AbortedTxn(NamedTuple):
    """An aborted transaction in a partition; `last_offset` is the offset of its ABORT marker."""

    producer_id: ProducerId
    first_offset: int
    last_offset: int


class CompletedTxn(NamedTuple):
    """A transaction whose marker is in the log, perhaps not yet below the bound.

    `last_offset` is that of its last data here, `producer_epoch` the one its data was written under.
    """

    producer_id: ProducerId
    first_offset: int
    marker_offset: int
    last_offset: int
    producer_epoch: ProducerEpoch
    committed: bool
    decision: DecisionId | None


class AbortedEntry(NamedTuple):
    """Index entry of an aborted transaction (C38).

    `stable_offset`: no transaction completed later starts below it, so a search may stop there.
    """

    producer_id: ProducerId
    first_offset: int
    marker_offset: int
    stable_offset: int


class Visibility:
    """Open, completed and aborted transactions of one partition."""

    __slots__ = ("_aborted", "_cached", "_completed", "_forgotten_below", "_open")

    def __init__(self) -> None:
        """Start with an empty partition."""
        # Producer id -> first offset. In rising order, so the first one is the first unstable offset: a transaction
        # begins at the end of the log, and `begin` asserts it.
        self._open: dict[ProducerId, int] = {}
        self._completed: list[CompletedTxn] = []
        self._aborted: list[AbortedEntry] = []
        self._forgotten_below = 0
        self._cached: tuple[int, int] | None = None

    @property
    def completed(self) -> tuple[CompletedTxn, ...]:
        """Transactions whose marker may still be at or above a bound."""
        return tuple(self._completed)

    @property
    def aborted(self) -> tuple[AbortedEntry, ...]:
        """The aborted-transaction index, in marker order."""
        return tuple(self._aborted)

    @property
    def forgotten_below(self) -> int:
        """Bounds below this can no longer be asked for."""
        return self._forgotten_below

    def completed_in(self, start: int, bound: int) -> list[CompletedTxn]:
        """Return the remembered transactions with a marker in [start, bound)."""
        first = bisect_left(self._completed, start, key=_marker_offset)
        return self._completed[first : bisect_left(self._completed, bound, key=_marker_offset)]

    def completed_from(self, bound: int) -> list[CompletedTxn]:
        """Return the transactions with a marker at or above `bound`."""
        return self._completed[bisect_left(self._completed, bound, key=_marker_offset) :]

    def open_items(self) -> Iterator[tuple[ProducerId, int]]:
        """Yield (producer id, first offset) of each open transaction, oldest first."""
        return iter(self._open.items())

    def begin(self, producer_id: ProducerId, first_offset: int) -> None:
        """Note the first batch of a transaction."""
        assert producer_id not in self._open, producer_id
        newest = next(reversed(self._open.values()), -1)
        assert newest < first_offset, f"INV-V2: {first_offset} begins behind {newest}, and is older"
        self._open[producer_id] = first_offset
        self._cached = None

    def complete(self, ended: CompletedTxn) -> None:
        """Note that an open transaction has its marker."""
        first_offset = self._open.pop(ended.producer_id)
        assert first_offset == ended.first_offset <= ended.last_offset < ended.marker_offset, ended
        newest = self._completed[-1].marker_offset if self._completed else -1
        assert newest < ended.marker_offset, f"INV-V3: markers come in log order: {newest}, {ended}"
        self._completed.append(ended)
        if not ended.committed:
            stable_offset = next(iter(self._open.values()), ended.marker_offset + 1)
            self._aborted.append(
                AbortedEntry(ended.producer_id, first_offset, ended.marker_offset, stable_offset)
            )
        self._cached = None

    def last_stable_offset(self, bound: int) -> int:
        """Return the end of what a read-committed reader may see (C36, T17)."""
        assert bound >= self._forgotten_below, (
            f"INV-V4: {bound}, forgotten below {self._forgotten_below}"
        )
        if self._cached is not None and self._cached[0] == bound:
            return self._cached[1]
        stable = min(bound, next(iter(self._open.values()), bound))
        for completed in self.completed_from(bound):
            stable = min(stable, completed.first_offset)
        self._cached = (bound, stable)
        return stable

    def aborted_in(self, start: int, end: int, bound: int) -> list[AbortedTxn]:
        """Return the aborted transactions that overlap [start, end), markers below `bound` (C38)."""
        found: list[AbortedTxn] = []
        at = bisect_left(self._aborted, start, key=_aborted_marker_offset)
        for index in range(at, len(self._aborted)):
            entry = self._aborted[index]
            if entry.marker_offset >= bound:
                break
            if entry.first_offset < end:
                found.append(AbortedTxn(entry.producer_id, entry.first_offset, entry.marker_offset))
            if entry.stable_offset >= end:
                break
        return found

    def has_aborted_from(self, start: int, count: int) -> bool:
        """Return whether so many aborted transactions have a marker at or above `start`; cheap where fewer are known at all."""
        known = self._aborted
        return len(known) >= count and _aborted_marker_offset(known[-count]) >= start

    def forget_completed_below(self, bound: int) -> None:
        """Drop completed transactions whose marker is below `bound`, which never moves back."""
        if bound <= self._forgotten_below:
            return
        self._forgotten_below = bound
        del self._completed[: bisect_left(self._completed, bound, key=_marker_offset)]

    def forget_aborted_below(self, log_start_offset: int) -> None:
        """Drop aborted transactions that end below the log's start."""
        at = bisect_left(self._aborted, log_start_offset, key=_aborted_marker_offset)
        del self._aborted[:at]

    def restore(
        self,
        *,
        open_items: Iterable[tuple[ProducerId, int]],
        completed: list[CompletedTxn],
        aborted: list[AbortedEntry],
        forgotten_below: int,
    ) -> None:
        """Take over the content of a snapshot."""
        self._open = dict(sorted(open_items, key=itemgetter(1)))
        self._completed = completed
        self._aborted = aborted
        self._forgotten_below = forgotten_below
        self._cached = None


def _marker_offset(completed: CompletedTxn) -> int:
    return completed.marker_offset


def _aborted_marker_offset(entry: AbortedEntry) -> int:
    return entry.marker_offset
