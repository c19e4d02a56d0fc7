"""What lies on a node's disk: opened before anything is joined, closed after everything has stopped.

A data folder belongs to one cluster, one region and one process at a time. A folder is opened only by the region, node
and cluster that its identity names; each start adds an incarnation to it before anything else is written (T36). What a
folder needs at its first start (regions, domain, ledgers) is written before it is used; a start that was interrupted is
completed by the next one.

INV-STG1  a member of a quorum goes on answering while its logs are opened: that is done in a thread. Whoever joins the parts then takes
          in what the metadata have changed meanwhile (`opened_for`), in the step in which it begins to hear of changes
          1. Three nodes start at once, each with a thousand logs to read and to sync. 2. One of them leads the quorum, and hears nobody
          for seconds. 3. The others elect another one, which opens its logs. 4. All are fenced in turn, and nobody leads the region.

Not here: what runs on it (`node`).
"""

import asyncio
import fcntl
import logging
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final, Self
from uuid import UUID

import msgspec

from geo_replicator.folder_life import FolderIdentity, birth_of_older_folder
from geo_replicator.reconciliation.segments.sidecar_names import sidecar_path
from idempotency import fencing
from region_broker.config.changeable import Counting, counting
from region_broker.config.node_config import NodeConfig
from region_broker.config.rules import Problem
from region_broker.controller.feature_levels import SUPPORTED
from region_broker.controller.image_database import MetadataUnreadable
from region_broker.controller.metadata_commands import (
    CommandRefused,
    CountNodeStart,
    CreateTopic,
    PutRegion,
    SetTopicConfigs,
    apply,
    birth_of,
)
from region_broker.controller.metadata_image import (
    ALL_NODES,
    DEFAULT_DOMAIN,
    LEDGER_CONFIGS,
    NO_REGION_EPOCH,
    OFFSETS_LEDGER,
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    DomainImage,
    MetadataImage,
    TopicImage,
)
from region_broker.controller.metadata_store import (
    Cluster,
    Life,
    MetadataStore,
    incarnation_of,
    region_in_log,
)
from region_broker.controller.raft.entries import Member
from region_broker.log.failures import LogDamaged, NewerFormat
from region_broker.log.folder_format import FORMAT_NAME
from region_broker.log.group_commit import GroupCommit
from region_broker.node.log_settings import KeysRefused, log_settings, sealing_of
from region_broker.node.node_ports import NodeRefused, Ports
from region_broker.partitions.table import PartitionTable
from region_broker.ports.disk import Disk, Lock
from region_broker.ports.unbroken import to_its_end
from region_broker.region.failover.journal import FailoverJournal, JournalDamaged
from region_broker.region.failover.quarantine_store import QuarantineStore
from region_broker.region.folder.identity_file import (
    FolderRecord,
    IdentityDamaged,
    read_identity,
    write_identity,
)
from region_broker.region.folder.newborn import first_region_epoch, new_identity
from region_broker.region.folder.wholeness import Parts, what_is_wrong
from region_broker.region.tidemarks.reached_store import ReachedFile
from region_broker.region.tidemarks.retention_hold import RetentionHold
from region_broker.region.tidemarks.service import ledger_topic_id

_log: Final = logging.getLogger("tidemark.node")

LOCK_FILE: Final = "lock"
METADATA_FILE: Final = "metadata.db"
_LOGS_FOLDER: Final = "logs"
_QUARANTINE_FOLDER: Final = "quarantine"
_JOURNAL_FILE: Final = "failover.journal"


START_REFUSALS: Final = (
    NodeRefused, IdentityDamaged, MetadataUnreadable, NewerFormat, LogDamaged, JournalDamaged, KeysRefused,
)  # fmt: skip
"""What an opening raises where the folder may not be used as it is: each says in its text why, and what to do."""


