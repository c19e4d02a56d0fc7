"""Who acted from which cut: claims, void tidemarks, and where a log must be cut (T20, T23, T25).

INV-LN1  entries are ordered by region epoch, and no two share one (T19)
INV-LN2  a point of an older epoch beyond a later base is void for ever: never claimable, never reachable
INV-LN3  a region several epochs behind cuts to the lowest base since, of the entries that are in force (T23)
INV-LN4  an entry is passed over, and makes nothing void any more, where a later one that is in force acts from a point that
         it had made void: it never acted, or what it did is void, too (T25)

Points compare by (region_epoch, number) and by nothing else. Positions are keyed by topic id, because a
topic that was deleted and created again is another topic.
Not here: where entries are stored (the metadata image, the failover journal), nor any log.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias, TypeVar

from idempotency import identity
from idempotency.identity import RegionEpoch

LogKey: TypeAlias = identity.LogKey
"""One partition log in any region."""


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

    @property
    def base_region_epoch(self) -> RegionEpoch:
        """Return under which region epoch the base was published."""
        return self.base.region_epoch

    @property
    def base_number(self) -> int:
        """Return which tidemark of that epoch it is."""
        return self.base.number


@dataclass(frozen=True, slots=True)
class Lineage:
    """The entries of one domain, oldest first."""

    entries: tuple[LineageEntry, ...] = ()

    def __post_init__(self) -> None:
        """Check INV-LN1."""
        epochs = [entry.region_epoch for entry in self.entries]
        assert epochs == sorted(set(epochs)), f"INV-LN1: {epochs}"

    def since(self, region_epoch: RegionEpoch) -> tuple[LineageEntry, ...]:
        """Return the entries that a region which followed `region_epoch` has not seen, those passed over as well."""
        return tuple(entry for entry in self.entries if entry.region_epoch > region_epoch)

    def in_force_since(self, region_epoch: RegionEpoch) -> tuple[LineageEntry, ...]:
        """Return the entries later than `region_epoch` by which a point of it may be void (INV-LN4)."""
        return in_force(self.since(region_epoch))

    def is_void(self, point: TidemarkPoint) -> bool:
        """Return True where a later region acts from a base before `point` (INV-LN2)."""
        return any(point > entry.base for entry in self.in_force_since(point.region_epoch))

    def fallback_of(self, point: TidemarkPoint) -> Cut:
        """Return what is left of `point`, which is void: the lowest base since, of its own history, too (T25).

        1. A region acts, and publishes `point`. 2. It is passed over: another one acts from a tidemark beyond its base.
        3. Both hold the same up to that base only, and not up to the other one's.
        """
        assert self.is_void(point), f"INV-LN2: {point} stands"
        cut = Cut(point)
        while self.is_void(cut.point):
            region_epoch = cut.point.region_epoch
            entries = (*self._passed_over_up_to(region_epoch), *self.in_force_since(region_epoch))
            cut = lowest_base(entries)
        assert cut.point < point, f"INV-LN3: {cut.point} is not below {point}"
        return cut

    def _passed_over_up_to(self, region_epoch: RegionEpoch) -> tuple[LineageEntry, ...]:
        """Return the entries that were in force when `region_epoch` was the newest, and are not any more."""
        then = in_force([entry for entry in self.entries if entry.region_epoch <= region_epoch])
        now = in_force(self.entries)
        return tuple(entry for entry in then if entry not in now)

    def was_passed_over(self, region_epoch: RegionEpoch) -> bool:
        """Return whether a later takeover passed over that under `region_epoch`: what it cut off may be there again (INV-LN4)."""
        over = self._passed_over_up_to(region_epoch)
        return any(entry.region_epoch == region_epoch for entry in over)

    def held_of(self, region_epoch: RegionEpoch) -> Cut | None:
        """Return up to where the histories since hold what was written under `region_epoch`; None if none began since."""
        later = self.in_force_since(region_epoch)
        return lowest_base(later) if later else None

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


class Based(Beginning, Protocol):
    """A lineage entry that says from which point its region acts."""

    @property
    def base_region_epoch(self) -> RegionEpoch:
        """Return under which region epoch the base was published."""
        ...

    @property
    def base_number(self) -> int:
        """Return which tidemark of that epoch it is."""
        ...


_Entry = TypeVar("_Entry", bound=Based)


def in_force(entries: Sequence[_Entry]) -> tuple[_Entry, ...]:
    """Return the entries that no later one has passed over, oldest first (INV-LN4).

    `entries`: oldest first, all since some region epoch. The newest is in force.

    1. A region writes down that it takes over, and dies before it acts. 2. Another one, which never heard of that, acts
    from a later tidemark. 3. The first one returns, and whoever hears of both keeps both: what the first one's base would
    have cut off is there, and was shown.
    """
    found: list[_Entry] = []
    for entry in reversed(entries):
        assert not found or entry.region_epoch < found[-1].region_epoch, "INV-LN1: oldest first"
        if not any(_passes_over(later, entry) for later in found):
            found.append(entry)
    found.reverse()
    return tuple(found)


def _passes_over(later: Based, entry: Based) -> bool:
    base, point = _base_of(entry), _base_of(later)
    return base < point and point.region_epoch < entry.region_epoch


def _base_of(entry: Based) -> TidemarkPoint:
    return TidemarkPoint(entry.base_region_epoch, entry.base_number)


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
    """Return the cut that `entries`, all unseen so far and to be cut for, demand of a log (INV-LN3).

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
