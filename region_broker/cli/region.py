"""`tidemark region`: status, planned switch, failover, losses.

A failover is never begun before the loss statement was printed or --yes was given. An order ends with exit code 0 only
when the new region takes writes.

Not here: HTTP (`region_client`), how orders are given (`region_orders`), tables (`output`).
"""

import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from region_broker.cli.output import (
    EXIT_FAILED,
    EXIT_NOT_FOUND,
    EXIT_UNKNOWN_OUTCOME,
    confirmed,
    fail,
    output_option,
    print_json,
    print_pairs,
    print_table,
)
from region_broker.cli.region_client import Cluster, parse_urls, reports_errors, url_option, whole
from region_broker.cli.region_orders import RegionOrders
from region_broker.workbench.leading_node import LeadingNode

JSON: Final = "json"
DIVERGENCE: Final = "divergence"
_WITHOUT_COPY: Final = {
    False: "where it cannot, it does not take over",
    True: "cuts off what it cannot copy (--accept-behind)",
}
_FOLLOWS: Final = {"mirroring", "acting"}
_SILENT_MS: Final = 5_000
ASK_S: Final = 10.0
_ORDER_NEEDS: Final = (
    "an order needs Alter on the cluster, or a token of the role that docs/reference/security.md#the-http-port says;"
    " --http-token-file names another token. Nothing was changed"
)
"""For so long a region is waited for that elects a leader."""


# A wait that ends before it began would give the order, and tell nobody what became of it.
timeout_option: Final = click.option(
    "--timeout", "timeout_s", default=60.0, show_default=True, type=click.FloatRange(1, 86_400),
    help="Seconds to wait.",
)  # fmt: skip


@click.group(
    epilog="Examples: tidemark region status · tidemark region switch --to us ·"
    " tidemark region failover --to us --yes"
)
def region() -> None:
    """Regions: how they stand, planned switch, failover, and what it cost."""


@region.command(epilog="Example: tidemark region status --url http://127.0.0.1:9093 -o json")
@url_option
@output_option
@reports_errors
def status(url: str | None, output: str) -> None:
    """Show role, region epoch, tidemark and lag of every region."""
    cluster = Cluster(parse_urls(url))
    views = cluster.whole_views()
    names = sorted({*cluster.http, *views})
    if output == JSON:
        regions = [views.get(name) or {"region": name, "reachable": False} for name in names]
        split = split_brain(views)
        print_json({"regions": regions, "unreachable": cluster.dead, "split_brain": split})
        return
    rows = [
        _status_row(name, views.get(name), cluster.http.get(name, ""), cluster.dead)
        for name in names
    ]
    columns = (
        "region",
        "role",
        "takes writes",
        "epoch#",
        "tidemark#",
        "age ms#",
        "lag",
        "http",
        "",
    )
    print_table("", columns, rows)
    for text in runs_twice(views):
        click.echo(f"RUNS TWICE: {text}")
    for address, (name, why) in cluster.aside.items():
        if views[name].get("stands_aside") != why:
            click.echo(f"{address} is another node of region {name}, which stands aside: {why}")
    if both := split_brain(views):
        click.echo(
            f"SPLIT BRAIN: {' and '.join(both)} take writes at the same time: follow docs/runbooks/split_brain.md"
        )


