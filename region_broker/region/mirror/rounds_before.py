"""Which tidemarks were behind us when a transaction began in a log: it is no part of what those hold (INV-WC5).

Not here: what follows from it (`geo_replicator.whole_cut`), reading `__tidemarks` (`geo_replicator.reading`).
"""

from typing import Final

from geo_replicator.lineage import BEFORE_ALL, LogKey
from geo_replicator.ports import ReachedStore
from geo_replicator.reading import TidemarkRecords, point_without_lack, read_book
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import NO_ROUND
from idempotency.identity import Round
from idempotency.pieces import drained

_KEPT_MAX: Final = 4_096


class RoundsBefore:
    """Looks for tidemarks up to the one that was reached last; remembers what it has found."""

    def __init__(
        self, records: TidemarkRecords, ledgers: LedgerTopics, reached: ReachedStore
    ) -> None:
        """Nothing was asked yet."""
        self._records, self._ledgers, self._reached = records, ledgers, reached
        # Asked at each tidemark for all that is open and in doubt. A round that was right stays right: what it holds began below.
        self._found: dict[tuple[LogKey, int], Round] = {}

    def round_before(self, key: LogKey, offset: int) -> Round:
        """Return the round of the newest tidemark reached whose D of log `key` is at or below `offset`, `NO_ROUND` without one.

        Nor is there one where `__tidemarks` cannot be read: why that is, the node's tidemark check says.
        """
        known = self._found.get((key, offset))
        if known is not None:
            return known
        try:
            found = self._look(key, offset)
        except TidemarkError:
            return NO_ROUND
        if len(self._found) >= _KEPT_MAX:
            self._found.clear()
        self._found[key, offset] = found
        return found

    def _look(self, key: LogKey, offset: int) -> Round:
        def began_below(log: LogKey, position: int) -> bool:
            return log == key and position > offset

        found = point_without_lack(self._records, self._ledgers, self._reached.point, began_below)
        point = drained(found)
        if point == BEFORE_ALL:
            return NO_ROUND
        vector = read_book(self._records, self._ledgers, point).book.vector(point)
        return NO_ROUND if vector is None else vector.newest.round
