"""The failover state machine of one region and one domain: a pure fold of what its journal says (T18).

INV-FA1  state == fold(journal): an event is durable before its effect is run, and nothing else is kept
INV-FA2  an event that the table `TRANSITIONS` does not name for a phase is illegal and changes nothing
INV-FA3  `next_effect` depends on the state only, and every effect may be run again: a process that was
        killed at any step reads its journal and goes on
INV-FA4  writes open in ACTING and nowhere else; ACTING is entered by `Adopted` (or at birth) only
INV-FA8  a region whose history was refuted does not act, also after a restart, until it took over from itself by an
        operator's word, or came back to the history of another one (T33)
INV-FA5  a promise never goes down, and while it is higher than the region epoch this region does not act
INV-FA9  a region that does not act says why, and either what it waits for and that it goes on by itself, or what an
         operator can do
A region without history does nothing but ask for one; what joined a history and never acted since does not act by
itself (T32).

    MIRRORING -> FENCING -> CUTTING -> ADOPTING -> ACTING -> DRAINING -> FENCED -> RETURNING -> MIRRORING
    UNBORN -> FENCED

UNBORN is a folder without history (T32): its journal is empty. FENCED is the only way out of an unfinished takeover: from there a region learns who acts.

Not here: what may be in a journal (`failover_events`), asking peers, moving bytes, the clock (failover driver);
promise rules (`directory`), bases (`lineage`).
"""

from enum import StrEnum
from typing import Final

import msgspec

from geo_replicator.directory import NO_PROMISE, Promise, PromiseVerdict, judge_promise
from geo_replicator.failover_events import (
    Adopted,
    Born,
    CutChosen,
    DrainBegun,
    DrainRolledBack,
    EntryRecord,
    Event,
    FolderNamed,
    FollowResumed,
    HigherEpochLearned,
    HistoryJoined,
    HistoryRefuted,
    LogsCut,
    PromiseGiven,
    ReturnBegun,
    Returned,
    TakeoverAbandoned,
    TakeoverBegun,
    TakeoverDone,
)
from geo_replicator.lineage import Cut, in_force, lowest_base
from idempotency.identity import RegionEpoch


class Phase(StrEnum):
    """Where a region is on the way round."""

    UNBORN = "unborn"
    MIRRORING = "mirroring"
    FENCING = "fencing"
    CUTTING = "cutting"
    ADOPTING = "adopting"
    ACTING = "acting"
    DRAINING = "draining"
    DISPUTED = "disputed"
    FENCED = "fenced"
    RETURNING = "returning"

    @property
    def acts(self) -> bool:
        """Whether this region acts, be it that it is about to stop for a switch."""
        return self in {Phase.ACTING, Phase.DRAINING}


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a journal. `region_epoch` is the epoch this region's logs are reconciled with."""

    region: str
    phase: Phase
    region_epoch: RegionEpoch
    acting_region: str = ""
    promise: Promise = NO_PROMISE
    promise_before: Promise = NO_PROMISE
    """What another candidate was promised before this region began to take over."""
    takeover: TakeoverBegun | None = None
    entry: EntryRecord | None = None
    unseen: tuple[EntryRecord, ...] = ()
    abandoned_epoch: RegionEpoch = RegionEpoch(0)
    heard_region_epoch: RegionEpoch = RegionEpoch(0)
    """The highest that another region was heard to act under, also where it was not followed."""
    refuted: HistoryRefuted | None = None
    reason: str = ""
    copied: bool = False
    """All that is held here was copied: this region joined a history and has not acted since."""
    done: TakeoverDone | None = None

    @property
    def may_act(self) -> bool:
        """Return True where writes may be taken (INV-FA4, INV-FA5)."""
        return self.phase is Phase.ACTING and self.promise.region_epoch <= self.region_epoch

    @property
    def highest_epoch_known(self) -> RegionEpoch:
        """Return the highest region epoch that this region may never undercut (T19)."""
        wanted = self.takeover.region_epoch if self.takeover is not None else RegionEpoch(0)
        newest = self.unseen[-1].region_epoch if self.unseen else RegionEpoch(0)
        heard = max(self.heard_region_epoch, newest)
        return max(
            self.region_epoch, self.promise.region_epoch, wanted, heard, self.abandoned_epoch
        )


class IllegalTransition(Exception):
    """An event came in a phase that does not know it."""


_UB: Final = Phase.UNBORN
_M, _FG, _CU, _AD = Phase.MIRRORING, Phase.FENCING, Phase.CUTTING, Phase.ADOPTING
_AC, _DR, _FD, _RE = Phase.ACTING, Phase.DRAINING, Phase.FENCED, Phase.RETURNING
_DI: Final = Phase.DISPUTED

