"""Fetch (1), versions 4-18, read and written on the fast path.

INV-BFE1  a request without tags, with names and counts of a usual size, is read here, as the general reader reads it; any other
         is left to that: the reader here refuses nothing by itself
INV-BFE2  what is written is what the general writer (`codec.answers`) writes, byte for byte, in every version
v5: log start.  v7: sessions.  v9: leader epoch.  v11: rack.  v12: flexible.  v13: topic ids.  v15: the replica moved to
a tag.  v16: who leads now.
Source: FetchRequest.json, FetchResponse.json.
Not here: what the fields mean (`handlers.fetch.fetch`).
"""

import struct
from collections.abc import Callable, Sequence
from itertools import starmap
from typing import Any, Final, NamedTuple, TypeAlias, TypeVar
from uuid import UUID

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from idempotency.pieces import Pieces, drained
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS
from region_broker.ports.network import Buffer
from region_broker.wire.codec.bounded import (
    MALFORMED,
    NIL_UUID,
    UUID_BYTES,
    DecodeRefused,
    compact_size,
    long_size,
    short_size,
    text,
    write_uvarint,
)
from region_broker.wire.codec.entities import entity_pieces, read_entity
from region_broker.wire.codec.fast_paths.leaders import Endpoint, endpoints_tags, leader_value
from region_broker.wire.codec.gathered import AnswerBytes, gathered
from region_broker.wire.cooperative_yield import CooperativeYield

KEY: Final = 1
VERSIONS: Final = range(4, 19)
NO_SESSION: Final = 0
NO_REPLICA: Final = -1
FINAL_EPOCH: Final = -1
_LOG_START_SINCE: Final = 5
_SESSIONS_SINCE: Final = 7
_EPOCH_SINCE: Final = 9
_RACK_SINCE: Final = 11
_FLEXIBLE_SINCE: Final = 12
_TOPIC_IDS_SINCE: Final = 13
_NO_REPLICA_SINCE: Final = 15

TopicKey: TypeAlias = str | UUID | None
_Row = TypeVar("_Row")


class AskedPartition(NamedTuple):
    """Where a client reads on in one partition, and how much it takes."""

    partition: int
    leader_epoch: LeaderEpoch
    offset: int
    bytes_max: int


class FetchRequest(NamedTuple):
    """A whole request; topics by name or (from v13 on) by id, None for the nil id."""

    replica_id: int
    wait_ms_max: int
    bytes_min: int
    bytes_max: int
    isolation_level: int
    session_id: int
    session_epoch: int
    topics: Sequence[tuple[TopicKey, Sequence[AskedPartition]]]
    forgotten: Sequence[tuple[TopicKey, Sequence[int]]] = ()
    rack: str = ""
    """Where the client stands (`client.rack`, v11 on); "" where it does not say."""


def read_request(version: int, body: memoryview) -> FetchRequest:
    """Return the request in `body`; raises `DecodeRefused`, or `ManyElements`: then `request_pieces` reads it."""
    try:
        plain = _plain(version, body)
    except (IndexError, DecodeRefused, *MALFORMED):
        plain = None
    return plain or drained(_of_entity(version, read_entity(KEY, version, body)))


def request_pieces(version: int, body: memoryview) -> Pieces[FetchRequest]:
    """Read the request in `body` in pieces; raises `DecodeRefused`."""
    request = yield from entity_pieces(KEY, version, body)
    return (yield from _of_entity(version, request))


