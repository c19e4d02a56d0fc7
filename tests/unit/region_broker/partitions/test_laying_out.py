"""Logs of a topic that comes are made ready beside the loop, and whatever fails of that is made good by opening it."""

import asyncio
import errno
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from uuid import UUID

import pytest

from region_broker.partitions.laying_out import LOGS_AT_ONCE, LayingOut
from region_broker.ports.unbroken import to_its_end
from tests.fixtures.node_logs import DATA_DIR, LEADER_EPOCH, Fixture, Topic, batch, fixture
from tests.simulation.disk import Crashed

COMING = UUID("22222222-2222-2222-2222-222222222222")
FOLDER = DATA_DIR / COMING.hex
COUNT = 5 * LOGS_AT_ONCE + 3
MANIFEST = DATA_DIR / "manifest"
WAITING = frozenset({"fdatasync", "fsync_dir", "write_file_atomic"})
"""What waits for the device."""


@dataclass(frozen=True)
class Coming:
    topic: Topic
    numbers: range


def coming(count: int) -> Coming:
    return Coming(Topic(count, topic_id=COMING, name="coming"), range(count))


async def at_once(work: Callable[[], None]) -> None:
    work()


def laying(
    some: Fixture, offload: Callable[[Callable[[], None]], Awaitable[None]] = at_once
) -> LayingOut:
    return replace(some.table.laying_out, offload=offload)


def logs_in(operations: list[tuple[str, Path]]) -> set[Path]:
    """Return the folders of logs that were worked on."""
    below = [path.relative_to(FOLDER) for _, path in operations if path.is_relative_to(FOLDER)]
    return {FOLDER / path.parts[0] for path in below if path.parts and path.parts[0].isdigit()}


# Holds INV-LAY1, INV-LAY4.
async def test_INV_LAY1_the_loop_turns_while_many_logs_are_made_and_opening_them_waits_for_no_disk() -> (
    None
):
    some, made = fixture(), coming(COUNT)
    done: list[tuple[str, Path]] = []
    some.disk.fault = lambda operation, path: done.append((operation, path))
    pieces: list[int] = []

    async def thread(work: Callable[[], None]) -> None:
        done.clear()
        work()
        pieces.append(len(logs_in(done)))
        done.clear()
        await asyncio.sleep(0)

    turns: list[int] = []

    async def count_turns() -> None:
        while True:
            turns.append(len(logs_in(done)))
            done.clear()
            await asyncio.sleep(0)

    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(count_turns())
        await laying(some, thread).run([made], to_its_end)
        others.cancel()
    assert sum(pieces) == COUNT
    assert max(pieces) <= LOGS_AT_ONCE
    assert max(turns) <= LOGS_AT_ONCE
    assert len(turns) > COUNT // LOGS_AT_ONCE
    assert some.table.by_id(COMING, 0) is None  # INV-LAY4
    done.clear()
    opened = some.table.open_topic(made.topic)
    assert not logs_in(done)
    assert [log.tp.partition for log in opened] == list(range(COUNT))
    some.disk.fault = None
    opened[3].become_leader(LEADER_EPOCH)
    opened[3].writer.append(batch(2))
    some.sync()
    assert opened[3].high_watermark == 2


async def test_INV_LAY5_the_loop_waits_for_no_sync_of_a_topic_that_is_made() -> None:
    """Nor is anything left that opening it would have to write."""
    some, made = fixture(), coming(3)
    on_loop: list[tuple[str, Path]] = []
    aside: list[tuple[str, Path]] = []
    noted = on_loop

    async def thread(work: Callable[[], None]) -> None:
        nonlocal noted
        noted = aside
        work()
        noted = on_loop

    some.disk.fault = lambda operation, path: noted.append((operation, path))
    await laying(some, thread).run([made], to_its_end)
    assert {("write_file_atomic", FOLDER / "topic.json"), ("fdatasync", MANIFEST)} < set(aside)
    for log in some.table.open_topic(made.topic):
        log.become_leader(LEADER_EPOCH)
    assert not WAITING.intersection(operation for operation, _ in on_loop)


async def test_INV_LAY5_what_is_written_down_ahead_is_durable_and_holds_at_a_start() -> None:
    some, made = fixture(), coming(2)
    await laying(some).run([made], to_its_end)
    some.disk.power_loss(random.Random(3))
    some.disk.remove_tree(FOLDER / "1")
    some.open()
    some.table.open_topic(made.topic)
    assert some.table.lost() == ["coming-1"]


@pytest.mark.parametrize("refused", [FOLDER / "topic.json", MANIFEST])
async def test_INV_LAY5_what_cannot_be_written_down_ahead_is_written_as_the_topic_is_opened(
    refused: Path,
) -> None:
    some, made = fixture(), coming(2)

    def refuse(operation: str, path: Path) -> None:
        if path == refused and operation in WAITING:
            raise OSError(errno.ENOSPC, "no room", str(path))

    some.disk.fault = refuse
    await laying(some).run([made], to_its_end)
    some.disk.fault = None
    assert [log.failed for log in some.table.open_topic(made.topic)] == [None, None]
    assert b"coming" in some.disk.read_file(FOLDER / "topic.json")
    some.disk.power_loss(random.Random(3))
    some.disk.remove_tree(FOLDER / "1")
    some.open()
    some.table.open_topic(made.topic)
    assert some.table.lost() == ["coming-1"]


