"""A region that stands still: it asks until it is known who acts, or that it must itself (T31).

INV-FS5  a region acts again by itself only if every region says that nobody acts or is about to, and nothing that was
         acknowledged here lies beyond the last tidemark; a promise whose candidate said that it gave up is of nobody who is about to act,
         whoever gave it
INV-FS7  the return of a region that holds no record names no log where it has no room in the record otherwise: an emptied folder joins
         behind any number of takeovers. It does name them where there is room: an older version does not know one without
         1. A region has missed too many takeovers for the number of its logs: its return has no room in the record. 2. Its folder is
         emptied, and joins. 3. By then it has missed all takeovers that there ever were.
What is awaited is told once it is found twice in a row: in a failover it passes. Where every region answers and none
acts or is about to, an operator ends it, or the pause before the next takeover from itself, and `nobody_acts` of the outlook says so.
Nothing is followed under an epoch below the one that was promised, until that candidate says that it gave up (T24).

Not here: cutting the logs on the way back (`region.failover.steps.effects`).
"""

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from typing import Final, TypeAlias

import msgspec

from geo_replicator.directory import is_abandoned, next_region_epoch
from geo_replicator.failover import Phase, State, fold, standing_reason
from geo_replicator.failover_events import (
    EntryRecord,
    Event,
    FollowResumed,
    ReturnBegun,
    TakeoverBegun,
)
from idempotency.fencing import EpochExhausted
from idempotency.identity import RegionEpoch
from region_broker.region.failover.log_surgery import is_acknowledged_work, tail_beyond
from region_broker.region.failover.messages import SiteStatus
from region_broker.region.failover.steps.disputed import ways_to_lost_logs
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.failover.steps.recording import record_lineage

_log: Final = logging.getLogger("tidemark.failover")
HasRoom: TypeAlias = Callable[[Event, State], bool]
_TAKING_OVER: Final = frozenset({Phase.FENCING, Phase.CUTTING, Phase.ADOPTING})


async def learn_lineage(outlook: Outlook, state: State, has_room: HasRoom) -> Event:
    """Stand still and ask until it is known who acts (T31). A region that is silent delays no answer of another one.

    `has_room`: see `FailoverRecord`.
    """
    await outlook.parts.role.fence(standing_reason(state))
    awaited = _Awaited(outlook, state)
    try:
        while True:
            statuses: Mapping[str, SiteStatus] = {}
            async with aclosing(outlook.statuses_as_told()) as told:
                async for statuses in told:
                    found = _whom_to_follow(outlook, state, statuses)
                    if isinstance(found, ReturnBegun):
                        whole = not _holds_nothing(outlook) or has_room(found, fold(state, found))
                        return found if whole else await _in_brief(outlook, found)
                    if found is not None:
                        return found
            if await _reclaims_now(outlook, state, statuses):
                try:
                    return _reclaim(outlook, state, statuses)
                except EpochExhausted as error:
                    awaited.tell_exhausted(error)
            else:
                await awaited.tell(statuses)
            await outlook.parts.clock.sleep_ms(outlook.settings.poll_ms)
    finally:
        outlook.nobody_acts = False


def _whom_to_follow(
    outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]
) -> Event | None:
    unseen = _unseen_entries(outlook, state)
    another = unseen and unseen[-1].acting_region != outlook.region
    if another and not is_bound(outlook, state, unseen[-1].region_epoch):
        return ReturnBegun(unseen)
    given_up = outlook.abandoned_epoch(state.promise.candidate)
    if state.promise.region_epoch <= max(state.region_epoch, given_up):
        for name, status in statuses.items():
            if status.is_primary and status.region_epoch == state.region_epoch:
                return FollowResumed(name, given_up)
    return None


def _holds_nothing(outlook: Outlook) -> bool:
    """Return whether there is no record here that a takeover can have cut off, nor was one that came back some day (T36)."""
    logs = outlook.parts.role.logs()
    is_empty = all(log.failed is None and log.log_end_offset == 0 for log in logs)
    return is_empty and not outlook.parts.manifest.lost()


async def _in_brief(outlook: Outlook, found: ReturnBegun) -> ReturnBegun:
    """Record the entries in the metadata, one by one, and return a return that names no log (INV-FS7)."""
    for record in found.entries:
        await record_lineage(outlook, record, learnt=True)
    return ReturnBegun(
        tuple(msgspec.structs.replace(record, positions={}) for record in found.entries)
    )


