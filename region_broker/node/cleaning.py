"""The node's cleaner and what its retention waits for, joined: what may go, where it runs.

Not here: any rule (`partitions.cleaner`, `region.tidemarks.clean_bounds`, `region.tidemarks.retention_hold`).
"""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor

from idempotency.fencing import region_ordinal_of
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node.node_ports import Ports
from region_broker.node.storage import Storage
from region_broker.partitions.cleaner import Cleaner, CleanerParts
from region_broker.partitions.partition import Partition
from region_broker.region.mirror.primary_side import PrimarySide
from region_broker.region.tidemarks.clean_bounds import CleanBoundParts, CleanBounds
from region_broker.region.tidemarks.retention_hold import HoldParts
from region_broker.region.tidemarks.service import TidemarkService


class OwnThread:
    """A `Worker`: one thread, started when there is something to do."""

    def __init__(self, name: str) -> None:
        """Start no thread yet; it will be called `name`."""
        self._pool = ThreadPoolExecutor(1, thread_name_prefix=name)

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """See `Worker`."""
        return asyncio.get_running_loop().run_in_executor(self._pool, work)


def of_main_group(image: MetadataImage, logs: Iterable[Partition]) -> Iterator[Partition]:
    """Yield the logs that may be cleaned while leaders are spread: one that became compacted in a data group waits until they are
    gathered, as only the main leader knows how far mirrors are.
    """
    return (log for log in logs if image.group_of(log.key) == MAIN_GROUP)


def compose_cleaner(
    region: str, storage: Storage, ports: Ports, source: PrimarySide, tidemarks: TidemarkService
) -> Cleaner:
    """Return the cleaner of this node; `run` is its task."""
    bounds = CleanBounds(
        CleanBoundParts(
            partitions=lambda: storage.partitions,
            published_cut=tidemarks.published_cut,
            mirrors=lambda: [name for name in storage.metadata.image.regions if name != region],
            reached=lambda name: source.reports[name].reached if name in source.reports else None,
            copied_to=source.copied_to,
        )
    )
    return Cleaner(
        CleanerParts(
            partitions=lambda: of_main_group(storage.metadata.image, storage.partitions),
            bound_of=bounds.bound_of,
            disk=ports.disk,
            clock=ports.clock,
            worker=OwnThread("log-cleaner"),
            on_sealed=storage.group_commit.on_sealed or (lambda _: None),
        )
    )


def compose_hold(
    regions: Mapping[str, int], own: str, storage: Storage, source: PrimarySide,
    tidemarks: TidemarkService,
) -> HoldParts:  # fmt: skip
    """Return what retention's hold asks; `regions` are the ordinals of the configuration."""

    def acted() -> set[str]:
        lineage = storage.metadata.image.main_domain.lineage
        before = {region_ordinal_of(entry.base_region_epoch) for entry in lineage}
        names = {entry.acting_region for entry in lineage}
        names |= {name for name, ordinal in regions.items() if ordinal in before}
        return names - {own}

    return HoldParts(
        partitions=lambda: storage.partitions,
        published_cut=tidemarks.published_cut,
        published_starts=tidemarks.published_starts,
        region_epoch=lambda: storage.metadata.image.main_domain.region_epoch,
        regions=lambda: regions.keys() - {own},
        acted=acted,
        copied=source.positions_of,
        reached=lambda name: source.reports[name].reached if name in source.reports else None,
        heard_ms_ago=source.heard_ms_ago,
    )
