"""Keys and values of `__transaction_state`, for all who read it: coordinator, takeover, reconciliation.

A key begins with an i16 that tells its kind:
    0      a transactional id          TransactionRecord, Kafka's TransactionLogValue version 1
    21072  the shard's current round   RoundRecord (T2)
    21073  an orphaned transaction     TransactionRecord without transactional id (T21)
    21074  since when pairs are in force  PairsRecord (T22)
Kafka's tools skip keys of kinds they do not know. What Kafka has no field for travels in tagged fields
from 20000 on, which they skip too and which survive compaction.

INV-L1  decode(encode(x)) == x; a null value is a tombstone and never reaches `decode_*_value`.
INV-L2  Unknown tagged fields are skipped, unknown kinds and versions are refused by name.
INV-L3  The decision id of a PREPARE_* record is the record's own position: it is written into
        COMPLETE_* (and a PREPARE_* written again), and derived at load where it is None (T2, T6).

Not here: legal transitions (txn_coordinator.states), tidemark records (geo_replicator.tidemark).
Source: Kafka TransactionLogKey.json, TransactionLogValue.json (4.0), TransactionState.java.
"""

import struct
from collections.abc import Iterable
from enum import IntEnum
from functools import lru_cache
from typing import Final, TypeAlias

import msgspec

from idempotency.decision import DecisionError, DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    ProducerEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_bytes import LedgerError, Reader, Writer

__all__ = [
    "LedgerError", "LedgerKey", "OrphanKey", "PairsKey", "PairsRecord", "RoundKey", "RoundRecord",
    "TransactionKey", "TransactionRecord", "TxnStatus", "UnknownKey", "decode_key", "decode_pairs_value",
    "decode_round_value", "decode_transaction_value", "encode_orphan_key", "encode_pairs_key",
    "encode_pairs_value", "encode_round_key", "encode_round_value",
    "encode_transaction_key", "encode_transaction_value", "transaction_status",
]  # fmt: skip

TRANSACTION_KEY_KIND: Final = 0
ROUND_KEY_KIND: Final = 21072
ORPHAN_KEY_KIND: Final = 21073
PAIRS_KEY_KIND: Final = 21074
TRANSACTION_VALUE_VERSION: Final = 1
ROUND_VALUE_VERSION: Final = 0
PAIRS_VALUE_VERSION: Final = 0

_VALUE_HEAD: Final = struct.Struct(">hqhib")
_VALUE_TIMES: Final = struct.Struct(">qq")
_NO_TAGS: Final = b"\0"
# Every record of an id has its key again, and one transaction's records have the same partitions.
_REMEMBERED_MAX: Final = 256
_REMEMBERED_PARTITIONS_MAX: Final = 16
_TAG_PREVIOUS_PRODUCER_ID: Final = 0
_TAG_NEXT_PRODUCER_ID: Final = 1
_TAG_CLIENT_TV: Final = 2
_TAG_LAST_PRODUCER_EPOCH: Final = 20000
_TAG_STAMP: Final = 20001
_TAG_DECISION: Final = 20002
_TAG_REGION_EPOCH: Final = 20003
_TAG_WAIT_FOR: Final = 20004


class TxnStatus(IntEnum):
    """Status of a transactional id, with the byte Kafka stores."""

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def is_prepared(self) -> bool:
        """Whether the outcome is decided and markers are still owed."""
        return self in (TxnStatus.PREPARE_COMMIT, TxnStatus.PREPARE_ABORT)


class TransactionRecord(msgspec.Struct, frozen=True):
    """The whole state of one transactional id; each record replaces the one before."""

    transactional_id: str
    producer_id: ProducerId
    previous_producer_id: ProducerId
    next_producer_id: ProducerId
    producer_epoch: ProducerEpoch
    last_producer_epoch: ProducerEpoch
    timeout_ms: int
    status: TxnStatus
    partitions: tuple[TopicPartition, ...]
    last_update_ms: int
    start_ms: int
    stamp: Round | None = None
    """Round the decision was taken in; None while there is none (T2)."""
    decision: DecisionId | None = None
    region_epoch: RegionEpoch = RegionEpoch(-1)
    """Region epoch in which (producer_id, producer_epoch) was given out (T22)."""
    client_tv: int = 0
    """Transaction version that the client last used: 0 or 1 (TV1), 2 (TV2)."""
    wait_for: int = 0
    """How many regions a sync commit waits for; 0: none (T30)."""


