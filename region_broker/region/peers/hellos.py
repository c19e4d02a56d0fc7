"""What no region can have said in a Hello: it is not learnt, and ends its connection.

INV-PHL1  region epochs that are learnt are ones that there can be, and a lineage has its entries oldest first: what is learnt is recorded
          for good, counted on from, and compared by rules that hold for such only
INV-PHL2  a lineage names logs by keys that are some, and offsets that there can be: a node that cannot read what it has recorded cannot start
Not here: whether who says it is who it says (`speakers`), what follows from what is learnt (`region.failover`).
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import Final

from idempotency.fencing import REGION_EPOCH_MAX
from idempotency.identity import LogKey
from region_broker.controller.metadata_image import LineageEntry
from region_broker.region.peers.protocol import Hello, PeerProtocolError

NUMBER_MAX: Final = (1 << 63) - 1
"""Of offsets, and of tidemarks."""


def check_hello(hello: Hello) -> None:
    """Raise `PeerProtocolError` where a Hello says what no region can have said (INV-PHL1, INV-PHL2)."""
    check_region_epochs(hello.region, _region_epochs(hello))
    if any(newer.region_epoch <= older.region_epoch for older, newer in pairwise(hello.lineage)):
        raise PeerProtocolError(f"region {hello.region} has a lineage that is not in order")
    known: set[str] = set()
    for entry in hello.lineage:
        _check_base(hello.region, entry, known)


def check_region_epochs(region: str, region_epochs: Iterable[int]) -> None:
    """Raise `PeerProtocolError` where a region names an epoch that there cannot be (INV-PHL1)."""
    for epoch in region_epochs:
        if not -1 <= epoch <= REGION_EPOCH_MAX:
            raise PeerProtocolError(
                f"region {region} names region epoch {epoch}: there is none above {REGION_EPOCH_MAX}"
            )


def _region_epochs(hello: Hello) -> Iterator[int]:
    yield from (hello.region_epoch, hello.abandoned_epoch)
    if hello.folder is not None and hello.folder.history is not None:
        yield hello.folder.history.region_epoch
    for entry in hello.lineage:
        yield from (entry.region_epoch, entry.base_region_epoch)


def _check_base(region: str, entry: LineageEntry, known: set[str]) -> None:
    """Raise `PeerProtocolError` where an entry acts from what is no tidemark (INV-PHL2); `known`: keys that were looked at."""
    for key in entry.positions.keys() - known:  # all entries name much the same logs
        if not LogKey.is_encoded(key):
            raise PeerProtocolError(f"region {region} has a lineage that names the log {key!r:.80}")
    known.update(entry.positions)
    numbers = (entry.base_number, *entry.positions.values())
    if not 0 <= min(numbers) <= max(numbers) <= NUMBER_MAX:
        raise PeerProtocolError(f"region {region} has a lineage with offsets that there cannot be")
