"""Who acted from which cut: claims, void tidemarks, and where a log must be cut (T20, T23, T25).

INV-LN1  entries are ordered by region epoch, and no two share one (T19)
INV-LN2  a point of an older epoch beyond a later base is void for ever: never claimable, never reachable
INV-LN3  a region several epochs behind cuts to the lowest base since (T23)

Points compare by (region_epoch, number) and by nothing else. Positions are keyed by topic id, because a
topic that was deleted and created again is another topic.
Not here: where entries are stored (the metadata image, the failover journal), nor any log.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol
from uuid import UUID

from idempotency.identity import RegionEpoch


class LogKey(NamedTuple):
    """One partition log in any region: topic id and partition number."""

    topic_id: UUID
    partition: int

    def encode(self) -> str:
        """Return ``topic_id-hex/partition``: the key used in lineage entries and on disk."""
        return f"{self.topic_id.hex}/{self.partition}"

    @classmethod
    def decode(cls, text: str) -> "LogKey":
        """Parse what `encode` wrote; raises ValueError on anything else."""
        topic_id_hex, _, partition = text.partition("/")
        return cls(UUID(hex=topic_id_hex), int(partition))


class TidemarkPoint(NamedTuple):
    """One tidemark: `number` k, dense within the epochs of one lineage, and who published it."""

    region_epoch: RegionEpoch
    number: int

    def __str__(self) -> str:
        """Return what an operator reads."""
        return f"tidemark {self.number} of region epoch {self.region_epoch}"


BEFORE_ALL: Final = TidemarkPoint(RegionEpoch(0), 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """A tidemark with its positions: the first offset of each log that it does not hold.

    D for data and groups, L for the transaction ledger, one past record k for `__tidemarks`.
    `published_wall_ms` is the primary's wall clock at publication.
    """

    point: TidemarkPoint
    positions: Mapping[LogKey, int] = field(default_factory=dict)
    published_wall_ms: int = 0

    def position_of(self, key: LogKey) -> int:
        """Return where `key` is cut; 0 for a log younger than the tidemark (T15)."""
        return self.positions.get(key, 0)


EMPTY_CUT: Final = Cut(BEFORE_ALL)


@dataclass(frozen=True, slots=True)
class LineageEntry:
    """Region `acting_region` acts under `region_epoch` from `base` on (T25).

    `positions`: where `base` cuts each log, the first offset that it does not hold; a log that is not named is younger, and
    cut at 0 (T15). `decided_wall_ms`: the taking region's wall clock, for people.
    """

    region_epoch: RegionEpoch
    acting_region: str
    base: TidemarkPoint
    positions: Mapping[LogKey, int] = field(default_factory=dict)
    decided_wall_ms: int = 0


@dataclass(frozen=True, slots=True)
class Lineage:
    """The entries of one domain, oldest first."""

    entries: tuple[LineageEntry, ...] = ()

    def __post_init__(self) -> None:
        """Check INV-LN1."""
        epochs = [entry.region_epoch for entry in self.entries]
        assert epochs == sorted(set(epochs)), f"INV-LN1: {epochs}"

    def since(self, region_epoch: RegionEpoch) -> tuple[LineageEntry, ...]:
        """Return the entries that a region which followed `region_epoch` has not seen."""
        return tuple(entry for entry in self.entries if entry.region_epoch > region_epoch)

    def is_void(self, point: TidemarkPoint) -> bool:
        """Return True where a later region acts from a base before `point` (INV-LN2)."""
        return any(point > entry.base for entry in self.since(point.region_epoch))

    def contradicts(self, other: "Lineage", region_epoch: RegionEpoch) -> bool:
        """Return True where both know who began `region_epoch`, and say it otherwise (T35)."""
        return begun_twice(self.entries, other.entries, region_epoch)

    def greatest_valid(self, claims: Iterable[TidemarkPoint]) -> TidemarkPoint:
        """Return the greatest claim that is not void, `BEFORE_ALL` when none is valid (T24)."""
        return max((claim for claim in claims if not self.is_void(claim)), default=BEFORE_ALL)


NO_LINEAGE: Final = Lineage()


class Beginning(Protocol):
    """A lineage entry, in whichever form it is kept."""

    @property
    def region_epoch(self) -> RegionEpoch:
        """Return the region epoch that begins with it."""
        ...


def begun_twice(
    ours: Iterable[Beginning], theirs: Iterable[Beginning], region_epoch: RegionEpoch
) -> bool:
    """Return True where both know how `region_epoch` began, and know it otherwise (T35).

    1. A region takes over and is followed. 2. It is wound back to a time before that, takes over again while nobody
    is there to tell it of the first time, and takes the same number, from a lower base.
    """
    here = [entry for entry in ours if entry.region_epoch == region_epoch]
    there = [entry for entry in theirs if entry.region_epoch == region_epoch]
    return bool(here and there) and here != there


def lowest_base(entries: Iterable[LineageEntry]) -> Cut:
    """Return the cut that `entries`, all unseen so far, demand of a log (INV-LN3).

    A log that any of them does not name is cut at 0: it is younger than that base (T15).
    """
    unseen = tuple(entries)
    assert unseen, "nothing to follow: ask only for entries that were not seen"
    point = min(entry.base for entry in unseen)
    keys = set(unseen[0].positions)
    for entry in unseen[1:]:
        keys &= set(entry.positions)
    positions = {key: min(entry.positions[key] for entry in unseen) for key in sorted(keys)}
    cut = Cut(point=point, positions=positions, published_wall_ms=unseen[0].decided_wall_ms)
    assert all(cut.point <= entry.base for entry in unseen), (
        f"INV-LN3: {cut.point} is not the lowest"
    )
    return cut
