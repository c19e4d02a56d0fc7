"""`tidemark dev`: regions as separate processes on loopback, until Ctrl-C or SIGTERM."""

import json
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from region_broker.cli.local_cluster import ClusterError, LocalCluster
from region_broker.ports.chance import SystemChance

_WATCH_INTERVAL_S = 0.2


@click.command(
    epilog="""\b
Examples:
  tidemark dev                              two regions, eu at 127.0.0.1:9092, us at 127.0.0.1:9102
  tidemark dev --regions 1 --port 19092     one region
  tidemark dev --data-dir ./cluster         the same cluster again, with everything in it
"""
)
@click.option("--regions", "region_count", default=2, show_default=True, help="How many regions.")
@click.option(
    "--port", default=9092, show_default=True,
    help="Kafka port of the first region (HTTP is the next one, each region ten further); 0: free ports.",
)  # fmt: skip
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False),
    help="Keep the data here. Without it a temporary folder is used and removed at the end.",
)  # fmt: skip
@click.option("-o", "output", type=click.Choice(["table", "json"]), default="table")
def dev(region_count: int, port: int, data_dir: Path | None, output: str) -> None:
    """Run a local cluster of N regions, each a process of its own, for development.

    A region that is killed stays dead and is reported; the others go on.
    """
    with ExitStack() as stack:
        folder = data_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-dev-"))
        )
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            cluster = stack.enter_context(
                LocalCluster.open(
                    folder.resolve(),
                    region_count=region_count,
                    port=port,
                    new_cluster_id=SystemChance().uuid(),
                )
            )
            cluster.start()
        except ClusterError as error:
            raise click.ClickException(str(error)) from error
        stopping = _stop_signals()
        _announce(cluster, output)
        _watch(cluster, stopping)


def _announce(cluster: LocalCluster, output: str) -> None:
    rows = [
        {"name": place.name, "bootstrap": place.bootstrap, "http": place.http,
         "pids": cluster.pids(place.name)}
        for place in cluster.plan.regions
    ]  # fmt: skip
    if output == "json":
        click.echo(json.dumps({"regions": rows}))
        return
    for row in rows:
        pids = ",".join(str(pid) for pid in cluster.pids(str(row["name"])))
        click.echo(f"{row['name']}  kafka {row['bootstrap']}  http {row['http']}  pid {pids}")
    click.echo("ready")


def _stop_signals() -> set[int]:
    """Block the stop signals so that `sigtimedwait` receives them; returns their set.

    Only after the regions were started: a blocked signal would be inherited by them.
    """
    stopping = {signal.SIGINT, signal.SIGTERM}
    signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
    return {int(number) for number in stopping}


def _watch(cluster: LocalCluster, stopping: set[int]) -> None:
    while signal.sigtimedwait(stopping, _WATCH_INTERVAL_S) is None:
        for name, code in cluster.dead().items():
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            click.echo(
                f"region {name} {how}; see {cluster.data_dir(name) / 'node.log'}. The others go on.",
                err=True,
            )
    click.echo("stopping", err=True)
