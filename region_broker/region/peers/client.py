"""One connection to a peer region's node: it makes the handshake between regions, and then asks (`calls`).

Serve it with `run`, or use `opened`, which does all of it.
Not here: back-off (the link driver, the forwarder), what messages mean.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Final

import msgspec

from region_broker.ports.network import ByteStream, Network
from region_broker.region.peers.calls import PeerCalls, connected
from region_broker.region.peers.hellos import check_hello
from region_broker.region.peers.protocol import (
    PEER_FRAME_BYTES_MAX,
    Hello,
    PeerIdentity,
    PeerProtocolError,
    PeerRefused,
    PeerUnreachable,
)

CONNECT_TIMEOUT_S: Final = 5.0


class PeerClient(PeerCalls):
    """Requests over one stream. Create with `connect`, serve with `run`, begin with `handshake`."""

    def __init__(self, stream: ByteStream, identity: PeerIdentity) -> None:
        """Speak on `stream`, which is open and unused."""
        # The answer to a handshake holds the lineage: the positions of every log, once per takeover.
        super().__init__(stream, PEER_FRAME_BYTES_MAX)
        self._identity = identity

    @classmethod
    async def connect(
        cls, network: Network, address: tuple[str, int], identity: PeerIdentity
    ) -> "PeerClient":
        """Open a stream to `address`; raises `PeerUnreachable` when that fails."""
        return cls(await connected(network, address, CONNECT_TIMEOUT_S), identity)

    async def handshake(self) -> Hello:
        """Say Hello and return the peer's; raises `PeerRefused` where the peer will not talk.

        What the peer says about region epoch and lineage is handed to the identity in either case.
        """
        # Without the lineage: a listener takes only small hellos, and asks back for what is news.
        handshake = msgspec.structs.replace(self._identity.hello(), lineage=())
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                answer = await self.call(handshake, Hello)
        except TimeoutError as error:
            self._end(
                f"{self._stream.peer} did not make its handshake within {CONNECT_TIMEOUT_S:.0f} s"
            )
            raise PeerUnreachable(str(self._ended), sent=False) from error
        self._check_speaker(answer)
        try:
            check_hello(answer)
        except PeerProtocolError as error:
            self._end(str(error))
            raise PeerUnreachable(str(error), sent=False) from error
        self._identity.learn(answer)
        if answer.refused:
            raise PeerRefused(answer.refused_code, answer.refused)
        return answer


@asynccontextmanager
async def opened(
    network: Network, address: tuple[str, int], identity: PeerIdentity
) -> AsyncIterator[tuple[PeerClient, Hello]]:
    """Connect, make the handshake, and yield (client, the peer's Hello); close at the end.

    Raises `PeerUnreachable` or `PeerRefused`.
    """
    client = await PeerClient.connect(network, address, identity)
    serving = asyncio.get_running_loop().create_task(client.run(), name="peer-client")
    try:
        yield client, await client.handshake()
    finally:
        serving.cancel()
        await asyncio.wait([serving])
        if not serving.cancelled():
            serving.result()