def is_bound(outlook: Outlook, state: State, region_epoch: RegionEpoch) -> bool:
    """Return True where a promise forbids to follow who acts under `region_epoch`.

    1. One region is promised 17, another one 24, and neither knows of the other. 2. The one of 17 acts. 3. A region that
    promised 24 follows it, and reaches its tidemarks: sync commits are answered. 4. The one of 24 acts, from a cut that
    was chosen by the promise, and takes them back. A failover candidate that gave up never uses that epoch again.
    """
    promise = state.promise
    if region_epoch >= promise.region_epoch or promise.candidate == state.region:
        return False
    return outlook.abandoned_epoch(promise.candidate) < promise.region_epoch


class _Awaited:
    """Says what a region that stands still waits for."""

    def __init__(self, outlook: Outlook, state: State) -> None:
        """Nothing is told yet."""
        self._outlook = outlook
        self._state = state
        self._found = ""
        self._logged: set[str] = set()

    async def tell(self, statuses: Mapping[str, SiteStatus]) -> None:
        """Name what an operator can do: with one region gone for good, no region acts again by itself (INV-FS5)."""
        outlook, before = self._outlook, self._found
        unseen = _unseen_entries(outlook, self._state)
        if unseen and is_bound(outlook, self._state, unseen[-1].region_epoch):
            outlook.parts.role.close_gate(self._bound_by(unseen[-1].acting_region))
            outlook.nobody_acts = False
            return
        if any(status.is_primary for status in statuses.values()):
            self._found, outlook.nobody_acts = "", False
            return
        candidates = [name for name, status in statuses.items() if status.phase in _TAKING_OVER]
        heard = {*statuses, *await self._who_knows_the_later_life()}
        silent = [name for name in outlook.parts.peers.names() if name not in heard]
        self._found = self._choices(statuses, silent, candidates)
        reason = f"{self._state.reason or 'another region may act'}. {self._found}"
        outlook.parts.role.close_gate(reason)
        lasts = self._found == before and not candidates
        outlook.nobody_acts = lasts and not silent
        if lasts:
            self._log_once(reason)

    def tell_exhausted(self, error: EpochExhausted) -> None:
        """Say that nobody can take over any more: the node stands still, and answers whoever asks (INV-F3)."""
        reason = f"this region would act again, and cannot: {error}"
        self._outlook.parts.role.close_gate(reason)
        self._outlook.nobody_acts = True
        self._log_once(reason)

    def _log_once(self, reason: str) -> None:
        if reason not in self._logged:
            self._logged.add(reason)
            _log.warning("%s", reason)

    def _bound_by(self, primary_region: str) -> str:
        promise = self._state.promise
        return (
            f"region {primary_region} acts, but region {promise.candidate} was promised the higher region epoch"
            f" {promise.region_epoch}: this region goes on by itself, when {promise.candidate} acts or gives up. If"
            f" {promise.candidate} is lost, or has lost its memory of it: start this region with an empty data folder, and it copies all"
            f" from {primary_region}; or give up what {primary_region} has acknowledged: tidemark region failover --to"
            f" {self._outlook.region} --accept-behind"
        )

    async def _who_knows_the_later_life(self) -> Iterable[str]:
        """Return who refuses this region's questions because its folder was wound back: they answer, and tell who acts."""
        if not self._was_wound_back():
            return ()
        timeout_ms = self._outlook.settings.ask_timeout_ms
        return await self._outlook.parts.peers.further_on(timeout_ms=timeout_ms)

    def _was_wound_back(self) -> bool:
        unseen = _unseen_entries(self._outlook, self._state)
        return bool(unseen) and unseen[-1].acting_region == self._outlook.region

    def _choices(
        self, statuses: Mapping[str, SiteStatus], silent: Sequence[str], candidates: Sequence[str]
    ) -> str:
        if candidates:
            return f"Region {', '.join(candidates)} is taking over: this one goes on by itself, when it acts or gives up"
        refuted = self._state.refuted
        if refuted is not None and refuted.lost_here and self._outlook.parts.manifest.lost():
            unheard = f", and {', '.join(silent)} does not answer: it may act, or be about to"
            ways = ways_to_lost_logs(self._outlook, refuted)
            return f"No region that answers acts{unheard if silent else ''}. What to do: {ways}"
        if silent:
            return (
                f"No region that answers acts, and {', '.join(silent)} does not answer: it may act, or be about to. If"
                " it is lost: tidemark region failover --to the region with the highest tidemark"
            )
        if self._was_wound_back():
            return f"No other region acts: tidemark region failover --to {self._best(statuses)}"
        return (
            "No region acts, and none is about to: where that stays so, tidemark region failover"
            f" --to {self._best(statuses)}"
        )

    def _best(self, statuses: Mapping[str, SiteStatus]) -> str:
        """Return the region with the highest tidemark, as far as all tell it."""
        outlook, others = self._outlook, self._outlook.parts.peers.names()
        if statuses.keys() == set(others) and not outlook.parts.manifest.lost():
            claims = {name: status.claim for name, status in sorted(statuses.items())}
            claims[outlook.region] = outlook.known_claim().point
            return f"{max(claims, key=claims.__getitem__)}, which has the highest tidemark"
        return others[0] if len(others) == 1 else "the region with the highest tidemark"