class RoundRecord(msgspec.Struct, frozen=True):
    """The shard entered round `stamp` (T2)."""

    stamp: Round
    coordinator_epoch: CoordinatorEpoch


class PairsRecord(msgspec.Struct, frozen=True):
    """Under `region_epoch`, pairs are in force that were given out under `since` or later (T22)."""

    region_epoch: RegionEpoch
    since: RegionEpoch


class TransactionKey(msgspec.Struct, frozen=True):
    """Key of a transactional id's state."""

    transactional_id: str


class RoundKey(msgspec.Struct, frozen=True):
    """Key of the shard's current round."""


class OrphanKey(msgspec.Struct, frozen=True):
    """Key of a transaction found open in partitions, but in no ledger (T21)."""

    producer_id: ProducerId


class PairsKey(msgspec.Struct, frozen=True):
    """Key of what the last planned switch let in force (T22)."""


class UnknownKey(msgspec.Struct, frozen=True):
    """A kind of key that this version does not know; skip the record."""

    kind: int


LedgerKey: TypeAlias = TransactionKey | RoundKey | OrphanKey | PairsKey | UnknownKey


@lru_cache(_REMEMBERED_MAX)
def encode_transaction_key(transactional_id: str) -> bytes:
    """Return the key of a transactional id (TransactionLogKey version 0)."""
    name = transactional_id.encode()
    return struct.pack(">hh", TRANSACTION_KEY_KIND, len(name)) + name


def encode_round_key() -> bytes:
    """Return the key of the shard's current round."""
    return struct.pack(">h", ROUND_KEY_KIND)


def encode_orphan_key(producer_id: ProducerId) -> bytes:
    """Return the key of an orphaned transaction of `producer_id`."""
    return struct.pack(">hq", ORPHAN_KEY_KIND, producer_id)


def encode_pairs_key() -> bytes:
    """Return the key of the PAIRS record."""
    return struct.pack(">h", PAIRS_KEY_KIND)


def decode_key(data: bytes) -> LedgerKey:
    """Return what a ledger key names.

    Raises:
        LedgerError: a known kind that cannot be read.
    """
    reader = Reader(data)
    kind = reader.int16()
    match kind:
        case 0:
            key: LedgerKey = TransactionKey(reader.text(reader.int16()))
        case 21072:
            key = RoundKey()
        case 21073:
            key = OrphanKey(ProducerId(reader.int64()))
        case 21074:
            key = PairsKey()
        case _:
            return UnknownKey(kind)
    reader.expect_end()
    return key


def encode_round_value(record: RoundRecord) -> bytes:
    """Return the value of a ROUND record."""
    return struct.pack(">hqi", ROUND_VALUE_VERSION, record.stamp, record.coordinator_epoch)


def decode_round_value(data: bytes) -> RoundRecord:
    """Return the ROUND record in `data`.

    Raises:
        LedgerError: unreadable, or of a newer version.
    """
    reader = Reader(data)
    _expect_version(reader.int16(), ROUND_VALUE_VERSION, "round")
    record = RoundRecord(Round(reader.int64()), CoordinatorEpoch(reader.int32()))
    reader.expect_end()
    return record


def encode_pairs_value(record: PairsRecord) -> bytes:
    """Return the value of a PAIRS record."""
    return struct.pack(">hii", PAIRS_VALUE_VERSION, record.region_epoch, record.since)


def decode_pairs_value(data: bytes) -> PairsRecord:
    """Return the PAIRS record in `data`.

    Raises:
        LedgerError: unreadable, or of a newer version.
    """
    reader = Reader(data)
    _expect_version(reader.int16(), PAIRS_VALUE_VERSION, "pairs")
    record = PairsRecord(RegionEpoch(reader.int32()), RegionEpoch(reader.int32()))
    reader.expect_end()
    return record


