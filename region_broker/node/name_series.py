"""Series per topic and per consumer group for Prometheus, for a bounded number of names.

INV-NSR1  at most `names_max` topics and as many groups have series of their own; a name keeps its place as long as it is
         there, so that no rate jumps, unless there are fewer places now. All other topics are summed up under `OTHERS`, which is no legal name; other groups
         are only counted: to look at tens of thousands of groups would hold the event loop
The counts are kept where batches pass, one addition each; nothing is counted per record.

Not here: gauges of the node as a whole (`gauges`).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from typing_extensions import override

from idempotency.identity import INTERNAL_TOPICS
from region_broker.groups.offsets import Places
from region_broker.partitions.table import PartitionTable

OTHERS: Final = "(others)"


class Named:
    """Who has series of its own (INV-NSR1)."""

    def __init__(self, names_max: int) -> None:
        """Give `names_max` places."""
        self.names_max = names_max
        """Places that there are; with fewer, who came last loses its own at the next settling."""
        self._taken: dict[str, None] = {}

    def settle(self, names: Iterable[str]) -> None:
        """Free the places of names that are gone, and give them to others in the order of their names."""
        there = set(names)
        staying = [name for name in self._taken if name in there]
        self._taken = dict.fromkeys(staying[: self.names_max])
        free = self.names_max - len(self._taken)
        for name in sorted(there - self._taken.keys())[:free]:
            self._taken[name] = None

    def __contains__(self, name: object) -> bool:
        """Return whether a name has series of its own."""
        return name in self._taken

    def label(self, name: str) -> str:
        """Return the label of a name: its own, or that of all others."""
        return name if name in self._taken else OTHERS


@dataclass(slots=True)
class _Topic:
    records: int = 0
    written_bytes: int = 0
    read_bytes: int = 0
    log_bytes: int = 0


class NameCollector(Collector):
    """Offers what topics take and give, and how far groups are behind."""

    def __init__(
        self, partitions: PartitionTable, offsets: Callable[[], Iterable[Mapping[str, Places]]],
        names_max: int,
    ) -> None:  # fmt: skip
        """Read from `partitions`, and `offsets`: what groups have committed, by group, of each shard served here."""
        self._partitions = partitions
        self._offsets = offsets
        self._topics = Named(names_max)
        self._groups = Named(names_max)

    def limit(self, names_max: int) -> None:
        """Give so many places from now on."""
        self._topics.names_max = self._groups.names_max = names_max

    def describe(self) -> Iterable[Metric]:
        """Name nothing beforehand: at registration nothing is loaded yet."""
        return []

    @override
    def collect(self) -> Iterator[Metric]:
        """Return the series of now."""
        topics = self._by_topic()
        for name, text, attribute in (
            ("records", "Offsets that a topic's logs have given out", "records"),
            (
                "written_bytes",
                "Bytes of batches written to a topic since the start",
                "written_bytes",
            ),
            ("read_bytes", "Bytes of a topic given to readers since the start", "read_bytes"),
        ):
            counter = CounterMetricFamily(f"tidemark_topic_{name}", text, labels=["topic"])
            for label, counts in topics.items():
                counter.add_metric([label], getattr(counts, attribute))
            yield counter
        size = GaugeMetricFamily(
            "tidemark_topic_log_bytes", "Bytes of a topic's logs", labels=["topic"]
        )
        for label, counts in topics.items():
            size.add_metric([label], counts.log_bytes)
        yield size
        yield from self._lags()

    def _by_topic(self) -> dict[str, _Topic]:
        there = [each for each in self._partitions if each.tp.topic not in INTERNAL_TOPICS]
        self._topics.settle(each.tp.topic for each in there)
        topics: dict[str, _Topic] = defaultdict(_Topic)
        for partition in there:
            counts = topics[self._topics.label(partition.tp.topic)]
            counts.records += partition.high_watermark
            counts.written_bytes += partition.writer.written_bytes
            counts.read_bytes += partition.reader.read_bytes
            counts.log_bytes += partition.log.size_bytes
        return topics

    def _lags(self) -> Iterator[Metric]:
        shards = list(self._offsets())
        self._groups.settle(name for committed in shards for name in committed)
        lags = GaugeMetricFamily(
            "tidemark_group_lag_records",
            "Records that a group has not committed",
            labels=["group", "topic"],
        )
        unnamed = 0
        for committed in shards:
            for group_id, places in committed.items():
                if group_id not in self._groups:
                    unnamed += 1
                    continue
                for topic, lag in self._lag_by_topic(places).items():
                    lags.add_metric([group_id, topic], lag)
        yield lags
        yield GaugeMetricFamily(
            "tidemark_groups_without_series",
            "Groups with offsets beyond metrics_names_max",
            value=unnamed,
        )

    def _lag_by_topic(self, places: Places) -> dict[str, int]:
        lags: dict[str, int] = defaultdict(int)
        for tp, place in places.items():
            partition = self._partitions.get(tp.topic, tp.partition)
            end = place.committed_offset if partition is None else partition.sight.visible_end
            lags[self._topics.label(tp.topic)] += max(end - place.committed_offset, 0)
        return lags
