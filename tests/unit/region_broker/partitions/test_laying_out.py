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

from region_broker.controller.unbroken import to_its_end
from region_broker.partitions.laying_out import LOGS_AT_ONCE, LayingOut
from tests.fixtures.node_logs import DATA_DIR, LEADER_EPOCH, Fixture, Topic, batch, fixture
from tests.simulation.disk import Crashed

COMING = UUID("22222222-2222-2222-2222-222222222222")
FOLDER = DATA_DIR / COMING.hex
COUNT = 5 * LOGS_AT_ONCE + 3


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


@pytest.mark.parametrize("seed", range(24))
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
