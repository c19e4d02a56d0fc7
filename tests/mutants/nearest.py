"""Which tests are asked about a mutant: those that run the function it is in, whoever calls it for them.

INV-MU6  asked is what was seen to run the changed function and to pass; for what runs at import only, what runs anything of
         its module
Those that import the module come first, then the quick ones.
"""

import ast
import json
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.mutants.operators import Mutant

FOLDERS: Final = (
    "tests/unit/idempotency", "tests/unit/txn_coordinator", "tests/unit/geo_replicator", "tests/datadriven",
    "tests/property", "tests/spec", "tests/unit/region_broker/ledgers", "tests/unit/region_broker/region", "tests/unit/region_broker/groups",
)  # fmt: skip
TEST_S_MAX: Final = 4.0
"""A test that takes longer is not asked: what it alone would notice is not noticed soon enough by people, either."""


@dataclass(slots=True)
class Seen:
    """Which tests ran which functions of the pure cores: (path, first line)."""

    by_function: dict[tuple[str, int], list[str]] = field(default_factory=lambda: defaultdict(list))
    by_module: dict[str, list[str]] = field(default_factory=lambda: defaultdict(list))
    took_s: dict[str, float] = field(default_factory=dict)

    @classmethod
    def read(cls, lines: Iterable[str]) -> "Seen":
        """Take what `functions_run` wrote, but for tests that failed or were slow."""
        seen = cls()
        for row in map(json.loads, lines):
            if not row["passed"] or row["took_s"] > TEST_S_MAX:
                continue
            test = row["test"]
            seen.took_s[test] = row["took_s"]
            for path, line in row["ran"]:
                seen.by_function[path, line].append(test)
            for path in sorted({path for path, _ in row["ran"]}):
                seen.by_module[path].append(test)
        return seen


def nearest_tests(root: Path, seen: Seen, mutant: Mutant, source: str, limit_s: float) -> list[str]:
    """Return the tests that may notice a mutant, as many as take `limit_s` without it (INV-MU6)."""
    found = seen.by_module.get(mutant.path, [])
    begin = function_at(source, mutant.begin)
    if begin is not None:
        found = seen.by_function.get((mutant.path, begin), [])
    module = mutant.path.removesuffix(".py").replace("/", ".")
    importing = {
        name: module in _imported(root / name)
        for name in {test.partition("::")[0] for test in found}
    }
    asked: list[str] = []
    left_s = limit_s
    for test in sorted(
        found, key=lambda test: (not importing[test.partition("::")[0]], seen.took_s[test], test)
    ):
        left_s -= seen.took_s[test]
        if left_s < 0 and asked:
            break
        asked.append(test)
    return asked


def function_at(source: str, place: int) -> int | None:
    """Return the first line of the innermost function around a place (in bytes); None where there is none."""
    line = source.encode()[:place].count(b"\n") + 1
    found = None
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        # What stands in the head of a function runs when it is defined, its body when it is called.
        if node.body[0].lineno <= line <= (node.end_lineno or 0):
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found = first if found is None else max(found, first)
    return found


def _imported(file: Path) -> set[str]:
    """Return the modules that a file imports; `from a import b` may mean `a` or `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
