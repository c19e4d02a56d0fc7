"""Is what a simulated run did a behaviour of the model? Each event must be a move that is enabled where the run is.

What is seen determines the state: each region's journal is folded by the real machine, rounds and tidemarks are followed
by number. The guards are those of the model's moves (`primary`, `takeover`), for any number of regions, rounds and
records. The journal's words must also agree between regions: a promise is given to who asked, an entry followed is one
that was chosen.
"""

import ast
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from geo_replicator import failover
from geo_replicator.directory import Promise, PromiseVerdict, judge_promise
from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import (
    Born,
    CutChosen,
    EntryRecord,
    Event,
    HistoryJoined,
    PromiseGiven,
    ReturnBegun,
    TakeoverBegun,
)
from geo_replicator.lineage import BEFORE_ALL, TidemarkPoint
from idempotency import fencing
from idempotency.decision import round_number
from idempotency.identity import RegionEpoch, Round

MODEL: Final = "model"
_COPIES: Final = frozenset({Phase.MIRRORING, Phase.FENCING})
_CUTS: Final = frozenset({Phase.CUTTING, Phase.RETURNING})


class Refused(Exception):
    """An event is no move of the model where the run is."""


@dataclass(slots=True)
class _Round:
    shards: int
    entered: dict[int, int] = field(default_factory=dict)
    released: bool = False
    closed: bool = False