async def _reclaims_now(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> bool:
    if _unseen_entries(outlook, state) or not outlook.reclaim_pause.is_over(state):
        return False
    return await may_reclaim(outlook, state, statuses)


async def may_reclaim(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> bool:
    """Return whether this region, which acted last, may act again by a takeover from itself (T31).

    1. It promised an epoch. 2. The candidate never got the answer and gave up, for good. 3. Nobody acts, and
    nobody will. Every region must say so, and the last tidemark must hold all that was acknowledged here.
    """
    if state.refuted is not None or outlook.is_refuted(state.region_epoch):
        return False  # T33: what a mirror has shown and this region lacks is an operator's choice
    domain = outlook.domain
    if outlook.parts.manifest.lost():
        return False  # T36: it does not hold all that it had
    if state.copied:
        return False  # T32: it acted last in another life, and holds nothing of it that it did not copy
    if (domain.acting_region, domain.region_epoch) != (outlook.region, state.region_epoch):
        return False
    if set(statuses) != set(outlook.parts.peers.names()):
        return False
    abandoned = {name: outlook.abandoned_epoch(name) for name in statuses}
    abandoned[outlook.region] = state.abandoned_epoch
    if not all(_gave_up(status, state, abandoned) for status in statuses.values()):
        return False
    own = outlook.known_claim().point
    if any(status.claim > own for status in statuses.values()):
        return False  # T24: to act from here would take back what another one has reached
    tail = await tail_beyond(outlook.parts.role.logs(), outlook.known_claim())
    if tail.unreadable:
        _log.warning("this region does not act again by itself: %s", "; ".join(tail.unreadable))
    return not is_acknowledged_work(tail)


def _reclaim(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> TakeoverBegun:
    """Return the takeover of this region from itself; raises `EpochExhausted`."""
    known = [state.highest_epoch_known]
    known += [status.highest_epoch_known for status in statuses.values()]
    ordinal = outlook.parts.metadata.image.regions[outlook.region].ordinal
    epoch = next_region_epoch(known, ordinal)
    _log.warning("nobody acts and nobody is about to: this region takes over from itself")
    return TakeoverBegun(
        region_epoch=epoch,
        old_region=outlook.region,
        operation_id=f"reclaim-{epoch}",
        planned=False,
        forced=False,
    )


def _unseen_entries(outlook: Outlook, state: State) -> tuple[EntryRecord, ...]:
    known = {entry.region_epoch: entry for entry in outlook.domain.lineage}
    for hello in outlook.hellos.values():
        known.update({entry.region_epoch: entry for entry in hello.lineage})
    return tuple(
        EntryRecord(**msgspec.structs.asdict(known[epoch]))
        for epoch in sorted(known)
        if epoch > state.region_epoch
    )


def _gave_up(status: SiteStatus, state: State, abandoned: Mapping[str, RegionEpoch]) -> bool:
    """Return whether a region neither acts nor wants to, and knows nothing newer than `state`.

    What it promised stays recorded for good, also where the candidate, this region itself at times, said that it gave up: then it
    binds nobody, as where a region starts (`judge_start`).
    """
    stands = status.phase in {Phase.MIRRORING, Phase.FENCED}
    promise = status.report().promise
    promised = RegionEpoch(0) if is_abandoned(promise, abandoned) else promise.region_epoch
    asked_for_it = status.highest_epoch_known >= state.promise.region_epoch
    if status.region == state.promise.candidate and not asked_for_it:
        return False  # it lost its memory of what it was promised: the operator must say
    return stands and max(status.region_epoch, promised) <= state.region_epoch
