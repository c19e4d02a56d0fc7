"""The peer listener: makes the handshake with nodes of other regions, and of this one, and hands what they send to handlers.

INV-PS6  what all connections hold, requests, parts of them and answers that are not taken, is kept near a budget of
         its own as on the Kafka port (INV-MB1..3); half a frame, and an answer that nobody takes, end the connection
         after a while, and so does a peer that does not say Hello
INV-PS10 a request that waits on others for long gives its bytes back (INV-WQ4): no mirror's client fills that budget with what waits
INV-PS8  a connection that comes while the listener closes is ended, too: its peer would else keep the node from ending
INV-PS9  a node's session ends when nothing came on it for `node_silence_ms`: its node probes, if it has nothing else to say.
         One that forwards requests, or leads, does not probe: it ends so only where no request of it is under way
Nothing but Hello is served before a Hello of the same cluster and history and no lower region epoch; a folder without
history may ask (T32). Requests of one connection start in arrival order; answers leave as they are ready. A connection
holds at most `IN_FLIGHT_MAX` unanswered requests; beyond it is not read. A handler runs to its end even when its peer
has gone: what it began is never half done. One that waits for news ends its wait in `PeerSession.on_close`. A session
of which one request was not admitted executes none that came behind it: a batch that was refused must not be passed by
the next one (INV-FW4). It ends with that refusal; whoever asks on makes a handshake again. Bytes that are no frame,
and a handler's refusal, harm only the connection or request they belong to.

A node of this region says NodeHello in place of Hello, and is served what `NodeDoor` has (INV-PSS1). Its notices are
taken in the step in which they come, in order, and are not answered.

A refusal (`PeerRefused` raised by a handler) is an answer. A peer that sends no frame gets the connection
closed, with the reason in the log.
Not here: what messages mean (`primary_side`, `forward_target`, failover).
"""

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from geo_replicator.folder_life import BirthVerdict, judge_births
from region_broker import limits
from region_broker.ports.network import ByteStream, Listener, Network
from region_broker.region.peers.hellos import check_hello
from region_broker.region.peers.node_protocol import WAITING, NodeHello
from region_broker.region.peers.protocol import (
    HANDSHAKE_FRAME_BYTES_MAX,
    OTHER_CLUSTER,
    OTHER_HISTORY,
    PEER_FRAME_BYTES_MAX,
    STALE_REGION_EPOCH,
    AnyMessage,
    Frame,
    FrameKind,
    FrameReader,
    Hello,
    PeerIdentity,
    PeerProtocolError,
    PeerRefused,
    Refusal,
    decode_message,
    encode_frame,
)
from region_broker.region.peers.sessions import (
    Handler,
    Handlers,
    Handling,
    NodeDoor,
    NodeSession,
    PeerSession,
    Reply,
)
from region_broker.region.peers.speakers import check_speaker
from region_broker.security.audit.trail import NO_AUDIT, AuditTrail
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, host_of
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.memory_budget import MemoryBudget, Share

IN_FLIGHT_MAX: Final = 256
NOT_BEGUN_MAX: Final = 8
READ_BYTES: Final = 256 * 1024
_log: Final = logging.getLogger("tidemark.peer")


@dataclass(frozen=True, slots=True)
class PeerSettings:
    """How much and how long a peer may keep waiting."""

    memory_bytes: int = limits.PEER_MEMORY_BYTES
    connections_max: int = limits.CONNECTIONS_MAX
    stall_timeout_ms: int = limits.FRAME_TIMEOUT_MS
    pressed_timeout_ms: int = limits.PRESSED_TIMEOUT_MS
    node_silence_ms: int = limits.NODE_SILENCE_MS


