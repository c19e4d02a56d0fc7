"""Asks the other regions for a range that the disk has lost here: the port `partitions.mending.RangeSource`.

INV-RGQ1  nothing is taken from a region whose batch behind the range is not the one here, whatever it sends: its history
         is another one (T33)
INV-RGQ2  nothing is asked for beyond what is shared (INV-SLG1), of nobody under another region epoch
The region that acts is asked first. What each one says is told where none gives anything.

Not here: whether the bytes fit (`log.scrubbing.damage`).
"""

from typing import Final

from geo_replicator.lineage import LogKey
from region_broker.log.failures import NotMended
from region_broker.partitions.mending import Wanted
from region_broker.partitions.partition import Partition
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.mending.messages import AskRange, RangeSent
from region_broker.region.mending.range_side import RANGE_BYTES_MAX
from region_broker.region.mending.shared_logs import NothingShared, SharedLogs
from region_broker.region.mending.told_ranges import judged
from region_broker.region.peers.protocol import (
    PeerIdentity,
    PeerRefused,
)

ANSWER_TIMEOUT_MS: Final = 15_000


class PeerRanges:
    """One per node."""

    def __init__(self, peers: FailoverPeers, identity: PeerIdentity, shared: SharedLogs) -> None:
        """Ask over `peers`."""
        self._peers = peers
        self._identity = identity
        self._shared = shared

    async def piece(self, partition: Partition, wanted: Wanted) -> bytes:
        """See `RangeSource`."""
        try:
            ours = self._identity.hello()
        except (
            PeerRefused
        ) as refused:  # a node that does not speak for its region asks no other one
            raise NotMended(refused.reason) from refused
        key = LogKey(partition.topic_id, partition.tp.partition)
        place = f"[{wanted.from_offset}, {wanted.to_offset}) of {partition.tp}"
        try:
            end = self._shared.end_of(key, ours.region_epoch)
        except NothingShared as error:
            raise NotMended(f"{place}: {error}") from error
        if wanted.to_offset > end:  # INV-RGQ2
            raise NotMended(f"{place}: only what lies below {end} is under a tidemark here yet")
        message = AskRange(
            region_epoch=ours.region_epoch,
            key=key.encode(),
            from_offset=wanted.from_offset,
            to_offset=wanted.to_offset,
            bytes_max=RANGE_BYTES_MAX,
        )
        names = sorted(self._peers.names(), key=lambda name: (name != ours.acting_region, name))
        refusals = []
        for name in names:
            try:
                asking = self._peers.ask_attached(
                    name, message, RangeSent, timeout_ms=ANSWER_TIMEOUT_MS
                )
                return await judged(asking, wanted.above)
            except NotMended as error:
                refusals.append(f"region {name}: {error}")
        raise NotMended(f"{place}: {'; '.join(refusals) or 'there is no other region'}")
