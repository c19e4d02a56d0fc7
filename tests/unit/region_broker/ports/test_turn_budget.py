"""So much work in one turn of the event loop, and what is more in later ones, by turns of who asks."""

import asyncio
from functools import partial

from region_broker.ports.turn_budget import TURN_COST_MAX, TurnBudget


class Worked:
    """What was begun, by the turn of the loop in which it was; each piece costs a quarter of a budget."""

    def __init__(self) -> None:
        self.turns = TurnBudget()
        self.begun: list[list[str]] = [[]]

    def work(self, name: str) -> None:
        self.begun[-1].append(name)
        self.turns.spend(TURN_COST_MAX // 4)

    async def pass_turns(self, count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)
            self.begun.append([])


async def test_INV_LTB1_what_goes_beyond_a_turn_is_begun_in_later_ones() -> None:
    worked = Worked()
    for number in range(10):
        worked.turns.later("one", partial(worked.work, str(number)))
    await worked.pass_turns(4)
    assert [len(turn) for turn in worked.begun] == [4, 4, 2, 0, 0]
    assert [each for turn in worked.begun for each in turn] == [str(each) for each in range(10)]
    assert not worked.turns.is_spent


async def test_INV_LTB1_what_is_begun_counts_once_it_is_known_what_it_cost() -> None:
    worked = Worked()
    worked.turns.later("one", partial(worked.turns.spend, 100 * TURN_COST_MAX))
    worked.turns.later("one", partial(worked.work, "behind it"))
    await asyncio.sleep(0)
    assert worked.turns.is_spent
    assert worked.begun == [[]]
    await asyncio.sleep(0)
    assert worked.begun == [["behind it"]]


async def test_INV_LTB2_who_asks_for_little_does_not_wait_for_all_that_others_asked_for() -> None:
    worked = Worked()
    for number in range(100):
        worked.turns.later("much", partial(worked.work, f"much {number}"))
    worked.turns.later("little", partial(worked.work, "little"))
    await worked.pass_turns(1)
    assert worked.begun[0][:2] == ["much 0", "little"]


async def test_INV_LTB2_what_waits_waits_once_and_is_withdrawn() -> None:
    worked = Worked()
    twice, never = partial(worked.work, "once"), partial(worked.work, "never")
    worked.turns.later("one", twice)
    worked.turns.later("one", twice)
    worked.turns.later("one", never)
    worked.turns.withdraw("one", never)
    worked.turns.withdraw("one", never)
    await worked.pass_turns(3)
    assert worked.begun[0] == ["once"]
    assert not any(worked.begun[1:])


async def test_INV_LTB2_what_goes_on_in_pieces_has_one_of_them_begun_in_a_turn() -> None:
    worked = Worked()

    def piece() -> None:
        worked.begun[-1].append("piece")
        worked.turns.later("one", piece)

    worked.turns.later("one", piece)
    await worked.pass_turns(3)
    worked.turns.withdraw("one", piece)
    await worked.pass_turns(1)
    assert worked.begun == [["piece"], ["piece"], ["piece"], [], []]


async def test_INV_LTB2_what_fails_keeps_nobody_behind_it_waiting() -> None:
    worked, told = Worked(), list[object]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: told.append(context))

    def fail() -> None:
        raise ValueError("for the test")

    worked.turns.later("one", fail)
    worked.turns.later("one", partial(worked.work, "behind it"))
    await worked.pass_turns(2)
    assert len(told) == 1
    assert ["behind it"] in worked.begun


async def test_INV_LTB3_small_work_now_and_then_sets_no_callback() -> None:
    worked, was_due = Worked(), list[bool]()
    for _ in range(4):
        worked.work("some")
        was_due.append(worked.turns._is_due)
    # From half of a budget on: the next turn begins with a whole one.
    assert was_due == [False, True, True, True]
    assert worked.turns.is_spent
    await asyncio.sleep(0)
    assert worked.turns._spent == 0
