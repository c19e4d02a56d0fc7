"""`tidemark cluster rebalance`: have the leaders of partitions spread over the nodes of a region, or gathered at one (ADR 53).

INV-CRB5  exit code 0 says that it is as it was ordered to be; what is ordered and takes longer ends with another one, and with what is waited for
Not here: when leaders are spread, and gathered by themselves (`controller.cluster.spreading`).
"""

import time
from collections.abc import Mapping
from typing import Any, Final

import click

from region_broker.cli.cluster_client import RegionOfNodes
from region_broker.cli.output import (
    EXIT_UNKNOWN_OUTCOME,
    Progress,
    fail,
    print_json,
    print_pairs,
    print_table,
)

_LOOK_S: Final = 0.2


def rebalanced(
    region: RegionOfNodes, *, gather: bool, show: bool, dry_run: bool, timeout_s: float, output: str
) -> None:
    """Order it, wait until it is so, and print how leaders stand; `show`: print only."""
    if not show:
        kind = "gather" if gather else "spread"
        done = region.order(kind, {"node_id": None, "dry_run": dry_run}, timeout_s)
        if dry_run:
            verb = "would be carried out" if done["changed"] else "would change nothing"
            click.echo(f"{kind} {verb}.", err=output == "json")
        else:
            _wait(region, wanted=not gather, timeout_s=timeout_s)
    view = region.view()
    if output == "json":
        print_json(
            {"region": view["region"], "leader": view["leadership"]["leader"], **view["spread"]}
        )
        return
    print_spread(view)


def _wait(region: RegionOfNodes, *, wanted: bool, timeout_s: float) -> None:
    progress = Progress()
    while True:
        spread = region.view()["spread"]
        lacks = what_lacks(spread, wanted=wanted)
        if not lacks:
            return
        if progress.elapsed_s > timeout_s:
            fail(
                f"it is ordered, and not done after {timeout_s:.0f} s: {lacks}. It is done as soon as that is over:"
                " tidemark cluster rebalance --show",
                EXIT_UNKNOWN_OUTCOME,
            )
        progress.say(f"waiting: {lacks}")
        time.sleep(_LOOK_S)


def what_lacks(spread: Mapping[str, Any], *, wanted: bool) -> str:
    """Return what is still waited for, empty where leaders are as they are to be."""
    if not wanted:
        return "one node takes all leaders back" if spread["groups"] else ""
    if not spread["groups"]:
        return str(
            spread["waiting"] or "leaders are spread when the region has acted steadily for 10 s"
        )
    away = [row for row in spread["groups"] if row["leader"] != row["preferred"]]
    return f"group {away[0]['group']} is to be led by node {away[0]['preferred']}" if away else ""


def print_spread(view: Mapping[str, Any]) -> None:
    """Print who leads what."""
    spread, leadership = view["spread"], view["leadership"]
    print_pairs(
        f"leaders of region {view['region']}, as node {view['node_id']} knows it",
        [
            ("are to be spread", "yes" if spread["wanted"] else "no"),
            ("leads ledgers, tidemarks and links", _who(leadership["leader"])),
        ],
    )
    if not spread["groups"]:
        click.echo(
            f"One node leads all partitions{': ' if spread['waiting'] else ''}{spread['waiting']}."
        )
        return
    click.echo("")
    print_table(
        "",
        ("group", "leader#", "preferred#", "leader epoch#", "in sync", "partitions#"),
        [
            (
                row["group"], row["leader"], row["preferred"], row["leader_epoch"], ", ".join(map(str, row["in_sync"])), row["partitions"],
            )
            for row in ({**leadership, "group": "main", "preferred": None, "partitions": spread.get("main_partitions")}, *spread["groups"])
        ],
    )  # fmt: skip


def _who(node_id: int | None) -> str:
    return "nobody" if node_id is None else f"node {node_id}"
