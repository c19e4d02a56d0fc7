"""What a topic makes of batches: codec, time stamps, sizes. Rules C2, and Kafka's LogValidator by name.

Sources: Kafka LogValidator.java (validateBatch, validateTimestamp, assignOffsetsNonCompressed), UnifiedLog.scala
append (sizes), DefaultRecordBatch.java setMaxTimestamp, KIP-32, KIP-780, KIP-937.
"""

import asyncio
import gzip
import struct
import threading
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import BatchHeader, Buffer, read_header
from region_broker.handlers.produce.batches import light_of
from region_broker.handlers.produce.wait import Item
from region_broker.log.failures import UnsupportedConfig
from region_broker.partitions import record_rules
from region_broker.partitions.admission import AppendOutcome, AppendVerdict
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.record_rules import RECOMPRESSED_INLINE_BYTES_MAX
from region_broker.records.batch_rewrite import recompressed
from region_broker.records.batches import Origin, Record, build_batch, iter_records
from region_broker.records.compression import Codec, compress
from tests.fixtures.kafka_port import RawClient, wire_fixture
from tests.fixtures.node_logs import Fixture, Topic, batch, fixture
from tests.simulation.kafka_client import produce_request

CODECS = {
    "uncompressed": Codec.NONE,
    "gzip": Codec.GZIP,
    "snappy": Codec.SNAPPY,
    "lz4": Codec.LZ4,
    "zstd": Codec.ZSTD,
}
MAGIC_OF = {  # what a stream of each codec begins with, by the codecs' own documents
    Codec.GZIP: b"\x1f\x8b",
    Codec.SNAPPY: b"\x82SNAPPY\x00",
    Codec.LZ4: b"\x04\x22\x4d\x18",
    Codec.ZSTD: b"\x28\xb5\x2f\xfd",
}
NOW_MS = 1_000_000  # where the fixture's clock stands
RECORDS = [Record(b"k%d" % n, b"value " * 40, (("h", b"x"),), NOW_MS + n) for n in range(5)]


def stored(some: Fixture, offset: int = 0) -> tuple[BatchHeader, bytes]:
    some.sync()
    data = some.partition.reader.fetch(offset, 1 << 20, Isolation.READ_UNCOMMITTED).data
    header = read_header(data)
    whole = bytes(data[: header.size_bytes])
    assert google_crc32c.value(whole[21:]) == header.crc
    return header, whole


@pytest.mark.parametrize("target", CODECS)
@pytest.mark.parametrize("source", CODECS)
def test_C2_recompressed_batch_keeps_records_offsets_and_sequence(source: str, target: str) -> None:
    some = fixture({"compression.type": target})
    some.partition.writer.append(batch(3))
    sent = build_batch(
        RECORDS,
        origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)),
        codec=CODECS[source],
    )
    outcome = some.partition.writer.append(sent)
    assert (outcome.verdict, outcome.base_offset, outcome.next_offset) == (
        AppendVerdict.APPENDED, 3, 8,
    )  # fmt: skip
    header, data = stored(some, 3)
    assert header.codec == CODECS[target]
    assert header.size_bytes == len(data)
    if header.codec:
        assert data[61:].startswith(MAGIC_OF[Codec(header.codec)])
    assert (header.producer_id, header.base_sequence, header.record_count) == (7, 0, 5)
    assert [(r.key, r.value, r.headers, r.timestamp_ms, r.offset) for r in iter_records(data)] == [
        (r.key, r.value, r.headers, r.timestamp_ms, 3 + n) for n, r in enumerate(RECORDS)
    ]
    again = some.partition.writer.append(sent)
    assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, 3)


def test_producer_codec_is_kept_byte_for_byte() -> None:
    for codec in Codec:
        some = fixture({"compression.type": "producer"})
        sent = build_batch(RECORDS, codec=codec)
        some.partition.writer.append(sent)
        assert stored(some)[1][16:] == sent[16:]


def test_the_level_is_used() -> None:
    plain = build_batch([Record(None, bytes(range(256)) * 200, timestamp_ms=NOW_MS)])
    sizes = {}
    for level in ("1", "9"):
        some = fixture({"compression.type": "gzip", "compression.gzip.level": level})
        some.partition.writer.append(plain)
        sizes[level] = stored(some)[0].size_bytes
    assert sizes["9"] < sizes["1"]