def split_brain(views: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return the regions that take writes where more than one does, with their epochs."""
    acting = [name for name, view in sorted(views.items()) if view["acting"]]
    found = [f"{name} (region epoch {views[name]['region_epoch']})" for name in acting]
    return found if len(acting) > 1 else []


def runs_twice(views: Mapping[str, Mapping[str, Any]]) -> list[str]:
    """Return what the regions say of others that two nodes run as."""
    return sorted({text for view in views.values() for text in view.get("runs_twice", {}).values()})


def lag_text(view: Mapping[str, Any]) -> str:
    """Return a region's lag: its own at a mirror, that of each mirror where the region acts."""
    known = view.get("lag") or {}
    if known.get("lag"):
        return _one_lag(known)
    mirrors = (known.get("mirrors") or {}) if view["acting"] else {}
    return "; ".join(f"{name}: {_one_lag(mirror)}" for name, mirror in mirrors.items()) or "-"


def _one_lag(known: Mapping[str, Any]) -> str:
    shown = [f"{value} {name}" for name, value in known["lag"].items() if value is not None]
    text = ", ".join(shown) or "unknown"
    silent_ms = known.get("silent_ms", 0)
    return text if silent_ms < _SILENT_MS else f"{text}, not heard for {silent_ms // 1000} s"


def _status_row(
    name: str, view: Mapping[str, Any] | None, address: str, dead: Mapping[str, str]
) -> Sequence[object]:
    if view is None:
        why = "does not answer" + (f": {dead[address]}" if address in dead else "")
        return (name, "unreachable", "no", "-", "-", "-", "-", address, why)
    mark = view["tidemark"]
    return (
        name,
        view["role"],
        _takes_writes(view),
        view["region_epoch"],
        mark["number"],
        mark["age_ms"] if mark["age_ms"] >= 0 else "-",
        lag_text(view),
        address,
        remark(view),
    )


def _takes_writes(view: Mapping[str, Any]) -> str:
    if not view["acting"]:
        return "no"
    return "in part" if view.get("refuses_writes") else "yes"


def remark(view: Mapping[str, Any]) -> str:
    """Return why a region does not act, and what its tidemarks, its link or its disk suffer from, if anything."""
    return "; ".join(filter(None, (_remark(view), view.get("damage"))))


def _remark(view: Mapping[str, Any]) -> str:
    known = view.get("lag") or {}
    if view["acting"]:
        failed = known.get("rounds", {}).get("failed")
        return "; ".join(filter(None, (view.get("refuses_writes"), failed)))
    # The primary that is refused does answer: "goes on by itself when it acts again" would be untrue.
    reason = str(known.get("refused_history") or view["reason_not_acting"])
    troubles = (known.get(key) for key in ("stopped_reaching", "lost_here"))
    trouble = next(filter(None, troubles), None) or _waiting_logs(known)
    if not trouble and view.get("stands_aside") not in {None, "", reason}:
        trouble = view["stands_aside"]
    if not trouble and known.get("state") != "streaming":
        trouble = known.get("last_error")
    if trouble == reason:
        trouble = None
    if diverged := view.get("diverged_records"):
        told = f"{diverged} offsets copied here and not held at the primary are in quarantine: tidemark region losses"
        trouble = f"{trouble}; {told}" if trouble else told
    return f"{reason}; {trouble}" if trouble else reason


def _waiting_logs(known: Mapping[str, Any]) -> str:
    """Return which logs of a mirror are not copied while others are, and why; so no tidemark is reached (T12)."""
    waiting = list((known.get("waiting") or {}).values())
    if not waiting:
        return ""
    more = f" (and {len(waiting) - 1} more)" if len(waiting) > 1 else ""
    return f"not copied any more, so no tidemark is reached: {waiting[0]}{more}"


@region.command(epilog="Example: tidemark region switch --to us")
@click.option("--to", "target", required=True, metavar="REGION", help="The region that is to act.")
@click.option("--domain", default="main", show_default=True, help="What is moved.")
@timeout_option
@url_option
@output_option
@reports_errors
def switch(target: str, domain: str, timeout_s: float, url: str | None, output: str) -> None:
    """Let another region act, planned: nothing is lost, writes pause for a moment."""
    cluster = Cluster(parse_urls(url))
    _check_domain(cluster, target, domain)
    _end_if_acting(cluster, target, output)
    orders = RegionOrders(cluster, target, timeout_s, quiet=output == JSON)
    operation = orders.give("/v1/region/switch", {"to": target, "domain": domain})
    _end(orders.follow(operation), output)


@region.command(epilog="Example: tidemark region failover --to us --domain main --yes")
@click.option("--to", "target", required=True, metavar="REGION", help="The region that is to act.")
@click.option("--domain", default="main", show_default=True, help="What fails over.")
@click.option("--yes", is_flag=True, help="Do not ask: accept the loss statement.")
@click.option(
    "--accept-behind",
    is_flag=True,
    help="Give up what a third region has reached beyond this one, if it cannot be copied from there.",
)
@timeout_option
@url_option
@output_option
@reports_errors
def failover(
    target: str,
    domain: str,
    *,
    yes: bool,
    accept_behind: bool,
    timeout_s: float,
    url: str | None,
    output: str,
) -> None:
    """Let another region act although the primary may be lost.

    Prints what that loses at most, and asks, unless --yes is given. What a third region has reached beyond the
    new one is copied from there first. Ends when the new region takes writes.
    """
    cluster = Cluster(parse_urls(url))
    _check_domain(cluster, target, domain)
    _end_if_acting(cluster, target, output)
    orders = RegionOrders(cluster, target, timeout_s, quiet=output == JSON)
    statement = orders.ask(f"/v1/region/loss-statement?to={target}")
    if output != JSON:
        _print_statement(statement)
    if further := further_mirrors(cluster.views(), statement):
        click.echo(
            f"NOTE: {'; '.join(further)}, {target} not yet: it copies that from there before it takes over, and"
            f" {_WITHOUT_COPY[accept_behind]}.",
            err=True,
        )
    if not yes and not _confirmed(target, output, statement):
        fail("nothing was done")
    order = {"to": target, "domain": domain, "confirm": True, "accept_behind": accept_behind}
    _end(orders.follow(orders.give("/v1/region/failover", order)), output)


@region.command("accept-loss", epilog="Example: tidemark region accept-loss --at eu --yes")
@click.option("--at", "target", required=True, metavar="REGION", help="The region in dispute.")
@click.option("--domain", default="main", show_default=True, help="What it acts for.")
@click.option("--yes", is_flag=True, help="Do not ask: accept the loss statement.")
@timeout_option
@url_option
@output_option
@reports_errors
def accept_loss(
    target: str, domain: str, yes: bool, timeout_s: float, url: str | None, output: str
) -> None:
    """Let a region act with what it holds, although a mirror has shown more.

    For a region whose writes are closed because its disk lost what a mirror has: an empty or an older folder.
    Prints what the mirror has beyond it, and asks, unless --yes is given. The mirror puts that into
    quarantine. The way that loses nothing is: tidemark region failover to the mirror.
    """
    cluster = Cluster(parse_urls(url))
    _check_domain(cluster, target, domain)
    orders = RegionOrders(cluster, target, timeout_s, quiet=output == JSON)
    statement = orders.ask(f"/v1/region/loss-to-accept?to={target}")
    if output != JSON:
        _print_statement(statement)
        _print_records(statement["plain"])
    if not yes and not _confirmed(target, output, statement):
        fail("nothing was done")
    order = {"to": target, "domain": domain, "confirm": True}
    operation = orders.give("/v1/region/accept-loss", order, waits=False)
    _end(orders.follow(operation), output)


def further_mirrors(
    views: Mapping[str, Mapping[str, Any]], statement: Mapping[str, Any]
) -> list[str]:
    """Return the mirrors that answer and have reached a later tidemark than the statement takes over at."""
    at = (statement["tidemark_region_epoch"], statement["tidemark_number"])
    return [
        f"region {name} has reached tidemark {mark['number']} of region epoch {mark['region_epoch']}"
        for name, view in sorted(views.items())
        if name != statement["to_region"] and view.get("role") == "mirror"
        for mark in (view["tidemark"],)
        if (mark["region_epoch"], mark["number"]) > at
    ]


def _print_records(ranges: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            f"{lost['topic']}-{lost['partition']}",
            lost["record_count"],
            f"{lost['first_offset']}..{lost['last_offset']}",
        )
        for lost in ranges
    ]
    if rows:
        print_table("", ("partition", "plain records#", "offsets"), rows)


