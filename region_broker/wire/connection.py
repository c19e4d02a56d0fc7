"""One connection without I/O: frames in, requests out in order, answers out in the same order.

INV-WQ1  answers leave in the order of their requests, whatever order they are finished in
INV-WQ4  the bytes of a request that waits on others for long are handed back once it is decoded: what is kept of it
        is counted and bounded where it is kept (`groups`); those of a large one that is answered, then
INV-WQ5  at most one Fetch is in flight, one request that lists things (`LISTING_KEYS`), and one that describes what it names
        (`DESCRIBING_KEYS`): its answer may be large, and a peer that pipelines them without reading would otherwise fill memory
At most IN_FLIGHT_REQUESTS_MAX requests and about IN_FLIGHT_BYTES_MAX bytes of them are in flight: from being handed out
until their answer was taken by the socket; then nothing more is read.
Not here: sockets and tasks (`wire.server`), what a request means (`handlers`).
"""

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Protocol

import msgspec

from region_broker.limits import (
    FREE_HELD_BYTES,
    IN_FLIGHT_BYTES_MAX,
    IN_FLIGHT_REQUESTS_MAX,
    REQUEST_BYTES_MAX,
)
from region_broker.ports.network import Buffer
from region_broker.security.quotas.throttles import Meter
from region_broker.wire.codec.gathered import AnswerBytes, parts_of
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.framing import LENGTH, FrameReader
from region_broker.wire.headers import peek_header

PRODUCE_KEY: Final = 0
FETCH_KEY: Final = 1
LISTING_KEYS: Final = frozenset({3, 16, 29, 35, 41, 48, 50, 66, 75})
"""Metadata, ListGroups, DescribeAcls, DescribeLogDirs, DescribeDelegationToken, DescribeClientQuotas, DescribeUserScramCredentials,
ListTransactions, DescribeTopicPartitions."""
DESCRIBING_KEYS: Final = frozenset({9, 15, 32, 61, 65, 69})
"""OffsetFetch, DescribeGroups, DescribeConfigs, DescribeProducers, DescribeTransactions, ConsumerGroupDescribe."""
_ALONE: Final = {
    FETCH_KEY: FETCH_KEY,
    **dict.fromkeys(LISTING_KEYS, min(LISTING_KEYS)),
    **dict.fromkeys(DESCRIBING_KEYS, min(DESCRIBING_KEYS)),
}
"""Of what one request may be in flight: by which key it is known here, of each (INV-WQ5)."""

_KEPT_BYTES: Final = 1_024


@dataclass(slots=True)
class Numbering:
    """Numbers the connections that come in one way, in the order in which they are accepted.

    `origin` tells numberings apart that cannot be compared (`txn_coordinator.connection_order`).
    """

    origin: int = 0
    newest: int = 0

    def next(self) -> int:
        """Return the number of a new connection."""
        self.newest += 1
        return self.newest


class Waiting(Protocol):
    """A request that waits without a task, and that nobody needs once its peer has gone."""

    def give_up(self) -> None:
        """Wait no more, and finish without an answer."""
        ...


@dataclass(frozen=True, slots=True)
class Peer:
    """The connection that a request came over; `state` is shared by the requests of one connection.

    `waiting`: its requests that are given up when it is gone.
    """

    connection_id: int
    address: str
    numbering: Numbering = field(default_factory=Numbering)
    state: ConnectionState = field(default_factory=ConnectionState)
    waiting: dict[Waiting, None] = field(default_factory=dict)


class Incoming(msgspec.Struct, eq=False):
    """One request: the whole frame (header and body), and the three numbers every header begins with.

    `on_hand_back(bytes)` is called when the frame is given back before the answer. `meter`: what it is charged by, None where there are
    no quotas; `throttle_ms`: for how long its connection is to be left unread after it (both set by the dispatcher).
    """

    peer: Peer
    frame: memoryview
    api_key: int
    version: int
    correlation_id: int
    on_hand_back: Callable[[int], None] | None = None
    meter: Meter | None = None
    throttle_ms: int = 0

    def hand_back(self) -> None:
        """Give the frame back, but for its beginning, which logs name it by: nobody may read its body any more."""
        kept = memoryview(bytes(self.frame[:_KEPT_BYTES]))
        given_bytes = len(self.frame) - len(kept)
        self.frame = kept
        if given_bytes and self.on_hand_back is not None:
            self.on_hand_back(given_bytes)


class Slot(msgspec.Struct, eq=False):
    """The place of one request in the order of answers; `answer` is None until it is finished."""

    incoming: Incoming
    done: bool = False
    answer_bytes: int = 0
    answer: AnswerBytes | None = None  # None when done: no answer is due (Produce with acks=0)


