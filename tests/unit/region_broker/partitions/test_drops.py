"""Topics and partitions that are dropped, made again, or dropped in part only."""

import errno
import random
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.log.indexes.checkpoint_file import CHECKPOINT_NAME
from region_broker.partitions.partition import Partition
from tests.fixtures.node_logs import (
    DATA_DIR,
    LEADER_EPOCH,
    TOPIC_ID,
    Fixture,
    Topic,
    all_bytes,
    batch,
    fixture,
)
from tests.simulation.disk import Crashed

OTHER = UUID("11111111-1111-1111-1111-111111111111")
FOLDER = DATA_DIR / TOPIC_ID.hex


def write(some: Fixture, partition: Partition, *sizes_bytes: int) -> None:
    for size_bytes in sizes_bytes:
        partition.writer.append(batch(size_bytes=size_bytes))
        some.sync()


def die_at(some: Fixture, operation: str, folder: Path) -> None:
    """Kill the process as it begins that operation in a folder."""

    def die(name: str, path: Path) -> None:
        if name == operation and path.is_relative_to(folder):
            some.disk.crashed = True
            raise Crashed

    some.disk.fault = die


def fail_at(some: Fixture, operation: str) -> None:
    def fail(name: str, path: Path) -> None:
        if name == operation:
            raise OSError(errno.EIO, "the disk fails", str(path))

    some.disk.fault = fail


@pytest.mark.parametrize("whole_topic", [True, False])
@pytest.mark.parametrize("sizes_bytes", [(), (20,), (70_000,)])
def test_INV_K4_a_log_made_again_under_its_id_gets_nothing_that_the_journal_has_of_the_dropped_one(
    whole_topic: bool, sizes_bytes: tuple[int, ...]
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], *[20] * 6)
    some.partitions[1].truncate_to(0)
    write(some, some.partitions[1], *[30] * 4)
    if whole_topic:
        some.drop_topic(TOPIC_ID)
    else:
        some.drop_beyond(TOPIC_ID, 1)
    some.partitions = some.table.open_topic(some.topic)
    for partition in some.partitions:
        partition.become_leader(LEADER_EPOCH)
    write(some, some.partitions[1], *sizes_bytes)
    acknowledged = all_bytes(some.partitions[1])
    some.kill_and_reopen()
    assert some.partitions[1].failed is None
    assert all_bytes(some.partitions[1]) == acknowledged
    assert some.partitions[1].log_end_offset == len(sizes_bytes)


@pytest.mark.parametrize("whole_topic", [True, False])
def test_INV_T6_a_log_that_was_dropped_is_not_missed_when_its_id_is_made_again(
    whole_topic: bool,
) -> None:
    some = fixture(partition_count=2)
    if whole_topic:
        some.drop_topic(TOPIC_ID)
    else:
        some.drop_beyond(TOPIC_ID, 1)
    some.table.open_topic(some.topic)
    assert some.table.lost() == []
    some.disk.remove_tree(FOLDER / "1")
    some.kill_and_reopen()
    assert some.table.lost() == [str(some.partitions[1].tp)]


def remove_files(some: Fixture, folder: Path, *, named: str, kept: str) -> None:
    """Remove from a folder, of a node that is down, the files that are named so."""
    for name in some.disk.list_dir(folder):
        if named in name and not (kept and kept in name):
            some.disk.remove(folder / name)


@pytest.mark.parametrize("synced", [False, True], ids=["in the journal only", "in its segment"])
@pytest.mark.parametrize(
    ("named", "kept", "emptied"),
    [("", "", True), (CHECKPOINT_NAME, "", False), ("", CHECKPOINT_NAME, False)],
    ids=["emptied", "no checkpoint", "no segments"],
)
def test_INV_T6_a_log_is_lost_where_neither_checkpoint_nor_segment_is_there_whatever_the_journal_holds(
    *, named: str, kept: str, emptied: bool, synced: bool
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], 20, 20)
    if synced:
        some.sync_files()
    some.disk.process_killed()
    remove_files(some, FOLDER / "1", named=named, kept=kept)
    some.open()
    lost = [str(some.partitions[1].tp)] if emptied else []
    assert some.table.lost() == lost
    some.kill_and_reopen()
    assert some.table.lost() == lost, "nor is it forgotten, or missed later"


