"""`tidemark node config`: what a node counts on, where that comes from, and changes of it while it runs.

The node checks all that is asked before it changes any of it. A change of one node needs to know which: where several
answer, the command wants to be told; a change of all nodes of a region, where nodes of several answer.
Not here: which keys may change (`config.changeable`), how a node is asked (`node_requests`).
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, NoReturn

import click

from region_broker.cli.admin.node_requests import (
    CLUSTER_AUTHORIZATION_FAILED,
    NodeConfigEntry,
    NodeConnection,
    NodeError,
)
from region_broker.cli.kafka import bootstrap_option
from region_broker.cli.output import (
    EXIT_AUTH,
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    EXIT_USAGE,
    fail,
    output_option,
    print_rows,
)

_OF_NODE: Final = 2
_FROM: Final = {_OF_NODE: "node", 3: "all nodes", 4: "file", 5: "default"}
_ORDER: Final = (2, 3, 4, 5)
_EXIT_CODES: Final = {
    40: EXIT_USAGE, 42: EXIT_USAGE, 7: EXIT_UNKNOWN_OUTCOME, CLUSTER_AUTHORIZATION_FAILED: EXIT_AUTH,
}  # fmt: skip


@click.group(epilog="Example: tidemark node config")
def node() -> None:
    """See and change what a node counts on while it runs."""


@node.command(
    "config",
    epilog="""\b
Examples:
  tidemark node config
  tidemark node config tidemark_interval_ms=50 --node 1 --dry-run
  tidemark node config --delete tidemark_interval_ms --node 1
  tidemark node config log_level=debug --all-nodes
