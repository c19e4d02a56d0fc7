"""Where read-committed readers of a mirror end: what is to be shown next, and what of it a start shows again (T16, T17).

INV-WE1  what is kept beside a reached tidemark says for every log where its whole cut ended there: nothing is guessed
         again after a start

Only logs that end below their D at that tidemark are named, so where nothing is open nothing is written.
Not here: the ends themselves (`geo_replicator.whole_cut`), the file (`region_broker.region.tidemarks.reached_store`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Final

from geo_replicator.lineage import LogKey


class Unlisted(IntEnum):
    """Where logs end that are not named; the numbers are on disk."""

    AT_CUT = 0
    """At their D of the tidemark."""
    NOWHERE = 1
    """Nothing is known to be whole: a region that has acted, or whose bytes were lost."""
    AS_FORGOTTEN = 2
    """An older version kept no ends. It forgot what it had shown, and nothing else, while it mirrored."""


@dataclass(frozen=True, slots=True)
class WholeEnds:
    """The ends of the whole cut at one tidemark."""

    unlisted: Unlisted
    listed: Mapping[LogKey, int] = field(default_factory=dict)

    def end_of(self, key: LogKey, cut_offset: int, forgotten_below: int) -> int:
        """Return the end of a log whose D is `cut_offset`, and which forgot transactions below `forgotten_below`."""
        end = self.listed.get(key)
        if end is not None:
            return end
        if self.unlisted is Unlisted.AT_CUT:
            return cut_offset
        return forgotten_below if self.unlisted is Unlisted.AS_FORGOTTEN else 0


NOTHING_WHOLE: Final = WholeEnds(Unlisted.NOWHERE)
AS_FORGOTTEN: Final = WholeEnds(Unlisted.AS_FORGOTTEN)


@dataclass(frozen=True, slots=True)
class View:
    """What a mirror's readers are to see next; it is shown once `whole` is durable.

    `cuts` is D of each log, `ends` its whole end. `again_ms`: look again then, because something waits; 0: no need.
    """

    cuts: Mapping[LogKey, int]
    ends: Mapping[LogKey, int]
    whole: WholeEnds
    again_ms: int
