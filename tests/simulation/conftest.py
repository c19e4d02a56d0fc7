"""Every test here runs on a loop whose time is simulated, with chance of its own from its name: again is the same."""

import logging
import random
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path

import pytest

from tests.simulation.simulated_loop import SimulatedLoop


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], SimulatedLoop]]:
    """Return what makes the loop of a test (pytest-asyncio asks)."""
    return {"simulated": partial(_loop_of, item.nodeid)}


def _loop_of(name: str) -> SimulatedLoop:
    return SimulatedLoop(random.Random(name))


@pytest.fixture
def tmp_path() -> Path:
    """Return where the folders of this test lie: on simulated disks, so always at the same place."""
    return Path("/simulated")


@pytest.fixture
def silence() -> Iterator[None]:
    """Say nothing of the last words of processes that the test kills."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
