"""Tables and diagrams of the documentation that are made from the code: what is made, and where it stands.

A document keeps such a table between two lines, ``<!-- generated: NAME -->`` and ``<!-- end -->``; everything
else in it is written by hand. In the table of rules the words of a row are kept and only its tests are made; in those
of configuration keys the last column is.

Not here: writing the files (`write_docs`), noticing that they are stale (`test_docs`).
"""

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Final, get_type_hints

import msgspec

from region_broker.config.changeable import CHANGEABLE, KAFKA_NAMES
from region_broker.config.node_config import ListenerConfig, NodeConfig, RegionConfig, RegionNode
from region_broker.config.rules import choices_of, rule_of
from region_broker.controller.topic_configs import TOPIC_CONFIGS, TopicConfig
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.authorizing import TABLE, Row
from region_broker.handlers.dispatch.registry import Api
from region_broker.security.access import ResourceType
from tests.model.instances import INSTANCES, MUTANTS
from tests.process.faults.cases import ROWS
from tests.process.faults.disks import DISKS
from tests.process.faults.regions import CLIENTS, REGIONS
from tests.process.faults.scenes import Scene
from tests.tidy.diagrams import (
    failover_phases,
    group_states,
    link_states,
    round_phases,
    transaction_states,
)
from tests.tidy.kafka_apis import KAFKA_APIS, WHY_NOT
from tests.tidy.tree import (
    DOCS,
    docstring_of,
    files_about,
    invariants_by_module,
    rule_tests,
    shown,
)

_BLOCK: Final = re.compile(
    r"(?P<head><!-- generated: (?P<name>[a-z-]+) -->\n)(?P<body>.*?)(?P<tail><!-- end -->)",
    re.DOTALL,
)
_RULE_ROW: Final = re.compile(r"^\| (?P<rule>[A-Z]\d+) \| (?P<text>[^|]*?) \|(?P<tests>[^|]*)\|$")
_KEY_ROW: Final = re.compile(r"^\| `(?P<key>[a-z_]+)` \|.*\| (?P<meaning>[^|]*?) \|$")


_RESOURCE: Final = {
    ResourceType.TOPIC: "the topic",
    ResourceType.GROUP: "the group",
    ResourceType.CLUSTER: "the cluster",
    ResourceType.TRANSACTIONAL_ID: "the transactional id",
    ResourceType.DELEGATION_TOKEN: "the token",
    ResourceType.USER: "the user",
}


def renewed(text: str) -> str:
    """Return the document `text` with every generated table made anew."""
    return _BLOCK.sub(
        lambda found: found["head"] + MAKERS[found["name"]](found["body"]) + found["tail"], text
    )


def generated_documents() -> list[Path]:
    """Return the documents that hold a generated table."""
    return [path for path in sorted(DOCS.rglob("*.md")) if _BLOCK.search(path.read_text("utf-8"))]


def _table(head: str, rows: list[str]) -> str:
    columns = head.count("|") - 1
    return "\n".join([head, "|" + "---|" * columns, *rows]) + "\n"


def _apis(_old: str) -> str:
    rows = [
        f"| {api.key} | {api.name} | {_range(api.versions)} | {_kafka_range(api.key)} |"
        f" {_place(api)} | {_missing(api)} |"
        for api in all_apis().by_key.values()
    ]
    return _table(
        "| key | API | versions | Kafka 4.1 | executed in | what is missing, and why |", rows
    )


def _place(api: Api) -> str:
    if api.is_own is not None:
        return "the primary region; configs of a node: this region"
    return "the primary region" if api.forward else "this region"


def _missing(api: Api) -> str:
    kafka = KAFKA_APIS[api.key].versions
    missing = set(kafka) - set(api.versions)
    return f"{_range(missing)}: {WHY_NOT.get(api.key, '')}" if missing else ""


def _kafka_range(key: int) -> str:
    return _range(KAFKA_APIS[key].versions)


def _range(versions: Collection[int]) -> str:
    low, high = min(versions), max(versions)
    return str(low) if low == high else f"{low} to {high}"


