"""How far a log is committed where other nodes of the region copy it: HW, who waits for it, and who watches."""

import asyncio
import gc
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.partitions.commit_waiters import CommitFuture
from region_broker.partitions.partition import Partition
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, batch, fixture


def copied(count: int = 3, *, synced: int = 3) -> Fixture:
    """Return a log of `count` records, of which `synced` are durable here, and nothing is known to be anywhere else."""
    some = fixture()
    some.partition.commit_up_to(0)
    for number in range(count):
        some.partition.writer.append(batch())
        if number + 1 == synced:
            some.sync()
    return some


class Waiting:
    """A `CommitListener`: what it was told of each offset."""

    def __init__(self, partition: Partition, *offsets: int) -> None:
        self.reached: list[int] = []
        self.failed: list[Exception] = []
        for offset in offsets:
            partition.commits.notify(offset, _Told(self, offset))


class _Told:
    def __init__(self, waiting: Waiting, offset: int) -> None:
        self._waiting, self._offset = waiting, offset

    def committed(self) -> None:
        self._waiting.reached.append(self._offset)

    def not_committed(self, error: Exception) -> None:
        self._waiting.failed.append(error)


def test_INV_PL6_what_is_durable_here_alone_is_not_committed() -> None:
    some = copied()
    assert some.partition.commits.durable_end == 3
    assert some.partition.high_watermark == 0
    waiting = Waiting(some.partition, 0, 1, 3)
    assert waiting.reached == [0]
    some.partition.commit_up_to(2)
    assert some.partition.high_watermark == 2
    assert waiting.reached == [0, 1]
    some.partition.commit_up_to(3)
    assert waiting.reached == [0, 1, 3]


def test_INV_PL6_what_others_have_is_committed_once_it_is_durable_here() -> None:
    """A follower hears of HW before its own disk has the records."""
    some = copied(3, synced=1)
    waiting = Waiting(some.partition, 1, 2, 3)
    some.partition.commit_up_to(2)
    assert some.partition.high_watermark == 1
    assert waiting.reached == [1]
    some.sync()
    assert some.partition.commits.durable_end == 3
    assert some.partition.high_watermark == 2
    assert waiting.reached == [1, 2], "more is durable than is committed"


def test_what_becomes_durable_is_told_to_who_copies() -> None:
    some = copied(2, synced=1)
    ends: list[int] = []
    some.partition.copies.tell_durable(lambda: ends.append(some.partition.commits.durable_end))
    some.sync()
    assert ends == [2]


def test_a_log_that_nobody_copies_is_committed_as_far_as_it_is_durable() -> None:
    some = copied(3, synced=2)
    waiting = Waiting(some.partition, 2)
    some.partition.commit_up_to(None)
    assert some.partition.high_watermark == 2
    assert waiting.reached == [2]


@pytest.mark.parametrize(("committed", "left"), [(3, 2), (1, 1)])
def test_INV_PL6_a_cut_takes_back_what_counted_as_committed_above_it(
    committed: int, left: int
) -> None:
    """1. A log is cut at 2, and others write on. 2. What is durable above 2 now is another history, of which nothing is known."""
    some = copied()
    some.partition.commit_up_to(committed)
    some.partition.truncate_to(2)
    some.partition.writer.append(batch())
    some.sync()
    assert some.partition.commits.durable_end == 3
    assert some.partition.high_watermark == left


def test_INV_PL6_a_log_that_begins_anew_counts_nothing_as_committed_behind_its_start() -> None:
    some = copied()
    some.partition.commit_up_to(3)
    some.partition.become_mirror()
    some.partition.start_at(1)
    some.partition.become_leader(LEADER_EPOCH)
    some.partition.writer.append(batch(3))
    some.sync()
    assert some.partition.commits.durable_end == 4
    assert some.partition.high_watermark == 1


def test_what_is_committed_may_be_known_less_of() -> None:
    """Who begins to follow knows only what a leader has said."""
    some = copied()
    some.partition.commit_up_to(3)
    some.partition.commit_up_to(1)
    assert some.partition.high_watermark == 1


def test_who_watches_is_told_once_of_each_change() -> None:
    some = copied()
    told: list[int] = []
    some.partition.watchers.add(lambda: told.append(some.partition.high_watermark))
    some.partition.commit_up_to(2)
    some.partition.commit_up_to(2)
    assert told == [2]


