"""`tidemark cluster upgrade`: what each node of a region runs, and the feature level, which is raised last.

Serves a region of one node, too. An older node that knows nothing of levels is told by what it registered.
Not here: `tidemark cluster`'s other commands (`cluster`), HTTP (`workbench.node_http`).
"""

from collections.abc import Mapping
from typing import Any, Final

import click

from region_broker.cli.cluster_client import RegionOfNodes
from region_broker.cli.output import EXIT_FAILED, fail, print_json, print_pairs, print_table
from region_broker.workbench.node_http import CONNECT_TIMEOUT_S, ApiError, request

_NOT_FOUND: Final = 404
_RAISE_TIMEOUT_S: Final = 30.0


def upgrade_view(region: RegionOfNodes) -> dict[str, Any]:
    """Return region, finalized level, and each node's version and levels; raises `ApiError`, `NoNode`."""
    places = region.places()
    rows = [_row(place) for place in places]
    found = [row["finalized"] for row in rows if row["finalized"] is not None]
    heard = [row for row in rows if row["newest_level"] is not None]
    return {
        "region": places[0]["region"],
        "finalized": max(found, default=None),
        "may_be_raised_to": min((row["newest_level"] for row in heard), default=None),
        "nodes": [{key: row[key] for key in _COLUMNS} for row in rows],
        "urls": [row["http"] for row in rows if row["finalized"] is not None],
    }


_COLUMNS: Final = ("node_id", "http", "version", "lowest_level", "newest_level", "why")


def _row(place: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a node says of itself, or what its region knows of it."""
    row = {
        "node_id": place["node_id"], "http": place["http"], "version": None, "lowest_level": None,
        "newest_level": place["newest_level"], "finalized": None, "why": "",
    }  # fmt: skip
    try:
        told = request(place["http"], "GET", "/v1/features", timeout_s=CONNECT_TIMEOUT_S)
    except ApiError as error:
        row["why"] = "an older version" if error.status == _NOT_FOUND else str(error)
    except OSError as error:
        row["why"] = f"does not answer: {error}"
    else:
        row |= {
            "version": told["version"], "lowest_level": told["supported"]["lowest"],
            "newest_level": told["supported"]["newest"], "finalized": told["finalized"],
        }  # fmt: skip
    return row


def show(view: Mapping[str, Any]) -> None:
    """Print it."""
    finalized = view["finalized"]
    print_pairs(
        f"region {view['region']}",
        [
            ("finalized level", "unknown: no node runs this version" if finalized is None else finalized),
            ("all nodes know", view["may_be_raised_to"]),
        ],
    )  # fmt: skip
    click.echo("")
    print_table(
        "",
        ("node#", "version", "levels", "http", ""),
        [
            (row["node_id"], row["version"] or "-", _levels(row), row["http"], row["why"])
            for row in view["nodes"]
        ],
    )
    newest = view["may_be_raised_to"]
    if finalized is None or newest is None:
        return
    if newest > finalized:
        click.echo(
            f"All nodes know level {newest}. When nobody will want the older version back: tidemark cluster upgrade --finalize"
        )
    elif any((row["newest_level"] or 0) > finalized for row in view["nodes"]):
        click.echo("Not all nodes run the newer version yet: the level is raised when they do.")


def _levels(row: Mapping[str, Any]) -> str:
    lowest, newest = row["lowest_level"], row["newest_level"]
    if newest is None:
        return "-"
    if lowest is None:
        return f"up to {newest}"
    return str(newest) if lowest == newest else f"{lowest} to {newest}"


def finalize(view: Mapping[str, Any], level: int | None, *, dry_run: bool) -> Mapping[str, Any]:
    """Raise the level, by a node that runs this version; ends the command where none does. Raises `ApiError`."""
    if not view["urls"]:
        fail("no node answers that knows of levels: install this version on all nodes first", EXIT_FAILED)  # fmt: skip
    # The newest that any node knows: where not all do, the answer names those that do not.
    known = [row["newest_level"] for row in view["nodes"] if row["newest_level"] is not None]
    body = {"level": max(known) if level is None else level, "dry_run": dry_run}
    done: Mapping[str, Any] = request(
        view["urls"][0], "POST", "/v1/features", body, timeout_s=_RAISE_TIMEOUT_S
    )
    return done


def tell(done: Mapping[str, Any]) -> None:
    """Print what became of it."""
    if not done["changed"]:
        click.echo(f"region {done['region']} is at level {done['finalized']}: nothing changes.")
    elif done["dry_run"]:
        click.echo(f"region {done['region']} could be raised from level {done['before']} to {done['level']}: nothing was changed.")  # fmt: skip
    else:
        click.echo(
            f"region {done['region']} was raised from level {done['before']} to {done['finalized']}. Older versions cannot take part"
            " in it any more. Each region has a level of its own: raise all of them (--region) before anything is used that needs it, as a"
            " region that cannot keep what the primary has shows nothing that comes behind it."
        )


def print_view(view: Mapping[str, Any]) -> None:
    """Print it as JSON."""
    print_json({key: value for key, value in view.items() if key != "urls"})
