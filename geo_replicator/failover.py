"""The failover state machine of one region and one domain: a pure fold of what its journal says (T18).

INV-FA1  state == fold(journal): an event is durable before its effect is run, and nothing else is kept
INV-FA2  an event that the table `TRANSITIONS` does not name for a phase is illegal and changes nothing
INV-FA3  `next_effect` depends on the state only, and every effect may be run again: a process that was
        killed at any step reads its journal and goes on
INV-FA4  writes open in ACTING and nowhere else; ACTING is entered by `Adopted` (or at birth) only
INV-FA5  a promise never goes down, and while it is higher than the region epoch this region does not act

    MIRRORING -> FENCING -> CUTTING -> ADOPTING -> ACTING -> DRAINING -> FENCED -> RETURNING -> MIRRORING

FENCED is the only way out of an unfinished take-over: from there a region learns who acts.

Not here: asking peers, moving bytes, the clock (failover driver); promise rules (`directory`), bases
(`lineage`).
"""

from enum import StrEnum
from typing import Final

import msgspec

from geo_replicator.directory import NO_PROMISE, Promise, PromiseVerdict, judge_promise
from geo_replicator.lineage import Cut, LineageEntry, LogKey, TidemarkPoint, lowest_base


class Phase(StrEnum):
    """Where a region is on the way round."""

    MIRRORING = "mirroring"
    FENCING = "fencing"
    CUTTING = "cutting"
    ADOPTING = "adopting"
    ACTING = "acting"
    DRAINING = "draining"
    FENCED = "fenced"
    RETURNING = "returning"


class EntryRecord(msgspec.Struct, frozen=True):
    """A lineage entry as the journal and peers carry it; positions keyed ``topic_id-hex/partition``."""

    region_epoch: int
    acting_region: str
    base_region_epoch: int
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
    """First record of every journal: what the metadata said when this region first started."""

    region: str
    acting: bool
    region_epoch: int


class TakeoverBegun(msgspec.Struct, frozen=True, tag=True):
    """This region wants to act under `region_epoch`, in place of `old_region` (T24).

    `planned`: the old region was drained, and only the tidemark `final` (epoch, number) will do.
    `forced`: the operator's word stands for promises that cannot be had.
    """

    region_epoch: int
    old_region: str
    operation_id: str
    planned: bool
    forced: bool
    final: tuple[int, int] | None = None


class TakeoverAbandoned(msgspec.Struct, frozen=True, tag=True):
    """This region will never act under the epoch it wanted."""

    reason: str


class CutChosen(msgspec.Struct, frozen=True, tag=True):
    """The base is chosen: from here on there is no way back to the old lineage (T20, T25)."""

    entry: EntryRecord


class LogsCut(msgspec.Struct, frozen=True, tag=True):
    """Every log ends at its position; what lay beyond is in quarantine."""

    region_epoch: int


class Adopted(msgspec.Struct, frozen=True, tag=True):
    """Ledgers loaded, orphans aborted, groups clamped, first tidemark published (T21): writes open."""

    region_epoch: int


class DrainBegun(msgspec.Struct, frozen=True, tag=True):
    """New writes are refused, retriably, so that `to_region` can take over with nothing lost."""

    operation_id: str
    to_region: str


class DrainRolledBack(msgspec.Struct, frozen=True, tag=True):
    """The take-over did not come: writes open again."""

    reason: str


class PromiseGiven(msgspec.Struct, frozen=True, tag=True):
    """`taker` may act under `region_epoch`; nothing older is acted on here (T24)."""

    region_epoch: int
    taker: str


class HigherEpochLearned(msgspec.Struct, frozen=True, tag=True):
    """A peer proved that another region acts: this one fences itself at once."""

    region_epoch: int
    acting_region: str


class FollowResumed(msgspec.Struct, frozen=True, tag=True):
    """Nothing new: `acting_region` still acts under this region's own epoch, and no promise stands."""

    acting_region: str


class ReturnBegun(msgspec.Struct, frozen=True, tag=True):
    """The lineage entries that this region has not followed yet are known (T23, T31)."""

    entries: tuple[EntryRecord, ...]


class Returned(msgspec.Struct, frozen=True, tag=True):
    """Every log was cut back to the base: this region mirrors under `region_epoch`."""

    region_epoch: int


