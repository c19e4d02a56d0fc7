"""A region whose folder has no history: it asks who acts, joins it as a mirror, or waits and says why (T32).

It joins a region that acts, under the highest region epoch that anybody who answers knows, and nothing else. What it
heard before from the regions that answer counts no more: it takes the lineage as they tell it now. The metadata and the
identity name the history before the journal does: after a crash between metadata and identity it asks again, after one
between identity and journal the journal follows at once. Whoever acts would refuse to be asked by a folder that has a history,
and not its lineage.

Not here: following the lineage from there on (`region.failover.steps.fenced`, `region.failover.steps.effects`), birth (`node.birth`).
"""

import logging
from collections.abc import Mapping
from typing import Final

import msgspec

from geo_replicator.failover_events import Event, HistoryJoined
from geo_replicator.folder_life import Birth, birth_of_older_folder
from idempotency import fencing
from region_broker.controller.metadata_commands import birth_of
from region_broker.region.failover.messages import SiteStatus
from region_broker.region.failover.steps.outlook import Outlook
from region_broker.region.peers.protocol import Hello

_log: Final = logging.getLogger("tidemark.failover")


async def seek_history(outlook: Outlook) -> Event:
    """Ask until a region acts, and join its history; the one that was being joined when the node ended, without asking."""
    begun = outlook.parts.folder.identity.history
    if begun is not None:
        return await _join(outlook, begun)
    reason = ""
    while True:
        hellos, silent = await outlook.parts.peers.handshakes(
            timeout_ms=outlook.settings.ask_timeout_ms
        )
        if (
            outlook.lives.unsure()
        ):  # it looks for the start before this one, and says in a moment (T36)
            await outlook.parts.clock.sleep_ms(outlook.settings.ask_again_ms)
            continue
        statuses = await outlook.statuses()
        acting = _acting(hellos, statuses)
        if acting is not None:
            outlook.forget_former_lives(hellos)
            return await _join(outlook, _history_of(outlook, acting))
        found = _why_it_waits(outlook, hellos, silent)
        if found != reason:
            reason = found
            _log.warning("%s", reason)
        await outlook.parts.role.stand_still(reason)
        await outlook.parts.clock.sleep_ms(outlook.settings.poll_ms)


def _acting(hellos: Mapping[str, Hello], statuses: Mapping[str, SiteStatus]) -> Hello | None:
    """Return the hello of the region that acts, unless one that answers knows a higher region epoch."""
    newest = max((hello.region_epoch for hello in hellos.values()), default=0)
    for name, hello in hellos.items():
        status = statuses.get(name)
        acts = status is not None and status.is_primary and status.region_epoch == newest
        if acts and hello.region_epoch == newest:
            return hello
    return None


async def _join(outlook: Outlook, history: Birth) -> Event:
    domain = outlook.domain
    if domain.region_epoch < history.region_epoch:
        first = msgspec.structs.replace(
            domain, acting_region=history.region, region_epoch=history.region_epoch
        )
        metadata = outlook.parts.metadata
        await metadata.apply(birth_of(metadata.image, first))
    await outlook.parts.folder.join(history)
    _log.warning("this folder had no history: it joins the one born in region %s", history.region)
    return HistoryJoined(outlook.region, history, outlook.parts.folder.identity.folder_id)


def _history_of(outlook: Outlook, acting: Hello) -> Birth:
    if acting.folder is not None and acting.folder.history is not None:
        return acting.folder.history
    # It runs a version that does not tell: its history began with the first region epoch of its lineage.
    epoch = acting.lineage[0].base_region_epoch if acting.lineage else acting.region_epoch
    ordinal = fencing.region_ordinal_of(epoch)
    regions = outlook.parts.metadata.image.regions.values()
    region = next((found.name for found in regions if found.ordinal == ordinal), acting.region)
    return birth_of_older_folder(acting.cluster_id, region, epoch)


def _why_it_waits(outlook: Outlook, hellos: Mapping[str, Hello], silent: Mapping[str, str]) -> str:
    holders = sorted(name for name, hello in hellos.items() if not hello.without_history)
    told = (
        f"the data folder of region {outlook.region} has no history, so this region takes no writes"
    )
    if holders:
        return (
            f"{told}: region {', '.join(holders)} has history, and nobody acts. Give this node its own data folder"
            f" back, or let that region act: tidemark region failover --to {holders[0]}. This one then joins it"
        )
    unheard = "; ".join(f"region {name}: {why}" for name, why in silent.items())
    birth = "If this cluster is new, run tidemark init --config FILE once, at its primary region, while the node there is stopped"
    if unheard:
        return (
            f"{told}: it waits for a region that acts ({unheard}). If its data is elsewhere (a disk that is not"
            f" mounted), stop it and give it back. {birth}"
        )
    return f"{told}, and no other region has history. {birth}"
