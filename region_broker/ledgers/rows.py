"""The rows of a transaction ledger's shard, read from its partition.

INV-AT2  every batch up to the end is read; a damaged one raises, it is never skipped (C22)
Not here: what the rows mean (`idempotency.ledger_records`).
"""

from collections.abc import Iterator
from dataclasses import dataclass

from idempotency.record_batch import BatchError, BatchHeader, Buffer, iter_headers
from region_broker.log.failures import CorruptRange, OffsetOutOfRange, PartitionFailed
from region_broker.partitions.partition import Partition
from region_broker.records.batches import RecordsError, iter_records
from txn_coordinator.image import LedgerRow
from txn_coordinator.ports import LedgerCorrupt, LedgerFailed, LedgerPosition


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """The rows of some whole batches; `last` is the header of the last one."""

    rows: list[LedgerRow]
    last: BatchHeader


def read_slices(
    partition: Partition, offset: int, end_offset: int, max_bytes: int
) -> Iterator[LedgerSlice]:
    """Yield what lies in [offset, end), both batch boundaries, in slices of about `max_bytes`; raises LedgerFailed."""
    while offset < end_offset:
        try:
            data = partition.reader.read_raw(offset, max_bytes, end_offset)
        except (PartitionFailed, OffsetOutOfRange, CorruptRange) as error:
            raise LedgerFailed(f"{partition.tp} cannot be read at {offset}: {error}") from error
        found = _read(partition, data, offset)
        if found is None:
            raise LedgerCorrupt(f"{partition.tp} has no whole batch at {offset}")
        yield found
        offset = found.last.next_offset


def _read(partition: Partition, data: Buffer, offset: int) -> LedgerSlice | None:
    """Return the records of whole batches."""
    rows: list[LedgerRow] = []
    last: BatchHeader | None = None
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
            last = header
    except (BatchError, RecordsError) as error:
        behind = offset if last is None else last.next_offset
        raise LedgerCorrupt(f"{partition.tp} is damaged behind {behind}: {error}") from error
    return None if last is None else LedgerSlice(rows, last)
