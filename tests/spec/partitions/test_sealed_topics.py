"""Topics whose records are sealed (`tidemark.encryption`): what is written, what readers get, and who needs no key.

Sources: docs/adr/0061-sealed-topics.md; KIP-98 (sequences, transactions, control batches), KIP-32 (append time).
"""

import asyncio
import re
import struct
from functools import partial
from pathlib import Path
from typing import Any

import google_crc32c
import pytest

from idempotency.identity import (
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.record_batch import ControlType, crc_ok, iter_headers, read_header
from region_broker.limits import OPENED_INLINE_BYTES_MAX
from region_broker.log.cleaning.batch_filter import open_body
from region_broker.log.failures import CorruptRange, SealedRange, SealedRecords, UnsupportedConfig
from region_broker.partitions import opening_sealed, record_rules
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.parts.sight import Isolation
from region_broker.partitions.record_rules import RECOMPRESSED_INLINE_BYTES_MAX
from region_broker.records.batches import Origin, Record, RecordsError, build_batch, iter_records
from region_broker.records.compression import Codec
from region_broker.security.sealing.sealed_batch import LogPlace, sealed
from region_broker.security.sealing.sealing import without_keys
from tests.fixtures.node_logs import (
    DATA_DIR,
    Fixture,
    Topic,
    all_bytes,
    append_marker,
    batch,
    fixture,
)
from tests.fixtures.sealing_keys import FIRST, SECOND, keys_in_memory
from tests.fixtures.secret_scan import noted
from tests.unit.region_broker.log.test_cleaning import clean

MARKER = noted("only-who-may-read-it-6f1d").encode()
NOW_MS = 1_000_000  # where the fixture's clock stands
SEALED = {"tidemark.encryption": "secret"}
RECORDS = [Record(b"key-" + MARKER, MARKER * 3, (("h", MARKER),), NOW_MS + n) for n in range(5)]


def node(configs: dict[str, str] | None = None, **settings: Any) -> Fixture:
    settings.setdefault("sealing", keys_in_memory())
    return fixture(SEALED if configs is None else configs, **settings)


def read(some: Fixture, offset: int = 0, max_bytes: int = 1 << 20, **how: Any) -> bytes:
    some.sync()
    how.setdefault("isolation", Isolation.READ_UNCOMMITTED)
    return bytes(some.partition.reader.fetch(offset, max_bytes, **how).data)


def disk_has(some: Fixture, what: bytes) -> list[Path]:
    """Return which files of the node hold these bytes."""
    return [path for path in some.disk.files_under(DATA_DIR) if what in some.disk.read_file(path)]


@pytest.mark.parametrize("codec", list(Codec))
def test_INV_FIT4_what_is_written_is_sealed_and_readers_get_what_was_sent(codec: Codec) -> None:
    some = node()
    some.partition.writer.append(batch(3))
    sent = build_batch(
        RECORDS, origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)), codec=codec
    )
    outcome = some.partition.writer.append(sent)
    assert (outcome.verdict, outcome.base_offset) == (AppendVerdict.APPENDED, 3)
    found = read(some, 3)
    assert found[16:] == sent[16:]
    assert read_header(found).base_offset == 3
    stored = some.partition.reader.read_raw(3, 1 << 20)
    header = read_header(stored)
    assert header.is_sealed
    assert crc_ok(stored, 0, header)
    assert google_crc32c.value(bytes(stored[21:])) == header.crc
    again = some.partition.writer.append(sent)
    assert (again.verdict, again.base_offset) == (AppendVerdict.DUPLICATE, 3)


def test_INV_FIT4_nothing_plain_is_on_the_disk_and_it_is_found_in_a_plain_topic() -> None:
    for configs, hides in ((SEALED, True), ({}, False)):
        some = node({**configs, "segment.bytes": "8192", "compression.type": "uncompressed"})
        for number in range(30):
            origin = Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(number * 5))
            some.partition.writer.append(build_batch(RECORDS, origin=origin, codec=Codec.LZ4))
            some.sync()
        in_journal = [path for path in disk_has(some, MARKER) if path.name == "journal"]
        assert bool(in_journal) is not hides
        some.kill_and_reopen()
        some.catch_up()
        some.close_and_reopen()
        assert some.partition.log_end_offset == 150
        assert not disk_has(some, MARKER) if hides else disk_has(some, MARKER)
        assert len(list(iter_records(read(some, 145)))) == 5


