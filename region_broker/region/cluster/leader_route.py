"""The ways from this node to the one that leads its region, and to the one that leads its quorum; under which leader epoch this one leads.

INV-CLR1  both sides go by the leadership of the image, by folder and leader epoch: what one of them has not heard yet is refused
Not here: carrying requests (`region.peers.forwarder`), what clients are told (`view`).
"""

from collections.abc import Callable

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from region_broker.controller.cluster_image import NodeImage
from region_broker.controller.metadata_image import MetadataImage
from region_broker.controller.raft.entries import Member
from region_broker.region.cluster.standing import NodeStanding, StandingTowards
from region_broker.region.peers.forwarder import NodeRoute
from region_broker.region.peers.protocol import PeerUnreachable


class LeaderRoute:
    """`route` for a `PeerForwarder`, `leads_under` for a `ForwardTarget`."""

    def __init__(self, image: Callable[[], MetadataImage], standing: NodeStanding) -> None:
        """Go by `image()`, as the member that `standing` names."""
        self._image = image
        self._standing = standing

    def leads_under(self) -> LeaderEpoch | None:
        """Return the leader epoch under which this node leads, None while it does not."""
        leadership = self._image().leadership
        if leadership is None or leadership.leader != self._standing.member:
            return None
        return leadership.leader_epoch

    def route(self) -> NodeRoute | None:
        """Return the way to who leads, None where this node does, or no leader is ever elected (`leadership` is None).

        Raises `PeerUnreachable` while nobody leads.
        """
        image = self._image()
        leadership = image.leadership
        if leadership is None or leadership.leader == self._standing.member:
            return None
        leader = leadership.leader
        node = None if leader is None else image.node_of(leader)
        if leader is None or node is None:
            raise PeerUnreachable("no node of this region leads now", sent=False)
        return _way_to(leader, node, leadership.leader_epoch, self._standing)


class QuorumRoute:
    """`route` for a `PeerForwarder` of what only the quorum's leader knows."""

    def __init__(
        self,
        image: Callable[[], MetadataImage],
        standing: NodeStanding,
        leader: Callable[[], Member | None],
    ) -> None:
        """Go to `leader()`, as far as this node knows, which is the member that `standing` names."""
        self._image = image
        self._standing = standing
        self._leader = leader

    def route(self) -> NodeRoute | None:
        """Return the way to who leads the quorum, None where this node does; raises `PeerUnreachable` while nobody is known to."""
        leader = self._leader()
        if leader == self._standing.member:
            return None
        node = None if leader is None else self._image().node_of(leader)
        if leader is None or node is None:
            raise PeerUnreachable("no node is known to lead the quorum of this region", sent=False)
        return _way_to(leader, node, NO_LEADER_EPOCH, self._standing)


def _way_to(
    member: Member, node: NodeImage, leader_epoch: LeaderEpoch, standing: NodeStanding
) -> NodeRoute:
    address = node.peer_host, node.peer_port
    return NodeRoute(member, leader_epoch, address, StandingTowards(standing, member))
