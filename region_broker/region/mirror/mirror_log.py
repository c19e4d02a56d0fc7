"""The partitions of this node as a link sees them: verbatim appends, cuts, durability, and `__tidemarks`.

INV-ML2  a log that a mirror opens shows nothing until a reached tidemark says so (T15, T17)
Bytes are appended as the primary sent them; offsets, leader epochs and CRCs are checked by the log, the producer state
is rebuilt by it.

Not here: what to append and to show (`geo_replicator.link`), the registry of topics (`mirror_topics`).
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final
from uuid import UUID

from geo_replicator.events import MirrorLogEnd
from geo_replicator.history import ShownLog
from geo_replicator.lineage import Cut, LogKey
from geo_replicator.ports import LinkFailed, LogHalted, ReachedStore
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import LedgerTopics
from geo_replicator.whole_cut import RoundBefore
from geo_replicator.whole_ends import View, WholeEnds
from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from idempotency.record_batch import BatchError, iter_headers
from region_broker.log.failures import LogError
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.records.batches import RecordsError, iter_records
from region_broker.region.mirror.mirror_view import MirrorView
from region_broker.region.mirror.rounds_before import RoundsBefore
from region_broker.region.mirror.shown_history import ShownHistory

READ_BYTES: Final = 1024 * 1024
_log: Final = logging.getLogger("tidemark.mirror")


def key_of(partition: Partition) -> LogKey:
    """Return the partition's key: topic id and number."""
    return LogKey(partition.topic_id, partition.tp.partition)


