"""A plugin of pytest: hypothesis tries few examples, always the same ones, and keeps nothing; no test runs for ever."""

import signal
from collections.abc import Generator
from types import FrameType
from typing import Final

import pytest
from hypothesis import settings

settings.register_profile(
    "mutants", max_examples=30, derandomize=True, database=None, deadline=None
)
settings.load_profile("mutants")

TEST_S_MAX: Final = 30
"""What one test may take; those that are asked take a few seconds at most without a mutant."""


def _ring(_number: int, _frame: FrameType | None) -> None:
    pytest.fail(f"not within {TEST_S_MAX} s")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call() -> Generator[None]:
    """Fail a test that does not end; the alarm rings again where somebody has caught the first one."""
    signal.signal(signal.SIGALRM, _ring)
    signal.setitimer(signal.ITIMER_REAL, TEST_S_MAX, 1)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
