"""Evidence of what a region has shown, read from its logs; and whether its logs hold what another one shows (T33).

INV-SH3  a batch that begins below the offset that is asked for and ends beyond it is sound: no batch ends there
INV-SH4  whoever looks at many logs, or many times at one, serves others in between, also where memory has all of it
The loop does not wait for a disk: batches that memory has not are read in by a thread (`log.cold_reads`). A log whose
bytes cannot be read is no evidence, neither for nor against.

Not here: the judgement (`geo_replicator.history`), who asks whom (`region_link`, `primary_side`, failover).
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final
from uuid import UUID

from geo_replicator.history import HeldLog, HistoryDifference, LastBatch, ShownLog, difference_of
from geo_replicator.lineage import Cut, LogKey
from geo_replicator.ports import LinkFailed
from idempotency.record_batch import BatchError, iter_headers
from region_broker.log.failures import CorruptRange, LogError, PartitionFailed
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.wire.cooperative_yield import CooperativeYield, give_way

_ONE_BATCH: Final = 1
_ROWS_OF_A_READ: Final = 5
"""What looking at a log counts for (`YIELD_ROWS`): some 50 us."""


class ShownHistory:
    """Reads one node's logs."""

    def __init__(self, partitions: PartitionTable) -> None:
        """Read nothing yet."""
        self._partitions = partitions

    async def evidence(self, cut: Cut, keys: Iterable[LogKey]) -> list[ShownLog]:
        """Return what shows that these logs hold `cut`."""
        found, yielding = [], CooperativeYield()
        for key in keys:
            await yielding.row(_ROWS_OF_A_READ)
            found.append(await self._shown(key, cut.position_of(key)))
        return found

    async def _shown(self, key: LogKey, cut_offset: int) -> ShownLog:
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None or partition.failed is not None:
            return ShownLog(key, cut_offset, 0)
        end = min(cut_offset, partition.high_watermark)
        last, _ = await self._last_below(partition, end if end == cut_offset else 0)
        whole_from = partition.log.cleaning.holes_below
        return ShownLog(key, cut_offset, partition.log_end_offset, last, whole_from)

    async def differences(
        self, shown: Sequence[ShownLog], may_be_deleted: Callable[[UUID, int], bool]
    ) -> list[HistoryDifference]:
        """Return what these logs do not hold of what another region has shown; a deleted topic is no loss."""
        found, yielding = [], CooperativeYield()
        for log in shown:
            await yielding.row(_ROWS_OF_A_READ)
            if may_be_deleted(log.key.topic_id, log.written_under):
                continue
            difference = difference_of(log, await self._held(log))
            if difference is not None:
                found.append(difference)
        return found

    async def _held(self, shown: ShownLog) -> HeldLog | None:
        partition = self._partitions.by_id(shown.key.topic_id, shown.key.partition)
        if partition is None:
            return None
        if partition.failed is not None:
            return HeldLog(0, shown.cut_offset, readable=False)
        end = partition.high_watermark
        last, readable = await self._last_below(partition, min(shown.cut_offset, end))
        epoch_end = 0
        if shown.last is not None:
            latest = partition.log.epochs.latest
            known = shown.last.leader_epoch <= latest
            epoch_end = partition.epoch_end_offset(shown.last.leader_epoch)[1] if known else end
        return HeldLog(
            start_offset=partition.kept_from,
            end_offset=end,
            last=last,
            epoch_end=max(0, epoch_end),
            whole_from=partition.log.cleaning.holes_below,
            readable=readable,
        )

    def first_offset(self, key: LogKey) -> int:
        """Return where the log's bytes begin; raises `LinkFailed`."""
        return self._of(key).kept_from

    async def batch_at(self, key: LogKey, offset: int) -> tuple[int, int]:
        """Return (base offset, end) of the batch that holds `offset`, or of the next one; raises `LinkFailed`.

        Others are served before (INV-SH4).
        """
        await give_way()
        partition = self._of(key)
        try:
            found = await self._partitions.cold_reads.read(partial(_extent_at, partition, offset))
        except (LogError, BatchError) as error:
            raise LinkFailed(f"{partition.tp} cannot be read at {offset}: {error}") from error
        if found is None:
            raise LinkFailed(f"{partition.tp} cannot be read at {offset}, so it is not compared")
        return found

    def _of(self, key: LogKey) -> Partition:
        partition = self._partitions.by_id(key.topic_id, key.partition)
        if partition is None:
            raise LinkFailed(f"there is no log {key.encode()} here")
        return partition

    async def _last_below(self, partition: Partition, end: int) -> tuple[LastBatch | None, bool]:
        """Return the batch that ends at `end`, None where none does, and whether the bytes could be read."""
        if end <= partition.kept_from:
            return None, True
        try:
            return await self._partitions.cold_reads.read(
                partial(_batch_before, partition, end)
            ), True
        except (CorruptRange, PartitionFailed):
            return None, False
        except (LogError, BatchError):
            return None, True


def _extent_at(partition: Partition, offset: int, *, wait: bool) -> tuple[int, int] | None:
    data = partition.reader.read_raw(offset, _ONE_BATCH, wait=wait)
    for _, header in iter_headers(data):
        return header.base_offset, header.next_offset
    return None


def _batch_before(partition: Partition, end: int, *, wait: bool) -> LastBatch | None:
    # Not read with `end` as the limit: it is another region's offset, and may lie within a batch of this log.
    data = partition.reader.read_raw(end - 1, _ONE_BATCH, wait=wait)
    last = None
    for _, header in iter_headers(data):
        if header.next_offset <= end:
            last = LastBatch(header.leader_epoch, header.base_offset, header.crc)
    return last
