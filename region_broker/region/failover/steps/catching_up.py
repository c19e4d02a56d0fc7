"""Before a failover candidate chooses its base: it copies what another region that promised has reached beyond it (T24).

INV-CUP1  a takeover goes on only at the greatest valid claim that was answered, or beyond it: that a lesser one is beyond this region's
         own, too, is no way round it
A base below a valid claim that was answered is chosen only by the operator's explicit word (`accepts_behind`). Nothing
is cut before; a takeover given up here has lost nothing, and says which region holds more. As long as something
arrives, it goes on; after `catch_up_stall_ms` without, or where the histories differ, it is given up.

1. The primary's link to this region is cut; a third region reaches more, and shows it. 2. The primary is lost. 3. This
region takes over, and has the third one's promise. 4. Did it cut at its own tidemark, readers of the third region would
be taken back.

Not here: the donor's side (`primary_side`), what is copied how (`region.mirror.donor`).
"""

import logging
from collections.abc import Mapping, Sequence

from geo_replicator.failover import State
from geo_replicator.failover_events import TakeoverBegun
from geo_replicator.lineage import TidemarkPoint
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import LeaderEpoch
from region_broker.region.failover.messages import PromiseAnswer
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.ports import Term

_log = logging.getLogger("tidemark.failover")


def claims_ahead(
    outlook: Outlook, own: TidemarkPoint, answers: Mapping[str, PromiseAnswer]
) -> dict[str, TidemarkPoint]:
    """Return the valid claims beyond `own`, the greatest first (T24, T25)."""
    lineage = outlook.lineage()
    valid = {name: answer.claim for name, answer in answers.items() if answer.claim > own}
    return {
        name: valid[name]
        for name in sorted(valid, key=lambda name: (valid[name], name), reverse=True)
        if not lineage.is_void(valid[name])
    }


async def reach_claims(
    outlook: Outlook,
    state: State,
    takeover: TakeoverBegun,
    answers: Mapping[str, PromiseAnswer],
) -> str | None:
    """Copy up to the greatest claim; return why the takeover must be given up, None to go on."""
    if takeover.accepts or takeover.accepts_behind:
        return None
    try:
        own = outlook.claim().point
    except TidemarkError as error:
        return str(error)
    ahead = claims_ahead(outlook, own, answers)
    greatest = next(iter(ahead.values()), own)
    for name, claim in ahead.items():
        if claim != greatest:
            break  # whoever holds less than what cannot be copied is no way to go on
        if await _copied(outlook, state, name, claim):
            return None
    return _way_out(outlook, ahead) if ahead else None


async def _copied(outlook: Outlook, state: State, donor: str, claim: TidemarkPoint) -> bool:
    parts, settings = outlook.parts, outlook.settings
    _log.warning("region %s has reached %s: it is copied from there first", donor, claim)
    no_leader = LeaderEpoch(0)
    await parts.role.mirror(
        Term(state.region_epoch, no_leader, donor, from_donor=True, wanted=claim)
    )
    arrived: tuple[TidemarkPoint, int] | None = None
    since_ms = parts.clock.monotonic_ms()
    while outlook.known_claim().point < claim:
        if parts.tidemarks.lag().get("refused_history"):
            return False
        now_ms = parts.clock.monotonic_ms()
        held = (outlook.known_claim().point, sum(log.log_end_offset for log in parts.role.logs()))
        if held != arrived:
            arrived, since_ms = held, now_ms
        elif now_ms - since_ms >= settings.catch_up_stall_ms:
            return False
        await parts.clock.sleep_ms(settings.catch_up_poll_ms)
    return True


def _way_out(outlook: Outlook, ahead: Mapping[str, TidemarkPoint]) -> str:
    donor, claim = next(iter(ahead.items()))
    why = outlook.parts.tidemarks.lag().get("last_error") or "nothing arrived from there any more"
    return (
        f"region {donor} has reached {claim}, this region only {outlook.known_claim().point}, and the rest could"
        f" not be copied from there ({why}). Nothing was cut. To lose nothing that region {donor} has shown:"
        f" tidemark region failover --to {donor}. To give that up: tidemark region failover --to"
        f" {outlook.region} --accept-behind. Where region {donor} is lost by now, the same order, given again, goes on at what the regions"
        " that answer have reached"
    )


def passed_over_text(outlook: Outlook, beyond: Sequence[str]) -> str:
    """Say why a takeover is given up where `beyond` are up and at a later region epoch, and what else can be done."""
    names, own = ", ".join(beyond), outlook.region
    return (
        f"region {names} answers and is at a later region epoch than this region has followed: what was acknowledged under it"
        f" would be given up. Nothing was cut. To keep it: start region {own} with an empty data folder, and it copies all from"
        f" the region that acts. To give it up: tidemark region failover --to {own} --accept-behind"
    )


def behind_text(outlook: Outlook, own: TidemarkPoint, answers: Mapping[str, PromiseAnswer]) -> str:
    """Return what the loss statement says of regions that have reached more than the base; empty for none."""
    told = [
        f"region {name} has reached {claim} and shown it: what lies beyond {own} is taken back from its readers, by"
        " the operator's word"
        for name, claim in claims_ahead(outlook, own, answers).items()
    ]
    return "; ".join(told)


def unheard_text(
    outlook: Outlook,
    own: TidemarkPoint,
    takeover: TakeoverBegun,
    answers: Mapping[str, PromiseAnswer],
) -> str:
    """Return what the loss statement says of regions, beside the old one, that did not say what they have reached (T24)."""
    absent = [name for name in outlook.parts.peers.names() if name not in answers]
    return "; ".join(
        f"region {name} did not say what it has reached: what it has shown beyond {own} is taken back from its readers, and"
        " goes to quarantine there"
        for name in absent
        if name != takeover.old_region
    )
