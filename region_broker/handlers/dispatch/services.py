"""What a handler may use: the services of the node, and the context of one request.

A handler reaches the rest of the node only through `Services`, so that tests can compose them.
`RequestContext.connection_state` belongs to one connection and is shared by its requests.
Not here: who implements these protocols (`node`), the API table (`registry`).
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Protocol
from uuid import UUID

import msgspec

from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch, TopicPartition
from idempotency.ledger_records import TransactionRecord
from idempotency.ports import Chance, Clock
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.controller.refusals import NOT_ACTING, CommandRefused, nobody_asked
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.handlers.dispatch.deadlines import Deadlines
from region_broker.handlers.dispatch.led_apart import (
    MAIN_GATE_SHUT,
    DataGroups,
    TransactionsElsewhere,
)
from region_broker.handlers.dispatch.node_configs import NodeConfigService
from region_broker.handlers.dispatch.nodes import MetNodes, NodeFacts, NodesView, Places, alone
from region_broker.handlers.dispatch.readers import SELECTS_LEADER, ReaderPlaces
from region_broker.handlers.dispatch.request_places import RequestTurns
from region_broker.handlers.dispatch.topic_rows import TopicRows
from region_broker.limits import LEADER_WAIT_MS
from region_broker.metrics import Metrics
from region_broker.partitions.fetch_sessions import FetchSessions
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.security.access import AccessChange, Operation, ResourceType
from region_broker.security.audit.trail import NO_AUDIT, AuditTrail
from region_broker.security.authorizer import AllowAll, Authorizer
from region_broker.security.identity import Identity, host_of
from region_broker.security.quotas.throttles import Meter, Throttles
from region_broker.security.sasl.desk import LoginDesk
from region_broker.wire.connection import Waiting
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.memory_budget import MemoryBudget
from txn_coordinator.connection_order import Arrival, Sender
from txn_coordinator.verdicts import EndOutcome, InitOutcome, TxnVerdict


class MetadataService(Protocol):
    """The region's metadata: an immutable image, and the changes that clients may ask for.

    All of them raise `CommandRefused`, with `NOT_ACTING` where the region does not act (any more).
    """

    @property
    def image(self) -> MetadataImage:
        """Return the image as of now."""
        ...

    async def create_topic(
        self,
        name: str,
        partition_count: int,
        configs: Mapping[str, str],
        topic_id: UUID | None = None,
        still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:
        """Create a topic and open its partitions; `CommandRefused` when the name is taken.

        Here, and below, `still_may` is asked once no other change of a topic is before this one: `CommandRefused` where it says no (INV-TG4).
        """
        ...

    async def grow_topic(
        self,
        name: str,
        partition_count: int,
        expected: int,
        still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:
        """Give a topic more partitions and open them; `CommandRefused` when it has not `expected`."""
        ...

    async def change_configs(
        self, name: str, configs: Mapping[str, str], expected: Mapping[str, str],
        still_may: Callable[[], bool] = nobody_asked,
    ) -> TopicImage:  # fmt: skip
        """Replace a topic's configs, in effect at once; `CommandRefused` when they are not `expected`."""
        ...

    async def change_access(self, change: AccessChange, expected: int | None = None) -> None:
        """Change users' keys, ACLs, quotas or tokens; `CommandRefused` when they have not the number `expected`."""
        ...

    async def delete_topic(
        self, name: str, still_may: Callable[[], bool] = nobody_asked
    ) -> TopicImage:
        """Delete a topic and drop its partitions; `CommandRefused` when there is none."""
        ...


class RegionView(Protocol):
    """What handlers need to know of the region: who we are, and whether we act."""

    def change(self) -> AbstractContextManager[None]:
        """Change topics, or where a log starts, within; raises `CommandRefused` (`NOT_ACTING`).

        Whether the region acts is looked at when a request comes, and again here: writes may have been stopped since.
        """
        ...

    @property
    def acting(self) -> bool:
        """Return whether this region takes writes now."""
        ...

    @property
    def region_epoch(self) -> RegionEpoch:
        """Return the region epoch known here."""
        ...

    @property
    def cluster_id(self) -> str:
        """Return the id of the cluster (same in all regions)."""
        ...

    @property
    def node_id(self) -> int:
        """Return the id of this node."""
        ...

    @property
    def kafka_host(self) -> str:
        """Return the host that clients are told."""
        ...

    @property
    def kafka_port(self) -> int:
        """Return the port that clients are told."""
        ...

    @property
    def reason_not_acting(self) -> str:
        """Return why this region takes no writes, for logs and error texts."""
        ...