@dataclass(slots=True)
class Begun:
    """A life of a folder that has begun: locked, with one more start in its identity, its metadata open."""

    folder: Path
    lock: Lock
    identity: FolderIdentity
    metadata: MetadataStore
    member: Member

    @classmethod
    async def open(
        cls, config: NodeConfig, ports: Ports, cluster_of: "ClusterOf | None" = None,
        *, levels: range = SUPPORTED,
    ) -> Self:  # fmt: skip
        """Begin; `cluster_of`: how this member reaches the others of its region, None where it is the only node.

        `levels`: the feature levels that the code knows.

        Raises what is in `START_REFUSALS`, and `OSError`.
        """
        folder = Path(config.data_dir)
        ports.disk.make_dirs(folder)
        lock = lock_folder(folder, ports.disk)
        try:
            identity, metadata, member = await _open_identified(
                config, folder, ports, cluster_of, levels
            )
        except BaseException:
            lock.close()
            raise
        return cls(folder, lock, identity, metadata, member)

    def contradicts(self, error: CommandRefused) -> NodeRefused:
        """Return what to raise where the metadata refuse what the configuration says."""
        return NodeRefused(f"{self.folder} contradicts the configuration: {error.reason}")

    async def close(self) -> None:
        """Give it up."""
        await self.metadata.close()
        self.lock.close()


ClusterOf = Callable[[Member, FolderIdentity], Cluster]


@dataclass(slots=True)
class Storage:
    """Everything on disk, opened."""

    disk: Disk
    lock: Lock
    folder: FolderRecord
    metadata: MetadataStore
    group_commit: GroupCommit
    partitions: PartitionTable
    quarantine: QuarantineStore
    reached: ReachedFile
    hold: RetentionHold
    journal: FailoverJournal
    opened_for: MetadataImage
    """The metadata whose topics were opened."""

    @classmethod
    async def open(cls, config: NodeConfig, ports: Ports, levels: range = SUPPORTED) -> Self:
        """Open the folder of `config`, creating what is missing; `levels`: the feature levels that the code knows.

        Raises what is in `START_REFUSALS`, and `OSError`.
        """
        begun = await Begun.open(config, ports, levels=levels)
        try:
            await prepare(begun, config)
            await begun.metadata.apply(CountNodeStart())
            return cls.finish(begun, config, ports)
        except CommandRefused as error:
            await begun.close()
            raise begun.contradicts(error) from error
        except BaseException:
            await begun.close()
            raise

    @classmethod
    async def finish_aside(cls, begun: "Begun", config: NodeConfig, ports: Ports) -> Self:
        """As `finish`, in a thread (INV-STG1); where this is cancelled, behind its end: until then the folder is in use.

        Logs that were opened for nobody are left as a process leaves them that is killed.
        """
        return await to_its_end(asyncio.to_thread(cls.finish, begun, config, ports))

    @classmethod
    def finish(cls, begun: "Begun", config: NodeConfig, ports: Ports) -> Self:
        """Open the logs, and all else that lies beside the metadata; raises as `open`, and closes nothing then."""
        folder, metadata = begun.folder, begun.metadata
        image = metadata.image
        present = counting_of(config, image).config
        log_config = log_settings(config, present)
        group_commit = GroupCommit(
            log_config, ports.clock, on_sealed=partial(_write_digest, ports.disk)
        )
        partitions = PartitionTable(
            ports.disk, folder / _LOGS_FOLDER, ports.clock, log_config, group_commit,
            sealing_of(config, ports.disk, ports.clock),
        )  # fmt: skip
        for topic in image.topics.values():
            partitions.open_topic(topic.as_kept)
        partitions.finish_drops()
        return cls(
            disk=ports.disk,
            lock=begun.lock,
            folder=FolderRecord(ports.disk, folder, begun.identity),
            metadata=metadata,
            group_commit=group_commit,
            partitions=partitions,
            quarantine=QuarantineStore(ports.disk, folder / _QUARANTINE_FOLDER),
            reached=ReachedFile.open(ports.disk, folder),
            hold=RetentionHold.open(
                ports.disk,
                folder,
                ports.clock,
                [known.name for known in config.regions if known.name != config.region],
            ),
            journal=FailoverJournal(ports.disk, folder / _JOURNAL_FILE),
            opened_for=image,
        )

    async def complete_digests(self) -> None:
        """Write the sidecars of sealed segments that a crash prevented; a damaged one is logged."""
        for path in self.partitions.sealed_paths():
            if self.disk.exists(sidecar_path(path)):
                continue
            try:
                await asyncio.to_thread(_write_digest, self.disk, path)
            except OSError as error:
                _log.warning("no digest was written for %s: %s", path, error)

    async def close(self) -> None:
        """Close cleanly; nothing runs on it any more. What one part raises keeps no other one open."""
        async with AsyncExitStack() as last_first:
            last_first.callback(self.lock.close)
            last_first.callback(self.metadata.audit.close)
            last_first.push_async_callback(self.metadata.close)
            last_first.callback(self.journal.close)
            last_first.callback(self.group_commit.close)
            last_first.callback(self.partitions.close)


