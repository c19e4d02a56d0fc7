"""How far readers of one partition see, which leader epoch they are told, and who hears that it changed."""

import asyncio
from collections.abc import Callable

import pytest

from idempotency.identity import LeaderEpoch
from region_broker.log.failures import NotLeader
from region_broker.partitions.commit_waiters import CommitFuture
from region_broker.partitions.partition import Partition
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, all_bytes, batch, fixture

NEWER = LeaderEpoch(LEADER_EPOCH + 4)


def primary_bytes(count: int) -> bytes:
    """Return a log of so many batches with a record each."""
    primary = fixture()
    for _ in range(count):
        primary.partition.writer.append(batch())
    primary.sync()
    return all_bytes(primary.partition)


def mirror(count: int = 6) -> Fixture:
    """Return a mirror that has copied so many, and shows nothing."""
    some = fixture(leads=False)
    some.partition.become_mirror()
    some.partition.writer.append_mirrored(primary_bytes(count))
    some.sync()
    return some


def ends(partition: Partition) -> tuple[int, int]:
    """Return how far readers see, and how far read-committed ones do."""
    sight = partition.sight
    return sight.readable_end(Isolation.READ_UNCOMMITTED), sight.readable_end(
        Isolation.READ_COMMITTED
    )


def test_T16_neither_end_of_a_mirror_goes_down_when_the_other_goes_up() -> None:
    partition = mirror().partition
    partition.show_up_to(4, 2)
    partition.show_up_to(5, 1)
    assert ends(partition) == (5, 2)
    partition.show_up_to(3, 4)
    assert ends(partition) == (5, 4)


def test_INV_PT1_a_mirror_shows_nothing_that_is_not_durable() -> None:
    data, some = primary_bytes(6), mirror(4)
    some.partition.writer.append_mirrored(data[len(data) // 6 * 4 :])
    some.partition.show_up_to(6, 6)
    assert ends(some.partition) == (4, 4)
    some.sync()
    assert ends(some.partition) == (6, 6)


def test_INV_PT1_no_end_lies_below_the_log_start() -> None:
    partition = mirror(0).partition
    partition.start_at(500)
    assert ends(partition) == (500, 500)


def test_T17_what_a_cut_took_is_not_shown_when_it_is_copied_anew() -> None:
    data, some = primary_bytes(6), mirror()
    some.partition.show_up_to(6, 6)
    some.partition.truncate_to(3)
    some.partition.writer.append_mirrored(data[len(data) // 2 :])
    some.sync()
    assert some.partition.high_watermark == 6
    assert ends(some.partition) == (3, 3)
    some.partition.show_up_to(6, 4)
    assert ends(some.partition) == (6, 4)


def test_T25_a_base_shows_nothing_new() -> None:
    partition = mirror().partition
    partition.show_up_to(4, 4)
    partition.rewind_cut(5)
    assert ends(partition) == (4, 0)
    partition.rewind_cut(2)
    assert ends(partition) == (2, 0)


def test_INV_PT8_only_a_mirror_follows_a_term_and_only_forward() -> None:
    some = mirror()
    assert some.partition.sight.leader_epoch == LEADER_EPOCH, "of what it has copied"
    some.partition.follow_term(NEWER)
    some.partition.follow_term(LEADER_EPOCH)
    assert some.partition.sight.leader_epoch == NEWER
    leader = fixture().partition
    leader.follow_term(NEWER)
    assert leader.sight.leader_epoch == LEADER_EPOCH


def test_INV_PT8_a_start_tells_the_newest_leader_epoch_that_was_copied() -> None:
    some = mirror()
    some.kill_and_reopen()
    some.partition.become_mirror()
    assert some.partition.sight.leader_epoch == LEADER_EPOCH


def test_KIP_320_a_log_that_is_idle_in_a_term_ends_there() -> None:
    partition = mirror().partition
    assert partition.epoch_end_offset(NEWER) == (-1, -1)
    assert partition.end_of_older(NEWER) == 6, "heard of or not"
    partition.follow_term(NEWER)
    assert partition.epoch_end_offset(NEWER) == (NEWER, 6)
    assert partition.epoch_end_offset(LEADER_EPOCH) == (LEADER_EPOCH, 6)
    assert partition.end_of_older(NEWER) == 6
    assert partition.end_of_older(LEADER_EPOCH) == 0


CHANGES: dict[str, Callable[[Partition], None]] = {
    "it leads": lambda partition: partition.become_leader(NEWER),
    "it mirrors": Partition.become_mirror,
    "it hears of a term": lambda partition: partition.follow_term(NEWER),
    "it shows more": lambda partition: partition.show_up_to(3, 3),
    "it shows less": lambda partition: partition.rewind_cut(0),
    "it is cut": lambda partition: partition.truncate_to(3),
    "it begins anew": lambda partition: partition.start_at(9),
    "it stops": lambda partition: partition.stop("for the test"),
    "it is closed": lambda partition: partition.close("for the test"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_who_watches_is_told_of_every_change_of_role_of_a_cut_and_of_a_stop(change: str) -> None:
    partition, told = mirror().partition, list[str]()
    partition.watchers.add(lambda: told.append(change))
    CHANGES[change](partition)
    assert change in told


@pytest.mark.parametrize("change", ["it mirrors", "it is cut", "it begins anew"])
@pytest.mark.parametrize("here", [True, False])
async def test_P18_whoever_waits_hears_that_it_is_not_the_leaders_any_more(
    change: str, here: bool
) -> None:
    some = fixture()
    for _ in range(6):
        some.partition.writer.append(batch())
    some.sync()
    waiting = CommitFuture()
    commits = some.partition.commits
    (commits.notify_durable if here else commits.notify)(9, waiting)
    CHANGES[change](some.partition)
    with pytest.raises(NotLeader):
        await asyncio.wait_for(waiting.future, 10)


async def test_a_cut_that_takes_nothing_ends_no_wait() -> None:
    some = mirror()
    waiting = CommitFuture()
    some.partition.commits.notify(9, waiting)
    some.partition.truncate_to(6)
    assert not waiting.future.done()


def test_INV_PT11_a_copy_is_shown_up_to_hw_and_no_more_once_it_is_cut_or_leads() -> None:
    partition = mirror().partition
    partition.commit_up_to(5)
    sight = partition.sight
    partition.copy_view.show(LEADER_EPOCH)
    assert (sight.shows_committed, ends(partition)) == (True, (5, 5))
    sight.show_no_more_than(4)
    assert not sight.is_copy_shown, "what it shows was compared with a log that is another one now"
    assert ends(partition) == (0, 0)
    partition.copy_view.show(LEADER_EPOCH)
    sight.lead(NEWER)
    assert not sight.is_copy_shown, "what leads is no copy"