@pytest.mark.parametrize("operation", ["rename", "fsync_dir", "remove_tree"])
def test_INV_T5_a_drop_of_partitions_that_a_crash_interrupted_is_finished_and_can_be_done_again(
    operation: str,
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], 20)
    some.mark_beyond(TOPIC_ID, 1)
    die_at(some, operation, FOLDER)
    with pytest.raises(Crashed):
        some.drop_beyond(TOPIC_ID, 1)
    some.topic = replace(some.topic, partition_count=1)
    some.kill_and_reopen()
    assert len(some.partitions) == 1
    assert some.disk.list_dir(FOLDER) == ["0", "topic.json"]
    some.table.open_topic(replace(some.topic, partition_count=2))
    some.drop_beyond(TOPIC_ID, 1)
    assert some.disk.list_dir(FOLDER) == ["0", "topic.json"]


def test_INV_T5_a_shrink_that_the_registry_did_not_make_leaves_the_partitions() -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], 20)
    some.mark_beyond(TOPIC_ID, 1)
    some.kill_and_reopen()
    assert some.partitions[1].log_end_offset == 1
    some.topic = replace(some.topic, partition_count=1)
    some.kill_and_reopen()
    assert [partition.log_end_offset for partition in some.partitions] == [0, 1]  # as T15 has it


def test_INV_T5_only_what_was_marked_goes_with_a_topic_that_the_registry_has_no_more() -> None:
    some = fixture()
    other = Topic(topic_id=OTHER, name="other")
    some.table.open_topic(other)
    some.mark_topic(TOPIC_ID, "an order")
    some.disk.process_killed()
    some.topic = Topic(topic_id=UUID(int=1), name="third")
    some.open()
    some.table.finish_drops()
    assert not some.disk.exists(FOLDER)
    assert some.disk.exists(DATA_DIR / OTHER.hex / "0")


@pytest.mark.parametrize("operation", ["rename", "fsync_dir", "remove_tree", "open"])
def test_INV_T5_a_disk_that_fails_at_a_drop_fails_nobody_and_the_next_try_ends_it(
    operation: str,
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partition, 20)
    fail_at(some, operation)
    some.drop_beyond(TOPIC_ID, 1)
    some.drop_topic(TOPIC_ID)
    some.disk.fault = None
    some.maintain(lambda _: None)
    some.kill_and_reopen()
    assert [partition.log_end_offset for partition in some.partitions] == [0, 0]
    assert some.disk.list_dir(DATA_DIR) == [TOPIC_ID.hex, "format", "journal", "manifest"]
    assert some.disk.list_dir(FOLDER) == ["0", "1", "topic.json"]


def test_INV_T5_what_could_not_be_put_away_is_not_opened_as_the_next_topic_of_that_id() -> None:
    some = fixture()
    write(some, some.partition, 20)
    fail_at(some, "rename")
    some.drop_topic(TOPIC_ID)
    [still_blocked] = some.table.open_topic(some.topic)
    assert still_blocked.failed is not None
    some.drop_topic(TOPIC_ID)
    some.disk.fault = None
    [fresh] = some.table.open_topic(some.topic)
    assert (fresh.failed, fresh.log_end_offset) == (None, 0)


@pytest.mark.parametrize("whole_topic", [True, False])
def test_INV_RM4_what_could_not_be_put_away_is_not_taken_for_the_next_of_its_id_by_a_start(
    whole_topic: bool,
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], 20)
    fail_at(some, "rename")
    if whole_topic:
        some.drop_topic(TOPIC_ID)
    else:
        some.drop_beyond(TOPIC_ID, 1)
    some.kill_and_reopen()  # the topic was made again, or has grown again
    assert (some.partitions[1].failed, some.partitions[1].log_end_offset) == (None, 0)


