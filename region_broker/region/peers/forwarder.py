"""Forwarding: requests that this region must not execute go to the primary, answers come back verbatim.

INV-FW1  each client connection has a peer connection of its own: its requests leave, start and are answered
         as on one connection, and what is bound to a connection at the primary ends with it
INV-FW2  a failure says whether the request may have been executed: never "no" once it was sent (P18)
INV-FW3  the acting side executes a forwarded request only while it acts, under the region epoch that the
         sender knows; it never forwards again
INV-FW4  no produce request is sent or executed behind one of the same connection that was not (INV-HD4). Those of one client
         connection go over one peer connection: where that ends, what waits here may stand behind one that was refused there
INV-FW5  a request that the acting side fails at ends its own client connection, never the acting node
INV-FW6  no request waits for a region that acts no more: `follow` ends what is under way there, outcome unknown

Not here: Kafka errors (`handlers.dispatch.dispatcher`), who acts (`PeerIdentity`), the requests themselves.
"""

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol
from weakref import WeakKeyDictionary

from idempotency.identity import RegionEpoch
from idempotency.ports import Clock
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.ports.network import Buffer, Network
from region_broker.region.peers.client import PeerClient
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    STALE_REGION_EPOCH,
    Forward,
    Forwarded,
    PeerIdentity,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import PeerSession, Reply
from region_broker.wire.connection import Incoming, Numbering, Peer
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.headers import HeaderError, peek_header
from region_broker.wire.request_trace import trace_of
from region_broker.wire.server import CloseConnection

_LOG: Final = logging.getLogger(__name__)

FORWARD_TIMEOUT_S: Final = 60.0
# JoinGroup and SyncGroup wait for other members as long as the rebalance time-out allows.
GROUP_WAIT_TIMEOUT_S: Final = 600.0
_GROUP_WAITS: Final = frozenset({11, 14})
# After a failed attempt to connect, others fail at once for so long: clients retry by themselves.
RETRY_PAUSE_MS: Final = 100
_PRODUCE_KEY: Final = 0
_CLOSE: Final = "close-connection"
_CHANNEL_BITS: Final = 20
_CHANNEL_MAX: Final = (1 << _CHANNEL_BITS) - 1
_ORIGINS_MAX: Final = 64