class TransactionAdmin(Protocol):
    """What administrators ask of the coordinator (`txn_coordinator.serving.administration`)."""

    def listing(self) -> Iterable[TransactionRecord] | TxnVerdict:
        """Return the value of every transactional id, or why they cannot be listed."""
        ...

    def describe(self, transactional_id: str) -> TransactionRecord | TxnVerdict | None:
        """Return the value of one transactional id, None if there is none, or why it cannot be asked."""
        ...

    async def abort_producer(
        self,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        still_open: Callable[[], Sequence[TopicPartition]],
    ) -> TxnVerdict:
        """Abort what a producer has open in the partitions that `still_open` names (B13)."""
        ...


class TransactionService(Protocol):
    """The transaction coordinator as handlers see it (`txn_coordinator.serving.client_requests`).

    `sender` and `arrival` feed the connection-order fence of TV1 where that is enabled; None: not fenced.
    """

    async def init_producer_id(
        self,
        transactional_id: str | None,
        timeout_ms: int,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
    ) -> InitOutcome:
        """Return the pair to use from now on, or why there is none."""
        ...

    async def add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Sequence[TopicPartition],
        *,
        implicit: bool,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Add partitions to the transaction, durably before OK (B2)."""
        ...

    def begin_add_partitions(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partitions: Sequence[TopicPartition],
        *,
        sender: Sender,
        done: Callable[[TxnVerdict], None],
    ) -> None:
        """As `add_partitions`, without a task: `done` is called once, perhaps at once."""
        ...

    def begin_end_txn(  # noqa: PLR0913 - the rest by keyword
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        *,
        commit: bool,
        tv: int,
        sender: Sender,
        done: Callable[[EndOutcome], None],
    ) -> bool:
        """As `end_txn`, without a task: `done` is called once, perhaps at once. False: use `end_txn`."""
        ...

    async def add_offsets(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        group_id: str,
        *,
        implicit: bool = False,
        sender: Sender | None = None,
    ) -> TxnVerdict:
        """Add the offsets partition of `group_id`; `implicit`: it came with TxnOffsetCommit (TV2)."""
        ...

    async def end_txn(
        self,
        transactional_id: str,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        commit: bool,
        tv: int,
        sender: Sender | None = None,
    ) -> EndOutcome:
        """Decide the transaction."""
        ...

    def verify(
        self,
        transactional_id: str | None,
        producer_id: ProducerId,
        producer_epoch: ProducerEpoch,
        partition: TopicPartition,
        arrival: Arrival | None = None,
    ) -> TxnVerdict:
        """Return whether `partition` is in the producer's open transaction (C27)."""
        ...


class Forwarder(Protocol):
    """Carries a request to the primary region and brings the answer back."""

    async def forward(
        self,
        ctx: "RequestContext",
        frame: memoryview,
        on_sent: Callable[[], None] = lambda: None,
    ) -> bytes | None:
        """Return the raw answer (header included) to the raw request `frame` (header included).

        None when the client expects no answer (Produce with acks=0). `on_sent` is called once the request has left, and nothing of it
        is held any more.

        Requests of one connection keep their order. Raises `ForwardingFailed` when there is no
        answer: the write may or may not have happened.
        """
        ...


class ForwardingFailed(Exception):
    """No answer from the primary region; whether the request was executed is unknown.

    `may_have_happened` is False only if the request surely never left this node.
    """

    def __init__(self, reason: str, *, may_have_happened: bool = True) -> None:
        """Say why."""
        super().__init__(reason)
        self.may_have_happened = may_have_happened


class FeatureService(Protocol):
    """The feature level of the region (`region_broker.region.feature_raising`)."""

    @property
    def supported(self) -> range:
        """Return the levels that the code of this node knows."""
        ...

    @property
    def finalized(self) -> int:
        """Return the level of this region, as far as it is known here."""
        ...

    async def raise_to(self, level: int, *, dry_run: bool) -> bool:
        """Raise the region to `level`; return whether anything changes. Raises `CommandRefused`, `MetadataUnwritable`."""
        ...


class HandlerConfig(Protocol):
    """The few settings of the node that handlers read (`region_broker.config.node_config.NodeConfig` has them)."""

    @property
    def auto_create_topics(self) -> bool:
        """Return whether Metadata creates the topics it is asked for."""
        ...

    @property
    def node_ids(self) -> frozenset[int]:
        """Return the nodes of all regions: clients of a mirror know that one's only."""
        ...

    @property
    def default_partition_count(self) -> int:
        """Return the partition count of topics created without one."""
        ...

    @property
    def shard_count(self) -> int:
        """Return the partition count of the ledgers."""
        ...

    @property
    def replica_selector(self) -> str:
        """Return whether readers are sent to their rack: `rack`, or `leader`."""
        ...

    @property
    def told_listeners(self) -> Sequence[tuple[str, str, str]]:
        """Return name, what is spoken, and `host:port` where clients meet this node, of each listener."""
        ...


