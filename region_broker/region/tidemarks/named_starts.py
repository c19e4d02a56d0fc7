"""Where logs start by a tidemark: what an order has deleted is a part of the history as far as a tidemark says so, and no further (T14).

INV-NMS1  a region acts from a tidemark only once its logs durably start where that one says: what a mirror has noted may not be on its disk yet
          (INV-NST2)
Not here: how a start is made durable (`partitions.noted_starts`), the tidemarks of a link (`link.reaching`).
"""

import logging
from collections.abc import Callable, Mapping
from typing import Final

from geo_replicator.lineage import LogKey, TidemarkPoint
from geo_replicator.reading import read_book
from geo_replicator.tidemark import TidemarkError
from geo_replicator.topology import LedgerTopics
from region_broker.log.failures import LogError
from region_broker.partitions.table import PartitionTable
from region_broker.region.mirror.mirror_log import TidemarkLog

_log: Final = logging.getLogger("tidemark.failover")


class NamedStarts:
    """Of one region; the port `region.ports.LogStarts`."""

    def __init__(self, partitions: PartitionTable, ledgers: Callable[[], LedgerTopics]) -> None:
        """Read the log of `ledgers` in `partitions`."""
        self._partitions = partitions
        self._ledgers = ledgers

    async def keep(self, point: TidemarkPoint) -> None:
        """Let logs start where the tidemark `point` says, durably, before this region acts from there (INV-NMS1).

        1. A mirror reaches a tidemark behind an order to delete. 2. It is killed before the log starts are on disk. 3. It takes over there: what
        was acknowledged as deleted would be back.
        """
        partitions = self._partitions
        for key, offset in self._at(point).items():
            partition = partitions.by_id(key.topic_id, key.partition)
            if partition is None or partition.failed is not None:
                continue
            if offset <= partition.log_end_offset:
                partition.retention.forget_below(offset)
        await partitions.noted_starts.keep()

    def take_back(self, point: TidemarkPoint) -> None:
        """Void orders to delete records that were given above `point`, durably, after the logs were cut to it (T14)."""
        for key, offset in self._at(point).items():
            partition = self._partitions.by_id(key.topic_id, key.partition)
            if partition is not None and partition.log_start_offset > offset:
                try:
                    partition.retention.take_back_start(offset)
                except LogError as error:
                    _log.warning("%s cannot start where %s says: %s", partition.tp, point, error)

    def _at(self, point: TidemarkPoint) -> Mapping[LogKey, int]:
        """Return below which offset a tidemark says that each log was deleted by order; nothing where it cannot be read."""
        ledgers = self._ledgers()
        try:
            records = TidemarkLog(self._partitions, ledgers)
            vector = read_book(records, ledgers, point).book.vector(point)
        except TidemarkError:
            return {}  # the primary region is asked, before readers are told of such a start (INV-PT10)
        positions = {} if vector is None else vector.positions
        return {key: position.deleted_below for key, position in positions.items()}
