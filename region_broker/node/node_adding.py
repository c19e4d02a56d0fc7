"""Taking a node into a region that runs (`tidemark cluster node add`): judged here, then a fact of the region's metadata.

INV-NAD1  what is refused, or only tried, changes nothing; what was added before may be added again, and changes nothing then
INV-NAD2  a node is added only where the region could start anew with it: its ids and addresses are its own, its configuration is right,
          and at its address nobody answers but that very node, of this cluster and region
INV-NAD3  the addition is durable before it is answered, and before a region of one node turns into one of several (`turn`): a process
          that ends in between is started anew as one of several (`growing_node`)
INV-NAD4  where nobody leads the quorum an addition is refused at once, and changes nothing: it would wait for one, and its outcome be unknown

It gives nobody a vote, and nobody waits for the new node: it joins when it is started, by itself.
Not here: what is refused by the metadata (`controller.cluster_nodes`), the new node's file (`config.region_growth`), routes (`http_api`).
"""

import asyncio
import errno
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from uuid import UUID

from region_broker.config.node_config import ConfigError, NodeConfig, RegionNode
from region_broker.config.region_growth import new_node_file, with_added
from region_broker.config.relations import PORTS
from region_broker.config.rules import split
from region_broker.controller import metadata_commands
from region_broker.controller.cluster_commands import AddNode
from region_broker.controller.cluster_image import AddedNode
from region_broker.controller.feature_levels import allows, refused_as_unknown
from region_broker.controller.raft.entries import Member
from region_broker.controller.refusals import CommandRefused
from region_broker.http_api.routes_cluster import AddNodeBody
from region_broker.node.node_ports import Ports
from region_broker.node.storage import Storage
from region_broker.region.cluster.cluster_orders import NO_QUORUM, WITHOUT_QUORUM
from region_broker.region.cluster.standing import NodeStanding
from region_broker.region.peers.node_client import NodeClient
from region_broker.region.peers.node_protocol import REPLICA, NodeHello
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable

BAD_NODE: Final = "bad-node"
UNREACHABLE: Final = "node-unreachable"
OTHER_NODE: Final = "other-node-there"


@dataclass(frozen=True, slots=True, kw_only=True)
class AddingParts:
    """What it is joined with. `turn`: has a region of one node turn into one of several; None in one that has several."""

    config: NodeConfig
    storage: Storage
    ports: Ports
    turn: Callable[[], None] | None