def test_INV_SEA3_a_topic_whose_key_is_not_here_takes_nothing() -> None:
    some = node(sealing=without_keys())
    outcome = some.partition.writer.append(batch())
    assert outcome.verdict is AppendVerdict.KEY_NOT_HERE
    assert "secret" in outcome.detail
    assert some.partition.log_end_offset == 0
    assert "secret" in (some.table.config_problem(SEALED) or "")
    assert node().table.config_problem(SEALED) is None


def test_INV_OPS1_whoever_copies_needs_no_key_and_whoever_reads_hears_so(
    caplog: pytest.LogCaptureFixture,
) -> None:
    primary = node()
    for number in range(3):
        primary.partition.writer.append(build_batch(RECORDS, codec=Codec(number)))
    primary.sync()
    mirror = node(leads=False, sealing=without_keys())
    assert mirror.partition.writer.append_mirrored(all_bytes(primary.partition)) == 15
    mirror.sync()
    assert all_bytes(mirror.partition) == all_bytes(primary.partition)
    mirror.partition.show_up_to(15, 15)
    for _ in range(2):
        with pytest.raises(SealedRecords, match="secret"):
            read(mirror)
    assert len([each for each in caplog.records if "secret" in each.getMessage()]) == 1
    mirror.kill_and_reopen()
    assert all_bytes(mirror.partition) == all_bytes(primary.partition)
    with_key = node(leads=False, sealing=keys_in_memory())
    with_key.partition.writer.append_mirrored(all_bytes(primary.partition))
    with_key.sync()
    with_key.partition.show_up_to(15, 15)
    assert read(with_key) == read(primary)


def test_INV_OPS1_what_was_changed_on_the_disk_is_damage() -> None:
    some = node()
    some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    some.sync_files()
    (path,) = [each for each in some.disk.files_under(some.folder) if each.suffix == ".log"]
    stored = bytearray(some.disk.read_file(path))
    stored[-20] ^= 1
    struct.pack_into(">I", stored, 17, google_crc32c.value(bytes(stored[21:])))
    file = some.disk.open(path)
    file.pwrite(0, bytes(stored))
    file.close()
    with pytest.raises(CorruptRange):
        read(some)
    assert (
        some.partition.reader.read_raw(0, 1) == stored
    )  # a mirror would copy it: its CRC is right


def test_sealed_and_plain_batches_in_one_log_after_changes_of_the_config() -> None:
    some = node({})
    sent = [build_batch([Record(None, b"%d" % n, timestamp_ms=NOW_MS)]) for n in range(3)]
    for number, configs in enumerate(({}, SEALED, {})):
        some.topic = Topic(configs=configs)
        some.table.update_config(some.topic)
        some.partition.writer.append(sent[number])
    some.sync()
    stored = some.partition.reader.read_raw(0, 1 << 20)
    assert [header.is_sealed for _, header in iter_headers(stored)] == [False, True, False]
    some.close_and_reopen()
    assert [record.value for _, record in records_of(read(some))] == [b"0", b"1", b"2"]
    for _, header in iter_headers(read(some)):
        assert not header.is_sealed


def records_of(data: bytes) -> list[tuple[int, Record]]:
    return [
        (record.offset, record)
        for at, header in iter_headers(data)
        for record in iter_records(data[at : at + header.size_bytes])
    ]


def test_a_new_version_of_the_key_seals_what_comes_and_reads_what_was() -> None:
    some = node()
    some.partition.writer.append(build_batch(RECORDS))
    some.sealing.keys.use(keys_in_memory(FIRST, SECOND).keys.named)
    some.partition.writer.append(build_batch(RECORDS))
    assert len(records_of(read(some))) == 10
    some.sealing.keys.use(keys_in_memory(SECOND).keys.named)
    with pytest.raises(SealedRecords, match=FIRST.version.hex()):
        read(some)
    assert len(records_of(read(some, 5))) == 5


def test_append_time_is_bound_by_the_seal_and_told() -> None:
    some = node({**SEALED, "message.timestamp.type": "LogAppendTime"})
    outcome = some.partition.writer.append(build_batch(RECORDS))
    assert outcome.log_append_time_ms == NOW_MS
    header = read_header(read(some))
    assert (header.max_timestamp_ms, header.attributes) == (NOW_MS, 0x08)
    ahead = some.partition.writer.prepared(build_batch(RECORDS))
    some.clock.pass_ms(50)
    later = some.partition.writer.append(build_batch(RECORDS), ahead=ahead)
    assert later.log_append_time_ms == NOW_MS + 50
    assert {record.timestamp_ms for _, record in records_of(read(some, 5))} == {NOW_MS + 50}


