"""Shows at the end of a test run which client processes aborted, in whatever worker that was."""

import pytest

CLIENT_ABORTED = "client process aborted"
_seen: list[str] = []


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
