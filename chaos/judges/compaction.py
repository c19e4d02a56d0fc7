"""The judge of a compacted topic: of each key the newest value is there, at the primary and at the mirrors.

What is newest of a key was written to that key, and nothing newer of it was acknowledged, but for what a word covers; a
key without a record had a tombstone at its end. All regions show the same newest values, whatever each of them has
cleaned. In a log the records of a key rise, each is there once.

Each key has one writer, whose numbers rise; a tombstone's number is known by the offset that was answered only.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from chaos.judges.excuse import Excuse
from chaos.story import Sighting


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """A write that was tried. `acked`: what answered it, None where nothing did."""

    key: str
    number: int
    tombstone: bool
    acked: Sighting | None = None


@dataclass(frozen=True, slots=True, order=True)
class KeyedRecord:
    """A record that is there at the end; `number` None is a tombstone."""

    offset: int
    key: str
    number: int | None


@dataclass(frozen=True, slots=True)
class Compaction:
    """One partition of one run. `final`: region -> its records, in the order of offsets."""

    writes: Sequence[KeyedWrite]
    final: Mapping[str, Sequence[KeyedRecord]]


def judge_compaction(run: Compaction, excuse: Excuse) -> list[str]:
    """Return what is wrong."""
    found: list[str] = []
    newest: dict[str, dict[str, int | None]] = {}
    for region, records in run.final.items():
        found += _order(region, records)
        newest[region] = {record.key: record.number for record in records}
        found += _newest(region, run.writes, newest[region], excuse)
    return found + list(_differences(newest))


def _order(region: str, records: Sequence[KeyedRecord]) -> Iterator[str]:
    last: dict[str, int] = {}
    for before, record in pairwise([None, *records]):
        assert record is not None
        if before is not None and before.offset >= record.offset:
            yield f"{region} shows offset {record.offset} behind {before.offset}"
        if record.number is None:
            continue
        if record.number <= last.get(record.key, -1):
            yield f"{region} shows {record} behind number {last[record.key]} of the key"
        last[record.key] = record.number


def _newest(
    region: str, writes: Sequence[KeyedWrite], newest: Mapping[str, int | None], excuse: Excuse
) -> Iterator[str]:
    of_key: dict[str, list[KeyedWrite]] = defaultdict(list)
    for each in writes:
        of_key[each.key].append(each)
    for key in sorted(newest.keys() - of_key.keys()):
        yield f"{region} shows key {key}, which nobody wrote"
    for key, tried in of_key.items():
        number = newest.get(key)
        if number is None:
            number = max((each.number for each in tried if each.tombstone), default=-1)
        elif number not in {each.number for each in tried if not each.tombstone}:
            yield f"{region} shows number {number} of key {key}, which nobody wrote"
        for each in tried:
            newer = each.acked if each.number > number else None
            if newer is not None and not excuse(newer, [newer]):
                shows = newest.get(key, "nothing")
                yield (
                    f"{region} shows {'a tombstone' if shows is None else shows} as the newest of key {key}:"
                    f" number {each.number} was acknowledged by {newer.region} at {newer.at_s:.1f} s"
                )
                break


def _differences(newest: Mapping[str, Mapping[str, int | None]]) -> Iterator[str]:
    for (one, ours), (other, theirs) in pairwise(newest.items()):
        for key in sorted(ours.keys() | theirs.keys()):
            if ours.get(key) != theirs.get(key):
                yield f"of key {key} {one} shows {ours.get(key)}, {other} {theirs.get(key)}"
