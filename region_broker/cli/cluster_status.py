"""How `tidemark cluster` prints what the nodes of a region say: who leads, what each node does, lacks and serves, what is wrong.

Not here: the commands (`cluster`), who leads which part (`cluster_rebalance`), HTTP (`cluster_client`).
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import click

from region_broker.cli.output import print_pairs, print_table

_MEGA: Final = 1_000_000
_VOTERS_MIN: Final = 3
"""With fewer, the loss of any voter takes the majority."""
_ELECTION_MS: Final = 5_000
"""Shorter than this the quorum may be electing its leader; `/readyz` waits as long."""


def print_status(
    view: Mapping[str, Any], views: Sequence[Mapping[str, Any]], dead: Mapping[str, str]
) -> None:
    """Print how a region stands as `view` has it. `views`: of all nodes that answer; `dead`: why an address does not."""
    leadership, quorum = view["leadership"], view["quorum"]
    print_pairs(
        f"region {view['region']}, as node {view['node_id']} knows it",
        [
            ("leads the logs", who(leadership["leader"]) + _parts_led(view)),
            ("leader epoch", leadership["leader_epoch"]),
            ("in sync", ids(leadership["in_sync"])),
            ("unclean elections", leadership["unclean"]),
            ("leads the quorum", who(quorum["leader"])),
            ("votes", ids(quorum["voters"])),
        ],
    )
    click.echo("")
    print_nodes(view)
    for line in _troubles(view, views, dead):
        click.echo(line)


def _troubles(
    view: Mapping[str, Any], views: Sequence[Mapping[str, Any]], dead: Mapping[str, str]
) -> Iterator[str]:
    leadership, quorum = view["leadership"], view["quorum"]
    for row in view["nodes"]:
        if row["http"] in dead and not row["fenced"]:
            yield f"NO ANSWER from node {row['node_id']} at {row['http']}: {dead[row['http']]}"
    for each in sorted(views, key=lambda found: int(found["node_id"])):
        yield from _damage(each)
    if leadership["leader"] is None:
        yield _nobody_leads(view)
    if quorum["leader"] is None:
        yield _no_quorum(quorum)
        yield "Nobody can say now which nodes run, or are in sync: what stands above is the last that was known."
    elif len(quorum["voters"]) < _VOTERS_MIN:
        yield f"TOO FEW VOTE: {ids(quorum['voters'])}; none that votes may be gone. Start more nodes, and wait until three vote"


def print_nodes(view: Mapping[str, Any]) -> None:
    """Print a row for each node, and for each that was added and has not come; an older node tells of none."""
    print_table(
        "",
        ("node#", "state", "leads", "in sync", "lacks", "readers", "kafka", "http", "rack"),
        [
            (
                row["node_id"], _state(row), _leads(row, view), yes(row["in_sync"]), lacks(row), _readers(row, view), row["kafka"],
                row["http"], row["rack"],
            )
            for row in view["nodes"]
        ]
        + [
            (row["node_id"], "awaited", "", "", "-", "", row["kafka"], row["http"], row["rack"])
            for row in view.get("awaited", ())
        ],
    )  # fmt: skip


def _damage(view: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the disk and the logs of the node that told `view`; a node of an older version does not tell."""
    here, node_id = view["here"], view["node_id"]
    if here.get("damage"):
        yield f"DAMAGE at node {node_id}, see docs/runbooks/damaged_log.md: {here['damage']}"
    for name, why in here.get("stopped", {}).items():
        yield f"STOPPED at node {node_id}, see docs/runbooks/damaged_log.md: {name}: {why}"
    if here.get("no_room"):
        yield f"NO ROOM at node {node_id}, see docs/runbooks/disk_full.md: {here['no_room']}"


def _nobody_leads(view: Mapping[str, Any]) -> str:
    """Return what to do: a node in sync that runs is elected by itself, where there is a quorum."""
    in_sync = view["leadership"]["in_sync"]
    runs = {row["node_id"] for row in view["nodes"] if not row["fenced"]} & {*in_sync}
    if view["quorum"]["leader"] is not None and runs:
        return f"NOBODY LEADS YET: one of nodes {ids(sorted(runs))} is elected, which takes a second or two; if not: docs/runbooks/nobody_leads.md"
    return f"NOBODY LEADS: awaited are nodes {ids(in_sync)}: follow docs/runbooks/nobody_leads.md"


def _state(row: Mapping[str, Any]) -> str:
    if row["fenced"]:
        return "not heard"
    return "draining" if row["draining"] else "runs"


def lacks(row: Mapping[str, Any]) -> str:
    """Return what a node has not copied yet."""
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
    about = f", about {size_bytes / _MEGA:,.0f} MB"
    if not bytes_per_s:
        return about
    return f"{about} at {bytes_per_s / _MEGA:,.1f} MB/s: {size_bytes / bytes_per_s:,.0f} s"


def _groups(view: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the data groups, none while one node leads all; a node of an older version tells of none."""
    return list(view.get("spread", {}).get("groups", []))


def _parts_led(view: Mapping[str, Any]) -> str:
    others = sorted({row["leader"] for row in _groups(view)} - {None, view["leadership"]["leader"]})
    if not others:
        return ""
    return f", and nodes {ids(others)} their parts: tidemark cluster rebalance --show"


def _leads(row: Mapping[str, Any], view: Mapping[str, Any]) -> str:
    if not _groups(view):
        return yes(row["leads"])
    parts = sum(each["partitions"] for each in _groups(view) if each["leader"] == row["node_id"])
    led = f"{parts} partitions" if parts else ""
    return " + ".join(filter(None, ("main" if row["leads"] else "", led)))


def _no_quorum(quorum: Mapping[str, Any]) -> str:
    """Return what to do: an election takes a second or two."""
    lasted_ms = quorum["without_leader_ms"]
    if lasted_ms < _ELECTION_MS:
        return "NO QUORUM YET: its leader is being elected, which takes a second or two; if that lasts: docs/runbooks/quorum_lost.md"
    return f"NO QUORUM for {lasted_ms // 1000} s: follow docs/runbooks/quorum_lost.md"


def _readers(row: Mapping[str, Any], view: Mapping[str, Any]) -> str:
    """Return whom a node serves; of an older node nothing is told."""
    if _groups(view):
        return "of what it leads" if _leads(row, view) else ""
    if row["leads"]:
        return "all"
    return "of its rack" if row.get("serves_readers") and row["rack"] else ""


def who(node_id: int | None) -> str:
    """Return who that is."""
    return "nobody" if node_id is None else f"node {node_id}"


def ids(node_ids: list[int]) -> str:
    """Return which nodes these are."""
    return ", ".join(map(str, node_ids)) or "none"


def yes(value: bool) -> str:
    """Return what a cell says."""
    return "yes" if value else ""
