"""Recording a lineage entry in the metadata of this region: its own, or one of those that it missed (T25).

A region that took over, was wound back, and began the same region epoch a second time without acting under it, learns the first one
from who followed that (INV-M24).
Not here: which entries there are to record (`region.failover.steps.fenced`), what the metadata make of them (`metadata_commands`).
"""

import logging
from typing import Final

import msgspec

from geo_replicator.failover_events import EntryRecord
from region_broker.controller import metadata_image
from region_broker.controller.metadata_commands import RecordLineage
from region_broker.controller.refusals import STALE_REGION_EPOCH, CommandRefused
from region_broker.region.failover.steps.outlook import Outlook

AGAIN_MS: Final = 10_000
_log: Final = logging.getLogger("tidemark.failover")


async def record_lineage(outlook: Outlook, record: EntryRecord, *, learnt: bool) -> None:
    """Return once the entry is recorded; raises `CommandRefused` for one of this region's own that comes too late.

    One without positions may be another one in brief, which was recorded before (INV-FS7).
    """
    entry = as_image_entry(record)
    command = RecordLineage(domain=outlook.domain.name, entry=entry, learnt=learnt)
    while not any(_says(known, entry) for known in outlook.domain.lineage):
        try:
            await outlook.parts.metadata.apply(command)
        except CommandRefused as refused:
            if not learnt or refused.code != STALE_REGION_EPOCH:
                raise
            await _stand(outlook, record)


def _says(known: metadata_image.LineageEntry, entry: metadata_image.LineageEntry) -> bool:
    in_brief = not entry.positions and msgspec.structs.replace(known, positions={}) == entry
    return in_brief or known == entry


async def _stand(outlook: Outlook, record: EntryRecord) -> None:
    """Say what to do where the feature level does not know INV-M24, and return when it may."""
    reason = (
        f"region {outlook.region} began region epoch {record.region_epoch} twice, as its data was wound back, and never acted"
        " under what it began last. It goes on by itself once its feature level is that of its version: tidemark cluster upgrade"
        " --finalize. Or start its nodes with empty data folders: then they copy all from the region that acts"
    )
    await outlook.parts.role.fence(reason)
    _log.error("%s", reason)
    await outlook.parts.clock.sleep_ms(AGAIN_MS)


def as_image_entry(record: EntryRecord) -> metadata_image.LineageEntry:
    """Return the entry as the metadata keeps it."""
    return metadata_image.LineageEntry(**msgspec.structs.asdict(record))
