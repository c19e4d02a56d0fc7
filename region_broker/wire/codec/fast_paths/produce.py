"""Produce (0), versions 3-13, read and written on the fast path.

INV-BP1  what is accepted, and as what, is what the general reader accepts; what is written is what the general writer
         (`codec.answers`) writes, byte for byte, in every version
Batches are not copied: they are slices of the frame, which must not be changed.
v5: log start.  v8: error texts.  v9: flexible.  v10: who leads now.  v13: topic ids.
Source: ProduceRequest.json, ProduceResponse.json.
Not here: what the fields mean (`handlers.produce.produce`).
"""

import struct
from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple, TypeAlias
from uuid import UUID

from idempotency.pieces import Pieces, drained
from region_broker.limits import ARRAY_ELEMENTS_MAX, ELEMENTS_AT_ONCE_MAX, PIECE_ELEMENTS
from region_broker.wire.codec.bounded import (
    MALFORMED,
    NIL_UUID,
    UUID_BYTES,
    DecodeRefused,
    Elements,
    blob,
    compact_size,
    long_size,
    malformed,
    short_size,
    text,
    write_uvarint,
)
from region_broker.wire.codec.fast_paths.leaders import Endpoint, endpoints_tags, leader_value
from region_broker.wire.codec.gathered import AnswerBytes, GatheredAnswer
from region_broker.wire.codec.guard import pass_tags

KEY: Final = 0
VERSIONS: Final = range(3, 14)
_LOG_START_SINCE: Final = 5
_TEXT_SINCE: Final = 8
_FLEXIBLE_SINCE: Final = 9
_TOPIC_IDS_SINCE: Final = 13

_ACKS_AND_TIMEOUT: Final = struct.Struct(">hi")
_ACKS_TIMEOUT_TOPICS: Final = struct.Struct(">hiB")
_BATCHES_AND_PARTITION: Final = struct.Struct(">Bi")
_ONE: Final = 2  # the count of a compact array with one element
_I32: Final = struct.Struct(">i")
_I16: Final = struct.Struct(">h")

TopicKey: TypeAlias = str | UUID | None


class SentBatch(NamedTuple):
    """What a request brings for one partition; `data` is None where it is null."""

    partition: int
    data: memoryview | None


class SentTopic(NamedTuple):
    """A topic, by name or (from v13 on) by id, None for the nil id; and what is for its partitions."""

    key: TopicKey
    batches: list[SentBatch]


class ProduceRequest(NamedTuple):
    """A whole request."""

    transactional_id: str | None
    acks: int
    timeout_ms: int
    topics: list[SentTopic]


class ProducedRow(NamedTuple):
    """What the answer says of one partition."""

    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    text: str | None = None
    bad_records: Sequence[int] = ()
    """For which records the batch was refused, counted from 0 (v8 on); `text` says why."""
    leader: tuple[int, int] | None = None
    """The node and the epoch that lead now (v10 on)."""


ProducedTopic: TypeAlias = tuple[TopicKey, Sequence[ProducedRow]]


def read_request(version: int, body: memoryview) -> ProduceRequest:
    """Return the request in `body`; raises `DecodeRefused`, or `ManyElements`: then `request_pieces` reads it."""
    if version >= _FLEXIBLE_SINCE and (one := _single(body, by_id=version >= _TOPIC_IDS_SINCE)):
        return one
    return drained(_pieces(version, body, ELEMENTS_AT_ONCE_MAX))


def _single(body: memoryview, *, by_id: bool) -> ProduceRequest | None:
    """Return a request with one batch, no tags and short names, which most are; None for any other, or a wrong one."""
    try:
        transactional_id: str | None = None
        size, at = body[0], 1  # a compact size is one more than the bytes that follow; 0 is null
        if size:
            transactional_id, at = bytes(body[1:size]).decode(), size
        acks, timeout_ms, topic_count = _ACKS_TIMEOUT_TOPICS.unpack_from(body, at)
        at += _ACKS_TIMEOUT_TOPICS.size
        key: TopicKey
        name_size = 1
        if by_id:
            key, at = _topic_id(body, at, len(body))
        else:
            name_size = body[at]
            key = bytes(body[at + 1 : at + name_size]).decode()
            at += name_size
        batch_count, partition = _BATCHES_AND_PARTITION.unpack_from(body, at)
        if topic_count != _ONE or batch_count != _ONE or not (size < 0x80 > name_size > 0):
            return None
        size, at = compact_size(body, at + _BATCHES_AND_PARTITION.size, len(body))
        stop = at + size
        if size < 0 or stop + 3 != len(body) or body[stop] or body[stop + 1] or body[stop + 2]:
            return None
    except (IndexError, DecodeRefused, *MALFORMED):
        return None
    return ProduceRequest(
        transactional_id, acks, timeout_ms, [SentTopic(key, [SentBatch(partition, body[at:stop])])]
    )


