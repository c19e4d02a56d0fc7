"""Rows of a ledger's log."""

from idempotency.record_batch import iter_headers
from region_broker.ledgers.rows import read_slices
from region_broker.records.batches import Record, build_batch
from tests.fixtures.node_logs import LEADER_EPOCH, all_bytes, fixture


def test_a_row_names_its_place_and_a_record_without_a_key_has_an_empty_one() -> None:
    some = fixture()
    for key in (None, b"k"):
        some.partition.writer.append(build_batch([Record(key, b"v")]))
    some.sync()
    slices = list(read_slices(some.partition, 0, some.partition.high_watermark, 1 << 20))
    assert [(place.leader_epoch, place.offset, key, value) for found in slices for place, key, value in found.rows] == [
        (LEADER_EPOCH, 0, b"", b"v"), (LEADER_EPOCH, 1, b"k", b"v"),
    ]  # fmt: skip
    assert slices[-1].last == list(iter_headers(all_bytes(some.partition)))[-1][1]
