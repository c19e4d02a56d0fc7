"""What the tidy tests look at: the repository's files, their syntax trees and their words.

Not here: any rule (`test_tidy`, `test_docs`), any generated text (`generated`).
"""

import ast
import re
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from functools import cache
from importlib import import_module
from inspect import cleandoc
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
PACKAGES: Final = ("idempotency", "txn_coordinator", "geo_replicator", "region_broker")
CODE_FOLDERS: Final = (*PACKAGES, "chaos", "tests")
DOCS: Final = ROOT / "docs"

INVARIANT: Final = re.compile(r"\bINV-[A-Z]+\d+\b")
_TEST: Final = re.compile(r"^ *(?:async )?def (test_\w+)\(", re.MULTILINE)
_DEFINITION: Final = re.compile(r"^\s*(INV-[A-Z]+\d+)\b\s+\S", re.MULTILINE)


def code_files(*folders: str) -> list[Path]:
    """Return every Python file of these folders (all of ours, when none is named), sorted; none that a build fetched."""
    return sorted(
        path
        for folder in folders or CODE_FOLDERS
        for path in (ROOT / folder).rglob("*.py")
        if not {"__pycache__", "_vendor"} & set(path.parts)
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
    """Return the module's docstring, "" where there is none; most are found without reading the whole file's syntax."""
    text = path.read_text(encoding="utf-8")
    if text.startswith('"""') and "\\" not in (head := text[3:].partition('"""')[0]):
        return cleandoc(head)
    return ast.get_docstring(tree_of(path)) or ""


def invariants_by_module() -> dict[Path, list[str]]:
    """Return the invariants that each module's docstring defines, in the order they stand there."""
    found = {path: _DEFINITION.findall(docstring_of(path)) for path in code_files()}
    return {path: ids for path, ids in found.items() if ids}


def cited_invariants() -> set[str]:
    """Return the invariants that a test names, or an assertion with the comment above it; definitions do not count."""
    defined = invariants_by_module()
    cited: set[str] = set()
    for path in code_files():
        text = path.read_text(encoding="utf-8")
        if path.is_relative_to(ROOT / "tests"):
            head = ast.get_docstring(tree_of(path), clean=False) or ""
            cited |= _ids(text.replace(head, "", 1))
            cited |= _ids(head) - set(defined.get(path, ()))
        else:
            cited |= _ids("\n".join(_assertions(path, text.splitlines())))
    return cited


def _ids(text: str) -> set[str]:
    return {f"INV-{name}" for name in re.findall(r"INV[-_]([A-Z]+\d+)(?![A-Za-z0-9])", text)}


def _assertions(path: Path, lines: list[str]) -> Iterator[str]:
    """Yield the lines of each assertion, and of the comment above it."""
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Assert):
            begin = node.lineno - 1
            while lines[begin - 1].lstrip().startswith("#"):
                begin -= 1
            yield from lines[begin : node.end_lineno]


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
    for file, names in names_of_tests().items():
        for name in names:
            for rule in re.findall(
                r"(?<![A-Za-z0-9])([CTPBGHR]\d+)(?![A-Za-z0-9])",
                re.sub(r"INV_[A-Z]+\d+", "", name).replace("_", " "),
            ):
                found[rule].append((file, name))
    return {rule: sorted(tests) for rule, tests in found.items()}


@cache
def files_about(rule: str) -> tuple[str, ...]:
    """Return the test files whose docstring cites `rule`."""
    word = re.compile(rf"(?<![A-Za-z0-9-]){rule}(?![A-Za-z0-9])")
    return tuple(shown(path) for path in code_files("tests") if word.search(docstring_of(path)))


@cache
def names_of_tests() -> dict[str, set[str]]:
    """Return the names of the tests in each test file."""
    texts = ((shown(path), path.read_text(encoding="utf-8")) for path in code_files("tests"))
    found = {file: set(_TEST.findall(text)) for file, text in texts}
    return {file: names for file, names in found.items() if names}


# --- who imports whom ----------------------------------------------------------------------------


@cache
def arrows() -> dict[str, frozenset[str]]:
    """Return, for each module of ours, the modules of ours that it imports, for types alone too."""
    modules = {_module_of(path): path for path in code_files()}
    return {
        name: frozenset(_imported_from(tree_of(path), modules.keys()) - {name})
        for name, path in modules.items()
    }


