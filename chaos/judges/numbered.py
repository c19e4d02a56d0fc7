"""The judge of numbered values: "<writer> <number>", each written by one writer in rising order, some never answered.

A value is there at most once, and a writer's values rise in each partition. What was acknowledged is there, at the
offset that was answered, but for what a word covers. All regions show the same.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.judges.excuse import Excuse
from chaos.story import Place, Sighting


@dataclass(frozen=True, slots=True)
class NumberedHistory:
    """One topic of one run. `final`: region -> all that is there at the end."""

    acked: Sequence[Sighting]
    final: Mapping[str, frozenset[Place]]


def judge_numbered(run: NumberedHistory, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    found: list[str] = []
    for region, places in run.final.items():
        found += _doubled(region, places)
        found += _disorder(region, places)
    for (one, ours), (other, theirs) in pairwise(run.final.items()):
        if ours != theirs:
            found.append(f"{one} and {other} differ in {sorted(ours ^ theirs)[:5]}")
    there = set().union(*run.final.values()) if run.final else set()
    for each in run.acked:
        # An offset of -1 says that it is in the log, and not where (a repetition of an old batch).
        at = each.place.offset
        known = each.place in there or (
            at < 0 and any(p._replace(offset=-1) == each.place for p in there)
        )
        if not known and not excuse(each, [each]):
            found.append(
                f"acknowledged by {each.region} at {each.at_s:.1f} s, and gone: {each.place}"
            )
    return found


def _doubled(region: str, places: frozenset[Place]) -> Iterator[str]:
    counts = Counter((place.partition, place.value) for place in places)
    for (partition, value), count in sorted(counts.items()):
        if count > 1:
            yield f"{value} is {count} times in partition {partition} of {region}"


def _disorder(region: str, places: frozenset[Place]) -> Iterator[str]:
    lines: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for place in places:
        writer, number = place.value.rsplit(" ", 1)
        lines[place.partition, writer].append((place.offset, int(number)))
    for (partition, writer), line in sorted(lines.items()):
        for (_, before), (offset, after) in pairwise(sorted(line)):
            if after < before:
                yield f"{writer} {after} at {partition}/{offset} of {region} stands behind {before}"
