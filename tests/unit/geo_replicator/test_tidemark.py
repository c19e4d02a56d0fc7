"""Records of `__tidemarks` that another version wrote."""

from dataclasses import replace
from uuid import UUID

import msgspec
import pytest

from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import (
    LogPosition,
    TermRecord,
    Tidemark,
    TidemarkBook,
    TidemarkError,
    decode,
    encode,
)
from geo_replicator.topology import LedgerTopics
from idempotency.identity import RegionEpoch, Round

TIDEMARK = Tidemark(
    domain="main",
    region_epoch=RegionEpoch(8),
    number=3,
    round=Round(5),
    metadata_version=1,
    ledger={0: 7},
    full=True,
)
TERM = TermRecord(domain="main", region_epoch=RegionEpoch(8), term=2, number=3)


@pytest.mark.parametrize("record", [TIDEMARK, TERM])
@pytest.mark.parametrize("number", [0, 2])
def test_a_record_of_another_format_is_refused_with_what_to_do(
    record: Tidemark | TermRecord, number: int
) -> None:
    key, value = encode(record)
    fields = msgspec.msgpack.decode(value)
    assert fields[0] == 1
    other = msgspec.msgpack.encode([number, *fields[1:]])
    with pytest.raises(TidemarkError, match=rf"format {number}, this Tidemark reads 1: upgrade"):
        decode(key, other)


@pytest.mark.parametrize(
    ("record", "key"), [(TIDEMARK, "0000" + 16 * "0"), (TERM, "0001" + 16 * "0")]
)
def test_a_key_is_the_kind_of_the_record_in_two_bytes_and_its_number_in_eight(
    record: Tidemark | TermRecord, key: str
) -> None:
    number = record.number if isinstance(record, Tidemark) else record.term
    assert encode(record)[0] == (int(key, 16) + number).to_bytes(10, "big")


def test_a_book_begins_at_a_full_record_or_not_at_all() -> None:
    partial = replace(TIDEMARK, full=False)
    with pytest.raises(TidemarkError, match="at offset 9, which is not a full one"):
        TidemarkBook(LedgerTopics(UUID(int=1), UUID(int=2))).apply(9, partial)


def _of_many_logs() -> Tidemark:
    topics = [UUID(int=number * 7919 % 101 + 1) for number in range(20)]
    moved = {
        LogKey(topic, partition): LogPosition(10 * partition, partition)
        for partition in (2, 0, 1)
        for topic in topics
    }
    return replace(TIDEMARK, moved=moved)


def test_a_record_is_the_same_bytes_in_whichever_order_logs_moved() -> None:
    record = _of_many_logs()
    ordered = replace(record, moved=dict(sorted(record.moved.items())))
    assert encode(record) == encode(ordered)
    named = msgspec.msgpack.decode(encode(record)[1])[7]
    assert [topic for topic, _ in named] == sorted(topic for topic, _ in named)
    assert all(positions == sorted(positions) for _, positions in named)
    assert decode(*encode(record)) == record


def test_each_topic_has_one_object_for_its_id_in_all_records_that_are_read() -> None:
    """Reading a thousand tidemarks of a thousand logs would else make, and compare, a million ids on the event loop."""
    written = encode(_of_many_logs())
    records = [decode(*written), decode(*written)]
    assert all(isinstance(record, Tidemark) for record in records)
    keys = [key for record in records if isinstance(record, Tidemark) for key in record.moved]
    assert len({id(key.topic_id) for key in keys}) == len({key.topic_id for key in keys}) == 20