def _of_entity(version: int, request: Any) -> Pieces[FetchRequest]:
    replica_state = getattr(request, "replica_state", None)
    by_id = version >= _TOPIC_IDS_SINCE
    topics: list[tuple[TopicKey, list[AskedPartition]]] = []
    yielding = CooperativeYield(PIECE_ELEMENTS)
    for topic in request.topics:
        asked: list[AskedPartition] = []
        topics.append((topic.topic_id if by_id else topic.topic, asked))
        if yielding.due():
            yield
        for item in topic.partitions:
            leader_epoch: LeaderEpoch = getattr(item, "current_leader_epoch", NO_LEADER_EPOCH)
            asked.append(
                AskedPartition(
                    item.partition, leader_epoch, item.fetch_offset, item.partition_max_bytes
                )
            )
            if yielding.due():
                yield
    forgotten = [
        (topic.topic_id if by_id else topic.topic, topic.partitions)
        for topic in getattr(request, "forgotten_topics_data", ())
    ]
    return FetchRequest(
        request.replica_id if replica_state is None else replica_state.replica_id,
        round(request.max_wait.total_seconds() * 1000),
        request.min_bytes,
        request.max_bytes,
        request.isolation_level,
        getattr(request, "session_id", NO_SESSION),
        getattr(request, "session_epoch", FINAL_EPOCH),
        topics,
        forgotten,
        getattr(request, "rack_id", ""),
    )


# --- a request without tags ------------------------------------------------------------------------

_FRONT: Final = struct.Struct(">iiiib")
_FRONT_OF_SESSION: Final = struct.Struct(">iiiibii")
_FRONT_WITHOUT_REPLICA: Final = struct.Struct(">iiibii")
_PARTITION: Final = struct.Struct(">iqi")
_PARTITION_WITH_START: Final = struct.Struct(">iqqi")
_PARTITION_WITH_EPOCH: Final = struct.Struct(">iiqqi")
_PARTITION_WITH_TAGS: Final = struct.Struct(">iiqiqiB")
_I32: Final = struct.Struct(">i")


def _plain(version: int, body: memoryview) -> FetchRequest | None:
    """Return a request that is plain (INV-BFE1), None for any other; raises what the fields of a wrong one raise."""
    assert version in VERSIONS, version
    if version >= _NO_REPLICA_SINCE:
        front: tuple[int, int, int, int, int, int, int] = (
            -1,
            *_FRONT_WITHOUT_REPLICA.unpack_from(body),
        )
        at = _FRONT_WITHOUT_REPLICA.size
    elif version >= _SESSIONS_SINCE:
        front, at = _FRONT_OF_SESSION.unpack_from(body), _FRONT_OF_SESSION.size
    else:
        front = (*_FRONT.unpack_from(body), NO_SESSION, FINAL_EPOCH)
        at = _FRONT.size
    reader = _Reader(version, body, at)
    topics = reader.topics()
    if topics is None:
        return None
    forgotten = reader.forgotten() if version >= _SESSIONS_SINCE else ()
    if forgotten is None or not reader.is_whole():
        return None
    return FetchRequest(*front, topics, forgotten, reader.rack)