@pytest.mark.parametrize(
    "configs",
    [
        {"compression.type": "brotli"},
        {"compression.type": "gzip", "compression.gzip.level": "10"},
        {"compression.type": "lz4", "compression.lz4.level": "18"},
        {"compression.type": "zstd", "compression.zstd.level": "23"},
        {"message.timestamp.type": "EventTime"},
        {"message.timestamp.before.max.ms": "-1"},
    ],
)
def test_values_that_kafka_refuses_are_refused(configs: dict[str, str]) -> None:
    with pytest.raises(UnsupportedConfig):
        fixture(configs)


def test_records_that_cannot_be_decompressed_are_refused_where_they_would_have_to_be() -> None:
    damaged = bytearray(build_batch(RECORDS, codec=Codec.GZIP))
    damaged[61] ^= 0xFF
    struct.pack_into(">I", damaged, 17, google_crc32c.value(bytes(damaged[21:])))
    assert fixture().partition.writer.append(damaged).verdict is AppendVerdict.APPENDED
    some = fixture({"compression.type": "zstd"})
    assert some.partition.writer.append(damaged).verdict is AppendVerdict.INVALID_RECORD
    ahead = some.partition.writer.prepared(damaged).made
    assert isinstance(ahead, AppendOutcome)
    assert ahead.verdict is AppendVerdict.INVALID_RECORD


KEYED = [Record(b"k", b"a"), Record(None, b"b"), Record(b"k", b"c"), Record(None, b"d")]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_KIP467_records_without_a_key_are_named_where_a_compacted_topic_refuses_them(
    codec: Codec,
) -> None:
    some = fixture({"cleanup.policy": "compact"})
    batch = build_batch(KEYED, codec=codec)
    for refused in (
        some.partition.writer.append(batch),
        some.partition.writer.prepared(batch).made,
    ):
        assert isinstance(refused, AppendOutcome)
        assert refused.verdict is AppendVerdict.INVALID_RECORD
        assert refused.bad_records == (1, 3)
    whole = build_batch(KEYED[::2], codec=codec)
    assert some.partition.writer.append(whole).verdict is AppendVerdict.APPENDED


def test_KIP467_so_many_records_are_named_and_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("region_broker.partitions.record_rules.RECORD_ERRORS_MAX", 3)
    refused = fixture({"cleanup.policy": "compact"}).partition.writer.append(
        build_batch([Record(None, b"v")] * 5)
    )
    assert refused.bad_records == (0, 1, 2)
    assert "5 of 5 records" in refused.detail


@pytest.mark.slow
def test_a_bomb_is_not_unpacked() -> None:
    some = fixture({"compression.type": "uncompressed", "max.message.bytes": "100000000"})
    body = gzip.compress(bytes(65 << 20))
    header = bytearray(build_batch([Record(None, b"")], codec=Codec.GZIP)[:61])
    struct.pack_into(">i", header, 8, 49 + len(body))
    struct.pack_into(">I", header, 17, google_crc32c.value(bytes(header[21:]) + body))
    bomb = bytes(header) + body
    assert some.partition.writer.work_bytes(bomb) > RECOMPRESSED_INLINE_BYTES_MAX
    refused = some.partition.writer.prepared(bomb).made
    assert isinstance(refused, AppendOutcome)
    assert refused.verdict is AppendVerdict.INVALID_RECORD
    assert "more than" in refused.detail


