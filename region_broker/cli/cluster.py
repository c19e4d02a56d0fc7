"""`tidemark cluster`: the nodes of a region, who leads its logs, its quorum, and orders to them.

Any node's HTTP address will do; of several regions one is meant (INV-CCL2). An order goes to the node that leads the quorum, and ends
with exit code 0 only when it was carried out; while the quorum elects somebody it is given again.

Not here: HTTP (`cluster_client`), regions (`region`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from region_broker.cli.cluster_add import add_node
from region_broker.cli.cluster_add import tell as tell_added
from region_broker.cli.cluster_client import RegionOfNodes, knows_most, on_region
from region_broker.cli.cluster_rebalance import rebalanced
from region_broker.cli.cluster_upgrade import finalize, print_view, show, tell, upgrade_view
from region_broker.cli.cluster_waiting import until_in_sync
from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_USAGE,
    fail,
    output_option,
    print_json,
    print_pairs,
    print_table,
)

JSON: Final = "json"
MEGA: Final = 1_000_000
_NODE: Final = click.IntRange(0)
_VOTERS_MIN: Final = 3
"""With fewer, the loss of any voter takes the majority."""

dry_run_option: Final = click.option(
    "--dry-run", is_flag=True, help="Have it judged, and change nothing."
)
timeout_option: Final = click.option(
    "--timeout", "timeout_s", default=30.0, show_default=True, type=click.FloatRange(1, 3_600),
    help="Seconds to wait for a quorum that elects somebody.",
)  # fmt: skip


@click.group(
    epilog="Examples: tidemark cluster status · tidemark cluster drain 1 · tidemark cluster move --to 2"
)
def cluster() -> None:
    """Nodes of a region: how they stand, who leads, the quorum, drain, move, remove, upgrade."""


# --- looks ---------------------------------------------------------------------------------------


@cluster.command(
    epilog="""\b
Examples:
  tidemark cluster status --url http://127.0.0.1:9093 -o json
  tidemark cluster status --wait-for 4          until node 4 has copied all, saying how far it is""",
)
@click.option("--wait-for", type=_NODE, metavar="NODE", help="First wait until this node is in sync, whether it has come yet or not.")  # fmt: skip
@click.option("--timeout", "timeout_s", default=3_600.0, show_default=True, type=click.FloatRange(1, 604_800), help="With --wait-for: seconds.")  # fmt: skip
@on_region
@output_option
def status(region: RegionOfNodes, output: str, *, wait_for: int | None, timeout_s: float) -> None:
    """Show who leads the logs, who is in sync, who leads the quorum, every node, and the damage that those which answer tell of.

    Of a node that copies what it lacks: about how much that is, how fast it is sent, and how long it takes at that pace.
    """
    if wait_for is not None:
        until_in_sync(region, wait_for, timeout_s, _lacks)
    views = list(region.views().values())
    view = knows_most(views)
    if output == JSON:
        print_json(view)
        return
    leadership, quorum = view["leadership"], view["quorum"]
    print_pairs(
        f"region {view['region']}, as node {view['node_id']} knows it",
        [
            ("leads the logs", _who(leadership["leader"])),
            ("leader epoch", leadership["leader_epoch"]),
            ("in sync", _ids(leadership["in_sync"])),
            ("unclean elections", leadership["unclean"]),
            ("leads the quorum", _who(quorum["leader"])),
            ("votes", _ids(quorum["voters"])),
        ],
    )
    click.echo("")
    _print_nodes(view)
    for each in sorted(views, key=lambda found: int(found["node_id"])):
        _print_damage(each)
    if leadership["leader"] is None:
        click.echo(_nobody_leads(view))
    if quorum["leader"] is None:
        click.echo("NO QUORUM: follow docs/runbooks/quorum_lost.md")
        click.echo(
            "Nobody can say now which nodes run, or are in sync: what stands above is the last that was known."
        )
    elif len(quorum["voters"]) < _VOTERS_MIN:
        click.echo(
            f"TOO FEW VOTE: {_ids(quorum['voters'])}; none that votes may be gone. Start more nodes, and wait until three vote"
        )


@cluster.command(epilog="Example: tidemark cluster quorum -o json")
@on_region
@output_option
def quorum(region: RegionOfNodes, output: str) -> None:
    """Show the quorum of the metadata: who leads, who votes, how far each one is.

    Only its leader knows how far the others are: it is asked, where it answers.
    """
    view = region.leading_view()
    found = view["quorum"]
    if output == JSON:
        print_json(found)
        return
    print_pairs(
        f"quorum of region {view['region']}, as node {view['node_id']} knows it",
        [
            ("leads", _who(found["leader"])),
            ("term", found["term"]),
            ("committed up to", found["commit_index"]),
        ],
    )
    click.echo("")
    print_table(
        "",
        ("node#", "incarnation", "votes", "leads", "matched#", "heard ms ago#"),
        [
            (
                member["node_id"], member["incarnation"], _yes(member["votes"]), _yes(member["leads"]), member["matched_index"],
                member["heard_ms_ago"],
            )
            for member in found["members"]
        ],
    )  # fmt: skip


@cluster.group(
    epilog="Examples: tidemark cluster node list · tidemark cluster node add 2 --peer eu2:9094 · tidemark cluster node remove 3"
)
def node() -> None:
    """List the nodes of a region, add one, and remove one that is gone."""


@node.command("list", epilog="Example: tidemark cluster node list -o json")
@on_region
@output_option
def node_list(region: RegionOfNodes, output: str) -> None:
    """Show each node: addresses, whether it is heard, in sync, and what it lacks."""
    view = region.view()
    if output == JSON:
        print_json(view["nodes"])
        return
    _print_nodes(view)


@cluster.command(epilog="Example: tidemark cluster partitions --topic orders --node 2")
@click.option("--topic", help="Only of this topic.")
@click.option("--node", "node_id", type=_NODE, help="As this node has them; else as the one that leads.")  # fmt: skip
@on_region
@output_option
def partitions(topic: str | None, node_id: int | None, region: RegionOfNodes, output: str) -> None:
    """Show each log of a node: who leads it, who is in sync, its high watermark and its end."""
    rows = region.partitions(node_id, topic)
    if output == JSON:
        print_json(rows)
        return
    print_table(
        "",
        ("topic", "partition#", "leader#", "replicas", "in sync", "start#", "high watermark#", "end#", ""),
        [
            (
                row["topic"], row["partition"], row["leader"], _ids(row["replicas"]), _ids(row["in_sync"]), row["log_start_offset"],
                row["high_watermark"], row["log_end_offset"], row["failed"] or "",
            )
            for row in rows
        ],
    )  # fmt: skip


@cluster.command(
    epilog="""\b