def encode_transaction_value(record: TransactionRecord) -> bytes:
    """Return the value of a transaction record (TransactionLogValue version 1, with our tags)."""
    head = _VALUE_HEAD.pack(
        TRANSACTION_VALUE_VERSION,
        record.producer_id,
        record.producer_epoch,
        record.timeout_ms,
        record.status,
    )
    if record.partitions:
        few = len(record.partitions) <= _REMEMBERED_PARTITIONS_MAX
        partitions = (_few_partitions_bytes if few else _partitions_bytes)(record.partitions)
    else:  # null, as Kafka writes it, or an empty array
        partitions = b"\0" if record.status is TxnStatus.EMPTY else b"\1"
    times = _VALUE_TIMES.pack(record.last_update_ms, record.start_ms)
    tags = _tags(record)
    return b"".join((head, partitions, times, _tag_count(len(tags)), *tags))


def transaction_status(data: bytes) -> TxnStatus:
    """Return the status in an encoded transaction record and decode nothing else: most readers skip most.

    Raises:
        LedgerError: unreadable, or of a newer version.
    """
    reader = Reader(data)
    version = reader.int16()
    if version not in (0, TRANSACTION_VALUE_VERSION):
        _expect_version(version, TRANSACTION_VALUE_VERSION, "transaction")
    reader.int64()  # producer id
    reader.int16()  # producer epoch
    reader.int32()  # time-out
    return _status(reader.int8())


def decode_transaction_value(transactional_id: str, data: bytes) -> TransactionRecord:
    """Return the transaction record in `data`; versions 0 (Kafka before 3.8) and 1 are read.

    Raises:
        LedgerError: unreadable, or of a newer version.
    """
    reader = Reader(data)
    version = reader.int16()
    if version not in (0, TRANSACTION_VALUE_VERSION):
        _expect_version(version, TRANSACTION_VALUE_VERSION, "transaction")
    flexible = version == TRANSACTION_VALUE_VERSION
    producer_id, producer_epoch, timeout_ms = reader.int64(), reader.int16(), reader.int32()
    status = _status(reader.int8())
    partitions = _read_partitions(reader, flexible=flexible)
    last_update_ms, start_ms = reader.int64(), reader.int64()
    tags = reader.tagged_fields() if flexible else {}
    reader.expect_end()
    stamp = _tag_int(tags, _TAG_STAMP, ">q", -1)
    return TransactionRecord(
        transactional_id=transactional_id,
        producer_id=ProducerId(producer_id),
        previous_producer_id=ProducerId(_tag_int(tags, _TAG_PREVIOUS_PRODUCER_ID, ">q", -1)),
        next_producer_id=ProducerId(_tag_int(tags, _TAG_NEXT_PRODUCER_ID, ">q", -1)),
        producer_epoch=ProducerEpoch(producer_epoch),
        last_producer_epoch=ProducerEpoch(_tag_int(tags, _TAG_LAST_PRODUCER_EPOCH, ">h", -1)),
        timeout_ms=timeout_ms,
        status=status,
        partitions=partitions,
        last_update_ms=last_update_ms,
        start_ms=start_ms,
        stamp=None if stamp < 0 else Round(stamp),
        decision=_tag_decision(tags),
        region_epoch=RegionEpoch(_tag_int(tags, _TAG_REGION_EPOCH, ">i", -1)),
        client_tv=_tag_int(tags, _TAG_CLIENT_TV, ">h", 0),
        wait_for=_tag_int(tags, _TAG_WAIT_FOR, ">i", 0),
    )


@lru_cache(16)
def _tag_front(tag: int, size_bytes: int) -> bytes:
    writer = Writer()
    writer.varuint(tag)
    writer.varuint(size_bytes)
    return writer.content()


_INT_TAGS: Final = {
    tag: (_tag_front(tag, layout.size), layout)
    for tag, layout in (
        (_TAG_PREVIOUS_PRODUCER_ID, struct.Struct(">q")),
        (_TAG_NEXT_PRODUCER_ID, struct.Struct(">q")),
        (_TAG_CLIENT_TV, struct.Struct(">h")),
        (_TAG_LAST_PRODUCER_EPOCH, struct.Struct(">h")),
        (_TAG_STAMP, struct.Struct(">q")),
        (_TAG_REGION_EPOCH, struct.Struct(">i")),
        (_TAG_WAIT_FOR, struct.Struct(">i")),
    )
}


