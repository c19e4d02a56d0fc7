"""Tests marked `own_process` run in a pytest of their own: librdkafka may abort its process (see `own_process`)."""

import os
from collections.abc import Generator

import pytest

from tests.conftest import CLIENT_ABORTED
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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Give what aborted to the report: it may be shown by another process than this one."""
    report = yield
    report.user_properties.extend((CLIENT_ABORTED, text) for text in aborted)
    aborted.clear()
    return report
