"""Ledger records: Kafka's bytes where Kafka has them, ours where it does not."""

import struct

import pytest

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LeaderEpoch,
    ProducerId,
    RegionEpoch,
    Round,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import (
    LedgerError,
    OrphanKey,
    PairsKey,
    PairsRecord,
    RoundKey,
    RoundRecord,
    TransactionKey,
    TransactionRecord,
    TxnStatus,
    UnknownKey,
    decode_key,
    decode_pairs_value,
    decode_round_value,
    decode_transaction_value,
    encode_orphan_key,
    encode_pairs_key,
    encode_pairs_value,
    encode_round_key,
    encode_round_value,
    encode_transaction_key,
    encode_transaction_value,
)


def tp(topic: str, partition: int) -> TopicPartition:
    return TopicPartition(TopicName(topic), partition)


def plain(**changes: object) -> TransactionRecord:
    fields: dict[str, object] = {
        "transactional_id": "pay-7",
        "producer_id": 1000,
        "previous_producer_id": -1,
        "next_producer_id": -1,
        "producer_epoch": 3,
        "last_producer_epoch": -1,
        "timeout_ms": 60_000,
        "status": TxnStatus.ONGOING,
        "partitions": (tp("orders", 0),),
        "last_update_ms": 11,
        "start_ms": 10,
    }
    return TransactionRecord(**{**fields, **changes})  # type: ignore[arg-type]


def test_statuses_have_kafkas_bytes() -> None:
    """Source: Kafka TransactionState.java."""
    assert [status.name for status in sorted(TxnStatus)] == [
        "EMPTY",
        "ONGOING",
        "PREPARE_COMMIT",
        "PREPARE_ABORT",
        "COMPLETE_COMMIT",
        "COMPLETE_ABORT",
        "DEAD",
        "PREPARE_EPOCH_FENCE",
    ]
    assert sorted(TxnStatus) == list(range(8))


def test_transaction_key_is_kafkas() -> None:
    """Source: TransactionLogKey.json version 0: INT16 version, STRING."""
    assert encode_transaction_key("pay") == b"\x00\x00\x00\x03pay"
    assert decode_key(b"\x00\x00\x00\x03pay") == TransactionKey("pay")


def test_transaction_value_is_kafkas_where_nothing_of_ours_is_set() -> None:
    """Source: TransactionLogValue.json version 1 (flexible), written by hand."""
    expected = (
        struct.pack(">hqhib", 1, 1000, 3, 60_000, 1)
        + b"\x02"  # one topic
        + b"\x07orders"
        + b"\x02"  # one partition id
        + struct.pack(">i", 0)
        + b"\x00"  # no tagged fields in the topic
        + struct.pack(">qq", 11, 10)
        + b"\x00"  # no tagged fields
    )
    assert encode_transaction_value(plain()) == expected
    assert decode_transaction_value("pay-7", expected) == plain()


def test_transaction_value_tags_0_to_2_are_kafkas() -> None:
    record = plain(previous_producer_id=5, next_producer_id=6, client_tv=2)
    tagged = (
        b"\x03"
         b"\x00\x08" + struct.pack(">q", 5)
        + b"\x01\x08" + struct.pack(">q", 6)
        + b"\x02\x02" + struct.pack(">h", 2)
    )  # fmt: skip
    assert encode_transaction_value(record).endswith(struct.pack(">qq", 11, 10) + tagged)


def test_empty_transaction_has_null_partitions_as_in_kafka() -> None:
    record = plain(status=TxnStatus.EMPTY, partitions=())
    encoded = encode_transaction_value(record)
    assert encoded[17:18] == b"\x00"
    assert decode_transaction_value("pay-7", encoded) == record


@pytest.mark.parametrize(("count", "size"), [(126, b"\x7f"), (127, b"\x80\x01")])
def test_compact_arrays_of_any_size_are_kafkas(count: int, size: bytes) -> None:
    record = plain(partitions=tuple(tp("orders", number) for number in range(count)))
    encoded = encode_transaction_value(record)
    assert b"\x07orders" + size + struct.pack(">ii", 0, 1) in encoded
    assert decode_transaction_value("pay-7", encoded) == record


