"""`tidemark cluster status --wait-for`: wait until a node has joined and is in sync, and say how far it is meanwhile.

Not here: what is printed then (`cluster`), HTTP (`cluster_client`).
"""

import time
from collections.abc import Callable, Mapping
from typing import Any, Final

from region_broker.cli.cluster_client import RegionOfNodes
from region_broker.cli.output import EXIT_UNKNOWN_OUTCOME, Progress, fail
from region_broker.cli.region_client import NoNode

_LOOK_S: Final = 1.0
Row = Mapping[str, Any]


def until_in_sync(
    region: RegionOfNodes, node_id: int, timeout_s: float, lacks: Callable[[Row], str]
) -> None:
    """Return once a node is in sync; ends the command where it is not within `timeout_s`. `lacks`: says what a node lacks."""
    progress, what = Progress(), "nobody has answered yet"
    while progress.elapsed_s < timeout_s:
        try:
            view = region.view()
        except NoNode as error:
            what = str(error)
        else:
            rows = [row for row in view["nodes"] if row["node_id"] == node_id]
            if any(row["in_sync"] for row in rows):
                return
            what = f"node {node_id} lacks {lacks(rows[0])}" if rows else f"node {node_id} has not come yet"  # fmt: skip
        progress.say(what)
        time.sleep(_LOOK_S)
    fail(
        f"node {node_id} is not in sync after {timeout_s:g} s: {what}. It goes on by itself; this command may be repeated, with a longer --timeout",
        EXIT_UNKNOWN_OUTCOME,
    )