def _api_needs(_old: str) -> str:
    rows = [
        f"| {api.key} | {api.name} | {_needs_of(TABLE[api.key])} |"
        for api in all_apis().by_key.values()
    ]
    return _table("| key | API | needs |", rows)


def _needs_of(row: Row) -> str:
    parts = (("whole", row.whole), ("each", row.each), ("left out", row.left_out))
    told = [
        f"{part}: {' or '.join(f'{need.operation.name} {_RESOURCE[need.resource_type]}' for need in needs)}"
        for part, listed in parts
        for needs in listed
    ]
    return "; ".join(told) or f"nothing: {row.why_open}"


def _unserved_apis(_old: str) -> str:
    served = all_apis().by_key
    rows = [
        f"| {key} | {api.name} | {_range(api.versions)} | {WHY_NOT.get(key, '')} |"
        for key, api in KAFKA_APIS.items()
        if key not in served
    ]
    return _table("| key | API | Kafka 4.1 | why not |", rows)


def _topic_configs(_old: str) -> str:
    rows = [
        f"| `{config.name}` | {config.type.name.lower()} | `{config.default}` | {_values(config)} |"
        f" {config.text} |"
        for config in TOPIC_CONFIGS.values()
        if not config.allowed
    ]
    return _table("| key | type | default | values | meaning |", rows)


def _fixed_topic_configs(_old: str) -> str:
    rows = [
        f"| `{config.name}` | {' or '.join(f'`{value}`' if value else 'an empty list' for value in config.allowed)} | {config.reason} |"
        for config in TOPIC_CONFIGS.values()
        if config.allowed
    ]
    return _table("| key | only | because |", rows)


def _values(config: TopicConfig) -> str:
    if config.choices:
        return ", ".join(f"`{value}`" for value in config.choices)
    if config.type.name not in ("INT", "LONG"):
        return "any"
    return f"{config.low} or more" if config.high >= 2**63 - 1 else f"{config.low} to {config.high}"


def _invariants(_old: str) -> str:
    rows = [
        f"| `{shown(path)}` | {', '.join(ids)} | {_purpose(path)} |"
        for path, ids in sorted(invariants_by_module().items())
    ]
    return _table("| module | invariants | what the module is |", rows)


def _purpose(path: Path) -> str:
    first = docstring_of(path).partition("\n\n")[0].replace("\n", " ")
    return " ".join(first.split()).replace("|", "\\|")


def _rules(old: str) -> str:
    texts = {
        found["rule"]: found["text"] for found in map(_RULE_ROW.match, old.splitlines()) if found
    }
    rows = [
        f"| {rule} | {text} | {citing_tests(rule) or 'none yet'} |" for rule, text in texts.items()
    ]
    return _table("| rule | what it demands | tests |", rows)


def _whole_files(rule: str) -> str:
    return "; ".join(file.removeprefix("tests/") for file in files_about(rule))


def _tests(tests: list[tuple[str, str]]) -> str:
    by_file: dict[str, list[str]] = {}
    for file, name in tests:
        by_file.setdefault(file.removeprefix("tests/"), []).append(name.removeprefix("test_"))
    return "; ".join(f"{file}: {', '.join(names)}" for file, names in by_file.items())


def documented_rules() -> dict[str, str]:
    """Return the rules that docs/INVARIANTS.md describes, each with what it demands."""
    lines = (DOCS / "INVARIANTS.md").read_text("utf-8").splitlines()
    return {found["rule"]: found["text"] for found in map(_RULE_ROW.match, lines) if found}


def citing_tests(rule: str) -> str:
    """Return the tests that cite a rule, as its row shows them; "" where there are none."""
    return _tests(rule_tests().get(rule, [])) or _whole_files(rule)


def _config_keys(old: str) -> str:
    return _table(
        "| key | default | may be | changes | meaning |",
        _keys_of(NodeConfig, old, lambda key: f" {_changes(key)} |"),
    )


def _changes(key: str) -> str:
    """Return when a key of a node changes, and by which name of Kafka's, too."""
    names = [f"`{name}`" for name, ours in KAFKA_NAMES.items() if ours == key]
    also = f", also as {' and '.join(names)}" if names else ""
    return f"while it runs{also}" if key in CHANGEABLE else "at a start"