def test_the_codec_of_the_topic_is_inside_the_seal() -> None:
    some = node({**SEALED, "compression.type": "zstd"})
    some.partition.writer.append(build_batch(RECORDS, codec=Codec.GZIP))
    found = read(some)
    assert read_header(found).codec == Codec.ZSTD
    assert [record.value for record in iter_records(found)] == [MARKER * 3] * 5
    assert len(found) > len(RECORDS)


def test_transactions_are_judged_by_headers_and_markers_are_plain() -> None:
    some = node()
    origin = Origin(ProducerId(9), ProducerEpoch(1), SequenceNumber(0), transactional=True)
    assert some.partition.writer.append(build_batch(RECORDS, origin=origin)).base_offset == 0
    assert read(some, isolation=Isolation.READ_COMMITTED) == b""
    append_marker(
        some.partition, producer_id=9, producer_epoch=1, control_type=ControlType.ABORT,
        coordinator_epoch=1, decision=None, timestamp_ms=NOW_MS,
    )  # fmt: skip
    some.sync()
    found = some.partition.reader.fetch(0, 1 << 20, Isolation.READ_COMMITTED)
    assert [(each.producer_id, each.first_offset) for each in found.aborted] == [(9, 0)]
    stored = some.partition.reader.read_raw(0, 1 << 20)
    assert [(h.is_sealed, h.is_control) for _, h in iter_headers(stored)] == [
        (True, False), (False, True),
    ]  # fmt: skip


def test_no_client_says_that_a_batch_is_sealed() -> None:
    for configs in ({}, SEALED):
        some = node(configs)
        forged = bytearray(build_batch(RECORDS))
        struct.pack_into(">h", forged, 21, 0x4000)
        struct.pack_into(">I", forged, 17, google_crc32c.value(bytes(forged[21:])))
        outcome = some.partition.writer.append(bytes(forged))
        assert outcome.verdict is AppendVerdict.INVALID_RECORD
        assert "0x4000" in outcome.detail


def test_a_sealed_batch_must_fit_a_segment() -> None:
    some = node({**SEALED, "segment.bytes": "4096"})
    most = len(build_batch([Record(None, b"")]))
    too_large = build_batch([Record(None, b"v" * (4096 - most - 20), timestamp_ms=NOW_MS)])
    assert len(too_large) < 4096
    assert some.partition.writer.append(too_large).verdict is AppendVerdict.LARGER_THAN_SEGMENT
    plain = node({"segment.bytes": "4096"})
    assert plain.partition.writer.append(too_large).verdict is AppendVerdict.APPENDED


def test_compaction_and_a_seal_are_refused_together() -> None:
    for policy in ("compact", "compact,delete"):
        configs = {**SEALED, "cleanup.policy": policy}
        with pytest.raises(UnsupportedConfig, match="ROADMAP"):
            node(configs)
        assert "cleanup.policy" in (node().table.config_problem(configs) or "")


def test_INV_CLW5_sealed_batches_of_a_log_that_is_compacted_later_stay_as_they_are() -> None:
    some = node({**SEALED, "segment.bytes": "4096"})
    for _ in range(12):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    before = some.partition.reader.read_raw(0, 1 << 20)
    some.topic = Topic(configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0",
                                "segment.bytes": "4096"})  # fmt: skip
    some.table.update_config(some.topic)
    clean(some)
    header = read_header(before)
    with pytest.raises(RecordsError, match="sealed"):  # not by chance
        open_body(bytes(before[: header.size_bytes]), header)
    assert some.partition.reader.read_raw(0, 1 << 20) == before


def test_lookups_by_time_open_what_they_look_into() -> None:
    some = node()
    for start in (0, 10):
        some.partition.writer.append(
            build_batch([Record(None, b"v", timestamp_ms=NOW_MS + start + n) for n in range(5)])
        )
    some.sync()
    lookup = some.partition.reader.lookup(Isolation.READ_UNCOMMITTED)
    assert asyncio.run(lookup.first(NOW_MS + 12))[:2] == (7, NOW_MS + 12)  # type: ignore[index]
    assert asyncio.run(lookup.latest())[:2] == (9, NOW_MS + 14)  # type: ignore[index]
    some.sealing.keys.use({})
    found = asyncio.run(lookup.first(NOW_MS + 12))
    assert found is not None
    assert found[0] == 5  # the batch's first record stands for it


