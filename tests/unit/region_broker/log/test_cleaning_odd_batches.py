"""Compaction over what a producer may write under a right CRC, and what a cleaning may not take from a later replay.

Sources: INV-CLW2 and INV-CLW5, INV-CLK2, INV-NP2, T13; KIP-98 for the layout of records, KIP-534 for tombstones.
"""

import struct
from collections.abc import Sequence

import google_crc32c
import pytest

from idempotency.identity import LeaderEpoch, ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import ControlType, iter_headers, write_varint
from region_broker.log.cleaning.batch_filter import emptied
from region_broker.partitions.admission import AppendVerdict
from region_broker.records.batches import Origin, Record, build_batch, iter_records
from region_broker.records.compression import Codec
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, Topic, all_bytes, append_marker, fixture
from tests.unit.region_broker.log.test_cleaning import COMPACT, clean, end_txn, left, put, roll

NOW_MS = 1_000_000  # where the fixture's clock stands
INT64_MAX = (1 << 63) - 1


def record(delta: int, key: bytes, value: bytes | None, time_delta_ms: int = 0) -> bytes:
    """Return one record as KIP-98 lays it out."""
    content = b"\x00" + write_varint(time_delta_ms) + write_varint(delta)
    content += write_varint(len(key)) + key
    content += write_varint(-1) if value is None else write_varint(len(value)) + value
    content += write_varint(0)
    return write_varint(len(content)) + content


def odd(body: bytes, *, count: int, codec: Codec = Codec.NONE, at_ms: int = NOW_MS) -> bytes:
    """Return a client's batch with this body: what admission looks at is as it should be."""
    batch = bytearray(build_batch([Record(b"k", b"v", timestamp_ms=at_ms)])[:61] + body)
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, count - 1)
    struct.pack_into(">i", batch, 57, count)
    struct.pack_into(">I", batch, 17, google_crc32c.value(bytes(batch[21:])))
    return bytes(batch)


UNREADABLE = {
    "no records": odd(b"\x01garbage", count=1),
    "no stream of its codec": odd(b"garbage", count=1, codec=Codec.GZIP),
    "fewer records than it says": odd(record(0, b"a", b"1" * 8), count=2),
    "more records than it says": odd(record(0, b"a", b"1") + record(1, b"a", b"2"), count=1),
    "an offset far behind its end": odd(record(1 << 40, b"a", b"1"), count=1),
    "an offset before its start": odd(record(-5, b"a", b"1"), count=1),
    "one offset twice": odd(record(0, b"a", b"1") + record(0, b"a", b"2"), count=2),
    "a time that does not fit 64 bits": odd(record(0, b"a", b"1", INT64_MAX), count=1),
}


def appended_before_the_policy(batches: Sequence[bytes]) -> Fixture:
    """Return a compacted log that was none when these batches came: nothing has looked into them."""
    some = fixture({"cleanup.policy": "delete", "segment.bytes": COMPACT["segment.bytes"]})
    for batch in batches:
        assert some.partition.writer.append(batch).verdict is AppendVerdict.APPENDED
    some.sync()
    some.topic = Topic(configs=COMPACT)
    some.close_and_reopen()
    return some


# Holds INV-CLB4.
@pytest.mark.parametrize("name", UNREADABLE)
def test_a_batch_that_nobody_can_read_stays_as_it_is_and_the_rest_is_cleaned(name: str) -> None:
    some = appended_before_the_policy([UNREADABLE[name]])
    first = all_bytes(some.partition)
    put(some, ("a", "older"))
    put(some, ("a", "newer"))
    roll(some)
    assert clean(some)
    data = all_bytes(some.partition)
    headers = [header for _, header in iter_headers(data)]
    assert data.startswith(first)
    older = headers[0].next_offset
    assert headers[1].base_offset == older + 1


