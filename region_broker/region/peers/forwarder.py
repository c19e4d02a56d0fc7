"""Forwarding: requests that this node must not execute go to who must, answers come back verbatim.

There are two routes: to the primary region, and to the node that leads this one's own region, or its quorum. A request of a client
of a mirror may take both, the second one first: from a node that does not lead its region to the one that does, and from there to
the node that leads the primary region.

INV-FW1  each client connection has a peer connection of its own: its requests leave, start and are answered
         as on one connection, and what is bound to a connection at the primary ends with it
INV-FW2  a failure says whether the request may have been executed: never "no" once it was sent (P18)
INV-FW3  the acting side executes a forwarded request only while it acts, under the region epoch that the
         sender knows; the leading node takes one only while it leads, under the leader epoch that the sender knows. What asks
         for the quorum alone is taken by any node: who leads the logs does not matter to it
INV-FW4  no produce request is sent or executed behind one of the same connection that was not (INV-HD4). Those of one client
         connection go over one peer connection: where that ends, what waits here may stand behind one that was refused there
INV-FW5  a request that the acting side fails at ends its own client connection, never the acting node
INV-FW6  no request waits for a region that acts no more, or a node that leads no more: `follow`, `follow_leader` and
         `follow_election` end what is under way there, outcome unknown
INV-FW7  nothing is sent on a connection between nodes that the other side may be closing for its silence (INV-PS9)
INV-FW8  a request never travels in a circle: each hop is a farther one, so none takes the same kind of route twice, and what came from
         another region is forwarded to nobody
INV-FW9  an answer that no frame between nodes holds is refused, and its client connection ends: clients make lists as long as they like, by the names
         that they give to groups and transactions
INV-FW10 what a node says of its clients' connections holds together, whatever it says: none is newer than the newest, and none is negative

Not here: Kafka errors (`handlers.dispatch.dispatcher`), who acts (`PeerIdentity`), who leads (`region.cluster.leader_route`),
the requests themselves.
"""

import asyncio
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar, Final, Protocol, TypeAlias
from weakref import WeakKeyDictionary

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch
from idempotency.ports import Clock
from region_broker.controller.raft.entries import Member
from region_broker.handlers.dispatch.services import ForwardingFailed, RequestContext
from region_broker.limits import NODE_SILENCE_MS
from region_broker.ports.network import Network
from region_broker.region.peers.addresses import RegionAddresses, enter_region
from region_broker.region.peers.calls import PeerCalls
from region_broker.region.peers.client import PeerClient
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import FORWARD, NodeIdentity
from region_broker.region.peers.protocol import (
    NOT_ACTING,
    NOT_LEADING,
    PEER_FRAME_BYTES_MAX,
    STALE_REGION_EPOCH,
    Forward,
    Forwarded,
    PeerIdentity,
    PeerRefused,
    PeerUnreachable,
)
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import NodeDoor, NodeSession, PeerSession, Reply, Session
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity, host_of
from region_broker.wire.closing_lines import ClosingLines
from region_broker.wire.codec.gathered import AnswerBytes, parts_of
from region_broker.wire.connection import Incoming, Numbering, Peer
from region_broker.wire.connection_state import ConnectionState, Hop
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
IDLE_MS_MAX: Final = NODE_SILENCE_MS // 2
"""A connection to a node on which nothing was said for so long is made anew."""
_OF_PARTITIONS: Final = frozenset({0, 21, 27, 61})
"""Produce, DeleteRecords, WriteTxnMarkers, DescribeProducers: carried to the primary region, to one node of it."""
_PRODUCE_KEY: Final = 0
_OF_THE_QUORUM: Final = frozenset({55})
"""DescribeQuorum: asked of who leads the quorum, whoever leads the logs."""
_NOBODY: Final[Mapping[int, tuple[str, int]]] = {}
"""Where clients of another region meet nodes of this one: they are not told of those, neither at the addresses of clients here nor
at those of another listener than theirs (INV-HMN3)."""
_CLOSE: Final = "close-connection"
FORWARDED_BYTES_MAX: Final = PEER_FRAME_BYTES_MAX - 64 * 1024
"""What is left of a frame beside the message."""
_CHANNEL_BITS: Final = 20
_CHANNEL_MAX: Final = (1 << _CHANNEL_BITS) - 1
_CONNECTIONS_MAX: Final = 1 << 40
_ORIGINS_MAX: Final = 64


