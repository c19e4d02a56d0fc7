"""A deletion waits for no disk on the event loop, and whatever interrupts it is completed or undone (INV-RM7)."""

import asyncio
import errno
import random
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from uuid import UUID

import pytest

from idempotency.pieces import drained
from region_broker.partitions.laying_out import LayingOut
from tests.fixtures.node_logs import (
    DATA_DIR,
    LEADER_EPOCH,
    TOPIC_ID,
    Fixture,
    Topic,
    all_bytes,
    batch,
    fixture,
    run_now,
)
from tests.simulation.disk import Crashed
from tests.unit.region_broker.partitions.test_laying_out import Coming

DAY_MS = 86_400_000
FOLDER = DATA_DIR / TOPIC_ID.hex
KEPT = DATA_DIR / f"{TOPIC_ID.hex}.kept"
WHY = "an order"
ON_THE_DISK = frozenset({
    "fdatasync", "fsync_dir", "write_file_atomic", "rename", "remove", "remove_tree", "pwrite"
})  # fmt: skip
"""What waits for the device, or for the file system, and what is to be synced later."""


def written(kept_ms: int = DAY_MS, *, to_files: bool = False) -> Fixture:
    """Return a node with a topic of two partitions that hold records, in the journal only, or in their own files, too."""
    some = fixture(partition_count=2)
    some.table.close()
    some.config = replace(some.config, deleted_topic_retention_ms=kept_ms)
    some.open()
    for partition in some.partitions:
        partition.writer.append(batch(3))
    some.sync()
    if to_files:
        some.sync_files()
    return some


class Watched:
    """What is done to the disk on the loop, and in threads."""

    def __init__(self, some: Fixture) -> None:
        self.on_loop: list[tuple[str, Path]] = []
        self.aside: list[tuple[str, Path]] = []
        self._noted = self.on_loop
        some.disk.fault = self._note
        some.table.removal.offload = self._offload

    def _note(self, operation: str, path: Path) -> None:
        if operation in ON_THE_DISK:
            self._noted.append((operation, path))

    async def _offload(self, work: Callable[[], None]) -> None:
        self._noted = self.aside
        work()
        self._noted = self.on_loop


async def deletion(some: Fixture, *, whole: bool) -> None:
    """Delete the topic, or all of its partitions but one, as the registry does."""
    running = asyncio.get_running_loop().create_task(some.table.removal.run())
    if whole:
        await some.table.mark_topic(TOPIC_ID, WHY)
        some.table.drop_topic(TOPIC_ID)
    else:
        await some.table.mark_beyond(TOPIC_ID, 1)
        some.table.drop_beyond(TOPIC_ID, 1)
    await some.table.letting_go.finish_of(TOPIC_ID)
    for _ in range(9):
        await asyncio.sleep(0)
    running.cancel()
    await asyncio.wait([running])


# Holds INV-LVG1.
@pytest.mark.parametrize("kept_ms", [0, DAY_MS])
@pytest.mark.parametrize("whole", [True, False])
async def test_INV_RM7_the_loop_waits_for_no_disk_while_a_topic_is_deleted(
    *, whole: bool, kept_ms: int
) -> None:
    some = written(kept_ms)
    watched = Watched(some)
    await deletion(some, whole=whole)
    assert watched.on_loop == []
    gone = FOLDER if whole else FOLDER / "1"
    assert ("rename", gone) in watched.aside
    assert not some.disk.exists(gone)
    for operation, path in (("fdatasync", DATA_DIR / "manifest"), ("fsync_dir", gone.parent)):
        assert (operation, path) in watched.aside
    is_removed = ("remove_tree", gone.with_name(gone.name + ".deleted")) in watched.aside
    assert is_removed is (kept_ms == 0)


async def test_INV_RM7_nor_while_a_deletion_is_refused_or_what_was_kept_long_enough_goes() -> None:
    some = written()
    watched = Watched(some)
    await some.table.mark_topic(TOPIC_ID, WHY)
    await some.table.unmark_topic(TOPIC_ID)
    assert some.disk.list_dir(FOLDER) == ["0", "1", "topic.json"]
    await deletion(some, whole=True)
    for _ in range(2):
        some.clock.now_ms += DAY_MS // 2
        some.maintain(lambda _: None)
        await some.table.purge()
    assert watched.on_loop == []
    assert some.disk.list_dir(DATA_DIR) == ["format", "journal", "kept", "manifest"]


