"""Records that are deleted by order at a primary, which is lost, and its mirror (T14): who starts where, and who may.

Real, called at each move: below what a tidemark lets a mirror delete (`geo_replicator.tidemark`), what counts as reached
(`geo_replicator.frontier`), where a returning region's log starts (`geo_replicator.link.core`). Plain: copying, a record at
a time; cutting, at once; bytes, which stay where they are.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Final, NamedTuple
from uuid import UUID

from geo_replicator.effects import TakeBackStarts
from geo_replicator.events import (
    HandshakeDone,
    HistoryShown,
    LinkStarted,
    LogsChecked,
    MirrorLogEnd,
    PrimaryLogEnd,
    RegistryRead,
    TopicsApplied,
)
from geo_replicator.frontier import Frontier
from geo_replicator.lineage import BEFORE_ALL, TidemarkPoint
from geo_replicator.link.core import LinkCore
from geo_replicator.tidemark import LogPosition, Tidemark
from geo_replicator.topology import LedgerTopics, MirrorTopic
from idempotency.identity import LeaderEpoch, RegionEpoch, Round
from tests.model.explore import Broken, Move
from tests.model.primary_states import put

EPOCH: Final = RegionEpoch(8)
LEADER_EPOCH: Final = LeaderEpoch(EPOCH << 16)
LEDGERS: Final = LedgerTopics(UUID(int=1), UUID(int=2))
TOPIC: Final = MirrorTopic(UUID(int=3), "t", 1)
(KEY,) = TOPIC.logs()


class Log(NamedTuple):
    """Where a region's log ends, and where its readers may begin."""

    end: int = 0
    start: int = 0


class State(NamedTuple):
    """Both logs, who acts, its tidemarks and the one that is being closed; what the other one has reached of them.

    `lost`: the other region is gone, and another one acts in its place; `checked`: a link has compared the logs.
    """

    logs: tuple[Log, Log] = (Log(), Log())
    primary: int = 0
    cuts: tuple[LogPosition, ...] = ()
    closing: int = -1
    reached: int = 0
    lost: bool = False
    checked: bool = True
    deletions: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How many records, tidemarks and orders to delete there are."""

    records: int = 3
    tidemarks: int = 2
    deletions: int = 2


@dataclass(frozen=True)
class Deletions:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str] = frozenset()

    def initial(self) -> State:
        return State()

    def canonical(self, state: State) -> State:
        return state

    def good(self, state: State) -> bool:
        """The mirror has reached all, and begins where the primary does."""
        ours, theirs = state.logs[state.primary], state.logs[1 - state.primary]
        done = bool(state.cuts) and state.reached == len(state.cuts)
        return done and not state.lost and state.checked and theirs.start <= ours.start

    def moves(self, state: State) -> Iterator[Move]:
        yield from self._primary(state)
        if state.lost:
            yield Move(("the lost region returns",), partial(_return, state))
        elif not state.checked:
            yield Move(("the link compares",), partial(self._check_link, state))
        else:
            yield from self._mirror(state)
            if state.reached and state.primary == 0:
                yield Move(("the mirror takes over",), partial(_take_over, state))

    def _primary(self, state: State) -> Iterator[Move]:
        log = state.logs[state.primary]
        if log.end < self.size.records:
            written = _with(state, state.primary, log._replace(end=log.end + 1))
            yield Move(("record {} is written", log.end), partial(written._replace))
        if state.deletions < self.size.deletions:
            for offset in range(log.start + 1, log.end + 1):
                deleted = _with(state, state.primary, log._replace(start=offset))
                after = partial(deleted._replace, deletions=state.deletions + 1)
                yield Move(("all below {} is deleted", offset), after)
        if state.closing < 0 and len(state.cuts) < self.size.tidemarks:
            yield Move(
                ("a round is closed at {}", log.end), partial(state._replace, closing=log.end)
            )
        if state.closing >= 0:
            cuts = (*state.cuts, LogPosition(state.closing, log.start))
            yield Move(("it is published",), partial(state._replace, cuts=cuts, closing=-1))

    def _mirror(self, state: State) -> Iterator[Move]:
        at = 1 - state.primary
        mirror, primary = state.logs[at], state.logs[state.primary]
        if mirror.end < primary.end:
            copied = _with(state, at, mirror._replace(end=mirror.end + 1))
            yield Move(("the mirror copies {}", mirror.end), partial(copied._replace))
        complete = _complete(state.cuts, mirror.end, state.reached)
        if complete > state.reached:
            start = max(mirror.start, self._deleted_below(state, complete))
            after = _with(state, at, mirror._replace(start=start))
            yield Move(
                ("the mirror reaches {}", complete), partial(after._replace, reached=complete)
            )

    def _deleted_below(self, state: State, number: int) -> int:
        position = state.cuts[number - 1]
        if "T14 a mirror starts where the primary does" in self.mutants:
            return min(state.logs[state.primary].start, position.cut_offset)
        if "T14 a start above the cut counts" in self.mutants:
            return position.log_start_offset
        return position.deleted_below

    def _check_link(self, state: State) -> State:
        at = 1 - state.primary
        mirror, primary = state.logs[at], state.logs[state.primary]
        start = mirror.start
        if "T14 a lost order is kept" not in self.mutants:
            start = _start_after_check(mirror, primary)
        return _with(state, at, mirror._replace(start=start))._replace(checked=True)

    def check(self, state: State) -> None:
        ours, theirs = state.logs[state.primary], state.logs[1 - state.primary]
        position = state.cuts[state.reached - 1] if state.reached else LogPosition(0, 0)
        if ours.start > ours.end:
            raise Broken(
                "nothing is left", f"who acts starts at {ours.start} and ends at {ours.end}"
            )
        if state.lost or not state.checked:
            return
        if theirs.start < min(position.log_start_offset, position.cut_offset):
            raise Broken("comes back", f"{theirs} has reached {position}")
        if state.primary == 0 and theirs.start > position.log_start_offset:
            raise Broken("deleted too early", f"{theirs} has reached {position}")
        if state.primary == 0 and theirs.start > position.cut_offset:
            raise Broken("nothing is left", f"{theirs} would act from {position}")
        if theirs.start > ours.start:
            raise Broken("hidden", f"a mirror starts at {theirs.start}, who acts at {ours.start}")


def _with(state: State, at: int, log: Log) -> State:
    return state._replace(logs=put(state.logs, at, log))


def _cut(log: Log, end: int) -> Log:
    """Cut a log; an order to delete beyond the cut is no part of what goes on."""
    kept = min(log.end, end)
    return Log(kept, 0 if log.start > kept else log.start)


def _take_over(state: State) -> State:
    """Cut to what was reached, and act from there; the other region is gone, with what it did since."""
    position = state.cuts[state.reached - 1]
    log = state.logs[1]
    if log.start <= position.cut_offset:
        log = _cut(log, position.cut_offset)
    after = _with(state, 1, log._replace(end=position.cut_offset))
    return after._replace(primary=1, lost=True, cuts=state.cuts[: state.reached], closing=-1)


def _return(state: State) -> State:
    """Cut the lost region's log to the base, which it shows again, with what that says is deleted."""
    base = state.cuts[state.reached - 1]
    log = _cut(state.logs[0], base.cut_offset)
    shown = log._replace(start=max(log.start, base.deleted_below))
    return _with(state, 0, shown)._replace(lost=False, checked=False)


