"""The nodes of this one's region, as far as it knows: those of its file, and those that were added while it runs.

INV-CNN6  where a node is met that is added while this one runs is known in the step in which the metadata say it (INV-MN8); it counts among
          the nodes of the region, and so for how many must have a record, once it has registered: nobody waits for it before
Not here: what comes of both (`config.region_growth`), who is not met by a listener (`listener_gaps`), connections (`region.cluster.transport`).
"""

from uuid import UUID

from idempotency.identity import Member
from region_broker.config.node_config import NodeConfig
from region_broker.config.region_growth import with_added
from region_broker.config.rules import split
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_image import MetadataImage
from region_broker.node.listener_gaps import ListenerGaps


class KnownNodes:
    """`take_image` hears of each image in the step in which it is there."""

    def __init__(self, config: NodeConfig) -> None:
        """Know what the file says."""
        self._config = self._known = config
        self._not_come: frozenset[int] = frozenset()
        self._gaps = ListenerGaps(config)

    def take_image(self, image: MetadataImage) -> None:
        """Know the nodes that were added by now (INV-CNN6), and have those named that no listener leads to."""
        self._known = with_added(self._config, image.added_nodes)
        self._not_come = frozenset(image.added_nodes) - frozenset(image.nodes)
        self._gaps.take_image(image)

    def address_of(self, member: Member) -> tuple[str, int] | None:
        """Return where a member is met by other nodes, whichever folder it has; None for whom nobody knows."""
        nodes = self._known.own.nodes
        return next((split(each.peer) for each in nodes if each.node_id == member.node_id), None)

    @property
    def config(self) -> NodeConfig:
        """Return what this node's file says."""
        return self._config

    def ids(self) -> frozenset[int]:
        """Return the ids of all of them."""
        return frozenset(node.node_id for node in self._known.own.nodes)

    def count(self) -> int:
        """Return how many nodes the region has, or is to have by a file; one that was added counts once it has registered."""
        return len({node.node_id for node in self._known.own.nodes} - self._not_come)

    def own_image(self, member: Member, life: UUID, levels: range) -> NodeImage:
        """Return what this node says of itself when it registers: its own file counts."""
        own = self._config.own_node
        kafka, peer, http = split(own.kafka), split(own.peer), split(own.http)
        return NodeImage(
            node_id=own.node_id, incarnation=member.incarnation, life=life,
            kafka_host=kafka[0], kafka_port=kafka[1], peer_host=peer[0], peer_port=peer[1],
            http_host=http[0], http_port=http[1], rack=own.rack, feature_level=levels[-1],
            lowest_level=levels[0],
        )  # fmt: skip
