"""What an image says of leaders that are spread over the nodes of a region (ADR 53)."""

from collections.abc import Iterator, Sequence
from typing import Final

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.controller.cluster.spreading import SpreadSettings
from region_broker.controller.cluster_image import GroupNumber
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node import Node
from tests.simulation.region_pair import Region

HASTY: Final = SpreadSettings(
    steady_ms=800, common_ms=1_000, count_ms=2_000, differ_ms=4_000, preferred_ms=1_000, pause_ms=500, pause_max_ms=3_000,
    forgiven_ms=5_000, forwarded_ms=1_500,
)  # fmt: skip
"""Times of the keeper in lives, where a fault follows the other within seconds."""


def in_sync_everywhere(image: MetadataImage) -> frozenset[Member]:
    """Return who is in sync in the main group and in every data group."""
    if image.leadership is None:
        return frozenset()
    rows = [] if image.spread is None else list(image.spread.groups.values())
    return frozenset(image.leadership.in_sync).intersection(*(row.in_sync for row in rows))


def leader_port_of(
    image: MetadataImage, topic: str, partition: int, ports: Sequence[int]
) -> int | None:
    """Return where the leader of a partition is met; None where one node leads all. `ports`: of the nodes, by their ids."""
    found = image.topics.get(topic)
    if found is None or image.spread is None:
        return None
    row = image.leadership_of(LogKey(found.topic_id, partition))
    return None if row is None or row.leader is None else ports[row.leader.node_id - 1]


def epochs_led(node: Node) -> Iterator[LeaderEpoch]:
    """Yield the leader epochs of the data groups that are open at a node."""
    if node._replication is None:
        return
    groups = node._replication.groups
    for number in groups.open_groups:
        if (epoch := groups._data[GroupNumber(number)].leads) is not None:
            yield epoch


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
        node._replication.spread_keeper.use(HASTY)

    region.on_open = opened
