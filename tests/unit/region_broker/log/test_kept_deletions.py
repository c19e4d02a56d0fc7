"""What a deletion removes stays on disk for a time that the operator sets (T34)."""

import asyncio
import errno
import threading
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.recovery.kept_deletions import KeptDeletion
from tests.fixtures.node_logs import DATA_DIR, TOPIC_ID, Fixture, batch, fixture
from tests.simulation.disk import Crashed, Fault

DAY_MS = 86_400_000
KEPT = DATA_DIR / f"{TOPIC_ID.hex}.kept"
WHY = "an order"


def keeping(partition_count: int = 1, kept_ms: int = DAY_MS) -> Fixture:
    some = fixture({"retention.ms": "5"}, partition_count=partition_count)
    some.table.close()
    some.config = replace(some.config, deleted_topic_retention_ms=kept_ms)
    some.open()
    return some


def delete_with_records(some: Fixture) -> None:
    some.partition.writer.append(batch())
    some.sync()
    some.mark_topic(TOPIC_ID, WHY)
    some.drop_topic(TOPIC_ID)


def maintained_after(some: Fixture, duration_ms: int) -> list[KeptDeletion]:
    some.clock.now_ms += duration_ms
    some.maintain(lambda _: None)
    asyncio.run(some.table.purge())
    return some.table.kept.listed()


def full(name: str, path: Path) -> None:
    """A disk without room for what a deletion says of itself."""
    if name == "write_file_atomic":
        raise OSError(errno.ENOSPC, "the disk is full", str(path))


def restart_without_the_topic(some: Fixture) -> None:
    some.disk.process_killed()
    some.topic = replace(some.topic, topic_id=UUID(int=7), name="other")
    some.open()
    some.table.finish_drops()


# Holds INV-RM5.
def test_T34_a_deleted_topic_stays_on_disk_for_the_time_that_the_operator_set() -> None:
    some = keeping(partition_count=2)
    log_bytes = len(batch())
    delete_with_records(some)
    [kept] = maintained_after(some, DAY_MS - 1)
    assert (kept.note.name, kept.note.partition_count, kept.note.why) == ("orders", 2, WHY)
    assert dict(kept.note.configs) == {"retention.ms": "5"}
    assert kept.note.topic_id == str(TOPIC_ID)
    assert (kept.folder, kept.left_ms) == (str(KEPT), 1)
    assert kept.size_bytes >= log_bytes
    assert some.disk.file_size(KEPT / "0" / f"{0:020}.log") >= log_bytes
    assert maintained_after(some, 1) == []
    assert not some.disk.exists(KEPT)


def test_INV_RM6_what_was_kept_long_enough_is_removed_beside_the_event_loop() -> None:
    some = keeping()
    delete_with_records(some)
    removed_in = []

    def note(name: str, path: Path) -> None:
        if name == "remove_tree":
            assert path == KEPT.with_suffix(".deleted")
            removed_in.append(threading.current_thread())

    some.disk.fault = note
    some.table.removal.offload = asyncio.to_thread
    assert maintained_after(some, DAY_MS) == []
    assert len(removed_in) == 1
    assert threading.current_thread() not in removed_in


def test_INV_RM3_what_cannot_be_removed_ends_no_round_and_goes_with_the_next_start() -> None:
    some = keeping()
    delete_with_records(some)

    def fail(name: str, path: Path) -> None:
        if name == "remove_tree":
            raise OSError(errno.EIO, "the disk failed", str(path))

    some.disk.fault = fail
    assert maintained_after(some, DAY_MS) == []
    assert some.disk.exists(KEPT.with_suffix(".deleted"))
    some.disk.fault = None
    restart_without_the_topic(some)
    assert not some.disk.exists(KEPT.with_suffix(".deleted"))


def test_how_much_is_kept_is_known_from_the_next_round_on() -> None:
    some = keeping(partition_count=2)
    kept = some.table.kept
    assert (kept.count, kept.size_bytes) == (0, 0)
    delete_with_records(some)
    assert kept.count == 1
    [listed] = maintained_after(some, 1)
    assert kept.size_bytes == listed.size_bytes >= len(batch())
    assert maintained_after(some, DAY_MS) == []
    assert (kept.count, kept.size_bytes) == (0, 0)


def test_T34_without_that_time_and_for_a_topic_without_records_a_deletion_leaves_nothing() -> None:
    at_once, empty = keeping(kept_ms=0), keeping()
    delete_with_records(at_once)
    empty.drop_topic(TOPIC_ID)
    for some in (at_once, empty):
        assert some.table.kept.listed() == []
        assert some.disk.list_dir(DATA_DIR) == ["format", "journal", "manifest"]


def test_INV_KD1_a_wall_clock_that_jumps_removes_nothing_early() -> None:
    some = keeping()
    delete_with_records(some)
    some.clock.wall_jumped_ms += 1000 * DAY_MS
    assert [kept.left_ms for kept in maintained_after(some, 1)] == [DAY_MS - 1]
    restart_without_the_topic(some)
    assert [kept.left_ms for kept in maintained_after(some, 1)] == [DAY_MS - 1]