class _Channel:
    """The peer connection of one client connection; opened again after it ended."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.client: PeerClient | None = None
        self.number = 0
        self.produce_number = 0
        """Over which of them produce requests go; 0 before the first."""
        self.primary_region = ""
        self.region_epoch = RegionEpoch(0)

    def close(self) -> None:
        if self.client is not None:
            self.client.close()
            self.client = None


class PeerForwarder:
    """The port `handlers.dispatch.services.Forwarder`; `run` must be running."""

    def __init__(
        self,
        network: Network,
        identity: PeerIdentity,
        address_of: Callable[[str], tuple[str, int]],
        clock: Clock,
        origin: int,
    ) -> None:
        """Forward to the peer listener at `address_of(primary region)`.

        `origin`: a number that no other node and no other life of this one has.
        """
        self._origin = origin
        self._network = network
        self._identity = identity
        self._address_of = address_of
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._failed_at_ms: int | None = None
        self._failure = ""
        self._channels: dict[ConnectionState, _Channel] = {}  # in the order they came

    def follow(self, primary_region: str, region_epoch: RegionEpoch) -> None:
        """End what was forwarded to anyone else (INV-FW6): it acts no more, or under another region epoch.

        1. A commit is forwarded. 2. The primary stands still, its connections stay. 3. Another region takes over.
        4. The client would wait for the old primary's answer until a time-out, with a region beside it that could give
        one.
        """
        for channel in list(self._channels.values()):
            if (channel.primary_region, channel.region_epoch) != (primary_region, region_epoch):
                channel.close()

    def _channel_of(self, connection: ConnectionState) -> _Channel:
        """Return the channel of a client connection, which ends with it (INV-FW1)."""
        channel = self._channels.get(connection)
        if channel is None:
            channel = self._channels[connection] = _Channel()
            connection.on_end(partial(self._end, connection))
        return channel

    def _end(self, connection: ConnectionState) -> None:
        self._channels.pop(connection).close()

    async def run(self) -> None:
        """Own the peer connections until cancelled."""
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = tasks
                await asyncio.Event().wait()
        finally:
            self._tasks = None

    async def forward(self, ctx: RequestContext, frame: memoryview) -> bytes | None:
        """Return the primary region's answer to `frame`, None where none is due.

        Raises `ForwardingFailed`, or `CloseConnection` where the primary region has no other answer.
        """
        channel = self._channel_of(ctx.connection_state)
        timeout_s = GROUP_WAIT_TIMEOUT_S if ctx.api_key in _GROUP_WAITS else FORWARD_TIMEOUT_S
        try:
            async with channel.turn:
                client = await self._opened(channel)
                # 1. A batch is under way. 2. The region epoch moves, or its connection ends. 3. The next
                # request opens another one, and meanwhile the first batch is found to have failed.
                _refuse_behind_failure(ctx, channel)
                answer = client.begin(self._message(channel, ctx), Forwarded, (frame,))
                del frame  # whoever called may have given it back, and the answer may take minutes
            async with asyncio.timeout(timeout_s):
                forwarded, attachment = await answer
        except PeerRefused as refused:
            if refused.code == _CLOSE:
                raise CloseConnection(refused.reason) from refused
            raise ForwardingFailed(refused.reason, may_have_happened=False) from refused
        except PeerUnreachable as error:
            raise ForwardingFailed(str(error), may_have_happened=error.sent) from error
        except TimeoutError as error:
            channel.close()
            reason = f"region {channel.primary_region} did not answer within {timeout_s:.0f} s"
            raise ForwardingFailed(reason) from error
        return None if forwarded.silent else bytes(attachment)

    def _message(self, channel: _Channel, ctx: RequestContext) -> Forward:
        return Forward(
            region_epoch=channel.region_epoch,
            client_origin=self._origin,
            client_connection_id=ctx.connection_id,
            newest_connection_id=ctx.newest_connection_id,
            channel=channel.number,
            principal=ctx.principal,
            client_address=ctx.peer,
        )

    async def _opened(self, channel: _Channel) -> PeerClient:
        """Return the channel's connection to the region that acts now; raises as `forward` expects."""
        ours = self._identity.hello()
        client = channel.client
        if client is not None:
            stands = client.ended is None
            if stands and (channel.primary_region, channel.region_epoch) == (
                ours.acting_region,
                ours.region_epoch,
            ):
                return client
            channel.close()
        if ours.acting_region in ("", ours.region):
            raise PeerUnreachable("no other region is known to act", sent=False)
        self._refuse_soon_after_failure()
        channel.primary_region, channel.region_epoch = ours.acting_region, ours.region_epoch
        try:
            channel.client = await self._connect(ours.acting_region)
            channel.number += 1
        except PeerUnreachable as error:
            self._failed_at_ms, self._failure = self._clock.monotonic_ms(), str(error)
            raise PeerUnreachable(str(error), sent=False) from error
        self._failed_at_ms = None
        return channel.client

    def _refuse_soon_after_failure(self) -> None:
        failed_at_ms = self._failed_at_ms
        if failed_at_ms is None or self._clock.monotonic_ms() - failed_at_ms >= RETRY_PAUSE_MS:
            return
        raise PeerUnreachable(self._failure, sent=False)

    async def _connect(self, region: str) -> PeerClient:
        if self._tasks is None:
            raise PeerUnreachable("this node is stopping", sent=False)
        client = await PeerClient.connect(self._network, self._address_of(region), self._identity)
        self._tasks.create_task(client.run(), name="forwarding")
        is_reached = False
        try:
            hello = await client.handshake()
            is_reached = hello.acting_region == hello.region
        finally:
            if not is_reached:
                client.close()
        if not is_reached:
            raise PeerUnreachable(f"region {region} does not act (yet)", sent=False)
        return client


def _refuse_behind_failure(ctx: RequestContext, channel: _Channel) -> None:
    """Raise `ForwardingFailed` where the request may stand behind a produce request that failed (INV-FW4).

    1. Batches 1 and 2 are sent. 2. The primary's disk fails, and it answers batch 1 with an error. 3. It is restarted, and
    batch 2, which waited here for a connection, would be the first that it judges: out of order, before the client has
    sent batch 1 again.
    """
    if ctx.connection_state.produce_broken:
        reason = "a produce request ahead of this one failed"
        raise ForwardingFailed(reason, may_have_happened=False)
    if ctx.api_key != _PRODUCE_KEY:
        return
    channel.produce_number = channel.produce_number or channel.number
    if channel.produce_number != channel.number:
        raise ForwardingFailed(
            f"the connection to region {channel.primary_region} that this client's produce requests went over has ended:"
            " reconnect",
            may_have_happened=False,
        )


