"""`tidemark dev`: regions as separate processes on loopback, until Ctrl-C or SIGTERM.

Standard output holds the announcement and nothing else; what happens later goes to standard error. The command's end
ends its regions: a signal stops them cleanly, its sudden death closes their stdin.
"""

import json
import signal
import tempfile
from contextlib import ExitStack
from pathlib import Path

import click

from region_broker.cli.output import EXIT_USAGE, fail
from region_broker.ports.system.chance import SystemChance
from region_broker.workbench.local_cluster import ClusterError, LocalCluster

_WATCH_INTERVAL_S = 0.2


@click.command(
    epilog="""\b
Examples:
  tidemark dev                              two regions, eu at 127.0.0.1:9092, us at 127.0.0.1:9102
  tidemark dev --regions 1 --port 19092     one region
  tidemark dev --data-dir ./cluster         the same cluster again, with everything in it
"""
)
@click.option("--regions", "region_count", default=2, show_default=True, type=click.IntRange(1, 8),
              help="How many regions.")  # fmt: skip
@click.option(
    "--port", type=click.IntRange(0, 65_535),
    help="Kafka port of the first region (HTTP is the next one, each region ten further); 0: free ports."
    " Default: those that the data folder had before, else from 9092 on.",
)  # fmt: skip
@click.option(
    "--data-dir", type=click.Path(path_type=Path, file_okay=False),
    help="Keep the data here. Without it a temporary folder is used and removed at the end.",
)  # fmt: skip
@click.option("-o", "--output", "output", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="How to announce the regions.")  # fmt: skip
def dev(region_count: int, port: int | None, data_dir: Path | None, output: str) -> None:
    """Run a local cluster of N regions, each a process of its own, for development.

    Topics that clients ask for are made, as Kafka does where nobody told it otherwise.

    A region that is killed stays dead and is reported; the others go on.
    """
    stopping = {signal.SIGINT, signal.SIGTERM}
    for number in stopping:
        signal.signal(number, _stop)
    try:
        with ExitStack() as stack:
            folder = data_dir or Path(
                stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-dev-"))
            )
            cluster = stack.enter_context(_open(folder, region_count, port))
            cluster.start()
            # From here on only `sigtimedwait` receives them. (A blocked signal would be inherited by
            # the regions, so not earlier.)
            signal.pthread_sigmask(signal.SIG_BLOCK, stopping)
            _announce(cluster, output)
            _watch(cluster, stopping)
    except ClusterError as error:
        fail(str(error))
    except _Stopped:
        click.echo("stopped before all regions were up", err=True)


class _Stopped(BaseException):
    """A stop signal arrived while the regions were starting."""


def _stop(_number: int, _frame: object) -> None:
    raise _Stopped


def _open(folder: Path, region_count: int, port: int | None) -> LocalCluster:
    try:
        return LocalCluster.open(
            folder.resolve(),
            region_count=region_count,
            port=port,
            new_cluster_id=SystemChance().uuid(),
            settings={"auto_create_topics": True},
        )
    except ClusterError as error:
        fail(str(error), EXIT_USAGE)
    except OSError as error:
        fail(f"{folder} cannot be used: {error.strerror or error}. Give another --data-dir.")


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


def _watch(cluster: LocalCluster, stopping: set[signal.Signals]) -> None:
    while signal.sigtimedwait(stopping, _WATCH_INTERVAL_S) is None:
        for name, code in cluster.dead().items():
            how = f"was ended by signal {-code}" if code < 0 else f"ended with exit code {code}"
            rest = "The others go on." if cluster.running else "No region is left."
            click.echo(
                f"region {name} {how}; see {cluster.data_dir(name) / 'node.log'}. {rest}"
                f" To start it again: tidemark broker --config {cluster.data_dir(name) / 'node.json'}",
                err=True,
            )
    click.echo("stopping", err=True)