def test_nothing_of_a_log_that_has_stopped_is_acknowledged_any_more() -> None:
    """Its producers have heard that the outcome is unknown, or hear so now."""
    some = copied()
    waiting = Waiting(some.partition, 2)
    some.partition.log.content.failed = "a disk is gone"
    some.partition.commit_up_to(3)
    assert waiting.reached == []
    late = Waiting(some.partition, 1)
    assert [type(error) for error in late.failed] == [PartitionFailed]
    assert late.reached == []


async def test_who_waits_at_a_leader_hears_that_it_follows_now() -> None:
    """P18: the next leader may have the records, or not."""
    some = copied()
    waiting = asyncio.get_running_loop().create_task(some.partition.wait_committed(3))
    await asyncio.sleep(0)
    some.partition.become_mirror()
    some.partition.commit_up_to(3)
    with pytest.raises(NotLeader, match="the outcome is unknown"):
        await waiting


def futures() -> int:
    """Return how many wait, or are kept by something."""
    return sum(type(each) is CommitFuture for each in gc.get_objects())


async def refused_wait(wait: Awaitable[None]) -> None:
    with suppress(NotLeader):
        await wait


@pytest.mark.parametrize("kind", ["committed", "durable", "deleted"])
async def test_INV_CWT1_who_waited_in_vain_leaves_nothing_to_the_cycle_collector(
    kind: str,
) -> None:
    """As of connections (INV-PN7): a node that is deposed under load ends thousands of waits so."""
    some = copied(4, synced=3)
    partition = some.partition
    partition.commits.agree_on_start(0)
    waits: dict[str, Callable[[], Awaitable[None]]] = {
        "committed": lambda: partition.wait_committed(4),
        "durable": lambda: partition.commits.wait_durable(4),
        "deleted": lambda: partition.retention.wait_deleted(1),
    }
    gc.collect()
    gc.disable()
    try:
        before = futures()
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(refused_wait(waits[kind]()))
            await asyncio.sleep(0)
            assert futures() == before + 3
            partition.become_mirror()
        assert futures() == before
    finally:
        gc.enable()


def deleted(partition: Partition, offset: int) -> Waiting:
    """Wait for an order to delete below `offset`."""
    waiting = Waiting(partition)
    partition.commits.notify_deleted(
        partition.retention.low_watermark, offset, _Told(waiting, offset)
    )
    return waiting


async def test_INV_PTD2_an_order_to_delete_is_there_once_all_that_may_lead_next_have_it() -> None:
    some = copied()
    some.partition.commit_up_to(3)
    some.partition.commits.agree_on_start(0)
    told: list[int] = []
    some.partition.copies.on_order = lambda: told.append(some.partition.log_start_offset)
    assert await some.partition.retention.delete_records(2) == 2
    assert told == [2]
    assert some.partition.retention.low_watermark == 0
    waiting = deleted(some.partition, 2)
    some.partition.commits.agree_on_start(1)
    assert (waiting.reached, some.partition.retention.low_watermark) == ([], 1)
    some.partition.commits.agree_on_start(2)
    assert (waiting.reached, some.partition.retention.low_watermark) == ([2], 2)
    assert deleted(some.partition, 1).reached == [1]


async def test_INV_PTD2_where_nobody_else_has_the_log_its_own_start_is_enough() -> None:
    some = fixture()
    some.partition.writer.append(batch())
    some.sync()
    await some.partition.retention.delete_records(1)
    await some.partition.retention.wait_deleted(1)
    assert some.partition.retention.low_watermark == 1


async def test_INV_PTD2_who_waits_for_an_order_hears_that_its_log_is_led_elsewhere_or_has_stopped() -> (
    None
):
    some = copied()
    some.partition.commit_up_to(3)
    some.partition.commits.agree_on_start(0)
    await some.partition.retention.delete_records(2)
    waiting = deleted(some.partition, 2)
    some.partition.become_mirror()
    assert isinstance(waiting.failed[0], NotLeader)
    with pytest.raises(NotLeader):
        await some.partition.retention.wait_deleted(2)
    some.partition.become_leader(LEADER_EPOCH)
    waiting = deleted(some.partition, 2)
    some.partition.stop("its disk has failed")
    assert isinstance(waiting.failed[0], PartitionFailed)
    with pytest.raises(PartitionFailed):
        await some.partition.retention.wait_deleted(2)
