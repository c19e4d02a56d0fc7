"""For every test: what is compiled is kept, what was there before is no garbage, aborted clients are shown, what is left holds no secret, and a run
that has only so long begins no more searches behind that.

A shell may forbid Python to keep what it compiles (PYTHONDONTWRITEBYTECODE, as containers often do). Then each process
that a test starts would compile the whole program again, which takes longer than all else that most of them do.
"""

import gc
import os
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Final

import pytest
from xdist.remote import Producer

from region_broker.ports.system.clock import SystemClock
from region_broker.workbench.credentials import present_as, presented
from tests import searches
from tests.fixtures import secret_scan
from tests.work_units import WorkUnits

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


UNTIL: Final = "SEARCHES_UNTIL_S"
"""Second of the wall clock after which no search begins any more; without it all do. For `.ci/run` on a slow machine."""
TURN: Final = "SEARCHES_TURN"
"""Which searches come first, and so which are left out: any text, as the commit (INV-TSE2)."""


def _is_life(item: pytest.Item) -> bool:
    return item.get_closest_marker("simulation") is not None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Put what searches behind all else: what a slow machine leaves out is a part of that."""
    turn = os.environ.get(TURN, "")
    items.sort(key=lambda item: searches.place(item.nodeid, is_life=_is_life(item), turn=turn))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> WorkUnits | None:
    """Let `--dist loadfile` keep together what `tests.work_units` says."""
    return WorkUnits(config, log) if config.getoption("dist") == "loadfile" else None


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Leave out a search that would begin too late; the summary counts and names it."""
    until_s = float(os.environ.get(UNTIL, "inf"))
    is_search = searches.rank(item.nodeid, is_life=_is_life(item)) > 0
    if is_search and SystemClock().wall_ms() > 1000 * until_s:
        pytest.skip(f"this machine is slow: no search begins behind the time of {UNTIL}")


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


# --- who asks is who asked before ------------------------------------------------------------------


def _who_asks() -> Iterator[None]:
    """Ask afterwards as whom was asked before: commands and drills that log in do so for their whole process."""
    before = presented()
    yield
    present_as(before)


_who_asks_in_the_module = pytest.fixture(scope="module", autouse=True)(_who_asks)
_who_asks_in_a_test = pytest.fixture(autouse=True)(_who_asks)


# --- nothing that a test leaves holds a secret ------------------------------------------------------


_TOLD = "secrets were printed or logged (docs/TESTING.md, What a test leaves):"


def _is_scanned(request: pytest.FixtureRequest) -> bool:
    return secret_scan.is_scanned(request.path.relative_to(request.config.rootpath).as_posix())


@pytest.fixture
def tmp_path(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """Yield pytest's folder; when all that used it has ended it is looked through."""
    yield tmp_path
    if _is_scanned(request):
        secret_scan.fail_where_found(tmp_path)


@pytest.fixture(scope="module", autouse=True)
def _folders_of_the_module(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[None]:
    """Look through the folders that fixtures of a whole module have used."""
    if not _is_scanned(request):
        yield
        return
    base = tmp_path_factory.getbasetemp()
    before = set(base.iterdir())
    yield
    made = (each for each in base.iterdir() if each not in before and not each.is_symlink())
    secret_scan.fail_where_found(*made)


@pytest.fixture(scope="session", autouse=True)
def _folders_of_the_session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Look through all that is left of a whole run: folders of fixtures that several modules share, too."""
    yield
    if secret_scan.is_of_a_whole_run():
        secret_scan.fail_where_found(tmp_path_factory.getbasetemp())


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:  # fmt: skip
    """Look through what a test has printed and logged."""
    report = yield
    if report.when == "teardown" and secret_scan.is_scanned(item.location[0]):
        found = [
            each
            for name, text in report.sections
            for each in secret_scan.found_in_text(f"{item.nodeid}, {name}", text)
        ]
        if found:
            report.outcome = "failed"
            report.longrepr = "\n".join((_TOLD, *found))
    return report
