"""Two regions in one process, joined as a node joins them: real disks, sockets, logs, links and tidemarks.

Only the coordinators stand in: a ledger writer that enters rounds and decides what a test says, so that a
test controls which decisions a tidemark covers. The real ones have tests of their own.
"""

import asyncio
import socket
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

from geo_replicator.failover import Phase
from geo_replicator.lineage import Cut, Lineage
from geo_replicator.link.driver import Link
from idempotency.identity import TopicPartition
from idempotency.ledger_records import (
    RoundRecord,
    TransactionRecord,
    TxnStatus,
    encode_round_key,
    encode_round_value,
    encode_transaction_key,
    encode_transaction_value,
)
from idempotency.record_batch import iter_headers
from region_broker.controller.metadata_commands import (
    CountNodeStart,
    CreateTopic,
    PutDomain,
    PutRegion,
)
from region_broker.controller.metadata_image import (
    INTERNAL_TOPICS,
    OFFSETS_LEDGER,
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    DomainImage,
    RegionImage,
    TopicImage,
)
from region_broker.controller.metadata_store import MetadataStore
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import NodeLogConfig
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.failover.driver import FailoverDriver
from region_broker.region.failover.journal import FailoverJournal
from region_broker.region.failover.log_surgery import CutReason, DivergedLogs
from region_broker.region.failover.operations import FailoverOperations, Operation
from region_broker.region.failover.peers import FailoverPeers
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.failover.steps.effects import as_entry
from region_broker.region.failover.steps.outlook import FailoverParts, FailoverSettings
from region_broker.region.mirror.link_source import LinkSource
from region_broker.region.peers.protocol import Hello
from region_broker.region.peers.server import PeerServer
from region_broker.region.ports import OrphanCandidate, RoleServices, Term
from region_broker.region.role import NodeIdentity, RegionRole
from region_broker.region.tidemarks.reached_store import ReachedFile
from region_broker.region.tidemarks.service import (
    TidemarkParts,
    TidemarkService,
    ledger_topic_id,
)
from region_broker.region.topics import TopicRegistry, settle_partitions
from region_broker.region.view import RegionService
from region_broker.wire.batches import Origin, Record, build_batch
from tests.born_folders import birth_at, with_history
from tests.copied_folder import CopiedFolder
from tests.waiting import until

CLUSTER_ID = "cluster-of-tests"
ORDERS = "orders"
SHARD_COUNT = 2
QUICK = FailoverSettings(
    ask_timeout_ms=1_000, confirm_pause_ms=20, poll_ms=20, switch_timeout_ms=30_000
)


@dataclass(frozen=True)
class Entered:
    """A shard's ENTERED."""

    shard: int
    coordinator_epoch: int
    ledger_offset: int


class LedgerWriter:
    """Stands in for the transaction coordinator: enters rounds, and decides what a test says."""

    def __init__(self, table: PartitionTable) -> None:
        """Write into the ledger of `table`."""
        self._table = table
        self.round = 0
        self.adopted: list[Sequence[OrphanCandidate]] = []
        self.calls: list[str] = []
        self.answers = asyncio.Event()
        """Cleared: no shard enters a round, so no tidemark is published."""
        self.answers.set()

    def shard(self, number: int) -> Partition:
        """Return the partition of a ledger shard."""
        found = self._table.get(TRANSACTION_LEDGER, number)
        assert found is not None
        return found

    def _append(self, shard: int, key: bytes, value: bytes) -> int:
        batch = build_batch([Record(key, value)])
        return self.shard(shard).writer.append_ledger(batch).base_offset

    async def enter_round(self, r: int, /) -> Mapping[int, Entered]:
        """Write ROUND to every shard."""
        await self.answers.wait()
        self.round = r
        entered = {}
        for number in range(SHARD_COUNT):
            value = encode_round_value(RoundRecord(r, 1))
            offset = self._append(number, encode_round_key(), value)
            await self.shard(number).wait_committed(offset + 1)
            entered[number] = Entered(number, 1, offset)
        return entered

    def release(self, r: int, /) -> None:
        """Hold nothing anyway."""

    @property
    def held_decisions(self) -> int:
        """Nothing is held."""
        return 0

    def decide(self, name: str, producer_id: int, status: TxnStatus, shard: int = 0) -> int:
        """Write a decision into a shard; return its offset."""
        record = TransactionRecord(
            transactional_id=name, producer_id=producer_id, previous_producer_id=-1,
            next_producer_id=-1, producer_epoch=0, last_producer_epoch=-1, timeout_ms=60_000,
            status=status, partitions=(), last_update_ms=1, start_ms=1, stamp=self.round,
        )  # fmt: skip
        return self._append(shard, encode_transaction_key(name), encode_transaction_value(record))

    async def load(self, _term: Term) -> None:
        """Load nothing."""
        self.calls.append("load")

    async def adopt(self, _term: Term, candidates: Sequence[OrphanCandidate]) -> None:
        """Note what was open."""
        self.calls.append("adopt")
        self.adopted.append(candidates)

    async def resign(self) -> None:
        """Note it."""
        self.calls.append("resign")

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()