def _check_domain(cluster: Cluster, target: str, domain: str) -> None:
    """End the command where a region has no such domain; raises `NoNode`, `UnknownRegion`, `ApiError` where we may not see it."""
    cluster.address_of(target)
    there = whole(cluster.views()[target], _ORDER_NEEDS)["domain"]
    if there != domain:
        text = (
            f"no domain is called {domain!r}; region {target} has {there!r}. Nothing was changed."
        )
        fail(text, EXIT_NOT_FOUND)


def _end_if_acting(cluster: Cluster, target: str, output: str) -> None:
    """End the command, well, where there is nothing to do."""
    acts = cluster.acts_already(target)
    if not acts:
        return
    if output == JSON:
        print_json({"status": "succeeded", "to_region": target, "steps": [acts]})
    else:
        click.echo(f"{acts}: there is nothing to do")
    sys.exit(0)


def _confirmed(target: str, output: str, statement: Mapping[str, Any]) -> bool:
    if output == JSON:
        print_json({"status": "not confirmed", "statement": statement})
    if not sys.stdin.isatty() and output == JSON:
        return False
    return confirmed(f"Let region {target} act at this tidemark?")


def _end(operation: Mapping[str, Any], output: str) -> None:
    if output == JSON:
        print_json(operation)
    elif operation["status"] == "succeeded":
        paused_ms = int(operation["writes_paused_ms"])
        paused = f"; writes paused for {paused_ms} ms" if paused_ms >= 0 else ""
        click.echo(
            f"region {operation['to_region']} acts under region epoch"
            f" {operation['region_epoch']}{paused}"
        )
    if operation["status"] == "succeeded":
        return
    code = EXIT_UNKNOWN_OUTCOME if operation["status"] == "timed-out" else EXIT_FAILED
    fail(f"{operation['kind']} to {operation['to_region']}: {operation['error']}", code)