def _tags(record: TransactionRecord) -> list[bytes]:
    """Return the tagged fields that differ from their default, by rising tag."""
    tags: list[bytes] = []
    if record.previous_producer_id != -1:
        tags.append(_int_tag(_TAG_PREVIOUS_PRODUCER_ID, record.previous_producer_id))
    if record.next_producer_id != -1:
        tags.append(_int_tag(_TAG_NEXT_PRODUCER_ID, record.next_producer_id))
    if record.client_tv:
        tags.append(_int_tag(_TAG_CLIENT_TV, record.client_tv))
    if record.last_producer_epoch != -1:
        tags.append(_int_tag(_TAG_LAST_PRODUCER_EPOCH, record.last_producer_epoch))
    if record.stamp is not None:
        tags.append(_int_tag(_TAG_STAMP, record.stamp))
    if record.decision is not None:
        decision = record.decision.encode()
        tags.append(_tag_front(_TAG_DECISION, len(decision)) + decision)
    if record.region_epoch != -1:
        tags.append(_int_tag(_TAG_REGION_EPOCH, record.region_epoch))
    if record.wait_for:
        tags.append(_int_tag(_TAG_WAIT_FOR, record.wait_for))
    return tags


def _int_tag(tag: int, value: int) -> bytes:
    front, layout = _INT_TAGS[tag]
    return front + layout.pack(value)


def _tag_count(count: int) -> bytes:
    return bytes((count,))  # there are far fewer than 128


def _tag_int(tags: dict[int, bytes], tag: int, layout: str, default: int) -> int:
    data = tags.get(tag)
    if data is None:
        return default
    try:
        (value,) = struct.unpack(layout, data)
    except struct.error as error:
        raise LedgerError(f"tagged field {tag} has {len(data)} bytes: {error}") from error
    assert isinstance(value, int)
    return value


def _tag_decision(tags: dict[int, bytes]) -> DecisionId | None:
    data = tags.get(_TAG_DECISION)
    if data is None:
        return None
    try:
        return DecisionId.decode(data)
    except DecisionError as error:
        raise LedgerError(f"tagged field {_TAG_DECISION}: {error}") from error


def _status(number: int) -> TxnStatus:
    try:
        return TxnStatus(number)
    except ValueError as error:
        raise LedgerError(f"transaction status {number} is unknown") from error


@lru_cache(_REMEMBERED_MAX)
def _few_partitions_bytes(partitions: tuple[TopicPartition, ...]) -> bytes:
    return _partitions_bytes(partitions)


def _partitions_bytes(partitions: Iterable[TopicPartition]) -> bytes:
    # Runs of one topic, not a dictionary: the order of the partitions comes back as it was.
    runs: list[tuple[str, list[int]]] = []
    topic = None
    for tp in partitions:
        if tp.topic != topic:
            topic = tp.topic
            runs.append((topic, []))
        runs[-1][1].append(tp.partition)
    parts = [_size(len(runs))]
    for name, numbers in runs:
        encoded = name.encode()
        parts += (_size(len(encoded)), encoded, _size(len(numbers)))
        parts += (struct.pack(f">{len(numbers)}i", *numbers), _NO_TAGS)
    return b"".join(parts)


def _size(count: int) -> bytes:
    """Return the size of a compact string or array."""
    if count < 0x7F:
        return bytes((count + 1,))
    writer = Writer()
    writer.varuint(count + 1)
    return writer.content()


def _read_partitions(reader: Reader, *, flexible: bool) -> tuple[TopicPartition, ...]:
    found: list[TopicPartition] = []
    for _ in range(reader.count(flexible=flexible)):
        length = reader.varuint() - 1 if flexible else reader.int16()
        topic = TopicName(reader.text(length))
        found.extend(
            TopicPartition(topic, reader.int32()) for _ in range(reader.count(flexible=flexible))
        )
        if flexible:
            reader.tagged_fields()
    return tuple(found)


def _expect_version(version: int, known: int, what: str) -> None:
    if version != known:
        raise LedgerError(
            f"{what} record of version {version}, this build reads up to {known}: "
            "it was written by a newer version, upgrade this node"
        )
