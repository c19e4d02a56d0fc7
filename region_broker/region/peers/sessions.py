"""Accepted connections as handlers see them, and which messages have a handler.

INV-PSS1  a session is of one kind for life, a region's or a node's, and is served what was registered for that kind only
INV-PSS2  whose a node's session is, its handshake said: no later message names its sender
INV-PSS3  a node's session is of one purpose for life, and is served what was registered for that purpose only
Not here: sockets, frames and the handshake itself (`server`).
"""

from collections.abc import Awaitable, Callable, Sequence
from typing import Generic, NamedTuple, TypeVar
from uuid import UUID

from region_broker.controller.raft.entries import Member
from region_broker.ports.network import Buffer, ByteStream
from region_broker.region.peers.node_protocol import (
    PURPOSES,
    RAFT,
    NodeHello,
    NodeIdentity,
    Purpose,
)
from region_broker.region.peers.protocol import (
    UNKNOWN_MESSAGE,
    AnyMessage,
    Frame,
    Hello,
    PeerMessage,
    PeerProtocolError,
    PeerRefused,
    decode_message,
)
from region_broker.region.peers.speakers import check_speaker


class Reply(NamedTuple):
    """An answer with raw bytes attached, uncopied."""

    message: PeerMessage
    attachment: Sequence[Buffer] = ()


class Session:
    """One accepted connection.

    What a service keeps of it stands with that service, in a `WeakKeyDictionary`: so it lasts as long as a handler may
    still be given the session, which is longer than the connection.
    """

    def __init__(self, session_id: int, peer_address: str) -> None:
        """Describe a connection from `peer_address`."""
        self.session_id = session_id
        self.peer_address = peer_address
        self._closers: list[Callable[[], None]] = []
        self._has_ended = False

    def on_close(self, closer: Callable[[], None]) -> None:
        """Call `closer` once the connection has ended; at once if it has: a handler may begin after that."""
        if self._has_ended:
            closer()
        else:
            self._closers.append(closer)

    def end(self) -> None:
        """Run the closers; the server calls this."""
        self._has_ended = True
        closers, self._closers = self._closers, []
        for closer in closers:
            closer()


class PeerSession(Session):
    """A session of another region's node."""

    def __init__(self, session_id: int, peer_address: str, hello: Hello) -> None:
        """Describe the connection of the node that made its handshake with `hello`."""
        super().__init__(session_id, peer_address)
        self.hello = hello


class NodeSession(Session):
    """A session of another node of this node's region."""

    def __init__(
        self, session_id: int, peer_address: str, hello: NodeHello, cut_off: Callable[[], None]
    ) -> None:
        """Describe the connection of the node that made its handshake with `hello`."""
        super().__init__(session_id, peer_address)
        self._hello = hello
        self.opens_logs = hello.opens_logs
        """Whether the node is still about to open its logs, as it said last."""
        self._cut_off = cut_off

    @property
    def member(self) -> Member:
        """Return whose it is (INV-PSS2)."""
        return self._hello.member

    @property
    def life(self) -> UUID:
        """Return which start of the member's process it is of."""
        return self._hello.life

    @property
    def purpose(self) -> Purpose:
        """Return what it is for (INV-PSS3)."""
        return self._hello.purpose

    def cut_off(self) -> None:
        """End the connection at once."""
        self._cut_off()


AnySession = TypeVar("AnySession", bound=Session)
Handler = Callable[[AnySession, AnyMessage, memoryview], Awaitable[PeerMessage | Reply]]
Handling = Callable[[AnySession], Awaitable[PeerMessage | Reply]]
"""A request that was read; called with the session that sent it, it is executed."""
HandsBack = Callable[
    [AnySession, AnyMessage, memoryview, Callable[[], None]], Awaitable[PeerMessage | Reply]
]
NoticeHandler = Callable[[AnySession, AnyMessage, memoryview], None]


