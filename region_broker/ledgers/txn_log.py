"""The transaction ledger over partitions: `txn_coordinator.ports.TransactionLog`.

One append is one record batch: its offsets are consecutive, and it is there or not.
Not here: reading (`ledgers.rows`, `ledgers.images`), what the records mean (`idempotency.ledger_records`).
"""

import logging
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Final, Protocol

from idempotency.ports import Clock
from region_broker.controller.metadata_image import TRANSACTION_LEDGER
from region_broker.ledgers.images import LedgerImages
from region_broker.ledgers.rows import read_slices
from region_broker.log.failures import NotLeader, PartitionFailed
from region_broker.partitions.admission import AppendVerdict
from region_broker.partitions.partition import Partition
from region_broker.records.batches import Record, build_batch
from txn_coordinator.image import LedgerRow
from txn_coordinator.ports import DurableListener, LedgerFailed, LedgerPosition

_LOG: Final = logging.getLogger(__name__)
REPLAY_BYTES: Final = 64 * 1024


class Partitions(Protocol):
    """Where partitions are found (`partitions.table.PartitionTable`)."""

    def get(self, name: str, partition: int) -> Partition | None:
        """Return the partition, or None if it is not here."""
        ...


class PartitionTransactionLog:
    """`__transaction_state` of this region."""

    def __init__(
        self,
        partitions: Partitions,
        clock: Clock,
        shard_count: int,
        images: LedgerImages | None = None,
    ) -> None:
        """Take the partitions; `clock` gives the record timestamps, `images` make loads short."""
        self._partitions = partitions
        self._images = images
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
        outcome = partition.writer.append_ledger(build_batch(rows))
        if outcome.verdict is not AppendVerdict.APPENDED:
            raise LedgerFailed(
                f"{partition.tp} took no record ({outcome.verdict.name}): "
                f"{outcome.detail or 'see the log of this node'}"
            )
        return LedgerPosition(partition.sight.leader_epoch, outcome.base_offset)

    def notify_committed(self, shard: int, offset: int, listener: DurableListener) -> None:
        """Notify `listener` once the record at `offset` is below the high watermark, or can no longer be waited for."""
        self._partition(shard).commits.notify(offset + 1, listener)

    async def committed(self, shard: int, offset: int) -> None:
        """Return once the record at `offset` is below the high watermark; raises LedgerFailed."""
        partition = self._partition(shard)
        try:
            await partition.wait_committed(offset + 1)
        except (PartitionFailed, NotLeader) as error:
            raise LedgerFailed(f"{partition.tp} was not made durable: {error}") from error

    def whole_from(self, shard: int) -> int:
        """Return below which offset the shard was compacted."""
        return self._partition(shard).log.cleaning.holes_below

    def replay(self, shard: int) -> Iterator[LedgerRow]:
        """Yield every record from the log start to the high watermark; raises LedgerFailed."""
        partition = self._partition(shard)
        return _rows(partition, partition.log_start_offset)

    async def load(self, shard: int) -> Iterator[LedgerRow]:
        """See `TransactionLog`: the rows of an image, and what came after it."""
        partition = self._partition(shard)
        await self.committed(shard, partition.log_end_offset - 1)
        found = None if self._images is None else await self._images.newest(partition)
        if found is None:
            return _rows(partition, partition.log_start_offset)
        end = found.head.end_offset
        behind = partition.high_watermark - end
        _LOG.info("%s: %d rows of its image, %d behind it", partition.tp, len(found.rows), behind)
        return chain(found.rows, _rows(partition, end))

    def _partition(self, shard: int) -> Partition:
        partition = self._partitions.get(TRANSACTION_LEDGER, shard)
        if partition is None:
            raise LedgerFailed(f"{TRANSACTION_LEDGER}-{shard} is not open on this node")
        return partition


def _rows(partition: Partition, offset: int) -> Iterator[LedgerRow]:
    for part in read_slices(partition, offset, partition.high_watermark, REPLAY_BYTES):
        yield from part.rows
