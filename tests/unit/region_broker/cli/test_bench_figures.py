"""Rows of `tidemark bench`: medians, spreads, percentiles."""

from typing import Any

import pytest

from region_broker.cli.bench.figures import Cost, NodeCost, Row, Run, percentile, ratios


@pytest.mark.parametrize(
    ("values", "quantile", "expected"),
    [([7.0], 0.5, 7.0), ([4.0, 1.0, 3.0, 2.0], 0.5, 2.0), ([4.0, 1.0, 3.0, 2.0], 0.99, 4.0),
     ([float(number) for number in range(1, 101)], 0.99, 99.0)],
)  # fmt: skip
def test_percentile_is_nearest_rank(values: list[float], quantile: float, expected: float) -> None:
    assert percentile(values, quantile) == expected


def test_INV_BF1_a_row_has_median_and_spread_of_its_runs() -> None:
    runs = [
        Run(
            count=count, seconds=2.0, latencies_ms=(1.0, 5.0), cost=Cost(cpu_s=1.0, rss_bytes=10**7)
        )
        for count in (200, 1000, 400)
    ]
    row = Row(what="t", unit="msg/s", producers=8, size_bytes=5000, runs=runs).as_dict()
    assert (row["median"], row["min"], row["max"]) == (200.0, 100.0, 500.0)
    assert row["mb_per_s"] == 1.0
    assert (row["p50_ms"], row["p99_ms"]) == (1.0, 5.0)
    assert (row["node_cpu_s"], row["node_cpu_us_each"], row["node_rss_mb"]) == (1.0, 2500.0, 10.0)


def test_figures_that_do_not_apply_are_none() -> None:
    row = Row(
        what="t", unit="txn/s", producers=1, size_bytes=1, runs=[Run(count=1, seconds=1.0)]
    ).as_dict()
    for name in ("mb_per_s", "p50_ms", "p99_ms", "node_cpu_s", "node_cpu_us_each", "node_rss_mb"):
        assert row[name] is None


def test_ratios_are_of_runs_that_alternated() -> None:
    def row(rates: tuple[int, ...], latency_ms: float) -> Row:
        runs = [Run(count=rate, seconds=1.0, latencies_ms=(latency_ms,)) for rate in rates]
        return Row(what="t", unit="msg/s", producers=1, size_bytes=1, runs=runs)

    found = ratios(row((200, 90, 400), 2.0), row((100, 30, 100), 4.0))
    assert (found["rate"], found["p50"], found["p99"]) == (3.0, 0.5, 0.5)


def test_the_cost_of_a_process_is_compared_too() -> None:
    def row(cpu_s: float, rss_bytes: int) -> Row:
        cost = Cost(cpu_s=cpu_s, rss_bytes=rss_bytes, client_cpu_s=0.5)
        run = Run(count=1000, seconds=1.0, cost=cost)
        return Row(what="t", unit="msg/s", producers=1, size_bytes=1, runs=[run])

    assert row(0.2, 10_000_000).as_dict()["client_cpu_us_each"] == 500.0
    found = ratios(row(0.2, 10_000_000), row(0.4, 100_000_000))
    assert (found["cpu each"], found["memory"]) == (0.5, 0.1)


def test_a_ratio_of_what_does_not_apply_is_none() -> None:
    bare = Row(what="t", unit="msg/s", producers=1, size_bytes=1, runs=[Run(count=1, seconds=1.0)])
    assert ratios(bare, bare) == {
        "what": "t",
        "producers": 1,
        "size_bytes": 1,
        "rate": 1.0,
        "p50": None,
        "p99": None,
        "cpu each": None,
        "memory": None,
    }


def test_the_cost_of_several_nodes_is_told_by_node_and_by_who_leads() -> None:
    def run(*nodes: tuple[int, int, float]) -> Run:
        found = [
            NodeCost(node_id=node_id, led_count=led_count, cpu_s=cpu_s, rss_bytes=node_id * 10**7)
            for node_id, led_count, cpu_s in nodes
        ]
        return Run(count=1000, seconds=1.0, cost=Cost(cpu_s=1.0, rss_bytes=1, nodes=found))

    def row(*runs: Run) -> dict[str, Any]:
        return Row(what="t", unit="msg/s", producers=1, size_bytes=100, runs=runs).as_dict()

    led_by_one = row(run((1, 6, 0.5), (2, 0, 0.2), (3, 0, 0.3)))
    assert led_by_one["leader_cpu_us_each"] == 500.0
    assert led_by_one["follower_cpu_us_each"] == 250.0
    assert led_by_one["follower_cpu_ns_per_byte"] == 2500.0
    assert led_by_one["nodes"] == [
        {"node": 1, "leads": 6, "cpu_us_each": 500.0, "rss_mb": 10.0},
        {"node": 2, "leads": 0, "cpu_us_each": 200.0, "rss_mb": 20.0},
        {"node": 3, "leads": 0, "cpu_us_each": 300.0, "rss_mb": 30.0},
    ]
    led_by_all = row(run((1, 2, 0.5), (2, 2, 0.2), (3, 2, 0.3)))
    assert (led_by_all["leader_cpu_us_each"], led_by_all["follower_cpu_us_each"]) == (1000.0, None)
    alone = row(Run(count=1, seconds=1.0))
    assert (alone["nodes"], alone["leader_cpu_us_each"]) == ([], None)
