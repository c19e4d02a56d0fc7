"""AddPartitionsToTxn (24) and EndTxn (26) as one producer sends them, read and written on the fast path.

INV-BT3  what is not of that plain form (a batch of transactions, a long name, tags, a wrong length) is left to the
         general reader: a `plain_` reader returns None, and refuses nothing by itself
INV-BT4  what is written is what the general writer (`codec.answers`) writes, byte for byte
AddPartitionsToTxn v0-2 (v3 is flexible, v4 a batch); EndTxn v0-5 (v3 is flexible, v5 is TV2).
Source: AddPartitionsToTxnRequest.json, AddPartitionsToTxnResponse.json, EndTxnRequest.json, EndTxnResponse.json.
Not here: what the fields mean (`handlers`).
"""

import struct
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

from idempotency.identity import ProducerEpoch, ProducerId, TopicName, TopicPartition
from region_broker.wire.codec.entities import read_entity

ADD_KEY: Final = 24
END_KEY: Final = 26
PLAIN_BELOW: Final = 3
_PAIR_SINCE: Final = 5
_ONE_BYTE_BELOW: Final = 0x80  # a compact size of one byte
_PLAIN_PARTITIONS_MAX: Final = 1_000
_NO_TAGS: Final = b"\0"
_I16: Final = struct.Struct(">h")
_I32: Final = struct.Struct(">i")
_PRODUCER_AND_TOPICS: Final = struct.Struct(">qhi")
_PRODUCER_AND_COMMITTED: Final = struct.Struct(">qhB")
_END_ANSWER: Final = struct.Struct(">iih")
_FLEXIBLE_END_ANSWER: Final = struct.Struct(">ixihx")
_PAIR_END_ANSWER: Final = struct.Struct(">ixihqhx")
_ADD_ANSWER_FRONT: Final = struct.Struct(">iii")
_ADD_ANSWER_ROW: Final = struct.Struct(">ih")


class EndRequest(NamedTuple):
    """EndTxn."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    commit: bool


class AddRequest(NamedTuple):
    """AddPartitionsToTxn of one producer; `partitions` in the order sent, topic by topic."""

    transactional_id: str
    producer_id: ProducerId
    producer_epoch: ProducerEpoch
    partitions: list[TopicPartition]


def plain_end(version: int, body: memoryview) -> EndRequest | None:
    """Return a plain EndTxn, None for any other."""
    flexible = version >= PLAIN_BELOW
    try:
        name, at = _compact_text(body) if flexible else _text(body, 0)
        producer_id, producer_epoch, committed = _PRODUCER_AND_COMMITTED.unpack_from(body, at)
    except (IndexError, struct.error, ValueError):
        return None
    rest = bytes(body[at + _PRODUCER_AND_COMMITTED.size :])
    if rest != (_NO_TAGS if flexible else b"") or committed > 1:
        return None
    return EndRequest(name, producer_id, producer_epoch, committed == 1)


def plain_add(version: int, body: memoryview) -> AddRequest | None:
    """Return a plain AddPartitionsToTxn, None for any other."""
    if version >= PLAIN_BELOW:
        return None
    try:
        name, at = _text(body, 0)
        producer_id, producer_epoch, topic_count = _PRODUCER_AND_TOPICS.unpack_from(body, at)
        at += _PRODUCER_AND_TOPICS.size
        partitions: list[TopicPartition] = []
        for _ in range(topic_count):
            topic, at = _text(body, at)
            (count,) = _I32.unpack_from(body, at)
            at += _I32.size
            if not 0 < count <= _PLAIN_PARTITIONS_MAX - len(partitions):
                return None
            numbers = struct.unpack_from(f">{count}i", body, at)
            at += _I32.size * count
            partitions += [TopicPartition(TopicName(topic), number) for number in numbers]
    except (struct.error, ValueError):
        return None
    if at != len(body) or topic_count < 1:
        return None
    return AddRequest(name, producer_id, producer_epoch, partitions)


def read_end(version: int, body: memoryview) -> Any:
    """Return a plain EndTxn, or what its schema says; raises `DecodeRefused`."""
    return plain_end(version, body) or read_entity(END_KEY, version, body)


def read_add(version: int, body: memoryview) -> Any:
    """Return a plain AddPartitionsToTxn, or what its schema says; raises `DecodeRefused` or `ManyElements`."""
    return plain_add(version, body) or read_entity(ADD_KEY, version, body)


def end_answer(
    version: int, correlation_id: int, error_code: int, pair: tuple[int, int] = (-1, -1)
) -> bytes:
    """Return header and body of the answer to EndTxn; `pair` is of the next transaction (v5 on)."""
    if version < PLAIN_BELOW:
        return _END_ANSWER.pack(correlation_id, 0, error_code)
    if version < _PAIR_SINCE:
        return _FLEXIBLE_END_ANSWER.pack(correlation_id, 0, error_code)
    return _PAIR_END_ANSWER.pack(correlation_id, 0, error_code, *pair)


def add_answer(correlation_id: int, errors: Sequence[tuple[TopicPartition, int]]) -> bytes:
    """Return header and body of the answer to a plain AddPartitionsToTxn: the error of each partition."""
    topics: dict[str, list[bytes]] = {}
    for tp, error_code in errors:
        row = _ADD_ANSWER_ROW.pack(tp.partition, error_code)
        topics.setdefault(tp.topic, []).append(row)
    parts = [_ADD_ANSWER_FRONT.pack(correlation_id, 0, len(topics))]
    for topic, rows in topics.items():
        name = topic.encode()
        parts += (_I16.pack(len(name)), name, _I32.pack(len(rows)), *rows)
    return b"".join(parts)


def _compact_text(body: memoryview) -> tuple[str, int]:
    """Return the short compact string in front and where it ends; raises ValueError or IndexError."""
    end = body[0]
    if not 0 < end < _ONE_BYTE_BELOW or end > len(body):
        raise ValueError
    return bytes(body[1:end]).decode(), end


def _text(body: memoryview, at: int) -> tuple[str, int]:
    """Return a string that is not null and where it ends; raises ValueError or struct.error."""
    (size_bytes,) = _I16.unpack_from(body, at)
    start = at + _I16.size
    end = start + size_bytes
    if size_bytes < 0 or end > len(body):
        raise ValueError
    return bytes(body[start:end]).decode(), end
