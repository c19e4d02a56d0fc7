"""A log that is compacted while it is mirrored (T13): one key, tombstones, mirrors that lag, report late and lose a folder.

Real, called at each move: how far each region may clean (`region_broker.region.tidemarks.clean_bounds`), which record of a
key is the newest (`region_broker.log.cleaning.key_map`), what counts as reached of a log with holes
(`geo_replicator.frontier`). Plain: copying, a batch at a time; cleaning, at once; which tombstone is old enough to go, any
that a cleaning has met before.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final, NamedTuple, cast
from uuid import UUID

from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, Cut, LogKey, TidemarkPoint
from geo_replicator.tidemark import LogPosition, Tidemark
from geo_replicator.topology import LedgerTopics
from idempotency.identity import RegionEpoch, Round, TopicName, TopicPartition
from region_broker.log.cleaning.key_map import KeyMap
from region_broker.partitions.partition import Partition
from region_broker.region.tidemarks.clean_bounds import CleanBoundParts, CleanBounds, _Watched
from tests.model.explore import Broken, Move
from tests.model.primary_states import put

EPOCH: Final = RegionEpoch(8)
LEDGERS: Final = LedgerTopics(UUID(int=1), UUID(int=2))
KEY: Final = LogKey(UUID(int=3), 0)
WRITES: Final = (("x", "1"), ("x", "2"), ("x", None), ("y", "1"))
Offsets = tuple[int, ...]


class Copy(NamedTuple):
    """A log: where it ends, which of its records are still there, below which others may be gone."""

    end: int = 0
    kept: Offsets = ()
    holes_below: int = 0
    reached: int = 0


class Watched(NamedTuple):
    """What the primary looks at until all have reached it, and what all have: a tidemark and its bound each."""

    watched: tuple[int, int] | None = None
    confirmed: tuple[int, int] = (0, 0)


class State(NamedTuple):
    """The primary's log and tidemarks, its mirrors, and what it knows of them: reached, and copied to."""

    primary: Copy = Copy()
    cuts: Offsets = ()
    mirrors: tuple[Copy, ...] = ()
    heard: Offsets = ()
    asked: tuple[int | None, ...] = ()
    watched: Watched = Watched()
    losses: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How many of `WRITES`, how many mirrors, and how often one loses its folder."""

    writes: int = 3
    mirrors: int = 1
    losses: int = 0


@dataclass(frozen=True)
class Compaction:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        count = self.size.mirrors
        return State(mirrors=(Copy(),) * count, heard=(0,) * count, asked=(None,) * count)

    def canonical(self, state: State) -> State:
        """Mirrors differ by their names only."""
        if self.size.mirrors < 2:
            return state
        both = sorted(
            zip(state.mirrors, state.heard, state.asked, strict=True),
            key=lambda each: (each[0], each[1], -1 if each[2] is None else each[2]),
        )
        mirrors, heard, asked = zip(*both, strict=True)
        return state._replace(mirrors=mirrors, heard=heard, asked=asked)

    def good(self, state: State) -> bool:
        """All is written, and every mirror has reached it."""
        last = len(state.cuts)
        whole = bool(state.cuts) and state.cuts[-1] == self.size.writes
        return whole and all(mirror.reached == last for mirror in state.mirrors)

    def moves(self, state: State) -> Iterator[Move]:
        primary = state.primary
        if primary.end < self.size.writes:
            after = primary._replace(end=primary.end + 1, kept=(*primary.kept, primary.end))
            yield Move(
                ("{} is written", WRITES[primary.end]), partial(state._replace, primary=after)
            )
        if primary.end > (state.cuts[-1] if state.cuts else 0):
            cuts = (*state.cuts, primary.end)
            yield Move(
                ("the primary publishes {}", primary.end), partial(state._replace, cuts=cuts)
            )
        yield from self._cleaning(state)
        for at, mirror in enumerate(state.mirrors):
            if mirror.end < primary.end:
                yield Move(("mirror {} copies", at), partial(self._copy, state, at))
            complete = self._complete(state.cuts, mirror)
            if complete > mirror.reached:
                reached = _with(state, at, mirror._replace(reached=complete))
                yield Move(("mirror {} reaches {}", at, complete), partial(reached._replace))
            if state.heard[at] != mirror.reached:
                heard = put(state.heard, at, mirror.reached)
                yield Move(("mirror {} reports", at), partial(state._replace, heard=heard))
            if state.losses < self.size.losses and mirror.end:
                lost = _with(state, at, Copy())._replace(losses=state.losses + 1)
                yield Move(("mirror {} loses its folder", at), partial(lost._replace))

    # Copying.

    def _copy(self, state: State, at: int) -> State:
        """Take the next batch; a cleaned log ends with an empty one, so that its offsets are there."""
        mirror, primary = state.mirrors[at], state.primary
        following = [offset for offset in primary.kept if offset >= mirror.end]
        cleaned = primary.holes_below > mirror.end and (
            not following or following[0] >= primary.holes_below
        )
        end = primary.holes_below if cleaned else following[0] + 1
        kept = mirror.kept if cleaned else (*mirror.kept, following[0])
        holes = mirror.holes_below
        if cleaned or following[0] > mirror.end:
            holes = max(holes, primary.holes_below)
        after = _with(state, at, mirror._replace(end=end, kept=kept, holes_below=holes))
        return after._replace(asked=put(state.asked, at, mirror.end))

    def _complete(self, cuts: Offsets, mirror: Copy) -> int:
        counts = "T13 a log with holes counts at once" in self.mutants
        return _complete(cuts, mirror.end, 0 if counts else mirror.holes_below, mirror.reached)

    # Cleaning.

    def _cleaning(self, state: State) -> Iterator[Move]:
        bound, watched = self._bound_at_primary(state)
        looked = state._replace(watched=watched)
        for tombstones in (False, True):
            after = _cleaned(state.primary, bound, tombstones=tombstones)
            if after != state.primary:
                label = ("the primary cleans below {}", bound)
                yield Move(label, partial(looked._replace, primary=after))
        if watched != state.watched:
            yield Move(("the primary looks at its mirrors",), partial(looked._replace))
        for at, mirror in enumerate(state.mirrors):
            shown = state.cuts[mirror.reached - 1] if mirror.reached else 0
            if "T13 a mirror cleans to its end" in self.mutants:
                shown = mirror.end
            limit = _mirror_bound(state.primary.holes_below, shown)
            for tombstones in (False, True):
                after = _cleaned(mirror, limit, tombstones=tombstones)
                if after.kept != mirror.kept:
                    cleaned = _with(state, at, after)
                    yield Move(("mirror {} cleans below {}", at, limit), partial(cleaned._replace))

    def _bound_at_primary(self, state: State) -> tuple[int, Watched]:
        if "T13 the primary cleans to its end" in self.mutants:
            return state.primary.end, state.watched
        heard, asked = state.heard, state.asked
        if "T13 the first mirror counts" in self.mutants:
            heard = (max(heard),) * len(heard)
            asked = (None,) * len(heard)
        return _primary_bound(state.cuts, heard, asked, state.watched)

    # What must hold.

    def check(self, state: State) -> None:
        _check(state.primary, state.primary.end, "the primary")
        for mirror in state.mirrors:
            if mirror.reached:
                end = state.cuts[mirror.reached - 1]
                _check(mirror, end, "a mirror that takes over")
                if not state.losses:  # after a loss it may have to copy the log anew
                    _check(state.primary, end, "the primary, which returns to that cut,")


def _check(copy: Copy, end: int, who: str) -> None:
    truth, seen = _values(range(end)), _values(offset for offset in copy.kept if offset < end)
    if truth != seen:
        raise Broken("another value", f"{who} has {seen} below {end}, and was told {truth}")


def _values(offsets: "range | Iterator[int]") -> dict[str, str]:
    """Return what a reader from the beginning knows of each key."""
    newest = dict(WRITES[offset] for offset in offsets)
    return {key: value for key, value in newest.items() if value is not None}


def _with(state: State, at: int, mirror: Copy) -> State:
    return state._replace(mirrors=put(state.mirrors, at, mirror))


def _cleaned(copy: Copy, bound: int, *, tombstones: bool) -> Copy:
    """Return the log without what a later record below `bound` supersedes; without old tombstones, if asked."""
    newest = KeyMap(10)
    for offset in copy.kept:
        if offset < bound:
            newest.put(WRITES[offset][0].encode(), offset)
    newest.keep(bound)
    kept = tuple(
        offset
        for offset in copy.kept
        if offset >= bound
        or (
            newest.newest(WRITES[offset][0].encode()) <= offset
            and not (tombstones and WRITES[offset][1] is None and offset < copy.holes_below)
        )
    )
    if kept == copy.kept and bound <= copy.holes_below:
        return copy
    return copy._replace(kept=kept, holes_below=max(copy.holes_below, bound))


class _Log:
    """What the bounds ask of a partition that compacts and has nothing open."""

    failed = None
    is_copy = False
    topic_id = KEY.topic_id
    tp = TopicPartition(TopicName("t"), 0)

    def __init__(self, *, is_leader: bool, shown: int = 0, cleaned_at_primary: int = 0) -> None:
        self.is_leader = is_leader
        self.high_watermark = self.last_stable = shown
        self.log = self.config = self.state = self.sight = self.writer = self.trimming = self
        self.compacts = True
        self.forgotten_below = 0
        self.cleaned_at_primary = cleaned_at_primary

    def last_stable_offset(self, bound: int) -> int:
        return bound


class _Shown(_Log):
    @property
    def last_stable_offset(self) -> Any:
        return self.last_stable


@lru_cache(maxsize=65536)
def _mirror_bound(cleaned_at_primary: int, shown: int) -> int:
    log = _Shown(is_leader=False, shown=shown, cleaned_at_primary=cleaned_at_primary)
    return CleanBounds(cast("CleanBoundParts", None)).bound_of(cast("Partition", log))


@lru_cache(maxsize=65536)
def _primary_bound(
    cuts: Offsets, heard: Offsets, asked: tuple[int | None, ...], watched: Watched
) -> tuple[int, Watched]:
    """Return the real bound at the primary, and what it looks at from now on."""
    log = cast("Partition", _Log(is_leader=True))
    names = {str(at): reached for at, reached in enumerate(heard)}
    bounds = CleanBounds(
        CleanBoundParts(
            partitions=lambda: [log],
            published_cut=lambda: Cut(_point(len(cuts)), {KEY: cuts[-1]} if cuts else {}),
            mirrors=lambda: names,
            reached=lambda name: _point(names[name]),
            copied_to=lambda _: min((at for at in asked if at is not None), default=None),
        )
    )
    if watched.watched is not None:
        bounds._watched = _Watched(_point(watched.watched[0]), {log: watched.watched[1]})
    bounds._confirmed = _Watched(_point(watched.confirmed[0]), {log: watched.confirmed[1]})
    bound = bounds.bound_of(log)
    looks = bounds._watched
    return bound, Watched(
        None if looks is None else (looks.point.number, looks.bounds.get(log, 0)),
        (bounds._confirmed.point.number, bounds._confirmed.bounds.get(log, 0)),
    )


def _point(number: int) -> TidemarkPoint:
    return TidemarkPoint(EPOCH, number) if number else BEFORE_ALL


@lru_cache(maxsize=65536)
def _complete(cuts: Offsets, end: int, holes_below: int, reached: int) -> int:
    """Return the tidemark that is complete of those published, all of which the mirror has heard of."""
    frontier = Frontier(LEDGERS, reached=_point(reached))
    frontier.seeded(KEY, holes_below)
    frontier.reconciled([KEY], EPOCH)
    frontier.advanced(KEY, end)
    for number, cut in enumerate(cuts, 1):
        frontier.observe(
            Tidemark(
                domain="main", region_epoch=EPOCH, number=number, round=Round(number),
                metadata_version=1, ledger={}, moved={KEY: LogPosition(cut, 0)},
            )
        )  # fmt: skip
    return frontier.complete.number