@dataclass(frozen=True, slots=True)
class RegionRoute:
    """To the region that acts, under a region epoch."""

    region: str
    region_epoch: RegionEpoch

    hop: ClassVar[Hop] = Hop.REGION

    def __str__(self) -> str:
        """Return it for people."""
        return f"region {self.region}"


@dataclass(frozen=True, slots=True)
class NodeRoute:
    """To the member that leads this node's own region, under a leader epoch; `identity` speaks to that member only."""

    member: Member
    leader_epoch: LeaderEpoch
    address: tuple[str, int]
    identity: NodeIdentity = field(compare=False)

    hop: ClassVar[Hop] = Hop.NODE

    def __str__(self) -> str:
        """Return it for people."""
        return f"node {self.member.node_id}"


Route: TypeAlias = RegionRoute | NodeRoute
_NOWHERE: Final = RegionRoute("", RegionEpoch(0))


def _identity_of(message: Forward) -> Identity:
    """Return whom a forwarded request is from, as the node says that let its client in: that one is trusted by its certificate."""
    return Identity(
        message.principal or ANONYMOUS_PRINCIPAL,
        host=host_of(message.client_address),
        mechanism=message.mechanism,
        token_id=message.token_id,
    )


def this_node_leads() -> NodeRoute | None:
    """A region of one node is led by it."""
    return None


