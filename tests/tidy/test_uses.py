"""What stands in the packages is used by the packages: code that only tests call is held by tests alone, and keeps no promise."""

import ast
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import Final

from tests.tidy.tree import (
    PACKAGES,
    ROOT,
    code_files,
    definitions,
    is_called_by_a_framework,
    names_used,
    shown,
    tree_of,
)

# What users call, and nobody here: each of its names has a test.
CLIENT: Final = "region_broker/client/"
# The tools of the project: they play faults, and write the documentation's tables.
TOOLS: Final = (*code_files("chaos"), ROOT / "tests" / "tidy" / "generated.py")


def unused(modules: Iterable[tuple[str, ast.Module]], used: set[str]) -> list[str]:
    """Return the public names of modules that nothing uses and no framework calls, each with its module."""
    return [
        f"{where}: {node.name}"
        for where, tree in modules
        for node, owner in definitions(tree)
        if node.name not in used and not is_called_by_a_framework(tree, node, owner)
    ]


@cache
def _unused() -> list[str]:
    modules = [(shown(path), tree_of(path)) for path in code_files(*PACKAGES)]
    trees = [*(tree for _, tree in modules), *map(tree_of, TOOLS)]
    return unused(modules, set().union(*map(names_used, trees)))


def test_what_only_tests_use_is_not_in_the_packages() -> None:
    dead = [found for found in _unused() if not found.startswith(CLIENT)]
    assert not dead, "delete it with the tests that test only it, or use it where it belongs"


def test_what_only_users_of_the_client_call_has_a_test() -> None:
    tested = set(re.findall(r"\w+", "\n".join(map(_text, code_files("tests")))))
    untested = [
        found for found in _unused()
        if found.startswith(CLIENT) and found.rpartition(" ")[2] not in tested
    ]  # fmt: skip
    assert not untested


def _text(path: Path) -> str:
    return path.read_text("utf-8") if path != ROOT / "tests" / "tidy" / "test_uses.py" else ""


PLANTED: Final = """
import asyncio
__all__ = ["handed_on"]
def handed_on(): ...
def called(): ...
class Kept(asyncio.Protocol):
    def connection_lost(self, error): ...
    @property
    def forgotten(self): ...
    def _private(self): ...
@registered
def found_by_its_decorator(): ...
value: "Kept" = called()
"""


def test_a_name_that_nothing_uses_is_found() -> None:
    tree = ast.parse(PLANTED)
    assert unused([("planted", tree)], names_used(tree)) == [
        "planted: handed_on",
        "planted: forgotten",
    ]
