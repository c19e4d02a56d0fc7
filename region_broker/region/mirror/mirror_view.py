"""What readers of a mirror see at a reached tidemark: D of each log, and the whole cut over all of them.

INV-MV1  all logs are shown in one step of the event loop: whoever asks for the ends of several logs at once gets
         the ends of one cut
INV-MV2  a log that the whole cut held below its last stable offset for `whole_wait_ms` is shown up to that, as in
         Kafka; a warning says so, and it is counted. Never happens with `whole_wait_ms` < 0, at once with 0
INV-MV3  looking for the whole cut over n transactions is followed by a rest of n / 64 ms, several times what it
         took, unless n is small; what had to wait is looked for again

Internal topics take no part: groups and transactions are asked of the primary region.
Not here: the whole cut itself (`geo_replicator.whole_cut`), which tidemark is reached (`geo_replicator.frontier`).
"""

import logging
from collections.abc import Mapping
from typing import Final

from geo_replicator.lineage import LogKey
from geo_replicator.whole_cut import LogTransactions, whole_cut
from idempotency.ports import Clock
from region_broker.controller.metadata_image import INTERNAL_TOPICS
from region_broker.partitions.partition import Partition
from region_broker.partitions.table import PartitionTable

_TRANSACTIONS_PER_REST_MS: Final = 64
_LOOK_AGAIN_MS: Final = 1_000
_WARN_AFTER_MS: Final = 10_000
_log: Final = logging.getLogger("tidemark.mirror")


class MirrorView:
    """Shows the logs of one mirror; remembers which of them hold something back."""

    def __init__(self, partitions: PartitionTable, clock: Clock, whole_wait_ms: int) -> None:
        """Nothing is shown yet."""
        self._partitions = partitions
        self._clock = clock
        self._whole_wait_ms = whole_wait_ms
        # Logs with something below D that may not be shown yet, in the order they were met.
        self._looked_at: dict[LogKey, None] = {}
        self._held: dict[LogKey, tuple[int, int]] = {}  # end, and since when in ms it stands there
        self._rest_until_ms = 0
        self._warned = False
        self._split_count = 0

    def status(self) -> dict[str, int]:
        """Return how many logs the whole cut holds back, for how long at most, and how often in vain."""
        held_ms = self._held_ms(self._clock.monotonic_ms())
        return {"logs": len(self._held), "ms": held_ms, "splits": self._split_count}

    def _held_ms(self, now_ms: int) -> int:
        return max((now_ms - since_ms for _, since_ms in self._held.values()), default=0)

    def show(self, cuts: Mapping[LogKey, int]) -> int:
        """Show each of `cuts` up to its D, and what the whole cut allows.

        Return in how many ms to call again because something waits, 0: no need.
        """
        now_ms = self._clock.monotonic_ms()
        bounds = self._bounds(cuts)
        waits = now_ms < self._rest_until_ms
        ends: Mapping[LogKey, int] = {} if waits else self._whole_ends(bounds, now_ms)
        for key, bound in bounds.items():
            partition = self._of(key)
            if partition is not None:
                partition.show_up_to(bound, ends.get(key, bound if _is_internal(partition) else 0))
        if waits:
            return self._rest_until_ms - now_ms
        return _LOOK_AGAIN_MS if self._held else 0

    def _bounds(self, cuts: Mapping[LogKey, int]) -> dict[LogKey, int]:
        """Return D of every log that has to be looked at, and remember those."""
        bounds: dict[LogKey, int] = {}
        for key in {**self._looked_at, **dict.fromkeys(cuts)}:
            partition = self._of(key)
            if partition is None:
                self._looked_at.pop(key, None)
                self._held.pop(key, None)
                continue
            bounds[key] = max(cuts.get(key, 0), partition.sight.shown_cut_offset)
            if not _is_internal(partition):
                self._looked_at[key] = None
        return bounds

    def _whole_ends(self, bounds: Mapping[LogKey, int], now_ms: int) -> dict[LogKey, int]:
        logs = {}
        for key in self._looked_at:
            partition = self._of(key)
            assert partition is not None, key
            logs[key] = _transactions(partition, bounds[key])
        ends = whole_cut(logs)
        count = sum(len(log.committed) + len(log.unended) for log in logs.values())
        self._rest_until_ms = now_ms + count // _TRANSACTIONS_PER_REST_MS
        for key, end in ends.items():
            stable_offset = logs[key].stable_offset
            if end == stable_offset:
                self._held.pop(key, None)
                if not logs[key].unended:
                    del self._looked_at[key]
                continue
            at, since_ms = self._held.get(key, (-1, now_ms))
            if end > at:
                since_ms = now_ms
            self._held[key] = end, since_ms
            if 0 <= self._whole_wait_ms <= now_ms - since_ms:
                ends[key] = stable_offset
                self._split_count += 1
        self._warn(now_ms)
        return ends

    def _warn(self, now_ms: int) -> None:
        held_ms = self._held_ms(now_ms)
        if held_ms < _WARN_AFTER_MS:
            self._warned = False
        elif not self._warned:
            self._warned = True
            _log.warning(
                "%d logs stand still for read-committed readers since %d s: a transaction that is long open, or "
                "transactions that overlap without end, would be shown by halves. `tidemark txn list` shows them; "
                "mirror_whole_wait_ms = 0 shows each partition by itself, as Kafka does",
                len(self._held),
                held_ms // 1000,
            )

    def _of(self, key: LogKey) -> Partition | None:
        return self._partitions.by_id(key.topic_id, key.partition)


def _is_internal(partition: Partition) -> bool:
    return partition.tp.topic in INTERNAL_TOPICS


def _transactions(partition: Partition, cut_offset: int) -> LogTransactions:
    """Return what is not yet shown of a log at D = `cut_offset`."""
    state = partition.state
    bound = min(cut_offset, partition.high_watermark)
    if bound < state.forgotten_below:
        # A region just back as a mirror, before it knows its cut.
        return LogTransactions(partition.sight.whole_end, [], [])
    # A marker lies behind all data of its transaction: what has one below the whole end is shown. Thousands of those
    # are remembered until maintenance forgets them, and this is asked at every tidemark.
    committed = [
        txn
        for txn in state.committed_below(bound, partition.sight.whole_end)
        if txn.last_offset >= partition.sight.whole_end
    ]
    return LogTransactions(state.last_stable_offset(bound), committed, state.unended_at(bound))