async def test_INV_LAY6_nothing_is_made_ready_beside_what_a_deletion_left() -> None:
    """1. A disk does not let a deleted topic be put away. 2. One of its id comes, and is made ready in that folder. 3. What is left is put
    away, as the disk lets it, and what was made ready with it: the topic would write into files that go, and show what was deleted."""
    some, made = fixture(), coming(2)
    (old, _) = some.table.open_topic(made.topic)
    old.become_leader(LEADER_EPOCH)
    old.writer.append(batch(2))
    some.sync()

    def refuse(operation: str, _: Path) -> None:
        if operation == "rename":
            raise OSError(errno.EIO, "bad sector")

    some.disk.fault = refuse
    some.drop_topic(COMING)
    await laying(some).run([made], to_its_end)
    some.disk.fault = None
    opened = some.table.open_topic(made.topic)
    assert [(log.failed, log.log_end_offset) for log in opened] == 2 * [(None, 0)]
    for log in opened:
        log.become_leader(LEADER_EPOCH)
        log.writer.append(batch(3))
    some.sync()
    some.disk.power_loss(random.Random(1))
    some.open()
    assert [log.log_end_offset for log in some.table.open_topic(made.topic)] == [3, 3]


async def test_INV_LAY6_the_same_logs_are_made_ready_once_by_whoever_comes_first() -> None:
    """1. A log is laid out by a thread. 2. It is opened, and written to. 3. Another thread lays it out: its records would be gone."""
    some, made = fixture(), coming(2)
    jobs: list[str] = []

    def by(name: str) -> LayingOut:
        async def thread(work: Callable[[], None]) -> None:
            jobs.append(name)
            await asyncio.sleep(0)
            work()

        return replace(some.table.laying_out, offload=thread)

    first, second = by("first"), by("second")
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(first.run([made], to_its_end))
        tasks.create_task(second.run([made], to_its_end))
    assert set(jobs[:3]) == {"first"}
    assert jobs[3:] == ["second"], "all that is left is to look whether it is written down"


async def test_INV_LAY4_what_was_opened_ahead_goes_with_its_topic() -> None:
    some, made = fixture(), coming(4)
    some.table.open_topic(replace(made.topic, partition_count=2))
    await laying(some).run([made], to_its_end)
    some.drop_topic(COMING)
    assert not some.disk.exists(FOLDER)
    opened = some.table.open_topic(made.topic)
    for log in opened:
        log.become_leader(LEADER_EPOCH)
        log.writer.append(batch(2))
    some.sync()
    some.disk.power_loss(random.Random(1))
    some.open()
    assert [log.log_end_offset for log in some.table.open_topic(made.topic)] == 4 * [2]


async def test_INV_LAY2_who_is_cancelled_leaves_what_opening_finishes() -> None:
    for turns in range(12):
        some, made = fixture(), coming(2)

        async def thread(work: Callable[[], None]) -> None:
            await asyncio.sleep(0)
            work()

        run = laying(some, thread).run([made], to_its_end)
        task = asyncio.get_running_loop().create_task(run)
        for _ in range(turns):
            await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        opened = some.table.open_topic(made.topic)
        assert [(log.failed, log.log_end_offset) for log in opened] == 2 * [(None, 0)]
        some.kill_and_reopen()
        opened = some.table.open_topic(made.topic)
        assert [(log.failed, log.log_end_offset) for log in opened] == 2 * [(None, 0)]
        assert not some.table.lost()


@pytest.mark.parametrize("seed", range(36))
async def test_INV_LAY2_a_crash_while_logs_are_laid_out_leaves_what_a_start_opens(
    seed: int,
) -> None:
    rng, some, made = random.Random(seed), fixture(), coming(3)
    some.disk.crash_after(seed)
    with suppress(Crashed, BaseExceptionGroup):
        await laying(some).run([made], to_its_end)
    some.disk.power_loss(rng)
    some.open()
    opened = some.table.open_topic(made.topic)
    assert [(log.failed, log.log_end_offset) for log in opened] == 3 * [(None, 0)]
    assert not some.table.lost()


async def test_INV_LAY2_what_a_disk_refuses_is_left_to_the_opening_of_the_topic() -> None:
    some, made = fixture(), coming(2)

    def refuse(operation: str, path: Path) -> None:
        if path.is_relative_to(FOLDER / "1"):
            raise OSError(errno.EIO, "bad sector", str(path))

    some.disk.fault = refuse
    await laying(some).run([made], to_its_end)
    assert [log.failed is None for log in some.table.open_topic(made.topic)] == [True, False]
    some.table.drop_topic(COMING)
    some.disk.fault = None
    await laying(some).run([made], to_its_end)
    assert all(log.failed is None for log in some.table.open_topic(made.topic))


async def test_INV_LAY3_a_log_made_again_gets_nothing_that_the_journal_has_of_the_dropped_one() -> (
    None
):
    some, made = fixture(), coming(2)
    first = some.table.open_topic(made.topic)
    for log in first:
        log.become_leader(LEADER_EPOCH)
        log.writer.append(batch(2))
    some.sync()
    some.table.drop_topic(COMING)
    await laying(some).run([made], to_its_end)
    assert [log.log_end_offset for log in some.table.open_topic(made.topic)] == [0, 0]
    some.disk.power_loss(random.Random(1))
    some.open()
    assert [log.log_end_offset for log in some.table.open_topic(made.topic)] == [0, 0]


async def test_a_topic_that_never_came_leaves_nothing_open() -> None:
    some, made = fixture(), coming(2)
    await laying(some).run([made], to_its_end)
    some.table.close()
    some.disk.process_killed()
    some.open()
    assert [log.log_end_offset for log in some.table.open_topic(made.topic)] == [0, 0]


async def test_one_that_is_renamed_meanwhile_is_opened_under_its_name() -> None:
    some, made = fixture(), coming(1)
    await laying(some).run([made], to_its_end)
    (opened,) = some.table.open_topic(replace(made.topic, name="other"))
    assert str(opened.tp) == "other-0"
    assert opened.failed is None
