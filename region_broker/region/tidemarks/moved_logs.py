"""Which logs hold something durable that the last tidemark does not: what a cut leader wakes for, and asks.

INV-CL2  a cut leader wakes when a log or a ledger moved past its last tidemark, never by polling: an idle domain is
         silent. Its own ROUND and tidemark records count for nothing
D of a log that had stopped before a takeover's cut was adopted is that of the cut: nothing was written to it since (T12). One
that stopped later, and holds more than the last tidemark says, stops tidemarks (INV-CL8). D of a log
that did not move since the last tidemark is its last one: only moved logs are asked (T10).

Not here: when a round is due (`cut_leader`, `geo_replicator.cut_rounds`).
"""

import logging
from collections.abc import Callable
from functools import partial
from typing import Final

from geo_replicator.lineage import LogKey
from geo_replicator.tidemark import TidemarkBook
from geo_replicator.topology import LedgerTopics
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable
from region_broker.region.mirror.mirror_log import key_of
from region_broker.region.ports import MetadataSide

_log: Final = logging.getLogger("tidemark.cut_leader")


def _committed(partition: Partition) -> int:
    return partition.high_watermark


class MovedLogs:
    """The logs of one cut leader. `open` subscribes to them, `close` ends that."""

    def __init__(
        self,
        partitions: PartitionTable,
        metadata: MetadataSide,
        ledgers: LedgerTopics,
        book: TidemarkBook,
        on_move: Callable[[], None],
        *,
        adopts: bool,
    ) -> None:
        """Call `on_move` whenever a log has news; `book` holds the last tidemark.

        `adopts`: nothing was written in the term's region epoch yet.
        """
        self.end_of: Callable[[Partition], int] = _committed
        """Up to where a log has what a tidemark is to cover."""
        self._partitions = partitions
        self._metadata = metadata
        self._ledgers = ledgers
        self._book = book
        self._on_move = on_move
        self._moved: dict[LogKey, None] = {}
        self._unsubscribe: dict[LogKey, Callable[[], None]] = {}
        self._followed_version = -1
        self._round_ends: dict[LogKey, int] = {}
        self._stopped_before = {
            key_of(partition) for partition in partitions if adopts and partition.failed is not None
        }

    def follow_topics(self) -> bool:
        """Subscribe again if the topics have changed since; tell whether."""
        if self._metadata.image.version == self._followed_version:
            return False
        self.open()
        return True

    def open(self) -> None:
        """Subscribe to every log but `__tidemarks`, and look at those that are new."""
        self._followed_version = self._metadata.image.version
        seen = set()
        for partition in self._partitions:
            key = key_of(partition)
            seen.add(key)
            if key == self._ledgers.tidemark_key or key in self._unsubscribe:
                continue
            self._unsubscribe[key] = partition.watchers.add(partial(self._look_at, key, partition))
            self._look_at(key, partition)
        for key in [key for key in self._unsubscribe if key not in seen]:
            self._unsubscribe.pop(key)()
            self._moved.pop(key, None)

    def close(self) -> None:
        """Subscribe to nothing any more."""
        for unsubscribe in self._unsubscribe.values():
            unsubscribe()
        self._unsubscribe.clear()

    def note_round(self, key: LogKey, end: int) -> None:
        """Note where the ROUND record of a ledger shard ends, which is no news."""
        self._round_ends[key] = max(self._round_ends.get(key, 0), end)

    def take(self) -> dict[LogKey, Partition]:
        """Return the moved logs that have a D; forget that they moved."""
        asked: dict[LogKey, Partition] = {}
        moved, self._moved = self._moved, {}
        for key in moved:
            partition = self._partitions.by_id(key.topic_id, key.partition)
            if partition is None:
                continue
            if partition.failed is not None:
                _log.error("tidemarks wait: %s has stopped: %s", partition.tp, partition.failed)
            if self._ledgers.has_cut_offset(key):
                asked[key] = partition
        return asked

    def add(self, key: LogKey) -> None:
        """Note that a log moved past what was asked of it."""
        self._moved[key] = None

    def forget_old(self) -> bool:
        """Forget what the last tidemark covers; return whether there is more."""
        self._moved = {key: None for key in self._moved if self._holds_news(key)}
        return bool(self._moved)

    def hold_news(self) -> bool:
        """Return whether there is anything that the last tidemark does not cover."""
        return any(self._holds_news(key) for key in self._moved)

    def _holds_news(self, key: LogKey) -> bool:
        partition = self._partitions.by_id(key.topic_id, key.partition)
        return partition is not None and self._is_news(key, partition)

    def _look_at(self, key: LogKey, partition: Partition) -> None:
        if self._is_news(key, partition):
            self._moved[key] = None
            self._on_move()

    def _is_news(self, key: LogKey, partition: Partition) -> bool:
        """Return whether the log holds something durable that the last tidemark does not (INV-CL2).

        A log start that moved is news, too: mirrors delete by it (T14).
        """
        if key in self._stopped_before:
            return False
        if not self._ledgers.has_cut_offset(key):
            return partition.high_watermark > self._round_ends.get(key, 0)
        newest = self._book.newest
        known = None if newest is None else newest.positions.get(key)
        return (
            known is None
            or self.end_of(partition) > known.cut_offset
            or partition.log_start_offset > known.log_start_offset
        )
