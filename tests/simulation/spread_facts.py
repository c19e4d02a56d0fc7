"""What an image says of leaders that are spread over the nodes of a region (ADR 53)."""

from typing import Final

from idempotency.identity import Member
from region_broker.controller.cluster.spreading import SpreadKeeping, SpreadSettings
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node import Node
from tests.simulation.region_pair import Region

HASTY: Final = SpreadSettings(
    steady_ms=800, common_ms=1_000, count_ms=2_000, differ_ms=4_000, preferred_ms=1_000, pause_ms=500, pause_max_ms=3_000,
    forgiven_ms=5_000,
)  # fmt: skip
"""Times of the keeper in lives, where a fault follows the other within seconds."""


def in_sync_everywhere(image: MetadataImage) -> frozenset[Member]:
    """Return who is in sync in the main group and in every data group."""
    if image.leadership is None:
        return frozenset()
    rows = [] if image.spread is None else list(image.spread.groups.values())
    return frozenset(image.leadership.in_sync).intersection(*(row.in_sync for row in rows))


def is_spread_as_wanted(image: MetadataImage) -> bool:
    """Return whether leaders are spread, each where it is preferred, where that is wanted, and are not where it is not."""
    spread = image.spread
    if spread is None:
        return not image.spread_wanted
    led = {number: row.leader and row.leader.node_id for number, row in spread.groups.items()}
    return image.spread_wanted and all(spread.preferred[number] == by for number, by in led.items())


def hasten_spread(region: Region) -> None:
    """Let each life of a node spread leaders as soon as there is peace for a moment; called before it is opened."""
    first = region.on_open

    def opened(node: Node) -> None:
        if first is not None:
            first(node)
        assert node._replication is not None
        node._replication.spread_keeper._core = SpreadKeeping(HASTY)

    region.on_open = opened
