"""Up to which offset of a log this region and the others hold the same bytes, by what has been proved to both.

INV-SLG1  nothing is taken from, or given to, another region beyond the last tidemark published or reached here under the
         region epoch that both are in: below it a mirror's history was compared with the primary's (T23, T33)
INV-SLG2  a region that neither acts nor mirrors, owes a cut, or whose history is in dispute, shares nothing (INV-SO7,
         INV-SO9)

Not here: the bytes (`range_side`), the comparison that comes on top (`range_source`).
"""

from collections.abc import Callable

from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import RegionEpoch
from region_broker.region.mirror.primary_side import PrimarySide
from region_broker.region.peers.protocol import PeerIdentity
from region_broker.region.tidemarks.service import TidemarkService


class NothingShared(Exception):
    """This region can prove nothing now; the text says why."""


class SharedLogs:
    """Of one node."""

    def __init__(
        self,
        identity: PeerIdentity,
        tidemarks: TidemarkService,
        source: PrimarySide,
        is_serving: Callable[[], bool],
    ) -> None:
        """Go by `tidemarks`; `is_serving` says whether the region acts or mirrors."""
        self._identity = identity
        self._tidemarks = tidemarks
        self._source = source
        self._is_serving = is_serving

    def end_of(self, key: LogKey, region_epoch: RegionEpoch) -> int:
        """Return below which offset the log is shared under `region_epoch`; raises `NothingShared`."""
        ours = self._identity.hello()
        if region_epoch != ours.region_epoch:
            raise NothingShared(
                f"region {ours.region} is at region epoch {ours.region_epoch}, not {region_epoch}"
            )
        if not self._is_serving() or self._source.cut_is_owed() or self._source.doubt():
            raise NothingShared(
                f"region {ours.region} neither acts nor mirrors now, or is in doubt"
            )
        try:
            cut = self._tidemarks.claim()
        except TidemarkError as error:
            raise NothingShared(
                f"region {ours.region} cannot read its tidemarks: {error}"
            ) from error
        if cut.point.region_epoch != region_epoch:
            raise NothingShared(
                f"region {ours.region} has no tidemark of region epoch {region_epoch} yet"
            )
        return cut.position_of(key)