class Connection:
    """The sans-IO core of one client connection."""

    __slots__ = (
        "_alone",
        "_answer_bytes",
        "_frames",
        "_in_flight_bytes",
        "_next",
        "_slots",
        "_unsent",
        "in_flight",
        "on_hand_back",
        "peer",
    )

    def __init__(self, peer: Peer, *, frame_bytes_max: int = REQUEST_BYTES_MAX) -> None:
        """Create a connection that has seen no bytes."""
        self.peer = peer
        self.in_flight = 0
        self.on_hand_back: Callable[[], None] = lambda: None
        self._frames = FrameReader(frame_bytes_max)
        self._slots: deque[Slot] = deque()
        self._next: Incoming | None = None  # framed, but held back by a cap
        self._unsent: list[Slot] = []
        self._in_flight_bytes = 0
        self._answer_bytes = 0
        self._alone: set[int] = set()  # what is in flight of `_ALONE`

    def allow_frames(self, max_bytes: int) -> None:
        """Take requests of that size from now on."""
        self._frames.allow(max_bytes)

    @property
    def missing_bytes(self) -> int:
        """Return how many bytes the request lacks that has come in part; 0 where that is not known."""
        return self._frames.missing_bytes

    @property
    def mid_frame(self) -> bool:
        """Return whether a frame has begun and is not complete."""
        return self._next is None and self._frames.mid_frame

    @property
    def lacks_bytes(self) -> bool:
        """Return whether what is next to begin is not complete, and no cap keeps its rest in the socket."""
        return self._frames.mid_frame and not self.stalled

    @property
    def waits_framed(self) -> bool:
        """Return whether a whole request waits until another one is answered."""
        return self._next is not None

    @property
    def held_bytes(self) -> int:
        """Return what this connection holds: bytes read, requests in flight, answers not taken."""
        return self.not_begun_bytes + self._in_flight_bytes + self._answer_bytes

    @property
    def not_begun_bytes(self) -> int:
        """Return what of that is no request that was handed out: parts of frames, and whole ones that wait."""
        framed_bytes = 0 if self._next is None else len(self._next.frame)
        return self._frames.held_bytes + framed_bytes

    @property
    def owes(self) -> bool:
        """Return whether a request that was handed out is not answered yet."""
        return not all(slot.done for slot in self._slots)

    @property
    def stalled(self) -> bool:
        """Return whether a cap holds requests back: then the socket must not be read."""
        return self._next is not None or self._capped

    @property
    def _capped(self) -> bool:
        return (
            self.in_flight >= IN_FLIGHT_REQUESTS_MAX or self._in_flight_bytes >= IN_FLIGHT_BYTES_MAX
        )

    def receive(self, chunk: bytes) -> None:
        """Take bytes from the socket."""
        self._frames.feed(chunk)

    def drop_not_begun(self) -> None:
        """Hold nothing of what is not begun: nothing more of this connection will be."""
        self._frames = FrameReader()
        self._next = None

    def has_request(self) -> bool:
        """Return whether `next_request` would return one; raises what that does."""
        if self._next is None and not self._capped:
            self._next = self._framed()
        incoming = self._next
        if incoming is None or self._capped:
            return False
        return _ALONE.get(incoming.api_key) not in self._alone

    def _framed(self) -> Incoming | None:
        if not self._frames.held_bytes:
            return None
        frame = self._frames.next_frame()
        if frame is None:
            return None
        return Incoming(self.peer, frame, *peek_header(frame), self._take_back)

    def next_request(self) -> Slot | None:
        """Return the next request to start, or None: more bytes are needed, or a cap is reached.

        Raises `FramingError` or `HeaderError`: the connection must be closed.
        """
        incoming = self._next
        if incoming is None:
            incoming = None if self._capped else self._framed()
            if incoming is None:
                return None
        elif self._capped:
            return None
        alone = _ALONE.get(incoming.api_key)
        if alone is not None:
            if alone in self._alone:
                self._next = incoming
                return None
            self._alone.add(alone)
        self._next = None
        slot = Slot(incoming)
        self._slots.append(slot)
        self.in_flight += 1
        self._in_flight_bytes += len(incoming.frame)
        return slot

    def _take_back(self, frame_bytes: int) -> None:
        """Count these bytes of a request in flight no more."""
        self._in_flight_bytes -= frame_bytes
        assert self._in_flight_bytes >= 0, self._in_flight_bytes
        self.on_hand_back()

    def let_go(self) -> None:
        """Hold no request any more, as each of them holds this: the connection has ended, and is freed now (INV-PN7)."""
        self.on_hand_back = _nobody_hears
        self._next = None
        self._slots.clear()
        self._unsent.clear()

    def finish(self, slot: Slot, answer: AnswerBytes | None) -> None:
        """Note the answer of a request (None: none is due)."""
        assert not slot.done, "a request is answered once"
        slot.done = True
        if len(slot.incoming.frame) > FREE_HELD_BYTES:
            slot.incoming.hand_back()
        if answer is not None:
            slot.answer = answer
            slot.answer_bytes = len(answer)
            self._answer_bytes += slot.answer_bytes

    def take_answers(self) -> list[Buffer]:
        """Return the buffers that may be sent now, in order; call `sent` when the socket took them."""
        buffers: list[Buffer] = []
        slots = self._slots
        while slots and slots[0].done:
            slot = slots.popleft()
            self._unsent.append(slot)
            if slot.answer is not None:
                buffers += (LENGTH.pack(slot.answer_bytes), *parts_of(slot.answer))
                slot.answer = None
        return buffers

    def sent(self) -> None:
        """Note that the socket took all answers handed out so far: room for new requests."""
        for slot in self._unsent:
            self.in_flight -= 1
            self._in_flight_bytes -= len(slot.incoming.frame)
            self._answer_bytes -= slot.answer_bytes
            if slot.incoming.api_key in _ALONE:
                self._alone.discard(_ALONE[slot.incoming.api_key])
        self._unsent.clear()
        assert self.in_flight >= len(self._slots), (self.in_flight, len(self._slots))


def _nobody_hears() -> None:
    return None