@pytest.mark.parametrize("cleanly", [True, False])
def test_INV_KD1_a_restart_counts_on_from_what_was_on_disk(cleanly: bool) -> None:
    some = keeping()
    delete_with_records(some)
    maintained_after(some, DAY_MS // 2)  # which is saved
    some.clock.now_ms += 1000  # which is not
    if cleanly:
        some.table.close()
    some.clock.now_ms += DAY_MS  # the node is down
    restart_without_the_topic(some)
    left_ms = DAY_MS // 2 - (1000 if cleanly else 0)
    assert [kept.left_ms for kept in some.table.kept.listed()] == [left_ms]
    assert maintained_after(some, left_ms) == []


@pytest.mark.parametrize("fault", [None, full], ids=["", "full"])
def test_INV_KD1_what_was_counted_for_an_earlier_deletion_of_that_id_counts_for_no_later_one(
    fault: Fault | None,
) -> None:
    some = keeping()
    delete_with_records(some)
    maintained_after(some, DAY_MS - 1)
    assert maintained_after(some, 1) == []
    some.partitions = some.table.open_topic(some.topic)
    some.partition.become_leader(LeaderEpoch(5))
    some.disk.fault = fault
    delete_with_records(some)
    restart_without_the_topic(some)
    assert [kept.left_ms for kept in some.table.kept.listed()] == [DAY_MS]


# Holds INV-RM2.
@pytest.mark.parametrize("operation", ["rename", "fsync_dir"])
def test_T34_a_deletion_that_a_crash_interrupted_is_kept_too(operation: str) -> None:
    some = keeping()
    some.partition.writer.append(batch())
    some.sync()  # in the journal only
    some.mark_topic(TOPIC_ID, WHY)

    def die(name: str, path: Path) -> None:
        if name == operation and path in {DATA_DIR, DATA_DIR / TOPIC_ID.hex}:
            some.disk.crashed = True
            raise Crashed

    some.disk.fault = die
    with pytest.raises(Crashed):
        some.drop_topic(TOPIC_ID)
    restart_without_the_topic(some)
    [kept] = some.table.kept.listed()
    assert (kept.note.name, kept.note.why) == ("orders", WHY)
    assert some.disk.file_size(KEPT / "0" / f"{0:020}.log") >= len(batch())


def test_INV_KD2_a_deletion_on_a_full_disk_is_kept_under_the_name_that_its_folder_has() -> None:
    some = keeping()
    some.disk.fault = full
    delete_with_records(some)
    some.disk.fault = None
    [kept] = some.table.kept.listed()
    assert (kept.note.name, kept.note.why) == ("orders", "")


def test_INV_KD3_what_was_removed_by_hand_is_forgotten() -> None:
    some = keeping()
    delete_with_records(some)
    some.disk.remove_tree(KEPT)
    assert maintained_after(some, 1) == []


def test_T34_a_stopped_partition_that_its_topic_loses_is_kept() -> None:
    some = keeping(partition_count=2)
    some.partitions[1].writer.append(batch())
    some.sync()
    some.partitions[1].log.fail("the disk failed")
    some.drop_beyond(TOPIC_ID, 1)
    [kept] = some.table.kept.listed()
    assert (kept.note.name, kept.note.partition) == ("orders", 1)
    assert kept.folder == str(DATA_DIR / TOPIC_ID.hex / "1.kept")
    some.kill_and_reopen()
    assert len(some.table.kept.listed()) == 1
    assert maintained_after(some, DAY_MS) == []


def test_T34_a_deletion_that_the_registry_refused_leaves_no_note() -> None:
    some = keeping()
    some.mark_topic(TOPIC_ID, WHY)
    some.unmark_topic(TOPIC_ID)
    assert some.disk.list_dir(DATA_DIR / TOPIC_ID.hex) == ["0", "topic.json"]


def test_INV_KD1_two_of_one_id_that_were_kept_long_enough_go_in_one_round() -> None:
    some = keeping()
    for _ in range(2):
        delete_with_records(some)
        some.partitions = some.table.open_topic(some.topic)
        some.partition.become_leader(LeaderEpoch(5))
    assert len(some.table.kept.listed()) == 2
    assert maintained_after(some, DAY_MS) == []
    assert some.disk.list_dir(DATA_DIR) == [TOPIC_ID.hex, "format", "journal", "manifest"]


def test_INV_KD1_a_start_counts_no_time_of_an_earlier_one_whose_folder_was_removed_by_hand() -> (
    None
):
    """1. What is kept is removed by hand, and the file still says for how long it was kept. 2. Another one of that id is kept. 3. The node is
    killed before it has written that file again."""
    some = keeping()
    delete_with_records(some)
    maintained_after(some, DAY_MS - 1)
    some.disk.process_killed()
    some.disk.remove_tree(KEPT)
    some.open()
    delete_with_records(some)
    restart_without_the_topic(some)
    assert [kept.left_ms for kept in some.table.kept.listed()] == [DAY_MS]