Examples:
  tidemark cluster upgrade                      what each node runs, and what is finalized
  tidemark cluster upgrade --finalize --dry-run whether the level could be raised
  tidemark cluster upgrade --finalize           raise it, when all nodes run the new version""",
)
@click.option("--finalize", "finalizes", is_flag=True, help="Raise the level: older versions cannot take part in the region after that.")  # fmt: skip
@click.option("--level", type=click.IntRange(1), help="With --finalize: which one. Default: the newest that any node knows, which all must know.")  # fmt: skip
@dry_run_option
@on_region
@output_option
def upgrade(
    *, finalizes: bool, level: int | None, dry_run: bool, region: RegionOfNodes, output: str
) -> None:
    """Show each node's version and the feature level of the region; with --finalize raise it.

    The level is raised last, when all nodes run the new version: it cannot be lowered. docs/deploy/upgrade.md goes through it.
    """
    if not finalizes and (level is not None or dry_run):
        fail("--level and --dry-run say how the level is to be raised: give --finalize, too", EXIT_USAGE)  # fmt: skip
    view = upgrade_view(region)
    if not finalizes:
        (print_view if output == JSON else show)(view)
        return
    done = finalize(view, level, dry_run=dry_run)
    (print_json if output == JSON else tell)(done)


# --- orders --------------------------------------------------------------------------------------


def _order_options(command: Callable[..., None]) -> Callable[..., None]:
    for add in (on_region, output_option, timeout_option, dry_run_option):
        command = add(command)
    return command


@cluster.command(epilog="Example: tidemark cluster drain 1 --dry-run")
@click.argument("node_id", type=_NODE, metavar="NODE")
@_order_options
def drain(
    node_id: int, *, dry_run: bool, timeout_s: float, region: RegionOfNodes, output: str
) -> None:
    """Have a node lead nothing and take nothing on, until it is started anew: before it is stopped.

    Nothing is lost. A stop by SIGTERM does this by itself.
    """
    order = {"node_id": node_id, "dry_run": dry_run}
    _tell(region.order("drain", order, timeout_s), output)


@cluster.command(epilog="Example: tidemark cluster move --to 2")
@click.option("--to", "node_id", type=_NODE, metavar="NODE", help="Which node; else the best one in sync.")  # fmt: skip
@_order_options
def move(
    node_id: int | None, *, dry_run: bool, timeout_s: float, region: RegionOfNodes, output: str
) -> None:
    """Let a node that is in sync lead all logs of the region. Nothing is lost; writes pause for a moment."""
    order = {"node_id": node_id, "dry_run": dry_run}
    _tell(region.order("elect", order, timeout_s), output)


@cluster.command(
    "unclean-elect",
    epilog="""\b