class AnswersRequests(Protocol):
    """`handlers.dispatch.dispatcher.Dispatcher`."""

    async def answer(self, incoming: Incoming) -> Buffer | None:
        """Return header and body of the answer, None where none is due; raises `CloseConnection`."""
        ...


class ActingView(Protocol):
    """What the acting side must know of itself (`handlers.dispatch.services.RegionView`)."""

    @property
    def acting(self) -> bool:
        """Return whether this region takes writes now."""
        ...

    @property
    def region_epoch(self) -> RegionEpoch:
        """Return the region epoch known here."""
        ...

    @property
    def reason_not_acting(self) -> str:
        """Return why it takes no writes."""
        ...


class ForwardTarget:
    """The acting side: executes forwarded requests as if the client were connected here."""

    def __init__(self, dispatcher: AnswersRequests, region: ActingView) -> None:
        """Hand requests to `dispatcher` while `region` acts."""
        self._dispatcher = dispatcher
        self._region = region
        self._numberings: dict[int, Numbering] = {}
        self._clients: WeakKeyDictionary[PeerSession, Peer] = WeakKeyDictionary()

    def register(self, server: PeerServer) -> None:
        """Answer `Forward` on `server`."""
        server.register(Forward, self._forward)

    async def _forward(
        self, session: PeerSession, message: Forward, frame: memoryview
    ) -> Forwarded | Reply:
        peer = self._clients.get(session)
        if peer is None:
            peer = Peer(_number(message), message.client_address, self._numbering(message))
            self._clients[session] = peer
        peer.numbering.newest = max(
            peer.numbering.newest, message.newest_connection_id << _CHANNEL_BITS | _CHANNEL_MAX
        )
        try:
            incoming = Incoming(peer, frame, *peek_header(frame))
        except HeaderError as error:
            raise PeerRefused(_CLOSE, str(error)) from error
        # And no await before the dispatcher starts (INV-FW3).
        self._admit(peer, message.region_epoch, is_produce=incoming.api_key == _PRODUCE_KEY)
        try:
            answer = await self._dispatcher.answer(incoming)
        except CloseConnection as closing:
            trace = trace_of(incoming)
            _LOG.warning(
                "a client of %s is cut off: %s", session.hello.region, closing, extra=trace
            )
            raise PeerRefused(_CLOSE, str(closing)) from closing
        except (AssertionError, PeerRefused):
            raise
        except Exception as error:
            trace = trace_of(incoming)
            _LOG.exception("a request forwarded by %s failed", session.hello.region, extra=trace)
            reason = "the primary region failed at the request; its log says why"
            raise PeerRefused(_CLOSE, reason) from error
        return Forwarded(silent=True) if answer is None else Reply(Forwarded(), (answer,))

    def _numbering(self, message: Forward) -> Numbering:
        """Return how the sending node numbers its clients, in its present life."""
        known = self._numberings.get(message.client_origin)
        if known is None:
            while len(self._numberings) >= _ORIGINS_MAX:
                del self._numberings[next(iter(self._numberings))]
            known = self._numberings[message.client_origin] = Numbering(message.client_origin)
        return known

    def _admit(self, peer: Peer, region_epoch: RegionEpoch, *, is_produce: bool) -> None:
        """Raise `PeerRefused` unless the request may be executed here and now.

        1. Batches 1 and 2 of a producer arrive while this region is starting, or taking over. 2. Batch 1 is
        refused. 3. Writes open. 4. Batch 2 would be executed: where a gap is accepted (T22), or the producer is
        not known yet, batch 1 could never be written again. So what follows a refused one is refused (INV-FW4).
        """
        if is_produce and peer.state.produce_broken:
            raise PeerRefused(NOT_ACTING, "a produce request ahead of this one was refused")
        refusal = self._refusal(region_epoch)
        if refusal is not None:
            if is_produce:
                peer.state.produce_broken = True
            raise refusal

    def _refusal(self, region_epoch: RegionEpoch) -> PeerRefused | None:
        if region_epoch < self._region.region_epoch:
            return PeerRefused(
                STALE_REGION_EPOCH,
                f"the request was forwarded under region epoch {region_epoch}, the domain is at"
                f" {self._region.region_epoch}",
            )
        if region_epoch > self._region.region_epoch or not self._region.acting:
            return PeerRefused(
                NOT_ACTING, self._region.reason_not_acting or "this region is behind"
            )
        return None


def _number(message: Forward) -> int:
    """Return a number that grows with the client's connections, and with the channels opened for one."""
    return message.client_connection_id << _CHANNEL_BITS | min(message.channel, _CHANNEL_MAX)