def test_INV_JN2_a_stopped_partition_whose_topic_is_deleted_does_not_keep_the_journal() -> None:
    some = fixture(journal_bytes=8 * 4096)
    [healthy] = some.table.open_topic(Topic(topic_id=OTHER, name="other"))
    healthy.become_leader(LEADER_EPOCH)
    write(some, some.partition, 20)  # in the journal only

    def fail(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.is_relative_to(some.folder):
            raise OSError(errno.EIO, "the disk fails")

    def fill_the_journal() -> bool:
        for _ in range(10):
            write(some, healthy, 20)
            if some.group_commit.journal_lags:
                some.catch_up()
        return some.group_commit.journal_lags

    some.disk.fault = fail
    assert fill_the_journal()
    assert some.partition.failed is not None
    some.disk.fault = None
    some.drop_topic(TOPIC_ID)
    assert not fill_the_journal()


@pytest.mark.parametrize("how", ["killed", "full"])
def test_INV_T7_a_partition_made_after_an_interrupted_drop_is_not_missed(how: str) -> None:
    some = fixture(partition_count=2)

    def fault(operation: str, path: Path) -> None:
        if operation != "pwrite" or path.name != "manifest":
            return
        if how == "full":
            raise OSError(errno.ENOSPC, "no room", str(path))
        some.disk.crashed = True
        raise Crashed

    some.disk.fault = fault
    with pytest.raises(Crashed) if how == "killed" else nullcontext():
        some.drop_beyond(TOPIC_ID, 1)
    some.disk.fault = None
    some.topic = replace(some.topic, partition_count=1)
    some.kill_and_reopen()
    some.table.finish_drops()
    some.topic = replace(some.topic, partition_count=2)
    some.table.open_topic(some.topic)
    assert not some.table.lost()
    some.kill_and_reopen()
    assert not some.table.lost()


def test_INV_T7_a_partition_that_grows_again_in_the_same_life_is_not_missed() -> None:
    some = fixture(partition_count=2)
    some.table.finish_drops()
    fail_at(some, "pwrite")
    some.drop_beyond(TOPIC_ID, 1)
    some.disk.fault = None
    some.table.open_topic(some.topic)
    assert not some.table.lost()
    some.kill_and_reopen()
    assert not some.table.lost()


@pytest.mark.parametrize("power", [False, True], ids=["killed", "power"])
@pytest.mark.parametrize(
    "operation", ["make_dirs", "make_dir", "open", "fsync_dir", "write_file_atomic", "pwrite", "fdatasync"]
)  # fmt: skip
def test_INV_T8_a_partition_whose_making_failed_is_not_missed(
    operation: str, *, power: bool
) -> None:
    """A region whose disk was bad for a moment would stand still for logs that never were."""
    some = fixture()
    made = Topic(topic_id=OTHER, name="late", partition_count=2)
    folder = DATA_DIR / OTHER.hex

    def fail(name: str, path: Path) -> None:
        if name == operation and path.is_relative_to(folder):
            raise OSError(errno.EIO, "the disk fails", str(path))

    some.disk.fault = fail
    some.table.open_topic(made)
    some.disk.fault = None
    if power:
        some.disk.power_loss(random.Random(1))
    some.topic = made
    some.kill_and_reopen()
    assert [each.failed for each in some.partitions] == [None, None]
    assert some.table.lost() == []


# -- logs that are put aside ----------------------------------------------------------------------


def aside(some: Fixture) -> list[str]:
    return sorted(name for name in some.disk.list_dir(FOLDER) if name.endswith(".damaged"))


def put_aside(some: Fixture, number: int = 1, *, uncut: bool = False) -> str:
    partition = some.table.by_id(TOPIC_ID, number)
    assert partition is not None
    became = some.table.aside.put(partition, uncut=uncut)
    some.partitions = some.table.open_topic(some.topic)
    return became


@pytest.mark.parametrize("journaled", [True, False])
def test_INV_T9_a_log_that_has_stopped_is_kept_whole_and_an_empty_one_takes_its_place(
    journaled: bool,
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], *[20 if journaled else 70_000] * 6)
    path = FOLDER / "1" / f"{0:020}.log"
    held = bytes(some.disk.read_file(path))
    former = some.partitions[1]
    former.stop("its disk has failed")
    assert "is kept as" in put_aside(some)
    assert former.log.durability.in_file(former.log.durability.generation - 1, 6), (
        "the journal waits for nothing"
    )
    assert aside(some) == ["1.damaged"]
    assert bytes(some.disk.read_file(FOLDER / "1.damaged" / path.name)) == held
    assert some.partitions[1].failed is None
    assert some.partitions[1].log_end_offset == 0
    assert some.table.lost() == ["orders-1"]
    some.partitions[1].become_leader(LEADER_EPOCH)
    write(some, some.partitions[1], 30)
    acknowledged = all_bytes(some.partitions[1])
    some.kill_and_reopen()
    assert all_bytes(some.partitions[1]) == acknowledged, (
        "the journal's part of the former one is void"
    )
    assert some.table.lost() == ["orders-1"], "until somebody has taken note"
    assert aside(some) == ["1.damaged"]


