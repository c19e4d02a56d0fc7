"""What is measured, and how figures of several runs become one row.

INV-BF1  a row states its median and its spread (min..max over the runs), never a best run alone
A percentile is of one run's operations (nearest rank); the row holds the median of the runs' percentiles.
Not here: measuring (`streams`, `transactions`), printing (`command`).
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

MEGA: Final = 1_000_000


class BenchFailed(Exception):
    """A measurement cannot be made; the text says why and what to do next."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What to measure. `seconds` is the measured length of one run, warm-up comes on top."""

    seconds: float
    sizes_bytes: tuple[int, ...]
    """Of a record. The stream of records is measured with each of them, all other loads with the first."""
    partition_count: int
    producer_counts: tuple[int, ...]
    connection_counts: tuple[int, ...]
    run_count: int
    rate_per_s: float = 500.0
    batch_bytes: int = 1_000_000
    megabytes: float = 500.0
    topic_counts: tuple[int, ...] = (1, 2_000)

    @property
    def size_bytes(self) -> int:
        """Return the bytes of one record."""
        return self.sizes_bytes[0]

    @property
    def warm_up_s(self) -> float:
        """Return how long a run goes on before it is measured, in seconds."""
        return min(1.0, self.seconds / 3)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeCost:
    """What one node of several used; `led_count`: how many partitions of the run's topic it leads, the others it follows."""

    node_id: int
    led_count: int
    cpu_s: float
    rss_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """What all nodes used in one run, None where their processes are not known; and this client.

    `nodes`: each of them, where there are several.
    """

    cpu_s: float | None = None
    rss_bytes: int | None = None
    client_cpu_s: float = 0.0
    nodes: Sequence[NodeCost] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One measured run: `count` operations in `seconds`, and how long single ones took."""

    count: float
    seconds: float
    latencies_ms: Sequence[float] = ()
    cost: Cost = Cost()

    @property
    def per_s(self) -> float:
        """Return operations per second."""
        return self.count / self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The figures of one kind of load over its runs."""

    what: str
    unit: str
    producers: int
    size_bytes: int
    runs: Sequence[Run]
    broker: str = ""

    def as_dict(self) -> dict[str, Any]:
        """Return the row as JSON-able values; None where a figure does not apply."""
        rates = [run.per_s for run in self.runs]
        in_records = self.unit == "msg/s"
        return {
            "broker": self.broker,
            "what": self.what,
            "producers": self.producers,
            "size_bytes": self.size_bytes,
            "unit": self.unit,
            "median": round(statistics.median(rates), 1),
            "min": round(min(rates), 1),
            "max": round(max(rates), 1),
            "mb_per_s": round(statistics.median(rates) * self.size_bytes / MEGA, 1)
            if in_records
            else None,
            "p50_ms": self._latency(0.50),
            "p99_ms": self._latency(0.99),
            "node_cpu_s": self._cost([run.cost.cpu_s for run in self.runs], 2),
            "node_cpu_us_each": self._us_each([run.cost.cpu_s for run in self.runs]),
            "client_cpu_us_each": self._us_each([run.cost.client_cpu_s for run in self.runs]),
            "node_rss_mb": self._cost(
                [
                    None if run.cost.rss_bytes is None else run.cost.rss_bytes / MEGA
                    for run in self.runs
                ],
                0,
            ),
            **self._by_node(in_records=in_records),
            "runs": len(self.runs),
        }

    def _by_node(self, *, in_records: bool) -> dict[str, Any]:
        """Return who leads and who follows apart; a follower's figure is the mean of those that lead nothing of the topic."""
        of_runs = [run.cost.nodes for run in self.runs]
        if not all(of_runs):
            return {"leader_cpu_us_each": None, "follower_cpu_us_each": None, "follower_cpu_ns_per_byte": None,
                    "nodes": []}  # fmt: skip
        leading, following = zip(*(_apart(nodes) for nodes in of_runs), strict=True)
        follower_us = self._us_each(following)
        return {
            "leader_cpu_us_each": self._us_each(leading),
            "follower_cpu_us_each": follower_us,
            "follower_cpu_ns_per_byte": round(1000 * follower_us / self.size_bytes, 3)
            if in_records and follower_us is not None
            else None,
            "nodes": [
                {
                    "node": found[-1].node_id,
                    "leads": found[-1].led_count,
                    "cpu_us_each": self._us_each([node.cpu_s for node in found]),
                    "rss_mb": self._cost([node.rss_bytes / MEGA for node in found], 0),
                }
                for found in zip(*of_runs, strict=True)
            ],
        }

    def _latency(self, quantile: float) -> float | None:
        if not all(run.latencies_ms for run in self.runs):
            return None
        found = [percentile(run.latencies_ms, quantile) for run in self.runs]
        return round(statistics.median(found), 3)

    def _us_each(self, cpu_s: Sequence[float | None]) -> float | None:
        """Return the microseconds of CPU for one operation; `cpu_s` is what each run used."""
        pairs = zip(cpu_s, self.runs, strict=True)
        return self._cost(
            [None if used is None else used * MEGA / max(run.count, 1) for used, run in pairs], 3
        )

    @staticmethod
    def _cost(values: Sequence[float | None], digits: int) -> float | None:
        known = [value for value in values if value is not None]
        return round(statistics.median(known), digits) if known else None


def _apart(nodes: Sequence[NodeCost]) -> tuple[float, float | None]:
    """Return the CPU of all that lead, and the mean of those that only follow; None where all lead something."""
    following = [node.cpu_s for node in nodes if not node.led_count]
    leading = sum(node.cpu_s for node in nodes if node.led_count)
    return leading, statistics.mean(following) if following else None


def ratios(ours: Row, theirs: Row) -> dict[str, Any]:
    """Return ours over theirs, run by run in the order they alternated, as medians.

    Rates above 1 and all others below 1 are in our favour. None where a figure does not apply.
    """
    assert (ours.what, ours.producers) == (theirs.what, theirs.producers)
    a, b = ours.as_dict(), theirs.as_dict()
    pairs = zip(ours.runs, theirs.runs, strict=True)
    return {
        "what": ours.what,
        "producers": ours.producers,
        "size_bytes": ours.size_bytes,
        "rate": round(statistics.median(mine.per_s / other.per_s for mine, other in pairs), 2),
        "p50": _over(a["p50_ms"], b["p50_ms"]),
        "p99": _over(a["p99_ms"], b["p99_ms"]),
        "cpu each": _over(a["node_cpu_us_each"], b["node_cpu_us_each"]),
        "memory": _over(a["node_rss_mb"], b["node_rss_mb"]),
    }


def _over(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 2)


def percentile(values: Sequence[float], quantile: float) -> float:
    """Return the nearest-rank percentile; `quantile` in (0, 1], `values` not empty."""
    assert values
    assert 0 < quantile <= 1, quantile
    return sorted(values)[math.ceil(quantile * len(values)) - 1]
