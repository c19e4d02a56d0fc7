"""Two regions in one process over loopback and real files: real logs, links, rounds and coordinator.

Played here: the metadata store (the real commands on an image in memory), and failover's identity and
quarantine.
"""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from geo_replicator.effects import Diverged
from geo_replicator.lineage import Lineage
from geo_replicator.link.driver import Link
from idempotency.identity import TopicName, TopicPartition
from idempotency.record_batch import iter_headers
from region_broker.controller import metadata_commands
from region_broker.controller.metadata_commands import Command, CreateTopic
from region_broker.controller.metadata_image import (
    INTERNAL_TOPICS,
    LEDGER_CONFIGS,
    TIDEMARK_LEDGER,
    DomainImage,
    MetadataImage,
    RegionImage,
    TopicImage,
)
from region_broker.ledgers.id_blocks import DrawnIdBlocks
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.ledgers.txn_log import PartitionTransactionLog
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import NodeLogConfig
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.ports.system.chance import SystemChance
from region_broker.ports.system.clock import SystemClock
from region_broker.ports.system.disk import RealDisk
from region_broker.ports.system.network import AsyncioNetwork
from region_broker.region.mirror.link_source import LinkSource
from region_broker.region.peers.protocol import Hello
from region_broker.region.peers.server import PeerServer
from region_broker.region.ports import Term
from region_broker.region.tidemarks.cut_leader import CutLeader
from region_broker.region.tidemarks.reached_store import ReachedFile
from region_broker.region.tidemarks.service import (
    TidemarkParts,
    TidemarkService,
    ledger_topic_id,
)
from region_broker.wire.batches import Record, build_batch, iter_records
from txn_coordinator.driver import TransactionCoordinator

CLUSTER_ID = "test-cluster"
SHARD_COUNT = 2
REGION_EPOCH = 8


class PlayedMetadata:
    """The metadata commands on an image in memory."""

    def __init__(self, image: MetadataImage) -> None:
        self.image = image

    async def apply(self, command: Command) -> MetadataImage:
        self.image = metadata_commands.apply(self.image, command)
        return self.image


@dataclass
class PlayedIdentity:
    """A region that acts, or follows `home`."""

    region: str
    acting_region: str = "home"
    region_epoch: int = REGION_EPOCH
    cluster_id: str = CLUSTER_ID
    heard: list[Hello] = field(default_factory=list)

    def hello(self) -> Hello:
        return Hello(
            cluster_id=self.cluster_id,
            region=self.region,
            node_id=1,
            region_epoch=self.region_epoch,
            acting_region=self.acting_region,
        )

    def learn(self, hello: Hello) -> None:
        self.heard.append(hello)


class PlayedQuarantine:
    """Cuts diverged logs without keeping their tails; notes what it was given."""

    def __init__(self, partitions: PartitionTable) -> None:
        self._partitions = partitions
        self.seen: list[Diverged] = []

    async def diverged(self, divergences: Sequence[Diverged]) -> None:
        for diverged in divergences:
            self.seen.append(diverged)
            partition = self._partitions.by_id(diverged.key.topic_id, diverged.key.partition)
            assert partition is not None
            own_end = partition.epoch_end_offset(diverged.home_leader_epoch)[1]
            partition.truncate_to(min(own_end, diverged.home_end_offset))


def first_image() -> MetadataImage:
    """Return what every region knows before its first topic."""
    regions = {
        name: RegionImage(
            name=name,
            ordinal=ordinal,
            node_id=ordinal + 1,
            kafka_host="127.0.0.1",
            kafka_port=0,
            peer_host="127.0.0.1",
            peer_port=0,
            http_host="127.0.0.1",
            http_port=0,
        )
        for ordinal, name in enumerate(("home", "mirror"))
    }
    domain = DomainImage(
        name="main", acting_region="home", region_epoch=REGION_EPOCH, shard_count=SHARD_COUNT
    )
    return MetadataImage(
        version=0, cluster_id=CLUSTER_ID, regions=regions, domains={"main": domain}
    )