class _Channel:
    """The peer connection of one client connection; opened again after it ended."""

    def __init__(self) -> None:
        self.turn = asyncio.Lock()
        self.client: PeerCalls | None = None
        self.number = 0
        self.produce_number = 0
        """Over which of them produce requests go; 0 before the first."""
        self.route: Route = _NOWHERE
        self.under_way = 0
        self.used_at_ms = 0

    def may_be_left(self, now_ms: int) -> bool:
        """Return whether the other side may be about to close it, or has (INV-FW7)."""
        is_still = self.under_way == 0 and now_ms - self.used_at_ms >= IDLE_MS_MAX
        return isinstance(self.route, NodeRoute) and is_still

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
        addresses: RegionAddresses,
        clock: Clock,
        origin: int,
        *,
        leader_route: Callable[[], NodeRoute | None] = this_node_leads,
    ) -> None:
        """Forward to who speaks for the primary region, at its `addresses`, or to the leader of this region.

        `origin`: a number that no other node and no other life of this one has. `leader_route`: to who leads this region, None where
        this node does; raises `PeerUnreachable` while nobody does.
        """
        self._leader_route = leader_route
        self._origin = origin
        self._network = network
        self._identity = identity
        self._addresses = addresses
        self._clock = clock
        self._tasks: asyncio.TaskGroup | None = None
        self._failed_at_ms: int | None = None
        self._failed_route: Route = _NOWHERE
        self._failure = ""
        self._channels: dict[ConnectionState, _Channel] = {}  # in the order they came

    def follow(self, primary_region: str, region_epoch: RegionEpoch) -> None:
        """End what was forwarded to anyone else (INV-FW6): it acts no more, or under another region epoch.

        1. A commit is forwarded. 2. The primary stands still, its connections stay. 3. Another region takes over.
        4. The client would wait for the old primary's answer until a time-out, with a region beside it that could give
        one.
        """
        acting = RegionRoute(primary_region, region_epoch)
        for channel in list(self._channels.values()):
            if isinstance(channel.route, RegionRoute) and channel.route != acting:
                channel.close()

    def follow_election(self, region: str) -> None:
        """End what was forwarded to whoever led that region so far (INV-FW6).

        1. A commit is forwarded. 2. The node that leads the primary region stands still, its connections stay. 3. Another one is
        elected there, and met. 4. The client would wait for the one that stands still, under a region epoch that has not changed.
        """
        for channel in list(self._channels.values()):
            if isinstance(channel.route, RegionRoute) and channel.route.region == region:
                channel.close()

    def follow_leader(self) -> None:
        """End what was forwarded to a node that leads no more, or under another leader epoch (INV-FW6)."""
        try:
            leading = self._leader_route()
        except PeerUnreachable:
            leading = None
        for channel in list(self._channels.values()):
            if isinstance(channel.route, NodeRoute) and channel.route != leading:
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

    async def forward(
        self,
        ctx: RequestContext,
        frame: memoryview,
        on_sent: Callable[[], None] = lambda: None,
    ) -> bytes | None:
        """Return the answer to `frame` of who must execute it, None where none is due.

        `on_sent` is called once nothing of it is held here. Raises `ForwardingFailed`, or `CloseConnection` where that side has no other answer.
        """
        channel = self._channel_of(ctx.connection_state)
        timeout_s = GROUP_WAIT_TIMEOUT_S if ctx.api_key in _GROUP_WAITS else FORWARD_TIMEOUT_S
        try:
            async with channel.turn:
                client = await self._opened(channel, ctx.connection_state.hop)
                # 1. A batch is under way. 2. The region epoch moves, or its connection ends. 3. The next
                # request opens another one, and meanwhile the first batch is found to have failed.
                _refuse_behind_failure(ctx, channel)
                answer = client.begin(self._message(channel, ctx), Forwarded, (frame,))
                del frame  # whoever called may give it back, and the answer may take minutes
                # 1. The primary takes nothing more. 2. A client's large requests would gather in the stream, counted for nobody.
                async with asyncio.timeout(FORWARD_TIMEOUT_S):
                    await client.drained()
            on_sent()
            channel.under_way += 1
            try:
                async with asyncio.timeout(timeout_s):
                    forwarded, attachment = await answer
            finally:
                channel.under_way -= 1
                channel.used_at_ms = self._clock.monotonic_ms()
        except PeerRefused as refused:
            if refused.code == _CLOSE:
                raise CloseConnection(refused.reason) from refused
            raise ForwardingFailed(refused.reason, may_have_happened=False) from refused
        except PeerUnreachable as error:
            raise ForwardingFailed(str(error), may_have_happened=error.sent) from error
        except TimeoutError as error:
            channel.close()
            reason = f"{channel.route} did not answer within {timeout_s:.0f} s"
            raise ForwardingFailed(reason) from error
        return None if forwarded.silent else bytes(attachment)

    def _message(self, channel: _Channel, ctx: RequestContext) -> Forward:
        route = channel.route
        region_epoch, leader_epoch = _NOWHERE.region_epoch, NO_LEADER_EPOCH
        if isinstance(route, NodeRoute):
            leader_epoch = route.leader_epoch
        else:
            region_epoch = route.region_epoch
        return Forward(
            region_epoch=region_epoch,
            leader_epoch=leader_epoch,
            client_origin=self._origin,
            client_connection_id=ctx.connection_id,
            newest_connection_id=ctx.newest_connection_id,
            channel=channel.number,
            principal=ctx.identity.principal,
            client_address=ctx.peer,
            mechanism=ctx.identity.mechanism,
            token_id=ctx.identity.token_id,
        )

    async def _opened(self, channel: _Channel, hop: Hop) -> PeerCalls:
        """Return the channel's connection to who acts, or leads, now; raises as `forward` expects.

        `hop`: the last one of the requests.
        """
        route = self._route()
        if route != _NOWHERE and route.hop <= hop:
            came_from = "another region" if hop is Hop.REGION else "another node of this region"
            reason = f"what came from {came_from} is not forwarded to {route}"
            raise PeerUnreachable(reason, sent=False)
        client = channel.client
        if client is not None:
            if (
                client.ended is None
                and channel.route == route
                and not channel.may_be_left(self._clock.monotonic_ms())
            ):
                return client
            channel.close()
        if route == _NOWHERE:
            raise PeerUnreachable("no other region is known to act", sent=False)
        self._refuse_soon_after_failure(route)
        channel.route = route
        try:
            channel.client = await self._connect(route)
            channel.number += 1
        except PeerUnreachable as error:
            self._failed_at_ms, self._failure = self._clock.monotonic_ms(), str(error)
            self._failed_route = route
            raise PeerUnreachable(str(error), sent=False) from error
        self._failed_at_ms = None
        channel.used_at_ms = self._clock.monotonic_ms()
        return channel.client

    def _route(self) -> Route:
        """Return where requests go now, `_NOWHERE` if no other region acts; raises `PeerUnreachable` while nobody leads."""
        leading = self._leader_route()
        if leading is not None:
            return leading
        ours = self._identity.hello()
        if ours.acting_region in ("", ours.region):
            return _NOWHERE
        return RegionRoute(ours.acting_region, ours.region_epoch)

    def _refuse_soon_after_failure(self, route: Route) -> None:
        failed_at_ms = self._failed_at_ms
        if failed_at_ms is None or route != self._failed_route:
            return
        if self._clock.monotonic_ms() - failed_at_ms < RETRY_PAUSE_MS:
            raise PeerUnreachable(self._failure, sent=False)

    async def _connect(self, route: Route) -> PeerCalls:
        if self._tasks is None:
            raise PeerUnreachable("this node is stopping", sent=False)
        if isinstance(route, NodeRoute):
            return await self._connect_to_node(route, self._tasks)
        return await self._connect_to_region(route.region, self._tasks)

    async def _connect_to_node(self, route: NodeRoute, tasks: asyncio.TaskGroup) -> NodeClient:
        client = await NodeClient.connect(self._network, route.address)
        tasks.create_task(client.run(), name="forwarding")
        is_reached = False
        try:
            await client.handshake(route.identity, FORWARD)
            is_reached = True
        finally:
            if not is_reached:
                client.close()
        return client

    async def _connect_to_region(self, region: str, tasks: asyncio.TaskGroup) -> PeerClient:
        serve = partial(tasks.create_task, name="forwarding")
        client, hello = await enter_region(
            self._network, self._addresses, region, self._identity, serve
        )
        if hello.acting_region != hello.region:
            client.close()
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
            f"the connection to {channel.route} that this client's produce requests went over has ended:"
            " reconnect",
            may_have_happened=False,
        )


