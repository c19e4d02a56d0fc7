"""The lineage that the metadata hold, as `geo_replicator` judges it: made once for each that is there.

Not here: what follows from it (`geo_replicator.lineage`), what other regions tell of it (`region.failover.steps.outlook`).
"""

from collections.abc import Callable, Iterable

import msgspec

from geo_replicator.failover_events import EntryRecord
from geo_replicator.lineage import Lineage, LineageEntry
from region_broker.controller import metadata_image
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage


def as_entry(entry: metadata_image.LineageEntry) -> LineageEntry:
    """Return the metadata's entry as `geo_replicator` judges it."""
    return EntryRecord(**msgspec.structs.asdict(entry)).entry()


def lineage_of(entries: Iterable[metadata_image.LineageEntry]) -> Lineage:
    """Return the lineage with these entries."""
    return Lineage(tuple(map(as_entry, entries)))


class KnownLineage:
    """Call it for the lineage of the moment; no entries before there is a domain."""

    def __init__(self, image: Callable[[], MetadataImage]) -> None:
        """Go by `image()`."""
        self._image = image
        self._of: tuple[metadata_image.LineageEntry, ...] = ()
        self._known = Lineage()

    def __call__(self) -> Lineage:
        """Return the lineage of the moment."""
        domain = self._image().domains.get(DEFAULT_DOMAIN)
        entries = () if domain is None else domain.lineage
        if entries is not self._of:
            self._of, self._known = entries, lineage_of(entries)
        return self._known