class Site:
    """One region's node, as far as links and tidemarks go. One object per life."""

    def __init__(
        self,
        folder: Path,
        region: str,
        *,
        metadata: PlayedMetadata | None = None,
        start_count: int = 1,
    ) -> None:
        self.folder, self.region, self.start_count = folder, region, start_count
        self.clock = SystemClock()
        self.network = AsyncioNetwork()
        self.metadata = metadata or PlayedMetadata(first_image())
        config = NodeLogConfig()
        self.group_commit = GroupCommit(config, self.clock)
        folder.mkdir(parents=True, exist_ok=True)
        self.partitions = PartitionTable(
            RealDisk(), folder / "log", self.clock, config, self.group_commit
        )
        for topic in self.metadata.image.topics.values():
            self.partitions.open_topic(topic)
        self.identity = PlayedIdentity(region)
        self.server = PeerServer(self.network, self.identity)
        self.source = LinkSource(self.partitions, self.metadata, self.identity, self.clock)
        self.source.register(self.server)
        self.quarantine = PlayedQuarantine(self.partitions)
        self.coordinator = TransactionCoordinator(
            ledger=PartitionTransactionLog(self.partitions, self.clock, SHARD_COUNT),
            markers=PartitionMarkerChannel(
                self.partitions,
                self.clock,
                image=lambda: self.metadata.image,
                on_offsets_marker=lambda _shard, _producer_id, _commit: None,
            ),
            id_blocks=DrawnIdBlocks(SystemChance(), 0),
            clock=self.clock,
        )
        self.tidemarks = TidemarkService(
            TidemarkParts(
                region=region,
                ordinal=0 if region == "home" else 1,
                network=self.network,
                identity=self.identity,
                metadata=self.metadata,
                partitions=self.partitions,
                rounds=self.coordinator.rounds,
                source=self.source,
                reached=ReachedFile.open(RealDisk(), folder),
                divergence=self.quarantine,
                lineage=Lineage,
                clock=self.clock,
                chance=SystemChance(),
                interval_ms=5,
            )
        )
        self.cut_leader: CutLeader | None = None
        self.ledger_configs: dict[str, str] = {}
        """Of all ledgers, over what they have by themselves; set before `act`."""

    @property
    def term(self) -> Term:
        """The term of this life."""
        return Term(REGION_EPOCH, REGION_EPOCH << 16 | self.start_count, "home")

    def start(self, tasks: asyncio.TaskGroup) -> None:
        """Start what every node runs."""
        tasks.create_task(self.group_commit.run())

    async def act(self, tasks: asyncio.TaskGroup) -> CutLeader:
        """Take the acting role."""
        if not self.metadata.image.topics:
            for name in INTERNAL_TOPICS:
                count = 1 if name == TIDEMARK_LEDGER else SHARD_COUNT
                configs = dict(LEDGER_CONFIGS.get(name, {})) | self.ledger_configs
                await self.create_topic(name, count, internal=True, configs=configs)
        for partition in self.partitions:
            partition.become_leader(self.term.leader_epoch)
        tasks.create_task(self.coordinator.run())
        await asyncio.sleep(0)
        await self.coordinator.load(self.term.leader_epoch, REGION_EPOCH)
        self.cut_leader = self.tidemarks.open_cut_leader(self.term)
        tasks.create_task(self.cut_leader.run())
        return self.cut_leader

    async def listen(self, port: int = 0) -> int:
        """Serve peers; return the port."""
        listener = await self.server.start("127.0.0.1", port)
        return listener.port

    def mirror(self, tasks: asyncio.TaskGroup, home_port: int) -> "asyncio.Task[None]":
        """Follow home; return the link's task."""
        self.point_at(home_port)
        for partition in self.partitions:
            partition.become_mirror()
        return tasks.create_task(self.tidemarks.open_link(self.term).run())

    @property
    def link(self) -> Link:
        """The link that was opened last."""
        link = self.tidemarks.link
        assert link is not None
        return link

    def point_at(self, home_port: int) -> None:
        """Note where home's peer listener is."""
        image = self.metadata.image
        home = msgspec.structs.replace(image.regions["home"], peer_port=home_port)
        regions = {**image.regions, "home": home}
        self.metadata.image = msgspec.structs.replace(image, regions=regions)

    async def create_topic(
        self,
        name: str,
        count: int = 1,
        *,
        internal: bool = False,
        configs: dict[str, str] | None = None,
    ) -> TopicImage:
        """Create a topic at home."""
        topic = TopicImage(
            topic_id=ledger_topic_id(CLUSTER_ID, name) if internal else SystemChance().uuid(),
            name=name,
            partition_count=count,
            internal=internal,
            configs=configs or {},
        )
        await self.metadata.apply(CreateTopic(topic))
        for partition in self.partitions.open_topic(topic):
            partition.become_leader(self.term.leader_epoch)
        self.tidemarks.notice_topics()
        return topic

    async def delete_topic(self, topic: TopicImage) -> None:
        """Delete a topic at home."""
        await self.metadata.apply(metadata_commands.DeleteTopic(topic.topic_id))
        self.partitions.drop_topic(topic.topic_id)
        self.tidemarks.notice_topics()

    def partition(self, name: str, number: int = 0) -> Partition:
        """Return an open partition."""
        found = self.partitions.get(name, number)
        assert found is not None, (name, number)
        return found

    async def produce(self, name: str, *values: bytes, number: int = 0) -> int:
        """Append a plain batch; return its base offset once it is below HW."""
        batch = build_batch([Record(None, value, timestamp_ms=1) for value in values])
        outcome = self.partition(name, number).writer.append(batch)
        assert outcome.verdict is AppendVerdict.APPENDED, outcome
        await self.partition(name, number).wait_committed(outcome.next_offset)
        return outcome.base_offset


@asynccontextmanager
async def running() -> AsyncIterator[asyncio.TaskGroup]:
    """A task group that is cancelled at the end."""
    async with asyncio.TaskGroup() as tasks:
        yield tasks
        stopping = tasks.create_task(asyncio.sleep(0))
        await stopping
        for task in asyncio.all_tasks():
            if task is not asyncio.current_task():
                task.cancel()


@asynccontextmanager
async def home_and_mirror(
    folder: Path, *, ledger_configs: Mapping[str, str] | None = None
) -> AsyncIterator[tuple[Site, Site, CutLeader, asyncio.TaskGroup]]:
    """Home that acts, a mirror that runs and follows nobody yet, home's cut leader, and their tasks, until the end."""
    home, mirror = Site(folder / "h", "home"), Site(folder / "m", "mirror")
    home.ledger_configs = dict(ledger_configs or {})
    async with running() as tasks:
        home.start(tasks)
        mirror.start(tasks)
        yield home, mirror, await home.act(tasks), tasks
        home.server.close()


def values_in(partition: Partition, end: int) -> list[bytes]:
    """Return the values of all data records below `end`."""
    values = []
    position = 0
    while position < end:
        data = partition.reader.read_raw(position, 1 << 20, end)
        for start, header in iter_headers(data):
            position = header.next_offset
            if not header.is_control:
                values += [record.value or b"" for record in iter_records(data[start:])]
    return values


def tp(name: str, number: int = 0) -> TopicPartition:
    """Return a topic partition."""
    return TopicPartition(TopicName(name), number)