async def test_INV_RM7_what_a_disk_refused_is_tried_again_beside_the_loop() -> None:
    some = written()
    watched = Watched(some)
    note, refuses = some.disk.fault, [True]
    assert note is not None

    def refuse(operation: str, path: Path) -> None:
        if operation == "rename" and refuses:
            raise OSError(errno.EIO, "bad sector")
        note(operation, path)

    some.disk.fault = refuse
    await deletion(some, whole=True)
    assert some.disk.exists(FOLDER)
    refuses.clear()
    some.maintain(lambda _: None)
    await some.table.purge()
    assert watched.on_loop == []
    assert not some.disk.exists(FOLDER)
    assert [each.note.why for each in some.table.kept.listed()] == [WHY]


def records_of(some: Fixture, folder: Path) -> list[int]:
    """Return how many bytes of records the folders of two logs hold, as they are on disk."""
    return [some.disk.file_size(folder / str(number) / f"{0:020}.log") for number in range(2)]


def whole_records(some: Fixture) -> list[int]:
    return [len(all_bytes(partition)) for partition in some.partitions]


def begin_and_crash(some: Fixture, after: int, *, committed: bool) -> bool:
    """Delete the topic up to where the registry has it no more, or also behind that, and die there; tell whether it came to its end."""
    if committed:
        some.mark_topic(TOPIC_ID, WHY)
    some.disk.crash_after(after)
    with suppress(Crashed):
        if committed:
            some.drop_topic(TOPIC_ID)
        else:
            some.mark_topic(TOPIC_ID, WHY)
        return True
    return False


# Holds INV-LGO1.
@pytest.mark.parametrize("power", [True, False], ids=["power", "killed"])
@pytest.mark.parametrize("kept_ms", [0, DAY_MS])
def test_T34_INV_RM7_a_crash_at_any_point_behind_the_commit_is_completed_by_the_next_start(
    *, kept_ms: int, power: bool
) -> None:
    points, ended = 0, False
    while not ended:
        some = written(kept_ms)
        expected = whole_records(some)
        ended = begin_and_crash(some, points, committed=True)
        _die(some, points, power=power)
        some.topic = Topic(topic_id=UUID(int=7), name="other")
        some.open()
        some.table.finish_drops()
        names = set(some.disk.list_dir(DATA_DIR)) - {UUID(int=7).hex}
        kept = {KEPT.name} if kept_ms else set()
        assert names - {"kept"} == {"format", "journal", "manifest"} | kept, points
        if kept_ms:
            assert records_of(some, KEPT) == expected, points
            assert [each.note.why for each in some.table.kept.listed()] == [WHY]
        assert some.table.lost() == []
        points += 1
    assert points >= 7


def _die(some: Fixture, seed: int, *, power: bool) -> None:
    some.disk.crash_at = None
    some.disk.crashed = False
    if power:
        some.disk.power_loss(random.Random(seed))
    else:
        some.disk.process_killed()


@pytest.mark.parametrize("power", [True, False], ids=["power", "killed"])
def test_INV_RM7_a_crash_at_any_point_before_the_commit_is_undone_by_the_next_start(
    *, power: bool
) -> None:
    points, ended = 0, False
    while not ended:
        some = written()
        expected = whole_records(some)
        ended = begin_and_crash(some, points, committed=False)
        _die(some, points, power=power)
        some.open()
        some.table.finish_drops()
        assert whole_records(some) == expected, points
        assert some.disk.list_dir(FOLDER) == ["0", "1", "topic.json"]
        assert some.table.lost() == []
        points += 1
    assert points > 3


@pytest.mark.parametrize("whole", [True, False])
def test_INV_RM7_who_makes_a_topic_of_that_id_meanwhile_makes_a_new_one(*, whole: bool) -> None:
    """A snapshot of the metadata brings both in one step, and waits for nobody."""
    some = written()
    if whole:
        some.table.drop_topic(TOPIC_ID)
    else:
        some.table.drop_beyond(TOPIC_ID, 1)
    some.partitions = some.table.open_topic(some.topic)
    assert [each.log_end_offset for each in some.partitions] == [0 if whole else 3, 0]
    for each in some.partitions:
        each.become_leader(LEADER_EPOCH)
        each.writer.append(batch())
    some.sync()
    some.finish_drops()
    assert some.disk.exists((KEPT / "1") if whole else FOLDER / "1.kept")
    some.disk.power_loss(random.Random(3))
    some.open()
    assert [each.log_end_offset for each in some.partitions] == [1 if whole else 4, 1]
    assert some.table.lost() == []


