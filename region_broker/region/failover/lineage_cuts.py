"""Cutting the logs of one node by the lineage that its metadata have, before it follows or leads (INV-LSH4).

INV-LNC1 what is void is told by the region epochs that batches carry: all of an epoch that was passed over (INV-LN4), and of older ones
         than an entry in force what lies beyond its base. Nothing else is cut: a log that an entry does not name is left alone by it
INV-LNC2 each tail is filed under the first entry that voids it, as a region that returns files it (INV-LO3)
INV-LNC3 doing it again changes nothing, and nothing is remembered: what is left holds no void record (T20, INV-LS2)

A log that has stopped, or stops meanwhile, is left as it is, and is cut when it can be read again (INV-LS4). A quarantine without room is
said, and tried again (INV-FS4). Where the failover machine cuts the same logs, whichever comes second finds nothing to do.
Not here: how a log is cut (`log_surgery`), where entries come from (`failover.steps.effects`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

from crc32c import crc32c

from geo_replicator.lineage import Lineage, LineageEntry, LogKey, in_force, lowest_base
from geo_replicator.quarantine import LogCut, Provenance
from idempotency import fencing
from idempotency.identity import LeaderEpoch, RegionEpoch
from idempotency.ports import Clock
from region_broker.region.failover.log_surgery import (
    CutReason,
    cut_log,
    extent_of,
    key_of,
    tell_cut,
)
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.side_by_side import LogWork, side_by_side
from region_broker.region.ports import RegionLog
from region_broker.wire.cooperative_yield import CooperativeYield

AGAIN_MS: Final = 1_000
_log: Final = logging.getLogger("tidemark.failover")


@dataclass(frozen=True, slots=True)
class LoggedEpochs:
    """Which epochs a log has where. `end_of_older` returns where the records of leader epochs below one end."""

    key: LogKey
    kept_from: int
    end_offset: int
    end_of_older: Callable[[LeaderEpoch], int]

    @classmethod
    def of(cls, log: RegionLog) -> "LoggedEpochs":
        """Return those of a partition."""
        return cls(key_of(log), log.kept_from, log.log_end_offset, log.end_of_older)

    def start_of(self, region_epoch: RegionEpoch) -> int:
        """Return where records of `region_epoch` and later ones begin, the end if there are none."""
        end = self.end_of_older(fencing.leader_epoch(region_epoch, 0))
        return min(max(end, self.kept_from), self.end_offset)


class LineageCut(NamedTuple):
    """`entry` voids what a log holds from `position` on; `lacks`: it starts above where that entry cuts it."""

    entry: LineageEntry
    position: int
    lacks: bool


class Voiding(NamedTuple):
    """An entry in force, and the older region epochs that were passed over: what both void goes under its name."""

    entry: LineageEntry
    passed_over: tuple[RegionEpoch, ...]


def voiding_of(lineage: Lineage) -> tuple[Voiding, ...]:
    """Return what a lineage voids, oldest first: the same for every log, so it is asked once for all of them."""
    standing = in_force(lineage.entries)
    passed_over = [entry.region_epoch for entry in lineage.entries if entry not in standing]
    return tuple(
        Voiding(entry, tuple(epoch for epoch in passed_over if epoch < entry.region_epoch))
        for entry in standing
    )


def next_cut(log: LoggedEpochs, voiding: Iterable[Voiding]) -> LineageCut | None:
    """Return what the oldest entry that voids something of a log voids; None where nothing is void (INV-LNC1)."""
    for entry, older in voiding:
        found = list(_voided_by(log, entry, older))
        if found:
            return min(found, key=lambda cut: (cut.position, not cut.lacks))
    return None


def _voided_by(
    log: LoggedEpochs, entry: LineageEntry, passed_over: Iterable[RegionEpoch]
) -> Iterator[LineageCut]:
    base = entry.positions.get(log.key)
    position = max(log.kept_from, base or 0)
    if base is not None and log.start_of(entry.region_epoch) > position:
        yield LineageCut(entry, position, base < log.kept_from)
    for epoch in passed_over:
        first = log.start_of(epoch)
        if first < log.start_of(RegionEpoch(epoch + 1)):
            yield LineageCut(entry, first, lacks=False)


def digest_of(lineage: Lineage) -> int:
    """Return a number that two lineages share if they cut alike: nodes compare it before one copies from the other."""
    named = [
        f"{entry.region_epoch} {entry.acting_region} {entry.base}" for entry in lineage.entries
    ]
    return crc32c("\n".join(named).encode())


async def cut_by_lineage(
    logs: Iterable[RegionLog],
    lineage: Lineage,
    reason: Callable[[LineageEntry], CutReason],
    quarantine: QuarantineStore,
) -> list[Provenance]:
    """Cut off, into quarantine, all that is void; return what was moved. Raises OSError: running it again goes on (INV-LNC3)."""
    voiding, yielding, works = voiding_of(lineage), CooperativeYield(), []
    for log in sorted(logs, key=key_of):
        await yielding.row()
        if log.failed is None and next_cut(LoggedEpochs.of(log), voiding) is not None:
            run = partial(_cut_what_is_void, log, voiding, reason, quarantine)
            works.append(LogWork(f"{log.tp} is not cut", run))
    return [tail for moved in await side_by_side(works) for tail in moved]


async def _cut_what_is_void(
    log: RegionLog,
    voiding: Iterable[Voiding],
    reason: Callable[[LineageEntry], CutReason],
    quarantine: QuarantineStore,
) -> list[Provenance]:
    moved = []
    while log.failed is None:
        found = next_cut(LoggedEpochs.of(log), voiding)
        if found is None:
            break
        step = LogCut(extent_of(log), found.position, found.lacks)
        cut = lowest_base((found.entry,))
        kept = await cut_log(log, step, cut, reason(found.entry), quarantine)
        if kept is not None:
            moved.append(kept)
        await asyncio.sleep(0)
    return moved


@dataclass(frozen=True, slots=True, kw_only=True)
class LineageCutParts:
    """What they are joined with. `lineage` of the metadata as they are known here."""

    region: str
    domain: str
    logs: Callable[[], Iterable[RegionLog]]
    lineage: Callable[[], Lineage]
    quarantine: QuarantineStore
    clock: Clock
    aside_uncut: Callable[[], Sequence[str]] = tuple
    """The logs that were put aside before they were cut."""


class LineageCuts:
    """Of one node; `run` before it follows or leads."""

    def __init__(self, parts: LineageCutParts) -> None:
        """Nothing is cut yet."""
        self._parts = parts
        self.digest = 0
        """`digest_of` the lineage that all logs were cut by last."""

    @property
    def digest_of_all(self) -> int:
        """Return `digest`, 0 while a log has stopped, or was put aside uncut: what is void in it is in no quarantine (INV-TLC3, INV-TLC7)."""
        has_stopped = any(log.failed is not None for log in self._parts.logs())
        return 0 if has_stopped or self._parts.aside_uncut() else self.digest

    def owes(self, log: RegionLog) -> bool:
        """Return whether a log that can be read holds what the lineage voids."""
        return log.failed is None and self._is_void(log)

    def _is_void(self, log: RegionLog) -> bool:
        return next_cut(LoggedEpochs.of(log), voiding_of(self._parts.lineage())) is not None

    def may_owe(self, log: RegionLog, *, is_known: bool) -> bool:
        """Return whether a log that has stopped may hold what the lineage voids; `is_known`: whether it was opened."""
        if not is_known:
            return bool(self._parts.lineage().entries)
        return self._is_void(log)

    async def run(self) -> None:
        """Return once nothing is void here by the lineage of the moment; may be cancelled at any time."""
        while True:
            try:
                lineage = await self.once()
            except OSError as error:
                _log.error("logs of this node are to be cut, and wait for their quarantine: %s", error)  # fmt: skip
                await self._parts.clock.sleep_ms(AGAIN_MS)
                continue
            if self._parts.lineage() == lineage:
                return

    async def once(self) -> Lineage:
        """Cut by the lineage of the moment, and return it. Raises OSError: the quarantine has no room."""
        parts, lineage = self._parts, self._parts.lineage()
        for tail in await cut_by_lineage(parts.logs(), lineage, self._reason, parts.quarantine):
            tell_cut(tail)
        self.digest = digest_of(lineage)
        return lineage

    def _reason(self, entry: LineageEntry) -> CutReason:
        newest = self._parts.lineage().entries[-1]
        return CutReason(
            domain=self._parts.domain,
            lineage_epoch=entry.region_epoch,
            region=self._parts.region,
            region_epoch=newest.region_epoch,
            acting_region=entry.acting_region,
            now_wall_ms=self._parts.clock.wall_ms(),
            acts_now=newest.acting_region,
        )
