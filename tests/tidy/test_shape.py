"""The shape of the code: what a reader must hold in mind at once is bounded, not where a file ends.

How tangled one function is (branches, statements, parameters, returns), ruff measures: see `pyproject.toml`.
"""

import ast
from collections import defaultdict
from typing import Final

import pytest

from tests.tidy.tree import (
    CODE_FOLDERS,
    PACKAGES,
    Definition,
    arrows,
    circles,
    code_files,
    shown,
    tree_of,
)

METHODS_MAX: Final = 41
PUBLIC_METHODS_MAX: Final = 24
"""What one noun can do for others: beyond it, there are two. Both limits are today's largest class, and only go down."""
FAN_OUT_MAX: Final = 30
"""Modules of ours that a module may know. Who joins the parts together knows all of them."""
JOINTS: Final = frozenset({"region_broker.node.node", "region_broker.handlers.apis"})
FILE_LINES_MAX: Final = 1_000
"""No measure of anything but patience: long before it, one of the others speaks."""


def test_no_module_imports_itself_through_others() -> None:
    assert not circles(arrows()), "what both need is a noun of its own; types count, too"


def test_rooms_of_a_package_do_not_import_each_other_in_a_circle() -> None:
    found = {
        (package, circle)
        for package in sorted({name.rpartition(".")[0] for name in arrows()} - {""})
        if not package.startswith("tests")
        for circle in circles(_between_children(package))
    }
    assert not found, "what both need is a room of its own, below both"


def _between_children(package: str) -> dict[str, set[str]]:
    """Return the arrows between what stands directly in a package: modules, and folders as a whole."""
    found: dict[str, set[str]] = defaultdict(set)
    for name, targets in arrows().items():
        if (here := _child(package, name)) is not None:
            found[here] |= {
                there for to in targets if (there := _child(package, to)) not in {None, here}
            }
    return found


def _child(package: str, name: str) -> str | None:
    inside = name.removeprefix(f"{package}.")
    return None if inside == name else inside.partition(".")[0]


def test_only_commands_put_imports_off() -> None:
    """Elsewhere TYPE_CHECKING would hide a circle; a command's start must not load what it may not need (ADR 27)."""
    using = [
        shown(path)
        for path in code_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
    ]
    assert not [path for path in using if not path.startswith("region_broker/cli/")]


def test_a_module_knows_few_others() -> None:
    assert not {
        name: len(targets)
        for name, targets in arrows().items()
        if len(targets) > FAN_OUT_MAX and name.partition(".")[0] in PACKAGES and name not in JOINTS
    }


def test_a_class_is_one_noun() -> None:
    crowded = {}
    for path in code_files(*PACKAGES):
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef):
                methods = [part for part in node.body if isinstance(part, Definition)]
                public = [method for method in methods if not method.name.startswith("_")]
                if len(methods) > METHODS_MAX or len(public) > PUBLIC_METHODS_MAX:
                    crowded[f"{shown(path)}: {node.name}"] = len(public), len(methods)
    assert not crowded, "a noun is hiding: put it together from parts"


def test_a_file_can_be_read_at_a_sitting() -> None:
    counted = {
        shown(path): len(path.read_text("utf-8").splitlines()) for path in code_files(*CODE_FOLDERS)
    }
    assert not {path: count for path, count in counted.items() if count > FILE_LINES_MAX}


@pytest.mark.parametrize(
    ("graph", "found"),
    [
        ({"a": {"b"}, "b": {"c"}, "c": set()}, []),
        ({"a": {"b"}, "b": {"c"}, "c": {"a"}}, [("a", "b", "c")]),
        ({"a": {"b"}, "b": {"a", "c"}, "c": {"d"}, "d": {"c"}}, [("a", "b"), ("c", "d")]),
    ],
)
def test_a_circle_is_found(graph: dict[str, set[str]], found: list[tuple[str, ...]]) -> None:
    assert circles(graph) == found
