"""All partitions of this node, in one folder.

INV-T2  a partition lives in `<topic id, 32 hex digits>/<partition>`: a topic that was deleted and created again is
        another topic
INV-T3  a partition that cannot be opened is there, failed, with the reason; the others go on
INV-T5  a drop that a crash or the disk interrupted is finished by the next start, or before; a folder that no topic has
        and that no deletion was begun of is left
The journal is replayed before any partition is opened.

    <data_dir>/format                        "tidemark-log 2"
    <data_dir>/journal                       small appends of all partitions, synced before they are acknowledged
    <data_dir>/manifest                      which partitions were made: one that is gone is missed
    <data_dir>/<topic id>/topic.json         name and id, for people and offline tools
    <data_dir>/<topic id>/<partition>/       checkpoint, leader-epochs, log-start,
                                             <base>.{log,index,txnindex,snapshot,bookmark}
    <data_dir>/<topic id>/<partition>.damaged  a log that was put aside, `.1.damaged` the next one
    <data_dir>/<topic id>.deleted            a topic on its way out (`log.recovery.removal`)
    <data_dir>/<topic id>.kept               a deleted topic, kept for a while (`log.recovery.kept_deletions`)

Not here: which partitions were made, and are missed (`made_partitions`), the format (`log.folder_format`), which topics there
are (`controller.metadata_store`), roles (the node tells each partition).
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final
from uuid import UUID

from idempotency.identity import TopicName, TopicPartition
from idempotency.ports import Clock
from region_broker.log.cold_reads import ColdReads
from region_broker.log.failures import LogDamaged, UnsupportedConfig
from region_broker.log.folder_format import check_format
from region_broker.log.group_commit import GroupCommit
from region_broker.log.indexes.log_start import LogStart
from region_broker.log.journal.replay import open_journal
from region_broker.log.log_config import (
    FlushPolicy,
    LogConfig,
    NodeLogConfig,
    topic_log_config,
)
from region_broker.log.log_setup import LogListener, LogSetup
from region_broker.log.partition_log import PartitionLog
from region_broker.log.recovery.kept_deletions import DeletionNote, KeptDeletions
from region_broker.log.recovery.removal import Removal
from region_broker.log.recovery_checkpoints import RecoveryCheckpoints
from region_broker.log.segment import SealedCache
from region_broker.partitions.disk_room import DiskRoom
from region_broker.partitions.laying_out import LayingOut, TopicSpec
from region_broker.partitions.letting_go import LettingGo
from region_broker.partitions.logs_aside import LogsAside
from region_broker.partitions.made_partitions import MadePartitions
from region_broker.partitions.noted_starts import NotedStarts
from region_broker.partitions.opening_sealed import OpenedAside
from region_broker.partitions.partition import Partition, SharedParts
from region_broker.partitions.producer_room import ProducerRoom
from region_broker.partitions.record_threads import lookup_threads, produce_threads
from region_broker.partitions.topic_file import TopicFiles, told_of
from region_broker.partitions.unreadable_records import UnreadableRecords
from region_broker.partitions.upkeep import Upkeep
from region_broker.ports.disk import Disk
from region_broker.security.sealing.sealing import Sealing, without_keys

logger: Final = logging.getLogger(__name__)

TOPIC_NAME_CHARS: Final = 32
DELETED: Final = "its topic was deleted"
FEWER: Final = "its topic has fewer partitions"
_SYNCED_BY_NODE: Final = ("flush.messages", "flush.ms")


class PartitionTable:
    """Opens, finds, maintains and closes the partitions."""

    def __init__(
        self,
        disk: Disk,
        data_dir: Path,
        clock: Clock,
        config: NodeLogConfig,
        group_commit: GroupCommit,
        sealing: Sealing | None = None,
    ) -> None:
        """Take the folder, creating it if need be; raises NewerFormat, LogDamaged (the journal), OSError."""
        self._disk = disk
        self._data_dir = data_dir
        self._clock = clock
        self._config = config
        self._group_commit = group_commit
        self._cache = SealedCache(disk, config)
        self.recovery_checkpoints = RecoveryCheckpoints()
        self.cold_reads = ColdReads(disk)
        self.sealing = without_keys() if sealing is None else sealing
        self.opened_aside = OpenedAside()
        self.room = DiskRoom(config.disk_free_bytes_min)
        self.producers = ProducerRoom(clock, config.partition_producers_max, config.producers_max)
        self.upkeep = Upkeep(
            partitions=self,
            is_there=lambda partition: self.by_id(*partition.key) is partition,
            clock=clock,
            producers=self.producers,
            producer_expiration_ms=config.producer_id_expiration_ms,
        )
        self.record_threads = produce_threads()
        self._lookup_threads = lookup_threads()
        self.noted_starts = NotedStarts()
        """Log starts that are to be made durable: `run` it for as long as the node runs."""
        self._shared = SharedParts(
            self.cold_reads,
            self.sealing,
            self.opened_aside,
            self.producers,
            self._lookup_threads,
            self.noted_starts,
            UnreadableRecords(clock),
        )
        self._by_name: dict[str, dict[int, Partition]] = {}
        self._by_id: dict[UUID, dict[int, Partition]] = {}
        self._configs: dict[UUID, Mapping[str, str]] = {}
        self._ahead: dict[tuple[UUID, int], Partition] = {}
        """Partitions that are open, and whose topic is still to come (INV-LAY4)."""
        self._topic_files = TopicFiles(disk)
        check_format(disk, data_dir)
        self.kept = KeptDeletions(disk, data_dir, clock, config.deleted_topic_retention_ms)
        self.removal = Removal(disk, self.kept)
        """What is on its way out: `run` it for as long as the node runs."""
        self.removal.sweep(data_dir)
        # Before the journal puts anything into a folder that was emptied.
        self._made = MadePartitions(disk, data_dir, self.folder_of)
        opened = open_journal(disk, data_dir, config.journal_bytes, clock.wall_ms())
        self._journal = opened.journal
        self._refused = opened.refused
        self.letting_go = LettingGo(data_dir, self.removal, self._made, self._refused)
        self.aside = LogsAside(
            self._made, self.removal, self.folder_of, self._begin_again, data_dir
        )
        self.laying_out = LayingOut(
            disk,
            self.folder_of,
            self.letting_go.finish_of,
            lambda topic_id: self.removal.is_free(data_dir / topic_id.hex),
            lambda key: key in self._ahead or self.by_id(*key) is not None,
            lambda: self._journal.mark,
            self._open_ahead,
            self._writing_down,
        )
        """Makes logs ready before `open_topic` opens them."""
        if config.journal_bytes > 0:
            group_commit.use(self._journal)

    def __iter__(self) -> Iterator[Partition]:
        """Yield all partitions, by topic in the order of opening, then by number."""
        for partitions in list(self._by_name.values()):
            yield from list(partitions.values())

    def get(self, name: str, partition: int) -> Partition | None:
        """Return a partition by topic name; None if there is none."""
        partitions = self._by_name.get(name)
        return None if partitions is None else partitions.get(partition)

    def by_id(self, topic_id: UUID, partition: int) -> Partition | None:
        """Return a partition by topic id; None if there is none."""
        partitions = self._by_id.get(topic_id)
        return None if partitions is None else partitions.get(partition)

    def folder_of(self, topic_id: UUID, partition: int) -> Path:
        """Return where a partition's files are."""
        return self._data_dir / topic_id.hex / str(partition)

    @property
    def data_dir(self) -> Path:
        """The folder that all logs are in."""
        return self._data_dir

    def volume_bytes(self) -> tuple[int, int]:
        """Return (size, what is free) of the volume of `data_dir`, in bytes; raises OSError."""
        return self._disk.volume_bytes(self._data_dir)

    def open_topic(self, topic: TopicSpec) -> list[Partition]:
        """Open or create the partitions of a topic that are not open yet; return all of them.

        Folders of partitions beyond its count are opened too: a mirror has them early (T15).
        Raises UnsupportedConfig before anything is created. A partition that fails is among them, failed.
        """
        config = self._log_config(topic)
        other = self._by_name.get(topic.name)
        assert other is None or other is self._by_id.get(topic.topic_id), topic.name
        folder = self._data_dir / topic.topic_id.hex
        partitions = self._by_id.setdefault(topic.topic_id, {})
        self._by_name[topic.name] = partitions
        self._configs[topic.topic_id] = topic.configs
        self._made.miss(topic.topic_id, topic.partition_count, partitions)
        try:
            self._make_folder(folder)
            self._topic_files.write(folder, told_of(topic))
        except OSError as error:
            logger.exception("%s: its description cannot be written", folder)
            for number in range(topic.partition_count):
                if number not in partitions:
                    tp = _tp_of(topic, number)
                    partitions[number] = self._broken(tp, topic.topic_id, config, str(error))
        for number in [*range(topic.partition_count), *self._folders_beyond(topic)]:
            if number not in partitions:
                partitions[number] = self._taken(topic, number, config)
        opened = [number for number, held in partitions.items() if held.log.is_opened]
        self._made.note_made(topic.topic_id, opened)
        return list(partitions.values())

    def _open_ahead(self, topic: TopicSpec, number: int) -> None:
        """Open a partition that `open_topic` then takes; one that fails is left to that (INV-LAY4)."""
        opened = self._open_partition(
            _tp_of(topic, number), topic.topic_id, self._log_config(topic)
        )
        if opened.failed is None:
            self._ahead[topic.topic_id, number] = opened

    def _writing_down(self, topic: TopicSpec) -> Callable[[], None]:
        """Return what says, in a thread, which logs of a topic were opened ahead, and of which topic they are (INV-LAY5)."""
        topic_id, folder = topic.topic_id, self._data_dir / topic.topic_id.hex
        opened = [number for of, number in self._ahead if of == topic_id]

        def work() -> None:
            if opened:
                self._topic_files.write(folder, told_of(topic))
                self._made.note_made(topic_id, opened)

        return work

    def _taken(self, topic: TopicSpec, number: int, config: LogConfig) -> Partition:
        """Return a partition that was opened ahead, or open it now."""
        tp, ahead = _tp_of(topic, number), self._ahead.pop((topic.topic_id, number), None)
        if ahead is not None and ahead.tp == tp:
            ahead.log.reconfigure(config)
            return ahead
        if ahead is not None:
            ahead.close(f"{ahead.tp} has another name by now")
        return self._open_partition(tp, topic.topic_id, config)

    def _begin_again(self, partition: Partition) -> None:
        """Open an empty log in the place of one whose folder is away, under the configs that it has."""
        number, topic_id = partition.tp.partition, partition.topic_id
        assert self._by_id[topic_id][number] is partition, partition.tp
        self._refused.pop((topic_id.bytes, number), None)
        config = partition.log.config
        self._by_id[topic_id][number] = self._open_partition(partition.tp, topic_id, config)

    def lost(self) -> list[str]:
        """Return the names of partitions that were made, and were gone at a start (INV-T6)."""
        keys = [key for key in self._made.lost() if not self.removal.is_going(self.folder_of(*key))]
        found = [(self.by_id(topic_id, number), topic_id, number) for topic_id, number in keys]
        return [f"{p.tp}" if p is not None else f"{t.hex}-{n}" for p, t, n in found]

    def take_note_of_lost(self) -> None:
        """Forget what was lost: who decides who acts has, durably, taken note."""
        self._made.take_note_of_lost()

    def _make_folder(self, folder: Path) -> None:
        """Make a topic's folder; what is left there of earlier deletions goes."""
        if not self.removal.is_away(folder):
            raise OSError(f"what is left of a deleted topic cannot be put away: {folder}")
        self._disk.make_dirs(folder)
        self.removal.unmark(folder)
        self.removal.sweep(folder)

    def rename_topic(self, topic_id: UUID, name: str) -> None:
        """Let an open topic have another name: logs are kept by id, the name is for people and clients."""
        partitions = self._by_id.get(topic_id, {})
        for old in [old for old, held in self._by_name.items() if held is partitions]:
            del self._by_name[old]
        assert name not in self._by_name, name
        self._by_name[name] = partitions
        for partition in partitions.values():
            partition.tp = TopicPartition(TopicName(name), partition.tp.partition)

    def _folders_beyond(self, topic: TopicSpec) -> list[int]:
        """Return the partitions that have a folder, but which the topic has not; those that a shrink took away go."""
        folder = self._data_dir / topic.topic_id.hex
        if not self._disk.exists(folder):
            return []
        numbers = (int(name) for name in self._disk.list_dir(folder) if name.isdecimal())
        is_open = self._by_id[topic.topic_id]
        found = sorted(number for number in numbers if number >= topic.partition_count)
        return [
            number
            for number in found
            if number not in is_open and not self._finish_drop(folder / str(number))
        ]

    def _finish_drop(self, folder: Path) -> bool:
        """Go on with a drop that was begun, if it was; tell so. One of this life is on its way."""
        if self.removal.is_going(folder):
            return True
        if self.removal.is_marked(folder):
            self.removal.put_away(folder)
            return True
        return not self.removal.is_away(folder)

    def finish_drops(self) -> None:
        """Once a start has opened all topics: drop those whose deletion was interrupted behind the registry (INV-T5)."""
        topics = {topic_id.hex for topic_id in self._by_id}
        for name in self._disk.list_dir(self._data_dir):
            folder = self._data_dir / name
            if (
                len(name) == TOPIC_NAME_CHARS
                and name not in topics
                and not self._finish_drop(folder)
            ):
                logger.warning("%s belongs to no topic that the registry has: it is left", folder)
        self.removal.remove_now()
        self.upkeep.count_producers()
        self.producers.started({each.tp: len(each.state.producer_table) for each in self})
        self._made.started(lambda key: key[1] in self._by_id.get(key[0], {}))

    def beyond(self, topic_id: UUID, partition_count: int) -> list[Partition]:
        """Return a topic's open partitions that a topic of `partition_count` has not."""
        partitions = self._by_id.get(topic_id, {})
        return [held for number, held in partitions.items() if number >= partition_count]

    async def mark_beyond(self, topic_id: UUID, partition_count: int, *, asks: bool = True) -> None:
        """Note that those partitions are about to be dropped: a start finishes that (INV-T5). See `mark_topic`."""
        numbers = [each.tp.partition for each in self.beyond(topic_id, partition_count)]
        notes = {
            self.folder_of(topic_id, number): self._note_of(topic_id, FEWER, number)
            for number in numbers
        }
        for folder, note in notes.items():
            await self.removal.mark_aside(folder, note, asks=asks)

    def _note_of(self, topic_id: UUID, why: str, partition: int | None = None) -> DeletionNote:
        held = self._by_id[topic_id]
        return DeletionNote(
            topic_id=str(topic_id),
            name=next((str(each.tp.topic) for each in held.values()), ""),
            partition_count=len(held),
            partition=partition,
            configs=dict(self._configs.get(topic_id, {})),
            why=why,
            deleted_wall_ms=self._clock.wall_ms(),
        )

    async def unmark_beyond(self, topic_id: UUID, partition_count: int) -> None:
        """Take `mark_beyond` back: they stay."""
        for partition in self.beyond(topic_id, partition_count):
            await self.removal.unmark_aside(self.folder_of(topic_id, partition.tp.partition))

    def drop_beyond(self, topic_id: UUID, partition_count: int) -> None:
        """Stop those partitions, and let their files go, beside the loop (INV-RM7); waiters get PartitionFailed."""
        for partition in self.beyond(topic_id, partition_count):
            number = partition.tp.partition
            note = self._note_of(topic_id, FEWER, number)
            del self._by_id[topic_id][number]
            why = f"{partition.tp} is no partition of its topic any more"
            self.letting_go.begin(self.folder_of(topic_id, number), [partition], note, why)

    def config_problem(self, configs: Mapping[str, str]) -> str | None:
        """Return why no topic may get these configs here, None if it may."""
        asked = [key for key in _SYNCED_BY_NODE if key in configs]
        if asked and self._group_commit.policy is not FlushPolicy.COMMIT:
            return (
                f"{asked[0]} cannot be honoured by a node with flush_policy ="
                f" {self._group_commit.policy.value}, only with commit"
            )
        try:
            asked_config = topic_log_config(self._config, configs)
        except UnsupportedConfig as error:
            return str(error)
        if asked_config.encryption:
            return self.sealing.refusal_of(asked_config.encryption)
        return None

    def update_config(self, topic: TopicSpec) -> None:
        """Let a topic's open partitions follow its changed configs; raises UnsupportedConfig."""
        config = self._log_config(topic)
        self._configs[topic.topic_id] = topic.configs
        for partition in self._by_id.get(topic.topic_id, {}).values():
            partition.log.reconfigure(config)

    def _log_config(self, topic: TopicSpec) -> LogConfig:
        configs = dict(topic.configs)
        if topic.internal:
            configs |= {"retention.ms": "-1", "retention.bytes": "-1"}
        return topic_log_config(self._config, configs)

    def _open_partition(self, tp: TopicPartition, topic_id: UUID, config: LogConfig) -> Partition:
        setup = self._setup(tp, topic_id, config)
        refused = self._refused.get((topic_id.bytes, tp.partition))
        if refused is not None:
            return self._broken(tp, topic_id, config, refused)
        if not self.removal.is_away(setup.folder):
            return self._broken(tp, topic_id, config, "an earlier one cannot be put away")
        try:
            self.removal.unmark(setup.folder)
            log = PartitionLog.open(setup)
            start = LogStart(self._disk, setup.folder, log.log_end_offset)
        except (LogDamaged, OSError) as error:
            return self._broken(tp, topic_id, config, str(error))
        return Partition(tp, topic_id, log, start, self._shared)

    def _broken(
        self, tp: TopicPartition, topic_id: UUID, config: LogConfig, reason: str
    ) -> Partition:
        logger.error("partition %s cannot be opened: %s", tp, reason)
        log = PartitionLog.broken(self._setup(tp, topic_id, config), reason)
        start = LogStart.nowhere(self._disk, log.folder)
        return Partition(tp, topic_id, log, start, self._shared)

    def _setup(self, tp: TopicPartition, topic_id: UUID, config: LogConfig) -> LogSetup:
        return LogSetup(
            folder=self.folder_of(topic_id, tp.partition),
            cache=self._cache,
            config=config,
            flush_policy=self._group_commit.policy,
            listener=LogListener(
                on_dirty=self._group_commit.mark_dirty,
                on_grown=self.recovery_checkpoints.note_grown,
                on_read=self.recovery_checkpoints.note_read,
            ),
            wall_ms=self._clock.wall_ms,
            log_id=(topic_id.bytes, tp.partition) if self._config.journal_bytes else None,
            journal_mark=lambda: self._journal.mark,
        )

    async def mark_topic(self, topic_id: UUID, why: str, *, asks: bool = True) -> None:
        """Note, in a thread, that a topic is about to be deleted, before the registry forgets it (INV-T5); `why` is for people.

        `asks`: this node asks for that, and takes the mark back if it is refused; else it is settled already.
        """
        if topic_id in self._by_id:
            note = self._note_of(topic_id, why)
            await self.removal.mark_aside(self._data_dir / topic_id.hex, note, asks=asks)

    async def unmark_topic(self, topic_id: UUID) -> None:
        """Take `mark_topic` back: it stays."""
        await self.removal.unmark_aside(self._data_dir / topic_id.hex)

    def drop_topic(self, topic_id: UUID, why: str = "") -> None:
        """Stop a topic's partitions, and let their files go, beside the loop (INV-RM7); waiters get PartitionFailed.

        What held records is kept for a while (`kept`). A disk that fails here leaves the files to a later try (INV-T5).
        """
        if topic_id not in self._by_id:
            return
        note = self._note_of(topic_id, why)
        partitions = self._by_id.pop(topic_id)
        self._configs.pop(topic_id, None)
        for name in [name for name, held in self._by_name.items() if held is partitions]:
            del self._by_name[name]
        ahead = [self._ahead.pop(key) for key in list(self._ahead) if key[0] == topic_id]
        self.letting_go.begin(
            self._data_dir / topic_id.hex, [*partitions.values(), *ahead], note, DELETED
        )

    async def purge(self) -> None:
        """Put away and remove what deletions left, and what was kept long enough. To be called now and then (a minute)."""
        await self.removal.purge()

    def failures(self) -> dict[str, str]:
        """Return why partitions have stopped, by `topic-partition`: for readiness."""
        return {str(p.tp): p.failed for p in self if p.failed is not None}

    def sealed_paths(self) -> list[Path]:
        """Return all sealed segments: for a digest that a crash has prevented."""
        return [path for partition in self for path in partition.log.sealed_paths()]

    def close(self) -> None:
        """Close all partitions cleanly; `GroupCommit.run` must have ended. What is dropped is put away, and removed by the next start."""
        self.removal.finish_all_now()
        self.noted_starts.keep_now()
        for partition in self:
            partition.close("the node stops")
        while self._ahead:
            self._ahead.popitem()[1].close("the node stops")
        self.cold_reads.close()
        self.record_threads.close()
        self._lookup_threads.close()
        self.kept.save()
        self._made.close()
        self._journal.close()
        self._cache.close()


def _tp_of(topic: TopicSpec, number: int) -> TopicPartition:
    return TopicPartition(TopicName(topic.name), number)
