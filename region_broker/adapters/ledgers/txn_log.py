"""The transaction ledger over partitions: `txn_coordinator.ports.TransactionLog`.

INV-AT1  one append is one record batch: its offsets are consecutive, and it is there or not
INV-AT2  replay reads every batch up to the high watermark; a damaged one raises, it is never skipped (C22)
Not here: what the records mean (`idempotency.ledger_records`).
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from idempotency.ports import Clock
from idempotency.record_batch import BatchError, iter_headers
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.log.failures import NotLeader, OffsetOutOfRange, PartitionFailed
from region_broker.replication.admission import AppendVerdict
from region_broker.replication.partition import Partition
from region_broker.wire.batches import Record, RecordsError, build_batch, iter_records
from txn_coordinator.ports import DurableListener, LedgerCorrupt, LedgerFailed, LedgerPosition

REPLAY_BYTES: Final = 256 * 1024

LedgerRow = tuple[LedgerPosition, bytes, bytes | None]


class Partitions(Protocol):
    """Where partitions are found (`replication.partition_table.PartitionTable`)."""

    def get(self, name: str, partition: int) -> Partition | None:
        """Return the partition, or None if it is not here."""
        ...


class PartitionTransactionLog:
    """`__transaction_state` of this region."""

    def __init__(self, partitions: Partitions, clock: Clock, shard_count: int) -> None:
        """Take the partitions; `clock` gives the record timestamps."""
        self._partitions = partitions
        self._clock = clock
        self._shard_count = shard_count

    @property
    def shard_count(self) -> int:
        """Return the number of shards, fixed for the life of the domain."""
        return self._shard_count

    def append(self, shard: int, records: Sequence[tuple[bytes, bytes | None]]) -> LedgerPosition:
        """Append one batch now; raises LedgerFailed if nothing was written."""
        wall_ms = self._clock.wall_ms()
        rows = [Record(key, value, timestamp_ms=wall_ms) for key, value in records]
        partition = self._partition(shard)
        outcome = partition.append_ledger(build_batch(rows))
        if outcome.verdict is not AppendVerdict.APPENDED:
            raise LedgerFailed(
                f"{partition.tp} took no record ({outcome.verdict.name}): "
                f"{outcome.detail or 'see the log of this node'}"
            )
        return LedgerPosition(partition.leader_epoch, outcome.base_offset)

    def tell_committed(self, shard: int, offset: int, listener: DurableListener) -> None:
        """Tell `listener` once the record at `offset` is below the high watermark, or can no longer be waited for."""
        self._partition(shard).tell_committed(offset + 1, listener)

    async def committed(self, shard: int, offset: int) -> None:
        """Return once the record at `offset` is below the high watermark; raises LedgerFailed."""
        partition = self._partition(shard)
        try:
            await partition.wait_committed(offset + 1)
        except (PartitionFailed, NotLeader) as error:
            raise LedgerFailed(f"{partition.tp} was not made durable: {error}") from error

    async def settled(self, shard: int) -> None:
        """Return once everything appended so far is below the high watermark; raises LedgerFailed."""
        await self.committed(shard, self._partition(shard).log_end_offset - 1)

    def whole_from(self, shard: int) -> int:
        """Return below which offset the shard was compacted."""
        return self._partition(shard).log.cleaning.holes_below

    def replay(self, shard: int) -> Iterator[LedgerRow]:
        """Yield every record from the log start to the high watermark; raises LedgerFailed."""
        partition = self._partition(shard)
        offset = partition.log_start_offset
        while offset < partition.high_watermark:
            try:
                data = partition.read_raw(offset, REPLAY_BYTES)
            except (PartitionFailed, OffsetOutOfRange) as error:
                raise LedgerFailed(f"{partition.tp} cannot be read at {offset}: {error}") from error
            rows, next_offset = _read(partition, data, offset)
            if next_offset <= offset:
                raise LedgerCorrupt(f"{partition.tp} has no whole batch at {offset}")
            yield from rows
            offset = next_offset

    def _partition(self, shard: int) -> Partition:
        partition = self._partitions.get(TRANSACTION_LEDGER, shard)
        if partition is None:
            raise LedgerFailed(f"{TRANSACTION_LEDGER}-{shard} is not open on this node")
        return partition


def _read(partition: Partition, data: bytes, offset: int) -> tuple[list[LedgerRow], int]:
    """Return the records of whole batches, and the offset behind them."""
    rows: list[LedgerRow] = []
    next_offset = offset
    try:
        for position, header in iter_headers(data):
            batch = data[position : position + header.size_bytes]
            rows += [
                (
                    LedgerPosition(header.leader_epoch, record.offset),
                    record.key or b"",
                    record.value,
                )
                for record in iter_records(batch)
            ]
            next_offset = header.next_offset
    except (BatchError, RecordsError) as error:
        raise LedgerCorrupt(f"{partition.tp} is damaged behind {next_offset}: {error}") from error
    return rows, next_offset
