"""What happens in a life, by number: actions one after the other, and weather beside them.

INV-SWN1  what has a number draws from a stream of its own: leaving one out, or a whole kind, changes no other
What is left out is waited for all the same: whatever else happens keeps its time.

An action is called by its number, the flip before it `f3`, a piece of weather by the number of its spell (between two settled
moments) and its own: `w2.7`.
Not here: what they do (`stage`, `weather`).
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random
from typing import Final

from chaos.shuffle.plan import Action, Kind, Part
from tests.simulation.swarm.rates import FAULTS, FLIP, Disaster, Rates, Weather, draw_rates

PAUSE_S: Final = (0.2, 4.0)
LASTS_S: Final = (0.05, 6.0)
PRIMARY_SHARE: Final = 0.5
DISASTER_SHARES: Final = (0.0, 0.0, 0.1, 0.4)
"""How many of the actions are disasters; none in half of the seeds."""
FLIP_SHARES: Final = (0.0, 0.0, 0.0, 0.3)
"""How many of the actions have a bit flip before them; none in three of four seeds."""
_RANGE: Final = re.compile(r"(\d+)-(\d+)")


@dataclass(frozen=True, slots=True)
class Choice:
    """What of a plan is played: all but the faults `without`; of numbered ones those in `only`, where it is given."""

    without: frozenset[str] = frozenset()
    only: tuple[str, ...] | None = None

    @classmethod
    def of(cls, without: str, only: str | None) -> "Choice":
        """Return what two options say; raises ValueError."""
        faults = frozenset(filter(None, without.split(",")))
        if unknown := faults - set(FAULTS):
            raise ValueError(f"no such faults: {sorted(unknown)}; there are {', '.join(FAULTS)}")
        return cls(faults, None if only is None else tuple(_numbers(only)))

    def has(self, label: str, kind: str) -> bool:
        """Return whether that one is played."""
        return kind not in self.without and (self.only is None or label in self.only)

    def __str__(self) -> str:
        """Return the options that say it."""
        said = f" --without {','.join(sorted(self.without))}" if self.without else ""
        return said if self.only is None else f"{said} --actions {_ranges(self.only)}"


def _numbers(text: str) -> Iterator[str]:
    for part in filter(None, text.replace("none", "").split(",")):
        found = _RANGE.fullmatch(part)
        if found is None:
            yield part
        else:
            yield from map(str, range(int(found[1]), int(found[2]) + 1))


def _ranges(labels: Sequence[str]) -> str:
    """Return labels as `_numbers` reads them."""
    parts: list[tuple[int, int]] = []
    for number in sorted(int(label) for label in labels if label.isdecimal()):
        if parts and parts[-1][1] == number - 1:
            parts[-1] = (parts[-1][0], number)
        else:
            parts.append((number, number))
    said = [str(one) if one == last else f"{one}-{last}" for one, last in parts]
    return ",".join([*said, *(label for label in labels if not label.isdecimal())]) or "none"


@dataclass(frozen=True, slots=True)
class Gust:
    """A piece of weather: after `gap_s` it is at `region`, towards `other`, and lasts `for_s`; `chance` is its own."""

    label: str
    kind: Weather
    gap_s: float
    for_s: float
    chance: Random


class Plan:
    """Everything that a seed would do, and what of it is done."""

    def __init__(self, seed: int, names: Sequence[str], choice: Choice | None = None) -> None:
        """Draw the rates; all else is drawn when it is asked for, and always the same."""
        self.choice = choice or Choice()
        self.seed, self._names = seed, names
        self.rates: Rates = draw_rates(self.stream("rates")).without(self.choice.without)

    def stream(self, *what: object) -> Random:
        """Return the chance of something, by its name."""
        return Random(repr((self.seed, *what)))

    def action(self, number: int, acting: str) -> Action:
        """Return action `number` where that region acts."""
        chance = self.stream("action", number)
        weights = self.rates.weights
        [kind] = chance.choices(list(weights), list(weights.values()))
        region = acting if chance.random() < PRIMARY_SHARE else chance.choice(self._names)
        if kind in {Kind.FAILOVER, Kind.SWITCH}:
            region = chance.choice([name for name in self._names if name != acting])
        other = chance.choice([name for name in self._names if name != region])
        return Action(
            kind, region, other, round(chance.uniform(*PAUSE_S), 1), chance.choice(list(Part)),
            put_back=chance.random() < 0.5,
        )  # fmt: skip

    def disaster(self, number: int) -> Disaster | None:
        """Return the disaster that action `number` is, if it is one: a share of all, which the seed draws."""
        share = self.stream("disasters").choice(DISASTER_SHARES)
        chance = self.stream("disaster", number)
        return chance.choice(list(Disaster)) if chance.random() < share else None

    def flip(self, number: int) -> Random | None:
        """Return the chance of the flip that comes before action `number`, if one does."""
        share = self.stream("flips").choice(FLIP_SHARES)
        chance = self.stream("flip", number)
        return chance if chance.random() < share and self.choice.has(f"f{number}", FLIP) else None

    def weather(self, spell: int) -> Iterator[Gust]:
        """Yield the weather of a spell, without end."""
        weights = self.rates.weather
        number = 0
        while True:
            number += 1
            chance = self.stream("weather", spell, number)
            gap_s = chance.uniform(0, 2 * self.rates.weather_rest_s)
            [kind] = chance.choices(list(weights), list(weights.values()))
            yield Gust(f"w{spell}.{number}", kind, gap_s, chance.uniform(*LASTS_S), chance)
