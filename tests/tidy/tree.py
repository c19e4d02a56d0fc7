"""What the tidy tests look at: the repository's files, their syntax trees and their words.

Not here: any rule (`test_tidy`, `test_docs`), any generated text (`generated`).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("idempotency", "txn_coordinator", "geo_replicator", "region_broker")
CODE_FOLDERS: Final = (*PACKAGES, "chaos", "tests")
DOCS: Final = ROOT / "docs"

INVARIANT: Final = re.compile(r"\bINV-[A-Z]+\d+\b")
_DEFINITION: Final = re.compile(r"^\s*(INV-[A-Z]+\d+)\b\s+\S", re.MULTILINE)


def code_files(*folders: str) -> list[Path]:
    """Return every Python file of these folders (all of ours, when none is named), sorted."""
    return sorted(
        path
        for folder in folders or CODE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if "__pycache__" not in path.parts
    )


def documents() -> list[Path]:
    """Return every Markdown file of the repository, sorted."""
    hidden = (ROOT / ".github").rglob("*.md")
    return sorted([ROOT / "README.md", *hidden, *DOCS.rglob("*.md")])


def shown(path: Path) -> str:
    """Return the path as people write it."""
    return path.relative_to(ROOT).as_posix()


@cache
def tree_of(path: Path) -> ast.Module:
    """Return the syntax tree of a file."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def docstring_of(path: Path) -> str:
    """Return the module's docstring, "" where there is none."""
    return ast.get_docstring(tree_of(path)) or ""


def invariants_by_module() -> dict[Path, list[str]]:
    """Return the invariants that each module's docstring defines, in the order they stand there."""
    found = {path: _DEFINITION.findall(docstring_of(path)) for path in code_files()}
    return {path: ids for path, ids in found.items() if ids}


def functions() -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Yield every function of every file."""
    for path in code_files():
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


@cache
def rule_tests() -> dict[str, list[tuple[str, str]]]:
    """Return, for each rule id such as ``C17``, the tests whose names cite it: (file, test name)."""
    found: dict[str, list[tuple[str, str]]] = defaultdict(list)
    for path, node in functions():
        if not path.is_relative_to(ROOT / "tests") or not node.name.startswith("test_"):
            continue
        for rule in re.findall(
            r"(?<![A-Za-z0-9])([CTPBGHR]\d+)(?![A-Za-z0-9])",
            re.sub(r"INV_[A-Z]+\d+", "", node.name).replace("_", " "),
        ):
            found[rule].append((shown(path), node.name))
    return {rule: sorted(tests) for rule, tests in found.items()}


@cache
def files_about(rule: str) -> tuple[str, ...]:
    """Return the test files whose docstring cites `rule`."""
    word = re.compile(rf"(?<![A-Za-z0-9-]){rule}(?![A-Za-z0-9])")
    return tuple(shown(path) for path in code_files("tests") if word.search(docstring_of(path)))


@cache
def names_of_tests() -> dict[str, set[str]]:
    """Return the names of the tests in each test file."""
    found: dict[str, set[str]] = defaultdict(set)
    for path, node in functions():
        if node.name.startswith("test_"):
            found[shown(path)].add(node.name)
    return dict(found)