async def test_INV_RM7_who_makes_logs_ready_waits_for_a_deletion_of_that_id() -> None:
    some = written()
    jobs: list[str] = []
    ends = asyncio.Event()

    async def slowly(work: Callable[[], None]) -> None:
        jobs.append("deletion begins")
        await ends.wait()
        work()
        jobs.append("deletion ends")

    async def lays(work: Callable[[], None]) -> None:
        jobs.append("laying out")
        work()

    async def carry(work: object) -> None:
        await work  # type: ignore[misc]

    some.table.removal.offload = slowly
    some.table.drop_topic(TOPIC_ID)
    laying: LayingOut = replace(some.table.laying_out, offload=lays)
    task = asyncio.get_running_loop().create_task(laying.run([Coming(some.topic, range(2))], carry))
    for _ in range(5):
        await asyncio.sleep(0)
    assert jobs == ["deletion begins"]
    ends.set()
    await task
    assert jobs[:3] == ["deletion begins", "deletion ends", "laying out"]
    opened = some.table.open_topic(some.topic)
    assert [(each.failed, each.log_end_offset) for each in opened] == 2 * [(None, 0)]


def test_INV_PAW1_who_needs_it_at_once_waits_for_the_thread_that_is_at_it() -> None:
    some = written()
    reached, goes_on = threading.Event(), threading.Event()
    renames: list[Path] = []

    def stop(operation: str, path: Path) -> None:
        if operation == "rename" and path.name in {FOLDER.name}:
            renames.append(path)
            reached.set()
            assert goes_on.wait(60)

    some.disk.fault = stop
    some.table.drop_topic(TOPIC_ID)
    thread = threading.Thread(target=some.table.removal._going[FOLDER].away.work)
    thread.start()
    assert reached.wait(60)
    opened: list[int | None] = []

    def open_again() -> None:
        opened.extend(each.log_end_offset for each in some.table.open_topic(some.topic))

    opening = threading.Thread(target=open_again)
    opening.start()
    assert opened == []
    goes_on.set()
    for each in (thread, opening):
        each.join(60)
    assert opened == [0, 0]
    assert renames == [FOLDER], "it is done once"


def test_INV_PAW2_partitions_on_their_way_out_go_before_their_topic() -> None:
    some = written()
    some.table.drop_beyond(TOPIC_ID, 1)
    some.table.drop_topic(TOPIC_ID)
    some.finish_drops()
    assert {"0", "1.kept"} <= set(some.disk.list_dir(KEPT))
    assert some.table.removal._going == {}


def test_INV_PAW2_so_they_do_where_their_topic_is_needed_out_of_the_way_at_once() -> None:
    some = written()
    some.table.drop_beyond(TOPIC_ID, 1)
    some.table.drop_topic(TOPIC_ID)
    assert [each.log_end_offset for each in some.table.open_topic(some.topic)] == [0, 0]
    assert {"0", "1.kept"} <= set(some.disk.list_dir(KEPT))


@pytest.mark.parametrize("kept_ms", [0, DAY_MS])
def test_INV_PAW1_a_rename_that_was_not_durable_is_made_so_and_what_it_made_is_known(
    kept_ms: int,
) -> None:
    some = written(kept_ms)
    failures = [True]

    def refuse(operation: str, path: Path) -> None:
        if (operation, path) == ("fsync_dir", DATA_DIR) and failures:
            raise OSError(errno.EIO, "bad sector")

    some.disk.fault = refuse
    some.drop_topic(TOPIC_ID)
    assert some.table.kept.count == 0
    failures.clear()
    some.finish_drops()
    assert some.table.kept.count == (1 if kept_ms else 0)
    assert not [name for name in some.disk.list_dir(DATA_DIR) if name.endswith(".deleted")]


def test_INV_PAW2_a_partition_that_the_disk_did_not_let_go_goes_with_its_topic() -> None:
    some = written()

    def refuse(operation: str, path: Path) -> None:
        if operation == "rename" and path == FOLDER / "1":
            raise OSError(errno.EIO, "bad sector")

    some.disk.fault = refuse
    some.drop_beyond(TOPIC_ID, 1)
    some.drop_topic(TOPIC_ID)
    assert {"0", "1"} <= set(some.disk.list_dir(KEPT))
    assert some.table.removal._going == {}


def test_INV_RM7_a_node_that_stops_has_all_put_away() -> None:
    some = written()
    expected = whole_records(some)
    some.table.drop_topic(TOPIC_ID)
    some.table.close()
    some.disk.power_loss(random.Random(5))
    assert records_of(some, KEPT) == expected
    assert not some.disk.exists(FOLDER)


def test_INV_RM7_what_is_gone_from_the_registry_is_not_missed_meanwhile() -> None:
    some = written()
    some.disk.process_killed()
    some.disk.remove_tree(FOLDER / "1")
    some.open()
    assert some.table.lost() == ["orders-1"]
    some.table.drop_topic(TOPIC_ID)
    assert some.table.lost() == []
    some.finish_drops()
    assert some.table.lost() == []


