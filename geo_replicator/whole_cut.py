"""How far read-committed readers of a mirror may see, so that no transaction is shown by halves (T17).

Each log alone gives a last stable offset at D. Two of these need not fit: a transaction may have its marker below
D in one log and not yet in another, or lie below the last stable offset here and behind an older open transaction
there. The whole cut is the greatest vector of ends at or below those offsets that shows every committed
transaction in all its logs or in none.

INV-WC1  the end of a log never lies above its own last stable offset
INV-WC2  a committed transaction with data below the end of any log has all its data below the ends of all
INV-WC3  it is the greatest such vector: no log waits for a transaction that it is not tied to. One exception:
         under transactions v1 epochs do not tell a producer's transactions apart, so one that is open in a log
         may be taken for a part of the last committed one, until it ends
INV-WC4  what was forgotten counts as one transaction over all logs: it is shown whole, or not at all
INV-WC5  what is open in a log is no part of a transaction that an older tidemark holds, if it began where that one ends the log, or
         behind it (T8, T9). So where nothing is forgotten, the ends at a tidemark are not below those at an older one, whoever looks

1. A region that acts forgets which transactions it completed. 2. Another one takes over, and this one returns as a
mirror. 3. A log with an open transaction ends before it, and what it forgot behind that has other halves in logs with
nothing open: these may not be shown either, though nobody can name them any more.

INV-WC5: 1. Under transactions v1 a mirror shows a transaction over logs A and B. 2. The producer's next one begins in log C, and is
open there at the next tidemarks. What was shown stays, as its end is remembered. 3. Another node leads the mirror, and remembers
nothing: what is open in C has the producer's epoch, and would be taken for a part of what was shown before.

Two logs are tied only by transactions that wrote to both, so a long transaction holds back what it overlaps, and
what that overlaps, and nothing else. Rules T8 and T9 make it enough to look below D: all data of a decision of
the cut lies there.
Not here: when to ask and what to remember (`region_broker.region.mirror.mirror_view`).
"""

from collections.abc import Callable, Hashable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from geo_replicator.lineage import LogKey
from idempotency.identity import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, Round
from idempotency.partition_state import CompletedTxn, UnendedTxn

RoundBefore: TypeAlias = Callable[[LogKey, int], Round]
"""The round of a tidemark that ends a log at or below an offset, the newest such one that is known; `NO_ROUND` without one."""

NO_ROUND: Final = Round(0)
"""Below the round of every decision."""


class Forgotten(NamedTuple):
    """Offsets of a log, [first, end), in which lies all of it that belongs to what was forgotten of any log."""

    first: int
    end: int


@dataclass(frozen=True, slots=True)
class LogTransactions:
    """What is not yet shown of one log: its last stable offset at D, and its transactions at D.

    `committed` have their marker below D, `unended` have not. `forgotten` is for all logs, or for none (INV-WC4).
    """

    stable_offset: int
    committed: list[CompletedTxn]
    unended: list[UnendedTxn]
    forgotten: Forgotten | None = None

    def committed_parts(self) -> list[CompletedTxn]:
        """Return the committed transactions, what was forgotten among them."""
        if self.forgotten is None or self.forgotten.first >= self.forgotten.end:
            return self.committed
        first, end = self.forgotten
        return [
            *self.committed,
            CompletedTxn(NO_PRODUCER_ID, first, end, end - 1, NO_PRODUCER_EPOCH, True, None),
        ]


def _no_tidemark(_key: LogKey, _offset: int) -> Round:
    return NO_ROUND


def whole_cut(
    logs: Mapping[LogKey, LogTransactions], round_before: RoundBefore = _no_tidemark
) -> dict[LogKey, int]:
    """Return the end of each log for read-committed readers (INV-WC1..3, 5); O(n log n) in transactions.

    `round_before` is asked only for what is open and may be a part of a committed transaction.
    """
    return _Search(logs, round_before).run()


class _Search:
    """Lowers the ends until nothing is cut in two: each transaction is hidden at most once."""

    def __init__(self, logs: Mapping[LogKey, LogTransactions], round_before: RoundBefore) -> None:
        self._logs = logs
        self._round_before = round_before
        self._ends = {key: log.stable_offset for key, log in logs.items()}
        self._parts: dict[Hashable, list[tuple[LogKey, CompletedTxn]]] = {}
        self._by_last = {
            key: sorted(log.committed_parts(), key=lambda txn: txn.last_offset)
            for key, log in logs.items()
        }
        for key, log in logs.items():
            for txn in log.committed_parts():
                self._parts.setdefault(_identity(key, txn), []).append((key, txn))
        self._hidden: set[Hashable] = set()
        self._lowered: list[LogKey] = list(logs)

    def run(self) -> dict[LogKey, int]:
        for identity in self._without_all_markers():
            self._hide(identity)
        while self._lowered:
            key = self._lowered.pop()
            waiting = self._by_last[key]
            while waiting and waiting[-1].last_offset >= self._ends[key]:
                self._hide(_identity(key, waiting.pop()))
        for key, log in self._logs.items():
            assert self._ends[key] <= log.stable_offset, f"INV-WC1: {key.encode()}"
            waiting = self._by_last[key]
            assert not waiting or waiting[-1].last_offset < self._ends[key], (
                f"INV-WC2: {key.encode()}"
            )
        return self._ends

    def _hide(self, identity: Hashable) -> None:
        if identity in self._hidden:
            return
        self._hidden.add(identity)
        for key, txn in self._parts[identity]:
            if txn.first_offset < self._ends[key]:
                self._ends[key] = txn.first_offset
                self._lowered.append(key)

    def _without_all_markers(self) -> Iterator[Hashable]:
        """Yield the transactions that are committed in one log and without a marker in another."""
        unended: dict[int, list[tuple[LogKey, UnendedTxn]]] = {}
        for key, log in self._logs.items():
            for open_txn in log.unended:
                unended.setdefault(open_txn.producer_id, []).append((key, open_txn))
        for identity, parts in self._parts.items():
            txn = parts[0][1]
            others = unended.get(txn.producer_id, ())
            if any(self._is_part(txn, key, other) for key, other in others):
                yield identity

    def _is_part(self, txn: CompletedTxn, key: LogKey, other: UnendedTxn) -> bool:
        """Return whether `other`, in the log `key`, may be a part of `txn`, which is committed elsewhere."""
        if other.decision is not None:
            return other.decision == txn.decision
        return (
            other.producer_epoch == txn.producer_epoch
            and txn.decision is not None
            and txn.decision.is_newer_than(other.decided_before)
            and txn.decision.stamp >= self._round_before(key, other.first_offset)
        )


def _identity(key: LogKey, txn: CompletedTxn) -> Hashable:
    if txn.producer_id == NO_PRODUCER_ID:
        return NO_PRODUCER_ID
    # A marker that an administrator wrote by hand names no decision: it stands for its own log only.
    return (key, txn.marker_offset) if txn.decision is None else txn.decision