def test_version_0_of_older_kafka_is_read() -> None:
    """Source: TransactionLogValue.json version 0 (not flexible)."""
    raw = (
        struct.pack(">hqhibi", 0, 1000, 3, 60_000, 1, 1)
        + struct.pack(">h6sii", 6, b"orders", 1, 0)
        + struct.pack(">qq", 11, 10)
    )
    assert decode_transaction_value("pay-7", raw) == plain()


# Holds INV-L1.
def test_everything_of_ours_comes_back() -> None:
    record = plain(
        status=TxnStatus.COMPLETE_COMMIT,
        partitions=(tp("a", 0), tp("b", 1), tp("a", 2)),
        last_producer_epoch=2,
        stamp=8 << 32 | 1,
        decision=DecisionId(3, LeaderEpoch(8 << 16), 44, Round(8 << 32 | 1)),
        region_epoch=8,
        client_tv=1,
        wait_for=1,
    )
    assert decode_transaction_value("pay-7", encode_transaction_value(record)) == record


# Holds INV-L2.
def test_unknown_tagged_fields_are_skipped() -> None:
    encoded = encode_transaction_value(plain())
    assert decode_transaction_value("pay-7", encoded[:-1] + b"\x01\x63\x02xy") == plain()


def test_stamp_zero_is_a_stamp() -> None:
    record = plain(stamp=0)
    assert decode_transaction_value("pay-7", encode_transaction_value(record)).stamp == 0


def test_round_and_orphan_keys_are_kinds_that_kafka_does_not_know() -> None:
    assert decode_key(encode_round_key()) == RoundKey()
    assert decode_key(encode_orphan_key(ProducerId(77))) == OrphanKey(ProducerId(77))
    assert struct.unpack(">h", encode_round_key()[:2])[0] > 1
    assert decode_key(encode_pairs_key()) == PairsKey()
    assert decode_key(b"\x7f\x00rest") == UnknownKey(0x7F00)


def test_round_comes_back() -> None:
    record = RoundRecord(stamp=Round(9 << 32 | 5), coordinator_epoch=CoordinatorEpoch(8 << 16))
    assert decode_round_value(encode_round_value(record)) == record


def test_since_when_pairs_are_in_force_comes_back() -> None:
    record = PairsRecord(region_epoch=RegionEpoch(24), since=RegionEpoch(8))
    assert decode_pairs_value(encode_pairs_value(record)) == record


@pytest.mark.parametrize("cut", [0, 1, 5, 17, 20, 30])
def test_cut_off_value_is_refused(cut: int) -> None:
    with pytest.raises(LedgerError):
        decode_transaction_value("pay-7", encode_transaction_value(plain())[:cut])


# Holds INV-L2.
def test_value_of_a_newer_version_is_refused_with_advice() -> None:
    with pytest.raises(LedgerError, match="newer version"):
        decode_transaction_value("pay-7", b"\x00\x02" + encode_transaction_value(plain())[2:])
    with pytest.raises(LedgerError, match="newer version"):
        decode_round_value(
            b"\x00\x01" + encode_round_value(RoundRecord(Round(1), CoordinatorEpoch(1)))[2:]
        )


# Holds INV-Y1.
def test_trailing_bytes_and_false_counts_are_refused() -> None:
    with pytest.raises(LedgerError, match="too many"):
        decode_transaction_value("pay-7", encode_transaction_value(plain()) + b"x")
    huge = struct.pack(">hqhib", 1, 1, 0, 0, 1) + b"\xff\xff\xff\xff\x0f"
    with pytest.raises(LedgerError, match="array"):
        decode_transaction_value("pay-7", huge)
    with pytest.raises(LedgerError, match="status"):
        decode_transaction_value("x", struct.pack(">hqhib", 1, 1, 0, 0, 9) + b"\x00" + b"\x00" * 17)


# Holds INV-L2.
def test_a_decision_that_cannot_be_read_is_damage() -> None:
    tag = b"\x01\xa2\x9c\x01\x02xy"  # one tagged field, number 20002, of two bytes
    with pytest.raises(LedgerError, match="tagged field 20002"):
        decode_transaction_value("pay-7", encode_transaction_value(plain())[:-1] + tag)
