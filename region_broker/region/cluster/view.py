"""What clients are told of the nodes of this region: read from the metadata image, and from nowhere else.

INV-CLV1  this node is always told, whatever the image says of it: a client that reached it may go on with it
INV-CLV2  this node leads only where the image names its own folder: another one under its id is another node
INV-CLV3  who leads is heard; a fenced node is told as a replica that is offline only
INV-CLV4  who leads is told as the first replica, which Kafka calls the preferred leader: here it is whoever leads, and tools
          that compare the two would otherwise ask, without end, for elections that nothing needs. While leaders are spread, it is
          the node that is to lead the group, whoever leads it meanwhile
Not here: the answers themselves (`handlers`), who leads (`controller.cluster`).
"""

from collections.abc import Callable, Sequence
from dataclasses import replace

from region_broker.controller.cluster_image import MAIN_GROUP, Leadership, NodeImage, Spread
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.handlers.dispatch.nodes import KnownNode, NodeFacts, alone


class RegionNodes:
    """A `handlers.dispatch.nodes.NodesView`."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        me: Member,
        own: KnownNode,
        region: str,
        *,
        several: bool,
    ) -> None:
        """Tell of the nodes in `image()`, of which this one is `me`, met at `own`.

        `several`: whether this region is configured with several nodes. Of one that is not, and where nobody has registered, this
        node is all there is (INV-HNV1).
        """
        self._image = image
        self._me = me
        self._own = own
        self._region = region
        self._several = several
        self._of: MetadataImage | None = None
        self._facts: NodeFacts | None = None
        self._kept: dict[int, NodeFacts] = {}
        """The facts of each group as they were told last: equal ones stay the same object, which is what rows are compared by."""

    @property
    def facts(self) -> NodeFacts:
        """See `NodesView`; made once for each image."""
        image = self._image()
        facts = self._facts
        if facts is None or self._of is not image:
            facts = self._facts = self._made(image)
            self._of = image
        return facts

    def _made(self, image: MetadataImage) -> NodeFacts:
        own, spread = self._own, image.spread
        if not self._several and image.leadership is None and not image.nodes:
            return alone(own)
        if spread is None:
            return self._same(MAIN_GROUP, self._of_group(image, image.leadership, None))
        groups = tuple(
            self._same(number, self._of_group(image, image.leadership_in(number), first))
            for number, first in enumerate(spread.preferred)
        )
        kept = self._facts
        if kept is not None and _tells_the_same(kept, groups, spread):
            return kept  # rows of Metadata are compared by it: another object would have each looked at again
        return replace(groups[MAIN_GROUP], groups=groups, spread=spread)

    def _same(self, group: int, facts: NodeFacts) -> NodeFacts:
        kept = self._kept.get(group)
        if kept == facts:
            return kept
        self._kept[group] = facts
        return facts

    def _of_group(
        self, image: MetadataImage, leadership: Leadership | None, first: int | None
    ) -> NodeFacts:
        """Return the facts of one replica group; `first`: the node that is to lead it, None where that is who leads."""
        own = self._own
        known = {node.node_id: _known(node) for node in image.nodes.values()}
        known[own.node_id] = own  # INV-CLV1
        leading = None if leadership is None else leadership.leader
        leader = None
        if leading is not None and image.node_of(leading) is not None:
            leader = known[leading.node_id]
            assert not leader.fenced, (
                "INV-CLV3: the metadata take the leadership from who is fenced"
            )
        domain = image.domains.get(DEFAULT_DOMAIN)
        is_primary = domain is not None and domain.acting_region == self._region
        epoch = leadership.leader_epoch if leadership is not None and is_primary else None
        in_sync = () if leadership is None else leadership.in_sync
        return NodeFacts(
            registered=tuple(known[node_id] for node_id in sorted(known)),
            leader=leader,
            leads=leader is not None and leading == self._me,  # INV-CLV2
            leader_epoch=epoch,
            replicas=_replicas(
                image, leader.node_id if first is None and leader is not None else first
            )
            or (own.node_id,),
            in_sync=tuple(each.node_id for each in in_sync),
            is_primary=is_primary,
        )


def _tells_the_same(kept: NodeFacts, groups: Sequence[NodeFacts], spread: Spread) -> bool:
    """Return whether these facts tell the same of all groups, and have each log in the same one, as an image with `spread`."""
    known = kept.spread
    return (
        known is not None
        and known.preferred == spread.preferred
        and (known.topics is spread.topics or known.topics == spread.topics)
        and len(kept.groups) == len(groups)
        and all(one is other for one, other in zip(kept.groups, groups, strict=True))
    )


def _replicas(image: MetadataImage, first: int | None) -> tuple[int, ...]:
    """Return the nodes by their ids, but for one, which is the first (INV-CLV4)."""
    return tuple(sorted(image.nodes, key=lambda node_id: (node_id != first, node_id)))


def _known(node: NodeImage) -> KnownNode:
    return KnownNode(node.node_id, node.kafka_host, node.kafka_port, node.rack, node.fenced)
