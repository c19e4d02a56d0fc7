"""What a look at a sealed segment finds: one flipped bit in each kind of place, bad sectors, missing files."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import LeaderEpoch
from idempotency.record_batch import crc_ok, iter_headers
from region_broker.log.indexes.sparse_index import SparseIndex, decode_index
from region_broker.log.scrubbing.damage import DamagedRange, EpochsAt, Joining, WrongPiece
from region_broker.log.scrubbing.order import RETRY_MS_MAX, LookOrder, Retry, SegmentKey
from region_broker.ports.disk import DiskFile
from region_broker.records.batches import Record, build_batch
from tests.fixtures.node_logs import LEADER_EPOCH, TOPIC_ID, Fixture
from tests.fixtures.scrubbing import examined, filled, places, sealed
from tests.simulation.disk import SimulatedDisk

# Kafka's layout of a batch (DefaultRecordBatch.java): what lies at which byte.
FIELDS = {
    "base offset": 7, "length": 11, "high bits of the length": 8, "leader epoch": 15, "magic": 16,
    "crc": 18, "attributes": 22, "last offset delta": 26, "record count": 60, "payload": 200,
}  # fmt: skip


def flip(some: Fixture, path: Path, at: int) -> None:
    some.disk.damage(path, at)


def test_nothing_is_found_in_what_is_as_it_was_written() -> None:
    some = filled()
    for path in sealed(some):
        assert examined(some, path).is_sound


# Holds INV-SCB2, INV-SCB3.
@pytest.mark.parametrize("which", [0, 4, -1])
@pytest.mark.parametrize("field", FIELDS)
def test_one_bit_anywhere_in_a_batch_is_found_and_nothing_beside_it(field: str, which: int) -> None:
    some = filled()
    path = sealed(some)[1]
    all_places = places(some, path)
    position, offset = all_places[which]
    flip(some, path, position + FIELDS[field])
    [damage] = examined(some, path).damages
    segment = some.partition.log.segments.segments[1]
    ends = [*all_places, (segment.size_bytes, segment.next_offset)]
    end, next_offset = ends[ends.index((position, offset)) + 1]
    assert (damage.from_offset, damage.to_offset) == (offset, next_offset)
    assert (damage.position, damage.end_position) == (position, end)


def test_several_damaged_ranges_of_one_segment_are_told_apart() -> None:
    some = filled()
    path = sealed(some)[0]
    known = places(some, path)
    for which in (1, 2, 5):
        flip(some, path, known[which][0] + FIELDS["payload"])
    found = [(each.from_offset, each.to_offset) for each in examined(some, path).damages]
    assert found == [(1, 3), (5, 6)]


def test_a_batch_that_a_producer_wrote_into_its_record_is_not_where_the_log_goes_on() -> None:
    """Without the offset index nothing is guessed from the bytes: the range goes on to the end of the segment."""
    some = filled()
    path = sealed(some)[0]
    position, _ = places(some, path)[3]
    flip(some, path, position + FIELDS["length"])
    some.disk.damage(path.with_suffix(".index"), 30)
    found = examined(some, path)
    segment = some.partition.log.segments.segments[0]
    [damage] = found.damages
    assert (damage.from_offset, damage.to_offset) == (3, segment.next_offset)
    assert ".index" in found.side_faults


def test_a_damaged_length_that_points_at_such_a_batch_does_not_go_on_there() -> None:
    some = filled()
    inner = bytearray(build_batch([Record(None, b"inner", timestamp_ms=1)]))
    inner[12:16] = LEADER_EPOCH.to_bytes(4, "big")
    base_offset = some.partition.log_end_offset
    for _ in range(2):
        outer = Record(b"k", b"_" * 50 + bytes(inner) + b"_" * 3000, timestamp_ms=1)
        some.partition.writer.append(build_batch([outer]))
    some.sync()
    [path] = [each for each in sealed(some) if int(each.stem) == base_offset]
    content = some.disk.content(path)
    content[8:12] = (content.find(inner) - 12).to_bytes(4, "big")
    [damage] = examined(some, path).damages
    assert (damage.from_offset, damage.to_offset) == (base_offset, base_offset + 1)


def test_a_file_that_ends_early_lacks_what_was_behind_it() -> None:
    some = filled()
    path = sealed(some)[0]
    known = places(some, path)
    file = some.disk.open(path)
    file.truncate(known[7][0] + 100)
    [damage] = examined(some, path).damages
    segment = some.partition.log.segments.segments[0]
    assert (damage.from_offset, damage.to_offset) == (7, segment.next_offset)
    assert damage.end_position == segment.size_bytes


def test_a_segment_that_is_gone_lacks_all() -> None:
    some = filled()
    path = sealed(some)[0]
    some.disk.remove(path)
    [damage] = examined(some, path).damages
    segment = some.partition.log.segments.segments[0]
    assert (damage.from_offset, damage.to_offset) == (0, segment.next_offset)


@pytest.mark.parametrize("suffix", [".index", ".txnindex"])
def test_a_file_beside_a_segment_is_found_damaged_or_missing(suffix: str) -> None:
    some = filled()
    path = sealed(some)[0]
    beside = path.with_suffix(suffix)
    some.disk.damage(beside, 2)
    found = examined(some, path)
    assert (found.damages, list(found.side_faults)) == ([], [suffix])
    some.disk.remove(beside)
    assert list(examined(some, path).side_faults) == [suffix]


def test_an_index_of_another_segment_is_found_though_its_checksum_is_right() -> None:
    some = filled()
    first, second = sealed(some)[:2]
    other = some.disk.read_file(second.with_suffix(".index"))
    some.disk.write_file_atomic(first.with_suffix(".index"), other)
    found = examined(some, first)
    assert (found.damages, list(found.side_faults)) == ([], [".index"])


@pytest.mark.parametrize("wrong", ["position", "offset", "time"])
def test_an_index_whose_entry_is_no_batch_of_the_segment_is_found(wrong: str) -> None:
    some = filled()
    path = sealed(some)[0]
    _, summary = decode_index(some.disk.read_file(path.with_suffix(".index")), 256)
    index = SparseIndex(256)
    highest_ms = -1
    for at, (position, offset) in enumerate(places(some, path)):
        off = at == 3
        index.note_batch(
            offset + (off and wrong == "offset"),
            position + (off and wrong == "position"),
            highest_ms + (off and wrong == "time"),
        )
        highest_ms = 999_000 + offset
    some.disk.write_file_atomic(path.with_suffix(".index"), index.encode(summary))
    found = examined(some, path)
    assert (found.damages, list(found.side_faults)) == ([], [".index"])


class BadSector(SimulatedDisk):
    """A disk, one range of which cannot be read."""

    def __init__(self, disk: SimulatedDisk, path: Path, start: int, end: int) -> None:
        self._disk, self._path, self._start, self._end = disk, path, start, end

    def __getattribute__(self, name: str) -> Any:
        mine = ("open", "_disk", "_path", "_start", "_end", "bad")
        return object.__getattribute__(self, name) if name in mine else getattr(self._disk, name)

    def open(self, path: Path, *, create: bool = False) -> Any:
        file = self._disk.open(path, create=create)
        return _BadFile(file, self._start, self._end) if path == self._path else file


class _BadFile:
    def __init__(self, file: DiskFile, start: int, end: int) -> None:
        self._file, self._start, self._end = file, start, end

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def pread_cached(self, _size_bytes: int, _position: int) -> bytearray:
        return bytearray()

    def pread(self, size_bytes: int, position: int) -> bytes:
        if position < self._end and position + size_bytes > self._start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return self._file.pread(size_bytes, position)


# Holds INV-SCB2.
def test_EIO_a_sector_that_the_disk_cannot_read_is_damage_of_the_disk() -> None:
    some = filled()
    path = sealed(some)[0]
    known = places(some, path)
    sector = known[6][0] + 20
    disk = BadSector(some.disk, path, sector, sector + 1)
    [damage] = examined(some, path, disk=disk).damages
    assert (damage.from_offset, damage.to_offset) == (6, 7)
    assert "the disk cannot read it" in damage.reason
    assert "Input/output error" in damage.reason


def test_INV_SCB4_what_was_in_memory_stays_there_and_what_was_not_goes_again() -> None:
    some = filled()
    path = sealed(some)[0]
    assert examined(some, path).is_sound
    assert not some.disk.dropped
    some.disk.cold = lambda _path, _size: 0
    assert examined(some, path).is_sound
    segment = some.partition.log.segments.segments[0]
    assert some.disk.dropped == [(path, 0, segment.size_bytes)]


# -- what may take the place of a damaged range -------------------------------------------------


def pieces() -> tuple[bytes, DamagedRange, Joining]:
    some = filled()
    path = sealed(some)[0]
    known = places(some, path)
    data = some.disk.read_file(path)[known[2][0] : known[4][0]]
    damage = DamagedRange(2, 4, known[2][0], known[4][0], "played")
    return data, damage, Joining(damage, some.partition.log.epochs)


# Holds INV-DR1.
def test_what_fits_is_taken_in_pieces() -> None:
    data, damage, joining = pieces()
    half = len(data) // 2
    joining.take(data[:half])
    assert (joining.next_offset, joining.is_whole) == (3, False)
    joining.take(data[half:])
    assert joining.is_whole
    assert joining.position == damage.end_position


# Holds INV-DR1.
@pytest.mark.parametrize("field", [*FIELDS])
def test_a_piece_with_one_wrong_bit_is_not_taken(field: str) -> None:
    data, _, joining = pieces()
    spoiled = bytearray(data)
    spoiled[FIELDS[field]] ^= 0x10
    with pytest.raises(WrongPiece):
        joining.take(bytes(spoiled))
    assert joining.next_offset == 2


def test_a_piece_that_begins_elsewhere_ends_beyond_or_is_empty_is_not_taken() -> None:
    data, damage, joining = pieces()
    half = len(data) // 2
    with pytest.raises(WrongPiece):
        joining.take(data[half:])
    with pytest.raises(WrongPiece):
        joining.take(b"")
    with pytest.raises(WrongPiece):
        joining.take(data[: half + 9])
    shorter = DamagedRange(2, 3, damage.position, damage.position + half, "played")
    some = filled()
    with pytest.raises(WrongPiece):
        Joining(shorter, some.partition.log.epochs).take(data)
    # Whole batches of the right offsets, but not as many bytes as are missing.
    elsewhere = bytearray(data)
    elsewhere[7] ^= 1
    with pytest.raises(WrongPiece):
        joining.take(bytes(elsewhere))
    longer = DamagedRange(2, 4, damage.position, damage.end_position + 1, "played")
    with pytest.raises(WrongPiece):
        Joining(longer, some.partition.log.epochs).take(data)
    assert all(crc_ok(data, at, header) for at, header in iter_headers(data))


def test_epochs_are_those_of_the_index_in_any_order_of_questions() -> None:
    epochs = EpochsAt([(LEADER_EPOCH, 5), (LeaderEpoch(LEADER_EPOCH + 1), 9)])
    asked = {0: -1, 5: LEADER_EPOCH, 8: LEADER_EPOCH, 9: LEADER_EPOCH + 1, 99: LEADER_EPOCH + 1}
    for offset in (*asked, *reversed(asked)):
        assert epochs.at(offset) == asked[offset]
    assert EpochsAt([]).at(3) == -1


# -- the order ----------------------------------------------------------------------------------

A, B, C = (SegmentKey(TOPIC_ID, 0, base) for base in (0, 10, 20))


# Holds INV-SCB1.
def test_the_oldest_look_is_the_next_and_what_is_gone_is_forgotten() -> None:
    order = LookOrder()
    assert order.oldest_age_ms(5) == 0
    for key in (A, B):
        order.seen(key, 0)
    assert order.oldest_first() == [A, B]
    order.looked(A, 10)
    order.seen(A, 20)
    assert order.oldest_age_ms(30) == 30
    order.seen(C, 40)
    assert order.oldest_first() == [B, A, C]
    order.looked(B, 50)
    assert order.oldest_age_ms(60) == 50
    order.forget(A)
    assert order.oldest_first() == [C, B]


def test_what_was_not_mended_is_tried_less_and_less_often() -> None:
    retry = Retry(0)
    pauses = []
    for now_ms in range(8):
        retry.put_off(now_ms)
        pauses.append(retry.due_ms - now_ms)
    assert pauses[:3] == [60_000, 120_000, 240_000]
    assert pauses[-1] == RETRY_MS_MAX
