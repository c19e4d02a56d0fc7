"""The journal: one sync for many logs, and what is in it after each kind of end."""

import asyncio
import errno
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from region_broker.log.failures import LogDamaged
from region_broker.log.folder_format import FORMAT_NAME
from region_broker.log.journal.blocks import (
    ALIGN_BYTES,
    Entry,
    Head,
    Piece,
    encode_block,
    has_look_alikes,
    read_blocks,
)
from region_broker.log.journal.replay import JOURNAL_NAME
from region_broker.log.journal.writer import BLOCK_BYTES_MAX, PIECE_BYTES_MAX
from region_broker.partitions.partition import Partition
from region_broker.ports.system.disk import RealDisk
from region_broker.records.batches import Record, build_batch
from tests.fixtures.node_logs import DATA_DIR, Fixture, all_bytes, batch, fixture

JOURNAL = DATA_DIR / JOURNAL_NAME
TOPIC = bytes(range(16))


class KeepsNothing(random.Random):
    """The power loss that loses every byte and every name that was not synced."""

    def random(self) -> float:
        return 1.0

    def choice(self, _seq: object) -> float:  # type: ignore[override]
        return 0.0


def lose_everything(some: Fixture) -> None:
    some.disk.power_loss(KeepsNothing())
    some.open()