Event = (
    Born
    | TakeoverBegun
    | TakeoverAbandoned
    | CutChosen
    | LogsCut
    | Adopted
    | DrainBegun
    | DrainRolledBack
    | PromiseGiven
    | HigherEpochLearned
    | FollowResumed
    | ReturnBegun
    | Returned
)


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The fold of a journal. `region_epoch` is the epoch this region's logs are reconciled with."""

    region: str
    phase: Phase
    region_epoch: int
    acting_region: str = ""
    promise: Promise = NO_PROMISE
    takeover: TakeoverBegun | None = None
    entry: EntryRecord | None = None
    unseen: tuple[EntryRecord, ...] = ()
    abandoned_epoch: int = 0
    reason: str = ""

    @property
    def may_act(self) -> bool:
        """Return True where writes may be taken (INV-FA4, INV-FA5)."""
        return self.phase is Phase.ACTING and self.promise.region_epoch <= self.region_epoch

    @property
    def highest_epoch_known(self) -> int:
        """Return the highest region epoch that this region may never undercut (T19)."""
        wanted = self.takeover.region_epoch if self.takeover is not None else 0
        newest = self.unseen[-1].region_epoch if self.unseen else 0
        return max(
            self.region_epoch, self.promise.region_epoch, wanted, newest, self.abandoned_epoch
        )


class IllegalTransition(Exception):
    """An event came in a phase that does not know it."""


_M, _FG, _CU, _AD = Phase.MIRRORING, Phase.FENCING, Phase.CUTTING, Phase.ADOPTING
_AC, _DR, _FD, _RE = Phase.ACTING, Phase.DRAINING, Phase.FENCED, Phase.RETURNING