def _module_of(path: Path) -> str:
    return shown(path).removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def _imported_from(tree: ast.Module, ours: Collection[str]) -> set[str]:
    found: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                within = f"{node.module}.{alias.name}"
                found.add(within if within in ours else node.module)
    return found & set(ours)


def circles(graph: Mapping[str, Collection[str]]) -> list[tuple[str, ...]]:
    """Return the nodes that reach themselves, those of one circle together, each sorted."""
    reached = {node: _reached_from(node, graph) for node in graph}
    around = {node for node, far in reached.items() if node in far}
    return sorted(
        {
            tuple(
                sorted(
                    other for other in around if other in reached[node] and node in reached[other]
                )
            )
            for node in around
        }
    )


def _reached_from(start: str, graph: Mapping[str, Collection[str]]) -> set[str]:
    found: set[str] = set()
    todo = list(graph[start])
    while todo:
        node = todo.pop()
        if node not in found:
            found.add(node)
            todo += graph.get(node, ())
    return found


# --- which names the product uses ----------------------------------------------------------------

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
_WORD: Final = re.compile(r"[A-Za-z_]\w*")
_CODE: Final = re.compile(r"[\w.:\[\]]{1,99}(?:(?:, | \| )[\w.\[\]]{1,99})*")
# What makes a function something else and calls it from nowhere.
_PLAIN_DECORATORS: Final = frozenset(
    {
        "property", "staticmethod", "classmethod", "cached_property", "cache", "lru_cache", "dataclass",
        "contextmanager", "asynccontextmanager", "runtime_checkable", "unique",
    }
)  # fmt: skip


def definitions(tree: ast.Module) -> Iterator[tuple[Definition, ast.ClassDef | None]]:
    """Yield each public function and class of a module, and each public method with its class."""
    for node in tree.body:
        if not isinstance(node, Definition):
            continue
        if not node.name.startswith("_"):
            yield node, None
        if isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, Definition) and not member.name.startswith("_"):
                    yield member, node


def names_used(tree: ast.Module) -> set[str]:
    """Return the names that a module uses, also in texts that are one name or one annotation.

    Imports and `__all__` are no use: they only hand on.
    """
    handed_on = {
        id(node)
        for statement in tree.body
        if isinstance(statement, ast.Assign | ast.AugAssign) and "__all__" in ast.unparse(statement)
        for node in ast.walk(statement)
    }
    used: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            used.add(node.id)
        elif isinstance(node, ast.Attribute):
            used.add(node.attr)
        elif isinstance(node, ast.keyword) and node.arg:
            used.add(node.arg)
        elif (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in handed_on
        ):
            used |= _names_in(node.value)
    return used


def _names_in(text: str) -> set[str]:
    """Return the names in a text that is code: a name, a place such as ``module:name``, an annotation."""
    return set(_WORD.findall(text)) if _CODE.fullmatch(text) else set()


def is_called_by_a_framework(
    tree: ast.Module, node: Definition, owner: ast.ClassDef | None
) -> bool:
    """Say whether somebody else finds it: by a decorator, or by a foreign class that it overrides a method of."""
    for decorator in node.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        if ast.unparse(called).rpartition(".")[2] not in _PLAIN_DECORATORS:
            return True
    return owner is not None and any(
        hasattr(base, node.name) for base in _foreign_bases(tree, owner)
    )


def _foreign_bases(tree: ast.Module, owner: ast.ClassDef) -> Iterator[object]:
    """Yield the base classes that come from the standard library or another package, if only through a module of ours."""
    origins = {
        alias.asname or alias.name: (statement.module, alias.name)
        for statement in tree.body
        if isinstance(statement, ast.ImportFrom) and statement.module
        for alias in statement.names
    }
    for base in owner.bases:
        called = base.value if isinstance(base, ast.Subscript) else base
        module, _, name = ast.unparse(called).rpartition(".")
        origin, name = (module, name) if module else origins.get(name, ("", name))
        if not origin:
            continue
        found = getattr(import_module(origin), name)
        made_in = getattr(found, "__module__", origin)
        if made_in.partition(".")[0] not in CODE_FOLDERS or "_vendor" in made_in:
            yield found