class TidemarkLog:
    """Reads the records of `__tidemarks`, one per batch, below its HW."""

    def __init__(self, partitions: PartitionTable, ledgers: LedgerTopics) -> None:
        """Read the log of `ledgers` in `partitions`."""
        self._partitions = partitions
        self._ledgers = ledgers
        self._key = ledgers.tidemark_key

    def rounds_before(self, reached: ReachedStore) -> RoundBefore:
        """Return who knows which tidemark was reached before a transaction began in a log (INV-WC5)."""
        return RoundsBefore(self, self._ledgers, reached).round_before

    def durable_end(self, key: LogKey) -> int | None:
        """Return below which offset the log is durable; None where it has stopped, or there is no such topic."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None or partition.failed is not None:
            return None
        return partition.high_watermark

    @property
    def partition(self) -> Partition | None:
        """Return the partition, None while the ledger was not created here."""
        return self._partitions.by_id(self._key.topic_id, self._key.partition)

    def tidemark_records(self, start_offset: int) -> Iterator[tuple[int, bytes, bytes]]:
        """Yield (offset, key, value) from `start_offset` on; raises `TidemarkError`."""
        partition = self.partition
        if partition is None:
            return
        self._check_running(partition)
        position = max(start_offset, partition.log_start_offset)
        while position < partition.high_watermark:
            try:
                data = partition.reader.read_raw(position, READ_BYTES)
                batches = [(start, header) for start, header in iter_headers(data)]
                if not batches:
                    return
                for start, header in batches:
                    for record in iter_records(data[start : start + header.size_bytes]):
                        if record.offset >= start_offset:
                            yield record.offset, record.key or b"", record.value or b""
                    position = header.next_offset
            except (LogError, BatchError, RecordsError) as error:
                raise TidemarkError(
                    f"__tidemarks is not readable at {position}: {error}"
                ) from error

    def last_tidemark_record(self) -> tuple[int, bytes, bytes] | None:
        """Return the last record below HW; raises `TidemarkError`."""
        partition = self.partition
        if partition is None:
            return None
        self._check_running(partition)
        if partition.high_watermark <= partition.log_start_offset:
            return None
        return next(iter(self.tidemark_records(partition.high_watermark - 1)), None)

    def _check_running(self, partition: Partition) -> None:
        """Raise `TidemarkError` if the log has stopped: it may look empty then, and nothing may be cut at that."""
        if partition.failed is not None:
            raise TidemarkError(
                f"__tidemarks has stopped in {partition.log.folder}: {partition.failed}"
            )


class MirrorPartitions(TidemarkLog):
    """The port `geo_replicator.ports.MirrorLogs` on the node's partition table."""

    def __init__(self, partitions: PartitionTable, ledgers: LedgerTopics, view: MirrorView) -> None:
        """Nothing is watched yet."""
        super().__init__(partitions, ledgers)
        self._view = view
        self._on_durable: Callable[[LogKey], None] | None = None
        self._watched: dict[LogKey, Callable[[], None]] = {}
        self._term_followed: LeaderEpoch = NO_LEADER_EPOCH
        self._follow_term()

    def _of(self, key: LogKey) -> Partition:
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None:
            raise LogHalted(f"log {key.encode()} is not open on this mirror")
        return partition

    def keys(self) -> Iterable[LogKey]:
        """Return every open log."""
        return [key_of(partition) for partition in self._partitions]

    def end(self, key: LogKey) -> MirrorLogEnd:
        """Return where the log ends, and its newest leader epoch (-1 for an empty log)."""
        partition = self._of(key)
        if partition.failed is not None:
            raise LogHalted(f"{partition.tp} has stopped here: {partition.failed}")
        empty = partition.log_end_offset == partition.kept_from
        leader_epoch = (
            NO_LEADER_EPOCH
            if empty
            else partition.log.epochs.epoch_at(partition.log_end_offset - 1)
        )
        hidden = partition.log_start_offset > partition.kept_from
        return MirrorLogEnd(
            leader_epoch, partition.log_end_offset, partition.log_start_offset if hidden else 0
        )

    def high_watermark(self, key: LogKey) -> int:
        """Return below which offset the log is durable; 0 for a log that is not open."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        return 0 if partition is None else partition.high_watermark

    def append(self, key: LogKey, data: bytes | memoryview) -> int:
        """Append whole batches verbatim, return the new log end; raises `LinkFailed`."""
        full = self._partitions.room.refusal
        if full is not None:
            raise LinkFailed(full)
        try:
            end_offset = self._of(key).writer.append_mirrored(data)
        except (LogError, BatchError) as error:
            raise LogHalted(
                f"{key.encode()} does not take what the primary sent: {error}"
            ) from error
        if key == self._key:
            self._follow_term()
        return end_offset

    def _follow_term(self) -> None:
        """Tell every log the term that the primary writes under: the first record of each is in `__tidemarks` (T1)."""
        records = self.partition
        if records is not None and records.sight.leader_epoch > self._term_followed:
            self._term_followed = records.sight.leader_epoch
            for partition in self._partitions:
                partition.follow_term(self._term_followed)

    async def evidence(self, cut: Cut, keys: Sequence[LogKey]) -> Sequence[ShownLog]:
        """Return what shows that these logs hold `cut` (T33)."""
        return await ShownHistory(self._partitions).evidence(cut, keys)

    async def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        return ShownHistory(self._partitions).first_offset(key)

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`."""
        return await ShownHistory(self._partitions).batch_at(key, offset)

    def whole_from(self, key: LogKey) -> int:
        """Return below which offset others may be missing; 0 for a log that is not open."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        return 0 if partition is None else partition.log.cleaning.holes_below

    def cleaned_at_primary(self, key: LogKey, cleaned_below: int) -> None:
        """Note how far the primary has cleaned the log (T13)."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is not None:
            writer = partition.writer
            writer.cleaned_at_primary = max(writer.cleaned_at_primary, cleaned_below)
            writer.dropped_at_primary = max(writer.dropped_at_primary, cleaned_below)

    def start_at(self, key: LogKey, offset: int) -> None:
        """Let an empty log begin at `offset`, where the primary's begins; raises `LinkFailed`."""
        partition = self._of(key)
        if partition.log_end_offset != partition.kept_from:
            raise LogHalted(f"{key.encode()} holds records: it cannot begin at {offset}")
        try:
            partition.start_at(offset)
        except LogError as error:
            raise LogHalted(f"{key.encode()} cannot begin at {offset}: {error}") from error

    def take_back_start(self, key: LogKey, offset: int) -> None:
        """Let a log start at `offset` again, as far as its bytes reach, durably; raises `LinkFailed`."""
        partition = self._of(key)
        try:
            partition.retention.take_back_start(offset)
        except LogError as error:
            raise LogHalted(f"{key.encode()} cannot start at {offset} again: {error}") from error

    def doubt_starts(self) -> None:
        """Tell readers of no start that an order has moved until `confirm_starts` (INV-PT10)."""
        for partition in self._partitions:
            partition.doubt_start()

    def confirm_starts(self, keys: Iterable[LogKey]) -> None:
        """Tell readers where these logs start: they were compared with the primary's."""
        for key in keys:
            partition = self._partitions.by_id(key.topic_id, key.partition)
            if partition is not None:
                partition.retention.confirm_start()

    def show_again(self, cuts: Mapping[LogKey, int], whole: WholeEnds) -> None:
        """Show what was shown before (`MirrorView.show_again`)."""
        self._view.show_again(cuts, whole)

    def take_back_view(self) -> None:
        """Show nothing, and tell readers of no end, in all logs at once, until `show_again` (INV-PT9)."""
        for partition in self._partitions:
            partition.rewind_cut(0, is_end=False)

    def view(self, cuts: Mapping[LogKey, int]) -> View:
        """Return what to show next (`MirrorView.view`)."""
        return self._view.view(cuts)

    def show(self, view: View) -> None:
        """Let readers see `view` (`MirrorView.show`)."""
        self._view.show(view)

    def delete_below(self, key: LogKey, offset: int) -> None:
        """Let the log start at `offset`; a log that has stopped keeps its records (T14)."""
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is not None and partition.failed is None:
            partition.retention.forget_below(offset)

    def watch(self, on_durable: Callable[[LogKey], None]) -> None:
        """Call `on_durable` when the HW of an open log moved, now and for logs opened later."""
        self._on_durable = on_durable
        for partition in self._partitions:
            self.opened(partition)

    def take_on(self, partition: Partition, *, is_new: bool = True) -> None:
        """Let a partition that was opened be a mirror; one that is new shows nothing (INV-ML2)."""
        partition.become_mirror()
        if is_new:  # of the others, the end may not be known (INV-PT9)
            partition.show_up_to(0, 0)

    def opened_by_others(self, partition: Partition) -> None:
        """Take on a log that was opened here because another node of the region had asked for it (INV-ML2).

        1. A node leads, and has a topic of the primary created. 2. Another one leads, and its link runs. 3. The command is settled.
        """
        self.take_on(partition)
        self.opened(partition)

    def opened(self, partition: Partition) -> None:
        """Take a partition into the watch."""
        partition.follow_term(self._term_followed)
        on_durable, key = self._on_durable, key_of(partition)
        if on_durable is not None and key not in self._watched:
            self._watched[key] = partition.watchers.add(lambda: on_durable(key))
            on_durable(key)

    def dropped(self, topic_id: UUID, first: int = 0) -> None:
        """Take the partitions of a topic, from `first` on, out of the watch: they are about to be deleted."""
        for key in list(self._watched):
            if key.topic_id == topic_id and key.partition >= first:
                self._watched.pop(key)()

    def unwatch(self) -> None:
        """Stop calling."""
        self._on_durable = None
        watched, self._watched = self._watched, {}
        for unsubscribe in watched.values():
            unsubscribe()