def test_KIP32_log_append_time_is_the_brokers_and_set_once() -> None:
    some = fixture({"message.timestamp.type": "LogAppendTime"})
    some.clock.now_ms = 5_000_000
    sent = build_batch(RECORDS, origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
    outcome = some.partition.writer.append(sent)
    assert outcome.log_append_time_ms == 5_000_000
    header, data = stored(some)
    assert header.attributes & 0x08
    assert (header.max_timestamp_ms, header.base_timestamp_ms) == (5_000_000, NOW_MS)
    assert data[61:] == sent[61:]
    assert {record.timestamp_ms for record in iter_records(data)} == {5_000_000}
    some.clock.now_ms = 6_000_000
    again = some.partition.writer.append(sent)
    assert (again.verdict, again.log_append_time_ms) == (AppendVerdict.DUPLICATE, 5_000_000)
    assert asyncio.run(some.partition.reader.lookup(Isolation.READ_UNCOMMITTED).first(4_000_000)) == (
        0, 5_000_000, header.leader_epoch,
    )  # fmt: skip


def test_create_time_answers_no_append_time() -> None:
    assert fixture().partition.writer.append(batch()).log_append_time_ms == -1


def test_log_append_time_with_another_codec() -> None:
    some = fixture({"message.timestamp.type": "LogAppendTime", "compression.type": "lz4"})
    some.partition.writer.append(build_batch(RECORDS))
    header, data = stored(some)
    assert (header.codec, header.attributes & 0x08) == (Codec.LZ4, 8)
    assert len(list(iter_records(data))) == 5


@pytest.mark.parametrize(
    ("configs", "at_ms", "verdict"),
    [
        ({}, NOW_MS + 3_600_000, AppendVerdict.APPENDED),
        ({}, NOW_MS + 3_600_001, AppendVerdict.INVALID_TIMESTAMP),
        ({}, 0, AppendVerdict.APPENDED),
        ({}, -1, AppendVerdict.APPENDED),
        ({"message.timestamp.after.max.ms": "10"}, NOW_MS + 11, AppendVerdict.INVALID_TIMESTAMP),
        ({"message.timestamp.before.max.ms": "10"}, NOW_MS - 10, AppendVerdict.APPENDED),
        ({"message.timestamp.before.max.ms": "10"}, NOW_MS - 11, AppendVerdict.INVALID_TIMESTAMP),
        ({"message.timestamp.before.max.ms": "10"}, -1, AppendVerdict.APPENDED),
        (
            {"message.timestamp.before.max.ms": "10", "message.timestamp.type": "LogAppendTime"},
            NOW_MS - 11,
            AppendVerdict.APPENDED,
        ),
    ],
)
def test_KIP937_times_are_held_against_the_clock(
    configs: dict[str, str], at_ms: int, verdict: AppendVerdict
) -> None:
    assert fixture(configs).partition.writer.append(batch(at_ms=at_ms)).verdict is verdict


def test_C2_a_duplicate_is_a_duplicate_however_late() -> None:
    some = fixture({"message.timestamp.before.max.ms": "10"})
    sent = batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
    some.partition.writer.append(sent)
    some.clock.now_ms += 1_000
    assert some.partition.writer.append(sent).verdict is AppendVerdict.DUPLICATE
    late = batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(1)))
    assert some.partition.writer.append(late).verdict is AppendVerdict.INVALID_TIMESTAMP


def test_a_producer_must_not_claim_append_time() -> None:
    for configs in ({}, {"message.timestamp.type": "LogAppendTime"}):
        data = bytearray(batch())
        struct.pack_into(">h", data, 21, 0x08)
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
        assert (
            fixture(configs).partition.writer.append(data).verdict
            is AppendVerdict.INVALID_TIMESTAMP
        )


def test_a_batch_that_no_segment_holds_is_refused() -> None:
    some = fixture({"segment.bytes": "4096"})
    assert some.partition.writer.append(batch(size_bytes=4_096)).verdict is (
        AppendVerdict.LARGER_THAN_SEGMENT
    )
    assert some.partition.writer.append(batch(size_bytes=3_900)).verdict is AppendVerdict.APPENDED


def test_max_message_bytes_holds_for_what_is_kept() -> None:
    big = build_batch([Record(None, bytes(5_000), timestamp_ms=NOW_MS)])
    small = build_batch([Record(None, bytes(5_000), timestamp_ms=NOW_MS)], codec=Codec.ZSTD)
    limit = {"max.message.bytes": "1000"}
    assert fixture(limit).partition.writer.append(big).verdict is AppendVerdict.TOO_LARGE
    assert fixture(limit).partition.writer.append(small).verdict is AppendVerdict.APPENDED
    opened = fixture(limit | {"compression.type": "uncompressed"})
    assert opened.partition.writer.append(small).verdict is AppendVerdict.TOO_LARGE


