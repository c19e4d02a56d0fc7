"""Which tidemarks were behind us when a transaction began in a log: it is no part of what those hold (INV-WC5).

INV-RBF1  a question costs what was reached since the one before, or since the last full record where that is less, not all that lies between two full records, nor what a mirror that is
          behind has not reached yet: it is asked on the event loop, at each tidemark, for what began shortly before
Not here: what follows from it (`geo_replicator.whole_cut`), reading `__tidemarks` (`geo_replicator.reading`).
"""

from collections import deque
from typing import Final

from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.ports import ReachedStore
from geo_replicator.reading import TidemarkRecords, full_at_or_below, tidemark_without_lack
from geo_replicator.tidemark import Tidemark, TidemarkError, decode
from geo_replicator.tidemark_writer import FULL_EVERY_RECORDS
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import NO_ROUND
from idempotency.identity import Round
from idempotency.pieces import drained

_KEPT_MAX: Final = 4_096
POSITIONS_MAX: Final = 20_000
"""How many positions the tidemarks have that are remembered, some 4 MB; each counts as one position more."""


class RoundsBefore:
    """Looks for tidemarks up to the one that was reached last; remembers what it has found."""

    def __init__(
        self, records: TidemarkRecords, ledgers: LedgerTopics, reached: ReachedStore
    ) -> None:
        """Nothing was asked yet."""
        self._records, self._ledgers, self._reached = records, ledgers, reached
        # Asked at each tidemark for all that is open and in doubt. A round that was right stays right: what it holds began below.
        self._found: dict[tuple[LogKey, int], Round] = {}
        self._recent: deque[tuple[int, Tidemark]] = deque()
        """Tidemarks that were reached, each with its offset, without a gap, the newest one last."""
        self._positions = 0

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
        reached = self._reached.point
        self._read_up_to(reached)
        found = self._among_recent(key, offset) or self._further_back(key, offset, reached)
        return NO_ROUND if found is None else found.round

    def _read_up_to(self, reached: TidemarkPoint) -> None:
        """Remember what was reached since the question before (INV-RBF1)."""
        start: int | None = self._recent[-1][0] + 1 if self._is_near(reached) else None
        if start is None:
            self._recent.clear()
            self._positions = 0
            start = full_at_or_below(self._records, reached)
        if start is None:
            return
        for at, key, value in self._records.tidemark_records(start):
            record = decode(key, value)
            if isinstance(record, Tidemark):
                if record.point > reached:
                    return
                self._remember(at, record)

    def _remember(self, at: int, tidemark: Tidemark) -> None:
        self._recent.append((at, tidemark))
        self._positions += 1 + len(tidemark.moved)
        while self._positions > POSITIONS_MAX and len(self._recent) > 1:
            self._positions -= 1 + len(self._recent.popleft()[1].moved)

    def _is_near(self, reached: TidemarkPoint) -> bool:
        """Return whether less was reached since than lies behind a full record: it may be a day's, once a log is whole again."""
        if not self._is_still_so(reached):
            return False
        return reached.number - self._recent[-1][1].number <= FULL_EVERY_RECORDS

    def _is_still_so(self, reached: TidemarkPoint) -> bool:
        """Return whether what is remembered was reached, and is there: a takeover may have cut it off since."""
        if not self._recent:
            return False
        at, newest = self._recent[-1]
        if newest.point > reached:
            return False
        there = next(iter(self._records.tidemark_records(at)), None)
        return there is not None and there[0] == at and decode(*there[1:]) == newest

    def _among_recent(self, key: LogKey, offset: int) -> Tidemark | None:
        """Return it where it is remembered; None where it is older, or the log is a ledger, or nobody can say."""
        if not self._ledgers.has_cut_offset(key):
            return None
        found: Tidemark | None = None
        for _, tidemark in reversed(self._recent):
            found = found or tidemark
            if key in tidemark.removed:
                return found
            position = tidemark.moved.get(key)
            if position is None:
                if tidemark.full:
                    return found  # it was not there yet
                continue
            if position.cut_offset <= offset:
                return found
            found = None
        return None

    def _further_back(self, key: LogKey, offset: int, reached: TidemarkPoint) -> Tidemark | None:
        def began_below(log: LogKey, position: int) -> bool:
            return log == key and position > offset

        return drained(tidemark_without_lack(self._records, self._ledgers, reached, began_below))
