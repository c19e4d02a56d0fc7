"""Where the nodes of each region are met by operators and clients, and which one leads, as far as this node knows.

INV-RGP1  which nodes there are is what the configuration says, and which were added to this region since (INV-MN8), and where these are met what the
          metadata say (INV-GRW1); which one leads this region, what the metadata say
INV-RGP2  of another region a node counts as leading once it let this one in, until another one does: nobody else's word is taken
Not here: where regions meet each other (`region.peers.addresses`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from region_broker.controller.cluster_image import AddedNode
from region_broker.controller.metadata_image import MetadataImage, RegionImage
from region_broker.region.peers.addresses import Address, RegionAddresses


class PlacedNode(NamedTuple):
    """One node of a region: `kafka` and `http` as `host:port`, `peer` as it is dialled."""

    node_id: int
    kafka: str
    peer: Address
    http: str
    rack: str = ""

    @classmethod
    def of(cls, region: RegionImage) -> "PlacedNode":
        """Return the only node that the metadata know of a region."""
        return cls(
            region.node_id,
            f"{region.kafka_host}:{region.kafka_port}",
            (region.peer_host, region.peer_port),
            f"{region.http_host}:{region.http_port}",
        )

    @classmethod
    def added(cls, node: AddedNode) -> "PlacedNode":
        """Return a node that was added while its region ran."""
        host, _, port = node.peer.rpartition(":")
        return cls(node.node_id, node.kafka, (host.strip("[]"), int(port)), node.http, node.rack)


class RegionPlaces:
    """Plain values for whoever asks over HTTP."""

    def __init__(
        self, own: str, image: Callable[[], MetadataImage],
        nodes: Mapping[str, Sequence[PlacedNode]] | None = None, addresses: RegionAddresses | None = None,
        *, scheme: str = "http", me: int | None = None,
    ) -> None:  # fmt: skip
        """Speak as region `own`; a region that is not in `nodes` has the one that the image names. `scheme`: of all HTTP ports.

        `me`: the node that speaks, of which its own file counts, wherever it was added.
        """
        self._me = me
        self._scheme = scheme
        self._own: Final = own
        self._image = image
        self._nodes = nodes or {}
        self._addresses = addresses

    def _of(self, region: RegionImage) -> Sequence[PlacedNode]:
        known = self._nodes.get(region.name) or [PlacedNode.of(region)]
        if region.name != self._own:
            return known
        told, added = {node.node_id for node in known}, self._image().added_nodes
        moved = [
            PlacedNode.added(added[node.node_id]) if node.node_id in added and node.node_id != self._me else node
            for node in known
        ]  # fmt: skip
        return [*moved, *(PlacedNode.added(added[each]) for each in sorted({*added} - told))]

    def _leading(self, region: RegionImage) -> PlacedNode | None:
        """Return which node leads a region, None where that is not known (INV-RGP1, INV-RGP2)."""
        known = self._of(region)
        if len(known) == 1:
            return known[0]
        if region.name == self._own:
            leadership = self._image().leadership
            leader = None if leadership is None else leadership.leader
            return next((n for n in known if leader and n.node_id == leader.node_id), None)
        let_in = None if self._addresses is None else self._addresses.last_let_in(region.name)
        return next((node for node in known if node.peer == let_in), None)

    def leader_http(self, *, but: int) -> str | None:
        """Return the HTTP base URL of the node that leads this region, None where none does but node `but`."""
        own = self._image().regions.get(self._own)
        leading = None if own is None else self._leading(own)
        return (
            None
            if leading is None or leading.node_id == but
            else f"{self._scheme}://{leading.http}"
        )

    def http_of(self, region: str) -> str | None:
        """Return the HTTP base URL of who leads `region`, of its first node where that is not known; None: no such region."""
        known = self._image().regions.get(region)
        if known is None:
            return None
        return f"{self._scheme}://{(self._leading(known) or self._of(known)[0]).http}"

    def rows(self, acting_region: str) -> list[dict[str, Any]]:
        """Return each region with the address of who leads it, else of its first node, and all of its nodes."""
        return [
            {
                "region": region.name,
                "ordinal": region.ordinal,
                "kafka": met.kafka,
                "http": f"{self._scheme}://{met.http}",
                "acts": region.name == acting_region,
                "nodes": [_row(node, leading, self._scheme) for node in self._of(region)],
            }
            for region in self._image().regions.values()
            for leading in (self._leading(region),)
            for met in (leading or self._of(region)[0],)
        ]


def _row(node: PlacedNode, leading: PlacedNode | None, scheme: str) -> dict[str, Any]:
    return {
        "node_id": node.node_id,
        "kafka": node.kafka,
        "http": f"{scheme}://{node.http}",
        "rack": node.rack,
        "leads": None if leading is None else node == leading,
    }
