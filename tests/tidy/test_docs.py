"""The documentation as it must be: current, complete, and with commands that the real parser takes."""

import ast
import re
import shlex
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click
import pytest

from region_broker.cli.main import main
from region_broker.config.node_config import NodeConfig
from region_broker.handlers.admin import constant_answers
from region_broker.handlers.apis import all_apis
from tests.tidy.generated import (
    citing_tests,
    config_keys,
    documented_rules,
    generated_documents,
    renewed,
)
from tests.tidy.kafka_apis import KAFKA_APIS, WHY_NOT
from tests.tidy.tree import (
    DOCS,
    PACKAGES,
    ROOT,
    code_files,
    docstring_of,
    documents,
    names_of_tests,
    rule_tests,
    shown,
    tree_of,
)

RUNBOOK_SECTIONS: Final = ("Symptom", "Confirm", "Act", "Verify", "Roll back", "Drill")
RUNBOOKS: Final = sorted((DOCS / "runbooks").glob("*.md"))
_NAMED: Final = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
_FENCE: Final = re.compile(r"^```(?P<kind>\w*)\n(?P<body>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK: Final = re.compile(r"\]\((?!https?:|mailto:|#)(?P<target>[^)#\s]+)(?:#[^)]*)?\)")
_TEST: Final = re.compile(r"`(?P<file>tests/[\w/]+\.py)(?:::(?P<name>test_\w+))?`")
_CODE: Final = re.compile(r"`(?P<path>[a-z_]+(?:/\w+)+\.py)`")
_PLACE: Final = re.compile(r"`(?P<path>[a-z_]+(?:/\w+)+\.py):(?P<name>[\w.]+)`")
_CONFIG_ROW: Final = re.compile(r"^\| `(?P<key>[a-z_]+)` \| (?P<default>[^|]*) \|", re.MULTILINE)
_SHELL: Final = frozenset({"sh", "bash", "console"})


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def _without_code(path: Path) -> str:
    return _FENCE.sub("", _text(path))


@pytest.mark.parametrize("path", documents(), ids=shown)
def test_a_document_has_one_title(path: Path) -> None:
    titles = [line for line in _without_code(path).splitlines() if re.match(r"# \S", line)]
    assert len(titles) == 1, titles


@pytest.mark.parametrize("path", documents(), ids=shown)
def test_links_and_named_files_are_there(path: Path) -> None:
    text = _text(path)
    links = [found["target"] for found in _LINK.finditer(_without_code(path))]
    missing = [target for target in links if not (path.parent / target).exists()]
    missing += [
        found["path"]
        for found in _CODE.finditer(text)
        if not any((folder / found["path"]).exists() for folder in (ROOT, ROOT / "region_broker"))
    ]
    names = names_of_tests()
    for found in _TEST.finditer(text):
        there = (ROOT / found["file"]).exists()
        if not there or (found["name"] and found["name"] not in names.get(found["file"], set())):
            missing.append(found[0])
    assert not missing


@pytest.mark.parametrize("path", documents(), ids=shown)
def test_places_named_in_code_are_there(path: Path) -> None:
    places = [(found["path"], found["name"]) for found in _PLACE.finditer(_text(path))]
    assert not [f"{file}:{name}" for file, name in places if name not in _names_in(ROOT / file)]
    assert places or path.name != "ARCHITECTURE.md", "the walk of ARCHITECTURE.md names its places"


def _names_in(path: Path) -> set[str]:
    """Return the functions, classes and tables of a file, methods as `Class.method`; none where there is no such file."""
    if not path.exists():
        return set()
    top = tree_of(path).body
    named = [node for node in top if isinstance(node, _NAMED)]
    methods = {
        f"{node.name}.{part.name}"
        for node in named
        if isinstance(node, ast.ClassDef)
        for part in node.body
        if isinstance(part, _NAMED)
    }
    targets = [
        target
        for node in top
        for target in (
            [node.target] if isinstance(node, ast.AnnAssign) else getattr(node, "targets", [])
        )
    ]
    tables = {target.id for target in targets if isinstance(target, ast.Name)}
    return {node.name for node in named} | methods | tables


def test_generated_tables_are_current() -> None:
    stale = [shown(path) for path in generated_documents() if renewed(_text(path)) != _text(path)]
    assert not stale, "run: python -m tests.tidy.write_docs"


def test_every_document_is_on_the_map() -> None:
    maps = (DOCS / "README.md", DOCS / "adr" / "README.md")
    mapped = {
        (path.parent / found["target"]).resolve()
        for path in maps
        for found in _LINK.finditer(_text(path))
    }
    written = {path for path in documents() if path.is_relative_to(DOCS)} - {maps[0]}
    assert not {shown(path) for path in written - mapped}


def test_every_rule_that_a_test_names_is_described() -> None:
    assert not set(rule_tests()) - set(documented_rules()), "add the rule to docs/INVARIANTS.md"


# What a row says of a rule that no code keeps, and why one may have no test of its own.
_NOT_BUILT: Final = re.compile(
    r"\bnot built\b|\bnot done\b|\bdeclined\b|\bnot yet\b|\bthere (?:is|are) no\b"
)
_KEPT_BY: Final = re.compile(r"\bsee ([A-Z]\d+(?:(?:,| and) [A-Z]\d+)*)")


def test_a_rule_has_tests_exactly_if_its_row_says_that_it_is_built() -> None:
    rules = documented_rules()
    built_after_all = {
        rule for rule, text in rules.items() if _NOT_BUILT.search(text) and citing_tests(rule)
    }
    assert not built_after_all, "tests cite them: write what they demand"
    unheld = {
        rule
        for rule, text in rules.items()
        if not (citing_tests(rule) or _NOT_BUILT.search(text) or "by design" in text)
        and not any(citing_tests(other) for other in _rules_named_in(text))
    }
    assert not unheld, "no test cites them: write one, or name the rule whose tests hold them"
    named = {other for text in rules.values() for other in _rules_named_in(text)}
    assert not named - set(rules)


def _rules_named_in(text: str) -> list[str]:
    """Return the rules that a row sends its reader to: "see T2, T9"."""
    return [rule for found in _KEPT_BY.findall(text) for rule in re.findall(r"[A-Z]\d+", found)]


def test_every_key_of_a_node_is_described() -> None:
    whole = _text(DOCS / "reference" / "config.md")
    assert "|  |" not in whole, "a key has no words: write them into its row, which keeps them"
    text, *_ = whole.split(
        "\n## A region\n"
    )  # whose keys, and its nodes', have tables of their own
    described = {
        found["key"]: found["default"].strip().strip("`") for found in _CONFIG_ROW.finditer(text)
    }
    keys = config_keys()
    assert {key: described.get(key) for key in keys} == {
        key: default or "(needed)" for key, default in keys.items()
    }
    rows = [found for found in _CONFIG_ROW.finditer(text) if found["key"] in keys]
    assert len(rows) == len(keys), "a key is described twice"


def _api_file(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


def test_every_kafka_api_has_a_file_or_a_row_and_every_file_an_api() -> None:
    folder = ROOT / "region_broker" / "handlers"
    served = Counter(_api_file(api.name) for api in all_apis().by_key.values())
    written = Counter(
        path.stem for path in folder.rglob("*.py")
        if re.match(r'"""\w+ \(\d+\), versions \d+-\d+\.', _text(path)) or re.search(r"^API(?:: .*)? = ", _text(path), re.MULTILINE)
    )  # fmt: skip
    assert served == written + Counter(_api_file(api.name) for api in constant_answers.APIS)


def test_every_api_file_says_the_versions_that_it_serves() -> None:
    for api in all_apis().by_key.values():
        if api in constant_answers.APIS:  # the table says it
            continue
        head = f'"""{api.name} ({api.key}), versions {api.versions.start}-{api.versions.stop - 1}'
        [path] = (ROOT / "region_broker" / "handlers").rglob(f"{_api_file(api.name)}.py")
        assert _text(path).startswith(head), shown(path)


# --- runbooks ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", RUNBOOKS, ids=shown)
def test_a_runbook_has_the_one_shape(path: Path) -> None:
    found = re.findall(r"^## (.+)$", _without_code(path), re.MULTILINE)
    assert found == list(RUNBOOK_SECTIONS)
    drill = _text(path).partition("## Drill")[2]
    assert _TEST.search(drill), "name the test that drills it"


# --- commands ------------------------------------------------------------------------------------


def _commands(path: Path) -> Iterator[list[str]]:
    """Yield each call of `tidemark` in the shell blocks of a document, as arguments."""
    for block in _FENCE.finditer(_text(path)):
        if block["kind"] not in _SHELL:
            continue
        for line in block["body"].replace("\\\n", " ").splitlines():
            yield from _calls(line.removeprefix("$ "))


def _calls(line: str) -> Iterator[list[str]]:
    reader = shlex.shlex(line, posix=True, punctuation_chars=True)
    reader.whitespace_split = True
    call: list[str] = []
    for word in [*reader, "&&"]:
        if not set(word) <= set("|&;<>()"):
            call.append(word)
            continue
        while call and re.match(r"[A-Z_]+=", call[0]):
            call.pop(0)
        if call and Path(call[0]).name == "tidemark":
            yield call[1:]
        call = []


def _parse(arguments: list[str]) -> None:
    """Parse as the real command line does; raises click's errors. Nothing is executed."""
    command: click.Command = main
    rest, name = list(arguments), "tidemark"
    while isinstance(command, click.Group) and rest and not rest[0].startswith("-"):
        name = rest.pop(0)
        found = command.get_command(click.Context(command, info_name=name), name)
        if found is None:
            raise click.UsageError(f"there is no command {name}")
        command = found
    with suppress(click.exceptions.Exit):  # --help and --version end the parsing
        command.make_context(name, rest)


COMMANDS: Final = [
    pytest.param(arguments, id=f"{shown(path)}: {' '.join(arguments)}")
    for path in documents()
    for arguments in _commands(path)
]


@pytest.mark.parametrize("arguments", COMMANDS)
def test_documented_commands_are_parsed_by_the_command_line(
    arguments: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for word in arguments:
        if word.endswith((".csv", ".json", ".ndjson")) and not word.startswith(("-", "/")):
            Path(word).touch()
    _parse(arguments)


def test_documents_show_commands() -> None:
    commands = {tuple(arguments[:2]) for path in documents() for arguments in _commands(path)}
    assert ("demo",) in commands
    assert ("region", "failover") in commands


def test_the_first_two_commands_are_those_that_ci_runs() -> None:
    readme, ci = _text(ROOT / "README.md"), _text(ROOT / ".ci" / "run")
    set_up = _text(ROOT / ".ci" / "setup")
    for argument, rest in (
        ("demo", ".venv/bin/tidemark demo"),
        ("test", ".venv/bin/python -m pytest"),
    ):
        assert f"bash .ci/setup {argument} && {rest}" in readme
        assert f"  {argument}) " in set_up
    assert "bash .ci/setup test" in ci
    assert ".venv/bin/python -m pytest" in ci
    assert re.search(r"tidemark\"? demo", ci)


def test_what_is_missing_of_kafka_has_a_reason() -> None:
    served = all_apis().by_key
    missing = {
        key
        for key, kafka in KAFKA_APIS.items()
        if key not in served or set(kafka.versions) - set(served[key].versions)
    }
    assert not missing - set(WHY_NOT), "add the reason to tests/tidy/kafka_apis.py"
    assert not set(served) - set(KAFKA_APIS)


def test_every_test_named_for_hostile_input_and_attacks_exists() -> None:
    pages = ("hostile-input.md", "security.md")
    page = "".join((ROOT / "docs/reference" / name).read_text() for name in pages)
    named = set(re.findall(r"`(test_\w+)`", page))
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"def (test_\w+)\(", sources))
    assert len(named) > 70
    assert sorted(named - defined) == []


def test_each_room_says_where_to_begin_and_what_it_may_import() -> None:
    rooms = [path for path in code_files(*PACKAGES, "chaos") if path.name == "__init__.py"]
    found = {shown(room): _lacks(room) for room in rooms}
    assert not {room: lack for room, lack in found.items() if lack}


def _lacks(room: Path) -> str:
    said = " ".join(docstring_of(room).split())
    begin = re.search(r"\bBegin in `([\w./]+)`", said)
    if begin is None:
        return "say where a reader begins"
    named = room.parent / begin[1].strip("/").removesuffix(".py").replace(".", "/")
    if not (named.is_dir() or named.with_suffix(".py").exists()):
        return f"{begin[1]} is not there"
    return "" if re.search(r"\bimports?\b", said, re.IGNORECASE) else "say what it may import"


def test_every_setting_of_security_stands_at_the_head_of_its_page() -> None:
    head, _, rest = _text(DOCS / "reference" / "security.md").partition("\n## ")
    kinds = re.compile(
        r"(tls|sasl|http|audit|encryption|insecure|super_users|listeners|connections?)(_|$)(?!order)|.*security_protocol"
    )
    keys = {key for key in NodeConfig.__struct_fields__ if kinds.match(key)}
    assert keys == {
        key for key in re.findall(r"`([a-z_]+)`", head) if key in NodeConfig.__struct_fields__
    }
    titles = re.findall(r"^##+ (.+)$", f"## {rest}", re.MULTILINE)
    anchors = {title.lower().replace(" ", "-") for title in titles}
    assert set(re.findall(r"\]\(#([a-z-]+)\)", head)) <= anchors
