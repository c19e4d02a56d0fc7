"""Rates and quantiles between two scrapes, against values worked out by hand."""

import math

from region_broker.cli.inspect.samples import Between, Scrape

BEFORE = """
tidemark_requests_total{api="Produce"} 100
tidemark_requests_total{api="Fetch"} 7
tidemark_answered_errors_total{api="Produce",error="not_leader_or_follower"} 1
tidemark_request_bytes_total{api="Produce"} 1000
tidemark_request_seconds_bucket{api="Produce",le="0.001"} 100
tidemark_request_seconds_bucket{api="Produce",le="0.01"} 100
tidemark_request_seconds_bucket{api="Produce",le="+Inf"} 100
"""
AFTER = """
tidemark_requests_total{api="Produce"} 300
tidemark_requests_total{api="Fetch"} 7
tidemark_answered_errors_total{api="Produce",error="not_leader_or_follower"} 5
tidemark_request_bytes_total{api="Produce"} 5000
tidemark_request_seconds_bucket{api="Produce",le="0.001"} 200
tidemark_request_seconds_bucket{api="Produce",le="0.01"} 300
tidemark_request_seconds_bucket{api="Produce",le="+Inf"} 300
"""


def between(before: str = BEFORE, after: str = AFTER) -> Between:
    return Between(Scrape.of(before, 10.0), Scrape.of(after, 12.0))


def test_rates_are_differences_over_the_time_between() -> None:
    (produce,) = between().apis()
    assert (produce.api, produce.requests_per_s, produce.errors_per_s) == ("Produce", 100.0, 2.0)
    assert produce.in_bytes_per_s == 2_000.0


def test_quantiles_are_linear_within_their_bucket() -> None:
    (produce,) = between().apis()
    # 100 of 200 requests took up to 1 ms, 100 took 1 to 10 ms.
    assert math.isclose(produce.p50_ms, 1.0)
    assert math.isclose(produce.p99_ms, 1 + 9 * 0.98)


def test_a_counter_that_fell_began_anew() -> None:
    assert between(AFTER, BEFORE).rate("tidemark_requests_total", api="Produce") == 50.0


def test_beyond_the_last_bound_is_that_bound() -> None:
    slow = AFTER.replace('le="+Inf"} 300', 'le="+Inf"} 90000')
    (produce,) = between(BEFORE, slow).apis()
    assert math.isclose(produce.p50_ms, 10.0)


def test_what_was_not_asked_is_not_listed_and_what_is_missing_is_zero() -> None:
    assert [rate.api for rate in between().apis()] == ["Produce"]
    assert between().after.value("tidemark_connections") == 0.0