Examples:
  tidemark cluster unclean-elect 2 --dry-run    what it costs
  tidemark cluster unclean-elect 2 --confirm""",
)
@click.argument("node_id", type=_NODE, metavar="NODE")
@click.option("--confirm", is_flag=True, help="Accept that records which were acknowledged may be lost.")  # fmt: skip
@_order_options
def unclean_elect(
    node_id: int,
    *,
    confirm: bool,
    dry_run: bool,
    timeout_s: float,
    region: RegionOfNodes,
    output: str,
) -> None:
    """Let a node lead that is not in sync, where those that are will never come back: it may LOSE records.

    docs/runbooks/nobody_leads.md says what to try first, and which node to choose.
    """
    order = {"node_id": node_id, "dry_run": True}
    planned = region.order("unclean-election", order, timeout_s)
    if dry_run:
        _tell(planned, output)
        return
    if not confirm:
        fail(f"nothing was done. {planned['costs']}. To do it all the same: --confirm", EXIT_FAILED)
    order = {"node_id": node_id, "confirm": True}
    _tell(region.order("unclean-election", order, timeout_s), output)


@node.command(
    "add",
    epilog="""\b
Examples:
  tidemark cluster node add 2 --peer eu2.example.org:9094 --dry-run
  tidemark cluster node add 2 --peer eu2.example.org:9094 --rack b > node2.toml
  scp node2.toml eu2.example.org:/etc/tidemark/node.toml""",
)
@click.argument("node_id", type=_NODE, metavar="ID")
@click.option("--peer", required=True, metavar="HOST:PORT", help="Where the other nodes meet it.")
@click.option("--kafka", metavar="HOST:PORT", help="Where clients meet it. Default: the host of --peer, and the port of the node that is asked.")  # fmt: skip
@click.option("--http", metavar="HOST:PORT", help="Where operators meet it. Default: as --kafka.")
@click.option("--rack", default="", help="Where it stands: consumers that say the same read there.")
@click.option("--data-dir", metavar="PATH", help="Its data folder, which is empty. Default: the path that the node which is asked has.")  # fmt: skip
@click.option("--unreached", is_flag=True, help="Its machine need not be there yet.")
@_order_options
def node_add(
    node_id: int, *, peer: str, kafka: str | None, http: str | None, rack: str, data_dir: str | None, unreached: bool,
    dry_run: bool, timeout_s: float, region: RegionOfNodes, output: str,
) -> None:  # fmt: skip
    """Make a new node known to all nodes of a region while they run, and print its configuration.

    No node is restarted, and no client is cut off. Nothing waits for the new node: it joins when it is started. Repeating this
    changes nothing. docs/deploy goes through it.
    """
    wanted = {
        "node_id": node_id, "peer": peer, "kafka": kafka, "http": http, "rack": rack, "data_dir": data_dir,
        "unreached": unreached, "dry_run": dry_run,
    }  # fmt: skip
    done = add_node(region, wanted, timeout_s)
    (print_json if output == JSON else tell_added)(done)


@node.command("remove", epilog="Example: tidemark cluster node remove 3 --dry-run")
@click.argument("node_id", type=_NODE, metavar="NODE")
@_order_options
def node_remove(
    node_id: int, *, dry_run: bool, timeout_s: float, region: RegionOfNodes, output: str
) -> None:
    """Forget a node that is gone for good, and have the quorum go on without it.

    One that comes back with an empty folder under its old number needs no removal: it takes its own place.
    """
    order = {"node_id": node_id, "dry_run": dry_run}
    _tell(region.order("remove", order, timeout_s), output)


@cluster.command(
    epilog="""\b
