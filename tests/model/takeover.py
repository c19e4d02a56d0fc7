"""Takeover and return among three regions (T18 to T20, T23 to T25, T31): one log, its tidemarks, and who may act.

Real, called at each move: the failover fold and its effects (`geo_replicator.failover`), region epochs and promises
(`geo_replicator.directory`), void tidemarks, claims and bases (`geo_replicator.lineage`). Plain: copying, a record at a
time from whoever says that it acts; cutting, at once or a log at a time; the directory, which takes an entry only above
all that it has. Nobody has to hear anything: a region that is cut off, dead or slow is one that does not move. A
transaction that waits for one mirror is answered as soon as that could be known at its primary.

A planned switch drains the primary: it ends its log with a tidemark, and promises who asked for that, who waits for it and takes over by
that one word (INV-FOP2, INV-FD6). Of what the others acknowledged since it must lose nothing, whether anybody else had it or not.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache, partial
from typing import Final, NamedTuple
from uuid import UUID

import msgspec

from geo_replicator import directory, failover
from geo_replicator.failover import CutLogs, Phase
from geo_replicator.failover_events import (
    Adopted,
    Born,
    CutChosen,
    DrainBegun,
    DrainRolledBack,
    EntryRecord,
    Event,
    FollowResumed,
    HigherEpochLearned,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
)
from geo_replicator.lineage import (
    BEFORE_ALL,
    Lineage,
    LineageEntry,
    LogKey,
    TidemarkPoint,
)
from idempotency import fencing
from idempotency.identity import RegionEpoch
from tests.model.explore import Broken, Label, Move

NAMES: Final = ("eu", "us", "ap")
DATA: Final = LogKey(UUID(int=2), 0)
TIDES: Final = LogKey(UUID(int=1), 0)


class Value(NamedTuple):
    """A record: the region epoch that it was written under, by whom, and which one it is."""

    region_epoch: int
    region: int
    serial: int


class Tide(NamedTuple):
    """A tidemark record, and where it cuts the log."""

    point: TidemarkPoint
    end: int


class Region(NamedTuple):
    """What a region holds: `journal` is the fold of its journal, `known` the lineage that it has heard of.

    `drained`: whom it drained for last. `awaited`: the last tidemark that a switch to it waits for.
    """

    journal: bytes
    log: tuple[Value, ...] = ()
    tides: tuple[Tide, ...] = ()
    reached: TidemarkPoint = BEFORE_ALL
    known: tuple["Entry", ...] = ()
    drained: str = ""
    awaited: "Drained | None" = None


class Drained(NamedTuple):
    """What a drained region says: who it is, and its last tidemark."""

    region: int
    final: TidemarkPoint


class Entry(NamedTuple):
    """A lineage entry: where the log and `__tidemarks` are cut."""

    region_epoch: int
    region: int
    base: TidemarkPoint
    end: int
    tides: int


class Answer(NamedTuple):
    """What a region said to a failover candidate when it promised: all up to what it has shown or published."""

    region_epoch: int
    region: int
    log: tuple[Value, ...]
    tides: tuple[Tide, ...]
    point: TidemarkPoint


class State(NamedTuple):
    """All regions, the answers to candidates, the directory, and what clients were told to be safe."""

    regions: tuple[Region, ...]
    answers: frozenset[Answer] = frozenset()
    entries: tuple[Entry, ...] = ()
    synced: frozenset[Value] = frozenset()
    takeovers: int = 0
    switches: int = 0


@dataclass(frozen=True, slots=True)
class Size:
    """How much may happen."""

    regions: int = 3
    writes: int = 2
    takeovers: int = 2
    switches: int = 0
    """Planned ones; liveness is not judged with them: who was promised in vain goes on by `steps.fenced`, which is not here."""
    switched_to: int = 0
    """The first of the regions that are switched to."""
    steps: bool = False
    """A region may crash between cutting a log, cutting its tidemarks, and noting that both are cut."""


@dataclass(frozen=True)
class Takeover:
    """The instance; `mutants` are the rules that are left out."""

    size: Size
    mutants: frozenset[str]

    def initial(self) -> State:
        epoch = self._next_epoch([], 0)
        names = NAMES[: self.size.regions]
        born = [failover.born(Born(name, name == NAMES[0], RegionEpoch(epoch))) for name in names]
        return State(
            tuple(
                Region(_encoded(msgspec.structs.replace(each, acting_region=NAMES[0])))
                for each in born
            )
        )

    def canonical(self, state: State) -> State:
        """Forget answers to candidates that have chosen."""
        if not state.answers:
            return state
        wanted = set()
        for now in states_of(state):
            if now.phase is Phase.FENCING and now.takeover is not None:
                wanted.add(now.takeover.region_epoch)
        if all(answer.region_epoch in wanted for answer in state.answers):
            return state
        answers = frozenset(each for each in state.answers if each.region_epoch in wanted)
        return state._replace(answers=answers)

    def moves(self, state: State) -> Iterator[Move]:
        states = states_of(state)
        acting = [(at, now) for at, now in enumerate(states) if now.may_act]
        for at, now in enumerate(states):
            if now.may_act:
                yield from self._act(state, at)
            elif now.phase is Phase.MIRRORING:
                yield from self._mirror(state, at, now)
            elif now.phase is Phase.FENCING:
                yield from self._fence(state, at, now)
            elif now.phase in {Phase.CUTTING, Phase.RETURNING}:
                yield from self._cuts(state, at)
            elif now.phase is Phase.ADOPTING and self._may_adopt(state, now):
                yield Move(("{} acts", NAMES[at]), partial(self._adopt, state, at))
            stands = now.phase in {Phase.MIRRORING, Phase.FENCED}
            if stands and state.takeovers < self.size.takeovers:
                label = ("{} is told to take over", NAMES[at])
                yield Move(label, partial(self._begin, state, at))
            yield from self._switch(state, at, now, acting)
            for other, theirs in acting:
                if other != at:
                    yield from self._learn(state, at, now, other, theirs)

    def good(self, state: State) -> bool:
        """Somebody acts, and all others follow."""
        states = states_of(state)
        acting = [now for now in states if now.may_act]
        return len(acting) == 1 and all(
            now.may_act
            or (now.phase is Phase.MIRRORING and now.region_epoch == acting[0].region_epoch)
            for now in states
        )

    def check(self, state: State) -> None:
        states = states_of(state)
        _check_epochs(state)
        _check_newest(state, states)
        _check_followers(state, states)

    # At the primary.

    def _act(self, state: State, at: int) -> Iterator[Move]:
        region = state.regions[at]
        epoch = state_of(region).region_epoch
        written = {v.serial for each in state.regions for v in each.log}
        written |= {value.serial for value in state.synced}
        if len(written) < self.size.writes:
            value = Value(epoch, at, max(written, default=0) + 1)
            after = region._replace(log=(*region.log, value))
            yield Move(("{} takes a record", NAMES[at]), partial(_with, state, at, after))
        if len(region.log) > (region.tides[-1].end if region.tides else 0):
            yield Move(("{} publishes a tidemark", NAMES[at]), partial(_publish, state, at))

    # On a mirror.

    def _mirror(self, state: State, at: int, now: failover.State) -> Iterator[Move]:
        region = state.regions[at]
        primary = NAMES.index(now.acting_region)
        source, theirs = state.regions[primary], state_of(state.regions[primary])
        if theirs.phase.acts and theirs.region_epoch == now.region_epoch:
            if len(source.log) > len(region.log):
                log = (*region.log, source.log[len(region.log)])
                label = ("{} copies a record from {}", NAMES[at], NAMES[primary])
                yield Move(label, partial(_with, state, at, region._replace(log=log)))
            if len(source.tides) > len(region.tides):
                tides = (*region.tides, source.tides[len(region.tides)])
                label = ("{} copies a tidemark from {}", NAMES[at], NAMES[primary])
                yield Move(label, partial(_with, state, at, region._replace(tides=tides)))
        lineage = lineage_of(region.known)
        for tide in region.tides:
            counts = not lineage.is_void(tide.point) or "T25 nothing is void" in self.mutants
            if counts and tide.point > region.reached and tide.end <= len(region.log):
                reaches: Label = ("{} reaches and shows {}", NAMES[at], tide.point)
                yield Move(reaches, partial(self._reach, state, at, tide))

    def _reach(self, state: State, at: int, tide: Tide) -> State:
        region = state.regions[at]
        primaries = [state_of(each) for each in state.regions]
        told = any(
            now.phase.acts and now.region_epoch == tide.point.region_epoch for now in primaries
        )
        synced = state.synced | set(region.log[: tide.end]) if told else state.synced
        return _with(state, at, region._replace(reached=tide.point))._replace(synced=synced)

    # Planned switch.

    def _switch(
        self, state: State, at: int, now: failover.State, acting: list[tuple[int, failover.State]]
    ) -> Iterator[Move]:
        if now.phase is Phase.DRAINING:
            ended = partial(_record, state, at, DrainRolledBack(""))
            yield Move(("the drain of {} ends", NAMES[at]), ended)
        if now.phase not in {Phase.MIRRORING, Phase.FENCED}:
            return
        if state.switches < self.size.switches and at >= self.size.switched_to:
            for old, theirs in acting:
                if old != at and theirs.region_epoch == now.region_epoch:
                    drains: Label = ("{} is drained for {}", NAMES[old], NAMES[at])
                    yield Move(drains, partial(_drain, state, at, old))
        region = state.regions[at]
        if region.awaited is None or region.reached < region.awaited.final:
            return
        blind = "T24 a switch goes on whatever is followed" in self.mutants
        if blind or not _overtaken(now, region.awaited.final):
            begins: Label = ("{} takes over from who was drained", NAMES[at])
            yield Move(begins, partial(self._begin_drained, state, at, region.awaited))

    def _begin_drained(self, state: State, at: int, drained: Drained) -> State:
        region = state.regions[at]
        final = drained.final.region_epoch, drained.final.number
        event = TakeoverBegun(
            self._epoch_for(state, at), NAMES[drained.region], "", True, False, final
        )
        return _record(_with(state, at, region._replace(awaited=None)), at, event)

    # Takeover.

    def _next_epoch(self, known: list[int], at: int) -> int:
        if "T19 epochs are counted" in self.mutants:
            return max(known, default=0) + 8
        return int(directory.next_region_epoch(known, at))

    def _epoch_for(self, state: State, at: int) -> RegionEpoch:
        now = state_of(state.regions[at])
        known = [now.highest_epoch_known, *(e.region_epoch for e in state.regions[at].known)]
        return RegionEpoch(self._next_epoch(known, at))

    def _begin(self, state: State, at: int) -> State:
        now = state_of(state.regions[at])
        event = TakeoverBegun(self._epoch_for(state, at), now.acting_region, "", False, True)
        state = _with(state, at, state.regions[at]._replace(awaited=None))
        return _record(state, at, event)._replace(takeovers=state.takeovers + 1)

    def _fence(self, state: State, at: int, now: failover.State) -> Iterator[Move]:
        assert now.takeover is not None
        epoch = now.takeover.region_epoch
        answers = [answer for answer in state.answers if answer.region_epoch == epoch]
        for other in range(len(state.regions)):
            if other != at and all(answer.region != other for answer in answers):
                label = ("{} asks {} for a promise", NAMES[at], NAMES[other])
                yield Move(label, partial(self._promise, state, at, other, epoch))
        planned = now.takeover.planned
        enough = [a for a in answers if not planned or NAMES[a.region] == now.takeover.old_region]
        if enough or "T24 nobody is asked" in self.mutants:
            yield Move(("{} chooses where to cut", NAMES[at]), partial(self._choose, state, at))

    def _promise(self, state: State, at: int, other: int, epoch: int) -> State:
        peer, asked = (
            state_of(state.regions[other]),
            directory.Promise(RegionEpoch(epoch), NAMES[at]),
        )
        verdict = directory.judge_promise(peer.promise, peer.region_epoch, asked)
        promised = {directory.PromiseVerdict.GRANTED, directory.PromiseVerdict.REPEATED}
        takeover = state_of(state.regions[at]).takeover
        planned = takeover is not None and takeover.planned
        if verdict not in promised or (planned and not self._is_drained(state, other, at)):
            return _record(state, at, TakeoverAbandoned(""))
        granted = verdict is directory.PromiseVerdict.GRANTED
        if granted and "T24 answers promise nothing" not in self.mutants:
            state = _record(state, other, PromiseGiven(RegionEpoch(epoch), NAMES[at]))
        region = state.regions[other]
        answer = Answer(epoch, other, *_held(region), region.reached)
        heard = state.regions[at]._replace(known=merged(state.regions[at].known, region.known))
        return _with(state, at, heard)._replace(answers=state.answers | {answer})

    def _is_drained(self, state: State, other: int, candidate: int) -> bool:
        """Whether a region promises who takes over from a drained one (INV-FD6)."""
        region, now = state.regions[other], state_of(state.regions[other])
        if now.phase is Phase.ACTING:
            return False
        if now.phase is Phase.DRAINING:
            return region.drained == NAMES[candidate]
        acted_last = region.known[-1].region if region.known else 0
        if "T24 a fenced region is drained for anybody" in self.mutants:
            return True
        if acted_last != other:
            asks = state.regions[candidate]
            return max(region.known, default=()) <= max(asks.known, default=())
        return now.phase is Phase.FENCED and now.promise.candidate == NAMES[candidate]

    def _choose(self, state: State, at: int) -> State:
        region, now = state.regions[at], state_of(state.regions[at])
        assert now.takeover is not None
        epoch = now.takeover.region_epoch
        later = state.entries and state.entries[-1].region_epoch > epoch
        if later and "T25 the directory takes any entry" not in self.mutants:
            return _record(state, at, TakeoverAbandoned(""))
        known = merged(region.known, state.entries)
        lineage = lineage_of(() if "T25 nothing is void" in self.mutants else known)
        own = Answer(epoch, at, *_held(region), region.reached)
        heard = [own, *(each for each in state.answers if each.region_epoch == epoch)]
        claims = [_claim(each, lineage) for each in heard]
        base = lineage.greatest_valid(claim.point for claim in claims)
        chosen = next(claim for claim in claims if claim.point == base)
        if chosen.region != at:
            region = region._replace(log=chosen.log, tides=chosen.tides)
        if now.takeover.planned:
            _check_switch(state, at, chosen)
        entry = Entry(epoch, at, base, len(chosen.log), len(chosen.tides))
        entries = merged(state.entries, (entry,))
        region = region._replace(known=merged(known, (entry,)))
        chosen_state = _with(state, at, region)._replace(entries=entries)
        return _record(chosen_state, at, CutChosen(EntryRecord.of(real_entry(entry))))

    def _cuts(self, state: State, at: int) -> Iterator[Move]:
        if not self.size.steps:
            yield Move(("{} cuts its logs", NAMES[at]), partial(self._cut, state, at))
            return
        region, now = state.regions[at], state_of(state.regions[at])
        effect = failover.next_effect(now)
        assert isinstance(effect, CutLogs), effect
        log = region.log[: effect.cut.position_of(DATA)]
        tides = region.tides[: effect.cut.position_of(TIDES)]
        if log != region.log:
            cut = _with(state, at, region._replace(log=log))
            yield Move(("{} cuts its log", NAMES[at]), partial(cut._replace))
        if tides != region.tides:
            cut = _with(state, at, region._replace(tides=tides))
            yield Move(("{} cuts its tidemarks", NAMES[at]), partial(cut._replace))
        early = "T18 it is noted before it is done" in self.mutants
        if early or (log, tides) == (region.log, region.tides):
            noted = partial(self._noted, state, at, region, effect)
            yield Move(("{} notes that its logs are cut", NAMES[at]), noted)

    def _noted(self, state: State, at: int, kept: Region, effect: CutLogs) -> State:
        returns = state_of(kept).phase is Phase.RETURNING
        point = effect.cut.point
        kept = kept._replace(reached=min(kept.reached, point) if returns else point)
        event = (Returned if returns else LogsCut)(effect.lineage_epoch)
        return _record(_with(state, at, kept), at, event)

    def _cut(self, state: State, at: int) -> State:
        region, now = state.regions[at], state_of(state.regions[at])
        effect = failover.next_effect(now)
        assert isinstance(effect, CutLogs), effect
        cut = effect.cut
        returns = now.phase is Phase.RETURNING
        kept = region
        if not (returns and "T23 lengths are compared" in self.mutants):
            kept = kept._replace(log=region.log[: cut.position_of(DATA)])
        if "T20 tidemarks are not cut" not in self.mutants:
            kept = kept._replace(tides=region.tides[: cut.position_of(TIDES)])
        return self._noted(state, at, kept, effect)

    def _adopt(self, state: State, at: int) -> State:
        now = state_of(state.regions[at])
        assert now.entry is not None
        return _publish(_record(state, at, Adopted(now.entry.region_epoch)), at)

    def _may_adopt(self, state: State, now: failover.State) -> bool:
        """A slow candidate hears of the later one, and returns (T25)."""
        assert now.entry is not None
        later = state.entries[-1].region_epoch > now.entry.region_epoch
        return not later or "T25 the directory takes any entry" in self.mutants

    # Return.

    def _learn(
        self, state: State, at: int, now: failover.State, other: int, theirs: failover.State
    ) -> Iterator[Move]:
        if now.phase is Phase.FENCED:
            unbound = "T24 a lower epoch than promised is followed" in self.mutants
            known = merged(state.regions[at].known, state.regions[other].known)
            label = ("{} learns the lineage from {}", NAMES[at], NAMES[other])
            yield Move(label, partial(_follow, state, at, other, known, unbound=unbound))
            return
        newest = max(now.region_epoch, *(entry.region_epoch for entry in now.unseen), 0)
        if now.takeover is not None:
            newest = max(newest, now.takeover.region_epoch)
        if theirs.region_epoch > newest:
            event = HigherEpochLearned(theirs.region_epoch, NAMES[other])
            hears: Label = ("{} hears that {} acts", NAMES[at], NAMES[other])
            yield Move(hears, partial(_record, state, at, event))


def _follow(state: State, at: int, other: int, known: tuple[Entry, ...], *, unbound: bool) -> State:
    now = state_of(state.regions[at])
    unseen = lineage_of(known).since(now.region_epoch)
    state = _with(state, at, state.regions[at]._replace(known=known))
    bound = unseen and unseen[-1].region_epoch < now.promise.region_epoch and not unbound
    if unseen and unseen[-1].acting_region != NAMES[at] and not bound:
        return _record(state, at, ReturnBegun(tuple(map(EntryRecord.of, unseen))))
    theirs = state_of(state.regions[other])
    if now.promise.region_epoch <= now.region_epoch == theirs.region_epoch:
        return _record(state, at, FollowResumed(NAMES[other]))
    return state


def _drain(state: State, at: int, old: int) -> State:
    """Let a primary end its log with a tidemark, for a switch to another region."""
    state = _publish(state, old)
    final = Drained(old, state.regions[old].reached)
    state = _with(state, old, state.regions[old]._replace(drained=NAMES[at]))
    state = _with(state, at, state.regions[at]._replace(awaited=final))
    state = _record(state, old, DrainBegun("", NAMES[at]))
    return state._replace(switches=state.switches + 1)


def _overtaken(now: failover.State, final: TidemarkPoint) -> bool:
    """Whether a region knows that another one acts than was drained, or may (INV-FOP2)."""
    others = now.promise.candidate not in {"", now.region}
    bound = others and now.promise.region_epoch > final.region_epoch
    return bound or max(now.region_epoch, now.heard_region_epoch) > final.region_epoch


def _check_switch(state: State, at: int, chosen: Answer) -> None:
    """T24: a planned switch loses nothing that was acknowledged, whether another region has it or not."""
    last = max(state.regions, key=lambda region: state_of(region).region_epoch)
    newest = state_of(last).region_epoch
    primary = state.regions[fencing.region_ordinal_of(newest)]
    if state_of(primary).region_epoch == newest and chosen.log[: len(primary.log)] != primary.log:
        raise Broken("switch lost", f"{NAMES[at]} acts without {primary.log}")


def _check_epochs(state: State) -> None:
    """T19: nobody writes under the region epoch of another."""
    pairs = frozenset[tuple[int, int]]().union(*map(_writers, state.regions))
    if len(pairs) != len({epoch for epoch, _ in pairs}):
        raise Broken("one epoch twice", f"two regions act under one: {sorted(pairs)}")


@cache
def _writers(region: Region) -> frozenset[tuple[int, int]]:
    """Return the region epochs of a log and a lineage, each with whose it is."""
    return frozenset(
        [(value.region_epoch, value.region) for value in region.log]
        + [(entry.region_epoch, entry.region) for entry in region.known]
    )


def _check_newest(state: State, states: list[failover.State]) -> None:
    """T24, T25: what was answered or shown is in every region that acts under the highest region epoch."""
    newest = max(now.region_epoch for now in states)
    for at, now in enumerate(states):
        log = state.regions[at].log
        if not now.may_act or now.region_epoch != newest:
            continue
        lost = state.synced - set(log)
        if lost:
            raise Broken("sync lost", f"{NAMES[at]} acts without {sorted(lost)}")
        for other, region in enumerate(state.regions):
            shown = _held(region)[0]
            if fencing.region_ordinal_of(region.reached.region_epoch) == other:
                continue  # what it published itself, and nobody had, is lost with it
            if log[: len(shown)] != shown:
                raise Broken(
                    "taken back", f"{NAMES[at]} acts, and {NAMES[other]} has shown {shown}"
                )


def _check_followers(state: State, states: list[failover.State]) -> None:
    """T20, T23: who follows a region holds nothing but the beginning of what that one holds."""
    for at, now in enumerate(states):
        if now.phase is not Phase.MIRRORING:
            continue
        source = NAMES.index(now.acting_region)
        theirs = states[source]
        if not theirs.may_act or theirs.region_epoch != now.region_epoch:
            continue
        region, primary = state.regions[at], state.regions[source]
        if (
            primary.log[: len(region.log)] != region.log
            or primary.tides[: len(region.tides)] != region.tides
        ):
            raise Broken(
                "foreign tail", f"{NAMES[at]} follows {now.acting_region} with another log"
            )


def _with(state: State, at: int, region: Region) -> State:
    regions = (*state.regions[:at], region, *state.regions[at + 1 :])
    return state._replace(regions=regions)


def _publish(state: State, at: int) -> State:
    region = state.regions[at]
    number = region.tides[-1].point.number + 1 if region.tides else 1
    point = TidemarkPoint(state_of(region).region_epoch, number)
    tides = (*region.tides, Tide(point, len(region.log)))
    return _with(state, at, region._replace(tides=tides, reached=point))


def _held(region: Region) -> tuple[tuple[Value, ...], tuple[Tide, ...]]:
    """Return the log and the tidemarks up to what was reached."""
    for at, tide in enumerate(region.tides):
        if tide.point == region.reached:
            return region.log[: tide.end], region.tides[: at + 1]
    return (), ()


def _claim(answer: Answer, lineage: Lineage) -> Answer:
    """Return what an answer is good for: what is void counts up to the lowest base since."""
    if not lineage.is_void(answer.point):
        return answer
    cut = lineage.fallback_of(answer.point)
    tides = answer.tides[: cut.position_of(TIDES)]
    return answer._replace(log=answer.log[: cut.position_of(DATA)], tides=tides, point=cut.point)


def _record(state: State, at: int, event: Event) -> State:
    region = state.regions[at]
    journal = _folded(region.journal, event)
    return _with(state, at, region._replace(journal=journal))


def _folded(journal: bytes, event: Event) -> bytes:
    return _after(journal, msgspec.json.encode(event))


@cache
def _after(journal: bytes, event: bytes) -> bytes:
    read: Event = msgspec.json.decode(event, type=Event)
    return _encoded(failover.fold(_decoded(journal), read))


def _encoded(now: failover.State) -> bytes:
    return msgspec.json.encode(msgspec.structs.replace(now, reason=""))


@cache
def _decoded(journal: bytes) -> failover.State:
    return msgspec.json.decode(journal, type=failover.State)


def state_of(region: Region) -> failover.State:
    """Return the real state of a region's journal."""
    return _decoded(region.journal)


def states_of(state: State) -> list[failover.State]:
    """Return the real states of all regions."""
    return [_decoded(region.journal) for region in state.regions]


def merged(one: tuple[Entry, ...], other: tuple[Entry, ...]) -> tuple[Entry, ...]:
    """Return all entries of both, oldest first."""
    return tuple(sorted(set(one) | set(other))) if other else one


def real_entry(entry: Entry) -> LineageEntry:
    """Return the real entry."""
    positions = {DATA: entry.end, TIDES: entry.tides}
    return LineageEntry(RegionEpoch(entry.region_epoch), NAMES[entry.region], entry.base, positions)


@cache
def lineage_of(entries: tuple[Entry, ...]) -> Lineage:
    """Return the real lineage."""
    return Lineage(tuple(map(real_entry, entries)))
