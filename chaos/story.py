"""What happened in a sequence, as its clients, its operator and its schedule saw it. Plain values, times monotonic.

Not here: what is wrong with it (`chaos.shuffle.judge`).
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Place(NamedTuple):
    """Where a record is, and what it says."""

    topic: str
    partition: int
    offset: int
    value: str


class Sighting(NamedTuple):
    """A client of `region` was acknowledged (`shown` False) or shown a record."""

    at_s: float
    region: str
    place: Place
    shown: bool


class Word(NamedTuple):
    """An operator's explicit word: from when it was given until it was carried out, who was to act."""

    kind: str
    target: str
    given_s: float
    done_s: float


class Damage(NamedTuple):
    """A region's folder was emptied or replaced by an older one."""

    at_s: float
    region: str


class Separation(NamedTuple):
    """These two could not talk: a link was cut, or one of them did not run."""

    from_s: float
    to_s: float
    one: str
    other: str


class Refusal(NamedTuple):
    """`/readyz` of a region said no for as long, with these reasons by check."""

    region: str
    from_s: float
    to_s: float
    reasons: Mapping[str, str]


class Gone(NamedTuple):
    """Offsets (inclusive) that a region's losses name."""

    topic: str
    partition: int
    first_offset: int
    last_offset: int


@dataclass(slots=True)
class Story:
    """One sequence. `final`: region -> all that a read-committed reader finds there at the end.

    `listed_all`: whether `gone` has every range, and no list ended early.
    """

    sightings: Sequence[Sighting] = ()
    words: list[Word] = field(default_factory=list)
    damages: list[Damage] = field(default_factory=list)
    separations: list[Separation] = field(default_factory=list)
    refusals: Sequence[Refusal] = ()
    gone: Sequence[Gone] = ()
    listed_all: bool = True
    final: Mapping[str, frozenset[Place]] = field(default_factory=dict)

    def note_losses(self, losses: Iterable[Mapping[str, Any]]) -> None:
        """Note what the regions list as lost, each entry as `/v1/region/losses` has it."""
        listed = list(losses)
        self.gone = [
            Gone(r["topic"], r["partition"], r["first_offset"], r["last_offset"])
            for loss in listed
            for r in loss["records"]
        ]
        self.listed_all = all(
            loss["plain_record_count"] + loss["transactional_record_count"]
            <= sum(r["record_count"] for r in loss["records"])
            for loss in listed
        )
