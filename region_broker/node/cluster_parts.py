"""What a node of a region with several is given by the member of the quorum that it is.

Not here: who makes it (`cluster_node`), what is joined with it (`node`).
"""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from idempotency.identity import Member
from region_broker.config.node_config import NodeConfig
from region_broker.node.auditing import open_trail
from region_broker.node.handshake import Handshake
from region_broker.node.node_ports import Ports
from region_broker.node.storage import Begun, Storage
from region_broker.ports.unbroken import to_its_end
from region_broker.region.cluster.controller_driver import ControllerDriver
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.peers.server import PeerServer
from region_broker.region.peers.sessions import NodeDoor
from region_broker.replication.pacing import CatchUpRates


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterParts:
    """`peers` is bound already, and `door` lets the other nodes in; `line`: how to reach them.

    `node_count`: tells how many nodes the region is to have, as far as is known now. `controller`: who takes orders.
    """

    peers: PeerServer
    handshake: Handshake
    member: Member
    door: NodeDoor
    line: LineParts
    node_count: Callable[[], int]
    controller: ControllerDriver
    catch_up: CatchUpRates = field(default_factory=CatchUpRates)
    """How fast this node sends to, or is sent as, a follower that is not in sync; changes while it runs."""


async def finish_aside(begun: Begun, config: NodeConfig, ports: Ports) -> Storage:
    """Open the rest of a folder, and its audit trail, in threads; raises as `Storage.finish`."""
    storage = await Storage.finish_aside(begun, config, ports)
    await to_its_end(asyncio.to_thread(open_trail, config, ports, storage))
    return storage
