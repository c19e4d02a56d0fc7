"""Bits that flip at rest: in a file of a region that is down, and what an operator does about it.

INV-SWF1  a bit is given back only where the bytes around it are still those that were damaged: what the region has written
          in their place stays
The region is started with the damage, and may refuse, stop some of its partitions, or go on. The operator gives the bit back
when the region refuses, before its folder is copied or exchanged, and whenever all is mended: as from a backup.
Not flipped: metadata.db, whose pages have no checksums, and what is in quarantine, which the region does not read.
"""

import random
from collections import defaultdict
from pathlib import Path
from typing import Final, NamedTuple

from tests.simulation.region_pair import Region

AROUND_BYTES: Final = 16
LOGS_SHARE: Final = 0.5
"""How many of the flips are in segments; the others are in any other file."""
NOT_FLIPPED: Final = ("metadata.db", "quarantine", "lock")


class Flip(NamedTuple):
    """One bit: its file and byte, and what was around it, damaged."""

    path: Path
    position: int
    around: bytes


class Flips:
    """The bits that are flipped now, by region."""

    def __init__(self) -> None:
        """There are none."""
        self._flips: defaultdict[str, list[Flip]] = defaultdict(list)

    def at(self, name: str) -> bool:
        """Return whether a region's folder is damaged."""
        return bool(self._flips.get(name))

    def flip(self, region: Region, chance: random.Random) -> Flip | None:
        """Flip a bit of a region that is down; None where it has no file to speak of."""
        path = self._file(region, chance)
        if path is None:
            return None
        position = chance.randrange(len(region.disk.content(path)))
        region.disk.damage(path, position)
        made = Flip(path, position, _around(region, path, position))
        self._flips[region.name].append(made)
        return made

    def give_back(self, region: Region) -> None:
        """Undo what is flipped in a region that is down, where it is still there (INV-SWF1)."""
        for each in reversed(self._flips.pop(region.name, [])):
            if region.disk.exists(each.path) and each.around == _around(region, each.path, each.position):  # fmt: skip
                region.disk.damage(each.path, each.position)

    def _file(self, region: Region, chance: random.Random) -> Path | None:
        if not region.disk.exists(region.folder):
            return None
        found = [
            path
            for path in region.disk.files_under(region.folder)
            if region.disk.content(path) and region.disk.is_durable(path)
            and not any(part.startswith(NOT_FLIPPED) for part in path.relative_to(region.folder).parts)
        ]  # fmt: skip
        logs = [path for path in found if path.suffix == ".log"]
        others = [path for path in found if path.suffix != ".log"]
        first, second = (logs, others) if chance.random() < LOGS_SHARE else (others, logs)
        paths = first or second
        return chance.choice(paths) if paths else None


def _around(region: Region, path: Path, position: int) -> bytes:
    content = region.disk.content(path)
    return bytes(content[max(0, position - AROUND_BYTES) : position + AROUND_BYTES])