@dataclass(slots=True)
class Behaviour:
    """The model's state along a run of the regions `names`, in the order of their ordinals."""

    names: tuple[str, ...]
    states: dict[str, State] = field(default_factory=dict)
    reached: dict[str, TidemarkPoint] = field(default_factory=dict)
    rounds: dict[int, _Round] = field(default_factory=dict)
    tidemarks: dict[TidemarkPoint, tuple[int, dict[int, int]]] = field(default_factory=dict)
    newest: dict[int, TidemarkPoint] = field(default_factory=dict)
    candidates: dict[int, str] = field(default_factory=dict)
    entries: dict[int, EntryRecord] = field(default_factory=dict)
    cuts: dict[TidemarkPoint, dict[str, int]] = field(default_factory=dict)
    moves: int = 0

    def follow(self, lines: Iterable[str]) -> None:
        """Take all events of a run, as ``--events`` writes them; others are skipped."""
        for line in lines:
            _, _, parts = line.partition(" ")
            if parts.startswith(f"('{MODEL}'"):
                self.take(ast.literal_eval(parts)[1:])

    def take_all(self, events: Iterable[tuple[Any, ...]]) -> None:
        """Make these moves; raises `Refused`."""
        for event in events:
            self.take(event)

    def take(self, event: tuple[Any, ...]) -> None:
        """Make one move; raises `Refused`."""
        kind, *parts = event
        self.moves += 1
        try:
            getattr(self, f"_{kind}")(*parts)
        except (failover.IllegalTransition, AssertionError) as error:
            raise Refused(f"{event}: {error!r}") from error

    def _must(self, holds: object, rule: str, *about: object) -> None:
        if not holds:
            raise Refused(f"{rule}: {about}")

    # Journals (T18, T19, T24, T25).

    def _opened(self, region: str, text: str) -> None:
        if text:
            state = msgspec.json.decode(text, type=State)
            self._must(
                state == self.states.get(region), "INV-FA1: a journal is what it was", region
            )

    def _journal(self, region: str, text: str) -> None:
        event = msgspec.json.decode(text, type=Event)
        before = self.states.get(region)
        if before is None:
            self._must(
                isinstance(event, Born | HistoryJoined), "a journal begins with a birth", event
            )
            state = failover.replay([event])
            assert state is not None
            self.states[region] = state
            return
        self._judge(region, before, event)
        self.states[region] = failover.fold(before, event)

    def _judge(self, region: str, before: State, event: Event) -> None:
        match event:
            case TakeoverBegun(region_epoch=epoch):
                named = self.names[fencing.region_ordinal_of(epoch)]
                self._must(named == region, "T19: an epoch names its region", event)
                self._must(epoch > before.highest_epoch_known, "T19: above all known", event)
                self._must(epoch not in self.candidates, "T19: an epoch is wanted once", event)
                self.candidates[epoch] = region
            case PromiseGiven(region_epoch=epoch, candidate=candidate):
                self._must(
                    self.candidates.get(epoch) == candidate, "T24: who is promised has asked", event
                )
                asked = Promise(epoch, candidate)
                verdict = judge_promise(before.promise, before.region_epoch, asked)
                self._must(verdict is PromiseVerdict.GRANTED, "T24: a promise holds", event)
            case CutChosen(entry=entry):
                base = TidemarkPoint(entry.base_region_epoch, entry.base_number)
                known = base == BEFORE_ALL or base in self.tidemarks
                self._must(known, "T25: a base is a tidemark", event)
                self.entries[entry.region_epoch] = entry
            case ReturnBegun(entries=entries):
                for entry in entries:
                    chosen = self.entries.get(entry.region_epoch)
                    self._must(entry == chosen, "T25: an entry is one that was chosen", entry)
            case _:
                pass

    # Rounds (T1 to T4).

    def _enter(self, number: int, shards: int) -> None:
        first = round_number(Round(number)) == 1
        self._must(first or number - 1 in self.rounds, "T1: rounds are dense in a term", number)
        self._must(number not in self.rounds, "T1: a round is driven once", number)
        self.rounds[number] = _Round(shards)

    def _entered(self, number: int, shard: int, offset: int) -> None:
        known = self.rounds.get(number)
        self._must(known is not None, "T2: a shard enters a round that was begun", number)
        assert known is not None
        again = known.entered.setdefault(shard, offset)
        self._must(again == offset, "T2: L of a round is one offset", number, shard)

    def _release(self, number: int) -> None:
        self._must(number in self.rounds, "T4: what is released was begun", number)
        self.rounds[number].released = True

    def _close(self, number: int, ledger: list[tuple[int, int]]) -> None:
        known = self.rounds[number]
        whole = len(known.entered) == known.shards
        self._must(whole, "T4: a round is closed when all shards entered it", number)
        self._must(known.entered == dict(ledger), "T2: the ledger is cut at L", number)
        self._must(known.released, "T4: closing releases", number)
        known.closed = True

    # Tidemarks (T10, T11, T16).

    def _tidemark(
        self,
        epoch: int,
        number: int,
        round_: int,
        ledger: list[tuple[int, int]],
        full: bool,
        moved: list[tuple[str, int]],
    ) -> None:
        region = self.names[fencing.region_ordinal_of(RegionEpoch(epoch))]
        point, state = TidemarkPoint(RegionEpoch(epoch), number), self.states[region]
        acts = {state.region_epoch} if state.phase is not Phase.ADOPTING else set()
        if state.entry is not None and state.phase is Phase.ADOPTING:
            acts.add(state.entry.region_epoch)
        self._must(epoch in acts, "T24: who publishes acts under that epoch", region, point)
        closed = round_ in self.rounds and self.rounds[round_].closed
        self._must(closed, "T4: what is published was closed", point, round_)
        last = self.newest.get(epoch)
        if last is not None:
            last_round, ends = self.tidemarks[last]
            self._must(last.number <= number <= last.number + 1, "T10: k is dense", last, point)
            self._must(round_ > last_round, "T11: rounds rise", point)
            falls = [shard for shard, end in ledger if end < ends[shard]]
            self._must(not falls, "T11: L never goes down", point, falls)
        self.tidemarks[point] = round_, dict(ledger)
        self.newest[epoch] = point
        before = {} if full else self.cuts.get(self._before(point), {})
        lower = [key for key, end in moved if end < before.get(key, 0)]
        self._must(not lower, "T11: D never goes down", point, lower)
        self.cuts[point] = {**before, **dict(moved)}

    def _before(self, point: TidemarkPoint) -> TidemarkPoint:
        before = point._replace(number=point.number - 1)
        entry = self.entries.get(point.region_epoch)
        if before in self.cuts or entry is None:
            return before
        return TidemarkPoint(entry.base_region_epoch, entry.base_number)

    def _reached(self, region: str, epoch: int, number: int) -> None:
        point, state = TidemarkPoint(RegionEpoch(epoch), number), self.states[region]
        before = self.reached.get(region, BEFORE_ALL)
        if point > before and state.phase not in _CUTS:
            self._must(point in self.tidemarks, "T16: what is reached was published", region, point)
            self._must(
                state.phase in _COPIES, "T24: who promised reaches nothing", region, state.phase
            )
        elif point < before:
            self._must(state.phase in _CUTS, "T25: only a lineage entry lowers", region, point)
        self._must(
            epoch <= state.highest_epoch_known, "T23: an epoch that is followed", region, point
        )
        self.reached[region] = point

    def _shown(self, region: str, logs: list[tuple[str, int, int]]) -> None:
        reached = self.reached.get(region, BEFORE_ALL)
        held = self.cuts.get(reached, {})
        copies = self.states[region].phase in _COPIES
        for key, cut, end in logs:
            self._must(end <= cut, "T17: readers end at D", region, key, cut, end)
            beyond = copies and reached in self.cuts and cut > held.get(key, 0)
            self._must(not beyond, "T16: what is shown was reached", region, reached, key, cut)
