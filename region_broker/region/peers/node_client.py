"""One connection to another node of this region: the handshake between nodes, then notices and requests (`calls`).

Serve it with `run`. Not here: when to connect and again, what is sent first (`region.cluster.member_line`).
"""

import asyncio
from collections.abc import Sequence
from typing import Final

import msgspec

from region_broker.ports.network import Buffer, Network
from region_broker.region.peers.calls import PeerCalls, connected
from region_broker.region.peers.node_protocol import (
    FOR_GOOD,
    RAFT,
    NodeHello,
    NodeIdentity,
    Probe,
    Probed,
    Purpose,
)
from region_broker.region.peers.protocol import (
    HANDSHAKE_FRAME_BYTES_MAX,
    PEER_FRAME_BYTES_MAX,
    AnyMessage,
    FrameKind,
    PeerMessage,
    PeerRefused,
    PeerUnreachable,
    ShutOut,
    encode_frame,
)
from region_broker.region.peers.speakers import is_of_place

CONNECT_TIMEOUT_S: Final = 1.0
"""For the connection, and again for the handshake: the nodes of a region are near each other."""


class NodeClient(PeerCalls):
    """Notices and requests to one node. Create with `connect`, serve with `run`, begin with `handshake`."""

    _is_known = False

    @classmethod
    async def connect(cls, network: Network, address: tuple[str, int]) -> "NodeClient":
        """Open a stream to `address`; raises `PeerUnreachable` when that fails."""
        stream = await connected(network, address, CONNECT_TIMEOUT_S)
        return cls(stream, HANDSHAKE_FRAME_BYTES_MAX)

    async def handshake(self, identity: NodeIdentity, purpose: Purpose = RAFT) -> NodeHello:
        """Say NodeHello, and what the connection is for, and return the other's.

        Raises `PeerRefused` where either of both will not talk to the other (`ShutOut` is the other's word), `PeerUnreachable`.
        """
        ours = msgspec.structs.replace(identity.hello(), purpose=purpose)
        try:
            theirs = await self._within(CONNECT_TIMEOUT_S, ours, NodeHello)
        except PeerRefused as refused:
            if refused.code in FOR_GOOD:
                self._check_place(ours)
                raise ShutOut(refused.code, refused.reason, refused.replacement) from refused
            raise
        self._check_speaker(theirs)
        objection = identity.objection(theirs)
        if objection is not None:
            raise objection
        self._is_known = True
        if purpose != RAFT:  # which asks for nothing that is large
            self._reader.bytes_max = PEER_FRAME_BYTES_MAX
        return theirs

    def _check_place(self, ours: NodeHello) -> None:
        """Raise `PeerUnreachable`, and end the connection, where who refused is no node of this region (INV-PSP2)."""
        if not is_of_place(self._stream, ours.cluster_id, ours.region):
            reason = f"{self._stream.peer} has a certificate of another region, and has no say in region {ours.region}"
            self._end(reason)
            raise PeerUnreachable(reason, sent=False)

    def notify(self, message: PeerMessage, attachment: Sequence[Buffer] = ()) -> None:
        """Send a notice, which is not answered; nothing once the connection has ended."""
        assert self._is_known, "INV-PF1: an older version would end the connection"
        self._stream.write(*encode_frame(FrameKind.NOTICE, 0, message, attachment))

    async def drain(self) -> None:
        """Wait until more may be sent; OSError when the connection broke."""
        await self._stream.drain()

    async def probe(
        self, timeout_s: float, *, damaged: bool = False, opens_logs: bool = False
    ) -> Probed:
        """Return what the other side answers; raises `PeerUnreachable` where it does not, and ends the connection."""
        return await self._within(timeout_s, Probe(damaged=damaged, opens_logs=opens_logs), Probed)

    async def _within(
        self, timeout_s: float, message: PeerMessage, answer_type: type[AnyMessage]
    ) -> AnyMessage:
        try:
            async with asyncio.timeout(timeout_s):
                return await self.call(message, answer_type)
        except TimeoutError as error:
            reason = f"{self._stream.peer} did not answer within {timeout_s:.0f} s"
            self._end(reason)
            self._stream.abort()  # whoever waits in `drain` is told, too
            raise PeerUnreachable(reason, sent=True) from error