# --- what is large ---------------------------------------------------------------------------------


def test_INV_OPS2_what_is_large_is_opened_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = node()
    for _ in range(4):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    fetch = partial(some.partition.reader.fetch, 0, 1 << 20, Isolation.READ_UNCOMMITTED)
    with pytest.raises(SealedRange) as cold:
        fetch(wait=False)
    cold.value.work()
    some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    found = fetch(wait=False)  # it finds more than was opened, and gives what was
    assert found.next_offset == 20
    assert [offset for offset, _ in records_of(bytes(found.data))] == list(range(20))
    with pytest.raises(SealedRange):
        fetch(wait=False)  # given out once
    whole = asyncio.run(some.table.cold_reads.read(partial(fetch)))
    assert whole.next_offset == 25
    some.sealing.keys.use({})
    with pytest.raises(SealedRecords):
        asyncio.run(some.table.cold_reads.read(partial(fetch)))


def test_INV_OPS3_what_nobody_takes_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    aside = opening_sealed.OpenedAside(bytes_max=250)
    place = LogPlace.of(Topic().topic_id, 0)
    for offset in range(3):
        aside.put((place, offset), b"x" * 100, bytearray(b"y"))
    assert aside.take((place, 0)) is None
    assert aside.take((place, 2)) == (b"x" * 100, bytearray(b"y"))
    assert aside.take((place, 2)) is None
    assert aside._held_bytes == 100


@pytest.mark.parametrize("rotated", [True, False])
def test_INV_FIT4_a_batch_that_waited_while_its_key_was_destroyed_is_not_acknowledged_unreadable(
    rotated: bool,
) -> None:
    some = node()
    sent = build_batch(RECORDS)
    ahead = some.partition.writer.prepared(sent)
    some.sealing.keys.use(keys_in_memory(SECOND).keys.named if rotated else {})
    outcome = some.partition.writer.append(sent, ahead=ahead)
    if not rotated:
        assert outcome.verdict is AppendVerdict.KEY_NOT_HERE
        return
    assert outcome.verdict is AppendVerdict.APPENDED
    assert read(some)[16:] == sent[16:]


def test_INV_OPS4_a_fetch_of_many_partitions_does_not_hold_the_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    some = node()
    for _ in range(3):
        some.partition.writer.append(build_batch(RECORDS))
    size_bytes = len(read(some, as_stored=True))
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 2 * size_bytes)
    fetch = partial(some.partition.reader.fetch, 0, 1 << 20, Isolation.READ_UNCOMMITTED, wait=False)
    assert fetch().next_offset == fetch().next_offset == 15
    with pytest.raises(SealedRange):
        fetch()
    some.table.opened_aside.begin_step()
    assert fetch().next_offset == fetch().next_offset == 15
    with pytest.raises(SealedRange) as cold:
        fetch()
    cold.value.work()
    assert fetch().next_offset == 15


def test_INV_OPS4_a_step_of_the_loop_opens_the_smallest_batches_in_time() -> None:
    """The slowest that there is: one record of nothing in each batch, some 7 us each on the machine that was measured."""
    some = node()
    some.partition.writer.append(build_batch([Record(None, b"", timestamp_ms=NOW_MS)]))
    assert OPENED_INLINE_BYTES_MAX // len(read(some, as_stored=True)) * 7 < 10_000


