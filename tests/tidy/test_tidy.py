"""The code as the house rules want it: folders, words, banned calls, declared imports. Not here: its shape (`test_shape`)."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any, Final

from tests.tidy.tree import (
    CODE_FOLDERS,
    INVARIANT,
    PACKAGES,
    ROOT,
    cited_invariants,
    code_files,
    docstring_of,
    documents,
    functions,
    invariants_by_module,
    shown,
    tree_of,
)

WORDS_THAT_NAME_NOTHING: Final = frozenset(
    {"common", "utils", "util", "helpers", "helper", "manager", "misc"}
)
# Each word is written so that this very line is not found.
LEFTOVERS: Final = re.compile(r"\b(?:F[I]XME|T[O]DO|X[X]X|H[A]CK)\b")

# What must not be called in the packages, what to use instead, and where it belongs.
# (the client runs in its users' processes, where nobody hands in a clock).
BANNED_CALLS: Final = {
    "time.time": ("the Clock that was handed in", ("region_broker/ports/system/clock.py",)),
    "time.time_ns": ("the Clock that was handed in", ("region_broker/ports/system/clock.py",)),
    "time.monotonic": ("the Clock that was handed in", ("region_broker/cli/", "region_broker/workbench/", "region_broker/client/")),
    "time.monotonic_ns": ("the Clock that was handed in", ("region_broker/ports/system/clock.py", "region_broker/cli/", "region_broker/workbench/")),
    "time.perf_counter": ("the Clock that was handed in", ("region_broker/cli/", "region_broker/workbench/", "region_broker/client/")),
    "time.perf_counter_ns": ("the Clock that was handed in", ("region_broker/cli/", "region_broker/workbench/", "region_broker/client/")),
    "time.sleep": ("Clock.sleep_ms, or an event to wait for", ("region_broker/cli/", "region_broker/workbench/", "region_broker/client/")),
    "datetime.now": ("the Clock that was handed in", ()),
    "datetime.utcnow": ("the Clock that was handed in", ()),
    "uuid.uuid4": ("Chance.uuid", ()),
    "uuid4": ("Chance.uuid", ()),
    "random.random": ("the Chance that was handed in", ()),
    "random.Random": ("the Chance that was handed in", ()),
    "random.SystemRandom": ("the Chance that was handed in", ("region_broker/ports/system/chance.py",)),
    "asyncio.create_task": ("TaskGroup.create_task", ()),
    "asyncio.ensure_future": ("TaskGroup.create_task", ()),
    "asyncio.get_event_loop": ("asyncio.get_running_loop", ()),
    "pickle.loads": ("msgspec or a codec of our own", ()),
    "eval": ("a parser", ()),
    "exec": ("a function", ()),
    "breakpoint": ("nothing", ()),
}  # fmt: skip

# Disks and sockets: the ports, the commands and tools that are processes of their own, and who else has a reason.
PORT_CALLS: Final = frozenset(
    {
        "open", "os.open", "os.read", "os.write", "os.pread", "os.preadv", "os.pwrite", "os.pwritev", "os.fsync", "os.fdatasync",
        "os.rename", "os.replace", "os.remove", "os.unlink", "os.listdir", "os.scandir", "os.stat",
        "shutil.rmtree", "shutil.move", "socket.socket", "socket.create_connection",
        "asyncio.open_connection", "asyncio.start_server",
    }
)  # fmt: skip
PORT_METHODS: Final = frozenset(
    {"read_text", "write_text", "read_bytes", "write_bytes", "unlink", "rmdir", "touch", "iterdir"}
)
USERS_OF_THE_SYSTEM: Final = (
    "region_broker/ports/disk.py",
    "region_broker/ports/",
    "region_broker/cli/",
    "region_broker/workbench/",  # starts processes, and asks them over HTTP
    "geo_replicator/reconciliation/",  # reads the folders of live regions, as another process
    "region_broker/config/node_config.py",
    "region_broker/node/storage.py",  # the lock that keeps other processes out of a data folder
    "region_broker/controller/image_database.py",  # SQLite keeps its own files
    "region_broker/security/tls_contents.py",  # OpenSSL reads its files by their paths, too
    "region_broker/security/authority_folder.py",  # of `tidemark cert`, a process of its own
)


def test_the_root_holds_the_seven_folders_and_two_files() -> None:
    ignored = {"artifacts", "build", "dist", "metastore_db", "spark-warehouse"}
    names = {
        path.name for path in ROOT.iterdir()
        if not path.name.startswith(".") and not path.name.endswith(".egg-info")
        and path.suffix not in {".html", ".log"}
    }  # fmt: skip
    assert names - ignored == {*CODE_FOLDERS, "docs", "pyproject.toml", "README.md"}


def test_every_module_says_what_it_is() -> None:
    silent = [shown(path) for path in code_files(*PACKAGES, "chaos") if not docstring_of(path)]
    assert not silent
    unexplained = [
        shown(path)
        for path in code_files(*PACKAGES)
        if path.name != "__init__.py"
        and not docstring_of(path).partition("\n")[0].rstrip().endswith((".", ":"))
    ]
    assert not unexplained, "the first line of a module is a sentence"


def test_every_room_says_what_it_is_for_where_to_begin_and_what_it_may_import() -> None:
    rooms = [ROOT / name for name in (*PACKAGES, "chaos")]
    rooms += [
        path for path in (ROOT / "region_broker").iterdir() if (path / "__init__.py").exists()
    ]
    texts = {room: docstring_of(room / "__init__.py").lower() for room in rooms}
    asked = {"begin", "import"}
    lacking = {
        shown(room): asked - set(re.findall("begin|import", text)) for room, text in texts.items()
    }
    assert not {room: missing for room, missing in lacking.items() if missing}


def test_names_say_what_a_thing_is() -> None:
    parts = {part for path in code_files() for part in path.relative_to(ROOT).with_suffix("").parts}
    assert not parts & WORDS_THAT_NAME_NOTHING


def test_nothing_is_left_for_later() -> None:
    left = [
        f"{shown(path)}:{number}"
        for path in [*code_files(), *documents()]
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if LEFTOVERS.search(line)
    ]
    assert not left, "what is not there yet stands in docs/ROADMAP.md"


def test_time_chance_and_tasks_come_from_ports_and_task_groups() -> None:
    calls = [
        f"{shown(path)}:{node.lineno} calls {name}: use {BANNED_CALLS[name][0]}"
        for path in code_files(*PACKAGES)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        for name in [ast.unparse(node.func)]
        if name in BANNED_CALLS and not shown(path).startswith(BANNED_CALLS[name][1] or ("-",))
    ]
    assert not calls


def test_disks_and_sockets_are_reached_through_the_ports() -> None:
    calls = [
        f"{shown(path)}:{node.lineno} calls {ast.unparse(node.func)}: use the Disk or the Network"
        for path in code_files(*PACKAGES)
        if not shown(path).startswith(USERS_OF_THE_SYSTEM)
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call) and (_reaches_the_system(node.func) or _opens_a_path(node))
    ]
    assert not calls


def _reaches_the_system(called: ast.expr) -> bool:
    if isinstance(called, ast.Attribute) and called.attr in PORT_METHODS:
        return True
    return ast.unparse(called) in PORT_CALLS


def _opens_a_path(call: ast.Call) -> bool:
    """Return whether this is `path.open("rb")` and the like, and not the `open` of something else."""
    modes = [arg.value for arg in call.args[:1] if isinstance(arg, ast.Constant)]
    named = isinstance(call.func, ast.Attribute) and call.func.attr == "open"
    return named and any(re.fullmatch("[rwaxbt+]{1,3}", str(mode)) for mode in modes)


def test_assertions_are_on() -> None:
    assert not sys.flags.optimize, "never run Tidemark or its tests under python -O"


def test_an_invariant_is_defined_once() -> None:
    where: dict[str, list[str]] = {}
    for path, ids in invariants_by_module().items():
        for name in ids:
            where.setdefault(name, []).append(shown(path))
    assert not {name: paths for name, paths in where.items() if len(paths) > 1}


def test_every_cited_invariant_is_defined() -> None:
    defined = {name for ids in invariants_by_module().values() for name in ids}
    cited = {
        (shown(path), name)
        for path in [*code_files(), *documents()]
        for name in INVARIANT.findall(path.read_text("utf-8"))
    }
    cited |= {
        (f"{shown(path)}::{node.name}", name.replace("_", "-"))
        for path, node in functions()
        for name in re.findall(r"INV_[A-Z]+\d+", node.name)
    }
    assert not sorted(entry for entry in cited if entry[1] not in defined)


def test_an_invariant_has_an_id_only_where_an_assertion_or_a_test_cites_it() -> None:
    cited = cited_invariants()
    idle = {
        shown(path): [name for name in ids if name not in cited]
        for path, ids in invariants_by_module().items()
    }
    assert not {path: names for path, names in idle.items() if names}, (
        "cite it in the assertion or the test that holds it, or say it in plain words without an id"
    )


# --- third-party imports -------------------------------------------------------------------------


def test_every_third_party_import_is_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    core = _names(project["dependencies"])
    extras = {name: _names(named) for name, named in project["optional-dependencies"].items()}
    everything = core.union(*extras.values())
    for_users = core | extras["reconcile"] | extras["demo"]
    undeclared = [
        f"{shown(path)} imports {module}, which no dependency in pyproject.toml brings"
        for path, module in _foreign_imports(*PACKAGES)
        if not _distributions(module) & (for_users if _may_use_extras(path) else core)
    ]
    assert not undeclared
    unlisted = [
        f"{shown(path)} imports {module}"
        for path, module in _foreign_imports("tests", "chaos")
        if not _distributions(module) & everything
    ]
    assert not unlisted


PRIVATE_OF_KIO: Final = re.compile(
    r"\b(?:from|import) kio[\w.]*\._|\bfrom kio[\w.]* import (?:\([^)]*|[^(\n]*)\b_\w"
)


def test_nothing_private_of_kio_is_imported() -> None:
    """What begins with an underscore changes without notice in its next version (ADR 39)."""
    texts = {shown(path): path.read_text("utf-8") for path in code_files()}
    assert not [path for path, text in texts.items() if PRIVATE_OF_KIO.search(text)]
    planted = [
        "from {}._utils import x",
        "import {}.serial._parse",
        "from {} import (\n    a,\n    _b,\n)",
    ]
    assert all(PRIVATE_OF_KIO.search(line.format("kio")) for line in planted)


def _may_use_extras(path: Path) -> bool:
    """Say whether a file runs only where an extra for users is installed, and says so itself where it is not."""
    return shown(path).startswith(
        ("geo_replicator/reconciliation/", "region_broker/cli/", "region_broker/workbench/")
    )


def _names(requirements: list[str]) -> set[str]:
    found = (re.match(r"[A-Za-z0-9._-]+", requirement) for requirement in requirements)
    return {_normal(match[0]) for match in found if match}


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _distributions(module: str) -> set[str]:
    return {_normal(name) for name in _installed().get(module, [])}


@cache
def _installed() -> Mapping[str, list[str]]:
    return packages_distributions()


def _foreign_imports(*folders: str) -> Iterator[tuple[Path, str]]:
    known = {
        *sys.stdlib_module_names,
        *CODE_FOLDERS,
        "compression",
    }  # the last: Python 3.14 and later
    for path in code_files(*folders):
        for node in ast.walk(tree_of(path)):
            for name in _imported(node):
                module = name.partition(".")[0]
                if module not in known:
                    yield path, module


def _imported(node: Any) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.module and not node.level:
        return [node.module]
    return []