def request_pieces(version: int, body: memoryview) -> Pieces[ProduceRequest]:
    """Read the request in `body`, with a pause after each PIECE_ELEMENTS batches; raises `DecodeRefused`."""
    return _pieces(version, body, ARRAY_ELEMENTS_MAX)


def _pieces(version: int, body: memoryview, at_once_max: int) -> Pieces[ProduceRequest]:
    assert version in VERSIONS, version
    elements = Elements(at_once_max)
    try:
        if version >= _FLEXIBLE_SINCE:
            return (yield from _flexible(body, elements, by_id=version >= _TOPIC_IDS_SINCE))
        return (yield from _legacy(body, elements))
    except MALFORMED as error:
        raise malformed(error) from error


def _flexible(body: memoryview, elements: Elements, *, by_id: bool) -> Pieces[ProduceRequest]:
    end = len(body)
    size, at = compact_size(body, 0, end)
    transactional_id, at = text(body, at, size, end)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, at)
    topic_count, at = compact_size(body, at + 6, end)
    elements.check(topic_count, end - at, 18 if by_id else 3)
    topics: list[SentTopic] = []
    done = 0
    for _ in range(topic_count):
        key: TopicKey
        if by_id:
            key, at = _topic_id(body, at, end)
        else:
            size, at = compact_size(body, at, end)
            key, at = _name(*text(body, at, size, end))
        count, at = compact_size(body, at, end)
        elements.check(count, end - at, 6)
        batches: list[SentBatch] = []
        for _ in range(count):
            (number,) = _I32.unpack_from(body, at)
            size, at = compact_size(body, at + 4, end)
            data, at = blob(body, at, size, end)
            tags_at = at
            at = pass_tags(body, at, end, elements)
            batches.append(SentBatch(number, data))
            done += at - tags_at  # one for none, and no less than there are
            if done >= PIECE_ELEMENTS:
                done = 0
                yield
        tags_at = at
        at = pass_tags(body, at, end, elements)
        topics.append(SentTopic(key, batches))
        done += at - tags_at
        if done >= PIECE_ELEMENTS:
            done = 0
            yield
    _check_end(pass_tags(body, at, end, elements), end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _legacy(body: memoryview, elements: Elements) -> Pieces[ProduceRequest]:
    end = len(body)
    size, at = short_size(body, 0, end)
    transactional_id, at = text(body, at, size, end)
    acks, timeout_ms = _ACKS_AND_TIMEOUT.unpack_from(body, at)
    topic_count, at = long_size(body, at + 6, end)
    elements.check(topic_count, end - at, 6)
    topics: list[SentTopic] = []
    done = 0
    for _ in range(topic_count):
        size, at = short_size(body, at, end)
        key, at = _name(*text(body, at, size, end))
        count, at = long_size(body, at, end)
        elements.check(count, end - at, 8)
        batches: list[SentBatch] = []
        for _ in range(count):
            (number,) = _I32.unpack_from(body, at)
            size, at = long_size(body, at + 4, end)
            data, at = blob(body, at, size, end)
            batches.append(SentBatch(number, data))
            done += 1
            if done % PIECE_ELEMENTS == 0:
                yield
        topics.append(SentTopic(key, batches))
        done += 1
        if done % PIECE_ELEMENTS == 0:
            yield
    _check_end(at, end)
    return ProduceRequest(transactional_id, acks, timeout_ms, topics)


def _topic_id(body: memoryview, at: int, end: int) -> tuple[UUID | None, int]:
    stop = at + UUID_BYTES
    if stop > end:
        raise DecodeRefused(f"the body ends inside the topic id at byte {at}")
    raw = bytes(body[at:stop])
    return (None if raw == NIL_UUID else UUID(bytes=raw)), stop


def _name(name: str | None, at: int) -> tuple[str, int]:
    if name is None:
        raise DecodeRefused(f"a topic without name before byte {at}")
    return name, at


def _check_end(at: int, end: int) -> None:
    if at != end:
        raise DecodeRefused(f"{end - at} bytes follow the last field")


# --- the answer ----------------------------------------------------------------------------------

_ROW: Final = struct.Struct(">ihqqq")
_ROW_WITHOUT_START: Final = struct.Struct(">ihqq")
_COUNT_1: Final = b"\2"
_BACK_OF_ONE: Final = bytes((1, 0, 0, 0, 0, 0, 0, 0, 0))
"""No record errors, no text, no tags of row and topic; not throttled, no tags."""
TOPICS_REMEMBERED: Final = 1_024


def answer(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    endpoints: Sequence[Endpoint] = (),
) -> AnswerBytes:
    """Return header and body of the answer; `endpoints`: of the leaders that its rows name."""
    if version >= _FLEXIBLE_SINCE and len(topics) == 1 and len(topics[0][1]) == 1:
        row = topics[0][1][0]
        if row.text is None and not (row.bad_records or row.leader or endpoints):
            front = _front_of_one(version, topics[0][0])
            return _I32.pack(correlation_id) + front + _ROW.pack(*row[:5]) + _BACK_OF_ONE
    return drained(answer_pieces(version, correlation_id, topics, endpoints))


def answer_pieces(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    endpoints: Sequence[Endpoint] = (),
) -> Pieces[AnswerBytes]:
    """Write what `answer` returns, with a pause after each PIECE_ELEMENTS rows and topics."""
    if version >= _FLEXIBLE_SINCE:
        return _write_flexible(version, correlation_id, topics, endpoints)
    return _write_legacy(version, correlation_id, topics)


@lru_cache(TOPICS_REMEMBERED)
def _front_of_one(version: int, key: TopicKey) -> bytes:
    """Return what stands between the correlation id and the row of an answer with one row."""
    if version >= _TOPIC_IDS_SINCE:
        assert not isinstance(key, str), key
        return b"".join((b"\0\2", NIL_UUID if key is None else key.bytes, b"\2"))
    assert isinstance(key, str), key
    return b"".join((b"\0\2", *_compact_text(key), b"\2"))


def _write_flexible(
    version: int,
    correlation_id: int,
    topics: Sequence[ProducedTopic],
    endpoints: Sequence[Endpoint],
) -> Pieces[AnswerBytes]:
    done = joined = 0
    parts = [_I32.pack(correlation_id), b"\0", _compact_count(len(topics))]
    for key, rows in topics:
        if version >= _TOPIC_IDS_SINCE:
            assert not isinstance(key, str), key
            parts.append(NIL_UUID if key is None else key.bytes)
        else:
            assert isinstance(key, str), key
            parts += _compact_text(key)
        parts.append(_compact_count(len(rows)))
        for row in rows:
            parts.append(_ROW.pack(*row[:5]))
            parts.append(_compact_errors(row.bad_records))
            parts += _compact_text(row.text)
            parts.append(b"\0" if row.leader is None else b"\1\0" + leader_value(row.leader))
            done += 1
            if done % PIECE_ELEMENTS == 0:
                joined = _join(parts, joined)
                yield
        parts.append(b"\0")
        done += 1
        if done % PIECE_ELEMENTS == 0:
            joined = _join(parts, joined)
            yield
    parts.append(b"\0\0\0\0")  # not throttled
    if endpoints:
        return GatheredAnswer((b"".join(parts), endpoints_tags(endpoints)))  # INV-WTT2
    parts.append(b"\0")
    return b"".join(parts)


def _write_legacy(
    version: int, correlation_id: int, topics: Sequence[ProducedTopic]
) -> Pieces[AnswerBytes]:
    done = joined = 0
    parts = [_I32.pack(correlation_id), _I32.pack(len(topics))]
    for key, rows in topics:
        assert isinstance(key, str), key
        parts += _legacy_text(key)
        parts.append(_I32.pack(len(rows)))
        for row in rows:
            if version >= _LOG_START_SINCE:
                parts.append(_ROW.pack(*row[:5]))
            else:
                parts.append(_ROW_WITHOUT_START.pack(*row[:4]))
            if version >= _TEXT_SINCE:
                parts.append(_I32.pack(len(row.bad_records)))
                parts += [_I32.pack(index) + b"\xff\xff" for index in row.bad_records]
                parts += _legacy_text(row.text)
            done += 1
            if done % PIECE_ELEMENTS == 0:
                joined = _join(parts, joined)
                yield
        done += 1
        if done % PIECE_ELEMENTS == 0:
            joined = _join(parts, joined)
            yield
    parts.append(b"\0\0\0\0")  # not throttled
    return b"".join(parts)


def _join(parts: list[bytes], start: int) -> int:
    """Join what is in `parts` from `start` on, and return where the next piece starts: those of all rows, at the end, are a long step."""
    parts[start:] = [b"".join(parts[start:])]
    return start + 1


def _compact_errors(records: Sequence[int]) -> bytes:
    if not records:
        return b"\1"
    rows = [_I32.pack(index) + b"\0\0" for index in records]  # no text of its own, no tags
    return b"".join((write_uvarint(len(rows) + 1), *rows))


def _compact_count(count: int) -> bytes:
    return _COUNT_1 if count == 1 else write_uvarint(count + 1)


def _compact_text(value: str | None) -> tuple[bytes, ...]:
    if value is None:
        return (b"\0",)
    encoded = value.encode()
    return write_uvarint(len(encoded) + 1), encoded


def _legacy_text(value: str | None) -> tuple[bytes, ...]:
    if value is None:
        return (b"\xff\xff",)
    encoded = value.encode()
    return _I16.pack(len(encoded)), encoded
