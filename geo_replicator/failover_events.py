"""What the journal of a failover holds: one record for each thing that happened, and nothing else.

INV-FA6  a record says what was decided or done, with all that the fold needs: no clock and no peer is asked at replay

Not here: when a record is legal, and what follows (`failover`).
"""

from collections.abc import Iterable

import msgspec

from geo_replicator.folder_life import Birth
from geo_replicator.lineage import LineageEntry, LogKey, TidemarkPoint
from idempotency.identity import RegionEpoch


class EntryRecord(msgspec.Struct, frozen=True):
    """A lineage entry as the journal and peers carry it; positions keyed ``topic_id-hex/partition``."""

    region_epoch: RegionEpoch
    acting_region: str
    base_region_epoch: RegionEpoch
    base_number: int
    positions: dict[str, int]
    decided_wall_ms: int = 0

    @classmethod
    def of(cls, entry: LineageEntry) -> "EntryRecord":
        """Return the record of `entry`."""
        return cls(
            region_epoch=entry.region_epoch,
            acting_region=entry.acting_region,
            base_region_epoch=entry.base.region_epoch,
            base_number=entry.base.number,
            positions={key.encode(): offset for key, offset in entry.positions.items()},
            decided_wall_ms=entry.decided_wall_ms,
        )

    def entry(self) -> LineageEntry:
        """Return the lineage entry; raises ValueError on a key that is not a log key."""
        return LineageEntry(
            region_epoch=self.region_epoch,
            acting_region=self.acting_region,
            base=TidemarkPoint(self.base_region_epoch, self.base_number),
            positions={LogKey.decode(key): end for key, end in self.positions.items()},
            decided_wall_ms=self.decided_wall_ms,
        )


class Born(msgspec.Struct, frozen=True, tag=True):
    """First record of a journal in a folder with history: what the metadata said when this region first started."""

    region: str
    acting: bool
    region_epoch: RegionEpoch
    folder_id: str = ""


class HistoryJoined(msgspec.Struct, frozen=True, tag=True):
    """First record of a journal in a folder without history: it copies `history` from now on (T32).

    Nothing that `region` may have done in an earlier life is held here.
    """

    region: str
    history: Birth
    folder_id: str = ""


class FolderNamed(msgspec.Struct, frozen=True, tag=True):
    """The folder of an older version got an identity: from here on the journal belongs to it (T36)."""

    folder_id: str


class TakeoverBegun(msgspec.Struct, frozen=True, tag=True):
    """This region wants to act under `region_epoch`, in place of `old_region` (T24).

    `planned`: the old region was drained, and only the tidemark `final` (epoch, number) will do.
    `forced`: the operator's word stands for promises that cannot be had.
    `accepts`: the region whose history the operator gave up, where this one takes over from itself (T33).
    `accepts_behind`: what other regions have reached beyond this one is given up by the operator's word (T24).
    `gives_up`: the lost logs that the operator gave up by name; what is lost later was not meant (T36).
    `steps`, `started_wall_ms`, `paused_wall_ms`: what its operation had done before, since when, and since when writes were being
    stopped for it, for whoever is asked later; 0 where that is not known. Nothing is decided by them.
    """

    region_epoch: RegionEpoch
    old_region: str
    operation_id: str
    planned: bool
    forced: bool
    final: tuple[RegionEpoch, int] | None = None
    accepts: str = ""
    accepts_behind: bool = False
    gives_up: tuple[str, ...] = ()
    steps: tuple[str, ...] = ()
    started_wall_ms: int = 0
    paused_wall_ms: int = 0


class TakeoverAbandoned(msgspec.Struct, frozen=True, tag=True):
    """This region will never act under the epoch it wanted."""

    reason: str


class CutChosen(msgspec.Struct, frozen=True, tag=True):
    """The base is chosen: from here on there is no way back to the old lineage (T20, T25)."""

    entry: EntryRecord


class LogsCut(msgspec.Struct, frozen=True, tag=True):
    """Every log ends at its position; what lay beyond is in quarantine."""

    region_epoch: RegionEpoch


class Adopted(msgspec.Struct, frozen=True, tag=True):
    """Ledgers loaded, orphans aborted, groups clamped, first tidemark published (T21): writes open."""

    region_epoch: RegionEpoch
    wall_ms: int = 0


class TakeoverDone(msgspec.Struct, frozen=True):
    """The last takeover that this region acted by, and when: for people."""

    takeover: TakeoverBegun
    acted_wall_ms: int


class HistoryRefuted(msgspec.Struct, frozen=True, tag=True):
    """`region` has shown a tidemark of this region's own epoch that this one does not hold: writes close (T33)."""

    region: str
    region_epoch: RegionEpoch
    number: int
    log_count: int
    reason: str
    lost_here: bool = False
    """The logs are named by this region's own manifest and are gone: there is no end of its own to act on (T36)."""


class DrainBegun(msgspec.Struct, frozen=True, tag=True):
    """New writes are refused, retriably, so that `to_region` can take over with nothing lost."""

    operation_id: str
    to_region: str


class DrainRolledBack(msgspec.Struct, frozen=True, tag=True):
    """The takeover did not come: writes open again."""

    reason: str


class PromiseGiven(msgspec.Struct, frozen=True, tag=True):
    """`candidate` may act under `region_epoch`; nothing older is acted on here (T24)."""

    region_epoch: RegionEpoch
    candidate: str = msgspec.field(name="taker")


class HigherEpochLearned(msgspec.Struct, frozen=True, tag=True):
    """A peer proved that another region acts: this one fences itself at once."""

    region_epoch: RegionEpoch
    acting_region: str


class FollowResumed(msgspec.Struct, frozen=True, tag=True):
    """Nothing new: `acting_region` still acts under this region's own epoch, and no promise stands.

    `abandoned_epoch`: whom this region promised the highest epoch has given up all epochs up to this one (T24).
    """

    acting_region: str
    abandoned_epoch: RegionEpoch = RegionEpoch(0)


class ReturnBegun(msgspec.Struct, frozen=True, tag=True):
    """The lineage entries that this region has not followed yet are known (T23, T31)."""

    entries: tuple[EntryRecord, ...]


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Every log was cut back to the base: this region mirrors under `region_epoch`."""

    region_epoch: RegionEpoch


Event = (
    Born
    | HistoryJoined
    | FolderNamed
    | TakeoverBegun
    | TakeoverAbandoned
    | CutChosen
    | LogsCut
    | Adopted
    | HistoryRefuted
    | DrainBegun
    | DrainRolledBack
    | PromiseGiven
    | HigherEpochLearned
    | FollowResumed
    | ReturnBegun
    | Returned
)


def folder_named(events: Iterable[Event]) -> str:
    """Return the id of the folder that a journal belongs to, empty where an older version wrote all of it."""
    named = [e.folder_id for e in events if isinstance(e, Born | HistoryJoined | FolderNamed)]
    return next((folder_id for folder_id in reversed(named) if folder_id), "")