def _region_keys(old: str) -> str:
    return _table(
        "| key | default | may be | meaning |", _keys_of(RegionConfig, old, lambda _key: "")
    )


def _node_keys(old: str) -> str:
    return _table(
        "| key | default | may be | meaning |", _keys_of(RegionNode, old, lambda _key: "")
    )


def _listener_keys(old: str) -> str:
    return _table(
        "| key | default | may be | meaning |", _keys_of(ListenerConfig, old, lambda _key: "")
    )


def _keys_of(kind: type[msgspec.Struct], old: str, more: Callable[[str], str]) -> list[str]:
    """Return the keys with what they may be; what a row says of the meaning is kept."""
    meanings = {
        found["key"]: found["meaning"] for found in map(_KEY_ROW.match, old.splitlines()) if found
    }
    types = get_type_hints(kind, include_extras=True)
    return [
        f"| `{field.name}` | {'(needed)' if field.required else f'`{_literal(_default_of(field))}`'} |"
        f" {_may_be(types[field.name])} |{more(field.name)} {meanings.get(field.name, '')} |"
        for field in msgspec.structs.fields(kind)
    ]


def _default_of(field: msgspec.structs.FieldInfo) -> object:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else made()


def _may_be(kind: object) -> str:
    choices, rule = choices_of(kind), rule_of(kind)
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    return "tables" if rule is None else rule.brief()


def config_keys() -> dict[str, str]:
    """Return the keys of a node's configuration with their defaults as documents write them."""
    return {
        field.encode_name: "" if field.required else _literal(field.default)
        for field in msgspec.structs.fields(NodeConfig)
    }


def _literal(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if value == ():
        return "[]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def _folder_faults(_old: str) -> str:
    rows = [
        f"| {row.fault} | {row.side} | {row.met.seen.value} | {row.alone.seen.value} |"
        f" {'; '.join(filter(None, (row.met.seen.value, row.written_alone)))} |"
        f" {'; or '.join(row.ways)} | {' and '.join(row.when)} a failover |"
        for row in ROWS
    ]
    return _table(
        "| what happened | to | the other region is up | it is away | it comes back later | way out | played |",
        rows,
    )


def _region_scenes(_old: str) -> str:
    return _scenes(REGIONS)


def _client_scenes(_old: str) -> str:
    return _scenes(CLIENTS)


def _log_scenes(_old: str) -> str:
    return _scenes(DISKS)


def _scenes(scenes: Sequence[Scene]) -> str:
    rows = [f"| `{scene.name}` | {scene.says} |" for scene in scenes]
    return _table("| `--case` | what is played, and judged |", rows)


def _model_mutants(_old: str) -> str:
    rows = [
        f"| {mutant.rule} | {mutant.name.partition(' ')[2]} | {mutant.hole} | {mutant.instance} | {mutant.breaks} |"
        for mutant in MUTANTS
    ]
    return _table("| rule | what is done instead | hole | instance | what breaks |", rows)


def _model_instances(_old: str) -> str:
    rows = [f"| {each.name} | {each.text} |" for each in INSTANCES.values()]
    return _table("| instance | what is in it |", rows)


MAKERS: Final[Mapping[str, Callable[[str], str]]] = {
    "config-keys": _config_keys,
    "region-keys": _region_keys,
    "node-keys": _node_keys,
    "listener-keys": _listener_keys,
    "apis": _apis,
    "unserved-apis": _unserved_apis,
    "api-needs": _api_needs,
    "topic-configs": _topic_configs,
    "fixed-topic-configs": _fixed_topic_configs,
    "invariants": _invariants,
    "rules": _rules,
    "folder-faults": _folder_faults,
    "region-scenes": _region_scenes,
    "client-scenes": _client_scenes,
    "log-scenes": _log_scenes,
    "transaction-states": transaction_states,
    "failover-phases": failover_phases,
    "link-states": link_states,
    "round-phases": round_phases,
    "group-states": group_states,
    "model-instances": _model_instances,
    "model-mutants": _model_mutants,
}
