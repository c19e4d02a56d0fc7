"""Where simulated regions keep what is not simulated (SQLite): in memory, if the machine has such a folder.

Everything else of theirs lies on a disk in memory anyway; a busy real disk would only slow the runs down.
"""

import logging
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    """Return an empty folder of this test."""
    root = MEMORY if MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix="tidemark-", dir=root) as folder:
        yield Path(folder)


@pytest.fixture
def silence() -> Iterator[None]:
    """Say nothing of the last words of processes that the test kills."""
    logging.disable(logging.ERROR)
    yield
    logging.disable(logging.NOTSET)
