"""How far a partition may be cleaned (T13): the oldest position that every mirror of the domain has reached.

INV-CBO1 in the primary region nothing is superseded, and no tombstone dropped, by a record at or above D of a tidemark
         that some mirror has not reached: no takeover cuts below it, and no mirror has still to copy below it
INV-CBO3 a mirror cleans no further than the primary region has, and than what it shows, where it shows anything
INV-CBO5 a copy inside the region is cleaned no further than the log that it is copied from, as the node that leads has said, and than
         what is committed here. It has each record from before that one's cleaner took it, and no other copy takes it away: so whoever leads
         next has no more to read, and its disk no more to hold, than the one before
         1. A node leads for weeks, and cleans the ledger of groups. 2. Its followers keep every commit that there was: their disks fill up,
         and they leave the in-sync set together. 3. Or it dies: the next one reads weeks of commits before it takes the first write.
         It hears how far with the next batch of a log: one that nobody writes to stays as it is, and as large
INV-CBO4 a mirror that has not reported since this node started, or reports less than before, stops all cleaning
Of that cut only what lies below its own last stable offset counts: a transaction that the cut leaves open may yet be
aborted.

One cut is looked at until all have reached it, then the newest is taken: two vectors, however far a mirror lags.
Not here: what is cleaned (`log.cleaning`), when (`partitions.cleaner`).
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final

from geo_replicator.lineage import BEFORE_ALL, Cut, TidemarkPoint
from idempotency.identity import TRANSACTION_LEDGER
from region_broker.partitions.partition import Partition
from region_broker.region.mirror.mirror_log import key_of

NOWHERE: Final = 0


@dataclass(frozen=True, slots=True)
class _Watched:
    """A published cut, and how far it lets each compacted partition be cleaned."""

    point: TidemarkPoint = BEFORE_ALL
    bounds: Mapping[Partition, int] = field(default_factory=dict)


@dataclass(slots=True, kw_only=True)
class CleanBoundParts:
    """What is asked. `published_cut`: None where this region does not act. `reached`: None for a silent mirror."""

    partitions: Callable[[], Iterable[Partition]]
    published_cut: Callable[[], Cut | None]
    mirrors: Callable[[], Iterable[str]]
    reached: Callable[[str], TidemarkPoint | None]
    copied_to: Callable[[Partition], int | None]


class CleanBounds:
    """Answers `bound_of`."""

    def __init__(self, parts: CleanBoundParts) -> None:
        """No cut was looked at yet."""
        self._parts = parts
        self._watched: _Watched | None = None
        self._confirmed = _Watched()

    def bound_of(self, partition: Partition) -> int:
        """Return below which offset the partition may be cleaned; `NOWHERE` if nowhere."""
        if partition.trimming.is_copy:
            return min(partition.writer.cleaned_at_primary, partition.high_watermark)
        if not partition.is_leader:
            # The primary cleans below a cut that this mirror has reached, or copied holes up to (`Frontier.seeded`):
            # it is never cut below. No reader is shown decisions, so there what is durable takes the place of what is
            # shown.
            unread = partition.tp.topic == TRANSACTION_LEDGER
            here = partition.high_watermark if unread else partition.sight.last_stable_offset
            return min(partition.writer.cleaned_at_primary, here)
        mirrors = list(self._parts.mirrors())
        if not mirrors:
            return partition.sight.last_stable_offset
        self._look(mirrors)
        if not self._all_reached(mirrors, self._confirmed.point):
            return NOWHERE
        bound = self._confirmed.bounds.get(partition, NOWHERE)
        copied_to = self._parts.copied_to(partition)
        return bound if copied_to is None else min(bound, copied_to)

    def _look(self, mirrors: Iterable[str]) -> None:
        cut = self._parts.published_cut()
        if cut is None:
            self._watched, self._confirmed = None, _Watched()
            return
        if self._watched is not None and self._all_reached(mirrors, self._watched.point):
            self._confirmed, self._watched = self._watched, None
        if self._watched is None and cut.point > self._confirmed.point:
            self._watched = _Watched(cut.point, self._bounds(cut))

    def _bounds(self, cut: Cut) -> dict[Partition, int]:
        bounds: dict[Partition, int] = {}
        for partition in self._parts.partitions():
            if not partition.log.config.compacts or partition.failed is not None:
                continue
            cut_offset = cut.position_of(key_of(partition))
            if cut_offset >= partition.state.forgotten_below:
                bounds[partition] = partition.state.last_stable_offset(cut_offset)
            else:  # it knows no more which transactions were open there
                bounds[partition] = self._confirmed.bounds.get(partition, NOWHERE)
        return bounds

    def _all_reached(self, mirrors: Iterable[str], point: TidemarkPoint) -> bool:
        for mirror in mirrors:
            reached = self._parts.reached(mirror)
            if reached is None or reached < point:
                return False
        return True
