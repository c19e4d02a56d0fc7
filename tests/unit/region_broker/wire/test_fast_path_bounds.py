"""Requests on the fast path, on hand-written bytes: what ends too early or too late, or claims what is not there."""

import struct

import pytest

from idempotency.pieces import drained
from region_broker.wire.codec import bounded
from region_broker.wire.codec.bounded import DecodeRefused
from region_broker.wire.codec.fast_paths import fetch, produce, transactions

ACKS_AND_TIMEOUT = b"\xff\xff\0\0\0\1"
BATCH = b"\0\0\0\0\3ab\0"  # partition 0, two bytes, no tags
FRONT = b"\2x" + ACKS_AND_TIMEOUT
ONE = FRONT + b"\2\2t\2" + BATCH + b"\0\0"
ONE_BY_ID = FRONT + b"\2" + bytes(15) + b"\1\2" + BATCH + b"\0\0"
TWO = FRONT + b"\2\2t\3" + 2 * BATCH + b"\0\0"
OLD = b"\0\1x" + ACKS_AND_TIMEOUT + b"\0\0\0\1\0\1t\0\0\0\1" + bytes(4) + b"\0\0\0\2ab"


def refuse(version: int, body: bytes) -> None:
    with pytest.raises(DecodeRefused):
        produce.read_request(version, memoryview(body))
    with pytest.raises(DecodeRefused):
        drained(produce.request_pieces(version, memoryview(body)))


@pytest.mark.parametrize(("version", "body"), [(9, ONE), (13, ONE_BY_ID), (9, TWO), (8, OLD)])
def test_INV_BH1_a_produce_request_that_ends_too_early_or_too_late_is_refused(
    version: int, body: bytes
) -> None:
    request = produce.read_request(version, memoryview(body))
    assert request == drained(produce.request_pieces(version, memoryview(body)))
    assert bytes(request.topics[0].batches[0].data or b"") == b"ab"
    for wrong in (*(body[:end] for end in range(len(body))), body + b"\0"):
        refuse(version, wrong)


@pytest.mark.parametrize(
    ("version", "body"),
    [
        pytest.param(9, ONE[:-1] + b"\1", id="a tag that is not there"),
        pytest.param(9, ONE.replace(b"t\2", b"t\3"), id="a batch that is not there"),
        pytest.param(9, ONE.replace(b"\1\2\2t", b"\1\3\2t"), id="a topic that is not there"),
        pytest.param(9, ONE.replace(b"\2t", b"\0"), id="a topic without name"),
        pytest.param(8, b"\xff\xfe" + OLD[3:], id="a transactional id of -2 bytes"),
        pytest.param(8, OLD.replace(b"\0\0\0\2ab", b"\xff\xff\xff\xfe"), id="a batch of -2 bytes"),
    ],
)
def test_INV_BH1_what_a_produce_request_claims_is_there_or_it_is_refused(
    version: int, body: bytes
) -> None:
    refuse(version, body)


def test_INV_BT3_an_end_that_is_neither_commit_nor_abort_is_not_plain() -> None:
    front = b"\0\1x" + bytes(10)
    told = [transactions.plain_end(0, memoryview(front + bytes((flag,)))) for flag in range(3)]
    assert [None if end is None else end.commit for end in told] == [False, True, None]


def test_INV_BT3_many_partitions_are_not_plain_however_they_are_spread() -> None:
    def add(*counts: int) -> transactions.AddRequest | None:
        topics = b"".join(
            b"\0\1t" + struct.pack(">i", count) + bytes(4 * count) for count in counts
        )
        front = b"\0\1x" + bytes(10) + struct.pack(">i", len(counts))
        return transactions.plain_add(0, memoryview(front + topics))

    assert add(600, 400) is not None
    assert add(600, 401) is None


@pytest.mark.parametrize("size_bytes", [3, 2**31 - 1, -2])
def test_INV_BH1_a_size_is_held_against_what_is_left_before_anything_is_cut_out(
    size_bytes: int,
) -> None:
    body = memoryview(b"abcd")
    for read in (bounded.text, bounded.blob):
        assert read(body, 0, -1, 2) == (None, 0)
        assert read(body, 0, 2, 2)[1] == 2
        with pytest.raises(DecodeRefused):
            read(body, 0, size_bytes, 2)


@pytest.mark.parametrize("version", [9, 12])
def test_INV_WG7_the_strings_of_a_produce_request_are_no_longer_than_those_of_the_old_kind(
    version: int,
) -> None:
    longest, longer = (bounded.write_uvarint(size + 1) + b"x" * size for size in (32_767, 32_768))
    back = ACKS_AND_TIMEOUT + b"\2\2t\2" + BATCH + b"\0\0"
    by_name = FRONT + b"\2%b\2" + BATCH + b"\0\0"
    read = produce.read_request(version, memoryview(longest + back))
    assert len(read.transactional_id or "") == 32_767
    read = produce.read_request(version, memoryview(by_name % longest))
    assert len(str(read.topics[0].key)) == 32_767
    refuse(version, longer + back)
    refuse(version, by_name % longer)


def test_INV_WG7_the_strings_of_a_fetch_request_are_no_longer_than_those_of_the_old_kind() -> None:
    back = b"\1\0\1\1\0"  # no partitions, no tags; nothing forgotten, rack "", no tags
    longest, longer = (bounded.write_uvarint(size + 1) + b"x" * size for size in (32_767, 32_768))
    read = fetch.read_request(12, memoryview(bytes(25) + b"\2" + longest + back))
    assert len(str(read.topics[0][0])) == 32_767
    for wrong in (b"\2" + longer + back, b"\1\1" + longer + b"\0"):
        with pytest.raises(DecodeRefused):
            fetch.read_request(12, memoryview(bytes(25) + wrong))


def test_INV_BH1_a_varint_ends_before_the_end_that_is_given() -> None:
    assert bounded.read_uvarint(memoryview(b"\x80\1"), 0, 2) == (128, 2)
    with pytest.raises(DecodeRefused):
        bounded.read_uvarint(memoryview(b"\x80\1"), 0, 1)
