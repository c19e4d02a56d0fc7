"""Which regions could talk to each other, and when: for processes and simulations.

Not here: what parts them (stages), what follows from a separation (`chaos.shuffle.judge`).
"""

from collections.abc import Callable, Sequence
from typing import Final

from chaos.story import Separation

NEVER: Final = float("inf")


class Contacts:
    """The pairs of `names` that are apart now, and since when; separations that ended are noted in `story`."""

    def __init__(self, names: Sequence[str], separations: list[Separation]) -> None:
        """Begin with all in touch."""
        self._names = names
        self._separations = separations
        self._apart_since_s: dict[frozenset[str], float] = {}

    def note(self, now_s: float, are_apart: Callable[[str, str], bool]) -> None:
        """Look at each pair."""
        for number, one in enumerate(self._names):
            for other in self._names[number + 1 :]:
                pair = frozenset((one, other))
                if are_apart(one, other):
                    self._apart_since_s.setdefault(pair, now_s)
                elif pair in self._apart_since_s:
                    since_s = self._apart_since_s.pop(pair)
                    self._separations.append(Separation(since_s, now_s, *sorted(pair)))

    def end(self) -> None:
        """Close the books: whoever is apart now is so to the end."""
        for pair, since_s in self._apart_since_s.items():
            self._separations.append(Separation(since_s, NEVER, *sorted(pair)))

    def alone_since_s(self, name: str) -> float:
        """Return since when it could talk to no other one, `NEVER` if it can."""
        pairs = [frozenset((name, other)) for other in self._names if other != name]
        return max(self._apart_since_s.get(pair, NEVER) for pair in pairs)
