"""What a read-committed reader of each client was shown, and what is wrong with that: a pure function.

INV-SGT1  within a region a reader is shown each record once, in the order of the log, and all that is there: nothing is taken back

Not here: who reads (`readers`).
"""

import threading
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise

from chaos.history import Seen, seen
from chaos.soak_judge import few


class Sightings:
    """What one reader was shown, in that order."""

    def __init__(self) -> None:
        """Nothing was shown."""
        self._lock = threading.Lock()
        self._shown: list[Seen] = []
        self._ends: dict[int, int] = {}

    def note(self, partition: int, offset: int, value: bytes) -> None:
        """Add a record."""
        with self._lock:
            self._shown.append(seen(partition, offset, value))
            self._ends[partition] = offset

    def shown(self) -> list[Seen]:
        """Return a copy."""
        with self._lock:
            return list(self._shown)

    def lacks(self, ends: dict[int, int]) -> bool:
        """Return whether a record at one of these offsets (partition -> offset), or behind it, was not shown yet."""
        with self._lock:
            return any(self._ends.get(partition, -1) < end for partition, end in ends.items())


def judge_sightings(reader: str, shown: Sequence[Seen], final: Iterable[Seen]) -> list[str]:
    """Return what is wrong with what a reader was shown, given all that is there in the end (INV-SGT1)."""
    lines: dict[int, list[Seen]] = defaultdict(list)
    for record in shown:
        lines[record.partition].append(record)
    disorder = [
        f"{after} after {before}"
        for line in lines.values()
        for before, after in pairwise(line)
        if after.offset <= before.offset
    ]
    there = set(final)
    gone = [str(record) for record in sorted(set(shown) - there)]
    missed = [str(record) for record in sorted(there - set(shown))]
    return [
        *few(f"{reader} was shown out of order, or twice", disorder),
        *few(f"taken back from {reader}", gone),
        *few(f"never shown to {reader}", missed),
    ]
