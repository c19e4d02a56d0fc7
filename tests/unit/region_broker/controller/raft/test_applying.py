"""What is applied beside a member's turns: in which order, who waits for it, how much waits, and how it ends."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import pytest

from region_broker.controller.raft import applying
from region_broker.controller.raft.applying import LOT_ENTRIES_MAX, Applying
from region_broker.controller.raft.effects import ReadAsked
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Term
from region_broker.controller.raft.failures import Lost
from region_broker.controller.raft.needed_room import entries_bytes
from tests.fixtures.raft_groups import QUICK, Commands, Site, leader_of, several, until
from tests.simulation.simulated_loop import run_simulated

Body = Callable[[], Coroutine[Any, Any, None]]
LONG_S = 30
"""Many election timeouts."""


def simulated(body: Body) -> Callable[[], None]:
    """Run a test on simulated time."""

    def test() -> None:
        run_simulated(body(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


async def stand(*sites: Site) -> asyncio.Event:
    """Let their state machines wait, whatever they are given from now on, for the event."""
    await until(lambda: all(site.running.facts().commit_index >= 1 for site in sites))
    await asyncio.sleep(1)
    goes_on = asyncio.Event()
    for site in sites:
        site.machine.goes_on = goes_on
    return goes_on


# -- members of a group ------------------------------------------------------------------------


@simulated
async def test_INV_RAP1_a_leader_leads_on_while_all_state_machines_stand() -> None:
    async with several(3) as sites, asyncio.TaskGroup() as tasks:
        leader = sites[0].running
        term, goes_on = leader.term, await stand(*sites)
        proposed = [tasks.create_task(leader.propose(each)) for each in (b"a", b"b", b"c")]
        await asyncio.sleep(LONG_S)
        assert leader.leads
        assert {site.running.term for site in sites} == {term}
        last = leader.facts().last_index
        assert {site.running.facts().commit_index for site in sites} == {last}
        assert not any(each.done() for each in proposed)
        goes_on.set()
        assert [await each for each in proposed] == [last - 2, last - 1, last]
        await until(lambda: all(site.machine.taken == [b"a", b"b", b"c"] for site in sites))


@simulated
async def test_INV_RAP1_another_one_is_elected_while_all_state_machines_stand() -> None:
    async with several(3) as sites:
        goes_on = await stand(*sites)
        begun = asyncio.get_running_loop().create_task(sites[0].running.propose(b"a"))
        await asyncio.sleep(1)
        await sites[0].crash()
        with pytest.raises(Lost):
            await begun
        others = sites[1:]
        second = await leader_of(others)
        assert not goes_on.is_set()
        assert all(site.machine.taken == [b"a"] for site in others)
        goes_on.set()
        await second.running.propose(b"b")
        assert second.machine.taken == [b"a", b"b"]


@simulated
async def test_INV_RAP1_a_leaders_snapshot_is_loaded_behind_what_is_being_applied() -> None:
    async with several(3, snapshot_after_bytes=3000, settings=QUICK) as (leader, slow, _):
        goes_on = await stand(slow)
        await leader.running.propose(b"first")
        await until(lambda: slow.machine.taken == [b"first"])
        assert leader.bus is not None
        leader.bus.cut = {slow.me}
        for number in range(50):
            await leader.running.propose(b"%0200d" % number)
        leader.bus.cut = set()
        last = leader.running.facts().last_index
        await until(lambda: slow.running.facts().commit_index >= last)
        await asyncio.sleep(LONG_S)
        assert (slow.machine.loaded, slow.machine.taken) == (0, [b"first"])
        assert leader.running.leads
        goes_on.set()
        await until(lambda: slow.machine.taken == leader.machine.taken)
        assert slow.machine.loaded == 1


@simulated
async def test_INV_RAP2_a_read_is_answered_behind_what_was_committed_before_it() -> None:
    async with several(3) as sites:
        leader = sites[0]
        goes_on = await stand(leader)
        begun = asyncio.get_running_loop().create_task(leader.running.propose(b"a"))
        reading = asyncio.get_running_loop().create_task(leader.running.ask(ReadAsked))
        await asyncio.sleep(LONG_S)
        assert (begun.done(), reading.done()) == (False, False)
        goes_on.set()
        assert await reading <= await begun
        await leader.running.ask(ReadAsked)


@simulated
async def test_INV_RAP3_a_snapshot_has_nothing_of_what_is_being_applied() -> None:
    async with several(3, snapshot_after_bytes=3000, settings=QUICK) as (leader, slow, _):
        commands = [b"%0200d" % number for number in range(50)]
        for each in commands:
            if each == commands[30]:
                await until(lambda: slow.machine.taken == commands[:30])
                await stand(slow)
            await leader.running.propose(each)
        await asyncio.sleep(1)
        assert slow.machine.taken == commands[:31]
        await slow.crash()
        slow.start()
        await until(lambda: slow.machine.taken == commands)
        assert slow.machine.loaded == 1


@simulated
async def test_INV_RAP5_who_is_stopped_ends_what_is_under_way_and_the_next_start_does_the_rest() -> (
    None
):
    async with several(3) as sites:
        leader = sites[0]
        goes_on = await stand(leader)
        begun = [
            asyncio.get_running_loop().create_task(leader.running.propose(each))
            for each in (b"a", b"b")
        ]
        await asyncio.sleep(1)
        stopping = asyncio.get_running_loop().create_task(leader.stop())
        await asyncio.sleep(1)
        assert not stopping.done()
        goes_on.set()
        await stopping
        found = await asyncio.gather(*begun, return_exceptions=True)
        assert leader.machine.taken == [b"a"]
        assert isinstance(found[0], int)
        assert isinstance(found[1], Lost)
        leader.start()
        await until(lambda: leader.machine.taken == [b"a", b"b"])


@simulated
async def test_a_state_machine_that_raises_ends_the_member_with_what_it_raised() -> None:
    async with several(3) as sites:
        failing = sites[1]
        failing.machine.fails = ValueError("it cannot be")
        await sites[0].running.propose(b"a")
        assert failing.task is not None
        with pytest.raises(ValueError, match="it cannot be"):
            await failing.task


# -- the line ----------------------------------------------------------------------------------


def lot(index: int, payload: bytes = b"x") -> tuple[Entry, ...]:
    return (Entry(LogIndex(index), Term(1), EntryKind.COMMAND, payload),)


def line(machine: Commands, image_after_bytes: int = 1 << 30) -> Applying:
    return Applying(machine, LogIndex(0), image_after_bytes, lambda: None)


@simulated
async def test_INV_RAP4_what_waits_is_bounded_and_a_stop_lets_nobody_wait_for_room() -> None:
    machine = Commands()
    machine.goes_on = asyncio.Event()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(applying, "WAITING_BYTES_MAX", 2 * entries_bytes(lot(1)))
        patch.setattr(applying, "LOT_ENTRIES_MAX", 1)
        some = line(machine)
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(some.run())
            await some.add(lot(1, b"1"))
            await some.add(lot(2, b"2"))
            third = tasks.create_task(some.add(lot(3, b"3")))
            await asyncio.sleep(1)
            assert not third.done()
            machine.goes_on.set()
            await third
            machine.goes_on.clear()
            await some.add(lot(4))
            await some.add(lot(5))
            sixth = tasks.create_task(some.add(lot(6)))
            await asyncio.sleep(1)
            assert not sixth.done()
            some.stop()
            await sixth
            machine.goes_on.set()
    assert machine.taken[:3] == [b"1", b"2", b"3"]
    assert len(machine.taken) == 4, "what waited behind the one under way is for the next start"


@simulated
async def test_INV_RAP2_answers_come_in_the_step_in_which_what_they_wait_for_is_done() -> None:
    machine, told = Commands(), list[list[bytes]]()
    some = line(machine)

    def tell() -> None:
        told.append(list(machine.taken))

    some.behind(tell)
    assert told == [[]], "nothing waits"
    await some.add(lot(1, b"1"))
    some.behind(tell)
    await some.add(lot(2, b"2"))
    some.behind(tell)
    assert len(told) == 1
    await some.work_off()
    assert told[1:] == 2 * [[b"1", b"2"]], "both were given as one lot (INV-RAP6)"
    await some.add(lot(3, b"3"))
    some.behind(tell)
    await some.add_snapshot(LogIndex(4), b"four")
    some.behind(tell)
    await some.work_off()
    assert told[3:] == [[b"1", b"2", b"3"], [b"four"]]


@simulated
async def test_INV_RAP6_lots_that_wait_are_given_as_one_up_to_a_bound_and_not_over_a_snapshot() -> (
    None
):
    machine = Commands()
    some = line(machine)
    for index in range(1, 2 * LOT_ENTRIES_MAX + 2):
        await some.add(lot(index, b"%d" % index))
        some.behind(lambda: None)
    await some.work_off()
    assert machine.taken == [b"%d" % index for index in range(1, 2 * LOT_ENTRIES_MAX + 2)]
    assert machine.lots == 3
    behind = LogIndex(2 * LOT_ENTRIES_MAX + 9)
    await some.add(lot(behind - 7))
    await some.add_snapshot(behind, b"snapshot")
    await some.add(lot(behind + 1, b"last"))
    await some.work_off()
    assert (machine.taken, machine.lots) == ([b"snapshot", b"last"], 5)


@simulated
async def test_INV_RAP6_a_lot_that_is_larger_than_the_bound_is_given_as_it_is() -> None:
    machine = Commands()
    some = line(machine)
    large = tuple(lot(index)[0] for index in range(1, LOT_ENTRIES_MAX + 9))
    await some.add(large)
    await some.add(lot(large[-1].index + 1))
    await some.work_off()
    assert (len(machine.taken), machine.lots) == (len(large) + 1, 2)


@simulated
async def test_INV_RAP3_no_image_is_taken_while_a_newer_snapshot_waits() -> None:
    machine = Commands()
    some = line(machine, image_after_bytes=1)
    await some.add(lot(1, b"1"))
    await some.work_off()
    await some.add_snapshot(LogIndex(7), b"seven")
    assert some.take_image() is None
    await some.add(lot(8, b"8"))
    await some.work_off()
    taken = some.take_image()
    assert taken is not None
    assert (taken.index, taken.image) == (8, b"seven\n8")
    assert some.take_image() is None


@simulated
async def test_INV_RAP5_what_failed_is_gone_on_with_by_nobody() -> None:
    machine, told = Commands(), list[str]()
    some = line(machine)
    machine.fails = ValueError("it cannot be")
    await some.add(lot(1))
    with pytest.raises(ValueError, match="it cannot be"):
        await some.work_off()
    machine.fails = None
    some.behind(lambda: told.append("it was applied"))
    await some.add(lot(2))
    await some.work_off()
    assert (machine.taken, told) == ([], [])