def syncs_during(some: Fixture, act: Callable[[], object]) -> list[str]:
    synced: list[str] = []

    def note(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            synced.append(path.name)

    some.disk.fault = note
    act()
    some.disk.fault = None
    return synced


def failing(some: Fixture, name: str, *, operation: str = "fdatasync") -> None:
    def fail(what: str, path: Path) -> None:
        if what == operation and name in (path.name, path.parent.name):
            raise OSError(errno.EIO, "broken")

    some.disk.fault = fail


def test_INV_JN1_one_sync_makes_the_small_appends_of_all_partitions_durable() -> None:
    some = fixture(partition_count=5)
    for partition in some.partitions:
        partition.writer.append(batch(2))
    assert syncs_during(some, some.sync) == [JOURNAL_NAME]
    assert [partition.high_watermark for partition in some.partitions] == [2] * 5
    before = [all_bytes(partition) for partition in some.partitions]
    lose_everything(some)
    assert [all_bytes(partition) for partition in some.partitions] == before


async def test_INV_CM7_what_is_appended_a_few_turns_later_is_in_the_same_block() -> None:
    some = fixture(partition_count=4)
    synced: list[str] = []

    def note(operation: str, path: Path) -> None:
        if operation == "fdatasync":
            synced.append(path.name)

    async def append_after(turns: int, partition: Partition) -> None:
        for _ in range(turns):
            await asyncio.sleep(0)
        await partition.wait_committed(partition.writer.append(batch()).next_offset)

    some.disk.fault = note
    running = asyncio.gather(some.group_commit.run())
    await asyncio.gather(*(append_after(*item) for item in enumerate(some.partitions)))
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert synced == [JOURNAL_NAME]


def test_what_was_not_synced_does_not_come_back_from_the_journal() -> None:
    some = fixture()
    some.partition.writer.append(batch(2))
    some.sync()
    some.partition.writer.append(batch(3))
    lose_everything(some)
    assert some.partition.log_end_offset == 2


# Holds INV-JR1.
def test_a_second_power_loss_right_after_the_replay_loses_nothing() -> None:
    some = fixture()
    for _ in range(3):
        some.partition.writer.append(batch())
        some.sync()
    before = all_bytes(some.partition)
    lose_everything(some)
    lose_everything(some)
    assert all_bytes(some.partition) == before


# Holds INV-JT1.
@pytest.mark.parametrize("size_bytes", [PIECE_BYTES_MAX + 1, PIECE_BYTES_MAX // 3])
def test_too_much_for_the_journal_is_synced_in_the_log_itself(size_bytes: int) -> None:
    some = fixture(journal_bytes=4 * BLOCK_BYTES_MAX)
    for _ in range(4):
        some.partition.writer.append(batch(size_bytes=size_bytes))
    assert JOURNAL_NAME not in syncs_during(some, some.sync)
    some.partition.writer.append(batch())
    assert syncs_during(some, some.sync) == [JOURNAL_NAME]
    before = all_bytes(some.partition)
    lose_everything(some)
    assert all_bytes(some.partition) == before


def test_INV_JN2_a_half_is_written_over_only_after_its_logs_caught_up() -> None:
    some = fixture(partition_count=2, journal_bytes=4 * ALIGN_BYTES)
    seen = []
    for number in range(7):
        some.partitions[number % 2].writer.append(batch())
        seen += syncs_during(some, some.sync)
        if number == 4:  # both halves are full, the logs' files lag: this one was synced by itself
            assert seen[:4] == [JOURNAL_NAME] * 4
            assert JOURNAL_NAME not in seen[4:]
            assert some.group_commit.journal_lags
            seen = []
            some.catch_up()
    assert JOURNAL_NAME in seen
    before = [all_bytes(partition) for partition in some.partitions]
    lose_everything(some)
    assert [all_bytes(partition) for partition in some.partitions] == before
    assert [partition.log_end_offset for partition in some.partitions] == [4, 3]


# Holds INV-JR1.
@pytest.mark.parametrize("how", ["cut", "start again"])
@pytest.mark.parametrize("in_files", [True, False])
def test_INV_K4_journaled_bytes_of_a_cut_log_never_come_back(how: str, in_files: bool) -> None:
    some = fixture()
    some.partition.writer.append(batch(size_bytes=30))
    for size_bytes in (40, 50, 60):
        some.partition.writer.append(batch(size_bytes=size_bytes))
        some.sync()
    if how == "cut":
        some.partition.truncate_to(1)
    else:
        some.partition.start_at(1)
    some.partition.writer.append(batch(size_bytes=77))
    if in_files:
        some.sync_files()
    else:
        some.sync()
    before = all_bytes(some.partition)
    some.kill_and_reopen()
    assert all_bytes(some.partition) == before
    lose_everything(some)
    assert all_bytes(some.partition) == before
    assert some.partition.log_end_offset == 2


def test_INV_JB3_blocks_of_an_earlier_life_never_come_back() -> None:
    some = fixture()
    for size_bytes in (40, 50, 60):
        some.partition.writer.append(batch(size_bytes=size_bytes))
        some.sync()
    some.kill_and_reopen()
    some.partition.truncate_to(0)
    some.partition.writer.append(batch(size_bytes=77))
    some.sync()
    before = all_bytes(some.partition)
    for _ in range(2):
        some.kill_and_reopen()
        assert all_bytes(some.partition) == before


def test_INV_JN3_a_failed_journal_stops_what_was_in_it_and_is_not_tried_again() -> None:
    some = fixture(partition_count=3)
    some.partitions[2].writer.append(batch())
    some.sync()
    for partition in some.partitions[:2]:
        partition.writer.append(batch())
    failing(some, JOURNAL_NAME)
    some.sync()
    assert sorted(some.table.failures()) == ["orders-0", "orders-1"]
    assert [partition.high_watermark for partition in some.partitions] == [0, 0, 1]
    some.disk.fault = None
    some.partitions[2].writer.append(batch())
    assert syncs_during(some, some.sync) == ["00000000000000000000.log"]
    assert some.partitions[2].high_watermark == 2
    lose_everything(some)
    assert some.table.failures() == {}
    assert some.partitions[2].log_end_offset == 2


def test_after_the_journal_failed_the_logs_in_it_are_brought_into_their_own_files() -> None:
    some = fixture(partition_count=2)
    some.partitions[1].writer.append(batch())
    some.sync()
    some.partitions[0].writer.append(batch())
    failing(some, JOURNAL_NAME)
    some.sync()
    some.disk.fault = None
    assert some.group_commit.journal_lags
    synced = syncs_during(some, some.catch_up)
    assert synced == ["00000000000000000000.log"]


def test_a_log_that_cannot_catch_up_stops_and_its_half_is_kept() -> None:
    some = fixture(partition_count=2, journal_bytes=2 * ALIGN_BYTES)
    some.partition.writer.append(batch())
    some.sync()
    before = all_bytes(some.partition)
    some.partitions[1].writer.append(batch())
    some.sync()
    failing(some, "0")
    some.catch_up()
    some.disk.fault = None
    assert list(some.table.failures()) == ["orders-0"]
    for _ in range(5):
        some.partitions[1].writer.append(batch())
        some.sync()
        some.catch_up()
    assert some.partitions[1].high_watermark == 6
    lose_everything(some)
    assert all_bytes(some.partition) == before


def test_INV_JR3_a_log_that_cannot_take_its_bytes_is_not_opened_and_loses_nothing() -> None:
    some = fixture(partition_count=2)
    for partition in some.partitions:
        partition.writer.append(batch())
    some.sync()
    before = [all_bytes(partition) for partition in some.partitions]
    some.disk.power_loss(KeepsNothing())
    failing(some, "0", operation="pwrite")
    some.open()
    some.disk.fault = None
    assert list(some.table.failures()) == ["orders-0"]
    assert all_bytes(some.partitions[1]) == before[1]
    some.partitions[1].truncate_to(0)
    some.partitions[1].writer.append(batch(size_bytes=99))
    assert JOURNAL_NAME not in syncs_during(some, some.sync)
    other = all_bytes(some.partitions[1])
    some.kill_and_reopen()
    assert some.table.failures() == {}
    assert [all_bytes(partition) for partition in some.partitions] == [before[0], other]


def test_a_deleted_topic_stays_deleted() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    some.drop_topic(some.topic.topic_id)
    some.kill_and_reopen()
    assert some.partition.log_end_offset == 0


def test_a_folder_of_format_1_is_taken_over() -> None:
    some = fixture()
    some.table.close()
    some.disk.process_killed()
    some.disk.remove(JOURNAL)
    some.disk.write_file_atomic(DATA_DIR / FORMAT_NAME, b"tidemark-log 1\n")
    some.open()
    assert some.disk.read_file(DATA_DIR / FORMAT_NAME) == b"tidemark-log 2\n"
    some.partition.writer.append(batch())
    assert syncs_during(some, some.sync) == [JOURNAL_NAME]


def test_a_damaged_head_is_said_and_nothing_is_changed() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    for position in (15, 2048 + 15):
        some.disk.damage(JOURNAL, position)
    some.disk.process_killed()
    with pytest.raises(LogDamaged, match="no sound head"):
        some.open()


def test_INV_JB4_a_head_that_is_lost_is_noticed() -> None:
    some = fixture()
    some.kill_and_reopen()
    some.partition.writer.append(batch())
    some.sync()
    newest = max((0, 2048), key=lambda at: some.disk.content(JOURNAL)[at + 12 : at + 20])
    some.disk.damage(JOURNAL, newest + 15)
    some.disk.process_killed()
    with pytest.raises(LogDamaged, match="newest head is lost"):
        some.open()


def test_INV_JB4_a_head_that_was_torn_changes_nothing() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    before = all_bytes(some.partition)
    some.disk.power_loss(KeepsNothing())
    failing(some, JOURNAL_NAME, operation="pwrite")
    with pytest.raises(OSError, match="broken"):
        some.open()
    some.disk.process_killed()
    some.open()
    assert all_bytes(some.partition) == before


def test_the_size_may_change_between_two_starts() -> None:
    some = fixture(journal_bytes=16 * ALIGN_BYTES)
    some.partition.writer.append(batch())
    some.sync()
    before = all_bytes(some.partition)
    some.disk.power_loss(KeepsNothing())
    some.config = fixture(journal_bytes=4 * ALIGN_BYTES).config
    some.open()
    assert all_bytes(some.partition) == before
    assert some.disk.file_size(JOURNAL) == 5 * ALIGN_BYTES


# -- blocks ---------------------------------------------------------------------------------------


class Blocks:
    """A journal file of two halves of three pages."""

    def __init__(self, folder: Path) -> None:
        self.head = Head(7, 3 * ALIGN_BYTES)
        self.file = RealDisk().open(folder / "journal", create=True)
        self.file.pwrite(0, self.head.file_content())

    def put(self, half: int, page: int, number: int, *, serial: int = 7) -> None:
        piece = Piece((TOPIC, 3), 0, number * 10, number + 1, 4, (b"da", b"ta"))
        at = self.head.starts[half] + page * ALIGN_BYTES
        self.file.pwrite(at, encode_block(serial, number, [piece, piece]))

    def tear(self, half: int, page: int) -> None:
        at = self.head.starts[half] + page * ALIGN_BYTES + 80
        self.file.pwrite(at, b"\xff")

    def numbers(self) -> list[int]:
        return [entry.block_number for entry in read_blocks(self.file, self.head)][::2]


@pytest.fixture
def blocks(tmp_path: Path) -> Blocks:
    return Blocks(tmp_path)


def test_an_entry_says_what_where_and_of_whom(blocks: Blocks) -> None:
    blocks.put(0, 0, 1)
    first, second = read_blocks(blocks.file, blocks.head)
    assert first == Entry((TOPIC, 3), 1, 0, 10, 2, 4, first.at)
    assert second.at == first.at + 4
    assert blocks.file.pread(8, first.at) == b"datadata"


def test_INV_JB3_blocks_come_in_the_order_of_their_numbers(blocks: Blocks) -> None:
    for page, number in enumerate((4, 5)):
        blocks.put(0, page, number)
    for page, number in enumerate((1, 2, 3)):
        blocks.put(1, page, number)
    assert blocks.numbers() == [1, 2, 3, 4, 5]


def test_INV_JB3_what_an_earlier_lap_or_life_left_is_not_read(blocks: Blocks) -> None:
    for page, number in enumerate((1, 2, 3)):
        blocks.put(0, page, number)
    for page, number in enumerate((4, 5, 6)):
        blocks.put(1, page, number, serial=7 if page == 0 else 6)
    blocks.put(0, 0, 5)
    assert blocks.numbers() == [4, 5]


def test_INV_JB2_a_torn_last_block_is_nothing(blocks: Blocks) -> None:
    for page, number in enumerate((1, 2)):
        blocks.put(0, page, number)
    blocks.tear(0, 1)
    assert blocks.numbers() == [1]


def test_a_torn_first_block_of_a_lap_hides_nothing_that_counts(blocks: Blocks) -> None:
    for page, number in enumerate((1, 2, 3)):
        blocks.put(0, page, number)
    for page, number in enumerate((4, 5, 6)):
        blocks.put(1, page, number)
    blocks.put(0, 0, 7)
    blocks.tear(0, 0)
    assert blocks.numbers() == [4, 5, 6]


@pytest.mark.parametrize("page", [0, 1])
def test_a_hole_in_front_of_a_later_block_is_damage(blocks: Blocks, page: int) -> None:
    for at, number in enumerate((1, 2, 3)):
        blocks.put(0, at, number)
    blocks.tear(0, page)
    with pytest.raises(LogDamaged, match="not all in front of it"):
        blocks.numbers()


@pytest.mark.parametrize("whole_block", [False, True])
def test_INV_JB5_a_client_cannot_write_what_a_start_takes_for_a_block(whole_block: bool) -> None:
    some = fixture(journal_bytes=128 * ALIGN_BYTES)
    serial = some.group_commit._journal.mark.serial  # type: ignore[union-attr]  # a client may guess it
    forged = encode_block(
        serial + 1, 9, [Piece((TOPIC, 3), 0, 0, 10, 4, [b"data"])]
    )  # as of a later life
    forged = forged.rstrip(b"\0") if whole_block else forged[:20]  # padding is not looked at
    forged += bytes(-len(forged) % 4)
    if len(forged) % 8 == 0:
        forged += bytes(4)  # so that copies begin at every fourth byte of a page
    for pad in range(4):  # one of four places fits the pages
        value = forged * (60_000 // len(forged))
        some.partition.writer.append(
            build_batch([Record(None, b"p" * pad + value, timestamp_ms=1)])
        )
        some.sync()
    acknowledged = all_bytes(some.partition)
    some.disk.process_killed()
    some.open()
    assert all_bytes(some.partition) == acknowledged


def test_INV_JB5_what_looks_like_a_block_is_synced_in_its_own_file(blocks: Blocks) -> None:
    plain = encode_block(7, 1, [Piece((TOPIC, 3), 0, 0, 10, 9000, [bytes(9000)])])
    assert not has_look_alikes(plain)
    at = plain.index(bytes(100), 200)
    page = -(-at // ALIGN_BYTES) * ALIGN_BYTES
    forged = plain[:page] + b"TMJB" + plain[page + 4 :]
    assert has_look_alikes(forged)


def test_a_page_of_an_older_journal_that_only_begins_like_a_block_is_no_damage(
    blocks: Blocks,
) -> None:
    blocks.put(0, 0, 1)
    later_life = b"TMJB" + bytes(8) + (1 << 60).to_bytes(8, "big")
    blocks.file.pwrite(blocks.head.starts[0] + ALIGN_BYTES, later_life)
    assert blocks.numbers() == [1]


def test_a_whole_block_of_a_later_life_says_that_the_newest_head_is_lost(blocks: Blocks) -> None:
    blocks.put(0, 0, 1)
    blocks.put(0, 1, 1, serial=blocks.head.serial + 1)
    with pytest.raises(LogDamaged, match="newest head is lost"):
        blocks.numbers()
