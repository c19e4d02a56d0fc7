"""Tests marked `own_process` run in a pytest of their own: librdkafka may abort its process (see `own_process`)."""

import os

import pytest

from tests.process.own_process import aborted, run_until_no_signal

_INSIDE = "TIDEMARK_TEST_IN_OWN_PROCESS"


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    if pyfuncitem.get_closest_marker("own_process") is None or _INSIDE in os.environ:
        return None
    run_until_no_signal(
        lambda _life: ["-m", "pytest", "-q", "-p", "no:cacheprovider", pyfuncitem.nodeid],
        environment={**os.environ, _INSIDE: "1"},
    )
    return True


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if not aborted:
        return
    terminalreporter.section(
        "CLIENT PROCESSES THAT ABORTED (see docs/TESTING.md)", red=True, bold=True
    )
    for text in aborted:
        terminalreporter.write_line(text)