@lru_cache(maxsize=65536)
def _complete(cuts: tuple[LogPosition, ...], end: int, reached: int) -> int:
    """Return the tidemark that is complete of those published, all of which the mirror has heard of."""
    frontier = Frontier(LEDGERS, reached=_point(reached))
    frontier.reconciled([KEY], EPOCH)
    frontier.advanced(KEY, end)
    for number, position in enumerate(cuts, 1):
        frontier.observe(
            Tidemark(
                domain="main", region_epoch=EPOCH, number=number, round=Round(number),
                metadata_version=1, ledger={}, moved={KEY: position},
            )
        )  # fmt: skip
    return frontier.complete.number


def _point(number: int) -> TidemarkPoint:
    return TidemarkPoint(EPOCH, number) if number else BEFORE_ALL


@lru_cache(maxsize=65536)
def _start_after_check(mirror: Log, primary: Log) -> int:
    """Return where a mirror's log starts once its link has compared it with the primary's."""
    core = LinkCore(region_epoch=EPOCH, primary_region="us")
    ends = {KEY: MirrorLogEnd(LEADER_EPOCH, mirror.end, mirror.start)}
    answer = PrimaryLogEnd(LEADER_EPOCH, mirror.end, 0, primary.start)
    for event in (
        LinkStarted(),
        HandshakeDone("us", EPOCH, True),
        HistoryShown(EPOCH),
        RegistryRead(1, (TOPIC,), (TOPIC,)),
        TopicsApplied(ends),
    ):
        core.step(event)
    for effect in core.step(LogsChecked({KEY: answer})):
        if isinstance(effect, TakeBackStarts):
            return effect.offsets[KEY]
    return mirror.start
