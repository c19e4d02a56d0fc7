"""A plugin of pytest: notes for each test which lines of the cores it runs, how long it takes, and whether it passes.

One JSON object a line into the file that `RECORD` names; the lines of a file are the bits of one number.
"""

import json
import os
import sys
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import Path
from types import CodeType, FrameType
from typing import Final

import pytest

from tests.mutants.draw import pure_modules
from tests.mutants.nearest import RECORD

_ROOT: Final = Path(__file__).resolve().parents[2]
_PURE: Final = {f"{_ROOT}/{path}": path for path in pure_modules(_ROOT)}
_CALLS_MAX: Final = 200
"""Calls of a function that are followed line by line in one test: later ones would tell little and take long."""


class _Noted:
    """What the test under way has run."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Forget the test before."""
        self.ran: defaultdict[str, set[int]] = defaultdict(set)
        self.calls: Counter[CodeType] = Counter()
        self.passed = True

    def called(self, frame: FrameType, _event: str, _arg: object) -> "_Noted._Trace | None":
        """Follow a call of a core."""
        code = frame.f_code
        path = _PURE.get(code.co_filename)
        if path is None or self.calls[code] >= _CALLS_MAX:
            return None
        self.calls[code] += 1
        return self._Trace(self.ran[path])

    class _Trace:
        """Notes the lines of one call."""

        __slots__ = ("_lines",)

        def __init__(self, lines: set[int]) -> None:
            self._lines = lines

        def __call__(self, frame: FrameType, _event: str, _arg: object) -> "_Noted._Trace":
            self._lines.add(frame.f_lineno)
            return self


_noted: Final = _Noted()


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None]:
    """Trace one test with its fixtures."""
    _noted.begin()
    began_s = time.process_time()
    threading.settrace(_noted.called)
    sys.settrace(_noted.called)
    yield
    sys.settrace(None)
    row = {
        "test": item.nodeid,
        "passed": _noted.passed,
        "took_s": round(time.process_time() - began_s, 3),
        "ran": {path: hex(sum(1 << line for line in lines)) for path, lines in _noted.ran.items()},
    }
    with Path(os.environ[RECORD]).open("a", encoding="utf-8") as record:
        record.write(json.dumps(row) + "\n")


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note what failed: it can tell nothing of a mutant."""
    if not report.passed:
        _noted.passed = False