class PeerServer:
    """Listens for peers. Register handlers, then `start`; `close` and `wait_closed` at the end."""

    def __init__(
        self, network: Network, identity: PeerIdentity, settings: PeerSettings = PeerSettings()
    ) -> None:
        """Serve as `identity`; nothing is bound yet."""
        self._network = network
        self._identity = identity
        self.settings: Final = settings
        self.memory: Final = MemoryBudget(settings.memory_bytes)
        self._handlers: Handlers[PeerSession] = Handlers()
        self.node_door: NodeDoor | None = None
        """Set before `start` where this node has others beside it in its region; without it nobody is let in as one."""
        self._listener: Listener | None = None
        self._connections: dict[ByteStream, None] = {}  # in the order they came
        self._closing = False
        self._session_count = 0
        self.admit: Callable[[Hello], None] = lambda _hello: None
        """Called before each request with the handshake of its session; raises `PeerRefused`."""
        self.audit: AuditTrail = NO_AUDIT
        """Told of each peer that is not spoken with; set where there is a trail."""

    def register(
        self, message_type: type[AnyMessage], handler: Handler[PeerSession, AnyMessage]
    ) -> None:
        """Answer each `message_type` of another region with what `handler(session, message, attachment)` returns."""
        self._handlers.register(message_type, handler)

    @property
    def region_handlers(self) -> Handlers[PeerSession]:
        """Return what sessions of other regions are served."""
        return self._handlers

    async def start(self, host: str, port: int) -> Listener:
        """Bind and serve; raises OSError when the port is not free."""
        self._closing = False
        self._listener = await self._network.listen(host, port, self._serve)
        return self._listener

    def close(self) -> None:
        """Stop accepting, and close every connection."""
        self._closing = True
        if self._listener is not None:
            self._listener.close()
        for stream in tuple(self._connections):
            stream.close()

    async def wait_closed(self) -> None:
        """Return once every connection has ended; raises what a handler raised as a bug."""
        if self._listener is not None:
            await self._listener.wait_closed()

    async def _serve(self, stream: ByteStream) -> None:
        if self._closing:  # accepted before that, and served first now (INV-PS8)
            stream.abort()
            return
        if len(self._connections) >= self.settings.connections_max:
            _log.warning(
                "peer %s refused: %d connections are open", stream.peer, len(self._connections)
            )
            stream.abort()
            return
        self._connections[stream] = None
        try:
            async with asyncio.TaskGroup() as tasks:
                await _Connection(self, stream, tasks).run()
        finally:
            del self._connections[stream]
            stream.close()

    def handshake(self, stream: ByteStream, frame: Frame) -> tuple[Hello, PeerSession | None]:
        """Judge a Hello; return the answer, and a session where the peer may talk on.

        Raises `PeerRefused` while this node starts, and `PeerProtocolError` for what is no Hello.
        """
        theirs = decode_message(frame, Hello)
        check_hello(theirs)
        check_speaker(stream, theirs)
        ours = self._identity.hello()
        code, reason = _objection(ours, theirs)
        if code not in {OTHER_CLUSTER, OTHER_HISTORY}:
            try:
                self._identity.learn(theirs)
            except PeerRefused as refused:
                code, reason = refused.code, refused.reason
        if code:
            _log.warning("peer %s refused: %s", stream.peer, reason)
            self.note_refused(stream, code, f"{theirs.region}/{theirs.node_id}")
            return _refused(ours, code, reason), None
        self._session_count += 1
        handshake = msgspec.structs.replace(ours, answers=True)
        return handshake, PeerSession(self._session_count, stream.peer, theirs)

    def note_refused(self, stream: ByteStream, code: str, says_it_is: str = "") -> None:
        """Let the audit trail know that a peer was not spoken with."""
        principal = f"Node:{says_it_is}" if says_it_is else ANONYMOUS_PRINCIPAL
        self.audit.peer_refused(principal, host_of(stream.peer), code=code, node=says_it_is)

    def node_handshake(self, stream: ByteStream, frame: Frame) -> tuple[NodeHello, NodeSession]:
        """Judge a NodeHello; return the answer and the session. Raises `PeerRefused`, `PeerProtocolError`."""
        if self.node_door is None:
            raise PeerProtocolError("this node knows of no other node in its region")
        answered = self.node_door.handshake(self._session_count + 1, stream, frame)
        self._session_count += 1
        return answered

    def read(
        self, frame: Frame, hand_back: Callable[[], None] = lambda: None
    ) -> Handling[PeerSession]:
        """Read a request for its handler; see `Handlers.read`."""
        return self._handlers.read(frame, hand_back)

    def node_handlers(self, session: NodeSession) -> Handlers[NodeSession]:
        """Return what the session of a node of this region is served (INV-PSS3)."""
        assert self.node_door is not None, "INV-PSS1: nobody comes in without a door"
        return self.node_door.handlers_for(session.purpose)


def _objection(ours: Hello, theirs: Hello) -> tuple[str, str]:
    if theirs.cluster_id != ours.cluster_id:
        return OTHER_CLUSTER, (
            f"this is cluster {ours.cluster_id}, region {ours.region}; the peer belongs to"
            f" cluster {theirs.cluster_id}: check its peer addresses"
        )
    if judge_births(ours.folder, theirs.folder) is BirthVerdict.OTHER:
        return OTHER_HISTORY, (
            f"region {theirs.region} and region {ours.region} hold histories of two births of cluster"
            f" {ours.cluster_id}: only one of them can be this cluster's. Empty the data folder of the one that"
            " is not, and start it again: it joins the other"
        )
    if theirs.region_epoch < ours.region_epoch and not theirs.without_history:
        return STALE_REGION_EPOCH, (
            f"region {theirs.region} is at region epoch {theirs.region_epoch}, the domain at"
            f" {ours.region_epoch} (acting: {ours.acting_region}): follow that lineage first"
        )
    return "", ""