def counting_of(config: NodeConfig, image: MetadataImage) -> Counting:
    """Return the configuration that counts for a node with that file: what a start deletes must not go by the file alone."""
    own, common = (
        image.node_configs.get(each, {}) for each in (config.own_node.node_id, ALL_NODES)
    )
    return counting(config, own, common)


def lock_folder(folder: Path, disk: Disk) -> Lock:
    """Keep every other process out of `folder` while it is held; raises `NodeRefused`, `OSError`."""
    try:
        return disk.lock(folder / LOCK_FILE)
    except BlockingIOError as error:
        raise NodeRefused(
            f"{folder} is in use by another running node: stop it, or give this one another data_dir"
        ) from error


def is_in_use(folder: Path) -> bool:
    """Return whether another process keeps `folder` locked, and change nothing; raises OSError."""
    path = folder / LOCK_FILE
    if not path.is_file():
        return False
    with path.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


async def _open_identified(
    config: NodeConfig, folder: Path, ports: Ports, cluster_of: ClusterOf | None, levels: range
) -> tuple[FolderIdentity, MetadataStore, Member]:
    """Begin a life of the folder: its identity with one more start, then the metadata."""
    found = read_identity(ports.disk, folder)
    if found is not None:
        check_owner(found, config, folder)
    if not ports.disk.exists(folder / METADATA_FILE):
        _check_whole(folder, found, None, ports.disk)
    identity = found or _new_identity(config, folder, ports)
    member = Member(config.own_node.node_id, UUID(hex=identity.folder_id))
    store = await MetadataStore.open(
        folder / METADATA_FILE,
        Life(member, ports.disk, ports.clock, ports.chance, levels),
        new_cluster_id=config.cluster_id,
        connect=ports.connect_sqlite,
        cluster=None if cluster_of is None else cluster_of(member, identity),
    )
    try:
        image = store.image
        if cluster_of is not None and found is not None:
            # It has only seen the snapshot that its log begins with. A folder that has lost its identity is judged by that alone: what the log
            # says beyond it is no proof that this folder is whole.
            image = region_in_log(folder / METADATA_FILE, ports.disk) or image
        _check_contradictions(image, config)
        _check_whole(folder, found, image, ports.disk)
        if found is None:
            identity = _with_older_history(identity, image)
        started = identity.chain.with_start(ports.chance.uuid().hex)
        identity = msgspec.structs.replace(
            identity, chain=started, starts_counted=image.node_start_count
        )
        write_identity(ports.disk, folder, identity)
    except BaseException:
        await store.close()
        raise
    return identity, store, member


