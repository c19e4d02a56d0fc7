"""Who leads the metadata quorum, asked of the nodes themselves over HTTP.

Not here: who leads the logs (Metadata says that).
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from region_broker.workbench.node_http import ApiError, request

_CALL_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class Quorum:
    """As its leader told. `behind`: how many entries the voter that lacks most lacks."""

    leader_id: int
    voters: frozenset[int]
    behind: int


def quorum(urls: Sequence[str]) -> Quorum | None:
    """Return what the one of these nodes that leads tells, None where none does."""
    for url in urls:
        try:
            told = request(url, "GET", "/v1/cluster", timeout_s=_CALL_S)["quorum"]
        except (ApiError, OSError):
            continue
        voters = [each for each in told["members"] if each["votes"]]
        ends = [each["matched_index"] for each in voters]
        if ends and None not in ends:  # who does not lead knows of no other
            behind = max(ends) - min(ends)
            return Quorum(told["leader"], frozenset(each["node_id"] for each in voters), behind)
    return None