class NodeAdding:
    """Speaks for the node that it is part of."""

    def __init__(self, parts: AddingParts) -> None:
        """Take in what the node is joined with."""
        self._parts = parts

    async def add(self, wanted: AddNodeBody, *, dry_run: bool) -> Mapping[str, Any]:
        """Add a node, and return what is known then, with the configuration of the new node; raises `CommandRefused`, `MetadataUnwritable`."""
        parts = self._parts
        metadata = parts.storage.metadata
        image = metadata.image
        config = with_added(parts.config, image.added_nodes)
        node = self._node(wanted, config)
        command = AddNode(_as_added(node))
        if not allows(image.feature_level, command):
            raise refused_as_unknown(image.feature_level, command)
        try:
            file = new_node_file(config, node, wanted.data_dir or parts.config.data_dir)
        except ConfigError as error:
            raise CommandRefused(BAD_NODE, f"nothing was added: {error}") from error
        is_known = image.added_nodes.get(node.node_id) == command.node
        if not is_known:
            self._judge_quorum()
            metadata_commands.apply(image, command)
            await self._look(node, unreached=wanted.unreached)
        if not (dry_run or is_known):
            await metadata.apply(command)
        if not dry_run and parts.turn is not None:
            parts.turn()
        return {
            "region": config.region,
            "node_id": node.node_id,
            "changed": not is_known,
            "dry_run": dry_run,
            "turns": parts.turn is not None,
            "nodes": sorted({*(each.node_id for each in config.own.nodes), node.node_id}),
            "config": file,
            "listeners": [each.name for each in config.listeners],
        }

    def _judge_quorum(self) -> None:
        """Refuse at once what nobody can make durable now (INV-NAD4)."""
        if self._parts.storage.metadata.group.leader is None:
            raise CommandRefused(NO_QUORUM, f"nothing was added: {WITHOUT_QUORUM}")

    def _node(self, wanted: AddNodeBody, config: NodeConfig) -> RegionNode:
        own = config.own_node
        if wanted.node_id == own.node_id:
            raise CommandRefused(
                "node-id-in-use",
                f"node {own.node_id} is the one that was asked: give the new node an id of its own",
            )
        host = wanted.peer.rpartition(":")[0]
        usual = {key: f"{host}:{split(getattr(own, key))[1]}" for key in PORTS}
        return RegionNode(
            node_id=wanted.node_id, peer=wanted.peer, kafka=wanted.kafka or usual["kafka"],
            http=wanted.http or usual["http"], rack=wanted.rack,
        )  # fmt: skip

    # -- who is there already (INV-NAD2) ---------------------------------------------------------

    async def _look(self, node: RegionNode, *, unreached: bool) -> None:
        """Return if the new node's machine is there, and nothing, or that very node, listens there; raises `CommandRefused`."""
        try:
            client = await NodeClient.connect(self._parts.ports.peer_network, split(node.peer))
        except PeerUnreachable as error:
            if unreached or _nobody_listens(error.__cause__):
                return
            raise CommandRefused(
                UNREACHABLE,
                f"nothing was added: {error}. Look whether the address is right, and this machine reaches that one. If its machine is"
                " not there yet: --unreached",
            ) from error
        theirs = await self._met(client)
        if isinstance(theirs, PeerRefused):
            raise _other(node, f"refuses this region, or is refused: {theirs}") from theirs
        if isinstance(theirs, PeerUnreachable):
            what = f"is no node that waits to join region {self._parts.config.region}: {theirs}"
            raise _other(node, what) from theirs
        if theirs.node_id != node.node_id:
            raise _other(node, f"is node {theirs.node_id} of this region")

    async def _met(self, client: NodeClient) -> NodeHello | PeerRefused | PeerUnreachable:
        async with asyncio.TaskGroup() as tasks:
            reading = tasks.create_task(client.run())
            try:
                return await client.handshake(self._standing(), REPLICA)
            except (PeerRefused, PeerUnreachable) as error:
                return error
            finally:
                client.close()
                reading.cancel()

    def _standing(self) -> NodeStanding:
        """Return who asks. Its life is nobody's: a node that runs is not taken for another start of this one."""
        config, metadata = self._parts.config, self._parts.storage.metadata
        folder_id = self._parts.storage.folder.identity.folder_id
        return NodeStanding(
            cluster_id=config.cluster_id, region=config.region, member=Member(config.own_node.node_id, UUID(hex=folder_id)),
            life=self._parts.ports.chance.uuid(), is_removed=metadata.image.has_removed, levels=metadata.levels,
            finalized=lambda: metadata.image.feature_level,
        )  # fmt: skip


def _as_added(node: RegionNode) -> AddedNode:
    return AddedNode(**{key: getattr(node, key) for key in AddedNode.__struct_fields__})


def _other(node: RegionNode, what: str) -> CommandRefused:
    return CommandRefused(
        OTHER_NODE,
        f"nothing was added: what answers at {node.peer} {what}. Give the address of node {node.node_id} itself; stop what runs there,"
        " or start it with the configuration that this command prints, after it was added",
    )


def _nobody_listens(error: BaseException | None) -> bool:
    """Return whether the machine answered that nobody listens: on each of its addresses, where a name has several."""
    if isinstance(error, ConnectionRefusedError):
        return True
    told = str(error)
    return told.count("[Errno ") == told.count(f"[Errno {errno.ECONNREFUSED}]") > 0