def _new_identity(config: NodeConfig, folder: Path, ports: Ports) -> FolderIdentity:
    """Return the identity of a folder that has none: what a start began that ended before it was written has its id already."""
    identity = new_identity(config.cluster_id, config.region, config.own_node.node_id, ports.chance)
    begun = incarnation_of(folder / METADATA_FILE, ports.disk)
    return identity if begun is None else msgspec.structs.replace(identity, folder_id=begun.hex)


def check_owner(identity: FolderIdentity, config: NodeConfig, folder: Path) -> None:
    """Refuse a folder of another cluster, region or node, or one known to be an older copy; raises `NodeRefused`."""
    _check_cluster(identity.cluster_id, config, folder)
    if identity.region != config.region:
        raise NodeRefused(
            f"{folder} holds the data of region {identity.region}, the configuration is that of region"
            f" {config.region}: give this node the data_dir of its own region. An empty one will do: it joins the"
            " region that acts and copies all from there"
        )
    if identity.node_id != config.own_node.node_id:
        raise NodeRefused(
            f"{folder} belongs to node {identity.node_id} of region {identity.region}, the configuration says"
            f" node_id = {config.own_node.node_id}: give this node its own data_dir, or the node_id that it had"
        )
    if identity.outdated:
        raise NodeRefused(older_copy(folder, identity))


def older_copy(folder: Path, identity: FolderIdentity) -> str:
    """Return what is said of a folder that the other nodes of its region know a later start of (INV-MN7)."""
    return (
        f"{folder} is an older copy of the folder of node {identity.node_id}: region {identity.region} knows a later start of it, so"
        " records and votes are missing in it that others count on. Give the newest one back, where it is still there; else move this"
        " one away and start the node with an empty data_dir: it joins as a new member, and copies everything. If nobody leads then,"
        " tidemark cluster unclean-elect lets another node lead, which may lose records"
    )


def _check_cluster(cluster_id: str, config: NodeConfig, folder: Path) -> None:
    if cluster_id != config.cluster_id:
        raise NodeRefused(
            f"{folder} belongs to cluster {cluster_id}, the configuration names"
            f" {config.cluster_id}: give this node its own data_dir, or the right cluster_id"
        )


def _has_history(image: MetadataImage) -> bool:
    domain = image.domains.get(DEFAULT_DOMAIN)
    return domain is not None and domain.region_epoch != NO_REGION_EPOCH


def _check_whole(
    folder: Path, identity: FolderIdentity | None, image: MetadataImage | None, disk: Disk
) -> None:
    problem = part_missing(folder, identity, image, disk)
    if problem is not None:
        raise NodeRefused(problem)


def part_missing(
    folder: Path, identity: FolderIdentity | None, image: MetadataImage | None, disk: Disk
) -> str | None:
    """Return what part of the folder is gone or another's (T36), None if it is whole; raises `JournalDamaged`."""
    parts = Parts(
        metadata=image is not None,
        metadata_history=image is not None and _has_history(image),
        metadata_starts=image.node_start_count if image is not None else 0,
        journal=FailoverJournal(disk, folder / _JOURNAL_FILE).peek(),
        logs=disk.exists(folder / _LOGS_FOLDER / FORMAT_NAME),
    )
    return what_is_wrong(folder, identity, parts)


def _check_contradictions(image: MetadataImage, config: NodeConfig) -> None:
    if problems := contradictions(image, config):
        raise NodeRefused("; ".join(map(str, problems)))


def contradictions(image: MetadataImage, config: NodeConfig) -> list[Problem]:
    """Return where the configuration contradicts what the folder knows for life."""
    where, problems = f"data_dir = {config.data_dir!r}", []
    if image.cluster_id != config.cluster_id:
        return [
            Problem(
                f"cluster_id = {config.cluster_id!r}",
                f"is not that of {where}, which belongs to cluster {image.cluster_id!r}",
                "give this node its own data_dir, or the right cluster_id",
            )
        ]
    for at, region in enumerate(config.regions):
        try:
            image = apply(image, PutRegion(region.image()))
        except CommandRefused as error:
            problems.append(
                Problem(
                    f"regions[{at}].ordinal = {region.ordinal}",
                    f"contradicts {where}",
                    error.reason,
                )
            )
    domain = image.domains.get(DEFAULT_DOMAIN)
    if domain is not None and domain.shard_count != config.shard_count:
        problems.append(
            Problem(
                f"shard_count = {config.shard_count}",
                f"contradicts {where}",
                f"this domain has {domain.shard_count} ledger shards for life: shard_count = {domain.shard_count}",
            )
        )
    return problems


