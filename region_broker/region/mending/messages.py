"""What two regions say to each other where one mends a damaged log.

Not here: framing (`peers.protocol`), who answers (`range_side`).
"""

from idempotency.identity import LeaderEpoch, RegionEpoch
from region_broker.region.peers.protocol import PeerMessage


class AskRange(PeerMessage, frozen=True, kw_only=True):
    """Send me whole batches from `from_offset` on, up to `to_offset`, at which a batch begins here. `key`: `LogKey`."""

    region_epoch: RegionEpoch
    key: str
    from_offset: int
    to_offset: int
    bytes_max: int


class RangeSent(PeerMessage, frozen=True, kw_only=True):
    """The batches are attached. The other fields are those of the batch that begins at the asked `to_offset` there:
    two logs that have it alike have all below it alike (INV-HI1)."""

    above_leader_epoch: LeaderEpoch
    above_base_offset: int
    above_crc: int
