"""The node's scrubber and the two sides of mending, joined: what is looked at, who is asked, who is answered.

Not here: any rule (`partitions.scrubber`, `partitions.mending`, `region.mending`).
"""

from dataclasses import dataclass

from region_broker.node.cleaning import OwnThread
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.node_ports import Ports
from region_broker.node.storage import Storage
from region_broker.partitions.mending import MenderParts, RangeSource
from region_broker.partitions.pace import Pace
from region_broker.partitions.scrubber import Scrubber
from region_broker.partitions.table import PartitionTable
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.mending.node_ranges import NearestFirst, NodeRanges, NodeRangeSide
from region_broker.region.mending.range_side import RangeSide
from region_broker.region.mending.range_source import PeerRanges
from region_broker.region.mending.shared_logs import SharedLogs
from region_broker.region.peers.node_protocol import REPLICA
from region_broker.region.peers.protocol import PeerIdentity
from region_broker.region.peers.server import PeerServer


@dataclass(frozen=True, slots=True, kw_only=True)
class OtherRegions:
    """How the other regions are asked and answered; `nodes`: the other nodes of this one, None for the only node of a region."""

    peers: FailoverPeers
    identity: PeerIdentity
    server: PeerServer
    shared: SharedLogs
    nodes: ClusterParts | None = None


def compose_scrubber(
    storage: Storage, ports: Ports, others: OtherRegions, bytes_per_s: int
) -> Scrubber:
    """Return the scrubber of this node; `run` is its task. Who else mends is answered from now on."""
    partitions, nodes = storage.partitions, others.nodes
    RangeSide(partitions, others.shared).register(others.server)
    source: RangeSource = PeerRanges(others.peers, others.identity, others.shared)
    if nodes is not None:
        NodeRangeSide(partitions).serve_on(nodes.door.handlers_for(REPLICA))
        near = NodeRanges(me=nodes.member, image=lambda: storage.metadata.image, line=nodes.line)
        source = NearestFirst((near, source))
    parts = MenderParts(
        source=source,
        disk=ports.disk,
        pace=Pace(ports.clock, OwnThread("log-scrubber"), bytes_per_s),
        on_sealed=storage.group_commit.on_sealed or (lambda _: None),
        room_refusal=lambda: partitions.room.refusal,
    )
    return Scrubber(parts, partitions)


def has_damage(scrubber: Scrubber, partitions: PartitionTable) -> bool:
    """Return whether something of this node's disk is not as it was written, and not mended yet (INV-CND3)."""
    return bool(scrubber.damaged or partitions.failures() or partitions.lost())
