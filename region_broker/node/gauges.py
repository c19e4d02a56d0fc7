"""Gauges of a node for Prometheus, read when they are asked for, and the event loop's lag.

Labels come from fixed sets (states, roles): a cluster of 2,000 topics has no more series than one of 2.
Not here: counters of requests (`region_broker.metrics`), the region's role and tidemark (`http_api`).
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client import Histogram
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from idempotency.ledger_records import TxnStatus
from idempotency.ports import Clock
from region_broker.groups.classic.states import GroupState
from region_broker.groups.modern.states import ModernState
from region_broker.partitions.table import PartitionTable
from txn_coordinator.verdicts import TxnVerdict

LAG_INTERVAL_MS: Final = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class GaugeSources:
    """What is looked at. `transactions` says how many ids are in which state, `group_states` yields the state of every group; `offsets` is of the groups' room for them, `held_back` of the mirror's view, `scrub` of the scrubber."""

    partitions: PartitionTable
    transactions: Callable[[], Mapping[TxnStatus, int] | TxnVerdict]
    group_states: Callable[[], Iterable[str]]
    offsets: Callable[[], Mapping[str, int]]
    held_back: Callable[[], Mapping[str, int]]
    scrub: Callable[[], Mapping[str, int]]


class NodeCollector(Collector):
    """Offers the node's gauges."""

    def __init__(self, sources: GaugeSources) -> None:
        """Read from `sources`."""
        self._sources = sources

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: at registration nothing is loaded yet."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return the gauges of now."""
        yield from self._logs()
        states = self._sources.transactions()
        # Where not all shards are served nobody can say, and 0 would be a lie (INV-TN3).
        known = {} if isinstance(states, TxnVerdict) else states
        yield _by_label(
            "transactions", "Transactional ids by state", "state",
            {status.name.lower(): count for status, count in known.items()},
        )  # fmt: skip
        groups = Counter(self._sources.group_states())
        yield _by_label(
            "groups", "Consumer groups by state", "state",
            {**{state.value: 0 for state in (*GroupState, *ModernState)}, **groups},
        )  # fmt: skip
        offsets = self._sources.offsets()
        yield _gauge("committed_offsets", "What offsets of groups take", offsets["taken"])
        yield _gauge("refused_offsets", "Offsets refused since the start", offsets["refused"])
        held = self._sources.held_back()
        yield _gauge("held_back_logs", "Logs that the whole cut holds back here", held["logs"])
        yield _gauge("held_back_ms", "For how long at most, in ms", held["ms"])
        yield _gauge("held_back_splits", "How often it was given up", held["splits"])
        yield from self._scrub()

    def _scrub(self) -> Iterator[Metric]:
        found = self._sources.scrub()
        for name, text in (
            ("bytes", "Bytes that the scrubber has read since the start"),
            ("passes", "How often it has looked at all sealed segments"),
            ("oldest_look_ms", "How long ago the segment was looked at that waits longest, in ms"),
            ("damaged_ranges", "Damaged ranges of logs that are known and not mended"),
            ("mended_ranges", "Those that were mended since the start"),
        ):
            yield _gauge(f"scrub_{name}", text, found[name])

    def _logs(self) -> Iterator[Metric]:
        count = failed = size_bytes = unstable = corrupt = lost = 0
        for partition in self._sources.partitions:
            count += 1
            failed += partition.failed is not None
            corrupt += partition.reader.corrupt_reads
            size_bytes += partition.log.size_bytes
            unstable += partition.sight.visible_end - partition.sight.last_stable_offset
            lost += sum(gap.lost_records for gap in partition.state.accepted_gaps)
        yield _gauge("partitions", "Partitions of this node", count)
        yield _gauge("partitions_failed", "Partitions that have stopped", failed)
        yield _gauge(
            "corrupt_reads", "Reads refused since the start because stored bytes are wrong", corrupt
        )
        yield _gauge(
            "producers", "Producers that logs know", self._sources.partitions.producers.known
        )
        room = self._sources.partitions.room
        yield _gauge("disk_bytes", "Size of the volume of the logs", room.total_bytes)
        yield _gauge("disk_free_bytes", "Bytes that are free on it", room.free_bytes)
        yield _gauge(
            "disk_writes_refused",
            "1 while the disk is too full for records",
            room.refusal is not None,
        )
        kept = self._sources.partitions.kept
        yield _gauge("kept_deletions", "Deleted topics and partitions kept on disk", kept.count)
        yield _gauge("kept_deletions_bytes", "Bytes of them", kept.size_bytes)
        cold = self._sources.partitions.cold_reads
        yield _gauge("cold_read_bytes", "Bytes of logs read in by a thread", cold.warmed_bytes)
        yield _gauge("cold_reads_waited", "Readings that the loop waited for", cold.waited_count)
        yield _gauge("log_bytes", "Bytes of all logs", size_bytes)
        yield _gauge(
            "undecided_records", "Records between last stable offset and visible end", unstable
        )
        yield _gauge(
            "gap_records", "Records of plain producers missing since a failover, by sequences", lost
        )


class LoopWatch:
    """Measures how much later than asked the event loop comes back."""

    def __init__(self, clock: Clock, lag_s: Histogram) -> None:
        """Observe into `lag_s`."""
        self._clock = clock
        self._lag_s = lag_s

    async def run(self) -> None:
        """Measure until cancelled."""
        while True:
            asked_ms = self._clock.monotonic_ms()
            await self._clock.sleep_ms(LAG_INTERVAL_MS)
            late_ms = self._clock.monotonic_ms() - asked_ms - LAG_INTERVAL_MS
            self._lag_s.observe(max(late_ms, 0) / 1000)


def _gauge(name: str, text: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"tidemark_{name}", text, value=value)


def _by_label(name: str, text: str, label: str, values: Mapping[str, float]) -> GaugeMetricFamily:
    family = GaugeMetricFamily(f"tidemark_{name}", text, labels=[label])
    for value, count in values.items():
        family.add_metric([value], count)
    return family
