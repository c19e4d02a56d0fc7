"""Times of records without what they hold: what a lookup by time walks over (hostile-input: lookups)."""

import pytest

from idempotency.record_batch import read_header
from region_broker.log.segment import BatchAtTime
from region_broker.partitions import time_lookup
from region_broker.records import batches
from region_broker.records.batches import (
    Record,
    RecordsError,
    build_batch,
    iter_records,
    iter_times,
)
from region_broker.records.compression import Codec
from tests.unit.region_broker.log.test_cleaning_odd_batches import UNREADABLE, odd, record

RECORDS = [
    Record(b"k", b"v" * 300, (("h", b"x" * 200), ("", None)), 1_000_000),
    Record(None, None, (), 999_000),
    Record(b"", b"", (("h", b""),), 3_000_000),
]


@pytest.mark.parametrize("codec", Codec)
def test_INV_WB4_times_are_those_of_the_records(codec: Codec) -> None:
    data = build_batch(RECORDS, codec=codec, base_offset=70)
    assert list(iter_times(data)) == [(70, 1_000_000), (71, 999_000), (72, 3_000_000)]
    stamped = bytearray(data)
    stamped[22] |= batches.ATTRIBUTE_LOG_APPEND_TIME
    told = [(each.offset, each.timestamp_ms) for each in iter_records(stamped)]
    assert list(iter_times(stamped)) == told == [(70 + n, 3_000_000) for n in range(3)]


@pytest.mark.parametrize("find", ["a time", "the largest"])
def test_INV_WB4_a_lookup_pays_for_records_and_not_for_what_they_hold(
    monkeypatch: pytest.MonkeyPatch, find: str
) -> None:
    """18 kB that held 33 million headers kept a thread for half a minute."""
    read: list[int] = []
    read_varint = batches._read_varint

    def noted(data: bytes, position: int) -> tuple[int, int]:
        read.append(position)
        return read_varint(data, position)

    headers = (("", None),) * 10_000
    many = [Record(None, None, headers, 1_000), Record(None, None, headers, 1_001)]
    data = build_batch(many, codec=Codec.ZSTD)
    monkeypatch.setattr(batches, "_read_varint", noted)
    found = BatchAtTime(read_header(data), data)
    if find == "a time":
        assert time_lookup.position_in(found, 1_001, 0) == (1, 1_001, -1)
    else:
        assert time_lookup.latest_in(found, 0) == (1, 1_001, -1)
    assert len(read) == 3 * len(many)


CUT = [
    *UNREADABLE.values(),
    odd(b"\x01\x00", count=1),
    odd(b"\x02\x00\x00" + record(1, b"a", b""), count=2),
    odd(b"\x10\x00" + b"\xff" * 7, count=1),
    odd(b"\x20\x00" + b"\xff" * 15, count=1),
    odd(b"\x08\x00\x00", count=1),
]


@pytest.mark.parametrize("data", CUT)
def test_INV_WB3_where_times_or_offsets_are_not_whole_there_are_none(data: bytes) -> None:
    for walk in (iter_times, iter_records):
        with pytest.raises(RecordsError):
            list(walk(data))


def test_INV_WB4_what_else_a_record_holds_is_not_looked_at() -> None:
    content = b"\x00\x00\x00" + b"\x7e" * 4
    data = odd(bytes([2 * len(content)]) + content, count=1)
    assert [at for at, _ in iter_times(data)] == [0]
    with pytest.raises(RecordsError):
        list(iter_records(data))