TRANSITIONS: Final[dict[tuple[type[Event], Phase], Phase]] = {
    (TakeoverBegun, _M): _FG,
    (TakeoverBegun, _FD): _FG,
    (TakeoverAbandoned, _FG): _FD,
    (CutChosen, _FG): _CU,
    (LogsCut, _CU): _AD,
    (Adopted, _AD): _AC,
    (HistoryRefuted, _AC): _DI,
    (HistoryRefuted, _DR): _DI,
    (TakeoverBegun, _DI): _FG,
    (DrainBegun, _AC): _DR,
    (DrainRolledBack, _DR): _AC,
    # Whoever promised stands still until the candidate acts: nothing older is acted on or reached (T24).
    **{(PromiseGiven, phase): _FD for phase in Phase if phase is not _UB},
    **{(HigherEpochLearned, phase): _FD for phase in Phase if phase is not _UB},
    (HistoryJoined, _UB): _FD,
    **{(FolderNamed, phase): phase for phase in Phase if phase is not _UB},
    (FollowResumed, _FD): _M,
    (ReturnBegun, _FD): _RE,
    (Returned, _RE): _M,
}


def born(event: Born) -> State:
    """Return the state of a region whose journal holds only `event`."""
    phase = Phase.ACTING if event.acting else Phase.MIRRORING
    acting_region = event.region if event.acting else ""
    return State(
        region=event.region,
        phase=phase,
        region_epoch=event.region_epoch,
        acting_region=acting_region,
    )


def unborn(region: str) -> State:
    """Return the state of a region whose folder has no history, and so whose journal is empty."""
    return State(region=region, phase=Phase.UNBORN, region_epoch=RegionEpoch(0))


def fold(state: State, event: Event) -> State:
    """Return the state after `event`; raises `IllegalTransition` (INV-FA2)."""
    target = TRANSITIONS.get((type(event), state.phase))
    if target is None:
        raise IllegalTransition(f"{type(event).__name__} in phase {state.phase}: {event}")
    changed = msgspec.structs.replace(_remember(state, event), phase=target)
    assert not changed.may_act or changed.acting_region == changed.region, f"INV-FA4: {changed}"
    assert not changed.may_act or changed.refuted is None, f"INV-FA8: {changed}"
    return changed


_PROMISED: Final = frozenset({PromiseVerdict.GRANTED, PromiseVerdict.REPEATED})
TakeoverEvent = TakeoverBegun | TakeoverAbandoned | CutChosen | LogsCut | Adopted


def _remember(state: State, event: Event) -> State:
    if isinstance(event, TakeoverEvent):
        return _remember_takeover(state, event)
    match event:
        case DrainBegun(to_region=to_region):
            reason = f"draining: region {to_region} is about to take over; where it does not, this one goes on by itself"
            return msgspec.structs.replace(state, reason=reason)
        case HistoryRefuted(reason=reason):
            return msgspec.structs.replace(state, refuted=event, reason=reason)
        case DrainRolledBack():
            return msgspec.structs.replace(state, reason="")
        case PromiseGiven(region_epoch=region_epoch, candidate=candidate):
            verdict = judge_promise(
                state.promise, state.region_epoch, Promise(region_epoch, candidate)
            )
            assert verdict in _PROMISED, f"INV-FA5: {verdict} for {event} in {state}"
            fenced = _without_takeover(
                state, f"region {candidate} was promised region epoch {region_epoch}"
            )
            return msgspec.structs.replace(fenced, promise=Promise(region_epoch, candidate))
        case HigherEpochLearned(region_epoch=region_epoch, acting_region=acting_region):
            fenced = _without_takeover(state, why_fenced(state.region, region_epoch, acting_region))
            heard = max(state.heard_region_epoch, region_epoch)
            return msgspec.structs.replace(
                fenced, acting_region=acting_region, unseen=(), heard_region_epoch=heard
            )
        case FollowResumed() | ReturnBegun() | Returned() | HistoryJoined():
            return _remember_return(state, event)
        case FolderNamed():
            return state
        case Born():
            raise AssertionError("a region is born once: the table has no row for it")


