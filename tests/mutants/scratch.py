"""A copy of the tree in a temporary folder, where one module at a time is wrong: for what runs when a module is imported.

INV-MU4  the tree itself is never written
"""

import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.mutants.operators import Mutant
from tests.mutants.runs import TIME_OUT, run

_COPIED: Final = (
    "idempotency",
    "txn_coordinator",
    "geo_replicator",
    "region_broker",
    "chaos",
    "tests",
)
_NO_TESTS: Final = 5


@dataclass(slots=True)
class Scratch:
    """The copy, made when it is needed; `limit_s` is what a mutant's tests may take."""

    tree: Path
    root: Path
    limit_s: float
    _written_s: int = 1_000_000_000

    def first_failure(self, tests: list[str], mutant: Mutant | None, source: str) -> str | None:
        """Return the first of the tests that fails with the mutant, None where none does (INV-MU4)."""
        if not tests:
            return None
        if not (self.root / "tests").exists():
            self._copy()
        if mutant is not None:
            self._write(mutant.path, mutant.applied(source))
        try:
            found = run(self.root, ["-x", *tests], os.environ, self.limit_s)
        finally:
            if mutant is not None:
                self._write(mutant.path, source)
        if found is None:
            return TIME_OUT
        returncode, output = found
        if returncode in {0, _NO_TESTS}:
            return None
        for line in output.splitlines():
            if line.startswith(("FAILED ", "ERROR ")):
                return line.split(" ", 1)[1].partition(" - ")[0]
        return tests[0]

    def _copy(self) -> None:
        for name in _COPIED:
            shutil.copytree(
                self.tree / name, self.root / name, ignore=shutil.ignore_patterns("__pycache__")
            )
        shutil.copy(self.tree / "pyproject.toml", self.root / "pyproject.toml")

    def _write(self, path: str, text: str) -> None:
        # Compiled files are told apart by the second of a change and by size: no two writes have the same one.
        self._written_s += 2
        (self.root / path).write_text(text, "utf-8")
        os.utime(self.root / path, (self._written_s, self._written_s))
