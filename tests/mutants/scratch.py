"""A copy of the tree in a temporary folder, where one module at a time is wrong.

INV-MU4  the tree itself is never written
INV-MU5  a test that fails without the mutant has not noticed it; one that ends without the mutant and not with it has
INV-MU7  whoever ends the tool ends its tests, and takes its folder away
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.functions_run import RECORD
from tests.mutants.nearest import FOLDERS, Seen, nearest_tests
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
_SHARE_OF_TESTS: Final = 6
"""Tests that take a sixth of the limit without a mutant are asked: the rest is for the start, and for a busy machine."""
TIME_OUT: Final = "a time-out"


@dataclass(slots=True)
class Scratch:
    """The copy; `limit_s` is what a mutant's tests may take."""

    root: Path
    limit_s: float
    seen: Seen = field(default_factory=Seen)
    _sound: dict[str, bool] = field(default_factory=dict)
    _written_s: int = 1_000_000_000

    @classmethod
    def of(cls, tree: Path, root: Path, limit_s: float) -> "Scratch":
        """Copy the tree (INV-MU4)."""
        for name in _COPIED:
            shutil.copytree(tree / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(tree / "pyproject.toml", root / "pyproject.toml")
        return cls(root, limit_s)

    def watch(self, record: Path) -> None:
        """Run every test that may be asked, once, and note what it runs; or read what was noted before."""
        if not record.exists():
            noting = {**os.environ, RECORD: str(record)}
            folders = [name for name in FOLDERS if (self.root / name).exists()]
            self._run(["-p", "tests.mutants.functions_run", *folders], noting, None)
        self.seen = Seen.read(record.read_text("utf-8").splitlines())

    def asked(self, mutant: Mutant, source: str) -> list[str]:
        """Return the tests that may notice the mutant."""
        return nearest_tests(self.root, self.seen, mutant, source, self.limit_s / _SHARE_OF_TESTS)

    def killer(self, mutant: Mutant, source: str) -> str | None:
        """Return the test that notices the mutant, None where none does."""
        tests = self.asked(mutant, source)
        self._write(mutant.path, mutant.applied(source))
        try:
            failed = self._first_failure(tests)
        finally:
            self._write(mutant.path, source)
        return failed if failed is not None and self._is_sound(failed, tests) else None

    def _is_sound(self, failed: str, tests: list[str]) -> bool:
        """Return whether what failed with a mutant passes without (INV-MU5)."""
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
        found = self._run(["-x", *tests], os.environ, self.limit_s)
        if found is None:
            return TIME_OUT
        returncode, output = found
        if returncode in {0, _NO_TESTS}:
            return None
        for line in output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" ", 1)[1].partition(" - ")[0]
        return tests[0]

    def _run(
        self, arguments: list[str], environment: Mapping[str, str], limit_s: float | None
    ) -> tuple[int, str] | None:
        """Return the exit code and what pytest said; None where it took too long (INV-MU7)."""
        command = [
            sys.executable, "-m", "pytest", "-q", "--no-header", "--tb=no", "-p", "no:cacheprovider",
            "-m", "not process and not own_process and not spark", "-p", "tests.mutants.few_examples", *arguments,
        ]  # fmt: skip
        with subprocess.Popen(
            command,
            cwd=self.root,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        ) as running:
            try:
                output, _ = running.communicate(timeout=limit_s)
            except subprocess.TimeoutExpired:
                return None
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(running.pid, signal.SIGKILL)
        return running.returncode, output