class GroupsNote:
    """Stands in for the group coordinator: notes what it was told."""

    def __init__(self) -> None:
        """Nothing was told yet."""
        self.clamped: list[Mapping[TopicPartition, int]] = []
        self.calls: list[str] = []

    async def load(self, _term: Term) -> None:
        """Note it."""
        self.calls.append("load")

    async def clamp(self, log_ends: Mapping[TopicPartition, int]) -> None:
        """Note the limits."""
        self.calls.append("clamp")
        self.clamped.append(log_ends)

    async def resign(self) -> None:
        """Note it."""
        self.calls.append("resign")

    async def run(self) -> None:
        """Do nothing until cancelled."""
        await asyncio.Event().wait()


def free_ports(count: int) -> list[int]:
    """Return ports that are free now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [held.getsockname()[1] for held in sockets]
    finally:
        for held in sockets:
            held.close()


class Site:
    """One region's node; `start` it, `kill` it, start it again on the same folder."""

    def __init__(self, region: RegionImage, regions: Sequence[RegionImage], folder: Path) -> None:
        """Live in `folder`."""
        self.region = region
        self.regions = regions
        self.folder = folder
        self.settings = QUICK
        self._tasks: list[asyncio.Task[None]] = []
        self.on_built: Callable[[Site], None] | None = None

    def _service(self) -> RegionService:
        kept = self.table.kept
        return RegionService(self.driver, self.operations, kept, lambda: self.table.room.refusal)

    async def start(self, *, listens: bool = True) -> None:
        """Open everything and run."""
        disk, clock, chance = RealDisk(), SystemClock(), SystemChance()
        self.folder.mkdir(parents=True, exist_ok=True)
        self.metadata = await MetadataStore.open(
            self.folder / "metadata.db", RealDisk(), new_cluster_id=CLUSTER_ID
        )
        await self._found()
        await self.metadata.apply(CountNodeStart())
        config = NodeLogConfig()
        self.commit = GroupCommit(config, clock)
        self.table = PartitionTable(disk, self.folder / "logs", clock, config, self.commit)
        self._spawn(self.commit.run())
        self._open_logs()
        network = AsyncioNetwork()
        self.ledger, self.groups = LedgerWriter(self.table), GroupsNote()
        self.quarantine = QuarantineStore(disk, self.folder / "quarantine")
        peers = FailoverPeers(network, self.metadata, self.region.name)
        # Identity and tidemarks know each other: the driver is built last, the services ask it lazily.
        identity = _Identity(self)
        self.server = PeerServer(network, identity)
        self.diverged = DivergedLogs(
            lambda: self.table, self.quarantine, self._cut_reason, self._shown_floor
        )
        source = LinkSource(self.table, self.metadata, identity, clock)
        self.tidemarks = TidemarkService(
            TidemarkParts(
                region=self.region.name, ordinal=self.region.ordinal, network=network,
                identity=identity, metadata=self.metadata, partitions=self.table,
                rounds=self.ledger, source=source, reached=ReachedFile.open(disk, self.folder),
                divergence=self.diverged,
                lineage=self._lineage, clock=clock, chance=chance, interval_ms=5,
            )
        )  # fmt: skip
        services = RoleServices(
            logs=lambda: self.table,
            settle_logs=lambda: settle_partitions(self.metadata, self.table),
            transactions=self.ledger,
            groups=self.groups,
            open_cut_leader=self.tidemarks.open_cut_leader,
            open_link=self.tidemarks.open_link,
        )
        who = NodeIdentity(CLUSTER_ID, self.region.name, self.region.node_id, "127.0.0.1", 9092)
        self.role = RegionRole(who, services, self.metadata.image.main_domain.region_epoch)
        parts = FailoverParts(
            domain="main", clock=clock, metadata=self.metadata, role=self.role,
            tidemarks=self.tidemarks, quarantine=self.quarantine, peers=peers,
            manifest=self.table,
            folder=with_history(
                disk, self.folder, cluster_id=CLUSTER_ID, region=self.region.name,
                node_id=self.region.node_id, history=birth_at(self.regions[0].name, 0),
            ),
        )  # fmt: skip
        self.journal = FailoverJournal(disk, self.folder / "failover" / "journal")
        self.driver = FailoverDriver(parts, self.journal, self.settings)
        self.operations = FailoverOperations(self.driver, chance)
        self.service = self._service()
        if self.on_built is not None:
            self.on_built(self)
        await self.driver.recover()
        self.driver.register(self.server)
        source.register(self.server)
        source.on_refuted, self.server.admit = self.driver.refuted, self.driver.outlook.lives.admit
        source.cut_is_owed, source.doubt = self.driver.cut_is_owed, self.driver.doubt
        source.promised_to = self.driver.promised_to
        if listens:
            await self.server.start(self.region.peer_host, self.region.peer_port)
        self._spawn(self.role.run())
        self._spawn(self.driver.run())
        while not self.driver.running:  # noqa: ASYNC110
            await asyncio.sleep(0)

    def _open_logs(self) -> None:
        for topic in self.metadata.image.topics.values():
            self.table.open_topic(topic)
        self.table.finish_drops()

    def _spawn(self, work: object) -> None:
        self._tasks.append(asyncio.get_running_loop().create_task(work))  # type: ignore[arg-type]

    async def _found(self) -> None:
        if self.metadata.image.domains:
            return
        for region in self.regions:
            await self.metadata.apply(PutRegion(region))
        home = self.regions[0]
        domain = DomainImage(
            name="main", acting_region=home.name, region_epoch=8, shard_count=SHARD_COUNT
        )
        await self.metadata.apply(PutDomain(domain))
        if self.region is not home:
            return
        counts: dict[str, int] = {
            TRANSACTION_LEDGER: SHARD_COUNT,
            OFFSETS_LEDGER: SHARD_COUNT,
            TIDEMARK_LEDGER: 1,
        }
        for name in (*INTERNAL_TOPICS, ORDERS):
            topic = TopicImage(
                topic_id=ledger_topic_id(CLUSTER_ID, name),
                name=name,
                partition_count=counts.get(name, 2),
                internal=name in INTERNAL_TOPICS,
            )
            await self.metadata.apply(CreateTopic(topic))

    def _lineage(self) -> Lineage:
        domain = self.metadata.image.main_domain
        return Lineage(tuple(as_entry(entry) for entry in domain.lineage))

    def _shown_floor(self) -> Cut:
        return self.tidemarks.shown_floor()

    def _cut_reason(self) -> CutReason:
        domain = self.metadata.image.main_domain
        return CutReason(
            "main", domain.region_epoch, self.region.name, domain.region_epoch,
            domain.acting_region, 1,
        )  # fmt: skip

    async def kill(self) -> None:
        """Stop as a killed process does: nothing is closed in order."""
        failure: BaseException | None = None
        for task in reversed(self._tasks):
            task.cancel()
        for task in self._tasks:
            try:
                await task
            except asyncio.CancelledError:
                continue
            except BaseExceptionGroup as error:
                failure = failure or error
        self._tasks.clear()
        self.server.close()
        await self.server.wait_closed()
        self.commit.close()
        self.table.close()
        self.journal.close()
        await self.metadata.close()
        if failure is not None:
            raise failure

    def partition(self, number: int = 0, topic: str = ORDERS) -> Partition:
        """Return a partition."""
        found = self.table.get(topic, number)
        assert found is not None, (self.region.name, topic, number)
        return found

    async def write(
        self, value: str, *, number: int = 0, topic: str = ORDERS,
        producer_id: int = -1, sequence: int = -1,
    ) -> int:  # fmt: skip
        """Append one record as an acknowledged client write; return its offset."""
        assert self.role.acting, self.role.reason_not_acting
        partition = self.partition(number, topic)
        origin = Origin(producer_id, 0 if producer_id >= 0 else -1, sequence)
        batch = build_batch([Record(None, value.encode())], origin=origin)
        outcome = partition.writer.append(batch)
        assert outcome.base_offset >= 0, outcome
        await partition.wait_committed(outcome.next_offset)
        return outcome.base_offset

    @property
    def topics(self) -> TopicRegistry:
        """Return what administrators change topics through."""
        topics = TopicRegistry(
            self.metadata,
            self.table,
            SystemChance(),
            lambda: self.role.leader_epoch,
            self.role.change,
        )
        topics.on_change = self.tidemarks.notice_topics
        return topics

    @property
    def link(self) -> Link:
        """The link of this mirror that was opened last."""
        link = self.tidemarks.link
        assert link is not None
        return link

    async def grow(self, partition_count: int) -> None:
        """Give ORDERS more partitions, as an administrator at home does."""
        present = self.metadata.image.topics[ORDERS].partition_count
        await self.topics.grow_topic(ORDERS, partition_count, present)

    @property
    def partition_count(self) -> int:
        """How many partitions clients of this region are told that ORDERS has."""
        return self.metadata.image.topics[ORDERS].partition_count

    async def ended(self, operation: Operation) -> Operation:
        """Return the operation once it is over."""
        await until(lambda: operation.status != "running", "the operation is over")
        return operation

    async def until(self, phase: Phase) -> None:
        """Return once the machine is in `phase` (and the gate is open where it acts)."""
        async with asyncio.timeout(20):
            await self.driver.until(lambda state: state.phase is phase)
            while phase is Phase.ACTING and not self.role.acting:  # noqa: ASYNC110
                await asyncio.sleep(0)

    async def shows(self, value: str) -> None:
        """Return once a reader of this region is shown a record whose value is `value`."""
        await until(lambda: value.encode() in self._shown(), f"{value} is shown")

    def _shown(self) -> bytes:
        if self.table.get(ORDERS, 0) is None:
            return b""
        return b"".join(self.values(number) for number in range(2))

    def values(self, number: int = 0) -> bytes:
        """Return the visible bytes of a partition."""
        partition = self.partition(number)
        return self._bytes(partition, partition.sight.visible_end)

    def raw(self, number: int = 0) -> bytes:
        """Return all durable bytes of a partition."""
        partition = self.partition(number)
        return self._bytes(partition, partition.high_watermark)

    def _bytes(self, partition: Partition, end: int) -> bytes:
        found, offset = b"", partition.log_start_offset
        while offset < end:
            part = partition.reader.read_raw(offset, 1 << 20, end)
            offset = list(iter_headers(part))[-1][1].next_offset
            found += part
        return found


