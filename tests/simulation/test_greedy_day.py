"""Slow, idle and greedy clients on a loop whose time jumps: a short piece of `greedy_day`, which plays a whole one.

And that its eye for memory sees.
"""

import asyncio
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.fixtures.memory_census import Parts, grown, largest_tables, live_by_type
from tests.simulation.greedy_day import (
    LIVE_GROWTH_BYTES_MAX,
    PARTS,
    RESIDENT_GROWTH_BYTES_MAX,
    Memory,
)
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Region
from tests.simulation.simulated_loop import SimulatedLoop, Stalled, run_simulated

NOTHING_GREW = Parts(100 << 20, 90 << 20, 40 << 20, 1_000, 30 << 20, 1 << 20, 12)


@pytest.mark.slow
def test_minutes_among_greedy_clients_leave_nothing_behind() -> None:
    # In a process of its own: what clients of other tests left behind (librdkafka's threads, which connect again and
    # again) opens descriptors and takes memory here, too.
    asked = ["--hours", "0.05", "--seed", "5", "--rest", "6", "--slack", "6"]
    played = subprocess.run(
        [sys.executable, "-m", "tests.simulation.greedy_day", *asked],
        capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip
    assert played.returncode == 0, played.stdout + played.stderr


async def test_INV_SIL1_time_jumps_to_the_next_timer() -> None:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SimulatedLoop)
    began_s = loop.time()
    order: list[int] = []
    await asyncio.gather(*(_sleeper(delay_s, order) for delay_s in (86_400, 1, 3_600)))
    assert order == [1, 3_600, 86_400]
    assert 86_400 <= loop.time() - began_s < 86_401


async def test_INV_SIL2_a_job_for_a_thread_is_a_step_of_its_own() -> None:
    steps: list[str] = []
    job = asyncio.get_running_loop().run_in_executor(None, steps.append, "job")
    steps.append("caller")
    await job
    assert steps == ["caller", "job"]
    cancelled = asyncio.get_running_loop().run_in_executor(None, steps.append, "never")
    cancelled.cancel()
    await asyncio.sleep(1)
    assert steps == ["caller", "job"]


def test_INV_SIL4_a_loop_in_which_nothing_would_ever_happen_says_so() -> None:
    async def forever() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(Stalled):
        run_simulated(forever(), seed=1)


async def _sleeper(delay_s: int, order: list[int]) -> None:
    await asyncio.sleep(delay_s)
    order.append(delay_s)


class Leaky:
    """Something with a table that grows."""

    def __init__(self) -> None:
        self.forgotten: dict[int, bytes] = {}


@pytest.mark.slow
def test_the_census_sees_what_is_alive_by_type_and_by_place(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    leaky = Leaky()
    before, types = Parts.now(), live_by_type()
    leaky.forgotten = {number: bytes(1_000) for number in range(3_000)}
    with (tmp_path_factory.mktemp("census") / "open").open("w"):
        after = Parts.now()
    assert 3_000_000 <= after.live - before.live < 3_400_000
    assert after.objects - before.objects >= 3_000
    assert after.heap_used - before.heap_used >= 3_000_000
    assert after.descriptors - before.descriptors == 1
    assert grown(types, live_by_type(), 1).startswith("+3000 builtins.bytes (+30")
    assert largest_tables(leaky, 1)[0].startswith(".forgotten: 3000 in ")
    assert largest_tables(leaky, 1, but=(dict,)) == []
    leaky.forgotten.clear()
    assert Parts.now().live - before.live < 400_000


@pytest.mark.parametrize(
    ("grown_last", "what"),
    [
        (NOTHING_GREW, None),
        (replace(NOTHING_GREW, live=NOTHING_GREW.live + LIVE_GROWTH_BYTES_MAX), "alive"),
        (replace(NOTHING_GREW, after_trim=NOTHING_GREW.after_trim + RESIDENT_GROWTH_BYTES_MAX), "resident"),
        (replace(NOTHING_GREW, descriptors=NOTHING_GREW.descriptors + 1), "descriptors"),
    ],
)  # fmt: skip
def test_a_day_that_is_not_flat_fails(tmp_path: Path, grown_last: Parts, what: str | None) -> None:
    memory = Memory(
        Region("eu", tmp_path, Fabric(random.Random(1)), random.Random(2), ("eu",)), trace=False
    )
    memory.parts = [NOTHING_GREW] * (PARTS - 1) + [grown_last]
    memory.disk_bytes = [0] * PARTS
    memory.open_files = [0] * PARTS
    if what is None:
        memory.expect_flat()
        return
    with pytest.raises(AssertionError, match=what):
        memory.expect_flat()
