"""The judge of a run of transfers: a pure function from a history to what is wrong with it.

No answer depends on counters of the broker or of the workload: only on what was tried, what was answered, what was read
and what was declared lost. Each anomaly is found under its own name; `tests/unit/chaos/test_checker.py` breaks a sound
history in every way named here and expects exactly that name (its mutation score is its own test).

Not here: histories (`chaos.history`), how they come about.
"""

import enum
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.history import Attempt, History, Outcome, Seen


class Kind(enum.Enum):
    """What can be wrong."""

    TORN = "one half of a transfer is there, the other is not"
    DUPLICATE = "a half of a transfer is there twice"
    WRONG = "a record says something else than was written"
    INVENTED = "a record that nobody wrote"
    ABORTED_READ = "a transfer that was never committed is there"
    SUM = "the accounts do not add up to what they began with"
    OUT_OF_ORDER = "two transfers of one teller stand in one partition in the wrong order"
    COVERED_LOST = "a transfer that the tidemark covers is not there"
    BEYOND_KEPT = "a transfer beyond the tidemark is there after all"
    GAP = "a committed transfer is gone although a later one of its teller, of the same term, is there"
    UNLISTED = "a committed transfer is gone and the losses do not list it"
    FALSE_LOSS = "the losses list more commits of a teller than are gone"
    TAKEN_BACK = "a reader was shown a record that is not there any more"
    REGIONS_DIFFER = "the regions show different records"


@dataclass(frozen=True, slots=True, order=True)
class Anomaly:
    """One finding."""

    name: str
    detail: str

    @classmethod
    def of(cls, kind: Kind, detail: str) -> "Anomaly":
        """Name the kind."""
        return cls(kind.name, f"{kind.value}: {detail}")


def check(history: History) -> list[Anomaly]:
    """Return everything that is wrong with a run, empty when nothing is."""
    found: list[Anomaly] = []
    tried = {attempt.name: attempt for attempt in history.attempts}
    for records in history.final.values():
        found += _records(tried, records)
        found += _order(tried, records)
    found += _regions(history.final)
    there = {record.attempt for records in history.final.values() for record in records}
    found += _cut(history, there)
    found += _losses(history, there)
    everywhere = {record for records in history.final.values() for record in records}
    found += [
        Anomaly.of(Kind.TAKEN_BACK, str(record))
        for record in history.shown
        if record not in everywhere
    ]
    return sorted(set(found))


def _records(tried: Mapping[str, Attempt], records: Sequence[Seen]) -> Iterator[Anomaly]:
    halves = Counter((record.attempt, record.partition) for record in records)
    for name in sorted({record.attempt for record in records}):
        attempt = tried.get(name)
        if attempt is None:
            yield Anomaly.of(Kind.INVENTED, name)
            continue
        if attempt.outcome is Outcome.NOT_COMMITTED:
            yield Anomaly.of(Kind.ABORTED_READ, name)
        counts = [halves[name, partition] for partition in attempt.changes]
        if min(counts) == 0:
            yield Anomaly.of(Kind.TORN, name)
        if max(counts) > 1:
            yield Anomaly.of(Kind.DUPLICATE, name)
    for record in records:
        attempt = tried.get(record.attempt)
        if attempt is not None and attempt.changes.get(record.partition) != record.change:
            yield Anomaly.of(Kind.WRONG, str(record))
    total = sum(record.change for record in records)
    if total != 0:
        yield Anomaly.of(Kind.SUM, f"{total} too much")


def _order(tried: Mapping[str, Attempt], records: Sequence[Seen]) -> Iterator[Anomaly]:
    lines: dict[tuple[int, str], list[Seen]] = defaultdict(list)
    for record in sorted(records, key=lambda each: (each.partition, each.offset)):
        attempt = tried.get(record.attempt)
        if attempt is not None:
            lines[record.partition, attempt.teller].append(record)
    for line in lines.values():
        for before, after in pairwise(line):
            if tried[before.attempt].number > tried[after.attempt].number:
                yield Anomaly.of(Kind.OUT_OF_ORDER, f"{before} before {after}")


def _regions(final: Mapping[str, Sequence[Seen]]) -> Iterator[Anomaly]:
    for (first, ours), (second, theirs) in pairwise(final.items()):
        for record in sorted(set(ours) ^ set(theirs)):
            where = first if record in set(ours) else second
            yield Anomaly.of(Kind.REGIONS_DIFFER, f"only {where} shows {record}")


def _cut(history: History, there: set[str]) -> Iterator[Anomaly]:
    for name in sorted(history.covered - there):
        yield Anomaly.of(Kind.COVERED_LOST, name)
    for name in sorted(history.beyond & there):
        yield Anomaly.of(Kind.BEYOND_KEPT, name)


def _losses(history: History, there: set[str]) -> Iterator[Anomaly]:
    by_teller: dict[str, list[Attempt]] = defaultdict(list)
    for attempt in history.attempts:
        by_teller[attempt.teller].append(attempt)
    for teller, attempts in by_teller.items():
        gone = [a for a in attempts if a.outcome is Outcome.COMMITTED and a.name not in there]
        unknown = [a for a in attempts if a.outcome is Outcome.UNKNOWN and a.name not in there]
        listed = history.listed.get(teller, 0)
        if listed < len(gone):
            names = ", ".join(attempt.name for attempt in gone)
            yield Anomaly.of(Kind.UNLISTED, f"gone: {names}; listed: {listed} of {teller}")
        if listed > len(gone) + len(unknown):
            yield Anomaly.of(Kind.FALSE_LOSS, f"{listed} of {teller} listed, {len(gone)} gone")
        for lost in gone:
            kept = [a for a in attempts if a.term == lost.term and a.number > lost.number]
            if any(later.name in there for later in kept):
                yield Anomaly.of(Kind.GAP, lost.name)