def always_sure(_partition: Partition) -> bool:
    """Return True: a region of one node has no other one that could lead."""
    return True


def never_short(_partition: Partition) -> bool:
    """Return False: in a region of one node that one is all that must be in sync."""
    return False


def nobody_hears(
    _ctx: "RequestContext", _operation: Operation, _resource_type: ResourceType, _name: str
) -> None:
    """Nobody asks what is refused."""


@dataclass(slots=True)
class Services:
    """Everything that handlers may use; composed once by `node`."""

    clock: Clock
    chance: Chance
    metadata: MetadataService
    partitions: PartitionTable
    fetch_sessions: FetchSessions
    txn: TransactionService
    txn_admin: TransactionAdmin
    groups: GroupCoordinator
    region: RegionView
    forward: Forwarder
    config: HandlerConfig
    """As it counts now: another one takes its place when keys change (`node.config_effects`)."""
    node_configs: NodeConfigService
    features: FeatureService
    quorum: Callable[[], GroupFacts]
    """Tells what this node knows of the region's quorum now."""
    quorum_leader: Forwarder
    """Carries a request to the node that leads that quorum."""
    metrics: Metrics
    says_not_created: Callable[[], bool]
    """Tells whether it is time to say that topics which clients ask for are not created, and takes it as said (INV-SSD1)."""
    audit: AuditTrail = NO_AUDIT
    """Told of changes before, of refusals and logins behind (`refused`, `login`)."""
    memory: MemoryBudget = field(default_factory=MemoryBudget)
    deadlines: Deadlines = field(default_factory=Deadlines)
    topic_rows: TopicRows = field(default_factory=TopicRows)
    met_nodes: MetNodes = field(default_factory=MetNodes)
    region_nodes: NodesView | None = None
    """What is known of the region's nodes; None where this one is the only one, and registers nowhere."""
    is_short: Callable[[Partition], bool] = never_short
    """Tells whether fewer replicas of a partition are in sync than its `min.insync.replicas` (R1)."""
    is_sure: Callable[[Partition], bool] = always_sure
    """Tells whether this node, which leads as far as it knows, can be sure of that: what a client would take for the loss of records, or for
    a fault of its own, is not told otherwise (INV-HRD5)."""
    readers: ReaderPlaces | None = None
    """Who serves readers in this region; None where this node is the only one."""
    begins_to_act: Callable[[], bool] = lambda: False
    """Tells whether this node, elected, loads what it needs before it takes writes."""
    apart: DataGroups | None = None
    """What this node leads where leaders are spread; None where this node is the only one."""
    txn_elsewhere: TransactionsElsewhere | None = None
    """The coordinator as the leader of a data group asks it; there is one where `apart` is."""
    gave_up: Callable[[], bool] = lambda: False
    """Tells whether this node gave up a leadership that the metadata, as they are known here, still name it for (INV-HD8)."""
    authorizer: Authorizer = field(default_factory=AllowAll)
    """Who may do what (`authorizing` asks it, and nobody else)."""
    on_denied: Callable[["RequestContext", Operation, ResourceType, str], None] = nobody_hears
    """Told of what somebody asked for and may not do; not of what an answer leaves out. Called before the refusal is answered."""
    quotas: Throttles | None = None
    """By what clients are limited; None while nobody is."""
    logins: LoginDesk | None = None
    """Where connections log in; None where no listener asks for that."""
    access_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """For who changes users' keys, ACLs, quotas or tokens: one after the other at this node (INV-HAC2)."""
    tokens_turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    """For who changes tokens, and waits for `access_turn` within it."""
    turns: RequestTurns = field(default_factory=RequestTurns)
    """For requests that take much: few at once, by who asks."""
    leader_wait_s: float = LEADER_WAIT_MS / 1_000
    """How long what changes something waits while no node of the region can execute it."""

    @property
    def nodes(self) -> NodeFacts:
        """Return the nodes of the region as of now."""
        return alone(self.region) if self.region_nodes is None else self.region_nodes.facts

    def nearer_nodes(self, rack: str, met_at: Places | None = None) -> Sequence[int]:
        """Return the nodes that a reader in `rack`, which meets nodes at `met_at`, is to ask instead of this one (INV-HRD1, INV-HMN1)."""
        if not rack or self.readers is None or self.config.replica_selector == SELECTS_LEADER:
            return ()
        if self.metadata.image.spread is not None:  # INV-HLA1
            return ()
        nearer = self.readers.nearer(rack) if self.leads and self.region.acting else ()
        return nearer if met_at is None else [each for each in nearer if each in met_at]

    def serves_copies(self, rack: str) -> bool:
        """Return whether this node, which does not lead, serves a reader in `rack` (INV-HRD2)."""
        if rack == "" or self.readers is None or self.metadata.image.spread is not None:
            return False
        return self.readers.serves(rack)

    @property
    def leads(self) -> bool:
        """Return whether this node leads the region's logs, as far as is known here."""
        return self.region_nodes is None or self.region_nodes.facts.leads

    @property
    def leads_apart(self) -> bool:
        """Return whether this node leads data groups that take reads and writes, and not the main group."""
        return self.apart is not None and self.apart.any_open and not self.leads

    def is_served_here(self, partition: Partition) -> bool:
        """Return whether a partition is this node's to serve, as far as its group says (INV-HLA1)."""
        spread = None if self.apart is None else self.metadata.image.spread
        if spread is None:
            return True
        if self.leads:
            return spread.is_main(partition.key)
        return self.apart is not None and self.apart.is_open(partition)

    def change_of(self, partition: Partition) -> AbstractContextManager[None]:
        """Change where a log starts, within; raises `CommandRefused` (`NOT_ACTING`).

        The leader of a data group begins only while it is open. Who acts next is elected first, and takes what is done here from a log
        that it leads itself (ADR 53): nobody waits for these changes.
        """
        if self.apart is not None and self.apart.is_open(partition):
            if not self.apart.takes_writes:
                raise CommandRefused(NOT_ACTING, MAIN_GATE_SHUT)  # INV-RGR11
            return nullcontext()
        return self.region.change()


