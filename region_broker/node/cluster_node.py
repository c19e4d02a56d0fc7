"""A node of a region with several: first a member of its quorum, then a node.

INV-CNN1  nothing of the logs is opened before the quorum has applied that this very process has registered: the image is as new as
          that then (RegisterNode is in it)
INV-CNN2  a folder without history becomes part of its region by joining the quorum, and takes the region's birth over (T32); it
          founds no quorum
INV-CNN3  who stops cleanly leaves the in-sync set of each group first, and leads neither logs nor quorum then: nobody waits for it
INV-CNN4  a node that was removed, whose folder was replaced (INV-FRP2), has an older copy of its folder, or code that does not know the region's feature level, ends, as soon as another one tells it so: at a start that is before it has joined anything
INV-CNN5  a folder that the region refused as an older copy says so from then on, and no later start takes part in anything with it

What such a node runs that one alone does not: the transport of its quorum, the controller, and who leads. All else is `node.Node`.
Not here: what these do (`region.cluster`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Self
from uuid import UUID

import msgspec

from geo_replicator.folder_life import FolderIdentity, Shown
from idempotency.identity import Member
from region_broker.config.node_config import NodeConfig
from region_broker.controller.cluster.settings import ControllerSettings
from region_broker.controller.cluster_commands import DrainNode, RegisterNode
from region_broker.controller.cluster_nodes import WOUND_BACK
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.group_rows import is_waited_for
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.controller.metadata_commands import CommandRefused, birth_of
from region_broker.controller.metadata_image import DEFAULT_DOMAIN, TIDEMARK_LEDGER, MetadataImage
from region_broker.controller.metadata_store import Cluster
from region_broker.controller.raft.effects import RoleChanged, TransferAsked
from region_broker.controller.raft.failures import WishFailed
from region_broker.controller.raft.shell import RaftGroup
from region_broker.node.callbacks import FailedCallbacks
from region_broker.node.cluster_parts import ClusterParts, finish_aside
from region_broker.node.dismissal import Dismissal
from region_broker.node.handshake import Handshake
from region_broker.node.known_nodes import KnownNodes
from region_broker.node.node import Node, peer_settings
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.storage import Begun, Storage, older_copy, prepare
from region_broker.node.waiting_room import OPENS, PREPARES, REGISTERS, WaitingRoom
from region_broker.region.cluster.controller_driver import ControllerDriver
from region_broker.region.cluster.member_line import LineParts
from region_broker.region.cluster.standing import NodeStanding
from region_broker.region.cluster.transport import PeerTransport
from region_broker.region.folder.identity_file import write_identity
from region_broker.region.peers.server import PeerServer

QUORUM_GROUP: Final = "metadata"
VOTERS_MAX: Final = 3
LOOK_MS: Final = 50
DRAIN_LOOK_MS: Final = 5
DRAIN_MS_MAX: Final = 3_000
SETTLED_WHILE_STOPPING_MS: Final = 1_500

_NOT_YET: Final = frozenset({"leadership-not-begun", "node-id-in-use"})
"""Refusals of a registration that time mends: the first node is about to lead, a former folder of this node still counts as there."""

_log: Final = logging.getLogger("tidemark.node")


class _Relay:
    """What the transport tells, to the controller, which is made after it."""

    controller: ControllerDriver | None = None
    group: RaftGroup | None = None

    def on_heard(self, member: Member) -> None:
        if self.controller is not None:
            self.controller.on_heard(member)

    def on_lost(self, member: Member) -> None:
        if self.group is not None:
            self.group.lost(member)
        if self.controller is not None:
            self.controller.on_lost(member)

    def role_changed(self, change: RoleChanged) -> None:
        if self.controller is not None:
            self.controller.role_changed(change)

    def on_damage(self, member: Member, damaged: bool) -> None:
        if self.controller is not None:
            self.controller.note_damage(member, damaged)

    def says_damage(self) -> bool:
        return self.controller is not None and self.controller.says_damage


class ClusterNode:
    """`open`, then `run` until `stop` is called; as `Node`."""

    def __init__(self, config: NodeConfig, ports: Ports, levels: range) -> None:
        """Use `open`."""
        self.config: Final = config
        self._levels: Final = levels
        self._ports = ports
        self._life: UUID = ports.chance.uuid()
        self._stopping = asyncio.Event()
        self._waiting = WaitingRoom(
            config, ports, lambda: self._begun,
            lambda member: self._transport.life_of(member) is not None,
            self._met,
        )  # fmt: skip
        self._relay = _Relay()
        self._handshake = Handshake()
        self.peers: Final = PeerServer(ports.peer_network, self._handshake, peer_settings(config))
        self._waiting.hear(self.peers)
        self._known = KnownNodes(config)
        self._dismissal = Dismissal(self._known, lambda: self._begun, levels)
        self._transport: PeerTransport
        self._begun: Begun
        self.controller: ControllerDriver
        self.node: Node | None = None
        self.on_node: Callable[[Node], None] = lambda _node: None
        """Told of the node once it is joined together, before it runs."""
        self.make_node: Callable[[NodeConfig, Ports, Storage, ClusterParts], Node] = Node
        """Joins the node together."""
        self.failed_callbacks: Final = FailedCallbacks()

    @classmethod
    async def open(cls, config: NodeConfig, ports: Ports, levels: range = SUPPORTED) -> Self:
        """Begin a life of the data folder; nothing is bound or run yet. `levels`: the feature levels that the code knows.

        Raises what is in `storage.START_REFUSALS`, and `OSError`.
        """
        made = cls(config, ports.secured(config), levels)
        made._begun = begun = await Begun.open(config, ports, made._cluster_of, levels=levels)
        made._handshake.identity = lambda: begun.identity
        store = made._begun.metadata
        made.controller = ControllerDriver(
            store,
            made._begun.member,
            made._life,
            ports.clock,
            ControllerSettings(),
            made._opens_logs,
        )
        made.controller.lives = made._transport
        made._relay.controller = made.controller
        made._relay.group = store.group
        store.follow(made._known.take_image)
        return made

    def _cluster_of(self, member: Member, identity: FolderIdentity) -> Cluster:
        standing = NodeStanding(
            cluster_id=self.config.cluster_id, region=self.config.region, member=member, life=self._life,
            is_removed=self._is_removed, replaced=self._dismissal.replaced, is_outdated=self._dismissal.is_outdated, starts=self._starts,
            levels=self._levels, finalized=self._finalized, opens_logs=self._opens_logs, is_damaged=self._relay.says_damage,
        )  # fmt: skip
        ports = self._ports
        self._line_parts = parts = LineParts(
            standing=standing, network=ports.peer_network, clock=ports.clock, chance=ports.chance,
            address_of=self._known.address_of, watcher=self._relay,
            on_shut_out=self._dismissal.note, on_damage=self._relay.on_damage,
        )  # fmt: skip
        self._transport = transport = PeerTransport(parts)
        transport.serve_on(self.peers)
        self._line = transport.group(QUORUM_GROUP)
        return Cluster(
            transport=self._line,
            hosts=tuple(node.node_id for node in self.config.siblings),
            founds=identity.born is not None or identity.founds,
            voters_max=VOTERS_MAX,
            on_role=self._relay.role_changed,
        )

    def stop(self) -> None:
        """Ask `run` to end cleanly; may be called from a signal handler of the loop."""
        self._stopping.set()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`; raises as `Node.run`."""
        metadata = self._begun.metadata
        self._line.deliver_to(metadata.group.request_handler)
        try:
            await self._bind("peer", self.config.own_node.peer_address, self.peers.start)
            await self._bind("HTTP", self.config.own_node.http_address, self._waiting.http.start)
            async with asyncio.TaskGroup() as tasks:
                working = [
                    tasks.create_task(self._transport.run(), name="quorum-transport"),
                    tasks.create_task(self.controller.run(), name="controller"),
                    tasks.create_task(self.failed_callbacks.run(), name="callbacks"),
                    tasks.create_task(self._dismissal.wait(self._outdated), name="shut-out"),
                    tasks.create_task(self._ports.speaks.run(), name="tls"),
                ]
                running = tasks.create_task(metadata.run(), name="metadata")
                try:
                    await self._serve(tasks, on_ready)
                finally:
                    metadata.stop()
                    for task in working:
                        task.cancel()
                await asyncio.wait([running])
        finally:
            self.peers.close()
            await self._waiting.http.stop()
            await self._begun.close()

    def _is_removed(self, member: Member) -> bool:
        """Return whether a member was removed, from the quorum too: until then its vote may be needed for just that."""
        metadata = self._begun.metadata
        present = metadata.group.membership
        still = member in present.voters or member in present.learners
        return not still and metadata.image.has_removed(member)

    def _met(self) -> list[int]:
        return self._transport.met()

    def _opens_logs(self) -> bool:
        return self.node is None

    def _starts(self) -> Shown:
        return Shown.of(self._begun.identity).starts_only()

    def _finalized(self) -> int | None:
        """Return the region's feature level; None while this folder has seen nothing of its region."""
        image = self._begun.metadata.image
        return image.feature_level if image.version else None

    def _outdated(self) -> str:
        """Let no later start ask again: often enough started, it could not be told from one that continues (INV-CNN5)."""
        begun = self._begun
        present = begun.identity if self.node is None else self.node.storage.folder.identity
        begun.identity = msgspec.structs.replace(present, outdated=True)
        write_identity(self._ports.disk, begun.folder, begun.identity)
        return older_copy(begun.folder, begun.identity)

    async def _serve(self, tasks: asyncio.TaskGroup, on_ready: Callable[[], None]) -> None:
        stopping = tasks.create_task(self._stopping.wait(), name="stopping")
        starting = tasks.create_task(self._start(), name="joining")
        await asyncio.wait({stopping, starting}, return_when=asyncio.FIRST_COMPLETED)
        if not starting.done():
            starting.cancel()
            return
        self.node = node = starting.result()
        await self._waiting.http.stop()  # the node binds the port anew
        self._waiting.tell_trail(node.storage.metadata.audit)  # of who came until then
        serving = tasks.create_task(node.run(on_ready), name="node")
        await asyncio.wait({stopping, serving}, return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        if not serving.done():
            # What it waits for may never come, and is not given up by cancelling it (INV-UB1): the end of the metadata settles it.
            draining = tasks.create_task(self._drain(), name="draining")
            await asyncio.wait({draining}, timeout=DRAIN_MS_MAX / 1000)
            draining.cancel()
            node.stop()
        await serving

    async def _bind(
        self, what: str, address: tuple[str, int], bind: Callable[[str, int], Awaitable[object]]
    ) -> None:
        host, port = address
        try:
            await bind(self.config.listen_host or host, port)
        except OSError as error:
            raise NodeRefused(
                f"the {what} port {host}:{port} of node {self.config.own_node.node_id} cannot be bound:"
                f" {error.strerror or error}. Stop what uses it, or change the port."
            ) from error

    # -- joining ---------------------------------------------------------------------------------

    async def _start(self) -> Node:
        """Join the quorum, register, and open the rest of the folder (INV-CNN1)."""
        begun, config = self._begun, self.config
        async with asyncio.TaskGroup() as tasks:
            telling = tasks.create_task(self._waiting.tell(), name="telling")
            await begun.metadata.join()
            self._waiting.stage = REGISTERS
            await self._register()
            self._waiting.stage = PREPARES
            try:
                await self._prepared()
            except CommandRefused as error:
                raise begun.contradicts(error) from error
            telling.cancel()
        self._waiting.stage = OPENS
        storage = await finish_aside(begun, config, self._ports)
        node = self.make_node(config, self._ports, storage, self._parts_of(storage))
        self._waiting.tell_trail(storage.metadata.audit)
        assert node.leading is not None, "of several nodes"
        node.leading.recover()
        await storage.folder.note_whole()
        self.on_node(node)
        return node

    async def _register(self) -> None:
        node = self._known.own_image(self._begun.member, self._life, self._levels)
        while True:
            try:
                await self._begun.metadata.apply(RegisterNode(node, self._starts()))
            except CommandRefused as refused:
                if refused.code == WOUND_BACK:
                    raise NodeRefused(self._outdated()) from refused
                if refused.code not in _NOT_YET:
                    raise NodeRefused(f"this node cannot register: {refused.reason}") from refused
                await self._ports.clock.sleep_ms(LOOK_MS)
            except MetadataUnwritable as error:
                _log.warning("this node cannot register yet: %s", error)
                await self._ports.clock.sleep_ms(LOOK_MS)
            else:
                return

    async def _prepared(self) -> None:
        """Return once the metadata have what a region needs, written by whoever has its history (INV-CNN2)."""
        begun, config = self._begun, self.config
        store = begun.metadata
        history = begun.identity.history
        if history is not None or begun.identity.founds:
            await prepare(begun, config)
            domain = store.image.main_domain
            if domain.birth is None and history is not None:
                born = msgspec.structs.replace(domain, birth=history)
                await store.apply(birth_of(store.image, born))
        while not self._is_prepared():
            await self._ports.clock.sleep_ms(LOOK_MS)
        if history is None:
            self._take_history_over(store.image)

    def _is_prepared(self) -> bool:
        image = self._begun.metadata.image
        return DEFAULT_DOMAIN in image.domains and TIDEMARK_LEDGER in image.topics

    def _take_history_over(self, image: MetadataImage) -> None:
        """Note in this folder's identity which history its region has, if it has one yet (T32)."""
        folder, begun = image.region_folder, self._begun
        identity, birth = begun.identity, image.main_domain.birth
        if folder is not None and folder.history is not None:
            identity = msgspec.structs.replace(identity, born=folder.born, joined=folder.joined)
        elif birth is not None:  # of a version whose regions of several nodes stood alone
            identity = msgspec.structs.replace(identity, born=birth)
        if identity != begun.identity:
            write_identity(self._ports.disk, begun.folder, identity)
            begun.identity = identity

    def _parts_of(self, storage: Storage) -> ClusterParts:
        door = self.peers.node_door
        assert door is not None
        return ClusterParts(
            peers=self.peers,
            handshake=self._handshake,
            member=self._begun.member,
            door=door,
            line=self._line_parts,
            node_count=self._known.count,
            controller=self.controller,
        )

    # -- ending ----------------------------------------------------------------------------------

    async def _drain(self) -> None:
        """Let another node lead the logs and the quorum first, where one can, and nobody wait for this one (INV-CNN3)."""
        store = self._begun.metadata
        store.hasten(SETTLED_WHILE_STOPPING_MS)
        with suppress(CommandRefused, MetadataUnwritable):
            if self._is_needed(store.image):
                await store.apply(DrainNode(self._begun.member.node_id, self._life))
            while self._is_needed(store.image):
                await self._ports.clock.sleep_ms(DRAIN_LOOK_MS)
            await self._hand_quorum_over()

    def _is_needed(self, image: MetadataImage) -> bool:
        """Return whether the others would wait for this node, were it gone now."""
        return is_waited_for(image, self._begun.member)

    async def _hand_quorum_over(self) -> None:
        """Let the voter lead that has most of the log and was heard last; who is alone, or fails, leads on until it is gone."""
        group = self._begun.metadata.group
        facts = group.facts()
        others = [
            (facts.followers[member].matched_index, facts.followers[member].heard_ms, member)
            for member in facts.membership.voters
            if member in facts.followers
        ]
        if not group.leads or not others:
            return
        _, _, target = max(others)
        with suppress(WishFailed):
            await group.ask(lambda ticket: TransferAsked(ticket, target))
