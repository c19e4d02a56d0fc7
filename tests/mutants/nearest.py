"""Which fast tests are asked about a module, the nearest ones first.

Nearest are those that import the module, then those that do so by what they share (`tests/geo_world.py`), then those of
its package neighbours. A unit test comes before a scenario, a scenario before a property and a rule.
"""

import ast
from pathlib import Path
from typing import Final

_FOLDERS: Final = ("tests/unit", "tests/datadriven", "tests/property", "tests/spec")


def nearest_tests(root: Path, path: str) -> list[str]:
    """Return the paths of the tests that may notice a change of the module at `path`."""
    module = path.removesuffix(".py").replace("/", ".")
    package = path.partition("/")[0]
    folders = (f"tests/unit/{package}", *_FOLDERS[1:])
    ranked = []
    for place, folder in enumerate(folders):
        for file in sorted((root / folder).rglob("test_*.py")):
            distance = _distance(root, file, module)
            if distance is not None:
                ranked.append((distance, place, file.relative_to(root).as_posix()))
    return [name for _, _, name in sorted(ranked)]


def _distance(root: Path, file: Path, module: str) -> int | None:
    """Return 0: imports the module; 1: by what tests share; 2: imports a neighbour; None: knows nothing of it."""
    own = _imported(file)
    if module in own:
        return 0
    if module in _by_shared_tests(root, own):
        return 1
    neighbours = module.rpartition(".")[0] + "."
    return 2 if any(name.startswith(neighbours) for name in own) else None


def _by_shared_tests(root: Path, names: set[str]) -> set[str]:
    seen: set[str] = set()
    waiting = set(names)
    while waiting:
        name = waiting.pop()
        seen.add(name)
        file = root / (name.replace(".", "/") + ".py")
        if name.startswith("tests.") and file.exists():
            waiting |= _imported(file) - seen
    return seen


def _imported(file: Path) -> set[str]:
    """Return the modules that a file imports; `from a import b` may mean `a` or `a.b`."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(file.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module is not None:
            names |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return names
