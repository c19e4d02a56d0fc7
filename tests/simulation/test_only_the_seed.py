"""Whatever could decide beside the seed is refused on a simulated loop, and whoever hides that is found out."""

import concurrent.futures
import contextlib
import os
import random
import threading
import time
import uuid

import pytest

from tests.simulation.only_the_seed import NotOfTheSeed
from tests.simulation.simulated_loop import run_simulated

pytestmark = pytest.mark.simulation

ASKED: dict[str, tuple[object, str, tuple[object, ...]]] = {
    "the clock": (time, "time", ()),
    "a stopwatch": (time, "monotonic_ns", ()),
    "a pause": (time, "sleep", (0,)),
    "chance": (random, "choice", ("ab",)),
    "the chance of the system": (random.SystemRandom(), "random", ()),
    "random bytes": (os, "urandom", (1,)),
    "an id": (uuid, "uuid4", ()),
    "a thread": (threading.Thread(target=print), "start", ()),
}


@pytest.mark.parametrize("asked", ASKED)
def test_INV_OS1_what_is_not_of_the_seed_fails_a_run_even_where_it_is_handled(asked: str) -> None:
    async def hide() -> None:
        owner, name, arguments = ASKED[asked]
        with contextlib.suppress(NotOfTheSeed):
            getattr(owner, name)(*arguments)

    with pytest.raises(NotOfTheSeed, match="asked for "):
        run_simulated(hide(), seed=1)


def test_INV_OS1_a_thread_of_somebody_else_may_ask_for_the_time() -> None:
    begun, told = threading.Event(), list[float]()

    def ask() -> None:
        begun.wait()
        told.append(time.monotonic())

    other = threading.Thread(target=ask)
    other.start()

    async def until_it_asked() -> None:
        begun.set()
        other.join()

    run_simulated(until_it_asked(), seed=1)
    assert told


async def test_INV_OS2_a_pool_of_threads_works_in_order_in_the_thread_of_the_loop() -> None:
    done: list[tuple[int, int]] = []
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        pool.map(lambda number: done.append((number, threading.get_ident())), range(5))
    assert done == [(number, threading.get_ident()) for number in range(5)]
