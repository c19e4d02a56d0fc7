"""While a simulated loop runs nothing but its seed decides: what else could is refused, or is made to happen in order.

INV-OS1  whoever asks the machine for the time, for randomness or for a thread gets `NotOfTheSeed`, and the run fails at its
         end, too, where somebody handled that; who only writes the time down may ask (`STAMPS`)
         A thread that was there before belongs to somebody else (Spark's in a test before), and decides nothing here
INV-OS2  what goes to a pool of threads runs at once, in order
The collector of unreachable objects runs by the count of rounds: what it ends may send, or write.

Not here: sets that hash by address. Two processes show them (`test_swarm`), where `--events` tells the first difference.
"""

import concurrent.futures
import contextlib
import gc
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final
from unittest import mock

STAMPS: Final = frozenset(
    {
        "logging",
        "prometheus_client",
        "sqlalchemy",
        "_pytest",
        "tests.simulation.greedy_day",
        "tests.fixtures.greedy_clients",
    }
)
"""Modules, and packages, that ask for the time and decide nothing by it."""

_TIMES: Final = (
    "time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "process_time", "sleep",
)  # fmt: skip
_DRAWS: Final = (
    "random", "uniform", "randint", "randrange", "choice", "choices", "shuffle", "sample", "getrandbits", "randbytes",
    "gauss", "expovariate", "betavariate", "normalvariate", "triangular", "_urandom",
)  # fmt: skip


class NotOfTheSeed(AssertionError):
    """Something else than the seed would have decided."""


@contextlib.contextmanager
def only_the_seed() -> Iterator[None]:
    """Refuse everything else; raises `NotOfTheSeed` at the end where it was asked for."""
    asked: list[str] = []
    with contextlib.ExitStack() as stack:
        for module, names in ((time, _TIMES), (random, _DRAWS), (os, ("urandom",))):
            for name in names:
                refusing = _refusing(module.__name__, getattr(module, name), asked)
                stack.enter_context(mock.patch.object(module, name, refusing))
        start = _refusing("threading.Thread", threading.Thread.start, asked)
        stack.enter_context(mock.patch.object(threading.Thread, "start", start))
        pool = concurrent.futures.ThreadPoolExecutor
        stack.enter_context(mock.patch.object(pool, "submit", _run_at_once))
        if gc.isenabled():
            gc.disable()
            stack.callback(gc.enable)
        yield
    if asked:
        raise NotOfTheSeed("; ".join(asked))


def _refusing(owner: str, real: Callable[..., Any], asked: list[str]) -> Callable[..., Any]:
    ours = threading.get_ident()

    def refuse(*args: Any, **options: Any) -> Any:
        if threading.get_ident() != ours:
            return real(*args, **options)
        caller = _name_of(sys._getframe(1).f_globals)
        if {caller, caller.partition(".")[0]} & STAMPS:
            return real(*args, **options)
        asked.append(f"{caller} asked for {owner}.{real.__name__}")
        raise NotOfTheSeed(asked[-1])

    return refuse


def _name_of(module: Mapping[str, Any]) -> str:
    """Return what a module is imported by, also where it is run as `__main__`."""
    spec = module.get("__spec__")
    return str(module.get("__name__") if spec is None else spec.name)


def _run_at_once(
    _pool: concurrent.futures.Executor, func: Callable[..., Any], /, *args: Any, **options: Any
) -> concurrent.futures.Future[Any]:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        future.set_result(func(*args, **options))
    except Exception as error:  # noqa: BLE001 - whoever asks for the result gets it, as from a thread
        future.set_exception(error)
    return future