def _refused(ours: Hello, code: str, reason: str) -> Hello:
    return Hello(
        cluster_id=ours.cluster_id,
        region=ours.region,
        node_id=ours.node_id,
        region_epoch=ours.region_epoch,
        acting_region=ours.acting_region,
        lineage=() if code == OTHER_CLUSTER else ours.lineage,
        folder=ours.folder,
        refused=reason,
        refused_code=code,
        answers=True,
        feature_level=ours.feature_level,
        abandoned_epoch=ours.abandoned_epoch,
    )


class _Connection:
    """Reads one connection and starts its requests in order."""

    def __init__(self, server: PeerServer, stream: ByteStream, tasks: asyncio.TaskGroup) -> None:
        self._server = server
        self._stream = stream
        self._tasks = tasks
        self._slots = asyncio.Semaphore(IN_FLIGHT_MAX)
        self._reader = FrameReader(HANDSHAKE_FRAME_BYTES_MAX, preface=True)
        self._session: PeerSession | NodeSession | None = None
        self._yielding = CooperativeYield()
        self._refused: PeerRefused | None = None  # why no request is admitted any more
        self._share = Share()
        self._busy_bytes = 0  # requests being answered, answers being taken
        self._not_begun = 0  # tasks of requests
        self._frame_since_s = asyncio.get_running_loop().time()

    async def run(self) -> None:
        try:
            while data := await self._read():
                if not self._reader.held_bytes:
                    self._frame_since_s = asyncio.get_running_loop().time()
                for frame in self._reader.feed(data):
                    if not await self._take(frame):
                        return
                    del frame  # it may be handed back before the next one comes
                    self._frame_since_s = asyncio.get_running_loop().time()
                self._note_held()
        except TimeoutError:
            _log.warning(
                "peer %s disconnected: it said nothing, or kept a frame or an answer waiting",
                self._stream.peer,
            )
        except PeerProtocolError as error:
            _log.warning("peer %s disconnected: %s", self._stream.peer, error)
            self._server.note_refused(self._stream, "no-peer")
        except OSError as error:
            _log.info("peer %s went away: %s", self._stream.peer, error)
        finally:
            if self._session is not None:
                self._session.end()
            self._reader = FrameReader(HANDSHAKE_FRAME_BYTES_MAX)
            self._note_held()
            self._stream.close()

    async def _read(self) -> bytes:
        """Return the next bytes, once there is memory for them; TimeoutError when a frame is not complete in time."""
        settings, memory = self._server.settings, self._server.memory
        now = asyncio.get_running_loop().time
        while not memory.may_read(self._share, 0, unfinished=not self._busy_bytes):
            await memory.changed()
            self._frame_since_s = now()  # its time begins anew
        if self._session is not None and not self._reader.held_bytes:
            # A link may be silent for as long as it likes, a node may not (INV-PS9).
            is_node = isinstance(self._session, NodeSession)
            return await self._spoken(settings.node_silence_ms / 1000 if is_node else None)
        timeout_ms = settings.pressed_timeout_ms if memory.full else settings.stall_timeout_ms
        async with asyncio.timeout_at(self._frame_since_s + timeout_ms / 1000):
            return await self._stream.read(READ_BYTES)

    async def _spoken(self, silence_s: float | None) -> bytes:
        """Return the next bytes; TimeoutError where nothing comes for so long (INV-PS9)."""
        while True:
            try:
                async with asyncio.timeout(silence_s):
                    return await self._stream.read(READ_BYTES)
            except TimeoutError:
                session = self._session
                assert isinstance(session, NodeSession), "a region may be silent"
                if session.purpose not in WAITING or not self._busy_bytes:
                    raise

    def _note_held(self) -> None:
        self._server.memory.hold(self._share, self._reader.held_bytes + self._busy_bytes)

    async def _take(self, frame: Frame) -> bool:
        session = self._session
        if frame.kind is FrameKind.NOTICE and isinstance(session, NodeSession):
            self._server.node_handlers(session).take(session, frame)
            await self._yielding.row()
            return True
        if frame.kind is not FrameKind.REQUEST:
            raise PeerProtocolError(f"a {frame.kind.name} came where only requests may come")
        if frame.tag == NodeHello.__name__ and not isinstance(session, PeerSession):
            return self._node_handshake(frame)
        if session is None or (frame.tag == Hello.__name__ and isinstance(session, PeerSession)):
            return self._handshake(frame)
        await self._slots.acquire()
        if not await self._drain():
            return False
        if self._not_begun >= NOT_BEGUN_MAX:
            await asyncio.sleep(0)  # what they answer counts before more is begun
        while self._server.memory.full and self._busy_bytes:
            await self._server.memory.changed()
        carried = _Carried(frame, self._take_back)
        self._busy_bytes += carried.held_bytes
        self._not_begun += 1
        self._tasks.create_task(self._answer(session, carried))
        return True

    def _take_back(self, request_bytes: int) -> None:
        """Count these bytes of a request no more."""
        self._busy_bytes -= request_bytes
        self._note_held()

    def _handshake(self, frame: Frame) -> bool:
        try:
            answer, session = self._server.handshake(self._stream, frame)
        except PeerRefused as refused:  # a node that starts: it cannot say yet who it is
            return self._refuse(frame, refused)
        self._stream.write(*encode_frame(FrameKind.ANSWER, frame.correlation_id, answer))
        if session is None:
            return False
        if self._session is None:
            self._session = session
        self._reader.bytes_max = PEER_FRAME_BYTES_MAX
        return True

    def _node_handshake(self, frame: Frame) -> bool:
        if self._session is not None:
            raise PeerProtocolError("INV-PSS2: a node made its handshake a second time")
        try:
            answer, self._session = self._server.node_handshake(self._stream, frame)
        except PeerRefused as refused:
            return self._refuse(frame, refused)
        self._stream.write(*encode_frame(FrameKind.ANSWER, frame.correlation_id, answer))
        self._reader.bytes_max = PEER_FRAME_BYTES_MAX
        return True

    def _refuse(self, frame: Frame, refused: PeerRefused) -> bool:
        _log.warning("peer %s refused: %s", self._stream.peer, refused)
        self._server.note_refused(self._stream, refused.code)
        refusal = Refusal(code=refused.code, reason=refused.reason, replacement=refused.replacement)
        self._stream.write(*encode_frame(FrameKind.REFUSAL, frame.correlation_id, refusal))
        return False

    async def _answer(self, session: PeerSession | NodeSession, carried: "_Carried") -> None:
        self._not_begun -= 1
        answer_bytes = 0
        try:
            kind, reply = await self._handle(session, carried)
            answer = encode_frame(kind, carried.correlation_id, reply.message, reply.attachment)
            answer_bytes = sum(map(len, answer))
            self._busy_bytes += answer_bytes
            self._note_held()
            self._stream.write(*answer)
            await self._drain()
            if self._refused is not None:
                self._stream.close()
        except PeerProtocolError as error:
            _log.warning("peer %s disconnected: %s", self._stream.peer, error)
            self._stream.close()
        finally:
            carried.hand_back()
            self._take_back(answer_bytes)
            self._slots.release()

    async def _drain(self) -> bool:
        """Wait for a peer that reads slowly: its next requests stay unread so long."""
        try:
            async with asyncio.timeout(self._server.settings.stall_timeout_ms / 1000):
                await self._stream.drain()
        except TimeoutError:
            _log.warning("peer %s disconnected: it takes no answers", self._stream.peer)
            self._stream.abort()
            return False
        except OSError as error:
            _log.info("peer %s went away: %s", self._stream.peer, error)
            return False
        return True

    def _admit(self, session: PeerSession) -> None:
        if self._refused is not None:
            raise PeerRefused(self._refused.code, self._refused.reason)
        try:
            self._server.admit(session.hello)
        except PeerRefused as refused:
            # One that is raised gets a traceback, and that keeps who keeps it: all of this connection (INV-PN7).
            self._refused = PeerRefused(refused.code, refused.reason)
            raise

    async def _handle(
        self, session: PeerSession | NodeSession, carried: "_Carried"
    ) -> tuple[FrameKind, Reply]:
        try:
            # No local of this one holds the frame, which may be handed back.
            if isinstance(session, NodeSession):
                handlers = self._server.node_handlers(session)
                answer = await handlers.read(carried.frame, carried.hand_back)(session)
            else:
                handling = self._server.read(carried.frame, carried.hand_back)
                self._admit(session)
                answering = handling(session)
                del handling
                answer = await answering
        except PeerRefused as refusal:
            return FrameKind.REFUSAL, Reply(Refusal(code=refusal.code, reason=refusal.reason))
        return FrameKind.ANSWER, answer if isinstance(answer, Reply) else Reply(answer)


class _Carried:
    """A request's frame, counted until it is handed back."""

    def __init__(self, frame: Frame, on_hand_back: Callable[[int], None]) -> None:
        self.correlation_id = frame.correlation_id
        self.held_bytes = len(frame.message) + len(frame.attachment)
        self._frame: Frame | None = frame
        self._on_hand_back = on_hand_back

    @property
    def frame(self) -> Frame:
        """Return the frame; it was not handed back."""
        assert self._frame is not None, "nobody reads what was handed back"
        return self._frame

    def hand_back(self) -> None:
        """Hold and count the frame no more; calling it again does nothing."""
        self._frame = None
        given_bytes, self.held_bytes = self.held_bytes, 0
        self._on_hand_back(given_bytes)