def _remember_takeover(state: State, event: TakeoverEvent) -> State:
    match event:
        case TakeoverBegun():
            own = Promise(event.region_epoch, state.region)
            verdict = judge_promise(state.promise, state.region_epoch, own)
            assert verdict in _PROMISED, f"INV-DY2: {verdict} for {event} in {state}"
            others = state.promise.candidate not in {"", state.region}
            return msgspec.structs.replace(
                state,
                takeover=event,
                entry=None,
                promise=own,
                promise_before=state.promise if others else state.promise_before,
                reason="",
            )
        case TakeoverAbandoned(reason=reason):
            # The promise was to itself, for an epoch that is now never used: it binds nobody. One given to another
            # candidate before still binds: that one may act, and nothing older may be followed meanwhile (T24).
            return msgspec.structs.replace(
                _without_takeover(state, reason), promise=state.promise_before
            )
        case CutChosen(entry=entry):
            assert state.takeover is not None, state
            assert entry.region_epoch == state.takeover.region_epoch, (entry, state.takeover)
            return msgspec.structs.replace(state, entry=entry)
        case LogsCut(region_epoch=region_epoch):
            assert state.entry is not None, state
            assert region_epoch == state.entry.region_epoch, (region_epoch, state.entry)
            return state
        case Adopted(region_epoch=region_epoch, wall_ms=wall_ms):
            takeover = state.takeover
            assert state.entry is not None, state
            assert region_epoch == state.entry.region_epoch, (region_epoch, state.entry)
            return msgspec.structs.replace(
                state,
                region_epoch=region_epoch,
                acting_region=state.region,
                takeover=None,
                refuted=None,
                reason="",
                copied=False,
                done=TakeoverDone(takeover, wall_ms)
                if takeover is not None and takeover.started_wall_ms
                else None,
            )


def _remember_return(
    state: State, event: FollowResumed | ReturnBegun | Returned | HistoryJoined
) -> State:
    match event:
        case HistoryJoined(history=history):
            joined = (
                f"this folder had no history; it joined the one born in region {history.region}"
            )
            return msgspec.structs.replace(
                state, region_epoch=history.region_epoch, reason=joined, copied=True
            )
        case FollowResumed(acting_region=acting_region, abandoned_epoch=abandoned_epoch):
            assert state.promise.region_epoch <= max(state.region_epoch, abandoned_epoch), state
            assert acting_region != state.region, state
            return msgspec.structs.replace(state, acting_region=acting_region, reason="")
        case ReturnBegun(entries=entries):
            assert entries, "a return follows at least one entry"
            epochs = [entry.region_epoch for entry in entries]
            assert epochs == sorted(set(epochs)), f"INV-LN1: {epochs}"
            return msgspec.structs.replace(
                state, unseen=entries, acting_region=entries[-1].acting_region
            )
        case Returned(region_epoch=region_epoch):
            return msgspec.structs.replace(
                state, region_epoch=region_epoch, unseen=(), entry=None, takeover=None, refuted=None,
                reason="",
            )  # fmt: skip


def _without_takeover(state: State, reason: str) -> State:
    """A takeover given up after its logs were cut stays reconciled with its own entry: the bytes
    beyond that base are gone from the logs, and a lower base is all that a later entry can ask for.
    """
    wanted = state.takeover.region_epoch if state.takeover is not None else 0
    return msgspec.structs.replace(
        state,
        takeover=None,
        entry=None,
        abandoned_epoch=max(state.abandoned_epoch, wanted),
        reason=reason,
    )


def replay(events: list[Event]) -> State | None:
    """Return the state after a whole journal, None for an empty one (INV-FA1)."""
    if not events:
        return None
    match events[0]:
        case Born() as first:
            state = born(first)
        case HistoryJoined() as first:
            state = fold(unborn(first.region), first)
        case other:
            kind = type(other).__name__
            raise IllegalTransition(f"a journal begins with Born or HistoryJoined, not {kind}")
    for event in events[1:]:
        state = fold(state, event)
    return state


def why_fenced(region: str, region_epoch: RegionEpoch, primary_region: str) -> str:
    """Return why `region` stands still that hears of a higher region epoch: another one acts, or it did so itself.

    Of an epoch of its own it hears only where its folder was wound back to a time before: then it does not act.
    """
    if primary_region == region:
        return (
            f"region {region} itself took over under region epoch {region_epoch}, and this data folder is from before:"
            " give this node its newest one back, if there is one"
        )
    return f"region {primary_region} acts under region epoch {region_epoch}"


def standing_reason(state: State) -> str:
    """Return why a region in `state` takes no writes, and how it goes on (INV-FA9); empty where it may act."""
    if state.may_act:
        return ""
    match state.phase:
        case Phase.MIRRORING:
            return f"this region is about to mirror {state.acting_region}; it goes on by itself"
        case Phase.DISPUTED | Phase.DRAINING:
            return state.reason  # names the choices, or how it ends
        case Phase.FENCED:
            why = state.reason or "another region may act"
            return f"{why}; this region goes on by itself, as soon as a region acts"
        case phase:
            why = state.reason or _PASSING.get(phase, f"this region is {phase.value}")
            return f"{why}; it goes on by itself"


