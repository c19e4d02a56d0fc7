"""What is done to the data folders of regions that do not run, or stand still: emptied, copied, exchanged, halved.

INV-SHF1  a node's log and configuration stay where they are: they are what tells the story
INV-SHF2  what is taken away is moved aside, never deleted, while the sequence runs
"""

import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Final

from chaos.shuffle.plan import Part

_STAY: Final = frozenset({"node.log", "node.json"})


class Folders:
    """The regions' folders below `root`, and what was put aside of them."""

    def __init__(self, root: Path, chance: Random) -> None:
        """Nothing is touched."""
        self._root = root
        self._chance = chance
        self._aside = 0
        self._copies: dict[str, list[tuple[float, Path]]] = {}
        self._missing: dict[str, tuple[Path, Path]] = {}

    def empty(self, region: str) -> None:
        """Leave nothing in it."""
        _move_all(self._root / region, self._new_place())
        self._missing.pop(region, None)

    def copy(self, region: str, at_s: float) -> None:
        """Keep a copy as it is now, at `at_s`."""
        place = self._new_place()
        shutil.copytree(
            self._root / region, place, ignore=shutil.ignore_patterns(*_STAY), dirs_exist_ok=True
        )
        self._copies.setdefault(region, []).append((at_s, place))

    def copies(self, region: str, before_s: float = math.inf) -> Sequence[Path]:
        """Return its copies from before that time, oldest first: what `restore` can take."""
        return [place for at_s, place in self._copies.get(region, ()) if at_s < before_s]

    def restore(self, region: str, copies: Sequence[Path]) -> None:
        """Put one of these copies in its place."""
        self.empty(region)
        copy = self._chance.choice(copies)
        shutil.copytree(copy, self._root / region, dirs_exist_ok=True)

    def swap(self, one: str, other: str) -> None:
        """Exchange two folders; twice is not at all."""
        between = self._new_place()
        _move_all(self._root / one, between)
        _move_all(self._root / other, self._root / one)
        _move_all(between, self._root / other)

    def halve(self, region: str, part: Part) -> bool:
        """Put a part of it aside; return whether there was such a part."""
        found = self._part(self._root / region, part)
        if found is None or region in self._missing:
            return False
        place = self._new_place() / found.name
        found.rename(place)
        self._missing[region] = (place, found)
        return True

    def make_whole(self, region: str) -> bool:
        """Put back what `halve` took; return whether anything was missing."""
        missing = self._missing.pop(region, None)
        if missing is None:
            return False
        place, origin = missing
        if origin.is_dir():
            _move_all(origin, self._new_place())
            origin.rmdir()
        elif origin.exists():
            origin.rename(self._new_place() / origin.name)
        place.rename(origin)
        return True

    def give_up(self, region: str) -> None:
        """Leave aside for good what `halve` took."""
        self._missing.pop(region, None)

    def is_half(self, region: str) -> bool:
        """Return whether a part of it stands aside."""
        return region in self._missing

    def _part(self, folder: Path, part: Part) -> Path | None:
        if part is Part.PARTITION:
            found = sorted(each for each in (folder / "logs").glob("?" * 32 + "/[0-9]*"))
            return self._chance.choice(found) if found else None
        path = folder / part.value
        return path if path.exists() else None

    def _new_place(self) -> Path:
        self._aside += 1
        place = self._root / "aside" / str(self._aside)
        place.mkdir(parents=True)
        return place


def _move_all(source: Path, target: Path) -> None:
    for each in sorted(source.iterdir()):
        if each.name not in _STAY:
            each.rename(target / each.name)
