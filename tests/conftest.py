"""For every test: what is compiled is kept, what was there before is no garbage, and aborted clients are shown.

A shell may forbid Python to keep what it compiles (PYTHONDONTWRITEBYTECODE, as containers often do). Then each process
that a test starts would compile the whole program again, which takes longer than all else that most of them do.
"""

import gc
import os
import sys
from collections.abc import Generator

import pytest

CLIENT_ABORTED = "client process aborted"
_seen: list[str] = []


def pytest_configure() -> None:
    """Let this process and those that it starts keep what they compile."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    sys.dont_write_bytecode = False


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Look for no garbage while modules and tests are read, and not among them afterwards."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.collect()
        gc.freeze()
        gc.enable()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Collect; called in the process that prints, also for tests of other workers."""
    _seen.extend(str(text) for name, text in report.user_properties if name == CLIENT_ABORTED)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what was collected."""
    if not _seen:
        return
    terminalreporter.section(
        "CLIENT PROCESSES THAT ABORTED (see docs/TESTING.md)", red=True, bold=True
    )
    for text in dict.fromkeys(_seen):
        terminalreporter.write_line(text)
