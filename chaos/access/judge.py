"""Whether what was changed of access is there: a pure function of what was ordered, answered and found (INV-SAC1).

INV-DRA2  of what was changed in the term that still goes on, all that was answered is there. Of a term that a failover has ended, all that was answered
          before the last marker that is still there was written: a marker is a record, written once a change was answered
INV-DRA3  what is there of a thing is what one change has made of it, of those from the last one that must be there on

Changes of one thing follow one another. Not here: who changes (`changes`).
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

ABSENT = ""


@dataclass(frozen=True, slots=True)
class Change:
    """`thing` was to become `value`, `ABSENT` for removed; `number` counts all, `term` is the one it was ordered in."""

    number: int
    term: int
    thing: str
    value: str
    answered: bool


def judge_access(
    changes: Sequence[Change], markers: Iterable[tuple[int, int]], term: int, before: Mapping[str, str], found: Mapping[str, str]
) -> list[str]:  # fmt: skip
    """Return what is wrong. `markers`: (term, number) of each that is there; `before`: what was there at first; `found`: what is."""
    last: dict[int, int] = {}
    for marker_term, number in markers:
        last[marker_term] = max(number, last.get(marker_term, 0))
    of_thing: dict[str, list[Change]] = defaultdict(list)
    for each in changes:
        of_thing[each.thing].append(each)
    wrong = []
    for thing in sorted({*before, *found, *of_thing}):
        may = [before.get(thing, ABSENT)]
        for each in of_thing[thing]:
            must = each.answered and (each.term == term or each.number <= last.get(each.term, 0))
            may = [each.value] if must else [*may, each.value]
        if found.get(thing, ABSENT) not in may:
            wrong.append(
                f"{thing} is {found.get(thing) or 'not there'}, and must be {' or '.join(value or 'not there' for value in may)}"
            )
    return wrong
