"""What another node or region sends of a range, judged alike (INV-RGQ1, INV-NRG2): its log must be this one.

Not here: whom to ask (`range_source`, `node_ranges`), whether the bytes fit (`log.scrubbing.damage`).
"""

from collections.abc import Awaitable
from typing import Protocol

from geo_replicator.history import LastBatch
from idempotency.identity import LeaderEpoch
from region_broker.log.failures import NotMended
from region_broker.region.peers.protocol import UNKNOWN_MESSAGE, PeerRefused, PeerUnreachable


class TellsAbove(Protocol):
    """An answer with the facts of the batch that begins at the end of the range, where it was asked."""

    @property
    def above_leader_epoch(self) -> LeaderEpoch:
        """Return its leader epoch."""
        ...

    @property
    def above_base_offset(self) -> int:
        """Return its first offset."""
        ...

    @property
    def above_crc(self) -> int:
        """Return its CRC."""
        ...


async def judged(asking: Awaitable[tuple[TellsAbove, bytes]], above: LastBatch) -> bytes:
    """Return what is sent, where `above` is the batch behind the range on both sides; raises `NotMended`."""
    try:
        told, data = await asking
    except PeerRefused as error:
        if error.code == UNKNOWN_MESSAGE:
            raise NotMended("its version cannot send single ranges: upgrade it") from error
        raise NotMended(error.reason) from error
    except PeerUnreachable as error:
        raise NotMended(str(error)) from error
    theirs = LastBatch(told.above_leader_epoch, told.above_base_offset, told.above_crc)
    if theirs != above:
        raise NotMended(f"its log is another one: {theirs} where {above} lies here")
    if not data:
        raise NotMended("it sent nothing")
    return data
