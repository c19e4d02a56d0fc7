"""A region that stands still: it asks until it is known who acts, or that it must itself (T31).

INV-FS5  a region acts again by itself only if every site says that nobody acts or is about to, and nothing that was
         acknowledged here lies beyond the last tidemark

Not here: cutting the logs on the way back (`steps.failover_steps`).
"""

import logging
from collections.abc import Mapping
from contextlib import aclosing
from typing import Final

import msgspec

from geo_replicator.directory import next_region_epoch
from geo_replicator.failover import Phase, State, standing_reason
from geo_replicator.failover_events import (
    EntryRecord,
    Event,
    FollowResumed,
    ReturnBegun,
    TakeoverBegun,
)
from region_broker.adapters.takeover.failover_messages import SiteStatus
from region_broker.adapters.takeover.log_surgery import is_acknowledged_work, tail_beyond
from region_broker.adapters.takeover.steps.outlook import Outlook

_log: Final = logging.getLogger("tidemark.failover")
_TAKING_OVER: Final = frozenset({Phase.FENCING, Phase.CUTTING, Phase.ADOPTING})


async def learn_lineage(outlook: Outlook, state: State) -> Event:
    """Stand still and ask until it is known who acts (T31). A region that is silent delays no answer of another one."""
    await outlook.parts.role.fence(standing_reason(state))
    while True:
        statuses: Mapping[str, SiteStatus] = {}
        async with aclosing(outlook.statuses_as_told()) as told:
            async for statuses in told:
                found = _whom_to_follow(outlook, state, statuses)
                if found is not None:
                    return found
        if not _unseen_entries(outlook, state) and await may_reclaim(outlook, state, statuses):
            return _reclaim(outlook, state, statuses)
        _say_who_is_awaited(outlook, state, statuses)
        await outlook.parts.clock.sleep_ms(outlook.settings.poll_ms)


def _whom_to_follow(
    outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]
) -> Event | None:
    unseen = _unseen_entries(outlook, state)
    if unseen and unseen[-1].acting_region != outlook.region:
        return ReturnBegun(unseen)
    if state.promise.region_epoch <= state.region_epoch:
        for name, status in statuses.items():
            if status.is_home and status.region_epoch == state.region_epoch:
                return FollowResumed(name)
    return None


def _say_who_is_awaited(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> None:
    """Name what an operator can do: with one region gone for good, no region acts again by itself (INV-FS5)."""
    if any(status.is_home for status in statuses.values()):
        return
    silent = [name for name in outlook.parts.peers.names() if name not in statuses]
    takers = [name for name, status in statuses.items() if status.phase in _TAKING_OVER]
    if takers:
        found = f"Region {', '.join(takers)} is taking over: this one goes on by itself, when it acts or gives up"
    elif silent:
        found = (
            f"No region that answers acts, and {', '.join(silent)} does not answer: it may act, or be about to. If it"
            " is lost: tidemark region failover --to the region with the highest tidemark"
        )
    else:
        found = (
            "No region acts, and none is about to: where that stays so, tidemark region failover --to the region with"
            " the highest tidemark"
        )
    outlook.parts.role.close_gate(f"{state.reason or 'another region may act'}. {found}")


async def may_reclaim(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> bool:
    """Return whether this region, which acted last, may act again by a takeover from itself (T31).

    1. It promised an epoch. 2. The taker never got the answer and gave up, for good. 3. Nobody acts, and
    nobody will. Every site must say so, and the last tidemark must hold all that was acknowledged here.
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
    if not all(_gave_up(status, state) for status in statuses.values()):
        return False
    own = outlook.known_claim().point
    if any(status.claim > own for status in statuses.values()):
        return False  # T24: to act from here would take back what another one has reached
    tail = await tail_beyond(outlook.parts.role.logs(), outlook.known_claim())
    if tail.unreadable:
        _log.warning("this region does not act again by itself: %s", "; ".join(tail.unreadable))
    return not is_acknowledged_work(tail)


def _reclaim(outlook: Outlook, state: State, statuses: Mapping[str, SiteStatus]) -> TakeoverBegun:
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


def _gave_up(status: SiteStatus, state: State) -> bool:
    """Return whether a site neither acts nor wants to, and knows nothing newer than `state`."""
    stands = status.phase in {Phase.MIRRORING, Phase.FENCED}
    newest = max(status.region_epoch, status.promised_epoch)
    asked_for_it = status.highest_epoch_known >= state.promise.region_epoch
    if status.region == state.promise.taker and not asked_for_it:
        return False  # it lost its memory of what it was promised: the operator must say
    return stands and newest <= state.region_epoch