def test_max_message_bytes_holds_for_what_a_thread_has_recompressed() -> None:
    small = build_batch([Record(None, bytes(5_000), timestamp_ms=NOW_MS)], codec=Codec.ZSTD)
    some = fixture({"max.message.bytes": "1000", "compression.type": "uncompressed"})
    ahead = some.partition.writer.prepared(small)
    assert some.partition.writer.append(small, ahead=ahead).verdict is AppendVerdict.TOO_LARGE


def test_INV_FIT2_what_was_prepared_under_other_rules_is_looked_at_again() -> None:
    """A thread has changed the codec; meanwhile the topic is set to compact, which takes no record without a key."""
    keyless = build_batch([Record(None, b"v", timestamp_ms=NOW_MS)])
    before = fixture({"compression.type": "zstd"}).partition.writer.prepared(keyless)
    some = fixture({"compression.type": "gzip", "cleanup.policy": "compact"})
    assert (
        some.partition.writer.append(keyless, ahead=before).verdict is AppendVerdict.INVALID_RECORD
    )
    keyed = build_batch([Record(b"k", b"v", timestamp_ms=NOW_MS)])
    before = fixture({"compression.type": "zstd"}).partition.writer.prepared(keyed)
    assert some.partition.writer.append(keyed, ahead=before).verdict is AppendVerdict.APPENDED
    assert stored(some)[0].codec == Codec.GZIP


# Holds INV-FIT3.
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_C2_a_retry_of_what_the_log_has_is_a_duplicate_by_whatever_rules(codec: Codec) -> None:
    some = fixture()
    sent = build_batch(
        [Record(None, b"v" * 99)],
        origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)),
        codec=codec,
    )
    assert some.partition.writer.append(sent).verdict is AppendVerdict.APPENDED
    some.sync()
    some.topic = Topic(configs={"cleanup.policy": "compact", "compression.type": "gzip"})
    some.close_and_reopen()
    again = some.partition.writer.append(sent, ahead=some.partition.writer.prepared(sent))
    assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, 0)


@pytest.mark.parametrize("configs", [{}, {"compression.type": "gzip"}])
def test_INV_FIT3_a_retry_of_what_the_log_has_is_refused_for_no_size(
    configs: dict[str, str],
) -> None:
    """1. A batch is written. 2. `max.message.bytes` is lowered. 3. Its answer is lost, and it is sent again."""
    some = fixture()
    origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0))
    sent = build_batch([Record(None, b"v" * 99)], origin=origin)
    assert some.partition.writer.append(sent).verdict is AppendVerdict.APPENDED
    some.sync()
    some.topic = Topic(configs=configs | {"max.message.bytes": f"{len(sent) - 1}"})
    some.close_and_reopen()
    writer = some.partition.writer
    again = writer.append(sent, ahead=writer.prepared(sent))
    assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, 0)
    follows = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(1))
    fresh = build_batch([Record(None, b"v" * 99)], origin=follows)
    assert writer.append(fresh).verdict is AppendVerdict.TOO_LARGE
    assert writer.append(fresh, ahead=writer.prepared(fresh)).verdict is AppendVerdict.TOO_LARGE


