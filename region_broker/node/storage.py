"""What lies on a node's disk: opened before anything is joined, closed after everything has stopped.

INV-NO3  a data folder belongs to one cluster, one region and one process at a time
INV-NO5  what a folder needs at its first start (regions, domain, ledgers) is written before it is used; a start
        that was interrupted is completed by the next one

Not here: what runs on it (`node`).
"""

import asyncio
import fcntl
import logging
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Final, Self

from geo_replicator.reconciliation.sidecar_names import sidecar_path
from idempotency import fencing
from idempotency.ports import Chance, Clock
from region_broker.adapters.takeover.failover_journal import FailoverJournal
from region_broker.adapters.takeover.quarantine_store import QuarantineStore
from region_broker.adapters.tidemarks.reached_store import ReachedFile
from region_broker.adapters.tidemarks.tidemark_service import ledger_topic_id
from region_broker.config import NodeConfig
from region_broker.controller.metadata_commands import (
    CommandRefused,
    CountNodeStart,
    CreateTopic,
    PutDomain,
    PutRegion,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import (
    DEFAULT_DOMAIN,
    LEDGER_CONFIGS,
    OFFSETS_LEDGER,
    TIDEMARK_LEDGER,
    TRANSACTION_LEDGER,
    DomainImage,
    TopicImage,
)
from region_broker.controller.metadata_store import MetadataStore
from region_broker.log.disk import Disk
from region_broker.log.group_commit import GroupCommit
from region_broker.log.log_config import FlushPolicy, NodeLogConfig
from region_broker.ports.network import Network
from region_broker.replication.partition_table import PartitionTable

_log: Final = logging.getLogger("tidemark.node")

_LOCK_FILE: Final = "lock"
_METADATA_FILE: Final = "metadata.db"
_LOGS_FOLDER: Final = "logs"
_QUARANTINE_FOLDER: Final = "quarantine"
_JOURNAL_FILE: Final = "failover.journal"


class NodeRefused(Exception):
    """The node cannot start; the text says why and what to do."""


@dataclass(frozen=True, slots=True)
class Ports:
    """The four ports."""

    clock: Clock
    chance: Chance
    disk: Disk
    network: Network


@dataclass(slots=True)
class Storage:
    """Everything on disk, opened."""

    lock: IO[bytes]
    metadata: MetadataStore
    group_commit: GroupCommit
    partitions: PartitionTable
    quarantine: QuarantineStore
    reached: ReachedFile
    journal: FailoverJournal

    @classmethod
    async def open(cls, config: NodeConfig, ports: Ports) -> Self:
        """Open the folder of `config`, creating what is missing.

        Raises `NodeRefused`, `MetadataUnreadable`, `NewerFormat`, `OSError`.
        """
        folder = Path(config.data_dir)
        ports.disk.make_dirs(folder)
        lock = _lock(folder)
        try:
            metadata = await _open_metadata(config, folder)
        except BaseException:
            lock.close()
            raise
        try:
            log_config = NodeLogConfig(
                flush_policy=FlushPolicy(config.flush_policy),
                flush_interval_ms=config.flush_interval_ms,
                cached_tail_bytes=config.cached_tail_bytes,
            )
            group_commit = GroupCommit(log_config, ports.clock, on_sealed=_write_digest)
            partitions = PartitionTable(
                ports.disk, folder / _LOGS_FOLDER, ports.clock, log_config, group_commit
            )
            for topic in metadata.image.topics.values():
                partitions.open_topic(topic)
            partitions.finish_drops()
            return cls(
                lock=lock,
                metadata=metadata,
                group_commit=group_commit,
                partitions=partitions,
                quarantine=QuarantineStore(ports.disk, folder / _QUARANTINE_FOLDER),
                reached=ReachedFile.open(ports.disk, folder),
                journal=FailoverJournal(ports.disk, folder / _JOURNAL_FILE),
            )
        except BaseException:
            await metadata.close()
            lock.close()
            raise

    async def complete_digests(self) -> None:
        """Write the sidecars of sealed segments that a crash prevented; a damaged one is logged."""
        for path in self.partitions.sealed_paths():
            if sidecar_path(path).exists():
                continue
            try:
                await asyncio.to_thread(_write_digest, path)
            except OSError as error:
                _log.warning("no digest was written for %s: %s", path, error)

    async def close(self) -> None:
        """Close cleanly; nothing runs on it any more. What one part raises keeps no other one open."""
        async with AsyncExitStack() as last_first:
            last_first.callback(self.lock.close)
            last_first.push_async_callback(self.metadata.close)
            last_first.callback(self.journal.close)
            last_first.callback(self.group_commit.close)
            last_first.callback(self.partitions.close)


def _lock(folder: Path) -> IO[bytes]:
    file = (folder / _LOCK_FILE).open("ab")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        file.close()
        raise NodeRefused(
            f"{folder} is in use by another running node: stop it, or give this one another data_dir"
        ) from error
    return file


async def _open_metadata(config: NodeConfig, folder: Path) -> MetadataStore:
    store = await MetadataStore.open(folder / _METADATA_FILE, new_cluster_id=config.cluster_id)
    try:
        await _prepare(store, config, folder)
    except CommandRefused as error:
        await store.close()
        raise NodeRefused(f"{folder} contradicts the configuration: {error.reason}") from error
    except BaseException:
        await store.close()
        raise
    return store


async def _prepare(store: MetadataStore, config: NodeConfig, folder: Path) -> None:
    if store.image.cluster_id != config.cluster_id:
        raise NodeRefused(
            f"{folder} belongs to cluster {store.image.cluster_id}, the configuration names"
            f" {config.cluster_id}: give this node its own data_dir, or the right cluster_id"
        )
    for region in config.regions:
        if store.image.regions.get(region.name) != region.image():
            await store.apply(PutRegion(region.image()))
    if DEFAULT_DOMAIN not in store.image.domains:
        home = next(region for region in config.regions if region.name == config.home_region)
        first = fencing.region_epoch(fencing.FIRST_REGION_NUMBER, home.ordinal)
        domain = DomainImage(
            name=DEFAULT_DOMAIN,
            acting_region=home.name,
            region_epoch=int(first),
            shard_count=config.shard_count,
        )
        await store.apply(PutDomain(domain))
    shard_count = store.image.main_domain.shard_count
    if shard_count != config.shard_count:
        raise NodeRefused(
            f"this domain has {shard_count} ledger shards for life; the configuration says"
            f" shard_count = {config.shard_count}"
        )
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
            await store.apply(CreateTopic(topic))
        elif present.configs != configs:  # a folder that another version wrote
            await store.apply(SetTopicConfigs(present.topic_id, configs))
    await store.apply(CountNodeStart())


def _write_digest(segment_path: Path) -> None:
    """Write the digest sidecar of a sealed segment (called in a thread); raises OSError."""
    from geo_replicator.reconciliation.sidecar import (  # noqa: PLC0415 -- numpy: 14 MB and 0.2 s
        write_sidecar,
    )

    write_sidecar(segment_path)
