"""Which tests are asked about a mutant: those that run its lines, whoever calls them.

INV-MU6  asked is what was seen to run a changed line and to pass; for what runs at import only, what runs anything of its
         module, or of a core that imports it
Quick ones come first.
"""

import ast
import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.draw import PURE_PACKAGES, ROOMS_WITH_CORES
from tests.mutants.operators import Mutant
from tests.mutants.runs import run

RECORD: Final = "MUTANTS_RECORD"
FOLDERS: Final = (
    *(f"tests/unit/{room}" for room in (*PURE_PACKAGES, *ROOMS_WITH_CORES)), "tests/datadriven", "tests/property",
    *(f"tests/spec/{room}" for room in ("transactions", "groups", "partitions", "tidemarks", "topics")),
)  # fmt: skip
"""Not here: what plays whole regions or the wire for minutes (`tests/spec/failover`, `tests/spec/wire`, the simulator)."""
TEST_S_MAX: Final = 4.0
"""A test that takes longer is not asked: what it alone would notice is not noticed soon enough by people, either."""


@dataclass(slots=True)
class Seen:
    """Which tests ran which lines of the cores: the lines of a file are the bits of one number."""

    by_module: dict[str, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))
    took_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Seen":
        """Take what `lines_run` wrote, the last word of each test, but for those that failed or were slow."""
        seen = cls()
        for row in {row["test"]: row for row in map(json.loads, lines)}.values():
            if row["passed"] and row["took_s"] <= TEST_S_MAX:
                seen.took_s[row["test"]] = row["took_s"]
                for path, ran in row["ran"].items():
                    seen.by_module[path][row["test"]] = int(ran, 16)
        return seen

    @classmethod
    def watched(cls, root: Path, record: Path) -> "Seen":
        """Run every test that may be asked, once, and note what it runs; those whose file is older than the record stand there."""
        asked = [name for name in FOLDERS if (root / name).exists()]
        if record.exists():
            noted_s = record.stat().st_mtime
            files = (file for name in asked for file in (root / name).rglob("test_*.py"))
            asked = [
                str(file.relative_to(root)) for file in files if file.stat().st_mtime > noted_s
            ]
        if asked:
            run(
                root,
                ["-p", "tests.mutants.lines_run", *asked],
                {**os.environ, RECORD: str(record)},
                None,
            )
        rows = record.read_text("utf-8").splitlines()
        return cls.read(
            row for row in rows if (root / json.loads(row)["test"].partition("::")[0]).exists()
        )


@dataclass(frozen=True, slots=True)
class Nearest:
    """Chooses tests that take `limit_s` at most without a mutant; `sources` are the cores' texts, by path."""

    seen: Seen
    sources: Mapping[str, str]
    limit_s: float

    def tests(self, mutant: Mutant, source: str) -> list[str]:
        """Return the tests that may notice a mutant, the quick ones first (INV-MU6)."""
        found = self.of_its_lines(mutant, source)
        if not found:
            ran = self.seen.by_module.get(mutant.path, {})
            found = sorted({*ran, *self._run_its_users(mutant.path)})
        asked: list[str] = []
        left_s = self.limit_s
        for test in sorted(found, key=lambda test: (self.seen.took_s[test], test)):
            left_s -= self.seen.took_s[test]
            if left_s < 0 and asked:
                break
            asked.append(test)
        return asked

    def of_its_lines(self, mutant: Mutant, source: str) -> list[str]:
        """Return the tests that run a changed line; none where it runs at import only."""
        ran = self.seen.by_module.get(mutant.path, {})
        lines = sum(1 << line for line in lines_around(source, mutant) or ())
        return [test for test in ran if ran[test] & lines]

    def _run_its_users(self, path: str) -> Iterator[str]:
        name = path.removesuffix(".py").replace("/", ".")
        for user, ran in self.seen.by_module.items():
            if re.search(rf"\b{re.escape(name)} import\b", self.sources.get(user, "")):
                yield from ran


def lines_around(source: str, mutant: Mutant) -> range | None:
    """Return the lines of a mutant's statement up to the change; None where no function's body has them."""
    raw = source.encode()
    first, last = (raw[:place].count(b"\n") + 1 for place in (mutant.begin, mutant.end))
    inside = False
    statement = first
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt) or not node.lineno <= first <= (node.end_lineno or 0):
            continue
        statement = node.lineno  # from the outside to the inside
        # What stands in the head of a function runs when it is defined, its body when it is called.
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            inside |= node.body[0].lineno <= first
    return range(statement, last + 1) if inside else None
