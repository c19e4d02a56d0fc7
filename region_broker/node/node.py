"""One node: the composition root. Everything is joined here, once, and nothing is decided.

The four ports (clock, chance, disk, network) enter here and nowhere else. Whatever task of the node fails, the node
ends, loudly; it never limps on with a part of itself gone (callbacks of the loop: INV-NCB1). A clean stop closes writes
first, then answers what is under way, then closes the logs.

Not here: what a role does (`region.role`), when it changes (`region.failover.driver`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, Self

from geo_replicator.failover import Phase
from geo_replicator.lineage import Cut
from idempotency.identity import LeaderEpoch, LogKey
from idempotency.said_seldom import SaidSeldom
from region_broker.config.node_config import NodeConfig
from region_broker.config.rules import split
from region_broker.controller.cluster_image import MAIN_GROUP
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.leaders_metadata import LeadersMetadata
from region_broker.controller.metadata_image import DEFAULT_DOMAIN
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.groups.ports import GroupPorts
from region_broker.groups.settings import GroupSettings
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.deadlines import Deadlines
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.nodes import KnownNode
from region_broker.handlers.dispatch.services import Services
from region_broker.http_api.app import HttpServer, make_app
from region_broker.http_api.cluster_metrics import ClusterCollector
from region_broker.http_api.routes_cluster import add_cluster_routes, add_node_routes
from region_broker.http_api.routes_features import add_feature_routes
from region_broker.http_api.routes_health import Check
from region_broker.http_api.routes_transactions import add_abort_routes, add_transaction_routes
from region_broker.ledgers.id_blocks import DrawnIdBlocks
from region_broker.ledgers.images import LedgerImages
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.ledgers.marker_ends import MarkerEnds
from region_broker.ledgers.offsets_log import PartitionOffsetsLog
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.metrics import Metrics
from region_broker.node.audit_hooks import hear
from region_broker.node.audit_topic import carrying
from region_broker.node.auditing import open_trail, register_figures, step_recorder
from region_broker.node.authorizer import compose_authorizer
from region_broker.node.callbacks import FailedCallbacks
from region_broker.node.cleaning import compose_cleaner, compose_hold
from region_broker.node.client_quotas import limit_clients
from region_broker.node.cluster_parts import ClusterParts
from region_broker.node.coming_topics import lay_out_logs
from region_broker.node.config_effects import ConfigEffects
from region_broker.node.data_leaders import DataLeaders, LedApart
from region_broker.node.ending import Ending, end_connections, end_requests
from region_broker.node.gauges import GaugeSources, LoopWatch, NodeCollector
from region_broker.node.handshake import Handshake
from region_broker.node.holding import Holding
from region_broker.node.http_doors import DoorCollector, doors_of
from region_broker.node.leading_region import LeadingRegion, LedWith
from region_broker.node.logins import compose_logins
from region_broker.node.name_series import NameCollector
from region_broker.node.node_adding import AddingParts, NodeAdding
from region_broker.node.node_configs import NodeConfigs
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.node.replication import RegionWork, Replication
from region_broker.node.retaining import Retaining
from region_broker.node.scrubbing import OtherRegions, compose_scrubber, has_damage
from region_broker.node.storage import Storage
from region_broker.partitions.closing import close_aside
from region_broker.partitions.disk_room import watch_room
from region_broker.partitions.fetch_sessions import FetchSessions
from region_broker.partitions.partition import Partition
from region_broker.ports.system.descriptors import descriptor_limit
from region_broker.ports.turn_budget import TurnBudget
from region_broker.region.cluster.cluster_service import ClusterService
from region_broker.region.cluster.cluster_view import ClusterView, ViewParts
from region_broker.region.cluster.giving_up import ToldMetadata
from region_broker.region.cluster.leader_route import LeaderRoute, QuorumRoute
from region_broker.region.cluster.region_places import PlacedNode, RegionPlaces
from region_broker.region.cluster.view import RegionNodes
from region_broker.region.failover.answers import FailoverAnswers
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.gathering import Gathering, NeverSpread
from region_broker.region.failover.known_lineage import KnownLineage
from region_broker.region.failover.log_surgery import CutReason, DivergedLogs
from region_broker.region.failover.operations import FailoverOperations
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.failover.record import JournalRecord, PatientMetadata, RegionRecord
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings
from region_broker.region.feature_raising import FeatureRaising
from region_broker.region.mending.shared_logs import SharedLogs
from region_broker.region.mirror.primary_side import PrimarySide
from region_broker.region.peers.addresses import RegionAddresses
from region_broker.region.peers.forwarder import (
    ForwardTarget,
    NodeRoute,
    PeerForwarder,
    this_node_leads,
    under_none,
)
from region_broker.region.peers.protocol import Hello
from region_broker.region.peers.server import PeerServer, PeerSettings
from region_broker.region.ports import RoleServices, Term
from region_broker.region.role import NodeIdentity, RegionRole
from region_broker.region.role_sides import GroupRole, TransactionRole
from region_broker.region.tidemarks.service import TidemarkParts, TidemarkService
from region_broker.region.topics import TopicRegistry, settle_partitions
from region_broker.region.transaction_desk import TransactionDesk
from region_broker.region.verdict_service import VerdictService
from region_broker.region.view import AmongNodes, RegionService
from region_broker.replication.pacing import CatchUpRates
from region_broker.wire.connection_caps import ConnectionCaps
from region_broker.wire.memory_budget import MemoryBudget
from region_broker.wire.server import KafkaServer
from txn_coordinator.driver import TransactionCoordinator

_log: Final = logging.getLogger("tidemark.node")
_LOOK_AGAIN_MS: Final = 1_000


class Node:
    """`open`, then `run` until `stop` is called."""

    leading: LeadingRegion | None = None
    """What this node does for its region while it leads it; None for the only node of one."""

    def __init__(
        self, config: NodeConfig, ports: Ports, storage: Storage, cluster: ClusterParts | None = None,
        kafka: KafkaServer | None = None,
    ) -> None:  # fmt: skip
        """Use `open`; `cluster`: what a node of a region with several is given (`cluster_node`).

        `kafka`: the server of a node that has handed over, whose requests are held; it is bound and run already (INV-NHO1).
        """
        self.config: Final = config
        self.storage: Final = storage
        self.configs: Final = NodeConfigs(config, storage.metadata)
        self.metrics: Final = Metrics()
        self._ports = ports = ports.secured(config)
        self._cluster = cluster
        self._kept_kafka = kafka
        self._replication: Replication | None = None
        self._holding: Holding | None = None
        self.data_leaders: DataLeaders | None = None
        """What leaders of replica groups ask each other; None in a region of one node."""
        self.operating: ClusterService | None = None
        """How operators see and order a region of several nodes; None in one of one."""
        self._addresses: Final = RegionAddresses(
            {region.name: region.peer_addresses for region in config.others}
        )
        self._handshake = Handshake() if cluster is None else cluster.handshake
        self._region_record: RegionRecord | None = None
        """Where a region of several nodes keeps what it knows of itself."""
        self.ending: Final = Ending()
        self.failed_callbacks: Final = FailedCallbacks()
        self._lineage: Final = KnownLineage(lambda: storage.metadata.image)
        self._compose_coordinators()
        self._compose_region()
        self._compose_servers()
        self.configs.follow(self._effects.take)
        if cluster is not None:
            assert self.leading is not None, "of several nodes"
            work = RegionWork(self._begin_region, self.leading.lead)
            self._replication = Replication(
                cluster, storage, self.role, ports.clock, work, self.tidemarks
            )  # fmt: skip
            self._told.giving_up = self._replication.giving_up
            self._holding = Holding(cluster, storage, self._leads_under)
            self._source.meet = self._holding.meet
            self._services.readers = self._replication.readers
            storage.metadata.follow(self.leading.show_recorded)
            self._handshake.refused = self.leading.why_silent
            self.operations.elsewhere = self._replication.tails.elsewhere
            self.scrubber.make_way = self._replication.stepping_down.make_way
            self.scrubber.give_up = self._replication.copying_anew.give_up
            self._replication.copying_anew.is_damaged = self.scrubber.has_damage
            self._replication.groups.is_damaged = self.scrubber.has_damage
            self.data_leaders = DataLeaders(
                cluster,
                storage,
                LedApart(
                    services=self._services, groups=self._replication.groups, markers=self._markers,
                    marker_ends=self.marker_ends, desk=self._desk, listener_origin=self._origin ^ 1,
                ),
            )  # fmt: skip
            self._forward_target.on_change_of_logs = self._replication.spread_keeper.note_forwarded
            self._replication.readers.is_damaged = self.scrubber.has_damage
            cluster.controller.is_damaged = partial(has_damage, self.scrubber, storage.partitions)
            self.operating = self._operate(cluster, self._replication)

    @classmethod
    async def open(cls, config: NodeConfig, ports: Ports, levels: range = SUPPORTED) -> Self:
        """Open the data folder and join everything; nothing is bound or run yet. `levels`: the feature levels that the code knows.

        Raises what is in `storage.START_REFUSALS`, and `OSError`.
        """
        storage = await Storage.open(config, ports, levels)
        try:
            open_trail(config, ports, storage)
            node = cls(config, ports, storage)
            await node.failover.recover()
            await storage.folder.note_whole()
        except BaseException:
            await storage.close()
            raise
        return node

    def _compose_coordinators(self) -> None:
        clock, partitions = self._ports.clock, self.storage.partitions
        offsets_log = PartitionOffsetsLog(partitions, clock)
        offsets_log.is_copied = lambda key: self.storage.metadata.image.group_of(key) != MAIN_GROUP
        self.ledger_images = LedgerImages(partitions, self._ports.disk, clock)
        self._group_settings = GroupSettings()
        self.groups = GroupCoordinator(
            GroupPorts(
                log=offsets_log,
                ends=offsets_log,
                clock=clock,
                chance=self._ports.chance,
                image=lambda: self.storage.metadata.image,
            ),
            shard_count=self.config.shard_count,
            settings=self._group_settings,
        )
        self.marker_ends = MarkerEnds()
        self._markers = PartitionMarkerChannel(
            partitions,
            clock,
            image=lambda: self.storage.metadata.image,
            on_offsets_marker=self.groups.on_marker_applied,
        )
        self.transactions = TransactionCoordinator(
            ledger=PartitionTransactionLog(
                partitions, clock, self.config.shard_count, self.ledger_images
            ),
            markers=self._markers,
            id_blocks=DrawnIdBlocks(self._ports.chance, self.config.own.ordinal),
            transactional_id_blocks=DrawnIdBlocks(
                self._ports.chance, self.config.own.ordinal, transactional=True
            ),
            clock=clock,
        )
        self.transactions.admission.no_room = lambda: partitions.room.refusal

    def _compose_region(self) -> None:
        config, storage, ports = self.config, self.storage, self._ports
        self._source = PrimarySide(
            storage.partitions, storage.metadata, self._handshake, ports.clock, region=config.region
        )
        self.tidemarks = TidemarkService(self._tidemark_parts())
        own = config.own_node
        self.role = RegionRole(
            NodeIdentity(config.cluster_id, config.region, own.node_id, *split(own.kafka)),
            RoleServices(
                logs=lambda: storage.partitions,
                settle_logs=self._settle_logs,
                transactions=TransactionRole(self.transactions),
                groups=GroupRole(self.groups),
                open_cut_leader=self.tidemarks.open_cut_leader,
                open_link=self.tidemarks.open_link,
                settle_commits=self._settle_commits,
                leads=self._leads,
                is_gathered=lambda: storage.metadata.image.spread is None,
            ),
            storage.metadata.image.main_domain.region_epoch,
        )
        if self._cluster is not None:
            self._region_record = RegionRecord(
                storage.metadata, storage.folder.identity, ports.clock, self._leads_under
            )
        parts = FailoverParts(
            domain=DEFAULT_DOMAIN,
            clock=ports.clock,
            metadata=storage.metadata
            if self._cluster is None
            else PatientMetadata(storage.metadata, ports.clock),
            role=self.role,
            tidemarks=self.tidemarks,
            quarantine=storage.quarantine,
            peers=FailoverPeers(
                ports.peer_network, storage.metadata, config.region, self._addresses
            ),
            folder=self._region_record or storage.folder,
            manifest=storage.partitions,
            gathering=NeverSpread()
            if self._cluster is None
            else Gathering(storage.metadata, ports.clock, self._leads_under),
        )
        record = self._region_record or JournalRecord(storage.journal, ports.clock)
        self.failover = FailoverDriver(parts, record, FailoverSettings())
        self.failover.on_step = step_recorder(storage.metadata.audit, config.region)
        self._handshake.driver = self.failover
        if self._region_record is not None:
            self.leading = LeadingRegion(
                config, storage, self._region_record,
                LedWith(self.failover, self.tidemarks, self._source), self._leads_under,
            )  # fmt: skip
        self._failover_answers = FailoverAnswers(self.failover)
        self._source.on_refuted = self.failover.refuted
        self._source.cut_is_owed = self.failover.cut_is_owed
        self._source.promised_to = self.failover.promised_to
        self._source.doubt = self.failover.doubt
        self._source.dispute = self.failover.dispute
        self.operations = FailoverOperations(self.failover, ports.chance)

    def _leads(self, term: Term) -> bool:
        return self._replication is None or self._replication.leadership.leads == term.leader_epoch

    async def _settle_logs(self) -> None:
        await settle_partitions(LeadersMetadata(self.storage.metadata), self.storage.partitions)
        self._logs_changed()

    async def _settle_commits(self, term: Term) -> None:
        if self._replication is not None:
            is_written = term.primary_region == self.config.region and not term.from_donor
            epoch = term.leader_epoch if is_written else None
            await self._replication.leadership.settle_commits(epoch)

    def _begins_to_act(self) -> bool:
        """Return whether the gate is to open for the first time under the leader epoch for which this node was elected (INV-HD7)."""
        image, term = self.storage.metadata.image, self.role.serving
        leadership = image.leadership
        if self._cluster is None or leadership is None or leadership.leader != self._cluster.member:
            return False
        if term is not None and term.leader_epoch == leadership.leader_epoch:
            return False
        may_act = not self.failover.running or self.failover.state.phase.acts
        return may_act and image.main_domain.acting_region == self.config.region

    def _leads_under(self) -> LeaderEpoch | None:
        return None if self._replication is None else self._replication.leadership.leads

    async def _begin_region(self) -> None:
        """Return once the metadata have what the region knows of itself, and this node is to lead it."""
        assert self._replication is not None, "of several nodes"
        assert self.leading is not None, "of several nodes"
        await self._replication.lost_logs.let_another_lead()
        await self.leading.begin()

    def _tidemark_parts(self) -> TidemarkParts:
        storage, ports = self.storage, self._ports
        return TidemarkParts(
            region=self.config.region,
            ordinal=self.config.own.ordinal,
            network=ports.peer_network,
            addresses=self._addresses,
            identity=self._handshake,
            metadata=LeadersMetadata(storage.metadata),
            partitions=storage.partitions,
            rounds=self.transactions.rounds,
            source=self._source,
            reached=storage.reached,
            divergence=DivergedLogs(
                lambda: storage.partitions,
                storage.quarantine,
                self._divergence_reason,
                self._shown_floor,
            ),
            lineage=self._lineage,
            clock=ports.clock,
            chance=ports.chance,
            me=None if self._cluster is None else self._cluster.member,
        )

    def _shown_floor(self) -> Cut:
        return self.tidemarks.shown_floor()

    def _divergence_reason(self) -> CutReason:
        domain = self.storage.metadata.image.main_domain
        return CutReason.divergence(domain, self.config.region, self._ports.clock.wall_ms())

    def _compose_servers(self) -> None:
        storage, ports, config = self.storage, self._ports, self.config
        ordinals = {region.name: region.ordinal for region in config.regions}
        self._hold_parts = compose_hold(
            ordinals, config.region, storage, self._source, self.tidemarks
        )
        self._source.meet = storage.hold.meet
        self.cleaner = compose_cleaner(config.region, storage, ports, self._source, self.tidemarks)
        self.topics = TopicRegistry(
            LeadersMetadata(storage.metadata), storage.partitions, ports.chance, self._leader_epoch, self.role.change,
        )  # fmt: skip
        storage.metadata.on_coming = partial(lay_out_logs, storage, self.role)
        self.topics.on_change = self._notice_topics
        self.topics.on_delete = self.groups.forget_topic
        self._told = ToldMetadata(lambda: storage.metadata.image)
        route = self._leader_route()
        self._origin = origin = ports.chance.uuid().int >> 65
        self._forwarder = self._forwarder_to(
            route.route if route is not None else this_node_leads, origin
        )
        self._quorum_forwarder = self._forwarder_to(self._quorum_route(), origin)
        if route is not None:
            storage.metadata.follow(lambda _image: self._forwarder.follow_leader())
        self.role.on_term = lambda term: self._forwarder.follow(
            term.primary_region, term.region_epoch
        )
        kept = self._kept_kafka
        self.memory = MemoryBudget() if kept is None else kept.memory
        turns = TurnBudget() if kept is None else kept.turns
        self.features = FeatureRaising(config.region, config.own_node.node_id, storage.metadata)
        self._services = services = Services(
            clock=ports.clock,
            chance=ports.chance,
            metadata=self.topics,
            partitions=storage.partitions,
            fetch_sessions=FetchSessions(ports.chance),
            txn=self.transactions.clients,
            txn_admin=self.transactions.admin,
            groups=self.groups,
            region=self.role,
            forward=self._forwarder,
            config=config,
            node_configs=self.configs,
            features=self.features,
            quorum=lambda: storage.metadata.quorum,
            quorum_leader=self._quorum_forwarder,
            metrics=self.metrics,
            audit=storage.metadata.audit,
            memory=self.memory,
            deadlines=Deadlines(turns),
            region_nodes=self._region_nodes(),
            is_short=self._is_short,
            is_sure=self._is_sure,
            begins_to_act=self._begins_to_act,
            gave_up=self._told.gave_up,
            logins=compose_logins(
                config,
                ports,
                lambda: storage.metadata.image.access,
                lambda: storage.folder.identity,
            ),
            authorizer=compose_authorizer(config, storage.metadata),
            says_not_created=SaidSeldom(ports.clock).is_due,
        )
        self._dispatcher = Dispatcher(services, all_apis())
        self.kafka = kept or KafkaServer(
            ports.network,
            ports.clock,
            self._dispatcher.answer,
            self.metrics,
            begin=self._dispatcher.begin,
            caps=_connection_caps(config),
            memory=self.memory,
            turns=turns,
        )
        if kept is not None:
            kept.serve_by(self._dispatcher.answer, self._dispatcher.begin, self.metrics)
        limit_clients(services, self.kafka, storage.metadata)
        self.run_kafka: Callable[[], Awaitable[None]] = self.kafka.run
        """Runs the Kafka port until it is closed; whoever lets another node go on there runs it elsewhere, and waits here."""
        if self._cluster is None:
            self.peers = PeerServer(ports.peer_network, self._handshake, peer_settings(config))
        else:
            self.peers = self._cluster.peers
        self._source.register(self.peers)
        self._failover_answers.register(self.peers)
        self.peers.admit = self._admit
        self.failover.outlook.lives.on_elected = self._forwarder.follow_election
        target = ForwardTarget(
            self._dispatcher, self.role, route.leads_under if route is not None else under_none
        )
        target.register(self.peers)
        self._forward_target = target
        if self._cluster is not None:
            target.register_for_nodes(self._cluster.door)
        self.scrubber = compose_scrubber(
            storage, ports, self._other_regions(), config.scrub_bytes_per_second
        )
        self._compose_http()

    def _admit(self, hello: Hello) -> None:
        """Answer other regions where this node speaks for its own, and they may talk; raises `PeerRefused`."""
        if (refused := self._handshake.refused()) is not None:
            raise refused
        self.failover.outlook.lives.admit(hello)

    def _forwarder_to(self, route: Callable[[], NodeRoute | None], origin: int) -> PeerForwarder:
        """Return what carries requests to the primary region, or to who leads this one by `route`."""
        ports = self._ports
        return PeerForwarder(
            ports.peer_network, self._handshake, self._addresses, ports.clock, origin=origin,
            leader_route=route,
        )  # fmt: skip

    def _quorum_route(self) -> Callable[[], NodeRoute | None]:
        """Return the way to who leads the quorum, to nobody for the only node of a region."""
        if self._cluster is None:
            return this_node_leads
        metadata = self.storage.metadata
        standing = self._cluster.line.standing
        return QuorumRoute(lambda: metadata.image, standing, lambda: metadata.quorum.leader).route

    def _leader_route(self) -> LeaderRoute | None:
        """Return the way to who leads the region; None for the only node of one."""
        if self._cluster is None:
            return None
        return LeaderRoute(self._told.image, self._cluster.line.standing)

    def _other_regions(self) -> OtherRegions:
        role = self.role
        return OtherRegions(
            peers=self.failover.parts.peers,
            identity=self._handshake,
            server=self.peers,
            shared=SharedLogs(
                self._handshake,
                self.tidemarks,
                self._source,
                lambda: role.acting or role.mirrors,
            ),
            nodes=self._cluster,
        )

    def _region_nodes(self) -> RegionNodes | None:
        """Return what clients are told of several nodes; None where this is the only one."""
        if self._cluster is None:
            return None
        own = self.config.own_node
        known = KnownNode(own.node_id, *split(own.kafka), own.rack)
        return RegionNodes(
            self._told.image, self._cluster.member, known, self.config.region, several=True
        )

    def _is_sure(self, partition: Partition) -> bool:
        return self._replication is None or self._replication.is_sure(partition)

    def _is_short(self, partition: Partition) -> bool:
        return self._replication is not None and self._replication.is_short(partition)

    def _notice_topics(self) -> None:
        self.tidemarks.notice_topics()
        self._logs_changed()

    def _logs_changed(self) -> None:
        if self._replication is not None:
            self._replication.logs_changed()

    def _compose_http(self) -> None:
        storage = self.storage
        self.doors = doors_of(self.config, self._ports, lambda: storage.metadata.image.access)
        self._app = app = make_app(
            RegionService(
                self.failover,
                self.operations,
                storage.partitions.kept,
                lambda: storage.partitions.room.refusal,
                self.scrubber.problem,
                AmongNodes(
                    places=RegionPlaces(
                        self.config.region,
                        self._told.image,
                        _placed(self.config),
                        self._addresses,
                        scheme=self._ports.speaks.http_scheme,
                        me=self.config.own_node.node_id,
                    ),
                    view=lambda: None if self.operating is None else self.operating.view,
                    why_silent=self._why_silent_text,
                ),
            ),
            {
                **self._cluster_checks(),
                "metadata": lambda: storage.metadata.failed or None,
                "partitions": self._partition_check,
                "starts": self._start_check,
                "tidemarks": self._tidemark_check,
                "transactions": lambda: "; ".join(self.transactions.failures) or None,
                "disk": lambda: storage.partitions.room.refusal,
                "damage": self.scrubber.problem,
            },
            self.metrics.registry,
            doors=self.doors,
            # Who steers by readiness would take out every node, for topics under one key.
            warning=lambda: self._ports.speaks.warning(keys=storage.partitions.sealing.problem),
            audit=storage.metadata.audit,
        )
        trail = storage.metadata.audit
        register_figures(trail, self.metrics.registry)
        hear(
            trail, self._services, self.doors,
            kafka=self.kafka, peers=self.peers, failed=self._ports.speaks.failed,
        )  # fmt: skip
        self.metrics.registry.register(DoorCollector(self.config, self.doors))
        self.metrics.registry.register(
            NodeCollector(
                GaugeSources(
                    partitions=storage.partitions,
                    transactions=self.transactions.admin.status_counts,
                    group_states=lambda: [found.state for found in self.groups.list()[1]],
                    offsets=self.groups.offset_room.figures,
                    held_back=self.tidemarks.held_back,
                    scrub=self.scrubber.figures,
                )
            )
        )
        names = NameCollector(
            storage.partitions,
            lambda: [shard.table.committed for shard in self.groups.shards],
            self.config.metrics_names_max,
        )
        self.metrics.registry.register(names)
        self._effects = ConfigEffects(
            groups=self._group_settings, transactions=self.transactions, tidemarks=self.tidemarks,
            partitions=storage.partitions, kafka=self.kafka, memory=self.memory, names=names,
            services=self._services,
            catch_up=CatchUpRates() if self._cluster is None else self._cluster.catch_up,
        )  # fmt: skip
        verdicts = VerdictService(
            storage.partitions,
            storage.metadata,
            self.role,
            http_scheme=self._ports.speaks.http_scheme,
            leads_surely=lambda: (
                self._replication is None or self._replication.groups.leading.is_sure()
            ),
        )
        add_feature_routes(app, self.features)
        self.adding = NodeAdding(
            AddingParts(
                config=self.config,
                storage=storage,
                ports=self._ports,
                turn=self.ending.hand_over if self._cluster is None else None,
            )
        )
        add_node_routes(app, self.adding)
        self._desk = TransactionDesk(
            storage.partitions, self.transactions.admin, verdicts, self.marker_ends.end_of
        )
        add_transaction_routes(app, verdicts, self._desk, self._ports.clock.wall_ms)
        add_abort_routes(app, verdicts, self._desk)
        self.http = HttpServer(
            app, tls=self._ports.speaks.http, on_failed=self._ports.speaks.failed.on_port("http")
        )
        self._ports.speaks.register(self.metrics.registry)

    def _cluster_checks(self) -> dict[str, Check]:
        """Return what is looked at in a region of several nodes besides."""
        if self._cluster is None:
            return {}
        return {
            "quorum": lambda: (
                None if self.operating is None else self.operating.view.quorum_problem()
            ),
            "replication": lambda: (
                None if self.operating is None else self.operating.view.replication_problem()
            ),
        }

    def _operate(self, cluster: ClusterParts, replication: Replication) -> ClusterService:
        view = ClusterView(
            ViewParts(
                region=self.config.region,
                me=cluster.member,
                clock=self._ports.clock,
                metadata=self.storage.metadata,
                partitions=self.storage.partitions,
                groups=replication.groups,
                follows=lambda: replication.leadership.follows,
                readers=replication.readers.counts,
                damage=self.scrubber.problem,
                waiting=lambda: replication.copying_anew.waiting,
                http_scheme=self._ports.speaks.http_scheme,
                spread_waits=replication.spread_keeper.waits_for,
            )
        )
        service = ClusterService(view, cluster.controller)
        add_cluster_routes(self._app, service)
        self.metrics.registry.register(ClusterCollector(service))
        return service

    def _leader_epoch(self, key: LogKey) -> LeaderEpoch | None:
        """Return under which leader epoch a log that was just opened is led here; those of data groups see to theirs (INV-RGR1)."""
        term, replication = self.role.serving, self._replication
        if replication is not None and not replication.groups.is_main(key):
            return None
        return term.leader_epoch if term is not None and self._leads(term) else None

    def _why_silent_text(self) -> str:
        return "" if self.leading is None else str(self.leading.why_silent() or "")

    def _start_check(self) -> str | None:
        """Say why this region stands aside; who does not speak for it has not asked the others (T36)."""
        return None if self._why_silent_text() else self.failover.outlook.lives.aside() or None

    def _partition_check(self) -> str | None:
        if self.operating is not None:
            stopped = self.operating.view.stopped()
            return "; ".join(f"{name}: {why}" for name, why in stopped.items()) or None
        failures = self.storage.partitions.failures()
        return "; ".join(f"{name}: {why}" for name, why in failures.items()) or None

    def _tidemark_check(self) -> str | None:
        """Say why no tidemark is published or reached any more, whatever else goes on; who follows in its region does neither."""
        if self._replication is not None and self._replication.leadership.follows:
            return None
        leader, link = self.tidemarks.cut_leader, self.tidemarks.link
        reason = ""
        if leader is not None:
            reason = leader.failed
        elif link is not None:
            reason = (
                link.reaching.stopped
                or link.core.refused_history
                or link.reaching.lost
                or "; ".join(link.core.waiting.values())
            )
        return reason or None

    def stop(self) -> None:
        """Ask `run` to end cleanly; may be called from a signal handler of the loop."""
        self.ending.stop()

    async def run(self, on_ready: Callable[[], None]) -> None:
        """Serve until `stop`; calls `on_ready` once the role is decided and all ports are bound.

        Raises `NodeRefused` if a port is taken; whatever ended a task of the node, otherwise.
        """
        trail = self.storage.metadata.audit
        try:
            await self._bind()
            async with asyncio.TaskGroup() as tasks:
                if self._cluster is None:
                    tasks.create_task(self.storage.metadata.run(), name="metadata")
                running = [
                    tasks.create_task(work, name=name)
                    for name, work in (
                        ("audit", trail.run()),
                        *carrying(trail, self._services, self.config, self._ports.disk),
                        ("group-commit", self.storage.group_commit.run()),
                        (
                            "recovery_checkpoints",
                            self.storage.partitions.recovery_checkpoints.run(),
                        ),
                        ("deletions", self.storage.partitions.removal.run()),
                        ("log-starts", self.storage.partitions.noted_starts.run()),
                        ("role", self.role.run()),
                        ("forwarder", self._forwarder.run()),
                        ("quorum-forwarder", self._quorum_forwarder.run()),
                        ("failover", self._decide_role()),
                        (
                            "peers",
                            self.peers.wait_closed(),
                        ),  # raises what a handler raised as a bug
                        ("retention", self._maintain()),
                        ("cleaner", self.cleaner.run()),
                        ("scrubber", self.scrubber.run()),
                        ("ledger-images", self.ledger_images.run()),
                        ("sealing", self.storage.partitions.sealing.run(self._ports.clock)),
                        ("disk-room", self._watch_disk()),
                        ("digests", self.storage.complete_digests()),
                        ("tls", self._ports.speaks.run()),
                        ("loop-lag", LoopWatch(self._ports.clock, self.metrics.loop_lag_s).run()),
                    )
                ]
                serving = tasks.create_task(self._serve(), name="kafka")
                watching = tasks.create_task(self._until_settled(on_ready), name="ready")
                failing = tasks.create_task(self.failed_callbacks.run(), name="callbacks")
                await self.ending.asked()
                _log.info("stopping")
                watching.cancel()
                failing.cancel()
                if self.ending.hands_over:
                    await end_requests(self.kafka, self.role, self._services.deadlines)
                    serving.cancel()
                else:
                    await end_connections(self.kafka, self.role, serving)
                if (
                    self._cluster is None
                ):  # else what was proposed is settled by what other nodes say here
                    self.peers.close()
                for task in reversed(running):
                    task.cancel()
                await asyncio.wait(running)
                # Others of the region are answered meanwhile (INV-CLG1).
                await self.storage.partitions.removal.finish()
                await self.storage.partitions.noted_starts.keep()
                await close_aside(self.storage.partitions)
                self.storage.metadata.stop()  # after all who change it
        finally:
            if not self.ending.hands_over:
                self.kafka.close()
            self.peers.close()
            await self.http.stop()
            await self.storage.close()
            _log.info("stopped")

    async def _serve(self) -> None:
        """Serve clients. A mirror that shows nothing yet would tell them that its logs end at their beginning (T16).

        In a region of several nodes its logs tell of no end before (INV-RFN2).
        """
        if self._cluster is None and self.failover.state.phase is Phase.MIRRORING:
            await self.failover.steps.first_taken.wait()
        await self.run_kafka()

    async def _bind(self) -> None:
        own = self.config.own_node
        binds: list[tuple[str, str, Callable[[str, int], Awaitable[object]]]] = [
            ("HTTP", own.http, self.http.start)
        ]
        if self._cluster is None:
            binds.insert(0, ("peer", own.peer, self.peers.start))
        if self._kept_kafka is None:
            bind_kafka = partial(self._ports.speaks.bind_kafka, self.kafka)
            binds.insert(0, ("Kafka", own.kafka, bind_kafka))
        for what, address, bind in binds:
            host, port = split(address)
            try:
                await bind(self.config.listen_host or host, port)
            except OSError as error:
                raise NodeRefused(
                    f"the {what} port {host}:{port} of region {self.config.region} cannot be bound:"
                    f" {error.strerror or error}. Stop what uses it, or change the port."
                ) from error

    async def _until_settled(self, on_ready: Callable[[], None]) -> None:
        """Call `on_ready` when this region takes writes, mirrors, or stands in dispute (T33)."""
        while not (
            self.role.acting
            or self.role.mirrors
            or self.failover.state.phase is Phase.DISPUTED
            or (self._replication is not None and self._replication.leadership.follows)
        ):
            await self._ports.clock.sleep_ms(5)
        on_ready()

    async def _decide_role(self) -> None:
        """Do what this node is to do in its region, and the region among the others."""
        if self._replication is None:
            await self.failover.run()
        else:
            assert self.operating is not None
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(self.operating.view.run(), name="cluster-view")
                assert self.data_leaders is not None
                tasks.create_task(self.data_leaders.lines.run(), name="leader-lines")
                await self._replication.run()

    async def _watch_disk(self) -> None:
        partitions = self.storage.partitions
        await watch_room(partitions.room, partitions.volume_bytes, self._ports.clock)

    async def _maintain(self) -> None:
        clock = self._ports.clock
        began_ms = clock.monotonic_ms()
        while True:
            left_ms = (
                began_ms + self.configs.present.retention_check_interval_ms - clock.monotonic_ms()
            )
            if left_ms > 0:  # in pieces: the interval may be another one meanwhile
                await clock.sleep_ms(min(left_ms, _LOOK_AGAIN_MS))
                continue
            await self.maintain()
            began_ms = clock.monotonic_ms()

    async def maintain(self) -> None:
        """Run one round of retention and producer expiry, and remove what was deleted long ago; others are served in between."""
        retaining = Retaining(
            storage=self.storage,
            hold_parts=self._hold_parts,
            leads=lambda: self.failover.running,
            replication=self._replication,
            holding=self._holding,
        )
        await retaining.run()
        await self.storage.partitions.purge()


def _placed(config: NodeConfig) -> dict[str, list[PlacedNode]]:
    """Return where the nodes of each region are met, as the configuration says."""
    return {
        region.name: [
            PlacedNode(n.node_id, n.kafka, split(n.peer), n.http, n.rack) for n in region.nodes
        ]
        for region in config.regions
    }


def _connection_caps(config: NodeConfig) -> ConnectionCaps:
    return ConnectionCaps.fitting(
        descriptor_limit(),
        config.connections_per_address_max,
        config.connection_rate_per_address,
    )


def peer_settings(config: NodeConfig) -> PeerSettings:
    """Return the limits of the peer port: each client of a mirror may have a connection of its own, half as many as clients get."""
    return PeerSettings(connections_max=max(1, _connection_caps(config).in_all // 2))


__all__ = ["Node", "NodeRefused", "peer_settings"]
