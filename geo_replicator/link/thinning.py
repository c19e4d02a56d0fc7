"""How many of the tidemarks before a mirror it keeps to reach: what it keeps of them takes bounded memory.

INV-THN1  tidemarks that are not reached take memory for `POSITIONS_MAX` positions, or for some `KEPT_MIN` of all logs where that is
          more, however many there are; and so do the steps that go through them
INV-THN2  what is kept stays so until twice as many tidemarks lie before the mirror, and it lies no more than so many apart: a mirror that
          is behind all the time reaches one after the other nevertheless
INV-THN3  never passed by are the newest tidemark, which is the final one of a planned switch (T18), and what somebody waits for by its
          number: a claim that is copied from a donor (T24), and what was reached before its bytes were lost (INV-LD5)

Each tidemark is a whole cut, so a mirror need not show every one. 1. One log waits at the mirror, or it was away for a day. 2. The primary
publishes up to 50 tidemarks a second, and all of them are read: a later one may say that the log was deleted (INV-FR5). 3. Each was kept
with all that moved: 10 to 70 GB a day. Now every n-th is kept, by its number, so that regions keep the same ones.

INV-THN3: 1. A candidate copies from a donor, which has reached number 1,000, and has copied later ones, without all logs of them. 2. The
candidate passes 1,000 by for 1,024. 3. That one never comes, and the takeover is given up, though all of 1,000 is here.

Not here: what passing by does (`geo_replicator.frontier`, `geo_replicator.tidemark`).
"""

from typing import Final

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.tidemark import TidemarkBook

POSITIONS_MAX: Final = 25_000
"""How many positions are kept before any tidemark is passed by, some 5 MB, and 30 ms of CPU to go through."""
KEPT_MIN: Final = 8
"""So many tidemarks are kept whatever they take: were there only the newest, it would move on before it is reached."""


class Thinning:
    """Thins out what one book and one frontier keep, which are fed alike."""

    def __init__(self, book: TidemarkBook, frontier: Frontier) -> None:
        """Keep every tidemark."""
        self._book, self._frontier = book, frontier
        self._stride = 1
        self._due_at = POSITIONS_MAX

    def look(self, wanted: tuple[TidemarkPoint, ...]) -> None:
        """Pass tidemarks by where too much is kept, `wanted` on no account."""
        if self._book.cost_above <= POSITIONS_MAX:
            self._due_at = POSITIONS_MAX
        if self._book.cost_above <= self._due_at:
            return
        self._stride = max(1, self._stride // 2)  # less may lie before the mirror than last time
        self._pass_by(wanted)
        while (
            self._book.cost_above > POSITIONS_MAX // 2 and self._frontier.pending_count > KEPT_MIN
        ):
            self._stride *= 2
            self._pass_by(wanted)
        # Where that few take more: not at each tidemark anew.
        self._due_at = max(POSITIONS_MAX, 2 * self._book.cost_above)

    def _pass_by(self, wanted: tuple[TidemarkPoint, ...]) -> None:
        kept = self._frontier.pass_by(self._stride, wanted)
        self._book.pass_by(kept | {self._frontier.complete, *wanted})
