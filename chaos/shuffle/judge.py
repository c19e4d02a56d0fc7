"""What is wrong with a sequence: a pure function of what its clients saw and its operator said.

INV-SHJ1  what was acknowledged or shown is there at the end, unless an operator's word covers it
INV-SHJ2  a word covers what clients saw before it was carried out, and what they saw later in a region that could
          not have heard of it; never what the region that was to act had shown itself, and neither damage nor an
          earlier word took from it: what is done again after one may stand where it stood before
          A region that took over, and was emptied before any other could have heard of that, takes with it what it
          alone had: the others go on as before, and nobody needs a word
INV-SHJ3  where no folder was damaged, what a word cost lies in ranges that the losses name
INV-SHJ4  no value is there twice, each writer's values rise in each partition, all regions show the same
INV-SHJ5  a refusal has a reason, and one that lasts names a way out

Not here: torn transfers (`chaos.checker`), who acts alone (`chaos.shuffle.stage`).
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Final

from chaos.soak_judge import few
from chaos.story import Gone, Place, Refusal, Separation, Sighting, Story, Word

NEWS_TAKES_S: Final = 5.0
LASTS_S: Final = 6.0
_WAY_OUT: Final = re.compile(
    r"tidemark (region|init|doctor)|docs/runbooks|[Ss]tart |restart|goes on (by itself|when|as soon)"
)


def judge(story: Story, plain_topic: str) -> list[str]:
    """Return everything that is wrong, empty when nothing is."""
    found: list[str] = []
    for region, places in story.final.items():
        found += few(f"doubled in {region}", _doubled(places))
        found += few(f"out of order in {region}", list(_disorder(places, plain_topic)))
    found += _differences(story.final)
    vanished = _vanished(story)
    shown = _shown_last(story.sightings)
    silent = [_told(each) for each in vanished if not covered(each, story, shown)]
    found += few("gone without a word", silent)
    found += few("gone and not named by losses", _unnamed(vanished, story, plain_topic))
    found += few("a refusal that does not say the way out", list(_mute(story.refusals)))
    return found


def _vanished(story: Story) -> list[Sighting]:
    """Return the latest sighting by each region of what is not there any more."""
    there = set().union(*story.final.values()) if story.final else set()
    without_offset = {place._replace(offset=-1) for place in there}
    last: dict[tuple[str, bool, Place], Sighting] = {}
    for each in story.sightings:
        if each.place not in (without_offset if each.place.offset < 0 else there):
            key = (each.region, each.shown, each.place)
            if key not in last or each.at_s > last[key].at_s:
                last[key] = each
    return sorted(last.values())


def _shown_last(sightings: Iterable[Sighting]) -> Mapping[tuple[str, Place], list[float]]:
    found: dict[tuple[str, Place], list[float]] = defaultdict(list)
    for each in sightings:
        if each.shown:
            found[each.region, each.place].append(each.at_s)
    return found


def covered(
    sighting: Sighting,
    story: Story,
    shown: Mapping[tuple[str, Place], Sequence[float]],
    before_s: float = float("inf"),
) -> bool:
    """Return whether a word that was given before `before_s` allows that a sighting is gone (INV-SHJ2).

    `shown`: region and place -> when it was shown.
    """
    words = [word for word in story.words if word.given_s < before_s]
    for word in words:
        times_s = [
            at_s for at_s in shown.get((word.target, sighting.place), ()) if at_s < word.given_s
        ]
        damaged_s = [
            d.at_s for d in story.damages if d.region == word.target and d.at_s < word.given_s
        ]
        held = bool(times_s) and max(times_s) > max(damaged_s, default=0.0)
        if held:
            own = Sighting(max(times_s), word.target, sighting.place, True)
            held = not covered(own, story, shown, word.given_s)
        if not held and _could_not_know(sighting, word, story):
            return True
    return any(_went_with_its_folder(sighting, word, story) for word in words)


def _went_with_its_folder(sighting: Sighting, word: Word, story: Story) -> bool:
    """Return whether only the region of `word` had it, and was emptied before another could hear that it acts."""
    region = word.target
    if sighting.region in story.final and sighting.region != region:
        return False
    others = [name for name in story.final if name != region]
    return any(
        word.given_s <= sighting.at_s <= damage.at_s
        and all(_not_heard(other, damage.at_s, word, story) for other in others)
        for damage in story.damages
        if damage.region == region
    )


def _could_not_know(sighting: Sighting, word: Word, story: Story) -> bool:
    """Return whether who showed or acknowledged it had not heard that the word was carried out (INV-SHJ2)."""
    if sighting.at_s <= word.done_s:
        return True
    regions = [sighting.region] if sighting.region in story.final else list(story.final)
    return any(_not_heard(region, sighting.at_s, word, story) for region in regions)


def _not_heard(region: str, at_s: float, word: Word, story: Story) -> bool:
    if region == word.target:
        return False
    damaged_s = [d.at_s for d in story.damages if d.region == region and d.at_s < at_s]
    since_s = max([word.done_s, *damaged_s])
    return at_s <= _met(story.separations, region, word.target, since_s) + NEWS_TAKES_S


def _met(separations: Iterable[Separation], one: str, other: str, since_s: float) -> float:
    """Return from when on the two could talk, at or after `since_s`."""
    apart = sorted(s for s in separations if {s.one, s.other} == {one, other})
    for each in apart:
        if each.from_s <= since_s + NEWS_TAKES_S and since_s < each.to_s:
            since_s = each.to_s
    return since_s


def _unnamed(vanished: Sequence[Sighting], story: Story, plain_topic: str) -> list[str]:
    if story.damages or not story.listed_all or not story.words:
        return []
    ranges: dict[tuple[str, int], list[Gone]] = defaultdict(list)
    for each in story.gone:
        ranges[each.topic, each.partition].append(each)
    return [
        _told(sighting)
        for sighting in vanished
        if (place := sighting.place).topic == plain_topic and place.offset >= 0
        and not any(
            r.first_offset <= place.offset <= r.last_offset
            for r in ranges[place.topic, place.partition]
        )
    ]  # fmt: skip


def _doubled(places: Iterable[Place]) -> list[str]:
    counts = Counter((each.topic, each.partition, each.value) for each in places)
    return [f"{count} times {what}" for what, count in sorted(counts.items()) if count > 1]


def _disorder(places: Iterable[Place], plain_topic: str) -> Iterator[str]:
    lines: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for each in places:
        if each.topic == plain_topic:
            writer, number = each.value.split(" ")
            lines[each.partition, writer].append((each.offset, int(number)))
    for (partition, writer), line in lines.items():
        for (_, before), (offset, after) in pairwise(sorted(line)):
            if after < before:
                yield f"{writer} {after} at {partition}/{offset} behind {before}"


def _differences(final: Mapping[str, frozenset[Place]]) -> list[str]:
    found = []
    for (first, ours), (second, theirs) in pairwise(final.items()):
        found += few(
            f"only {first}, not {second}, shows", [str(each) for each in sorted(ours - theirs)]
        )
        found += few(
            f"only {second}, not {first}, shows", [str(each) for each in sorted(theirs - ours)]
        )
    return found


def _mute(refusals: Iterable[Refusal]) -> Iterator[str]:
    for each in refusals:
        lasts = each.to_s - each.from_s >= LASTS_S
        for check, reason in each.reasons.items():
            if not reason or (lasts and not _WAY_OUT.search(reason)):
                yield f"{each.region}, {each.to_s - each.from_s:.0f} s, {check}: {reason!r}"


def _told(each: Sighting) -> str:
    how = "shown" if each.shown else "acknowledged"
    return f"{each.place} {how} by {each.region} at {each.at_s:.1f}"
