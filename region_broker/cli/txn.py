"""`tidemark txn`: which transactions there are, what is open where, ending one, and the final word on one.

An abort is asked for before it is ordered, unless `--yes` is given; `--dry-run` orders nothing. Whatever is not an
answer has an exit code of its own: 3 not there, 5 the outcome is unknown.

Everything is asked of the primary region over HTTP. Not here: what an abort does (`docs/reference/cli.md`).
"""

import re
from typing import Any, Final
from urllib.parse import urlencode

import click

from region_broker.cli.output import (
    EXIT_NOT_FOUND,
    EXIT_USAGE,
    agreed,
    fail,
    output_option,
    print_object,
    print_rows,
)
from region_broker.cli.region_client import Cluster, parse_urls, reports_errors, url_option
from region_broker.workbench.node_http import request

_STATES: Final = (
    "empty", "ongoing", "prepare_commit", "prepare_abort", "complete_commit", "complete_abort",
)  # fmt: skip


@click.group(epilog="Examples: tidemark txn list --state ongoing · tidemark txn abort payments-7")
def txn() -> None:
    """List, describe and abort transactions, and ask for the final word on one."""


def _acting(url: str | None) -> str:
    return Cluster(parse_urls(url)).acting()


def _ask(url: str | None, path: str, **query: str | int) -> Any:
    """Return the primary region's JSON answer."""
    asked = f"{path}?{urlencode(query)}" if query else path
    return request(_acting(url), "GET", asked)


@txn.command(
    "list",
    epilog="""\b
Examples:
  tidemark txn list -o json
  tidemark txn list --state ongoing --longer-than 60
  tidemark txn list --pattern 'payments-.*'
  tidemark txn list --open
""",
)
@click.option("--state", "states", multiple=True, type=click.Choice(_STATES),
              help="Only transactions in this state; may be repeated.")  # fmt: skip
@click.option("--producer-id", "producer_ids", multiple=True, type=int,
              help="Only those of this producer id; may be repeated.")  # fmt: skip
@click.option("--longer-than", "longer_than_s", type=click.FloatRange(0), metavar="SECONDS",
              help="Only those that began longer ago and have not ended.")  # fmt: skip
@click.option("--pattern", metavar="REGEX", help="Only transactional ids that match as a whole.")
@click.option("--open", "by_partition", is_flag=True,
              help="What is open, by partition; also what no transactional id knows.")  # fmt: skip
@url_option
@output_option
@reports_errors
def txn_list(
    states: tuple[str, ...],
    producer_ids: tuple[int, ...],
    longer_than_s: float | None,
    pattern: str | None,
    by_partition: bool,
    url: str | None,
    output: str,
) -> None:
    """List transactional ids with their states."""
    if by_partition:
        if states or producer_ids or longer_than_s is not None or pattern:
            fail("--open takes no filters", EXIT_USAGE)
        print_rows(_ask(url, "/v1/transactions/open")["open"], output, title="open transactions")
        return
    try:
        regex = re.compile(pattern or ".*", re.DOTALL)
    except re.error as error:
        fail(f"--pattern {pattern!r} is no regular expression: {error}", EXIT_USAGE)
    answer = _ask(url, "/v1/transactions")
    rows = [
        row
        for row in answer["transactions"]
        if (not states or row["state"] in states)
        and (not producer_ids or row["producer_id"] in producer_ids)
        and (longer_than_s is None or _open_ms(row, answer["now_ms"]) > longer_than_s * 1000)
        and regex.fullmatch(row["transactional_id"])
    ]
    print_rows(rows, output, title="transactions")


def _open_ms(row: dict[str, Any], now_ms: int) -> int:
    """Return for how long a transaction has not ended, -1 if none is under way."""
    under_way = row["state"] in ("ongoing", "prepare_commit", "prepare_abort")
    return now_ms - int(row["started_ms"]) if under_way else -1