def test_INV_OPS3_readers_of_the_same_are_served_by_one_opening(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = node()
    for _ in range(4):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    opened: list[bytearray] = []
    open_them = some.sealing.opened

    def counted(data: bytes, place: LogPlace) -> bytearray:
        opened.append(open_them(data, place))
        return opened[-1]

    monkeypatch.setattr(some.sealing, "opened", counted)
    fetch = partial(some.partition.reader.fetch, 0, 1 << 20, Isolation.READ_UNCOMMITTED, wait=False)
    waiting = []
    for _ in range(5):
        with pytest.raises(SealedRange) as cold:
            fetch()
        waiting.append(cold.value)
    for each in waiting:
        each.work()
    assert [fetch().next_offset for _ in waiting] == [20] * 5
    assert len(opened) == 1
    assert some.table.opened_aside.is_empty
    with pytest.raises(SealedRange):
        fetch()


def test_INV_OPS3_who_wants_less_takes_nothing_from_who_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = node()
    for _ in range(4):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()

    def fetch(bytes_max: int) -> int:
        found = some.partition.reader.fetch(0, bytes_max, Isolation.READ_UNCOMMITTED, wait=False)
        return found.next_offset

    with pytest.raises(SealedRange) as cold:
        fetch(1 << 20)
    cold.value.work()
    assert fetch(1) == 5
    assert fetch(1 << 20) == 20
    assert some.table.opened_aside.is_empty


def test_INV_OPS3_what_was_opened_aside_goes_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version that is destroyed while a reader waits for a thread: the reader gets nothing any more (INV-DKY3)."""
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = node()
    for _ in range(4):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    fetch = partial(some.partition.reader.fetch, 0, 1 << 20, Isolation.READ_UNCOMMITTED)
    with pytest.raises(SealedRange) as cold:
        fetch(wait=False)
    cold.value.work()
    some.sealing.keys.use({})
    with pytest.raises(SealedRange) as again:
        fetch(wait=False)
    assert some.table.opened_aside.is_empty
    again.value.work()
    with pytest.raises(SealedRecords):
        fetch(wait=False)


def test_INV_OPS3_what_is_being_opened_while_its_key_goes_is_kept_nowhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(opening_sealed, "OPENED_INLINE_BYTES_MAX", 1_000)
    some = node()
    for _ in range(4):
        some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    fetch = partial(some.partition.reader.fetch, 0, 1 << 20, Isolation.READ_UNCOMMITTED)
    with pytest.raises(SealedRange) as cold:
        fetch(wait=False)
    open_them = some.sealing.opened

    def meanwhile(data: bytes, place: LogPlace) -> bytearray:
        found = open_them(data, place)
        some.sealing.keys.use({})
        return found

    monkeypatch.setattr(some.sealing, "opened", meanwhile)
    cold.value.work()
    assert some.table.opened_aside.is_empty


def test_INV_OPS1_what_stands_elsewhere_now_is_not_given_for_what_was_opened_there() -> None:
    """A log that is cut while a thread opens its end, and written anew, has other batches at the same offsets."""
    sealing, aside = keys_in_memory(), opening_sealed.OpenedAside()
    place = LogPlace.of(Topic().topic_id, 0)
    opening = opening_sealed.OpeningSealed(TopicPartition(TopicName("t"), 0), place, sealing, aside)

    def stored(value: bytes) -> tuple[bytes, bytes]:
        plain = build_batch([Record(None, value, timestamp_ms=NOW_MS)], codec=Codec.NONE)
        return plain, bytes(
            sealed(plain, read_header(plain), place, sealing.keys.sealing_key("secret"))
        )

    (_, before), (plain, now) = stored(b"before " * 20_000), stored(b"and now" * 20_000)
    assert len(before) == len(now) > OPENED_INLINE_BYTES_MAX
    with pytest.raises(SealedRange) as cold:
        opening.opened(before, 1, wait=False)
    cold.value.work()
    with pytest.raises(SealedRange) as cold:
        opening.opened(now, 1, wait=False)
    cold.value.work()
    opened, next_offset = opening.opened(now, 1, wait=False)
    assert (bytes(opened), next_offset) == (plain, 1)


def test_a_large_batch_is_sealed_ahead_and_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record_rules, "SEALED_INLINE_BYTES_MAX", 100)
    some = node()
    sent = build_batch(RECORDS)
    assert some.partition.writer.work_bytes(sent) > RECOMPRESSED_INLINE_BYTES_MAX
    assert node({}).partition.writer.work_bytes(sent) == 0
    ahead = some.partition.writer.prepared(sent)
    assert some.partition.writer.append(sent, ahead=ahead).verdict is AppendVerdict.APPENDED
    assert read(some)[16:] == sent[16:]
    # Prepared under other rules than those in force: sealed anew.
    some.topic = Topic(configs={**SEALED, "compression.type": "lz4"})
    some.table.update_config(some.topic)
    some.partition.writer.append(sent, ahead=ahead)
    assert read_header(read(some, 5)).codec == Codec.LZ4
    some.topic = Topic(configs={})
    some.table.update_config(some.topic)
    some.partition.writer.append(sent, ahead=ahead)
    some.sync()
    assert not read_header(some.partition.reader.read_raw(10, 1)).is_sealed


def test_texts_and_logs_hold_nothing_of_the_records(caplog: pytest.LogCaptureFixture) -> None:
    some = node()
    some.partition.writer.append(build_batch(RECORDS))
    some.sync()
    some.sealing.keys.use(keys_in_memory(SECOND).keys.named)
    with pytest.raises(SealedRecords) as told:
        read(some)
    assert not re.search("only-who", caplog.text + str(told.value))
