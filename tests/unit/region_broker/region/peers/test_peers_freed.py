"""What is left of peers that were not reached, or did not let this node in: nothing that waits for the cycle collector."""

import gc
from contextlib import AsyncExitStack

import pytest

from region_broker.ports.network import ByteStream
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.peers.addresses import RegionAddresses, opened_region
from region_broker.region.peers.protocol import (
    NOT_LEADING,
    STALE_REGION_EPOCH,
    Hello,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.server import PeerServer
from tests.fixtures.linked_regions import PlayedIdentity
from tests.fixtures.waiting import until

HOST = "127.0.0.1"
KEPT = {"PeerClient", "_Attempts", "AsyncioStream", "_Connection", "PeerSession"}


class Refuses(PlayedIdentity):
    """Lets nobody in."""

    code = NOT_LEADING

    def learn(self, hello: Hello) -> None:
        raise PeerRefused(self.code, "no")


def kept() -> list[str]:
    return [type(each).__name__ for each in gc.get_objects() if type(each).__name__ in KEPT]


async def hangs_up(stream: ByteStream) -> None:
    await stream.read(1 << 16)
    stream.abort()


@pytest.mark.parametrize("code", [NOT_LEADING, STALE_REGION_EPOCH])
@pytest.mark.parametrize("nodes", [("refuses",), ("hangs up",), ("refuses", "hangs up")], ids=str)
async def test_INV_PN7_who_is_not_let_in_leaves_nothing_to_the_cycle_collector(
    nodes: tuple[str, ...], code: str
) -> None:
    """A mirror tries again each second for as long as its primary region is away."""
    network, identity = AsyncioNetwork(), Refuses("eu")
    identity.code = code
    server = PeerServer(network, identity)
    async with AsyncExitStack() as held:
        refusing = await server.start(HOST, 0)
        hanging = await network.listen(HOST, 0, hangs_up)
        held.callback(server.close)
        held.callback(hanging.close)
        ports = {"refuses": refusing.port, "hangs up": hanging.port}
        addresses = RegionAddresses({"eu": [(HOST, ports[each]) for each in nodes]})
        gc.collect()
        assert not kept(), "of tests before"
        gc.disable()
        try:
            for _ in range(3):
                with pytest.raises((PeerRefused, PeerUnreachable)):
                    async with opened_region(network, addresses, "eu", PlayedIdentity("us")):
                        pass
            await until(lambda: not kept(), looks=50)
        finally:
            gc.enable()
