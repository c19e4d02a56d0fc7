"""What is wrong after a round: a pure function of what writers were told, what both regions show, and what they list as lost.

INV-DRJ1  what is gone of a writer's committed transactions is what the regions list of its transactional id, term by term
INV-DRJ2  a record that was answered and is gone lies in a listed range, or below all of them in its partition: there it was copied, and
          stays, aborted. None that is there lies in one
INV-DRJ3  what a planned switch cost is nothing, and each list is equal to the statement that was given before

Not here: torn, doubled, out of order (`chaos.checker`).
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from chaos.checker import check
from chaos.history import Attempt, History, Outcome, Seen
from chaos.soak_judge import few, judge_losses
from chaos.writers.writer import TOPIC

_LINEAGE = "lineage"


@dataclass(frozen=True, slots=True)
class Told:
    """What the judge reads. `epochs`: region epoch -> the term that it ended, of each failover; `planned`: region epochs of switches."""

    attempts: Sequence[Attempt]
    places: Mapping[str, Mapping[int, int]]
    final: Mapping[str, Sequence[Seen]]
    losses: Sequence[Mapping[str, Any]]
    epochs: Mapping[int, int]
    planned: frozenset[int]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong, and how much is gone. `counts`: by the name of what is wrong."""

    wrong: Sequence[str] = ()
    counts: Mapping[str, int] = field(default_factory=dict)
    gone: int = 0
    listed: int = 0


def judged(told: Told) -> Verdict:
    """Return the verdict of all that happened until now."""
    whole = [loss for loss in told.losses if loss["exact"] and loss["cause"] == _LINEAGE]
    listed = Counter(_ids(whole))
    found = check(History(told.attempts, told.final, listed=listed))
    there = {record.attempt for records in told.final.values() for record in records}
    gone = [a for a in told.attempts if a.outcome is Outcome.COMMITTED and a.name not in there]
    wrong = [
        *few("transfers", [f"{each.name} {each.detail}" for each in found]),
        *judge_losses(told.losses, told.planned),
        *_by_term(told, whole, there, gone),
        *_by_record(told, whole, gone),
    ]
    counts = Counter(each.name for each in found)
    return Verdict(wrong, counts, gone=len(gone), listed=sum(listed.values()))


def _ids(losses: Iterable[Mapping[str, Any]]) -> list[str]:
    return [lost["transactional_id"] for loss in losses for lost in loss["transactions"]]


def _by_term(
    told: Told, losses: Sequence[Mapping[str, Any]], there: set[str], gone: Sequence[Attempt]
) -> list[str]:
    """Return where a term's list and what is gone of it differ (INV-DRJ1)."""
    listed: dict[int, Counter[str]] = defaultdict(Counter)
    for loss in losses:
        if loss["lineage_epoch"] in told.epochs:
            listed[told.epochs[loss["lineage_epoch"]]].update(_ids([loss]))
    lost = Counter((a.term, a.teller) for a in gone)
    unsure = Counter(
        (a.term, a.teller)
        for a in told.attempts
        if a.outcome is Outcome.UNKNOWN and a.name not in there
    )
    pairs = set(lost) | {(term, teller) for term, ids in listed.items() for teller in ids}
    return few("a term's losses", [
        f"{teller} in term {term}: {lost[term, teller]} gone and {unsure[term, teller]} unanswered, {listed[term][teller]} listed"
        for term, teller in sorted(pairs)
        if not lost[term, teller] <= listed[term][teller] <= lost[term, teller] + unsure[term, teller]
    ])  # fmt: skip


def _by_record(
    told: Told, losses: Sequence[Mapping[str, Any]], gone: Sequence[Attempt]
) -> list[str]:
    """Return records that are gone and not listed, or listed and there (INV-DRJ2)."""
    ranges: dict[tuple[int, int], list[tuple[int, int]]] = defaultdict(list)
    for loss in losses:
        term = told.epochs.get(loss["lineage_epoch"])
        for each in loss["records"]:
            if each["topic"] == TOPIC and term is not None:
                ranges[term, each["partition"]].append((each["first_offset"], each["last_offset"]))
    found = []
    for attempt in gone:
        for partition, offset in sorted(told.places.get(attempt.name, {}).items()):
            known = ranges[attempt.term, partition]
            if not _within(offset, known) and any(first < offset for first, _ in known):
                found.append(f"{attempt.name} at {partition}/{offset}: gone, and not listed")
    term_of = {a.name: a.term for a in told.attempts if a.outcome is Outcome.COMMITTED}
    for record in {record for records in told.final.values() for record in records}:
        term = term_of.get(record.attempt)
        if term is not None and _within(record.offset, ranges[term, record.partition]):
            found.append(f"{record}: listed, and there")
    return few("records", sorted(found))


def _within(offset: int, ranges: Iterable[tuple[int, int]]) -> bool:
    return any(first <= offset <= last for first, last in ranges)