Examples:
  tidemark cluster rebalance            have partitions led by all nodes, each its part
  tidemark cluster rebalance --show     who leads what, and what is waited for
  tidemark cluster rebalance --gather   have one node lead all of them again""",
)
@click.option("--gather", is_flag=True, help="The reverse: one node leads all partitions.")
@click.option("--show", is_flag=True, help="Order nothing, and print who leads what.")
@_order_options
def rebalance(
    *, gather: bool, show: bool, dry_run: bool, timeout_s: float, region: RegionOfNodes, output: str
) -> None:
    """Spread the leaders of partitions over the nodes in sync, for as long as the region acts steadily.

    Ledgers, tidemarks, links, and compacted topics stay with one node. Before a switch or a failover, and where a node is in trouble, that one
    leads all partitions for a while; they are spread again by themselves. docs/deploy/spread.md
    """
    if show and (gather or dry_run):
        fail("--show orders nothing: leave out --gather and --dry-run", EXIT_USAGE)
    rebalanced(
        region, gather=gather, show=show, dry_run=dry_run, timeout_s=timeout_s, output=output
    )


# --- printing ------------------------------------------------------------------------------------


_COMMANDS: Final = {"elect": "move", "unclean-election": "unclean-elect", "remove": "node remove"}
"""What an order is called here, where HTTP calls it otherwise."""


def _tell(done: Mapping[str, Any], output: str) -> None:
    if output == JSON:
        print_json(done)
        return
    leadership = done["leadership"]
    if done["dry_run"]:
        verb = "would be carried out" if done["changed"] else "would change nothing"
    else:
        verb = "was carried out" if done["changed"] else "had nothing to change"
    order = _COMMANDS.get(done["order"], done["order"])
    click.echo(f"{order} {verb}.{' ' if done['costs'] else ''}{done['costs']}")
    click.echo(
        f"{_who(leadership['leader'])} leads under leader epoch {leadership['leader_epoch']}; in sync: {_ids(leadership['in_sync'])}"
    )


def _print_nodes(view: Mapping[str, Any]) -> None:
    print_table(
        "",
        ("node#", "state", "leads", "in sync", "lacks", "readers", "kafka", "http", "rack"),
        [
            (
                row["node_id"], _state(row), _yes(row["leads"]), _yes(row["in_sync"]), _lacks(row), _readers(row), row["kafka"],
                row["http"], row["rack"],
            )
            for row in view["nodes"]
        ],
    )  # fmt: skip


def _print_damage(view: Mapping[str, Any]) -> None:
    """Say what is wrong with the logs of the node that told `view`; a node of an older version does not tell."""
    here, node_id = view["here"], view["node_id"]
    if here.get("damage"):
        click.echo(f"DAMAGE at node {node_id}, see docs/runbooks/damaged_log.md: {here['damage']}")
    for name, why in here.get("stopped", {}).items():
        click.echo(f"STOPPED at node {node_id}, see docs/runbooks/damaged_log.md: {name}: {why}")


def _nobody_leads(view: Mapping[str, Any]) -> str:
    """Return what to do: a node in sync that runs is elected by itself, where there is a quorum."""
    in_sync = view["leadership"]["in_sync"]
    runs = {row["node_id"] for row in view["nodes"] if not row["fenced"]} & {*in_sync}
    if view["quorum"]["leader"] is not None and runs:
        return f"NOBODY LEADS YET: one of nodes {_ids(sorted(runs))} is elected, which takes a second or two; if not: docs/runbooks/nobody_leads.md"
    return f"NOBODY LEADS: awaited are nodes {_ids(in_sync)}: follow docs/runbooks/nobody_leads.md"


def _state(row: Mapping[str, Any]) -> str:
    if row["fenced"]:
        return "not heard"
    return "draining" if row["draining"] else "runs"


def _lacks(row: Mapping[str, Any]) -> str:
    if row["records_behind"] is None or row["fenced"]:  # of one that is not heard it is out of date
        return "-"
    stopped = row.get("logs_stopped")
    if stopped:
        return f"{stopped} logs that have stopped there, {row['records_behind']} records in all"
    if not row["logs_behind"]:
        return "nothing"
    return f"{row['records_behind']} records in {row['logs_behind']} logs{_left(row)}"


def _left(row: Mapping[str, Any]) -> str:
    """Return how much that is about, and how long it takes at the pace of now; nothing of a node that is in sync, or older."""
    size_bytes, bytes_per_s = row.get("bytes_behind"), row.get("sent_bytes_per_s")
    if size_bytes is None or row["in_sync"]:
        return ""
    about = f", about {size_bytes / MEGA:,.0f} MB"
    if not bytes_per_s:
        return about
    return f"{about} at {bytes_per_s / MEGA:,.1f} MB/s: {size_bytes / bytes_per_s:,.0f} s"


def _readers(row: Mapping[str, Any]) -> str:
    """Return whom a node serves; of an older node nothing is told."""
    if row["leads"]:
        return "all"
    return "of its rack" if row.get("serves_readers") and row["rack"] else ""


def _who(node_id: int | None) -> str:
    return "nobody" if node_id is None else f"node {node_id}"


def _ids(node_ids: list[int]) -> str:
    return ", ".join(map(str, node_ids)) or "none"


def _yes(value: bool) -> str:
    return "yes" if value else ""