def _with_older_history(identity: FolderIdentity, image: MetadataImage) -> FolderIdentity:
    """Return the identity of a folder that was written before folders had one: its history is its cluster's."""
    if not _has_history(image):
        return identity
    domain = image.main_domain
    epoch, ordinals = domain.region_epoch, {r.name: r.ordinal for r in image.regions.values()}
    if domain.lineage:
        # The first takeover may have come before any tidemark; it did not come from the region that took over.
        primaries = [name for name in ordinals if name != domain.lineage[0].acting_region]
        first = first_region_epoch(ordinals[primaries[0]]) if primaries else epoch
        epoch = domain.lineage[0].base_region_epoch or first
    ordinal = fencing.region_ordinal_of(epoch)
    region = next((name for name in ordinals if ordinals[name] == ordinal), identity.region)
    history = birth_of_older_folder(identity.cluster_id, region, epoch)
    _log.info("the folder was written before folders had an identity: it gets one")
    if region == identity.region:
        return msgspec.structs.replace(identity, born=history)
    return msgspec.structs.replace(identity, joined=history)


async def prepare(begun: Begun, config: NodeConfig) -> None:
    """Write what the metadata need at a first start: regions, domain, ledgers. Raises `CommandRefused`, `MetadataUnwritable`."""
    store, history = begun.metadata, begun.identity.history
    for region in config.regions:
        if store.image.regions.get(region.name) != region.image():
            await store.apply(PutRegion(region.image()))
    domain = store.image.domains.get(DEFAULT_DOMAIN)
    if domain is None or (domain.region_epoch == NO_REGION_EPOCH and history is not None):
        # T32: who acts first is what the birth says. Without one nobody does, whatever the configuration says.
        epoch = NO_REGION_EPOCH if history is None else history.region_epoch
        first = DomainImage(
            name=DEFAULT_DOMAIN,
            acting_region=history.region if history is not None else "",
            region_epoch=epoch,
            shard_count=config.shard_count,
        )
        await store.apply(birth_of(store.image, first))
    shard_count = store.image.main_domain.shard_count
    for name, count in (
        (TRANSACTION_LEDGER, shard_count),
        (OFFSETS_LEDGER, shard_count),
        (TIDEMARK_LEDGER, 1),
    ):
        configs = dict(LEDGER_CONFIGS.get(name, {}))
        present = store.image.topics.get(name)
        if present is None:
            topic = TopicImage(
                topic_id=ledger_topic_id(config.cluster_id, name),
                name=name,
                partition_count=count,
                internal=True,
                configs=configs,
            )
            await _create_ledger(store, topic)
        elif present.configs != configs:  # a folder that another version wrote
            await store.apply(SetTopicConfigs(present.topic_id, configs))


async def _create_ledger(store: MetadataStore, topic: TopicImage) -> None:
    """Create it, unless another node of the region has meanwhile."""
    try:
        await store.apply(CreateTopic(topic))
    except CommandRefused:
        if store.image.topic_by_id(topic.topic_id) is None:
            raise


def _write_digest(disk: Disk, segment_path: Path) -> None:
    """Write the digest sidecar of a sealed segment (called in a thread); raises OSError."""
    from geo_replicator.reconciliation.segments.sidecar import (  # noqa: PLC0415 -- numpy: 14 MB and 0.2 s
        write_sidecar,
    )

    write_sidecar(segment_path, disk)