@pytest.mark.parametrize("source", list(CODECS)[1:])
def test_a_recompressed_batch_has_the_records_of_all_members_of_its_stream(source: str) -> None:
    """A stream may be several members one after the other; Kafka's GzipCompression reads them all (RFC 1952)."""
    codec = CODECS[source]
    plain = build_batch(RECORDS)
    body = compress(codec, plain[61:150]) + compress(codec, plain[150:])
    batch = bytearray(build_batch(RECORDS, codec=codec)[:61] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    some = fixture({"compression.type": "uncompressed"})
    assert some.partition.writer.append(batch).verdict is AppendVerdict.APPENDED
    assert stored(some)[1][61:] == plain[61:]


def claimed(**fields: int) -> bytes:
    """Return a batch of two records whose header claims otherwise, under a right CRC."""
    data = bytearray(batch(2))
    places = {"last_offset_delta": (">i", 23), "record_count": (">i", 57), "base_offset": (">q", 0)}
    for name, value in fields.items():
        form, at = places[name]
        struct.pack_into(form, data, at, value)
    struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
    return bytes(data)


@pytest.mark.parametrize(
    ("data", "verdict"),
    [
        (claimed(record_count=3), AppendVerdict.INVALID_RECORD),
        (claimed(record_count=0), AppendVerdict.INVALID_RECORD),
        (claimed(last_offset_delta=0), AppendVerdict.INVALID_RECORD),
        (claimed(last_offset_delta=2**31 - 1), AppendVerdict.INVALID_RECORD),
        (claimed(base_offset=5), AppendVerdict.INVALID_RECORD),
        (claimed(record_count=-1), AppendVerdict.CORRUPT),
        (batch() + batch(), AppendVerdict.INVALID_RECORD),
        (
            claimed(record_count=2**31 - 1, last_offset_delta=2**31 - 2),
            AppendVerdict.INVALID_RECORD,
        ),
    ],
)
def test_what_a_header_claims_is_held_against_itself(data: bytes, verdict: AppendVerdict) -> None:
    assert fixture().partition.writer.append(data).verdict is verdict


@pytest.mark.parametrize("packed", [0, 4])
def test_INV_AD3_a_header_alone_does_not_begin_a_segment(packed: int) -> None:
    """61 bytes that claim 2^31 records: nothing else would fit into the segment that holds them. A record has seven bytes at least (KIP-98)."""
    data = bytearray(61)
    most = 1_000_000 if packed else 0  # of what is packed nobody knows how many there are
    for count in (most + 1, 2**31 - 1):
        struct.pack_into(">qiibIhiqqqhii", data, 0, 0, 49, 0, 2, 0, packed, count - 1, 0, 0, -1, -1, -1, count)  # fmt: skip
        struct.pack_into(">I", data, 17, google_crc32c.value(bytes(data[21:])))
        refused = fixture().partition.writer.append(bytes(data))
        assert refused.verdict is AppendVerdict.INVALID_RECORD
        assert "do not fit" in refused.detail


async def _produce(client: RawClient, data: bytes) -> Any:
    answer = await client.call(0, 9, {
        "acks": -1, "timeout": 5000, "transactional_id": None,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": data}]}],
    })  # fmt: skip
    return answer.responses[0].partition_responses[0]


@pytest.mark.parametrize(
    "configs", [{"compression.type": "zstd"}, {"cleanup.policy": "compact"}], ids=["codec", "keys"]
)
def test_INV_H17_many_small_batches_of_a_request_are_looked_into_in_a_thread(
    configs: dict[str, str],
) -> None:
    """Each alone is small enough to be done at once: 200 of them took the loop seconds."""
    some = fixture(configs)
    data = build_batch([Record(b"k", bytes(2_000))])
    items = [Item("t", 0, data) for _ in range(200)]
    for item in items:
        item.partition = some.partition
    count, looked_at = light_of(items)
    assert 0 < looked_at == sum(len(item.data) for item in items[:count]) <= 8 * 1024
    assert light_of(items[count:], looked_at) == (0, looked_at)
    assert light_of(items[:3])[0] == 3
    assert light_of([]) == (0, 0)


def test_INV_H17_batches_that_nobody_looks_into_are_appended_at_once() -> None:
    some = fixture({})
    item = Item("t", 0, build_batch([Record(b"k", bytes(1_000_000))]))
    item.partition = some.partition
    assert light_of([item] * 200) == (200, 0)


@pytest.mark.parametrize(
    "changed", [{"compression.type": "lz4"}, {"compression.type": "zstd", "retention.ms": "5"}]
)
async def test_INV_H17_batches_are_made_ready_anew_where_their_topic_changed_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, changed: dict[str, str]
) -> None:
    """1. A thread recompresses a batch. 2. Its topic is altered. 3. The batch is appended: not by doing all of it again on the loop."""
    worked: list[bool] = []
    on_loop, altered = threading.get_ident(), threading.Event()

    def note(data: Buffer, header: BatchHeader, codec: Codec, *, level: int | None) -> bytes:
        worked.append(threading.get_ident() == on_loop)
        if len(worked) == 1:
            loop.call_soon_threadsafe(alter)
            assert altered.wait(60)
        return recompressed(data, header, codec, level=level)

    def alter() -> None:
        some.services.partitions.update_config(Topic(name="t", topic_id=topic_id, configs=changed))
        altered.set()

    loop = asyncio.get_running_loop()
    monkeypatch.setattr(record_rules, "recompressed", note)
    async with wire_fixture(tmp_path) as some:
        await some.topic("t", configs={"compression.type": "zstd"})
        topic_id = some.partition("t").topic_id
        client = await some.connect()
        row = await _produce(client, build_batch([Record(None, bytes(9_000), timestamp_ms=-1)]))
        assert (row.error_code, row.base_offset) == (0, 0)
        kept = some.partition("t").reader.fetch(0, 1 << 20, Isolation.READ_UNCOMMITTED).data
    assert worked == [False, False]
    assert Codec(read_header(kept).codec).name.lower() == changed["compression.type"]


