"""What readers of a mirror see at a reached tidemark: D of each log, and the whole cut over all of them.

INV-MV1  all logs are shown in one step of the event loop: whoever asks for the ends of several logs at once gets
         the ends of one cut
INV-MV2  a log that the whole cut held below its last stable offset for `whole_wait_ms` is shown up to that, as in
         Kafka; a warning says so, and it is counted. Never happens with `whole_wait_ms` < 0, at once with 0
INV-MV3  looking for the whole cut over n transactions is followed by a rest of n / 64 ms, several times what it
         took, unless n is small; what had to wait is looked for again
INV-MV4  what a start shows again is what was shown: `view` says what must be durable before `show` (T16)
INV-MV5  what was forgotten and not shown lies below D of the first tidemark that covers all of it, in every log: by T8
         and T9 all data of a decision lies there, also where its marker is still to come
INV-MV6  of a log of which nothing is whole at a start nobody is told that it ends there, before the whole cut was looked for:
        nothing may have been known of it, as it had stopped, while the others were shown; nor while what other logs forgot
        keeps that from being found
INV-MV7  where a log that has stopped was shown whole stays known until others are shown more: only then do its end and
        theirs belong to no cut any more

Internal topics take no part: groups and transactions are asked of the primary region.
Not here: the whole cut itself (`geo_replicator.whole_cut`), which tidemark is reached (`geo_replicator.frontier`).
"""

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from geo_replicator.lineage import LogKey
from geo_replicator.whole_cut import Forgotten, LogTransactions, RoundBefore, whole_cut
from geo_replicator.whole_ends import Unlisted, View, WholeEnds
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

    def __init__(
        self,
        partitions: PartitionTable,
        clock: Clock,
        whole_wait_ms: int,
        round_before: RoundBefore,
    ) -> None:
        """Nothing is shown yet; `round_before` knows the tidemarks that were reached (INV-WC5)."""
        self._partitions = partitions
        self._round_before = round_before
        self._clock = clock
        self.whole_wait_ms = whole_wait_ms
        """May be changed at any time: what is held is looked at again by the new one."""
        # D of each log at the last tidemark. Readers may have been shown more of some: where a lineage begins at a base
        # that this mirror does not hold yet, that is no cut, and a transaction has halves which are not here.
        self._cuts: dict[LogKey, int] = {}
        # Logs with something below D that may not be shown yet, in the order they were met.
        self._looked_at: dict[LogKey, None] = {}
        self._held: dict[LogKey, tuple[int, int]] = {}  # end, and since when in ms it stands there
        # Logs that have stopped, and without which others were shown more since (INV-MV7).
        self._left_behind: set[LogKey] = set()
        self._has_forgotten = False
        # D of each log at the first tidemark that covers what was forgotten (INV-MV5).
        self._forgotten_ends: dict[LogKey, int] = {}
        self._rest_until_ms = 0
        self._warned = False
        self._split_count = 0

    def status(self) -> dict[str, int]:
        """Return how many logs the whole cut holds back, for how long at most, and how often in vain."""
        held_ms = self._held_ms(self._clock.monotonic_ms())
        return {"logs": len(self._held), "ms": held_ms, "splits": self._split_count}

    def _held_ms(self, now_ms: int) -> int:
        return max((now_ms - since_ms for _, since_ms in self._held.values()), default=0)

    def show_again(self, cuts: Mapping[LogKey, int], whole: WholeEnds) -> None:
        """Show each of `cuts` up to its D, and what is durable of the whole cut there; nothing beyond it (INV-MV4)."""
        self._has_forgotten = False
        self._forgotten_ends = {}
        self._cuts = dict(cuts)
        self._rest_until_ms = 0  # what is shown again is looked at first
        self._left_behind = {key for key in self._left_behind if self._has_stopped(key)}
        for key, cut_offset in cuts.items():
            partition = self._of(key)
            if partition is None:
                continue
            if _is_internal(partition):
                partition.show_up_to(cut_offset, cut_offset)
                continue
            forgotten_below = partition.state.forgotten_below
            end = whole.end_of(key, cut_offset, forgotten_below)
            partition.show_up_to(cut_offset, end, is_end=end > 0 or cut_offset == 0)  # INV-MV6
            self._looked_at[key] = None
            if partition.sight.whole_end < forgotten_below:
                self._has_forgotten = True

    def view(self, cuts: Mapping[LogKey, int]) -> View:
        """Return what to show: each of `cuts` up to its D, and what the whole cut allows."""
        now_ms = self._clock.monotonic_ms()
        bounds = self._bounds(cuts)
        waits = now_ms < self._rest_until_ms
        ends = {} if waits else self._whole_ends(bounds, now_ms)
        below = {}
        self._note_left_behind(ends)
        for key in self._looked_at:
            partition = self._of(key)
            assert partition is not None, key
            end = max(partition.sight.whole_end, ends.get(key, 0))
            if key in self._left_behind:
                end = 0  # nobody knows where the whole cut ends here (INV-MV6)
            if end < bounds[key]:
                below[key] = end
        again_ms = self._rest_until_ms - now_ms if waits else _LOOK_AGAIN_MS if self._held else 0
        return View(bounds, ends, WholeEnds(Unlisted.AT_CUT, below), again_ms)

    def _note_left_behind(self, ends: Mapping[LogKey, int]) -> None:
        """Note the logs that have stopped if others are to be shown up to `ends` without them (INV-MV7)."""
        stopped = {key for key in self._looked_at if self._has_stopped(key)}
        sights = {key: partition.sight for key in ends if (partition := self._of(key)) is not None}
        if any(ends[key] > sights[key].whole_end for key in sights.keys() - stopped):
            self._left_behind |= stopped

    def _has_stopped(self, key: LogKey) -> bool:
        partition = self._of(key)
        return partition is not None and partition.failed is not None

    def show(self, view: View) -> None:
        """Show `view`, all logs at once (INV-MV1); the whole ends that it names are durable."""
        for key, bound in view.cuts.items():
            partition = self._of(key)
            if partition is not None:
                end = view.ends.get(key, bound if _is_internal(partition) else 0)
                is_found = end > 0 or bound == 0 or not self._has_forgotten  # INV-MV6
                partition.show_up_to(bound, end, is_whole_end=is_found)

    def _bounds(self, cuts: Mapping[LogKey, int]) -> dict[LogKey, int]:
        """Return D of every log that has to be looked at, and remember those."""
        bounds: dict[LogKey, int] = {}
        for key in {**self._looked_at, **dict.fromkeys(cuts)}:
            partition = self._of(key)
            if partition is None:
                self._looked_at.pop(key, None)
                self._held.pop(key, None)
                self._cuts.pop(key, None)
                continue
            bounds[key] = self._cuts[key] = max(cuts.get(key, 0), self._cuts.get(key, 0))
            if not _is_internal(partition):
                self._looked_at[key] = None
        return bounds

    def _whole_ends(self, bounds: Mapping[LogKey, int], now_ms: int) -> dict[LogKey, int]:
        logs = {}
        for key in self._looked_at:
            partition = self._of(key)
            assert partition is not None, key
            logs[key] = _transactions(partition, bounds[key])
        if self._has_forgotten:
            logs = self._with_forgotten(logs, bounds)
        ends = whole_cut(logs, self._round_before)
        count = sum(len(log.committed) + len(log.unended) for log in logs.values())
        self._rest_until_ms = now_ms + count // _TRANSACTIONS_PER_REST_MS
        for key, end in ends.items():
            if end == bounds[key] and not self._has_forgotten:
                del self._looked_at[key]
            stable_offset = logs[key].stable_offset
            if end == stable_offset:
                self._held.pop(key, None)
                continue
            at, since_ms = self._held.get(key, (-1, now_ms))
            if end > at:
                since_ms = now_ms
            self._held[key] = end, since_ms
            if 0 <= self.whole_wait_ms <= now_ms - since_ms:
                ends[key] = stable_offset
                self._split_count += 1
        self._warn(now_ms)
        return ends

    def _with_forgotten(
        self, logs: Mapping[LogKey, LogTransactions], bounds: Mapping[LogKey, int]
    ) -> dict[LogKey, LogTransactions]:
        """Return `logs` with what was forgotten of them, as one transaction over all (INV-WC4)."""
        partitions = {key: partition for key in logs if (partition := self._of(key)) is not None}
        shown = {key: partition.sight.whole_end for key, partition in partitions.items()}
        if self._forgotten_ends and all(
            shown.get(key, end) >= end for key, end in self._forgotten_ends.items()
        ):
            self._has_forgotten = False
            return dict(logs)
        if not self._forgotten_ends and all(
            partition.state.forgotten_below <= min(bounds[key], partition.high_watermark)
            for key, partition in partitions.items()
        ):
            self._forgotten_ends = {key: bounds[key] for key in logs}
        with_forgotten = {}
        for key, log in logs.items():
            # Before that tidemark it ends nowhere, and nothing is shown.
            end = self._forgotten_ends.get(key, 0) if self._forgotten_ends else bounds[key] + 1
            with_forgotten[key] = replace(log, forgotten=Forgotten(shown[key], end))
        return with_forgotten

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