def _print_statement(statement: Mapping[str, Any]) -> None:
    print_pairs(
        "Loss statement",
        [
            ("takes over", f"{statement['to_region']} from {statement['from_region']}"),
            (
                "tidemark",
                (
                    f"{statement['tidemark_number']} of region epoch"
                    f" {statement['tidemark_region_epoch']}, {_age_text(statement['age_ms'])}"
                ),
            ),
            ("transactions lost", f"{statement['transaction_count']} known by name"),
            ("plain records lost", f"{statement['plain_record_count']} known by position"),
            ("offset commits lost", f"{statement['offset_commit_count']} known by group"),
            ("and at most", statement["open_bound"]),
        ],
    )
    _print_transactions(statement["transactions"])
    _print_rest("transactions", statement["transaction_count"] - len(statement["transactions"]))
    _print_offsets(statement)
    undone = [(change["topic"], change["change"]) for change in statement["topic_changes"]]
    if undone:
        print_table("", ("topic", "change at the primary that is undone"), undone)


def _age_text(age_ms: int) -> str:
    return f"{age_ms} ms old" if age_ms >= 0 else "of unknown age"


def _print_offsets(found: Mapping[str, Any]) -> None:
    rows = [
        (
            each["group_id"],
            f"{each['topic']}-{each['partition']}",
            each["commit_count"],
            each["last_offset"],
        )
        for each in found["offsets"]
    ]
    if rows:
        print_table("", ("group", "partition", "commits#", "last committed#"), rows)
    listed = sum(each["commit_count"] for each in found["offsets"])
    _print_rest("offset commits", found["offset_commit_count"] - listed)


def _print_transactions(transactions: Sequence[Mapping[str, Any]]) -> None:
    rows = [
        (
            lost["transactional_id"],
            lost["producer_id"],
            lost["producer_epoch"],
            f"shard {lost['decision']['shard']} at {lost['decision']['offset']}",
            ", ".join(lost["partitions"]),
        )
        for lost in transactions
    ]
    if rows:
        columns = ("transactional id", "producer id#", "producer epoch#", "decision", "partitions")
        print_table("", columns, rows)


