"""Topics that come: their logs are made ready before the registry has them (INV-M20).

INV-CTP1  a region of one node that mirrors makes none ready of a topic that grows: its link opens logs early (T15), at any moment, and one
          would be laid out that is open. While a change of a region that acts is under way no link runs (INV-RR4); in a region of several nodes
          a link opens early by a command, too (INV-MT1)
Not here: how they are made ready (`partitions.laying_out`), what comes (`controller.metadata_store`).
"""

from collections.abc import Sequence

from region_broker.controller.metadata_store import Coming
from region_broker.node.storage import Storage
from region_broker.ports.unbroken import to_its_end
from region_broker.region.role import RegionRole


async def lay_out_logs(storage: Storage, role: RegionRole, coming: Sequence[Coming]) -> None:
    """Make logs ready that are about to be opened; see `MetadataStore.on_coming`."""
    links = storage.metadata.image.leadership is None and not role.acting
    await storage.partitions.laying_out.run(
        [each for each in coming if not (each.grows and links)], carry=to_its_end
    )
