"""Where each round begins in a partition: the first COMMIT marker of a round (T7).

INV-C1  `first_commit_marker(r)` is the first COMMIT marker of the log whose stamp is >= r: a fixed
        point once it exists, because any later marker lies behind it.
INV-C2  Only a marker whose stamp is greater than all before it can be the first of any query, so both
        columns of the index rise strictly and one marker per round is the most it holds. Stamps of
        different ledger shards may arrive out of order; the lower one is never an answer.
INV-C3  A function of the log alone, apart from `prune`.

Not here: what the position D means (geo_replicator.tidemark).
"""

from bisect import bisect_left
from typing import Final

from idempotency.identity import Round


class CutIndex:
    """Record highs of commit stamps with their offsets, both strictly rising."""

    __slots__ = ("_offsets", "_stamps")

    def __init__(self, entries: list[tuple[Round, int]] | None = None) -> None:
        """Start empty or with (stamp, offset) pairs of a snapshot, in rising order."""
        pairs: Final = entries or []
        self._stamps = [stamp for stamp, _ in pairs]
        self._offsets = [offset for _, offset in pairs]

    def record(self, stamp: Round, offset: int) -> None:
        """Note the COMMIT marker at `offset`, decided in round `stamp`."""
        if self._stamps and stamp <= self._stamps[-1]:
            return
        assert not self._offsets or offset > self._offsets[-1], (
            f"INV-C2: {offset}, {self._offsets[-1]}"
        )
        self._stamps.append(stamp)
        self._offsets.append(offset)

    def first_commit_marker(self, stamp_at_least: Round) -> int | None:
        """Return the offset of the first COMMIT marker with stamp >= `stamp_at_least`."""
        at = bisect_left(self._stamps, stamp_at_least)
        return self._offsets[at] if at < len(self._offsets) else None

    def prune(self, below_stamp: Round) -> None:
        """Forget what only queries for rounds below `below_stamp` could ask for."""
        at = bisect_left(self._stamps, below_stamp)
        # The highest stamp stays: it tells that a late marker of a lower round is no record high.
        keep_from = min(at, max(len(self._stamps) - 1, 0))
        del self._stamps[:keep_from]
        del self._offsets[:keep_from]

    def entries(self) -> list[tuple[Round, int]]:
        """Return the (stamp, offset) pairs in rising order, for the snapshot."""
        return list(zip(self._stamps, self._offsets, strict=True))
