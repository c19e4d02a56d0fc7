"""The peer protocol: what two nodes say to each other, of different regions or of one, and how it is framed.

INV-PF2  what is longer than a frame may be is not sent, and ends its connection, never the node: an answer is as long as the question
INV-PF3  a mirror and its primary tell no offset, version or time that there cannot be: it is written into files, and counted on from
INV-PF4  what a mirror lets begin and forgets in one step has bounds
INV-PF1  a notice has no answer and the correlation id 0; it is said to nodes of the same region only, as a version that
         knows none ends the connection on which one comes

A frame is never allocated before its size is known to be within the cap of its connection: 64 KiB until a Hello was
accepted, `PEER_FRAME_BYTES_MAX` after. Bytes that are not a frame end the connection with a reason; nothing is skipped
or guessed. A message is checked against its type before anyone sees it.

A connection opens with `PREFACE` from the connecting side, so that Kafka or HTTP bytes on this port are told
apart at once. Then frames, both ways::

    u32 size | u8 kind | u64 correlation id | u8 tag size | tag | u32 message size | message | attachment

The tag is the message's class name, the message is msgpack, the attachment is raw (log batches, a verbatim
Kafka frame). Numbers are big-endian. Requests of one connection start in arrival order; an answer carries
the correlation id of its request and may overtake an earlier one.
Not here: sockets (`peers.server`, `peers.client`), the handshake within a region (`peers.node_protocol`), and what the
messages cause.
"""

import struct
from collections.abc import Iterator, Sequence
from enum import IntEnum
from typing import Annotated, Final, NamedTuple, Protocol, TypeAlias, TypeVar

import msgspec

from geo_replicator.folder_life import Shown
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, RegionEpoch
from region_broker.controller.metadata_image import LineageEntry
from region_broker.limits import ARRAY_ELEMENTS_MAX
from region_broker.ports.network import Buffer
from region_broker.region.peers.replacement import Replacement
from region_broker.security.access import Access
from region_broker.wire.chunks import ChunkQueue

PREFACE: Final = b"TIDEMARK/1\n"
LOGS_MAX: Final = ARRAY_ELEMENTS_MAX
"""Logs that one message may name where they are worked on in one step."""
NUMBERS_END: Final = 2**62
"""Offsets are below: whoever counts on from one stays in a signed 64 bits."""
Offset: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=NUMBERS_END)]
OffsetOrNone: TypeAlias = Annotated[int, msgspec.Meta(ge=-1, lt=NUMBERS_END)]
Epoch: TypeAlias = Annotated[LeaderEpoch, msgspec.Meta(ge=-1, lt=NUMBERS_END)]
Partition: TypeAlias = Annotated[int, msgspec.Meta(ge=0, lt=2**31)]
PEER_FRAME_BYTES_MAX: Final = 128 * 1024 * 1024
HANDSHAKE_FRAME_BYTES_MAX: Final = 64 * 1024
VIEWED_BYTES_MIN: Final = 64 * 1024
"""Of a smaller frame a copy is made: whoever keeps it would keep the chunk in which it came, of up to 256 KiB."""
_HEAD: Final = struct.Struct(">IBQB")
_SIZE: Final = struct.Struct(">I")
_HEAD_AFTER_SIZE: Final = _HEAD.size - 4


class PeerProtocolError(Exception):
    """The other side sent bytes that are no frame or no message; the connection must end."""


class PeerFrameTooLarge(PeerProtocolError):
    """What was to be said is longer than a frame may be: the connection must end (INV-PF2)."""


class PeerRefused(Exception):
    """The other side understood and refused: `code` is for programs (kebab-case), `reason` for people."""

    def __init__(self, code: str, reason: str, replacement: Replacement | None = None) -> None:
        """Keep `code` beside the text, and the grounds of a refusal that has some."""
        super().__init__(reason)
        self.code = code
        self.reason = reason
        self.replacement = replacement


class ShutOut(PeerRefused):
    """The other side knows that their region goes on without this node's folder for good: `code` says why."""


class PeerUnreachable(Exception):
    """No answer will come. `sent` says whether the request had left: it may then have taken effect."""

    def __init__(self, reason: str, *, sent: bool) -> None:
        """Keep `sent` beside the text."""
        super().__init__(reason)
        self.sent = sent