TRANSITIONS: Final[dict[tuple[type[Event], Phase], Phase]] = {
    (TakeoverBegun, _M): _FG,
    (TakeoverBegun, _FD): _FG,
    (TakeoverAbandoned, _FG): _FD,
    (CutChosen, _FG): _CU,
    (LogsCut, _CU): _AD,
    (Adopted, _AD): _AC,
    (DrainBegun, _AC): _DR,
    (DrainRolledBack, _DR): _AC,
    # Whoever promised stands still until the taker acts: nothing older is acted on or reached (T24).
    (PromiseGiven, _M): _FD,
    (PromiseGiven, _FG): _FD,
    (PromiseGiven, _CU): _FD,
    (PromiseGiven, _AD): _FD,
    (PromiseGiven, _AC): _FD,
    (PromiseGiven, _DR): _FD,
    (PromiseGiven, _FD): _FD,
    (PromiseGiven, _RE): _FD,
    (HigherEpochLearned, _M): _FD,
    (HigherEpochLearned, _FG): _FD,
    (HigherEpochLearned, _CU): _FD,
    (HigherEpochLearned, _AD): _FD,
    (HigherEpochLearned, _AC): _FD,
    (HigherEpochLearned, _DR): _FD,
    (HigherEpochLearned, _FD): _FD,
    (HigherEpochLearned, _RE): _FD,
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


def fold(state: State, event: Event) -> State:
    """Return the state after `event`; raises `IllegalTransition` (INV-FA2)."""
    target = TRANSITIONS.get((type(event), state.phase))
    if target is None:
        raise IllegalTransition(f"{type(event).__name__} in phase {state.phase}: {event}")
    changed = msgspec.structs.replace(_remember(state, event), phase=target)
    assert not changed.may_act or changed.acting_region == changed.region, changed
    return changed


TakeoverEvent = TakeoverBegun | TakeoverAbandoned | CutChosen | LogsCut | Adopted


def _remember(state: State, event: Event) -> State:
    if isinstance(event, TakeoverEvent):
        return _remember_takeover(state, event)
    match event:
        case DrainBegun(to_region=to_region):
            reason = f"draining: region {to_region} is about to take over"
            return msgspec.structs.replace(state, reason=reason)
        case DrainRolledBack():
            return msgspec.structs.replace(state, reason="")
        case PromiseGiven(region_epoch=region_epoch, taker=taker):
            fenced = _without_takeover(
                state, f"region {taker} was promised region epoch {region_epoch}"
            )
            return msgspec.structs.replace(fenced, promise=Promise(region_epoch, taker))
        case HigherEpochLearned(region_epoch=region_epoch, acting_region=acting_region):
            fenced = _without_takeover(
                state, f"region {acting_region} acts under region epoch {region_epoch}"
            )
            return msgspec.structs.replace(fenced, acting_region=acting_region, unseen=())
        case FollowResumed() | ReturnBegun() | Returned():
            return _remember_return(state, event)
        case Born():
            raise AssertionError("a region is born once: the table has no row for it")


def _remember_takeover(state: State, event: TakeoverEvent) -> State:
    match event:
        case TakeoverBegun():
            own = Promise(event.region_epoch, state.region)
            verdict = judge_promise(state.promise, state.region_epoch, own)
            assert verdict in {PromiseVerdict.GRANTED, PromiseVerdict.REPEATED}, (state, event)
            return msgspec.structs.replace(
                state, takeover=event, entry=None, promise=own, reason=""
            )
        case TakeoverAbandoned(reason=reason):
            # The promise was to itself, for an epoch that is now never used: it binds nobody.
            return msgspec.structs.replace(_without_takeover(state, reason), promise=NO_PROMISE)
        case CutChosen(entry=entry):
            assert state.takeover is not None, state
            assert entry.region_epoch == state.takeover.region_epoch, (entry, state.takeover)
            return msgspec.structs.replace(state, entry=entry)
        case LogsCut(region_epoch=region_epoch):
            assert state.entry is not None, state
            assert region_epoch == state.entry.region_epoch, (region_epoch, state.entry)
            return state
        case Adopted(region_epoch=region_epoch):
            assert state.entry is not None, state
            assert region_epoch == state.entry.region_epoch, (region_epoch, state.entry)
            return msgspec.structs.replace(
                state,
                region_epoch=region_epoch,
                acting_region=state.region,
                takeover=None,
                reason="",
            )


def _remember_return(state: State, event: FollowResumed | ReturnBegun | Returned) -> State:
    match event:
        case FollowResumed(acting_region=acting_region):
            assert state.promise.region_epoch <= state.region_epoch, state
            assert acting_region != state.region, state
            return msgspec.structs.replace(state, acting_region=acting_region, reason="")
        case ReturnBegun(entries=entries):
            assert entries, "a return follows at least one entry"
            return msgspec.structs.replace(
                state, unseen=entries, acting_region=entries[-1].acting_region
            )
        case Returned(region_epoch=region_epoch):
            return msgspec.structs.replace(
                state, region_epoch=region_epoch, unseen=(), entry=None, takeover=None, reason=""
            )


def _without_takeover(state: State, reason: str) -> State:
    """A take-over given up after its logs were cut stays reconciled with its own entry: the bytes
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
    first = events[0]
    if not isinstance(first, Born):
        raise IllegalTransition(f"a journal begins with Born, not {type(first).__name__}")
    state = born(first)
    for event in events[1:]:
        state = fold(state, event)
    return state


class Mirror(msgspec.Struct, frozen=True):
    """Follow the acting region."""


class CollectPromises(msgspec.Struct, frozen=True):
    """Ask every other site for a promise, then choose the base."""

    takeover: TakeoverBegun


class CutLogs(msgspec.Struct, frozen=True):
    """Store the entry, move every tail beyond `cut` to quarantine, truncate; `lineage_epoch` keys it."""

    cut: Cut
    lineage_epoch: int
    entries: tuple[EntryRecord, ...]


class Adopt(msgspec.Struct, frozen=True):
    """Make the cut this region's own: leaders, ledgers, orphans, groups, first tidemark."""

    entry: EntryRecord


class Act(msgspec.Struct, frozen=True):
    """Take writes, once the other sites confirmed that this region still may."""


class RollBackDrain(msgspec.Struct, frozen=True):
    """A drain that a restart finds is over: nobody took over."""


class LearnLineage(msgspec.Struct, frozen=True):
    """Ask the other sites which entries this region has not seen."""


Effect = Mirror | CollectPromises | CutLogs | Adopt | Act | RollBackDrain | LearnLineage


def next_effect(state: State) -> Effect:
    """Return what a region in `state` does next, after a restart as in the first run (INV-FA3)."""
    match state.phase:
        case Phase.MIRRORING:
            return Mirror()
        case Phase.FENCING:
            assert state.takeover is not None, state
            return CollectPromises(state.takeover)
        case Phase.CUTTING:
            assert state.entry is not None, state
            entry = state.entry.entry()
            return CutLogs(lowest_base((entry,)), entry.region_epoch, (state.entry,))
        case Phase.ADOPTING:
            assert state.entry is not None, state
            return Adopt(state.entry)
        case Phase.ACTING:
            return Act()
        case Phase.DRAINING:
            return RollBackDrain()
        case Phase.FENCED:
            return LearnLineage()
        case Phase.RETURNING:
            cut = lowest_base(record.entry() for record in state.unseen)
            return CutLogs(cut, state.unseen[-1].region_epoch, state.unseen)


def transition_rows() -> list[tuple[str, str, str]]:
    """Return the table as (phase, event, next phase) in order: the source of the docs' diagram."""
    return sorted(
        (phase.value, event.__name__, target.value)
        for (event, phase), target in TRANSITIONS.items()
    )