class AnswersRequests(Protocol):
    """`handlers.dispatch.dispatcher.Dispatcher`."""

    async def answer(self, incoming: Incoming) -> AnswerBytes | None:
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


def under_none() -> LeaderEpoch | None:
    """In a region of one node nobody forwards to it from within."""
    return None


class ForwardTarget:
    """The acting side: executes forwarded requests as if the client were connected here."""

    def __init__(
        self,
        dispatcher: AnswersRequests,
        region: ActingView,
        leads_under: Callable[[], LeaderEpoch | None] = under_none,
    ) -> None:
        """Hand requests of mirrors to `dispatcher` while `region` acts, and those of nodes of this region while this one leads.

        `leads_under`: the leader epoch under which this node leads its region, None while it does not.
        """
        self._dispatcher = dispatcher
        self._region = region
        self._leads_under = leads_under
        self._lines = ClosingLines(_LOG)
        self._numberings: dict[int, Numbering] = {}
        self._clients: WeakKeyDictionary[Session, Peer] = WeakKeyDictionary()
        self.on_change_of_logs: Callable[[], None] = _nobody_hears
        """Told of each request of another region's client that only the leader of a partition serves."""

    def register(self, server: PeerServer) -> None:
        """Answer `Forward` on `server`."""
        server.region_handlers.register_handing_back(Forward, self._forward)

    def register_for_nodes(self, door: NodeDoor) -> None:
        """Answer `Forward` of nodes of this region, on connections made for that."""
        door.handlers_for(FORWARD).register_handing_back(Forward, self._forward)

    async def _forward(
        self,
        session: PeerSession | NodeSession,
        message: Forward,
        frame: memoryview,
        hand_back: Callable[[], None] = lambda: None,
    ) -> Forwarded | Reply:
        peer = self._clients.get(session)
        if peer is None:
            _check_numbers(message)
            hop = _hop_of(session)
            state = ConnectionState(hop=hop, met_at=_NOBODY if hop is Hop.REGION else None)
            peer = Peer(_number(message), message.client_address, self._numbering(message), state)
            self._clients[session] = peer
            session.on_close(partial(_end, peer))
        peer.state.identity = _identity_of(message)
        peer.numbering.newest = max(
            peer.numbering.newest,
            message.newest_connection_id << _CHANNEL_BITS | _CHANNEL_MAX,
            peer.connection_id,
        )  # INV-FW10
        try:
            incoming = Incoming(peer, frame, *peek_header(frame), lambda _given_bytes: hand_back())
        except HeaderError as error:
            raise PeerRefused(_CLOSE, str(error)) from error
        del frame  # the dispatcher may hand it back (INV-PS10)
        # And no await before the dispatcher starts (INV-FW3).
        refusal = self._refusal_to(session, message, incoming.api_key)
        _admit(peer, refusal, is_produce=incoming.api_key == _PRODUCE_KEY)
        if incoming.api_key in _OF_PARTITIONS and not isinstance(session, NodeSession):
            self.on_change_of_logs()
        try:
            answer = await self._dispatcher.answer(incoming)
        except CloseConnection as closing:
            self._tell(incoming, "a client of %s is cut off: %s", _whose(session), closing)
            raise PeerRefused(_CLOSE, str(closing)) from closing
        except (AssertionError, PeerRefused):
            raise
        except Exception as error:
            text = "a request forwarded by %s failed"
            self._tell(incoming, text, _whose(session), failed=True)
            reason = "who leads failed at the request; its log says why"
            raise PeerRefused(_CLOSE, reason) from error
        if answer is not None and len(answer) > FORWARDED_BYTES_MAX:  # INV-FW9
            reason = f"the answer has {len(answer)} bytes, over {FORWARDED_BYTES_MAX}, for a client of {_whose(session)}: ask for less at once, or ask the primary region"
            self._tell(incoming, "a client is cut off: %s", reason)
            raise PeerRefused(_CLOSE, reason)
        return Forwarded(silent=True) if answer is None else Reply(Forwarded(), parts_of(answer))

    def _tell(self, incoming: Incoming, text: str, *args: object, failed: bool = False) -> None:
        """Tell of a client that is cut off, or of few (INV-WCL1): one may have sent many requests that are answered so."""
        now_ms = int(asyncio.get_running_loop().time() * 1_000)
        self._lines.warn(now_ms, text, *args, extra=trace_of(incoming), failed=failed)

    def _numbering(self, message: Forward) -> Numbering:
        """Return how the sending node numbers its clients, in its present life."""
        known = self._numberings.get(message.client_origin)
        if known is None:
            while len(self._numberings) >= _ORIGINS_MAX:
                del self._numberings[next(iter(self._numberings))]
            known = self._numberings[message.client_origin] = Numbering(message.client_origin)
        return known

    def _refusal_to(
        self, session: PeerSession | NodeSession, message: Forward, api_key: int
    ) -> PeerRefused | None:
        if not isinstance(session, NodeSession):
            return self._refusal(message.region_epoch)
        if api_key in _OF_THE_QUORUM:
            return None
        return self._refusal_of_node(message.leader_epoch)

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

    def _refusal_of_node(self, leader_epoch: LeaderEpoch) -> PeerRefused | None:
        present = self._leads_under()
        if present == leader_epoch:
            return None
        leads = "does not lead" if present is None else f"leads under leader epoch {present}"
        return PeerRefused(
            NOT_LEADING,
            f"the request was forwarded under leader epoch {leader_epoch}, this node {leads}",
        )