_PASSING: Final[dict[Phase, str]] = {
    Phase.UNBORN: "this folder has no history and asks the other regions for theirs",
    Phase.FENCING: (
        "this region is taking over: it waits for the promises of the others, or until they were waited for"
    ),
    Phase.CUTTING: "this region is taking over: it cuts its logs to the tidemark that it acts from",
    Phase.ADOPTING: "this region is taking over: it loads its ledgers and groups",
    Phase.RETURNING: "this region returns: it cuts off what the region that acts does not hold",
}


class SeekHistory(msgspec.Struct, frozen=True):
    """Ask the other regions who acts, and join its history; wait if nobody does (T32)."""


class Mirror(msgspec.Struct, frozen=True):
    """Follow the primary region."""


class CollectPromises(msgspec.Struct, frozen=True):
    """Ask every other region for a promise, then choose the base."""

    takeover: TakeoverBegun


class CutLogs(msgspec.Struct, frozen=True):
    """Store the entries, move every tail beyond `cut` to quarantine, truncate; follow `lineage_epoch` from then on.

    `cuts_for`: the entries that are cut for; the others were passed over.
    """

    cut: Cut
    lineage_epoch: RegionEpoch
    entries: tuple[EntryRecord, ...]
    cuts_for: tuple[EntryRecord, ...]

    def by_entry(self) -> list[tuple[EntryRecord, Cut]]:
        """Return the cut of each entry that is cut for, oldest first; together they are `cut`.

        In this order each tail is filed under the takeover that lost it: the first of those missed whose base lies
        below it. That one's statement is the one that speaks of it (INV-LO3).
        """
        return [(record, lowest_base((record.entry(),))) for record in self.cuts_for]


class Adopt(msgspec.Struct, frozen=True):
    """Make the cut this region's own: leaders, ledgers, orphans, groups, first tidemark."""

    entry: EntryRecord


class Act(msgspec.Struct, frozen=True):
    """Take writes, once the other regions confirmed that this region still may."""


class AwaitOperator(msgspec.Struct, frozen=True):
    """Stand still, and say why: which history counts is the operator's choice (T33)."""


class RollBackDrain(msgspec.Struct, frozen=True):
    """A drain that a restart finds is over: nobody took over."""


class LearnLineage(msgspec.Struct, frozen=True):
    """Ask the other regions which entries this region has not seen."""


Effect = (
    SeekHistory
    | Mirror
    | CollectPromises
    | CutLogs
    | Adopt
    | Act
    | AwaitOperator
    | RollBackDrain
    | LearnLineage
)


_STANDING_EFFECTS: Final[dict[Phase, Effect]] = {
    Phase.UNBORN: SeekHistory(),
    Phase.MIRRORING: Mirror(),
    Phase.ACTING: Act(),
    Phase.DISPUTED: AwaitOperator(),
    Phase.DRAINING: RollBackDrain(),
    Phase.FENCED: LearnLineage(),
}


def next_effect(state: State) -> Effect:
    """Return what a region in `state` does next, after a restart as in the first run (INV-FA3)."""
    match state.phase:
        case Phase.FENCING:
            assert state.takeover is not None, state
            return CollectPromises(state.takeover)
        case Phase.CUTTING:
            assert state.entry is not None, state
            own = (state.entry,)
            return CutLogs(lowest_base((state.entry.entry(),)), state.entry.region_epoch, own, own)
        case Phase.ADOPTING:
            assert state.entry is not None, state
            return Adopt(state.entry)
        case Phase.RETURNING:
            cuts_for = _to_cut_for(state)
            cut = lowest_base(record.entry() for record in cuts_for)
            return CutLogs(cut, state.unseen[-1].region_epoch, state.unseen, cuts_for)
        case _:
            return _STANDING_EFFECTS[state.phase]


def _to_cut_for(state: State) -> tuple[EntryRecord, ...]:
    """Return the entries unseen that a returning region cuts its logs for: those in force, and its own (INV-LN4).

    A takeover of its own that was passed over may have cut some logs, and written behind its base, before it was given up.
    """
    counting = in_force(state.unseen)
    found = tuple(
        entry for entry in state.unseen if entry in counting or entry.acting_region == state.region
    )
    assert found[-1] == state.unseen[-1], "INV-LN4: the newest entry is in force"
    return found