@txn.command("describe", epilog="Example: tidemark txn describe payments-7")
@click.argument("transactional_id")
@url_option
@output_option
@reports_errors
def txn_describe(transactional_id: str, url: str | None, output: str) -> None:
    """Show the state of TRANSACTIONAL_ID and the partitions of its transaction."""
    print_object(_described(_acting(url), transactional_id), output, title=transactional_id)


def _described(node: str, transactional_id: str) -> dict[str, Any]:
    query = urlencode({"transactional_id": transactional_id})
    found = request(node, "GET", f"/v1/transactions?{query}")["transactions"]
    if not found:
        fail(f"no transactional id {transactional_id} is known", EXIT_NOT_FOUND)
    row: dict[str, Any] = found[0]
    return row


@txn.command(
    "abort",
    epilog="""\b
Examples:
  tidemark txn abort payments-7
  tidemark txn abort payments-7 --dry-run
  tidemark txn abort --topic orders --partition 3 --start-offset 1200 --yes
""",
)
@click.argument("transactional_id", required=False)
@click.option(
    "--topic", help="With --partition and --start-offset: the transaction that begins there."
)
@click.option("--partition", type=click.IntRange(0), help="The partition of --topic.")
@click.option("--start-offset", type=click.IntRange(0),
              help="As `tidemark txn list --open` shows it.")  # fmt: skip
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--dry-run", is_flag=True, help="Only say what would be aborted.")
@url_option
@output_option
@reports_errors
def txn_abort(
    transactional_id: str | None,
    topic: str | None,
    partition: int | None,
    start_offset: int | None,
    yes: bool,
    dry_run: bool,
    url: str | None,
    output: str,
) -> None:
    """Abort the open transaction of TRANSACTIONAL_ID, or the one that begins at an offset.

    The coordinator decides it and fences the producer, which can no longer commit. All its partitions are
    aborted. Returns when nothing of it is open any more.
    """
    place = {"topic": topic, "partition": partition, "start_offset": start_offset}
    given = [value for value in place.values() if value is not None]
    if (transactional_id is None) == (not given) or (given and len(given) < len(place)):
        fail("give a transactional id, or --topic, --partition and --start-offset", EXIT_USAGE)
    node = _acting(url)
    if transactional_id is not None:
        found = _described(node, transactional_id)
        order: dict[str, Any] = {"transactional_id": transactional_id}
    else:
        opened = request(node, "GET", "/v1/transactions/open")["open"]
        matching = [row for row in opened if place.items() <= row.items()]
        if not matching:
            fail(
                f"no open transaction begins at {topic}-{partition}@{start_offset}", EXIT_NOT_FOUND
            )
        (found,), order = matching, place
    if dry_run:
        print_object(found, output, title="would be aborted")
        return
    if not yes:
        if output == "table":
            print_object(found, output, title="to be aborted")
        agreed("abort it, and fence its producer?")
    request(node, "POST", "/v1/transactions/abort", order)
    print_object({"aborted": True, **order}, output, title="aborted")


@txn.command(
    "verdict",
    epilog="""\b
Example, for a record whose delivery report said orders-3@1200 in region epoch 8:
  tidemark txn verdict orders 3 1200 --region-epoch 8
""",
)
@click.argument("topic_name", metavar="TOPIC")
@click.argument("partition", type=int)
@click.argument("offset", type=int)
@click.option("--region-epoch", type=int, help="The region epoch under which it was written.")
@click.option("--producer-id", type=int, help="Who wrote it; then the region epoch is its own.")
@click.option("--producer-epoch", type=int, help="Beside --producer-id.")
@url_option
@output_option
@reports_errors
def txn_verdict(
    topic_name: str,
    partition: int,
    offset: int,
    url: str | None,
    output: str,
    **written_by: int | None,
) -> None:
    """Say what became of the transaction of one record: committed, aborted, lost, open."""
    query: dict[str, str | int] = {"topic": topic_name, "partition": partition, "offset": offset}
    query |= {name: value for name, value in written_by.items() if value is not None}
    print_object(_ask(url, "/v1/verdict", **query), output, title="verdict")
