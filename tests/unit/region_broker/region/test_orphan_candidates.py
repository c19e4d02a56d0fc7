"""What a region that takes over finds open in its logs (T21)."""

import asyncio
from types import SimpleNamespace
from typing import cast

from idempotency.identity import ProducerEpoch, ProducerId
from idempotency.partition_state import OpenTxn
from region_broker.limits import YIELD_ROWS
from region_broker.region.ports import OrphanCandidate, RegionLog
from region_broker.region.role import orphan_candidates
from tests.unit.region_broker.groups.fakes import tp


class OpenLog:
    """A log in which so many transactions are open; counts who asked."""

    asked = 0

    def __init__(self, number: int, open_count: int) -> None:
        self.tp = tp(number)
        self.state = SimpleNamespace(open_transactions=self._open_transactions)
        self._open_count = open_count

    def _open_transactions(self) -> list[OpenTxn]:
        OpenLog.asked += 1
        return [OpenTxn(ProducerId(n), ProducerEpoch(0), n, 0) for n in range(self._open_count)]


def logs_of(count: int, open_count: int) -> list[RegionLog]:
    OpenLog.asked = 0
    return cast("list[RegionLog]", [OpenLog(number, open_count) for number in range(count)])


async def asked_in_steps(logs: list[RegionLog]) -> tuple[list[OrphanCandidate], list[int]]:
    """Return what is found, and how many logs were asked up to each turn of others."""
    steps: list[int] = []
    async with asyncio.TaskGroup() as group:
        gathering = group.create_task(orphan_candidates(logs))
        while not gathering.done():
            await asyncio.sleep(0)
            steps.append(OpenLog.asked)
    return gathering.result(), steps


async def test_INV_TA4_what_is_open_is_gathered_log_by_log_while_others_are_served() -> None:
    """Two million open transactions were gathered in one step: the node was fenced, and so was each next one."""
    found, steps = await asked_in_steps(logs_of(6, YIELD_ROWS))
    assert steps[:6] == [1, 2, 3, 4, 5, 6]
    assert [at.partition for at, _ in found] == [n for n in range(6) for _ in range(YIELD_ROWS)]


async def test_INV_TA4_logs_in_which_nothing_is_open_count_too() -> None:
    found, steps = await asked_in_steps(logs_of(3 * YIELD_ROWS, 0))
    assert found == []
    assert steps[:3] == [YIELD_ROWS, 2 * YIELD_ROWS, 3 * YIELD_ROWS]
