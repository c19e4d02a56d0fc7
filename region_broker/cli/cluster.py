"""`tidemark cluster`: the nodes of a region, who leads its logs, its quorum, and orders to them.

Any node's HTTP address will do; of several regions one is meant (INV-CCL2). An order goes to the node that leads the quorum, and ends
with exit code 0 only when it was carried out; while the quorum elects somebody it is given again.

Not here: HTTP (`cluster_client`), how nodes are printed (`cluster_status`), regions (`region`).
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

import click

from region_broker.cli.cluster_add import add_node
from region_broker.cli.cluster_add import tell as tell_added
from region_broker.cli.cluster_client import RegionOfNodes, knows_most, on_region
from region_broker.cli.cluster_rebalance import rebalanced
from region_broker.cli.cluster_status import ids, lacks, print_nodes, print_status, who, yes
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
_NODE: Final = click.IntRange(0)

dry_run_option: Final = click.option(
    "--dry-run", is_flag=True, help="Have it judged, and change nothing."
)
timeout_option: Final = click.option(
    "--timeout", "timeout_s", default=30.0, show_default=True, type=click.FloatRange(1, 3_600),
    help="Seconds to wait for a quorum that elects somebody, and, of rebalance, until it is so.",
)  # fmt: skip


@click.group(
    epilog="Examples: tidemark cluster status · tidemark cluster drain 1 · tidemark cluster move --to 2"
)
def cluster() -> None:
    """Nodes of a region: status, quorum, drain, move, add, remove, rebalance, upgrade."""


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
        until_in_sync(region, wait_for, timeout_s, lacks)
    views = list(region.views().values())
    view = knows_most(views)
    if output == JSON:
        print_json(view)
        return
    print_status(view, views, region.dead)


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
            ("leads", who(found["leader"])),
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
                member["node_id"], member["incarnation"], yes(member["votes"]), yes(member["leads"]), member["matched_index"],
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
    print_nodes(view)


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
                row["topic"], row["partition"], row["leader"], ids(row["replicas"]), ids(row["in_sync"]), row["log_start_offset"],
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

    Nothing is lost. A stop by SIGTERM does this by itself. Exit code 1 where it leads on, as nobody else can.
    """
    order = {"node_id": node_id, "dry_run": dry_run}
    done = region.order("drain", order, timeout_s)
    _tell(done, output)
    if done.get("leads_on"):  # INV-CLO5; a node of an older version does not say
        raise SystemExit(EXIT_FAILED)


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
        f"region {done['region']}: {who(leadership['leader'])} leads under leader epoch {leadership['leader_epoch']};"
        f" in sync: {ids(leadership['in_sync'])}"
    )
    if done["order"] == "drain" and not done["dry_run"] and not done.get("leads_on"):
        click.echo(
            f"node {done['node_id']} leads nothing and takes nothing on until it is started anew"
        )