class Handlers(Generic[AnySession]):
    """What sessions of one kind are served (INV-PSS1)."""

    def __init__(self) -> None:
        """Serve nothing yet."""
        self._requests: dict[str, Callable[[Frame, Callable[[], None]], Handling[AnySession]]] = {}
        self._notices: dict[str, Callable[[AnySession, Frame], None]] = {}

    def register(
        self, message_type: type[AnyMessage], handler: Handler[AnySession, AnyMessage]
    ) -> None:
        """Answer each `message_type` with what `handler(session, message, attachment)` returns."""
        self.register_handing_back(
            message_type,
            lambda session, message, attachment, _: handler(session, message, attachment),
        )

    def register_handing_back(
        self, message_type: type[AnyMessage], handler: HandsBack[AnySession, AnyMessage]
    ) -> None:
        """Do the same with a handler that says, by calling its last argument, that it holds nothing of the attachment any more."""
        tag = self._fresh_tag(message_type)

        def read(frame: Frame, hand_back: Callable[[], None]) -> Handling[AnySession]:
            message, attachment = decode_message(frame, message_type), frame.attachment
            return lambda session: handler(session, message, attachment, hand_back)

        self._requests[tag] = read

    def register_notice(
        self, message_type: type[AnyMessage], handler: NoticeHandler[AnySession, AnyMessage]
    ) -> None:
        """Hand each notice to `handler(session, message, attachment)` as it arrives, in order.

        The handler does not wait; what it must not be sent it answers with `PeerProtocolError`, which ends the connection.
        """
        tag = self._fresh_tag(message_type)

        def take(session: AnySession, frame: Frame) -> None:
            handler(session, decode_message(frame, message_type), frame.attachment)

        self._notices[tag] = take

    def _fresh_tag(self, message_type: type[PeerMessage]) -> str:
        tag = message_type.__name__
        assert tag not in {*self._requests, *self._notices}, f"{tag} has a handler already"
        return tag

    def read(
        self, frame: Frame, hand_back: Callable[[], None] = lambda: None
    ) -> Handling[AnySession]:
        """Read a request for its handler; raises `PeerRefused` for a tag that nobody serves, `PeerProtocolError` for
        bytes that are no such message.

        `hand_back`: called where the handler holds nothing of the frame any more, and waits on.
        """
        reader = self._requests.get(frame.tag)
        if reader is None:
            raise PeerRefused(UNKNOWN_MESSAGE, f"this node does not serve {frame.tag!r} messages")
        return reader(frame, hand_back)

    def take(self, session: AnySession, frame: Frame) -> None:
        """Hand a notice to its handler; raises `PeerProtocolError` for one that nobody takes, or that is none."""
        take = self._notices.get(frame.tag)
        if take is None:
            raise PeerProtocolError(f"nobody here takes {frame.tag!r} notices")
        take(session, frame)


class NodeDoor:
    """How nodes of this node's region come in, and what they are served."""

    def __init__(self, identity: NodeIdentity, on_session: Callable[[NodeSession], None]) -> None:
        """Let in whom `identity` does not object to; tell `on_session` of each for the quorum's messages, which may raise
        `PeerRefused`, too.
        """
        self._identity = identity
        self._on_session = on_session
        self._handlers: dict[Purpose, Handlers[NodeSession]] = {
            purpose: Handlers() for purpose in PURPOSES
        }

    def handlers_for(self, purpose: Purpose) -> Handlers[NodeSession]:
        """Return what connections of a purpose are served; register it before the port is bound."""
        return self._handlers[purpose]

    def handshake(
        self, session_id: int, stream: ByteStream, frame: Frame
    ) -> tuple[NodeHello, NodeSession]:
        """Judge a NodeHello; return the answer and the session. Raises `PeerRefused`, `PeerProtocolError`."""
        theirs = decode_message(frame, NodeHello)
        check_speaker(stream, theirs)
        objection = self._identity.objection(theirs)
        if objection is not None:
            raise objection
        session = NodeSession(session_id, stream.peer, theirs, stream.abort)
        if session.purpose == RAFT:
            self._on_session(session)
        return self._identity.hello(), session