@pytest.mark.parametrize("name", UNREADABLE)
def test_a_compacted_topic_takes_no_batch_that_its_cleaner_could_not_read(name: str) -> None:
    some = fixture(COMPACT)
    assert some.partition.writer.append(UNREADABLE[name]).verdict is AppendVerdict.INVALID_RECORD


def test_a_tombstone_behind_a_batch_that_nobody_can_read_stays() -> None:
    """That batch may hold the value that it deletes: without the tombstone the value would be back."""
    some = appended_before_the_policy([UNREADABLE["no stream of its codec"]])
    put(some, ("a", None))
    for _ in range(3):
        roll(some)
        assert clean(some)
        some.clock.now_ms += 1_001
    assert [header.base_offset for _, header in iter_headers(all_bytes(some.partition))][:2] == [
        0,
        1,
    ]


def test_a_tombstone_as_old_as_times_can_be_does_not_end_the_cleaner() -> None:
    """Its distance from the delete horizon does not fit 64 bits: it stays, as if it could not be read."""
    some = fixture(COMPACT)
    tombstone = odd(record(0, b"a", None), count=1, at_ms=NOW_MS - INT64_MAX)
    assert some.partition.writer.append(tombstone).verdict is AppendVerdict.APPENDED
    put(some, ("b", "1"))
    put(some, ("b", "2"))
    roll(some)
    assert clean(some)
    assert left(some) == [(0, "a", None), (2, "b", "2")]


FOR_EVER = COMPACT | {"delete.retention.ms": str(INT64_MAX)}  # as Kafka's own tools allow it


def horizons(some: Fixture) -> list[int]:
    """Return the delete horizons that are set (KIP-534: bit 6 of the attributes, in the place of the base timestamp)."""
    headers = [header for _, header in iter_headers(all_bytes(some.partition))]
    return [header.base_timestamp_ms for header in headers if header.attributes & 1 << 6]


@pytest.mark.parametrize("ahead_ms", [0, 1_800_000], ids=["now", "in half an hour"])
def test_INV_CLW6_a_tombstone_that_is_to_stay_for_ever_stays(ahead_ms: int) -> None:
    """The delete horizon would lie behind what 64 bits hold; a producer's clock may be ahead by an hour (KIP-937)."""
    some = fixture(FOR_EVER)
    tombstone = odd(record(0, b"a", None), count=1, at_ms=NOW_MS + ahead_ms)
    assert some.partition.writer.append(tombstone).verdict is AppendVerdict.APPENDED
    roll(some)
    for _ in range(3):
        some.clock.now_ms += 1_000_000
        clean(some)
        roll(some)
    assert left(some) == [(0, "a", None)]
    assert horizons(some) == [INT64_MAX]
    (_, header), *_ = iter_headers(data := all_bytes(some.partition))
    (kept,) = iter_records(data[: header.size_bytes])
    assert kept.timestamp_ms == NOW_MS + ahead_ms


@pytest.mark.parametrize("later_ms", [0, 2])
def test_INV_CLW6_a_marker_of_a_transaction_without_records_stays_as_long_as_the_topic_says(
    later_ms: int,
) -> None:
    some = fixture(FOR_EVER)
    end_txn(some, 1, ControlType.COMMIT)
    put(some, ("a", "1"), ("a", "2"))
    roll(some)
    for _ in range(3):
        some.clock.now_ms += later_ms
        assert clean(some)
        roll(some)
    assert left(some) == [(2, "a", "2")]
    assert horizons(some) == [INT64_MAX]


def test_INV_CLW6_a_marker_that_can_be_given_no_horizon_stays_as_it_is() -> None:
    """From -5 ms to the last time that there is are more than 64 bits of a delta."""
    some = fixture(FOR_EVER)
    append_marker(some.partition,
        producer_id=1, producer_epoch=0, control_type=ControlType.COMMIT, coordinator_epoch=1,
        decision=None, timestamp_ms=-5,
    )  # fmt: skip
    put(some, ("a", "1"), ("a", "2"))
    for _ in range(3):
        roll(some)
        assert clean(some)
    assert left(some) == [(2, "a", "2")]
    assert horizons(some) == []


