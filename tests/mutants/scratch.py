"""A copy of the tree in a temporary folder, where one module at a time is wrong.

INV-MU4  the tree itself is never written
INV-MU5  a test that fails without the mutant has not noticed it
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.nearest import nearest_tests
from tests.mutants.operators import Mutant

_COPIED: Final = (
    "idempotency",
    "txn_coordinator",
    "geo_replicator",
    "region_broker",
    "chaos",
    "tests",
)
_NO_TESTS: Final = 5
TIME_OUT: Final = "a time-out"


@dataclass(slots=True)
class Scratch:
    """The copy; `limit_s` is what a mutant's tests may take."""

    root: Path
    limit_s: float
    _sound: dict[str, bool] = field(default_factory=dict)
    _written_s: int = 1_000_000_000

    @classmethod
    def of(cls, tree: Path, root: Path, limit_s: float) -> "Scratch":
        """Copy the tree (INV-MU4)."""
        for name in _COPIED:
            shutil.copytree(tree / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(tree / "pyproject.toml", root / "pyproject.toml")
        return cls(root, limit_s)

    def killer(self, mutant: Mutant, source: str) -> str | None:
        """Return the test that notices the mutant, None where none does."""
        tests = nearest_tests(self.root, mutant.path)
        self._write(mutant.path, mutant.applied(source))
        try:
            failed = self._first_failure(tests)
        finally:
            self._write(mutant.path, source)
        return failed if failed is not None and self._is_sound(failed, tests) else None

    def _is_sound(self, failed: str, tests: list[str]) -> bool:
        """Tell whether what failed with a mutant passes without (INV-MU5)."""
        asked = tests if failed == TIME_OUT else [failed]
        key = " ".join(asked)
        if key not in self._sound:
            self._sound[key] = self._first_failure(asked) is None
        return self._sound[key]

    def _write(self, path: str, text: str) -> None:
        # Compiled files are told apart by the second of a change and by size: no two writes have the same one.
        self._written_s += 2
        (self.root / path).write_text(text, "utf-8")
        os.utime(self.root / path, (self._written_s, self._written_s))

    def _first_failure(self, tests: list[str]) -> str | None:
        if not tests:
            return None
        command = [
            sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider",
            "-p", "tests.mutants.few_examples", *tests,
        ]  # fmt: skip
        with subprocess.Popen(
            command,
            cwd=self.root,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                output, _ = running.communicate(timeout=self.limit_s)
            except subprocess.TimeoutExpired:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
                return TIME_OUT
        if running.returncode in {0, _NO_TESTS}:
            return None
        for line in output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" ", 1)[1].partition(" - ")[0]
        return tests[0]
