"""Long work that gives way: after how many rows, and who runs meanwhile (INV-HW2)."""

import asyncio
from typing import Any

from idempotency.pieces import Pieces, drained
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, YIELD_ROWS
from region_broker.wire.cooperative_yield import (
    CooperativeYield,
    each_yielding,
    run_yielding,
)


def full_at(yielding: CooperativeYield, rows: int, cost: int = 1) -> list[int]:
    """Return after which of so many rows a piece is full."""
    return [row for row in range(1, rows + 1) if yielding.due(cost)]


def test_INV_HW2_work_gives_way_after_so_many_rows_each_time() -> None:
    assert full_at(CooperativeYield(), 2 * YIELD_ROWS + 5) == [YIELD_ROWS, 2 * YIELD_ROWS]
    assert full_at(CooperativeYield(3), 7) == [3, 6]


def test_INV_HW2_a_row_that_costs_more_counts_for_more() -> None:
    assert full_at(CooperativeYield(10), 6, cost=4) == [3, 6]
    assert full_at(CooperativeYield(10), 2, cost=25) == [1, 2]


def test_INV_HW1_before_a_write_only_what_is_too_large_to_be_read_at_once_gives_way() -> None:
    assert full_at(CooperativeYield.of_a_write(), ELEMENTS_AT_ONCE_MAX + YIELD_ROWS) == [
        ELEMENTS_AT_ONCE_MAX, ELEMENTS_AT_ONCE_MAX + YIELD_ROWS,
    ]  # fmt: skip


async def turns_during(work: asyncio.Future[Any]) -> int:
    """Return how often others were served until `work` was done."""
    turns = 0
    while not work.done():
        await asyncio.sleep(0)
        turns += 1
    return turns


def three_pieces() -> Pieces[str]:
    for _ in range(3):
        yield
    return "done"


async def test_INV_HW2_the_loop_runs_after_each_piece_or_not_at_all() -> None:
    assert drained(three_pieces()) == "done"
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(run_yielding(three_pieces()))
        assert await turns_during(work) >= 3
    assert work.result() == "done"


async def test_INV_HW2_what_is_made_of_each_item_is_made_in_pieces() -> None:
    async with asyncio.TaskGroup() as tasks:
        work = tasks.create_task(each_yielding(range(6), str, CooperativeYield(2)))
        assert await turns_during(work) >= 3
    assert work.result() == ["0", "1", "2", "3", "4", "5"]