async def test_INV_RM8_a_refused_deletion_takes_no_mark_back_that_another_one_needs() -> None:
    some = written()
    for _ in range(2):
        await some.table.mark_topic(TOPIC_ID, WHY)
    await some.table.unmark_topic(TOPIC_ID)
    some.table.open_topic(some.topic)  # it grows meanwhile
    assert some.table.removal.is_marked(FOLDER)
    some.table.drop_topic(TOPIC_ID)
    await some.table.unmark_topic(TOPIC_ID)  # refused: it is gone
    assert some.table.removal.is_marked(FOLDER)
    some.finish_drops()
    assert not some.disk.exists(FOLDER)


@pytest.mark.parametrize("asks", [True, False], ids=["asked here", "settled by others"])
async def test_INV_RM8_a_mark_that_is_being_taken_back_is_made_anew_for_who_needs_it_meanwhile(
    asks: bool,
) -> None:
    """1. A deletion is refused, as another node leads. 2. Its mark is taken back, in a thread. 3. That node's deletion comes, before the thread."""
    some = written()
    removal = some.table.removal
    await some.table.mark_topic(TOPIC_ID, WHY)
    may_run, aside = asyncio.Event(), removal.offload

    async def late(work: Callable[[], None]) -> None:
        await may_run.wait()
        await aside(work)

    removal.offload = late
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(some.table.unmark_topic(TOPIC_ID))
        await asyncio.sleep(0)
        tasks.create_task(some.table.mark_topic(TOPIC_ID, WHY, asks=asks))
        for _ in range(3):
            await asyncio.sleep(0)
        may_run.set()
    assert removal.is_marked(FOLDER)


async def test_INV_RM8_the_last_one_that_is_refused_takes_it_back() -> None:
    some = written()
    for _ in range(2):
        await some.table.mark_topic(TOPIC_ID, WHY)
    for _ in range(2):
        await some.table.unmark_topic(TOPIC_ID)
    assert some.disk.list_dir(FOLDER) == ["0", "1", "topic.json"]
    await some.table.mark_topic(TOPIC_ID, WHY)
    assert some.table.removal.is_marked(FOLDER), "and it can be asked for again"


@pytest.mark.parametrize("kept_ms", [0, DAY_MS])
def test_INV_LVG2_the_journal_keeps_what_is_to_be_kept_until_it_is_synced(kept_ms: int) -> None:
    some = written(kept_ms)
    durability = some.partition.log.durability
    generation = durability.generation
    assert not durability.in_file(generation, 3)
    some.table.drop_topic(TOPIC_ID)
    assert durability.in_file(generation, 3) is (kept_ms == 0)
    some.finish_drops()
    assert durability.in_file(generation, 3)


# Holds INV-LGO2.
def test_INV_LVG2_what_the_disk_does_not_sync_is_left_and_keeps_no_journal() -> None:
    some = written()

    def refuse(operation: str, path: Path) -> None:
        if operation == "fdatasync" and path.is_relative_to(FOLDER):
            raise OSError(errno.EIO, "bad sector")

    some.disk.fault = refuse
    durability = some.partition.log.durability
    generation = durability.generation
    some.table.drop_topic(TOPIC_ID)
    some.table.removal._going[FOLDER].away.work()
    assert not durability.in_file(generation, 3)
    some.finish_drops()
    assert durability.in_file(generation, 3)
    assert not some.disk.exists(FOLDER)


def test_INV_LVG1_a_log_that_was_left_takes_nothing_and_begins_nothing() -> None:
    some = written()
    log, durability = some.partition.log, some.partition.log.durability
    under_way = durability.begin_file_sync()
    assert under_way is not None
    some.table.drop_topic(TOPIC_ID)
    assert (durability.begin_sync(), durability.begin_file_sync()) == (None, None)
    assert drained(durability.begin_recovery_checkpoint()) is None
    done: list[str] = []
    some.disk.fault = lambda operation, _: done.append(operation)
    assert under_way.run() is None
    assert done == [], "it is void"
    assert not log.is_running


def test_INV_LVG3_files_are_closed_on_the_loop_behind_the_thread() -> None:
    some = written()
    segment = some.partition.log.content.open_segment
    file = segment.file
    assert file is not None
    some.table.drop_topic(TOPIC_ID)
    some.table.removal._going[FOLDER].away.work()
    assert file.pread(1, 0), "it is still open"
    run_now(some.table.removal.finish())
    with pytest.raises((OSError, ValueError, AssertionError)):
        file.pread(1, 0)
