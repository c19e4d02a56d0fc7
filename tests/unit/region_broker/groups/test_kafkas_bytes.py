"""Ledger records as Kafka 4.1.1's own classes write them: byte for byte what we write, and read.

Made with the classes that Kafka generates from its schemas (`kafka-group-coordinator` and
`kafka-transaction-coordinator`, `MessageUtil.toVersionPrefixedByteBuffer`), never with ours. A key is led by the
schema's number, a value by its version.
"""

from uuid import UUID

import pytest

from idempotency.identity import (
    NO_PRODUCER_EPOCH,
    LeaderEpoch,
    ProducerEpoch,
    ProducerId,
    TopicName,
    TopicPartition,
)
from idempotency.ledger_records import (
    TransactionRecord,
    TxnStatus,
    decode_transaction_value,
    encode_transaction_key,
    encode_transaction_value,
)
from region_broker.groups.modern.records import (
    GroupEpoch,
    decode_value,
    encode_value,
)
from region_broker.groups.records import (
    GroupValue,
    MemberValue,
    ModernKind,
    OffsetKey,
    OffsetValue,
    decode_group_value,
    decode_offset_value,
    encode_group_value,
    encode_offset_key,
    encode_offset_value,
)
from tests.unit.region_broker.groups.kafkas_values import MODERN_VALUES

ORDERS = TopicName("orders")


@pytest.mark.parametrize(
    ("value", "raw"),
    [
        (
            OffsetValue(258, LeaderEpoch(5), "md", 1),
            "000300000000000001020000000500026d640000000000000001",
        ),
        (
            OffsetValue(258, LeaderEpoch(5), "md", 1, UUID("0123456789abcdef000000000000004d")),
            "0004000000000000010200000005036d6400000000000000010100100123456789abcdef000000000000004d",
        ),
    ],
)
def test_committed_offsets_have_the_bytes_of_Kafkas_writer(value: OffsetValue, raw: str) -> None:
    assert encode_offset_value(value).hex() == raw
    assert decode_offset_value(bytes.fromhex(raw)) == value


def test_a_committed_offset_of_Kafka_without_a_topic_id_is_read() -> None:
    raw = "0004000000000000010200000005036d64000000000000000100"
    assert decode_offset_value(bytes.fromhex(raw)) == OffsetValue(258, LeaderEpoch(5), "md", 1)


def test_keys_have_the_bytes_of_Kafkas_writer() -> None:
    key = OffsetKey("g", TopicPartition(ORDERS, 3))
    # Kafka reads the key kinds 0 and 1 alike and writes 1.
    assert encode_offset_key(key).hex() == "0001" + "000167" + "00066f7264657273" + "00000003"
    assert encode_transaction_key("pay").hex() == "00000003706179"


def test_group_metadata_has_the_bytes_of_Kafkas_writer() -> None:
    member = MemberValue("m-1", "inst", "cl", "/h", 60_000, 10_000, b"sub", b"asg")
    group = GroupValue("consumer", 7, "range", "m-1", 99, (member,))
    raw = (
        "00030008636f6e73756d657200000007000572616e676500036d2d31000000000000006300000001"
        "00036d2d310004696e73740002636c00022f680000ea6000002710"
        "0000000373756200000003617367"
    )
    assert encode_group_value(group).hex() == raw
    assert decode_group_value(bytes.fromhex(raw)) == group


@pytest.mark.parametrize("kind", list(ModernKind))
def test_groups_of_the_new_protocol_have_the_bytes_of_Kafkas_writer(kind: ModernKind) -> None:
    value, raw = MODERN_VALUES[kind]
    assert encode_value(value) == raw
    assert decode_value(kind, raw) == value


def test_the_hash_of_a_groups_topics_that_Kafka_4_1_adds_is_passed_over() -> None:
    raw = bytes.fromhex("0000000000090100080000000000000005")
    assert decode_value(ModernKind.GROUP_EPOCH, raw) == GroupEpoch(9)


ONGOING = TransactionRecord(
    transactional_id="pay",
    producer_id=ProducerId(1000),
    previous_producer_id=ProducerId(5),
    next_producer_id=ProducerId(6),
    producer_epoch=ProducerEpoch(3),
    last_producer_epoch=NO_PRODUCER_EPOCH,
    timeout_ms=60_000,
    status=TxnStatus.ONGOING,
    partitions=(TopicPartition(ORDERS, 0),),
    last_update_ms=11,
    start_ms=10,
    client_tv=2,
)
ONGOING_HEX = (
    "000100000000000003e800030000ea600102076f7264657273020000000000000000000000000b000000000000000a"
)
TAGS_HEX = "000800000000000000050108000000000000000602020002"


def test_transactions_have_the_bytes_of_Kafkas_writer() -> None:
    raw = f"{ONGOING_HEX}03{TAGS_HEX}"
    assert encode_transaction_value(ONGOING).hex() == raw
    assert decode_transaction_value("pay", bytes.fromhex(raw)) == ONGOING


def test_the_next_epoch_that_Kafka_keeps_of_a_transaction_is_passed_over() -> None:
    """Tag 3, NextProducerEpoch: Kafka 4.1 writes it where a producer id ran out of epochs."""
    raw = bytes.fromhex(f"{ONGOING_HEX}04{TAGS_HEX}03020004")
    assert decode_transaction_value("pay", raw) == ONGOING
