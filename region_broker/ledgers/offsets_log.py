"""The offsets ledger over partitions: `groups.ports.OffsetsLog` and `PartitionEnds`.

INV-OL2  a transactional append is a transactional batch of that producer: the partition's last
         stable offset waits for its marker, and adoption finds it open (T21)
INV-OL3  replay reads every batch; a damaged one raises, it is never skipped (C22)
One append is one record batch, so its offsets are consecutive and it is there or not.
Not here: what the records mean (`groups.offsets`), markers (the marker channel).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final, Protocol

from idempotency.fencing import FIRST_REGION_NUMBER, region_epoch_of, region_number_of
from idempotency.identity import NO_PRODUCER_ID, LeaderEpoch, LogKey, TopicPartition
from idempotency.ports import Clock
from idempotency.record_batch import (
    BatchError,
    BatchHeader,
    Buffer,
    ControlType,
    iter_headers,
    read_marker,
)
from region_broker.controller.metadata_image import OFFSETS_LEDGER
from region_broker.groups.ports import (
    Appended,
    KeyValue,
    LedgerBatch,
    LedgerEntry,
    LedgerFailed,
    LedgerMarker,
    LedgerRecord,
    LedgerSlice,
    TxnProducer,
)
from region_broker.groups.records import LedgerRecordError
from region_broker.limits import PIECE_ELEMENTS
from region_broker.log.failures import CorruptRange, NotLeader, OffsetOutOfRange, PartitionFailed
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.records.batches import (
    NO_ORIGIN,
    BatchInParts,
    Origin,
    RecordsError,
    iter_records,
)

REPLAY_BYTES: Final = 256 * 1024


class Partitions(Protocol):
    """Where partitions are found (`partitions.table.PartitionTable`)."""

    def get(self, name: str, partition: int) -> Partition | None:
        """Return the partition, or None if it is not here."""
        ...


def _led_here(_key: LogKey) -> bool:
    return False


class PartitionOffsetsLog:
    """`__consumer_offsets` of this region, and the epochs of its data partitions."""

    def __init__(self, partitions: Partitions, clock: Clock) -> None:
        """Take the partitions, and the clock for record timestamps."""
        self._partitions = partitions
        self._clock = clock
        self.is_copied: Callable[[LogKey], bool] = _led_here
        """Whether another node leads a log, whose copy here has all that its readers were shown (INV-SCU1)."""

    def append(
        self, shard: int, records: Sequence[KeyValue], *, producer: TxnProducer | None = None
    ) -> Appended:
        """Append one batch now; raises `LedgerFailed`."""
        batch = self.batch()
        for key, value in records:
            batch.add(key, value)
        return self.append_batch(shard, batch, producer=producer)

    def batch(self) -> BatchInParts:
        """Return a batch without records, of this moment."""
        return BatchInParts(self._clock.wall_ms())

    def append_batch(
        self, shard: int, batch: LedgerBatch, *, producer: TxnProducer | None = None
    ) -> Appended:
        """Append what `batch` made; raises `LedgerFailed`."""
        assert isinstance(batch, BatchInParts), batch
        origin = NO_ORIGIN
        if producer is not None:
            origin = Origin(producer.producer_id, producer.producer_epoch, transactional=True)
        outcome = self._partition(shard).writer.append_ledger(batch.built(origin))
        if outcome.verdict is not AppendVerdict.APPENDED:
            raise LedgerFailed(
                f"{OFFSETS_LEDGER}-{shard} took no record ({outcome.verdict.name}): "
                f"{outcome.detail or 'see the log of this node'}"
            )
        return Appended(outcome.base_offset, outcome.next_offset, batch.timestamp_ms)

    async def committed(self, shard: int, next_offset: int) -> None:
        """Return once all below `next_offset` is durable; raises `LedgerFailed`."""
        try:
            await self._partition(shard).wait_committed(next_offset)
        except (PartitionFailed, NotLeader) as error:
            raise LedgerFailed(f"{OFFSETS_LEDGER}-{shard} was not made durable: {error}") from error

    def end_offset(self, shard: int) -> int:
        """Return the log end offset; raises `LedgerFailed` if the shard is not here."""
        return self._partition(shard).log_end_offset

    def replay(self, shard: int) -> Iterator[LedgerSlice]:
        """Yield the shard from its start to its high watermark, about `REPLAY_BYTES` at a time."""
        partition = self._partition(shard)
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            try:
                next_offset = offset
                for part in _slices(partition.reader.read_raw(offset, REPLAY_BYTES), offset):
                    yield part
                    next_offset = part.next_offset
            except (PartitionFailed, OffsetOutOfRange) as error:
                raise LedgerFailed(f"{partition.tp} cannot be read at {offset}: {error}") from error
            except (BatchError, RecordsError, CorruptRange) as error:
                raise LedgerRecordError(
                    f"{partition.tp} is damaged at {offset}: {error}"
                ) from error
            if next_offset <= offset:
                raise LedgerRecordError(f"{partition.tp} has no whole batch at {offset}")
            offset = next_offset

    def end_after_takeover(self, tp: TopicPartition) -> int | None:
        """Return where the partition ends if this region took over, so that it may have been cut; else None."""
        partition = self._partitions.get(tp.topic, tp.partition)
        if partition is None or not (partition.is_leader or self.is_copied(partition.key)):
            return None
        first = (
            region_number_of(region_epoch_of(partition.sight.leader_epoch)) <= FIRST_REGION_NUMBER
        )
        return None if first else partition.log_end_offset

    def end_of_epoch(self, tp: TopicPartition, leader_epoch: LeaderEpoch) -> int | None:
        """Return where records of leader epochs up to `leader_epoch` end; None if unknown."""
        partition = self._partitions.get(tp.topic, tp.partition)
        if partition is None:
            return None
        end_offset = partition.epoch_end_offset(leader_epoch)[1]
        return None if end_offset < 0 else end_offset

    def _partition(self, shard: int) -> Partition:
        partition = self._partitions.get(OFFSETS_LEDGER, shard)
        if partition is None:
            raise LedgerFailed(f"{OFFSETS_LEDGER}-{shard} is not open on this node")
        return partition


def _slices(data: Buffer, offset: int) -> Iterator[LedgerSlice]:
    """Yield PIECE_ELEMENTS entries at a time; one batch may have many."""
    entries: list[LedgerEntry] = []
    next_offset = offset
    for position, header in iter_headers(data):
        for entry in _read_batch(data[position : position + header.size_bytes], header):
            entries.append(entry)
            if len(entries) == PIECE_ELEMENTS:
                yield LedgerSlice(entries, next_offset)
                entries = []
        next_offset = header.next_offset
    if next_offset > offset:
        yield LedgerSlice(entries, next_offset)


def _read_batch(batch: Buffer, header: BatchHeader) -> Iterator[LedgerEntry]:
    if header.is_control:
        marker = read_marker(batch)
        yield LedgerMarker(marker.producer_id, marker.control_type is ControlType.COMMIT)
        return
    producer_id = header.producer_id if header.is_transactional else NO_PRODUCER_ID
    for record in iter_records(batch):
        key, value, time_ms = record.key, record.value, record.timestamp_ms
        yield LedgerRecord(record.offset, key, value, producer_id, time_ms)