class _Reader:
    """Reads the arrays of one plain request; None stands for what is not plain."""

    __slots__ = ("_at", "_body", "_end", "_flexible", "_version", "rack")

    def __init__(self, version: int, body: memoryview, at: int) -> None:
        self._version = version
        self._body = body
        self._at = at
        self._end = len(body)
        self._flexible = version >= _FLEXIBLE_SINCE
        self.rack = ""

    def topics(self) -> list[tuple[TopicKey, list[AskedPartition]]] | None:
        return self._by_topic(self._partitions)

    def forgotten(self) -> list[tuple[TopicKey, list[int]]] | None:
        return self._by_topic(self._numbers)

    def _by_topic(
        self, read: Callable[[int], list[_Row] | None]
    ) -> list[tuple[TopicKey, list[_Row]]] | None:
        topics: list[tuple[TopicKey, list[_Row]]] = []
        left = ELEMENTS_AT_ONCE_MAX
        for _ in range(self._count()):
            key = self._key()
            count = self._count()
            left -= count + 1
            if left < 0:
                return None
            rows = read(count)
            if rows is None or not self._no_tags():
                return None
            topics.append((key, rows))
        return topics

    def _numbers(self, count: int) -> list[int]:
        numbers = struct.unpack_from(f">{count}i", self._body, self._at)
        self._at += _I32.size * count
        return list(numbers)

    def is_whole(self) -> bool:
        """Read what follows the arrays; tell whether it is plain, and the end."""
        if self._version >= _RACK_SINCE:
            size = compact_size if self._flexible else short_size
            size_bytes, at = size(self._body, self._at, self._end)
            rack, self._at = text(self._body, at, size_bytes, self._end)
            if rack is None:
                return False
            self.rack = rack
        return self._no_tags() and self._at == self._end

    def _count(self) -> int:
        """Read the count of an array, which is at most ELEMENTS_AT_ONCE_MAX."""
        size = compact_size if self._flexible else long_size
        count, self._at = size(self._body, self._at, self._end)
        if not 0 <= count <= ELEMENTS_AT_ONCE_MAX:
            raise DecodeRefused(f"an array of {count}")
        return count

    def _key(self) -> TopicKey:
        if self._version >= _TOPIC_IDS_SINCE:
            start = self._at
            self._at = start + UUID_BYTES
            if self._at > self._end:
                raise DecodeRefused("the body ends inside a topic id")
            raw = bytes(self._body[start : self._at])
            return None if raw == NIL_UUID else UUID(bytes=raw)
        size = compact_size if self._flexible else short_size
        size_bytes, at = size(self._body, self._at, self._end)
        name, self._at = text(self._body, at, size_bytes, self._end)
        if name is None:
            raise DecodeRefused("a topic without name")
        return name

    def _partitions(self, count: int) -> list[AskedPartition] | None:
        layout = _layout(self._version)
        start = self._at
        self._at = start + count * layout.size
        if self._at > self._end:
            return None
        rows = layout.iter_unpack(self._body[start : self._at])
        if layout is _PARTITION_WITH_TAGS:
            asked: list[AskedPartition] = []
            for partition, leader_epoch, offset, _, _, bytes_max, tags in rows:
                if tags:
                    return None
                asked.append(AskedPartition(partition, leader_epoch, offset, bytes_max))
            return asked
        if layout is _PARTITION_WITH_EPOCH:
            return [AskedPartition(row[0], row[1], row[2], row[4]) for row in rows]
        return [AskedPartition(row[0], NO_LEADER_EPOCH, row[1], row[-1]) for row in rows]

    def _no_tags(self) -> bool:
        if not self._flexible:
            return True
        self._at += 1
        return self._body[self._at - 1] == 0


def _layout(version: int) -> struct.Struct:
    if version >= _FLEXIBLE_SINCE:
        return _PARTITION_WITH_TAGS
    if version >= _EPOCH_SINCE:
        return _PARTITION_WITH_EPOCH
    return _PARTITION_WITH_START if version >= _LOG_START_SINCE else _PARTITION


# --- the answer ------------------------------------------------------------------------------------


class FetchedRow(NamedTuple):
    """What the answer says of one partition."""

    partition: int
    error_code: int = 0
    high_watermark: int = -1
    last_stable_offset: int = -1
    log_start_offset: int = -1
    aborted: Sequence[tuple[int, int]] | None = None
    """Producer id and first offset of each aborted transaction; None where the reader did not ask."""
    records: Buffer = b""
    leader: tuple[int, int] | None = None
    """The node and the epoch that lead now (v16 on)."""
    diverging: tuple[int, int] | None = None
    """A leader epoch and where it ends here, for a reader who is beyond (v12 on)."""
    preferred: int = NO_REPLICA
    """The node that the reader is to ask instead (KIP-392, v11 on)."""


class FetchAnswer(NamedTuple):
    """A whole answer; `endpoints` of the leaders that its rows name."""

    error_code: int
    session_id: int
    topics: Sequence[tuple[TopicKey, Sequence[FetchedRow]]] = ()
    endpoints: Sequence[Endpoint] = ()


_ROW: Final = struct.Struct(">ihqqq")
_ROW_WITHOUT_START: Final = struct.Struct(">ihqq")
_ABORTED: Final = struct.Struct(">qq")
_ABORTED_TAGGED: Final = struct.Struct(">qqx")  # no tags
_EPOCH_END: Final = struct.Struct(">iqB")
_FRONT_OF_ANSWER: Final = struct.Struct(">ihi")
_I16: Final = struct.Struct(">h")
_NULL: Final = b"\xff\xff\xff\xff"