class _Identity:
    """Defers to the driver, which is built after those who need an identity."""

    def __init__(self, site: Site) -> None:
        self._site = site

    def hello(self) -> Hello:
        """Return the greeting of the driver."""
        return self._site.driver.hello()

    def learn(self, hello: Hello) -> None:
        """Hand it to the driver."""
        self._site.driver.learn(hello)


class Pair:
    """Home `eu` and mirror `us`."""

    def __init__(self, folder: Path) -> None:
        """Nothing runs yet."""
        ports = free_ports(4)
        images = [
            RegionImage(
                name=name, ordinal=ordinal, node_id=ordinal + 1, kafka_host="127.0.0.1",
                kafka_port=9092, peer_host="127.0.0.1", peer_port=ports[ordinal],
                http_host="127.0.0.1", http_port=ports[2 + ordinal],
            )
            for ordinal, name in enumerate(("eu", "us"))
        ]  # fmt: skip
        self.eu = Site(images[0], images, folder / "eu")
        self.us = Site(images[1], images, folder / "us")
        self._stack = AsyncExitStack()

    async def __aenter__(self) -> "Pair":
        await self.eu.start()
        await self.us.start()
        await self.eu.until(Phase.ACTING)
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        for site in (self.us, self.eu):
            if site._tasks:
                await site.kill()

    async def reached(self, value: str) -> None:
        """Return once the mirror `us` shows a record whose value is `value`."""
        await self.us.shows(value)

    async def copied(self, topic_id: UUID, end: int) -> None:
        """Return once the mirror `us` holds partition 0 of a topic up to `end`, shown or not."""

        def holds() -> bool:
            log = self.us.table.by_id(topic_id, 0)
            return log is not None and log.high_watermark == end

        await until(holds, "it is copied")

    async def copied_with(self, value: str) -> CopiedFolder:
        """Return a copy of home's folder which holds `value`, which was shown. Home acts on."""
        await self.eu.write(value)
        await self.reached(value)
        await self.eu.kill()
        copy = CopiedFolder(self.eu.folder)
        await self.eu.start()
        await self.eu.until(Phase.ACTING)
        return copy

    async def stop_tidemarks(self) -> None:
        """Let home publish nothing more, once the mirror has reached all that there is."""
        leader = self.eu.tidemarks.cut_leader
        assert leader is not None
        await until(
            lambda: self.us.tidemarks.claim().point == leader.published, "nothing is under way"
        )
        self.eu.ledger.answers.clear()


async def fail_over(site: Site) -> None:
    """Let `site` take over, and return once it has."""
    operation = await site.ended(site.operations.begin_failover(confirmed=True))
    assert operation.status == "succeeded", (operation.error, operation.steps)
