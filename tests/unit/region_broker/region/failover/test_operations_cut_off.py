"""An operation whose node stops leading before it has ended: as it is asked for where the region is led next."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from region_broker.region.failover.operations import FailoverOperations, Operation
from region_broker.region.failover.steps.effects import FailoverSteps
from tests.fixtures.failover_regions import Pair
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        await regions.eu.write("first")
        await regions.reached("first")
        yield regions


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> asyncio.Event:
    """Let no log be cut before this is set."""
    goes_on, cut = asyncio.Event(), FailoverSteps.cut

    async def late(*arguments: object) -> object:
        await goes_on.wait()
        return await cut(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(FailoverSteps, "cut", late)
    return goes_on


async def cut_off_while_cutting(pair: Pair) -> str:
    """Begin a failover to us, and end its driver with what is recorded; return the operation's id."""
    await pair.eu.kill()
    operation = pair.us.operations.begin_failover(confirmed=True)
    await pair.us.until(Phase.CUTTING)
    await lead_anew(pair)
    return operation.operation_id


async def lead_anew(pair: Pair) -> None:
    driver = pair.us.driver
    running_drivers = [
        task for task in asyncio.all_tasks()
        if task.get_coro().__qualname__ == "FailoverDriver.run"  # type: ignore[union-attr]
    ]  # fmt: skip
    (task,) = [
        task for task in running_drivers
        if task.get_coro().cr_frame.f_locals["self"] is driver  # type: ignore[union-attr]
    ]  # fmt: skip
    running, driver_run = task, driver.run
    running.cancel()
    await asyncio.wait({running})
    assert not driver.running
    pair.us._spawn(driver_run())
    await until(lambda: driver.running, "it leads again")


async def test_it_goes_on_at_the_node_that_leads_again(pair: Pair, held: asyncio.Event) -> None:
    operation_id = await cut_off_while_cutting(pair)
    operation = pair.us.operations.operation(operation_id)
    assert operation is not None
    assert (operation.status, operation.phase) == ("running", "cutting")
    held.set()
    await pair.us.ended(operation)
    assert (operation.status, operation.error) == ("succeeded", "")
    assert operation.ended_wall_ms > 0


async def test_it_is_shown_as_done_where_it_ended_before_anybody_asked(
    pair: Pair, held: asyncio.Event
) -> None:
    operation_id = await cut_off_while_cutting(pair)
    held.set()
    await pair.us.until(Phase.ACTING)
    operation = pair.us.operations.operation(operation_id)
    assert operation is not None
    assert (await pair.us.ended(operation)).status == "succeeded"


async def test_it_is_found_at_another_node_by_what_is_recorded(
    pair: Pair, held: asyncio.Event
) -> None:
    operation_id = await cut_off_while_cutting(pair)
    elsewhere = FailoverOperations(pair.us.driver, pair.us.operations._chance)
    assert elsewhere.operation("another") is None
    operation = elsewhere.operation(operation_id)
    assert operation is not None
    assert (operation.kind, operation.status, operation.region_epoch) == ("failover", "running", 17)
    held.set()
    assert (await pair.us.ended(operation)).status == "succeeded"


async def test_one_that_was_not_recorded_has_ended(pair: Pair) -> None:
    operations = pair.us.operations
    operation = operations._new("switch", "x", "eu")
    operations._cut_off.append(operation)
    assert operations.operation("x") is operation
    assert operation.status == "failed"
    assert "order it again" in operation.error


# -- what is recorded of it ------------------------------------------------------------------------

BEFORE = ["draining region eu", "waiting to reach the final"]
AFTER = [
    "fencing under region epoch 17",
    "fencing",
    "cutting",
    "adopting",
    "region us takes writes",
]


async def switched(pair: Pair, held: asyncio.Event) -> Operation:
    """Begin a switch to us, whose node is deposed while it cuts; return the operation as it was told there."""
    operation = pair.us.operations.begin_switch()
    await pair.us.until(Phase.CUTTING)
    await lead_anew(pair)
    held.set()
    return operation


def asked_elsewhere(pair: Pair, operation_id: str) -> Operation:
    found = FailoverOperations(pair.us.driver, pair.us.operations._chance).operation(operation_id)
    assert found is not None
    return found


def is_told_whole(found: Operation, begun: Operation) -> None:
    words = [*BEFORE, *AFTER]
    assert [step[: len(word)] for step, word in zip(found.steps, words, strict=True)] == words
    assert (found.kind, found.status, found.region_epoch) == ("switch", "succeeded", 17)
    assert found.started_wall_ms == begun.started_wall_ms
    assert 0 <= found.writes_paused_ms < 60_000


async def test_INV_FOP1_who_leads_next_tells_what_was_done_before_and_for_how_long_writes_paused(
    pair: Pair, held: asyncio.Event
) -> None:
    begun = await switched(pair, held)
    found = asked_elsewhere(pair, begun.operation_id)
    is_told_whole(await pair.us.ended(found), begun)
    same = pair.us.operations.operation(begun.operation_id)
    assert same is not None
    assert (await pair.us.ended(same)).writes_paused_ms == found.writes_paused_ms


async def test_INV_FOP1_also_where_nobody_asked_before_it_had_ended(
    pair: Pair, held: asyncio.Event
) -> None:
    begun = await switched(pair, held)
    await pair.us.until(Phase.ACTING)
    is_told_whole(await pair.us.ended(asked_elsewhere(pair, begun.operation_id)), begun)
    await pair.eu.until(Phase.MIRRORING)
    back = pair.eu.operations.begin_switch()
    assert (await pair.eu.ended(back)).status == "succeeded"
    found = asked_elsewhere(pair, begun.operation_id)
    assert (found.status, found.phase) == ("succeeded", "acting")
    assert found.writes_paused_ms >= 0


async def test_INV_FOP1_a_failover_of_the_dead_tells_no_pause(
    pair: Pair, held: asyncio.Event
) -> None:
    """Since when writes had stopped the old region only could say."""
    operation_id = await cut_off_while_cutting(pair)
    held.set()
    await pair.us.until(Phase.ACTING)
    found = await pair.us.ended(asked_elsewhere(pair, operation_id))
    assert (found.kind, found.status, found.writes_paused_ms) == ("failover", "succeeded", -1)
    assert found.steps == AFTER
