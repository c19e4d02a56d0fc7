"""`tidemark cluster node add`: a new node is made known to a region that runs, and its configuration is printed.

Standard output is the configuration, and nothing else; what is told of the region goes to standard error.
Not here: what is judged and changed (`node.node_adding`), HTTP (`cluster_client`).
"""

import json
import time
from collections.abc import Iterator, Mapping
from typing import Any, Final

import click

from region_broker.cli.cluster_client import RegionOfNodes
from region_broker.cli.output import EXIT_UNKNOWN_OUTCOME, Progress, fail
from region_broker.workbench.node_http import CONNECT_TIMEOUT_S, ApiError, request

_AGAIN_S: Final = 0.05
_NO_QUORUM: Final = "no-quorum"
_TABLE: Final = "[[regions]]"


def add_node(region: RegionOfNodes, wanted: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Add a node by any node that answers, and return what it says, once the region serves with it; raises `ApiError`, `NoNode`."""
    url = region.any_url()
    done = _added(url, wanted, timeout_s)
    if done["turns"] and not done["dry_run"]:
        _until_turned(url, timeout_s)
    return done


def _added(url: str, wanted: Mapping[str, Any], timeout_s: float) -> dict[str, Any]:
    """Add it, once somebody leads the quorum; raises `ApiError` where nobody does for so long."""
    progress = Progress()
    while True:
        try:
            done: dict[str, Any] = request(url, "POST", "/v1/cluster/nodes", wanted)
        except ApiError as error:
            if error.code != _NO_QUORUM or progress.elapsed_s > timeout_s:
                raise
            progress.say(f"waiting: {error}")
            time.sleep(_AGAIN_S)
        else:
            return done


def _until_turned(url: str, timeout_s: float) -> None:
    """Return once a region that had one node is led as one of several."""
    progress = Progress()
    why = "it has not answered yet"
    while progress.elapsed_s < timeout_s:
        try:
            view = request(url, "GET", "/v1/cluster", timeout_s=CONNECT_TIMEOUT_S)
            if view["leadership"]["leader"] is not None:
                return
            why = "nobody leads it yet"
        except (ApiError, OSError) as error:
            why = str(error) or type(error).__name__
        progress.say("waiting: the node goes on as one of several")
        time.sleep(_AGAIN_S)
    fail(
        f"the node was added, and {url} does not serve as one of several after {timeout_s:.0f} s ({why}). Look at its log; where its process"
        " has ended, start it again: it comes back as one of several. This command may be repeated",
        EXIT_UNKNOWN_OUTCOME,
    )


def tell(done: Mapping[str, Any]) -> None:
    """Say what was done, and print the configuration of the new node."""
    node_id, nodes = done["node_id"], ", ".join(map(str, done["nodes"]))
    if done["dry_run"]:
        click.echo(
            f"node {node_id} could be added to region {done['region']}: nothing was changed",
            err=True,
        )
    elif done["changed"]:
        click.echo(
            f"node {node_id} was added to region {done['region']}, whose nodes are {nodes} now",
            err=True,
        )
    else:
        click.echo(
            f"node {node_id} is one of region {done['region']} already, whose nodes are {nodes}",
            err=True,
        )
    click.echo(
        f"Write what follows to the machine of node {node_id}, and start it: tidemark broker --config node.toml. It joins by itself, with an"
        " empty data_dir. How far it is: tidemark cluster status",
        err=True,
    )
    if done["config"].get("tls_certificate"):
        click.echo(
            "It needs a certificate and a key of its own, under the names in it: tidemark cert issue --config node.toml, or your CA; the other"
            " files that it names are those of the other nodes",
            err=True,
        )
    listeners = ", ".join(done.get("listeners", ()))
    if listeners:
        click.echo(
            f"Clients that come by another address than kafka ({listeners}) are not told of node {node_id} yet: give it its [[listeners]] in"
            f" what follows, write where it is met by them (advertised) into the files of the other nodes, and restart those one by one",
            err=True,
        )
    if len(done["nodes"]) == 2:
        click.echo("With two nodes, none that votes may be gone: add a third one", err=True)
    click.echo(toml_of(done["config"]), nl=False)


def toml_of(config: Mapping[str, Any]) -> str:
    """Return a configuration as TOML."""
    lines = [
        f"# Node {config['node_id']} of region {config['region']}, as tidemark cluster node add has written it."
    ]
    lines += [f"{key} = {_value(value)}" for key, value in config.items() if key != "regions"]
    for region in config["regions"]:
        lines += ["", _TABLE, *_rows(region, but="nodes")]
        for node in region["nodes"]:
            lines += ["", "[[regions.nodes]]", *_rows(node)]
    return "\n".join(lines) + "\n"


def _rows(table: Mapping[str, Any], but: str = "") -> Iterator[str]:
    for key, value in table.items():
        if key != but:
            yield f"{key} = {_value(value)}"


def _value(value: Any) -> str:
    """Return a text, a number, a truth value or a table of these as TOML has it: what JSON escapes in a text, TOML does, too."""
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{json.dumps(k)} = {_value(v)}" for k, v in value.items()) + " }"
    return json.dumps(value)
