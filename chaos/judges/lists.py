"""The judge of list-append transactions: each appends unique values to lists, one list a partition, and reads some.

Source: Adya's G0, G1a, G1b and G1c (Generalized Isolation Level Definitions, 2000), lists as in Elle (Kingsbury, Alvaro,
VLDB 2020). Kafka promises less than read committed of a database, so this is what is held against it:

G1a: what is shown belongs to a transaction that asked for its commit before, and was not refused it. G1b as far as
Kafka has it: a reader passes over no append that is committed below where it stands. That it is shown one append of a
transaction and not yet the next is right: an open transaction between them holds the LSO. The appends of a list have
one order for all readers and regions: the log's, each at one offset. G0 as far as Kafka has it: a transaction that was
answered before another began is before it in every list. Two that are open at once may be in either order, and in
another one in the next list. G1c: what transactions were shown of each other (wr) has no circle. A transaction is shown
nothing from its own first append on: it holds the LSO itself. A transaction is there whole or not at all; one whose
commit was answered is there, but for what a word covers.

A read is not part of its transaction: it is as of when it was made, and says nothing about other lists.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from chaos.history import Outcome
from chaos.judges.excuse import Excuse
from chaos.story import Place, Sighting

NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Append:
    """An append that was answered with its offset."""

    key: int
    value: str
    offset: int
    at_s: float


@dataclass(frozen=True, slots=True)
class ListRead:
    """What a reader was shown of a list between two positions, in [asked_s, at_s]; `txn`: within which transaction."""

    region: str
    key: int
    asked_s: float
    at_s: float
    position: int
    next_position: int
    shown: Sequence[tuple[int, str]]
    txn: str = ""


@dataclass(frozen=True, slots=True)
class ListTxn:
    """One try. `commit_asked_s`: NEVER where no commit was asked for; `ended_s`: when it was answered."""

    name: str
    region: str
    began_s: float
    commit_asked_s: float
    ended_s: float
    outcome: Outcome
    appends: Sequence[Append]


@dataclass(frozen=True)
class ListHistory:
    """One run. `final`: region -> list -> (offset, value) of all that is there at the end."""

    topic: str
    txns: Sequence[ListTxn]
    reads: Sequence[ListRead]
    final: Mapping[str, Mapping[int, Sequence[tuple[int, str]]]]

    @cached_property
    def owner(self) -> Mapping[str, ListTxn]:
        """Value -> who appended it."""
        return {append.value: txn for txn in self.txns for append in txn.appends}

    @cached_property
    def lists(self) -> Mapping[int, Sequence[tuple[int, str]]]:
        """Return what one region has at the end; that all have the same is judged by itself."""
        return next(iter(self.final.values()), {})


def judge_lists(history: ListHistory, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    return [
        *_finals(history),
        *_dirty(history),
        *_passed_over(history, excuse),
        *_gone(history, excuse),
        *_out_of_order(history),
        *_own(history, excuse),
        *_circles(history),
    ]


def _finals(history: ListHistory) -> Iterator[str]:
    for (one, ours), (other, theirs) in pairwise(history.final.items()):
        for key in sorted(ours.keys() | theirs.keys()):
            if list(ours.get(key, ())) != list(theirs.get(key, ())):
                yield f"list {key} differs between {one} and {other}"
    there = [value for entries in history.lists.values() for _, value in entries]
    for value in sorted({value for value in there if there.count(value) > 1}):
        yield f"{value} is there twice"
    present = set(there)
    for txn in history.txns:
        found = [append.value in present for append in txn.appends]
        if any(found) and not all(found):
            yield f"torn: of {txn.name} only a part is there"


def _dirty(history: ListHistory) -> Iterator[str]:
    shown = [(read.at_s, value) for read in history.reads for _, value in read.shown]
    shown += [(NEVER, value) for entries in history.lists.values() for _, value in entries]
    for at_s, value in shown:
        txn = history.owner.get(value)
        if txn is None:
            yield f"{value} is shown, and nobody had an answer to its append"
        elif txn.outcome is Outcome.NOT_COMMITTED:
            yield f"G1a: {value} is shown, {txn.name} was not committed"
        elif at_s < txn.commit_asked_s:
            yield f"G1a: {value} is shown at {at_s:.2f} s, before the commit of {txn.name} was asked for"


def _passed_over(history: ListHistory, excuse: Excuse) -> Iterator[str]:
    """Yield the appends that a reader passed over (G1b)."""
    for read in history.reads:
        entries = history.lists.get(read.key, ())
        between = [entry for entry in entries if read.position <= entry[0] < read.next_position]
        if list(read.shown) == between:
            continue
        shown = set(read.shown)
        for offset, value in between:
            said = Sighting(read.at_s, read.region, _place(history, read.key, offset, value), True)
            if (offset, value) not in shown and not excuse(said, [said]):
                yield (
                    f"G1b: a reader at {read.region} went from {read.position} to {read.next_position} of list"
                    f" {read.key} at {read.at_s:.2f} s and was not shown {value} at {offset}"
                )
        for (before, _), (after, value) in pairwise(read.shown):
            if after <= before:
                yield f"a reader of list {read.key} is shown {value} at {after} behind {before}"


def _gone(history: ListHistory, excuse: Excuse) -> Iterator[str]:
    there = {(key, *entry) for key, entries in history.lists.items() for entry in entries}
    said: dict[tuple[int, int, str], list[Sighting]] = defaultdict(list)
    for txn in history.txns:
        if txn.outcome is Outcome.COMMITTED:
            for append in txn.appends:
                at = append.key, append.offset, append.value
                said[at].append(Sighting(txn.ended_s, txn.region, _place(history, *at), False))
    for read in history.reads:
        for entry in read.shown:
            at = read.key, *entry
            said[at].append(Sighting(read.at_s, read.region, _place(history, *at), True))
    for at in sorted(said.keys() - there):
        for each in said[at]:
            if not excuse(each, said[at]):
                how = "shown" if each.shown else "committed"
                yield f"{at[2]} at {at[0]}/{at[1]}, {how} by {each.region} at {each.at_s:.2f} s, is gone"
                break


def _place(history: ListHistory, key: int, offset: int, value: str) -> Place:
    return Place(history.topic, key, offset, value)


def _out_of_order(history: ListHistory) -> Iterator[str]:
    for key, entries in history.lists.items():
        latest: tuple[float, str] = (-NEVER, "")
        for _, value in entries:
            txn = history.owner.get(value)
            if txn is None:
                continue
            # Whoever stands behind one that began after it was answered is out of order.
            if txn.outcome is Outcome.COMMITTED and txn.ended_s < latest[0]:
                yield f"G0: in list {key} {value} stands behind {latest[1]}, which began after it was answered"
            latest = max(latest, (txn.began_s, value))


def _own(history: ListHistory, excuse: Excuse) -> Iterator[str]:
    by_name = {txn.name: txn for txn in history.txns}
    for read in history.reads:
        txn = by_name.get(read.txn)
        if txn is None:
            continue
        own = [a for a in txn.appends if a.key == read.key and a.at_s <= read.asked_s]
        for append in own[:1]:
            place = _place(history, append.key, append.offset, append.value)
            said = Sighting(append.at_s, txn.region, place, False)
            moved = read.next_position > max(
                read.position, append.offset
            )  # one ahead of a log just waits
            if moved and not excuse(said, [said]):
                yield (
                    f"{txn.name} is shown list {read.key} up to {read.next_position}, and has appended at"
                    f" {append.offset} itself: the LSO is beyond an open transaction"
                )


def _circles(history: ListHistory) -> Iterator[str]:
    shown_to: dict[str, set[str]] = defaultdict(set)
    for read in history.reads:
        for _, value in read.shown:
            txn = history.owner.get(value)
            if read.txn and txn is not None:
                shown_to[txn.name].add(read.txn)
    done: set[str] = set()
    for start in sorted(shown_to):
        if start not in done and (circle := _circle_from(start, shown_to, done)):
            yield f"G1c: each of these was shown what the one before appended: {' -> '.join(circle)}"


def _circle_from(start: str, after: Mapping[str, set[str]], done: set[str]) -> list[str]:
    """Return a circle that is reached from `start`, empty if there is none; what was looked at is `done`."""
    path: list[str] = [start]
    left = [iter(sorted(after.get(start, ())))]
    while path:
        following = next(left[-1], None)
        if following is None:
            done.add(path.pop())
            left.pop()
        elif following in path:
            return [*path[path.index(following) :], following]
        elif following not in done:
            path.append(following)
            left.append(iter(sorted(after.get(following, ()))))
    return []
