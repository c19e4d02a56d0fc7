"""Sets the wall clock of this process back, if `CLOCK_SET_BACK_S` says so: Python imports this before anything else."""

import os
import time
from collections.abc import Callable
from typing import Final

_BACK_S: Final = int(os.environ.get("CLOCK_SET_BACK_S", "0"))


def _earlier(now_s: Callable[[], float], now_ns: Callable[[], int]) -> None:
    time.time = lambda: now_s() - _BACK_S  # noqa: TID251 -- this is the clock that is set back
    time.time_ns = lambda: now_ns() - _BACK_S * 1_000_000_000


if _BACK_S:
    _earlier(time.time, time.time_ns)  # noqa: TID251 -- as above
