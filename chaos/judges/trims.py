"""The judge of DeleteRecords: readers miss exactly what was deleted, and what was deleted does not come back.

A log starts nowhere beyond what was asked before (KIP-107), and a reader is given every record from its position on, or
is told OFFSET_OUT_OF_RANGE below the log start. An answered deletion, and a log start that a region showed, hold to the
end, but for what a word covers (T14). At the end all regions start at the same offset, and hold each acknowledged
record from there on.

Not here: whose records they are (`chaos.shuffle.judge`). The topic has one record a batch and no transactions.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.judges.excuse import Excuse
from chaos.story import Place, Sighting

START = "log start"


@dataclass(frozen=True, slots=True)
class Deletion:
    """One DeleteRecords. `log_start` is what was answered at `answered_s`, None where nothing was."""

    region: str
    partition: int
    offset: int
    asked_s: float
    answered_s: float = 0.0
    log_start: int | None = None


@dataclass(frozen=True, slots=True)
class Reading:
    """One answer to a Fetch from `position`. `refused`: OFFSET_OUT_OF_RANGE."""

    region: str
    partition: int
    at_s: float
    position: int
    log_start: int
    offsets: Sequence[int] = ()
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Trims:
    """One topic of one run. `final`: region -> partition -> the offsets there; `starts`: region -> log start of each.

    `undisturbed`: no operator's word was given, and no folder was damaged.
    """

    topic: str
    deletions: Sequence[Deletion]
    readings: Sequence[Reading]
    acked: Sequence[Sighting]
    starts: Mapping[str, Sequence[int]]
    final: Mapping[str, frozenset[Place]]
    undisturbed: bool


def judge_trims(run: Trims, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    found = [*_readings(run), *_order(run), *_ends(run)]
    if not found:
        found += [*_brought_back(run, excuse), *_lost(run, excuse)]
    return found


def _asked(run: Trims, partition: int, at_s: float) -> int:
    offsets = [d.offset for d in run.deletions if d.partition == partition and d.asked_s <= at_s]
    return max(offsets, default=0)


def _readings(run: Trims) -> Iterator[str]:
    for each in run.readings:
        where = f"{run.topic}-{each.partition} at {each.region}, {each.at_s:.1f} s, position {each.position}"
        if each.log_start > _asked(run, each.partition, each.at_s):
            yield f"{where}: starts at {each.log_start}, which nobody asked for"
        if each.refused and each.position >= each.log_start and run.undisturbed:
            yield f"{where}: refused, though the log starts at {each.log_start}"
        if not each.refused and each.position < each.log_start and each.offsets:
            yield f"{where}: answered below the log start {each.log_start}"
        expected = range(each.position, each.position + len(each.offsets))
        if list(each.offsets) != list(expected):
            yield f"{where}: not every record from there on: {list(each.offsets)[:20]}"


def _order(run: Trims) -> Iterator[str]:
    if not run.undisturbed:
        return
    highest: dict[tuple[str, int], Reading] = {}
    for each in sorted(run.readings, key=lambda reading: reading.at_s):
        before = highest.get((each.region, each.partition))
        if before is not None and each.log_start < before.log_start:
            yield (
                f"{run.topic}-{each.partition} at {each.region}: started at {before.log_start} at"
                f" {before.at_s:.1f} s, and at {each.log_start} at {each.at_s:.1f} s"
            )
        highest[each.region, each.partition] = each


def _ends(run: Trims) -> Iterator[str]:
    for (one, ours), (other, theirs) in pairwise(run.starts.items()):
        if list(ours) != list(theirs):
            yield f"{run.topic} starts at {list(ours)} in {one}, at {list(theirs)} in {other}"
    for partition, start in enumerate(_starts(run)):
        if start > _asked(run, partition, float("inf")):
            yield f"{run.topic}-{partition} starts at {start} at the end, which nobody asked for"


def _starts(run: Trims) -> Sequence[int]:
    return next(iter(run.starts.values()), ())


def _brought_back(run: Trims, excuse: Excuse) -> Iterator[str]:
    known = [
        (d.partition, d.log_start, Sighting(d.answered_s, d.region, _fact(run, d.partition), False))
        for d in run.deletions if d.log_start is not None
    ]  # fmt: skip
    known += [
        (r.partition, r.log_start, Sighting(r.at_s, r.region, _fact(run, r.partition), True))
        for r in run.readings
    ]
    for partition, start in enumerate(_starts(run)):
        above = sorted(
            (at, said) for number, at, said in known if number == partition and at > start
        )
        for offset, sighting in above:
            alike = [said for at, said in above if at >= offset]
            if not excuse(sighting, alike):
                how = "shown" if sighting.shown else "answered"
                yield (
                    f"{run.topic}-{partition} starts at {start}: below {offset} all was deleted, as {sighting.region}"
                    f" has {how} at {sighting.at_s:.1f} s"
                )
                break


def _fact(run: Trims, partition: int) -> Place:
    return Place(run.topic, partition, -1, START)


def _lost(run: Trims, excuse: Excuse) -> Iterator[str]:
    starts = _starts(run)
    there = set().union(*run.final.values()) if run.final else set()
    for each in run.acked:
        deleted = each.place.offset < starts[each.place.partition]
        if not deleted and each.place not in there and not excuse(each, [each]):
            yield f"acknowledged by {each.region} at {each.at_s:.1f} s, not deleted, and gone: {each.place}"