STALE_REGION_EPOCH: Final = "stale-region-epoch"
NO_SUCH_EPOCH: Final = "no-such-region-epoch"
NOT_ACTING: Final = "not-acting"
STARTS_WITH_HISTORY: Final = "starts-with-history"
STARTS_WITHOUT_HISTORY: Final = "starts-without-history"
"""What a node answers that is starting, and knows of its folder whether there is history in it (T32)."""
STARTS_WITH_QUORUM: Final = "starts-with-quorum"
"""So does one whose folder began the quorum of its region, which has no history yet."""
NOT_LEADING: Final = "not-leading"
UNKNOWN_MESSAGE: Final = "unknown-message"
OTHER_CLUSTER: Final = "other-cluster"
OTHER_HISTORY: Final = "other-history"
UNBORN: Final = "unborn"
ASK_AGAIN: Final = "ask-again"
RUNS_ELSEWHERE: Final = "runs-elsewhere"
STANDS_ASIDE: Final = "stands-aside"
LED_BY_ANOTHER: Final = "led-by-another"


class PeerMessage(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all messages; the class name is the tag on the wire."""


AnyMessage = TypeVar("AnyMessage", bound=PeerMessage)


class Hello(PeerMessage, frozen=True, kw_only=True):
    """The first message of a connection, and its answer: who speaks, and what it knows.

    `refused` is empty in a request; in an answer it says why the server will not talk on, and the other
    fields still let the caller learn a higher region epoch. `folder` is None from a version that does not tell.
    """

    cluster_id: str
    region: str
    node_id: int
    region_epoch: RegionEpoch
    acting_region: str = ""
    lineage: tuple[LineageEntry, ...] = ()
    refused: str = ""
    refused_code: str = ""
    folder: Shown | None = None
    answers: bool = False
    """It answers a handshake, so its node is to be met where its region is."""
    feature_level: int = 1
    """That of the region, which is what it may be sent (INV-FL1); 1 from a version that does not tell."""
    abandoned_epoch: RegionEpoch = RegionEpoch(0)
    """It acts under no region epoch up to this one that it was promised: it gave them up (T24)."""

    @property
    def without_history(self) -> bool:
        """Return whether the node's folder has no history: it only asks (T32)."""
        return self.folder is not None and self.folder.history is None


class Refusal(PeerMessage, frozen=True, kw_only=True):
    """The answer to a request that was understood and refused; an older version tells no grounds, and takes none."""

    code: str
    reason: str
    replacement: Replacement | None = None


class PeerIdentity(Protocol):
    """Who this node is, and where it puts what it learns from others. GEO failover implements it."""

    def hello(self) -> Hello:
        """Return this node's hello with the region epoch and lineage of this moment."""
        ...

    def learn(self, hello: Hello) -> None:
        """Take note of a peer's hello; called for each one, also when it was refused.

        Raises `PeerRefused` where that node may not talk: another one runs as its region (T36).
        """
        ...


class FrameKind(IntEnum):
    """What a frame is."""

    REQUEST = 1
    ANSWER = 2
    REFUSAL = 3
    NOTICE = 4
    """Not answered (INV-PF1)."""


class Frame(NamedTuple):
    """One frame; `message` is still msgpack. Both payloads are views into the received bytes."""

    kind: FrameKind
    correlation_id: int
    tag: str
    message: memoryview
    attachment: memoryview


def encode_frame(
    kind: FrameKind, correlation_id: int, message: PeerMessage, attachment: Sequence[Buffer] = ()
) -> list[Buffer]:
    """Return the buffers of one frame, the attachment's own buffers uncopied; raises `PeerFrameTooLarge`."""
    tag = type(message).__name__.encode("ascii")
    body = msgspec.msgpack.encode(message)
    attached_bytes = sum(len(part) for part in attachment)
    size = _HEAD_AFTER_SIZE + len(tag) + _SIZE.size + len(body) + attached_bytes
    if size > PEER_FRAME_BYTES_MAX:
        text = f"a {tag.decode()} of {size} bytes is over {PEER_FRAME_BYTES_MAX}, the most that a frame may have: ask for less at once"
        raise PeerFrameTooLarge(text)
    head = _HEAD.pack(size, kind, correlation_id, len(tag)) + tag + _SIZE.pack(len(body))
    return [head + body, *attachment]


def decode_message(frame: Frame, message_type: type[AnyMessage]) -> AnyMessage:
    """Return the frame's message as `message_type`; raises `PeerProtocolError`."""
    if frame.tag != message_type.__name__:
        raise PeerProtocolError(
            f"expected {message_type.__name__}, the peer sent {frame.tag!r}: is it of another version?"
        )
    try:
        return msgspec.msgpack.decode(frame.message, type=message_type)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise PeerProtocolError(f"the {frame.tag} message is malformed: {error}") from error


class FrameReader(ChunkQueue):
    """Cuts a byte stream into frames (sans-IO). `bytes_max` may be raised once a Hello was accepted.

    `held_bytes`: of which no frame was made yet.
    """

    def __init__(self, bytes_max: int, *, preface: bool = False) -> None:
        """With `preface` the stream must open with `PREFACE`."""
        self.bytes_max = bytes_max
        super().__init__()
        self._awaits_preface = preface

    def feed(self, data: bytes) -> Iterator[Frame]:
        """Add `data` and yield each frame that is whole; raises `PeerProtocolError`."""
        self._add(data)
        if self._awaits_preface and not self._take_preface():
            return
        while (frame := self._take_frame()) is not None:
            taken = [frame]
            del frame
            yield taken.pop()  # held by nobody here

    def _take_preface(self) -> bool:
        start = self._peek(len(PREFACE))
        if not PREFACE.startswith(start):
            raise PeerProtocolError(
                f"the connection opened with {start[:11]!r}: this is the peer port of a Tidemark"
                " region, it speaks neither Kafka nor HTTP"
            )
        if len(start) < len(PREFACE):
            return False
        self._take(len(PREFACE))
        self._awaits_preface = False
        return True

    def _take_frame(self) -> Frame | None:
        if self.held_bytes < _SIZE.size:
            return None
        (size,) = _SIZE.unpack(self._peek(_SIZE.size))
        if not _HEAD_AFTER_SIZE + _SIZE.size <= size <= self.bytes_max:
            raise PeerProtocolError(
                f"a frame of {size} bytes is not within {_HEAD_AFTER_SIZE + _SIZE.size}"
                f"..{self.bytes_max}"
            )
        if self.held_bytes < _SIZE.size + size:
            return None
        whole = self._take(_SIZE.size + size)
        if len(whole) < VIEWED_BYTES_MIN:
            whole = memoryview(bytes(whole))
        return _split_frame(whole)


def _split_frame(whole: memoryview) -> Frame:
    _, kind, correlation_id, tag_bytes = _HEAD.unpack_from(whole)
    message_at = _HEAD.size + tag_bytes + _SIZE.size
    if kind not in FrameKind.__members__.values():
        raise PeerProtocolError(f"frame kind {kind} is unknown")
    if kind == FrameKind.NOTICE and correlation_id:
        raise PeerProtocolError(f"INV-PF1: a notice has the correlation id {correlation_id}")
    if message_at > len(whole):
        raise PeerProtocolError("a frame ends within its tag")
    try:
        tag = bytes(whole[_HEAD.size : _HEAD.size + tag_bytes]).decode("ascii")
    except UnicodeDecodeError as error:
        raise PeerProtocolError("a message tag is not ASCII") from error
    (message_bytes,) = _SIZE.unpack_from(whole, message_at - _SIZE.size)
    if message_at + message_bytes > len(whole):
        raise PeerProtocolError("a message is longer than its frame")
    attachment_at = message_at + message_bytes
    message = whole[message_at:attachment_at]
    return Frame(FrameKind(kind), correlation_id, tag, message, whole[attachment_at:])


# Messages of the link and of forwarding. Failover adds its own beside its handlers.


class SyncTopics(PeerMessage, frozen=True, kw_only=True):
    """Ask for the whole topic registry of the domain."""

    region_epoch: RegionEpoch


class SyncedTopic(msgspec.Struct, frozen=True, kw_only=True):
    """One topic of the registry; `topic_id` is the hex form of the UUID."""

    topic_id: str
    name: str
    partition_count: int
    domain: str
    internal: bool
    configs: dict[str, str]


class TopicRegistry(PeerMessage, frozen=True, kw_only=True):
    """All topics at metadata version `metadata_version` of the primary region (M)."""

    metadata_version: Offset
    topics: tuple[SyncedTopic, ...]
    access: Access | None = None
    """Users' keys, ACLs, quotas and tokens at that version (INV-SAC1); None from a version that has none."""
    access_epoch: OffsetOrNone = -1
    """The newest region epoch of whose history they are known to be (INV-QM3); -1 from a version that does not tell."""
    followed_version: OffsetOrNone = -1
    """From a region that acts no more: as of which version of the primary it has followed these; -1 where it does not know (INV-QM4)."""


class LogEpochEnd(msgspec.Struct, frozen=True, array_like=True):
    """A log's newest leader epoch and its end: what divergence is judged by (KIP-101).

    `log_start_offset`: where its bytes begin. `readable_from`: where readers may begin, -1 from a region that does not
    tell.
    """

    topic_id: str
    partition: Partition
    leader_epoch: Epoch
    end_offset: OffsetOrNone
    log_start_offset: Offset = 0
    readable_from: OffsetOrNone = -1


class CheckLogs(PeerMessage, frozen=True, kw_only=True):
    """Ask where the primary region's logs leave the leader epochs that the mirror ends with (T23)."""

    region_epoch: RegionEpoch
    logs: tuple[LogEpochEnd, ...]


class CheckedLogs(PeerMessage, frozen=True, kw_only=True):
    """Per log, in the order asked: the largest leader epoch <= the asked one, and its end offset."""

    logs: tuple[LogEpochEnd, ...]


class FetchPosition(msgspec.Struct, frozen=True, array_like=True):
    """From where to send a partition."""

    topic_id: str
    partition: Partition
    position: Offset


class FetchLogs(PeerMessage, frozen=True, kw_only=True):
    """Ask for what is new; `positions` are set, `forgotten` removed, the rest goes on where it was sent to.

    The session lives with the connection, so requests can be pipelined. Answered at once when anything is
    there, else after `wait_ms_max`. It names `LOGS_MAX` logs at most (INV-PF4).
    """

    region_epoch: RegionEpoch
    positions: Annotated[tuple[FetchPosition, ...], msgspec.Meta(max_length=LOGS_MAX)] = ()
    forgotten: Annotated[tuple[tuple[str, int], ...], msgspec.Meta(max_length=LOGS_MAX)] = ()
    bytes_max: int
    wait_ms_max: int


class FetchedPartition(msgspec.Struct, frozen=True, array_like=True):
    """One partition's part of the attachment: `data_bytes` of it, whole batches from `position` on."""

    topic_id: str
    partition: Partition
    position: Offset
    data_bytes: Offset
    high_watermark: Offset
    log_start_offset: Offset
    unsent_bytes: Offset
    cleaned_below: Offset = 0


class FetchedLogs(PeerMessage, frozen=True, kw_only=True):
    """What is new, in the attachment's order, and the metadata version of this moment."""

    metadata_version: Offset
    sent_wall_ms: Offset
    partitions: tuple[FetchedPartition, ...]
    access: Access | None = None
    """Users' keys, ACLs, quotas and tokens, where they changed since the mirror was told last (INV-SAC1); read before what is attached counts."""


class ReportReached(PeerMessage, frozen=True, kw_only=True):
    """The mirror reached tidemark (`reached_region_epoch`, `number`) durably, and how far it lags."""

    region_epoch: RegionEpoch
    reached_region_epoch: RegionEpoch
    number: int
    lag_records: int
    lag_bytes: int
    lag_ms: int


class ReachedNoted(PeerMessage, frozen=True, kw_only=True):
    """The answer to `ReportReached`: the last tidemark published."""

    region_epoch: RegionEpoch
    published_number: int


class Forward(PeerMessage, frozen=True, kw_only=True):
    """A client's request, verbatim in the attachment (without its size field), and who the client is.

    `client_connection_id` is the number of the client's connection among those that the sending node accepted
    in this life, of which `client_origin` is the name; `channel` counts the peer connections that were opened
    for that one; `newest_connection_id` is the greatest number of this moment. `leader_epoch`: of the leadership that the sender
    knows, where the request goes to the node that leads the sender's own region, and `region_epoch` counts for nothing; -1 between regions.
    """

    region_epoch: RegionEpoch
    client_origin: int
    client_connection_id: int
    newest_connection_id: int
    channel: int
    principal: str
    client_address: str
    leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
    mechanism: str = ""
    token_id: str = ""


class Forwarded(PeerMessage, frozen=True, kw_only=True):
    """The answer, verbatim in the attachment; `silent` where the client expects none (acks=0)."""

    silent: bool = False