@region.command(epilog="Example: tidemark region losses -o json")
@url_option
@output_option
@reports_errors
def losses(url: str | None, output: str) -> None:
    """List what takeovers lost, from the quarantine of every region that answers."""
    cluster = Cluster(parse_urls(url))
    found: list[Mapping[str, Any]] = []
    elsewhere: dict[str, Mapping[str, Any]] = {}
    views = cluster.whole_views()
    for name in sorted(views):
        leading = LeadingNode(cluster.nodes_of(name))
        listed = leading.ask("/v1/region/losses", ASK_S)
        found.extend(listed["losses"])
        if listed.get("outstanding"):  # of several nodes only
            elsewhere[name] = {key: listed[key] for key in ("outstanding", "may_hold_more")}
    found.sort(key=lambda lost: (lost["lineage_epoch"], lost["region"]))
    if output == JSON:
        print_json({"losses": found, "unreachable": cluster.dead, "elsewhere": elsewhere})
        return
    if not found:
        click.echo("no region has a quarantined tail: nothing was lost, or nobody returned yet")
    for name, listed in elsewhere.items():
        _print_outstanding(name, listed)
    exact = {_cut_of(lost): lost for lost in found if lost["exact"]}
    for lost in found:
        whole = exact.get(_cut_of(lost), lost)
        if whole is lost or not _within(lost, whole):
            _print_losses(lost, views, whole["region"])


def _print_outstanding(region: str, listed: Mapping[str, Any]) -> None:
    """Say which nodes may have more in quarantine than is listed."""
    who = "; ".join(f"node {node['node_id']}: {node['reason']}" for node in listed["outstanding"])
    what = "what such a node alone had acknowledged (acks=1)"
    if listed["may_hold_more"]:
        what = "records that were acknowledged"
    click.echo(
        f"region {region} does not know yet all that was cut off at each of its nodes ({who}): {what} may be missing below."
        " Ask again when they are there; one that is gone for good is to be removed: tidemark cluster node remove. What is named as removed, or"
        " as another data folder, comes back no more: the list is what is left, and no more than that"
    )


def _cut_of(lost: Mapping[str, Any]) -> tuple[object, ...]:
    return lost["domain"], lost["lineage_epoch"], lost["cause"]


def _within(lost: Mapping[str, Any], whole: Mapping[str, Any]) -> bool:
    """Return whether another region's list of the same cut names all of this one.

    After `accept-loss` it may not: each mirror had its own tail. A list that ends early proves nothing.
    """
    if lost["unreadable"] or lost["unexplained"] or any(_unlisted(lost).values()):
        return False
    decisions = [each["decision"] for each in whole["transactions"]]
    return (
        all(each["decision"] in decisions for each in lost["transactions"])
        and all(any(_covers(more, each) for more in whole["records"]) for each in lost["records"])
        and all(any(_covers(more, each) for more in whole["offsets"]) for each in lost["offsets"])
    )


def _covers(more: Mapping[str, Any], found: Mapping[str, Any]) -> bool:
    """Return whether a row of one region's list says all that a row of another's does: a range, or a group's commits."""
    places = ("group_id", "topic", "partition", "producer_id", "producer_epoch")
    if any(more.get(name) != found.get(name) for name in places):
        return False
    if "commit_count" in found:
        return bool(more["commit_count"] >= found["commit_count"])
    return bool(
        more["first_offset"] <= found["first_offset"]
        and found["last_offset"] <= more["last_offset"]
    )


def _unlisted(lost: Mapping[str, Any]) -> dict[str, int]:
    """Return how many of each kind are counted beyond what is listed."""
    counted = lost["plain_record_count"] + lost["transactional_record_count"]
    return {
        "transactions": lost["transaction_count"] - len(lost["transactions"]),
        "records": counted - sum(found["record_count"] for found in lost["records"]),
        "offset commits": lost["offset_commit_count"]
        - sum(found["commit_count"] for found in lost["offsets"]),
    }


def _compared(lost: Mapping[str, Any]) -> str:
    if lost["cause"] == DIVERGENCE:
        return "-"
    if lost["statement"] is None:
        return "unknown: the statement is not here"
    if lost["unexplained"]:
        return "NO: " + "; ".join(lost["unexplained"])
    return "yes" if lost["exact"] else "yes, as far as known"


