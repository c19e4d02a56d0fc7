"""The judge of topics that grow under load: a growth that was answered holds, and so does what the new partitions took.

At the end all regions have the same number of partitions: never more than were asked for, and not fewer than were
answered, but for what a word covers (T15). What was acknowledged in a partition, old or new, is there, but for what a
word covers.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.judges.excuse import Excuse
from chaos.story import Place, Sighting


@dataclass(frozen=True, slots=True)
class Growth:
    """One topic of one run. `answered`: growths, whose place has the new number of partitions as `partition`."""

    topic: str
    asked: Sequence[int]
    answered: Sequence[Sighting]
    acked: Sequence[Sighting]
    counts: Mapping[str, int]
    final: Mapping[str, frozenset[Place]]


def judge_growth(run: Growth, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    return [*_counts(run, excuse), *_records(run, excuse)]


def _counts(run: Growth, excuse: Excuse) -> Iterator[str]:
    for (one, ours), (other, theirs) in pairwise(run.counts.items()):
        if ours != theirs:
            yield f"{run.topic} has {ours} partitions in {one}, {theirs} in {other}"
    for region, count in run.counts.items():
        if count > max(run.asked, default=0):
            yield f"{run.topic} has {count} partitions in {region}: nobody asked for so many"
    count = min(run.counts.values(), default=0)
    more = [each for each in run.answered if each.place.partition > count]
    for each in more:
        if not excuse(each, [o for o in more if o.place.partition >= each.place.partition]):
            yield (
                f"{run.topic} has {count} partitions: {each.region} had answered {each.place.partition}"
                f" at {each.at_s:.1f} s"
            )


def _records(run: Growth, excuse: Excuse) -> Iterator[str]:
    for region, there in run.final.items():
        for each in run.acked:
            if each.place not in there and not excuse(each, [each]):
                yield f"acknowledged by {each.region} at {each.at_s:.1f} s, and gone from {region}: {each.place}"
