"""A plugin of pytest: notes for each test which functions of the pure cores it runs, how long it takes, and whether it passes.

One JSON object a line into the file that `RECORD` names. Functions are told apart by file and first line.
"""

import json
import os
import sys
import threading
import time
from collections.abc import Generator
from pathlib import Path
from types import FrameType
from typing import Final

import pytest

RECORD: Final = "MUTANTS_RECORD"
_ROOT: Final = Path(__file__).resolve().parents[2]
_PURE: Final = tuple(
    f"{_ROOT}/{name}/" for name in ("idempotency", "txn_coordinator", "geo_replicator")
)


class _Noted:
    """What the test under way has run."""

    def __init__(self) -> None:
        self.ran: set[tuple[str, int]] = set()
        self.passed = True

    def called(self, frame: FrameType, _event: str, _arg: object) -> None:
        """Note one call; nothing inside of it is traced."""
        code = frame.f_code
        if code.co_filename.startswith(_PURE):
            self.ran.add((code.co_filename, code.co_firstlineno))


_noted: Final = _Noted()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Trace one test with its fixtures."""
    _noted.ran, _noted.passed = set(), True
    began_s = time.monotonic()
    threading.settrace(_noted.called)
    sys.settrace(_noted.called)
    yield
    sys.settrace(None)
    ran = sorted((str(Path(name).relative_to(_ROOT)), line) for name, line in _noted.ran)
    row = {
        "test": item.nodeid,
        "passed": _noted.passed,
        "took_s": round(time.monotonic() - began_s, 3),
        "ran": ran,
    }
    with Path(os.environ[RECORD]).open("a", encoding="utf-8") as record:
        record.write(json.dumps(row) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what failed: it can tell nothing of a mutant."""
    if not report.passed:
        _noted.passed = False
