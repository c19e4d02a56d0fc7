"""Moves the wall clock of this process, if `CLOCK_MOVED_S` says so: Python imports this before anything else."""

import os
import time
from collections.abc import Callable
from typing import Final

_MOVED_S: Final = int(os.environ.get("CLOCK_MOVED_S", "0"))


def _move(now_s: Callable[[], float], now_ns: Callable[[], int]) -> None:
    time.time = lambda: now_s() + _MOVED_S  # noqa: TID251 -- this is the clock that is moved
    time.time_ns = lambda: now_ns() + _MOVED_S * 1_000_000_000


if _MOVED_S:
    _move(time.time, time.time_ns)  # noqa: TID251 -- as above
