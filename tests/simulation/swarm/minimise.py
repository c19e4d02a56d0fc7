"""A run that fails, made as small as it still fails: fewer faults, fewer actions, less time; and its one command.

INV-SWX1  what is kept fails in the same way: the first violation is the same but for numbers and names of regions
INV-SWX2  no more than a given number of runs are tried; whatever was found by then counts

Source: Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input" (2002), here by halves, quarters and so on
of what is left.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Final

from tests.simulation.swarm.life import Outcome, play
from tests.simulation.swarm.plan import Choice
from tests.simulation.swarm.rates import LASTING
from tests.simulation.swarm.stage import NAMES

TRIES: Final = 40
AFTERMATH_S: Final = 5.0
KIND_CHARACTERS: Final = 60
_NAMES: Final = re.compile(rf"\b({'|'.join(NAMES)})\b")
_NUMBERS: Final = re.compile(r"\d+")


@dataclass(frozen=True, slots=True)
class Run:
    """What decides a run. `events_max`: it ends with so many events, unjudged."""

    seed: int
    minutes: float
    regions: int
    choice: Choice
    events_max: int | None = None

    def play(
        self,
        say: Callable[[str], None] | None = None,
        write: Callable[[str], object] | None = None,
    ) -> Outcome:
        """Play it."""
        return play(
            self.seed, minutes=self.minutes, regions=self.regions, say=say, write=write,
            choice=self.choice, events_max=self.events_max,
        )  # fmt: skip

    def __str__(self) -> str:
        """Return the command that plays it."""
        return (
            f"python -m tests.simulation --seed {self.seed} --minutes {self.minutes}"
            f" --regions {self.regions}{self.choice}"
        )


def kind_of(violation: str) -> str:
    """Return what a violation is, without what differs from run to run."""
    return _NUMBERS.sub("#", _NAMES.sub("REGION", violation))[:KIND_CHARACTERS]


class Minimiser:
    """Makes one failing run smaller; `say` gets what it tries."""

    def __init__(
        self, run: Run, outcome: Outcome, *, tries: int = TRIES,
        say: Callable[[str], None] = lambda _: None, play: Callable[[Run], Outcome] = Run.play,
    ) -> None:  # fmt: skip
        """Begin with a run and what it came to, with a violation."""
        self.run, self.outcome, self._play = run, outcome, play
        self._wanted, self._tries, self._say = kind_of(outcome.violations[0]), tries, say

    def smallest(self) -> Run:
        """Return the smallest run that was found."""
        self._end_early()
        labels = [label for label, _, _ in self.outcome.played]
        self._lessen(labels, self._with_labels)
        lasting = [each for each in LASTING if each not in self.run.choice.without]
        self._lessen(lasting, self._with_lasting)
        self._end_early()
        return self.run

    def _end_early(self) -> None:
        """Try to end soon after what was done last."""
        last_s = max((at_s for _, _, at_s in self.outcome.played), default=0.0)
        minutes = round((last_s + AFTERMATH_S) / 60, 2)
        if minutes < self.run.minutes:
            self._try(replace(self.run, minutes=minutes))

    def _with_labels(self, labels: Sequence[str]) -> Run:
        without = self.run.choice.without & set(LASTING)
        return replace(self.run, choice=Choice(without, tuple(labels)))

    def _with_lasting(self, kept: Sequence[str]) -> Run:
        choice = self.run.choice
        without = (choice.without - set(LASTING)) | (set(LASTING) - set(kept))
        return replace(self.run, choice=replace(choice, without=frozenset(without)))

    def _lessen(self, parts: list[str], made_of: Callable[[Sequence[str]], Run]) -> None:
        """Leave out as many of `parts` as can be: all at first, then halves, quarters, at last one by one."""
        size = len(parts)
        while parts and size > 0:
            at = 0
            while at < len(parts):
                rest = parts[:at] + parts[at + size :]
                if self._try(made_of(rest)):
                    parts = rest
                else:
                    at += size
            size = size // 2 if size > 1 else 0

    def _try(self, run: Run) -> bool:
        if self._tries == 0 or run == self.run:
            return False
        self._tries -= 1
        outcome = self._play(run)
        same = bool(outcome.violations) and kind_of(outcome.violations[0]) == self._wanted
        self._say(f"  {'smaller' if same else 'not the same'}: {run}")
        if same:
            self.run, self.outcome = run, outcome
        return same