@pytest.mark.slow
async def test_large_batches_are_recompressed_in_a_thread_and_stay_in_order(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as some:
        topic = await some.topic("t", configs={"compression.type": "zstd"})
        client = await some.connect()
        for sequence, size_bytes in enumerate([100, 60_000, 10, 9_000, 50]):
            record = Record(None, bytes(size_bytes))
            data = build_batch(
                [record],
                origin=Origin(ProducerId(5), ProducerEpoch(0), SequenceNumber(sequence)),
                codec=Codec.GZIP,
            )
            row = await _produce(client, data)
            assert (row.error_code, row.base_offset) == (0, sequence), row
        assert topic is not None


async def test_errors_have_the_numbers_of_kafka(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as some:
        await some.topic(
            "t", configs={"segment.bytes": "8192", "max.message.bytes": "10000",
                          "message.timestamp.before.max.ms": "1"},
        )  # fmt: skip
        client = await some.connect()
        at_ms = -1  # no timestamp is never judged
        for data, error in [
            (build_batch([Record(None, bytes(9_000), timestamp_ms=at_ms)]), 18),  # RECORD_LIST_TOO_LARGE
            (build_batch([Record(None, bytes(11_000), timestamp_ms=at_ms)]), 10),  # MESSAGE_TOO_LARGE
            (build_batch([Record(None, b"", timestamp_ms=5)]), 32),  # INVALID_TIMESTAMP
        ]:  # fmt: skip
            assert (await _produce(client, data)).error_code == error


@pytest.mark.parametrize("version", [8, 9, 12])
async def test_KIP467_an_answer_names_the_records_for_which_a_batch_was_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: int
) -> None:
    monkeypatch.setattr("region_broker.handlers.produce.wait.RECORD_ERRORS_MAX", 3)
    async with wire_fixture(tmp_path) as some:
        await some.topic("t", 2, configs={"cleanup.policy": "compact"})
        client = await some.connect()
        batch = build_batch(KEYED)
        answer = await client.call(0, version, produce_request("t", {0: batch, 1: batch}))
        rows = answer.responses[0].partition_responses
        assert [row.error_code for row in rows] == [87, 87]  # INVALID_RECORD
        named = [[each.batch_index for each in row.record_errors] for row in rows]
        assert named == [[1, 3], [1]]  # of all in an answer so many, and no more
        assert all("have no key" in row.error_message for row in rows)


@pytest.mark.parametrize(("says", "verdict"), [(128, AppendVerdict.APPENDED), (129, AppendVerdict.INVALID_RECORD)])  # fmt: skip
def test_INV_AD3_a_packed_batch_says_no_more_records_than_codecs_can_pack(
    says: int, verdict: AppendVerdict
) -> None:
    """A batch of 61 bytes that said a million of them began a segment each two thousand times."""
    some = fixture()
    data = bytearray(build_batch([Record(None, b"v")], codec=Codec.GZIP))
    count = says * (len(data) - 61)
    data[23:27] = (count - 1).to_bytes(4, "big")
    data[57:61] = count.to_bytes(4, "big")
    data[17:21] = google_crc32c.value(bytes(data[21:])).to_bytes(4, "big")
    assert some.partition.writer.append(bytes(data)).verdict is verdict
