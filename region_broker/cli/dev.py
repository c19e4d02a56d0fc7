"""`tidemark dev`: nodes of regions as separate processes on loopback, until Ctrl-C or SIGTERM.

Standard output holds the announcement and nothing else; what happens later goes to standard error. The command's end
ends its nodes: a signal stops them cleanly, its sudden death closes their stdin.
"""

import json
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.config.relations import NODE_COUNT_MAX
from region_broker.ports.system.chance import SystemChance
from region_broker.workbench.cluster_plan import ClusterError, RegionPlace
from region_broker.workbench.local_cluster import LocalCluster

if TYPE_CHECKING:
    from region_broker.workbench.secure_cluster import SecuredCluster

_WATCH_INTERVAL_S = 0.2


@click.command(
    epilog="""\b
Examples:
  tidemark dev                              two regions, eu at 127.0.0.1:9092, us at 127.0.0.1:9102
  tidemark dev --regions 1 --port 19092     one region
  tidemark dev --nodes 3                    two regions of three nodes: any one of each may go
  tidemark dev --nodes 3 --regions 1        one region of three nodes
  tidemark dev --data-dir ./cluster         the same cluster again, with everything in it
  tidemark dev --secure                     with TLS, logins and ACLs, and what clients need to come in
"""
)
@click.option("--regions", "region_count", default=2, show_default=True, type=click.IntRange(1, 8),
              help="How many regions.")  # fmt: skip
@click.option("--nodes", "node_count", default=1, show_default=True, type=click.IntRange(1, NODE_COUNT_MAX),
              help="How many nodes in each region.")  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65_535),
    help="Kafka port of the first node (HTTP is the next one, each further node is ten further); 0: free ports."
    " Default: those that the data folder had before, else from 9092 on.",
)  # fmt: skip
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False),
    help="Keep the data here. Without it a temporary folder is used and removed at the end.",
)  # fmt: skip
@click.option("--secure", is_flag=True, help="Every port with TLS, and nobody in who has not logged in: for one administrator, whose password and"
              " token are drawn, and lie beside the data.")  # fmt: skip
@click.option("-o", "--output", "output", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="How to announce the regions.")  # fmt: skip
def dev(
    region_count: int, node_count: int, port: int | None, data_dir: Path | None, secure: bool,
    output: str,
) -> None:  # fmt: skip
    """Run a local cluster of regions, each node a process of its own, for development.

    Topics that clients ask for are made, as Kafka does where nobody told it otherwise.

    What is killed stays dead and is reported; the others go on.
    """
    stopping = {signal.SIGINT, signal.SIGTERM}
    for number in stopping:
        signal.signal(number, _stop)
    try:
        with ExitStack() as stack:
            folder = data_dir or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-dev-"))
            )
            cluster = stack.enter_context(_open(folder, (region_count, node_count), port))
            made = _secure(cluster) if secure else None
            cluster.start()
            # From here on only `sigtimedwait` receives them. (A blocked signal would be inherited by
            # the nodes, so not earlier.)
            signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
            _announce(cluster, output, made)
            _watch(cluster, stopping)
    except ClusterError as error:
        fail(str(error))
    except _Stopped:
        click.echo("stopped before all nodes were up", err=True)


class _Stopped(BaseException):
    """A stop signal arrived while the nodes were starting."""


def _stop(_number: int, _frame: object) -> None:
    raise _Stopped


def _open(folder: Path, counts: tuple[int, int], port: int | None) -> LocalCluster:
    region_count, node_count = counts
    try:
        return LocalCluster.open(
            folder.resolve(),
            region_count=region_count,
            node_count=node_count,
            port=port,
            new_cluster_id=SystemChance().uuid(),
            settings={"auto_create_topics": True},
        )
    except ClusterError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{folder} cannot be used: {error.strerror or error}. Give another --data-dir.")


def _secure(cluster: LocalCluster) -> "SecuredCluster":
    from region_broker.security.certificates import CertificateRefused
    from region_broker.workbench.secure_cluster import secured

    try:
        made = secured(cluster.folder, cluster.plan)
    except CertificateRefused as error:
        raise ClusterError(str(error)) from error
    except OSError as error:
        raise ClusterError(f"{error.filename} cannot be used: {error.strerror or error}") from error
    cluster.tell(made.settings, made.of_node, "https")
    return made


def _announce(cluster: LocalCluster, output: str, made: "SecuredCluster | None") -> None:
    if output == "json":
        told: dict[str, Any] = {"regions": [_row(cluster, place) for place in cluster.plan.regions]}
        if made is not None:
            told["security"] = made.announced()
        click.echo(json.dumps(told))
        return
    for node in cluster.plan.nodes:
        pids = ",".join(map(str, cluster.pids(node.name)))
        click.echo(f"{node.name}  kafka {node.bootstrap}  http {node.http}  pid {pids}")
    if made is not None:
        from region_broker.cli.pasted_logins import logins_text

        click.echo(logins_text(cluster, made, "dev"), nl=False)
    click.echo("ready")


def _row(cluster: LocalCluster, place: RegionPlace) -> dict[str, Any]:
    """Return what is said of a region: as of one node where it has one, `http` of its first; then each node."""
    nodes = [
        {"id": node.node_id, "kafka": node.bootstrap, "http": node.http,
         "pid": next(iter(cluster.pids(node.name)), None)}
        for node in place.nodes
    ]  # fmt: skip
    return {
        "name": place.name,
        "bootstrap": place.bootstrap,
        "http": place.http,
        "pids": cluster.pids(place.name),
        "nodes": nodes,
    }


def _watch(cluster: LocalCluster, stopping: set[signal.Signals]) -> None:
    several = any(place.siblings for place in cluster.plan.regions)
    none_left = f"No {'node' if several else 'region'} is left."
    while signal.sigtimedwait(stopping, _WATCH_INTERVAL_S) is None:
        for name, code in cluster.dead().items():
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            rest = "The others go on." if cluster.running else none_left
            folder = cluster.data_dir(name)
            click.echo(
                f"{cluster.node(name).title} {how}; see {folder / 'node.log'}. {rest}"
                f" To start it again: tidemark broker --config {folder / 'node.json'}",
                err=True,
            )
    click.echo("stopping", err=True)