def _end(peer: Peer) -> None:
    """End what was bound to a client's connection, and give up what nobody else waits for (INV-HPT1)."""
    peer.state.end()
    for waiting in tuple(peer.waiting):
        waiting.give_up()


def _nobody_hears() -> None:
    """Leaders are never spread."""


def _admit(peer: Peer, refusal: PeerRefused | None, *, is_produce: bool) -> None:
    """Raise `PeerRefused` unless the request may be executed here and now.

    1. Batches 1 and 2 of a producer arrive while this region is starting, or taking over. 2. Batch 1 is
    refused. 3. Writes open. 4. Batch 2 would be executed: where a gap is accepted (T22), or the producer is
    not known yet, batch 1 could never be written again. So what follows a refused one is refused (INV-FW4).
    """
    if is_produce and peer.state.produce_broken:
        raise PeerRefused(NOT_ACTING, "a produce request ahead of this one was refused")
    if refusal is not None:
        if is_produce:
            peer.state.produce_broken = True
        raise refusal


def _hop_of(session: PeerSession | NodeSession) -> Hop:
    return Hop.NODE if isinstance(session, NodeSession) else Hop.REGION


def _whose(session: PeerSession | NodeSession) -> str:
    if isinstance(session, NodeSession):
        return f"node {session.member.node_id}"
    return session.hello.region


def _check_numbers(message: Forward) -> None:
    """Refuse what no node counts up to: it is shifted, compared, and sent on to other nodes (INV-FW10)."""
    greatest = max(message.client_connection_id, message.newest_connection_id)
    least = min(message.client_connection_id, message.newest_connection_id, message.channel)
    if least < 0 or greatest >= _CONNECTIONS_MAX:
        reason = f"connection {message.client_connection_id} of {message.newest_connection_id}, channel {message.channel}: no node counts so"
        raise PeerRefused(_CLOSE, reason)


def _number(message: Forward) -> int:
    """Return a number that grows with the client's connections, and with the channels opened for one."""
    return message.client_connection_id << _CHANNEL_BITS | min(message.channel, _CHANNEL_MAX)