""",
)
@click.argument("settings", nargs=-1, metavar="[KEY=VALUE]...")
@click.option("--delete", "gone", multiple=True, metavar="KEY",
              help="Go back to what is set elsewhere, or stands in the file; may be repeated.")  # fmt: skip
@click.option("--node", "node_id", type=int, help="The node's number; needed where several answer (with --all-nodes: of several regions).")  # fmt: skip
@click.option("--all-nodes", is_flag=True,
              help="For every node of the region that has nothing of its own.")  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Have it checked and shown, change nothing.")
@bootstrap_option
@output_option
def node_config(
    settings: tuple[str, ...],
    gone: tuple[str, ...],
    node_id: int | None,
    all_nodes: bool,
    dry_run: bool,
    bootstrap: str,
    output: str,
) -> None:
    """Show the configuration of the nodes that answer, or change keys of one, or of all nodes of its region.

    A change takes effect at once, survives a restart, and goes before what the node's file says.
    """
    values = _pairs(settings, gone)
    with _connected(bootstrap, node_id) as nodes, _told():
        if not values and not gone:
            _show(nodes, output, all_nodes=all_nodes)
            return
        _refuse_several(nodes, all_nodes=all_nodes)
        _change(nodes[0], values, gone, output, all_nodes=all_nodes, dry=dry_run)


def _refuse_several(nodes: Sequence[NodeConnection], *, all_nodes: bool) -> None:
    """End the command where it is open which node is meant, or, of all nodes of a region, which region."""
    numbers = ", ".join(str(each.node_id) for each in nodes)
    if not all_nodes and len(nodes) > 1:
        fail(
            f"nodes {numbers} answer: say with --node which one is meant, or with --all-nodes that all of a region are",
            EXIT_USAGE,
        )
    if not all(each.node_id in nodes[0].region_node_ids for each in nodes):
        fail(
            f"nodes {numbers} answer, and not all are known as nodes of one region: say with --node of which one's region all are meant",
            EXIT_USAGE,
        )


def _show(nodes: Sequence[NodeConnection], output: str, *, all_nodes: bool) -> None:
    rows = []
    for each in nodes:
        for key, entry in sorted(each.configs("" if all_nodes else str(each.node_id)).items()):
            if "." in key:  # Kafka's names of the same
                continue
            value, source = entry.synonyms[0]
            rows.append(
                {"node": each.node_id, "key": key, "value": value, "from": _FROM[source],
                 "may change": not entry.read_only}
            )  # fmt: skip
    what = "set for all nodes" if all_nodes else "what counts"
    print_rows(rows, output, title=what)


def _change(
    at: NodeConnection, values: Mapping[str, str], gone: Sequence[str], output: str,
    *, all_nodes: bool, dry: bool,
) -> None:  # fmt: skip
    name = "" if all_nodes else str(at.node_id)
    before = at.configs(str(at.node_id))
    at.change(name, values, gone, dry=dry)
    source = 3 if all_nodes else _OF_NODE
    if dry:
        after = {
            key: _planned(before.get(key), source, values.get(key)) for key in (*values, *gone)
        }
    else:
        now = at.configs(str(at.node_id))
        after = {key: _shown(now.get(key)) for key in (*values, *gone)}
    rows = [
        {"key": key, "before": _shown(before.get(key)), "after": after[key]}
        for key in (*values, *gone)
    ]
    print_rows(rows, output, title=f"node {at.node_id} {'would count' if dry else 'counts'} on")


def _shown(entry: NodeConfigEntry | None) -> str:
    return "" if entry is None else _worded(entry.synonyms)


def _planned(entry: NodeConfigEntry | None, source: int, value: str | None) -> str:
    """Return what a key would be if `value` were set at `source`, None: if nothing were."""
    found = [] if entry is None else [each for each in entry.synonyms if each[1] != source]
    if value is not None:
        found.append((value, source))
    return _worded(sorted(found, key=lambda each: _ORDER.index(each[1])))


def _worded(synonyms: Sequence[tuple[str, int]]) -> str:
    if not synonyms:
        return ""
    value, source = synonyms[0]
    return f"{value} ({_FROM[source]})"


def _pairs(settings: Sequence[str], gone: Sequence[str]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not key or not equals:
            fail(f"{setting!r} is not KEY=VALUE, such as tidemark_interval_ms=50", EXIT_USAGE)
        if key in pairs or key in gone:
            fail(f"{key} is named twice", EXIT_USAGE)
        pairs[key] = value
    if len(set(gone)) != len(gone):
        fail("--delete names a key twice", EXIT_USAGE)
    return pairs


@contextmanager
def _connected(bootstrap: str, node_id: int | None) -> Iterator[list[NodeConnection]]:
    """Yield connections to the nodes that answer, or to the one with that number; end the command where there is none."""
    with ExitStack() as connections:
        found: dict[int, NodeConnection] = {}
        dead, code = [], EXIT_FAILED
        for address in bootstrap.split(","):
            try:
                connection = connections.enter_context(NodeConnection(address))
            except (OSError, NodeError) as error:
                dead.append(f"{address}: {error}")
                if getattr(error, "error_code", None) == CLUSTER_AUTHORIZATION_FAILED:
                    code = EXIT_AUTH
                continue
            found.setdefault(connection.node_id, connection)
        if not found:
            fail(f"no node answers ({'; '.join(dead)}). Give its address with --bootstrap", code)
        if node_id is None:
            yield list(found.values())
        elif node_id in found:
            yield [found[node_id]]
        else:
            more = f" ({'; '.join(dead)})" if dead else ""
            numbers = ", ".join(map(str, found))
            text = f"node {node_id} does not answer, only {numbers}{more}"
            fail(text, code if code == EXIT_AUTH else EXIT_NOT_FOUND)


@contextmanager
def _told() -> Iterator[None]:
    """Turn what a node refuses, or a connection that breaks, into a message and an exit code."""
    try:
        yield
    except NodeError as error:
        _fail(str(error), error.error_code)
    except TimeoutError:
        fail(
            "the node did not answer in time: whether it changed is not known", EXIT_UNKNOWN_OUTCOME
        )
    except OSError as error:
        fail(f"the node is gone ({error}): whether it changed is not known", EXIT_UNKNOWN_OUTCOME)


def _fail(text: str, error_code: int | None) -> NoReturn:
    fail(text, EXIT_FAILED if error_code is None else _EXIT_CODES.get(error_code, EXIT_FAILED))