def answer(version: int, correlation_id: int, fetched: FetchAnswer) -> AnswerBytes:
    """Return header and body of the answer."""
    return drained(pieces_of_answer(version, correlation_id, fetched))


def pieces_of_answer(
    version: int, correlation_id: int, fetched: FetchAnswer
) -> Pieces[AnswerBytes]:
    """Write header and body of the answer, with a pause after each PIECE_ELEMENTS topics, rows and aborted transactions."""
    flexible = version >= _FLEXIBLE_SINCE
    parts: list[Buffer] = [_I32.pack(correlation_id)]
    if flexible:
        parts.append(b"\0")
    if version >= _SESSIONS_SINCE:
        parts.append(_FRONT_OF_ANSWER.pack(0, fetched.error_code, fetched.session_id))
    else:
        parts.append(b"\0\0\0\0")  # not throttled
    parts.append(_count(flexible, len(fetched.topics)))
    write_row = _flexible_row if flexible else _legacy_row
    done = 0
    for key, rows in fetched.topics:
        parts.append(_topic(version, key))
        parts.append(_count(flexible, len(rows)))
        for row in rows:
            write_row(parts, version, row)
            done += 1 + len(row.aborted or ())
            if done >= PIECE_ELEMENTS:
                done = 0
                yield
        if flexible:
            parts.append(b"\0")
        done += 1
        if done >= PIECE_ELEMENTS:
            done = 0
            yield
    if flexible:
        parts.append(endpoints_tags(fetched.endpoints))
    return gathered(parts)


def _flexible_row(parts: list[Buffer], _version: int, row: FetchedRow) -> None:
    parts.append(_ROW.pack(*row[:5]))
    if row.aborted:
        packed = b"".join(starmap(_ABORTED_TAGGED.pack, row.aborted))
        parts += (write_uvarint(len(row.aborted) + 1), packed, _I32.pack(row.preferred))
    elif row.preferred != NO_REPLICA:
        parts += (b"\0" if row.aborted is None else b"\1", _I32.pack(row.preferred))
    else:
        parts.append(b"\0\xff\xff\xff\xff" if row.aborted is None else b"\1\xff\xff\xff\xff")
    if row.records:
        parts += (write_uvarint(len(row.records) + 1), row.records)
    else:
        parts.append(b"\1")
    if row.leader is None and row.diverging is None:
        parts.append(b"\0")
        return
    parts.append(b"\2" if row.leader and row.diverging else b"\1")
    if row.diverging is not None:
        parts += (b"\0\x0d", _EPOCH_END.pack(*row.diverging, 0))
    if row.leader is not None:
        parts += (b"\1", leader_value(row.leader))


def _legacy_row(parts: list[Buffer], version: int, row: FetchedRow) -> None:
    if version >= _LOG_START_SINCE:
        parts.append(_ROW.pack(*row[:5]))
    else:
        parts.append(_ROW_WITHOUT_START.pack(*row[:4]))
    if row.aborted is None:
        parts.append(_NULL)
    else:
        parts += (_I32.pack(len(row.aborted)), b"".join(starmap(_ABORTED.pack, row.aborted)))
    if version >= _RACK_SINCE:
        parts.append(_I32.pack(row.preferred))
    parts += (_I32.pack(len(row.records)), row.records)


def _topic(version: int, key: TopicKey) -> bytes:
    if version >= _TOPIC_IDS_SINCE:
        assert not isinstance(key, str), key
        return NIL_UUID if key is None else key.bytes
    assert isinstance(key, str), key
    name = key.encode()
    if version >= _FLEXIBLE_SINCE:
        return write_uvarint(len(name) + 1) + name
    return _I16.pack(len(name)) + name


def _count(flexible: bool, count: int) -> bytes:
    return write_uvarint(count + 1) if flexible else _I32.pack(count)
