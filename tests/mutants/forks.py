"""One pytest that has read every test once, and asks them about each mutant in a child of its own.

INV-MU8  a mutant is in its child only: there the code of its module's functions is exchanged, whoever holds them
Not here: what runs when a module is imported (`scratch`).
"""

import gc
import importlib
import os
import select
import signal
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import CodeType, FunctionType
from typing import Final

import pytest

from tests.mutants.nearest import lines_around
from tests.mutants.operators import Mutant
from tests.mutants.runs import CRASH, TIME_OUT

_PIECE_BYTES: Final = 65_536


@dataclass(slots=True)
class Forks:
    """A plugin of pytest: it runs `judge` in place of the tests, which asks some of them at a time."""

    root: Path
    paths: list[str]
    limit_s: float
    judge: Callable[["Forks"], None]
    _items: dict[str, pytest.Item] = field(default_factory=dict)
    _functions: dict[str, list[FunctionType]] = field(default_factory=lambda: defaultdict(list))
    _failed: str | None = None

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        """Judge, once all is imported."""
        self._items = {item.nodeid: item for item in session.items}
        files = {str(self.root / path): path for path in self.paths}
        for path in self.paths:
            importlib.import_module(path.removesuffix(".py").replace("/", "."))
        gc.unfreeze()
        for each in gc.get_objects():
            if type(each) is FunctionType and each.__code__.co_filename in files:
                self._functions[files[each.__code__.co_filename]].append(each)
        gc.freeze()
        self.judge(self)
        return True

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Note what failed in this child."""
        if report.failed and self._failed is None:
            self._failed = report.nodeid

    def takes(self, mutant: Mutant, source: str) -> bool:
        """Return whether a mutant is in the body of a function, and of one that can be exchanged."""
        inside = lines_around(source, mutant) is not None
        return inside and self._exchanged(mutant, source) is not None

    def first_failure(self, tests: list[str], mutant: Mutant | None, source: str) -> str | None:
        """Return the first of the tests that fails in a child with the mutant, None where none does."""
        items = [self._items[test] for test in tests if test in self._items]
        exchanged = self._exchanged(mutant, source) if mutant is not None else []
        assert exchanged is not None, mutant
        reading, writing = os.pipe()
        child = os.fork()
        if child == 0:
            self._in_child(items, exchanged, writing)
        os.close(writing)
        try:
            return _said(reading, self.limit_s)
        finally:
            os.close(reading)
            _killed(child)

    def _in_child(
        self, items: list[pytest.Item], exchanged: list[tuple[FunctionType, CodeType]], writing: int
    ) -> None:
        """Run tests up to the first that fails, say its name, and end."""
        failed: str | None = None
        try:
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            silent = os.open(os.devnull, os.O_WRONLY)
            os.dup2(silent, sys.stdout.fileno())
            os.dup2(silent, sys.stderr.fileno())
            for function, code in exchanged:
                function.__code__ = code
            for item, following in zip(items, [*items[1:], None], strict=True):
                failed = (
                    item.nodeid
                )  # until it has passed: it may leave by an error that pytest does not catch
                item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
                failed = self._failed
                if failed is not None:
                    break
        finally:
            os.write(writing, f"{failed or ''}\n".encode())
            os._exit(0)

    def _exchanged(self, mutant: Mutant, source: str) -> list[tuple[FunctionType, CodeType]] | None:
        """Return the functions of a mutant's module with their new code; None where one has no counterpart (INV-MU8)."""
        file = str(self.root / mutant.path)
        was, now = (_codes(text, file) for text in (source, mutant.applied(source)))
        names = {code: name for name, code in was.items()}
        exchanged = []
        for function in self._functions[mutant.path]:
            name = names.get(function.__code__)
            code = None if name is None else now.get(name)
            if code is None or len(code.co_freevars) != len(function.__code__.co_freevars):
                return None
            exchanged.append((function, code))
        return exchanged


def _codes(text: str, file: str) -> dict[tuple[str, int], CodeType]:
    """Return the code of all functions of a module, by their dotted name and how many have it before."""
    often: Counter[str] = Counter()
    found = {}
    for code in _inside(compile(text, file, "exec", dont_inherit=True)):
        found[code.co_qualname, often[code.co_qualname]] = code
        often[code.co_qualname] += 1
    return found


def _inside(code: CodeType) -> Iterator[CodeType]:
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield each
            yield from _inside(each)


def _said(reading: int, limit_s: float) -> str | None:
    """Return the test that a child names, None for none; it may not end in time, or end without a word."""
    until_s = time.monotonic() + limit_s
    said = b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([reading], [], [], max(0.0, until_s - time.monotonic()))
        if not ready:
            return TIME_OUT
        piece = os.read(reading, _PIECE_BYTES)
        if not piece:
            return CRASH
        said += piece
    return said.decode().strip() or None


def _killed(child: int) -> None:
    """End a child with all that it started."""
    try:
        os.killpg(child, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(
            child, signal.SIGKILL
        )  # not yet the leader of a group; it is no zombie's fault where it has ended
    os.waitpid(child, 0)