def test_T13_a_cut_behind_what_was_cleaned_loses_no_value_with_what_took_its_place() -> None:
    """The memory fills inside the second segment: what it noted there may supersede nothing below."""
    some = fixture(COMPACT)
    put(some, ("a", "old"))
    put(some, ("x", "v" * 3900))
    second = put(some, ("a", "new"))
    for key in "bcde":
        put(some, (key, "1"))
    roll(some)
    assert clean(some, keys_max=3)
    assert some.partition.log.cleaning.mark.cleaned_here_below == second
    assert (0, "a", "old") in left(some)
    some.partition.truncate_to(second)
    assert [key for _, key, _ in left(some)] == ["a", "x"]


def test_C2_a_mirror_seeded_from_a_cleaned_log_knows_who_wrote_below_its_cut() -> None:
    """The producer's newest batch lies above what was cleaned; the mirror takes over below that batch."""
    some = fixture(COMPACT)
    mine = build_batch(
        [Record(b"a", b"mine", timestamp_ms=NOW_MS)],
        origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(0)),
    )
    assert some.partition.writer.append(mine).verdict is AppendVerdict.APPENDED
    put(some, ("a", "newer"))
    roll(some)
    put(some, ("z", "1"), origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(1)))
    some.sync()
    assert clean(some)
    cleaned_to = some.partition.log.cleaning.holes_below
    assert (1, "a", "newer") in left(some)
    mirror = fixture(COMPACT, leads=False)
    mirror.partition.become_mirror()
    mirror.partition.writer.cleaned_at_primary = cleaned_to
    data = all_bytes(some.partition)
    below = next(at for at, header in iter_headers(data) if header.base_offset >= cleaned_to)
    mirror.partition.writer.append_mirrored(data[:below])
    mirror.sync()
    mirror.partition.become_leader(LeaderEpoch(LEADER_EPOCH + 1))
    again = mirror.partition.writer.append(mine)
    assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, 0)


def test_a_replay_from_an_older_snapshot_opens_no_transaction_that_was_cleaned_away() -> None:
    """A snapshot of a time when it was open, a producer that has expired since, and newer snapshots that are lost."""
    some = fixture(COMPACT)
    put(some, ("x", "v" * 3800))
    put(
        some,
        ("a", "aborted"),
        origin=Origin(ProducerId(1), ProducerEpoch(0), SequenceNumber(0), transactional=True),
    )
    opened = put(some, ("x", "v" * 3800))  # seals the first segment while the transaction is open
    some.sync()
    end_txn(some, 1, ControlType.ABORT)
    for _ in range(2):  # idle since the first look, for longer than two days at the second
        some.maintain(lambda _: None)
        some.clock.now_ms += 200_000_000
    assert some.partition.state.producer(ProducerId(1)) is None
    for _ in range(4):
        roll(some)
        assert clean(some)
        some.clock.now_ms += 1_001
    assert all(not header.is_control for _, header in iter_headers(all_bytes(some.partition)))
    some.sync()
    for name in some.disk.list_dir(some.folder):
        if name.endswith(".snapshot") and int(name[:20]) > opened:
            some.disk.damage(some.folder / name, 20)
    some.kill_and_reopen()
    assert some.partition.state.last_stable_offset(some.partition.high_watermark) == (
        some.partition.high_watermark
    )


def test_what_is_left_of_an_emptied_batch_has_the_header_that_Kafka_writes() -> None:
    """Source: Kafka DefaultRecordBatch.writeEmptyHeader: the base timestamp is RecordBatch.NO_TIMESTAMP."""
    origin = Origin(ProducerId(7), ProducerEpoch(1), SequenceNumber(3))
    ((_, header),) = iter_headers(build_batch([Record(b"k", b"v", timestamp_ms=5)], origin=origin))
    assert struct.unpack_from(">qqqhii", emptied(header), 27) == (-1, 5, 7, 1, 3, 0)