def _print_losses(
    lost: Mapping[str, Any], views: Mapping[str, Mapping[str, Any]], whole_in: str = ""
) -> None:
    stated = lost["statement"] is not None
    base = f"tidemark {lost['base_number']} of region epoch {lost['base_region_epoch']}"
    title = (
        f"Cut off when region epoch {lost['lineage_epoch']} began, found in region {lost['region']}"
    )
    if _lost_nothing(lost):
        click.echo(
            f"{title}: nothing was lost (it was switched in peace, or had passed everything on)"
        )
        return
    if lost["cause"] == DIVERGENCE:
        base = "no takeover: the primary region had lost, or never had, what this one held"
        title = (
            f"Diverged under region epoch {lost['lineage_epoch']}, found in region {lost['region']}"
        )
    print_pairs(
        title,
        [
            ("counted", _counted(lost, views, whole_in)),
            ("base", base),
            ("transactions lost", lost["transaction_count"]),
            ("plain records lost", lost["plain_record_count"]),
            ("offset commits lost", lost["offset_commit_count"]),
            ("transactional records", lost["transactional_record_count"]),
            ("named beforehand", f"{lost['named_count']} transactions" if stated else "-"),
            ("never arrived", f"{lost['not_arrived_count']} transactions" if stated else "-"),
            ("equal to the statement", _compared(lost)),
        ],
    )
    if given_up := _given_up(lost):
        click.echo(f"given up by name, and not counted above: {given_up}")
    for text in lost["unreadable"]:
        click.echo(f"not readable, and not counted whole: {text}")
    _print_transactions(lost["transactions"])
    rest = _unlisted(lost)
    _print_rest("transactions", rest["transactions"])
    if lost["not_arrived"]:
        click.echo("of these never arrived, so that no statement could name them:")
        _print_transactions(lost["not_arrived"])
        _print_rest("of them", lost["not_arrived_count"] - len(lost["not_arrived"]))
    rows = [
        (
            f"{found['topic']}-{found['partition']}",
            f"{found['first_offset']}..{found['last_offset']}",
            found["record_count"],
            found["producer_id"],
            {None: "plain", True: "committed", False: "not committed"}[found["committed"]],
        )
        for found in lost["records"]
    ]
    if rows:
        print_table("", ("partition", "offsets", "records#", "producer id#", ""), rows)
    _print_rest("records", rest["records"])
    _print_offsets(lost)


def _lost_nothing(lost: Mapping[str, Any]) -> bool:
    """Return whether all was counted, and there is nothing of a user's in it: only what the region wrote for itself."""
    counts = (
        "transaction_count",
        "plain_record_count",
        "offset_commit_count",
        "transactional_record_count",
    )
    explained = lost["cause"] != DIVERGENCE and lost["exact"] and not lost["unexplained"]
    kept_nothing = not any(lost[name] for name in counts)
    return bool(explained and not lost["unreadable"] and kept_nothing and not _given_up(lost))


def _given_up(lost: Mapping[str, Any]) -> str:
    """Return which logs an operator gave up because they were gone (T36): no quarantine holds what they held."""
    statement = lost["statement"] or {}
    own = statement.get("accepted") and statement["from_region"] == statement["to_region"]
    return str(statement["open_bound"]) if own else ""


def _counted(lost: Mapping[str, Any], views: Mapping[str, Mapping[str, Any]], whole_in: str) -> str:
    if lost["unreadable"]:
        return "not whole: some of it cannot be read"
    if lost["exact"]:
        return "exactly"
    if whole_in not in ("", lost["region"]):
        return f"what was here; that of region {whole_in} is listed by itself, and does not name all of this"
    if lost["statement"] is None:
        return "so far: whose tail it is part of is not known here"
    old = lost["statement"]["from_region"]
    back = views.get(old, {})
    if back.get("phase") in _FOLLOWS and back["region_epoch"] >= lost["lineage_epoch"]:
        return f"finally: region {old} is back, and holds nothing more of it"
    return f"so far: region {old} is not back"


def _print_rest(what: str, count: int) -> None:
    if count > 0:
        click.echo(f"... and {count:,} more {what} that are not listed")