def test_INV_T9_a_copy_that_stops_before_it_is_whole_is_removed_and_a_whole_one_is_kept() -> None:
    some = fixture(partition_count=2)
    for _ in range(2):
        some.partitions[1].stop("its disk has failed")
        put_aside(some)
        assert aside(some) == ["1.damaged"]
    some.table.take_note_of_lost()
    some.partitions[1].stop("its disk has failed")
    put_aside(some)
    assert aside(some) == ["1.1.damaged", "1.damaged"]


@pytest.mark.parametrize("known", [False, True])
def test_INV_T10_what_was_put_aside_uncut_is_told_until_people_have_removed_it(
    known: bool,
) -> None:
    some = fixture(partition_count=2)
    if known:
        assert some.table.aside.uncut() == []
    some.partitions[1].stop("its disk has failed")
    put_aside(some, uncut=True)
    some.table.take_note_of_lost()
    some.partitions[0].stop("its disk has failed, too")
    put_aside(some, 0)
    told = [f"{TOPIC_ID.hex}/1.uncut.damaged"]
    assert some.table.aside.uncut() == told
    assert aside(some) == ["0.damaged", "1.uncut.damaged"]
    some.kill_and_reopen()
    assert some.table.aside.uncut() == told
    some.disk.remove_tree(FOLDER / "1.uncut.damaged")
    assert some.table.aside.uncut() == []
    some.partitions[1].stop("it fails again")
    put_aside(some, uncut=True)
    assert some.table.aside.uncut() == told
    some.drop_topic(TOPIC_ID)
    assert some.table.aside.uncut() == []


def test_INV_T9_nothing_is_put_aside_while_something_writes_into_it_or_the_disk_refuses() -> None:
    some = fixture(partition_count=2)
    some.partitions[1].stop("its disk has failed")
    assert some.partitions[1].log.cleaning.take()
    assert put_aside(some) == ""
    some.partitions[1].log.cleaning.release()
    fail_at(some, "rename")
    with pytest.raises(OSError, match="the disk fails"):
        put_aside(some)
    assert aside(some) == []
    some.disk.fault = None
    assert put_aside(some)
    assert some.partitions[1].failed is None


@pytest.mark.parametrize("operation", ["rename", "fsync_dir", "open", "pwrite", "fdatasync"])
def test_INV_T9_a_crash_while_it_is_put_aside_leaves_it_or_an_empty_one_and_is_missed(
    operation: str,
) -> None:
    some = fixture(partition_count=2)
    write(some, some.partitions[1], 20)
    acknowledged = all_bytes(some.partitions[1])
    some.partitions[1].stop("its disk has failed")
    die_at(some, operation, FOLDER)
    with pytest.raises(Crashed):
        put_aside(some)
    some.kill_and_reopen()
    assert some.partitions[1].failed is None
    assert some.table.lost() == ["orders-1"]
    # Where the empty one has no checkpoint yet, it takes what the journal holds from the beginning on.
    assert all_bytes(some.partitions[1]) in {acknowledged, b""}
    assert aside(some) or all_bytes(some.partitions[1]) == acknowledged