class Place(Protocol):
    """That of one request among those that list much, which few have at once (`listing_places`)."""

    @property
    def is_taken(self) -> bool:
        """Return whether it has one."""
        ...

    async def take(self) -> None:
        """Return once it has one, also where it has one already; raises `CloseConnection` when that takes too long."""
        ...

    def leave(self) -> None:
        """Let another one have it, if this one has it."""
        ...


class RequestContext(msgspec.Struct):
    """One request: where it came from and what it was addressed to."""

    services: Services
    connection_id: int
    api_key: int
    version: int
    correlation_id: int
    client_id: str | None = None
    peer: str = ""
    connection_state: ConnectionState = msgspec.field(default_factory=ConnectionState)
    waiting: dict[Waiting, None] = msgspec.field(default_factory=dict)
    """The requests of its connection that are given up when the peer is gone."""
    origin: int = 0
    """Tells connection ids apart that cannot be compared: of this listener, of each mirror's."""
    newest_connection_id: int = 0
    """The greatest connection id of that origin when the request came."""
    frame: memoryview = msgspec.field(default_factory=lambda: memoryview(b""))
    """The whole request, header included, as it came."""
    meter: Meter | None = None
    """What it is charged by; None where there are no quotas."""
    is_large: bool = False
    """Whether it has more elements than are read in one step of the loop."""
    listing: Place | None = None
    """Its place among those that list or describe much, taken or not (INV-HLP1); None where its API never does."""
    large: Place | None = None
    """That among those that have many elements, taken or left (INV-HLR1); None where it has not."""

    @property
    def identity(self) -> Identity:
        """Return who asks."""
        return self.connection_state.identity

    @property
    def nodes(self) -> NodeFacts:
        """Return the nodes of the region as whoever asks meets them (INV-HMN1)."""
        services, state = self.services, self.connection_state
        return services.met_nodes.of(services.nodes, state.listener, state.met_at)

    @property
    def host(self) -> str:
        """Return the address that the request came from, as ACLs name it."""
        return host_of(self.peer)

    @property
    def asked_by(self) -> str:
        """Return who counts as one where those who ask take turns."""
        return self.identity.counted_as(self.host)

    def leave_large(self) -> None:
        """Let another large request be decoded, if this one is (INV-HLR2)."""
        if self.large is not None:
            self.large.leave()

    @property
    def request_id(self) -> str:
        """Return by what the request is found in logs, here and at the client: its address and correlation id (INV-WT1)."""
        return f"{self.peer}#{self.correlation_id}"

    @property
    def is_forwarded(self) -> bool:
        """Return whether another node of the region, or a mirror, forwarded the request: numberings of those have a name."""
        return self.origin != 0

    @property
    def sender(self) -> Sender:
        """Return the connection as the connection-order fence sees it."""
        return Sender(self.origin, self.connection_id, self.newest_connection_id)
