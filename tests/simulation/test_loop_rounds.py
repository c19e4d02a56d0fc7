"""The rounds of the simulated loop beside asyncio's own, which do the same at a higher price (INV-LRD1)."""

import asyncio
import random
from typing import Any, Protocol

import pytest
from typing_extensions import override

from tests.simulation.loop_rounds import LoopRounds

pytestmark = pytest.mark.simulation

STEP_S = 1e-4
ENDS_AFTER = 800
DELAYS_S = (0.0, 0.001, 0.002, 0.01, 0.01, 0.01)
"""Few, so that most timers are due together with others, and the heap becomes large enough to be cleared."""


class Cancellable(Protocol):
    def cancel(self) -> None: ...


class OurRounds(LoopRounds):
    @override
    def time(self) -> float:
        return self._now_s

    @override
    def _wait(self, timeout_s: float | None) -> None:
        assert timeout_s is not None
        self._now_s += timeout_s + STEP_S


class _Jump:
    def __init__(self, loop: "AsyncioRounds") -> None:
        self._loop = loop

    def select(self, timeout_s: float | None) -> list[Any]:
        assert timeout_s is not None
        self._loop.now_s += timeout_s + STEP_S
        return []


class AsyncioRounds(asyncio.BaseEventLoop):
    """asyncio's own rounds, on the same time."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 0.0
        self._selector = _Jump(self)

    def _process_events(self, _events: list[Any]) -> None:
        return

    @override
    def time(self) -> float:
        return self.now_s


def played(loop: asyncio.AbstractEventLoop, seed: int) -> list[tuple[object, ...]]:
    """Return what happens on a loop, and when, where callbacks plan and cancel others by chance, and some fail."""
    chance, told = random.Random(seed), list[tuple[object, ...]]()
    planned: list[Cancellable] = []
    numbers = iter(range(10**9))

    def plan() -> Cancellable:
        if chance.random() < 0.25:
            return loop.call_soon(act, next(numbers))
        return loop.call_later(chance.choice(DELAYS_S), act, next(numbers))

    def act(number: int) -> None:
        told.append((number, loop.time()))
        planned.extend(plan() for _ in range(chance.choice((0, 2, 6))))
        for _ in range(chance.choice((0, 2, 9))):
            chance.choice(planned).cancel()
        if len(told) > ENDS_AFTER:
            loop.stop()
        elif chance.random() < 0.02:
            raise ValueError(number)

    def failed(_loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        told.append((context["message"], repr(context["exception"])))

    loop.set_exception_handler(failed)
    planned.extend(loop.call_soon(act, next(numbers)) for _ in range(50))
    loop.run_forever()
    loop.close()
    return told


@pytest.mark.parametrize("seed", range(8))
def test_INV_LRD1_callbacks_come_in_the_order_of_asyncio(seed: int) -> None:
    assert played(OurRounds(), seed) == played(AsyncioRounds(), seed)


def test_a_timer_tells_what_one_of_asyncio_tells() -> None:
    ours, theirs = OurRounds(), AsyncioRounds()
    loop: Any
    for loop in (ours, theirs):
        timer = loop.call_at(0, print)
        assert timer, "one that is due at 0 is no less a timer"
        assert (timer.when(), timer.cancelled()) == (0, False)
        timer.cancel()
        timer.cancel()
        assert timer.cancelled()
        assert loop._timer_cancelled_count == 1  # it clears by this count
        loop.close()
