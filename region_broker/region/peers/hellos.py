"""What no region can have said in a Hello: it is not learnt, and ends its connection.

INV-PHL1  region epochs that are learnt are ones that there can be, and a lineage has its entries oldest first: what is learnt is recorded
          for good, counted on from, and compared by rules that hold for such only
Not here: whether who says it is who it says (`speakers`), what follows from what is learnt (`region.failover`).
"""

from itertools import pairwise

from idempotency.fencing import REGION_EPOCH_MAX
from region_broker.region.peers.protocol import Hello, PeerProtocolError


def check_hello(hello: Hello) -> None:
    """Raise `PeerProtocolError` where a Hello says what no region can have said (INV-PHL1)."""
    epochs = [entry.region_epoch for entry in hello.lineage]
    bases = [entry.base_region_epoch for entry in hello.lineage]
    for epoch in (hello.region_epoch, hello.abandoned_epoch, *epochs, *bases):
        if not -1 <= epoch <= REGION_EPOCH_MAX:
            raise PeerProtocolError(
                f"region {hello.region} names region epoch {epoch}: there is none above {REGION_EPOCH_MAX}"
            )
    if any(newer <= older for older, newer in pairwise(epochs)):
        raise PeerProtocolError(f"region {hello.region} has a lineage that is not in order")
