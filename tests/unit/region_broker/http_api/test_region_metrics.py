"""What a region's metrics say where something is not known, and of what it waits for."""

import asyncio
import math
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from region_broker.http_api.region_metrics import LINK_STATES, WAITS, RegionCollector
from region_broker.http_api.routes_health import FAMILIES_AT_ONCE, rendered

MIRROR = {
    "lag": {"records": 5, "bytes": None, "ms": 20}, "silent_ms": 300, "link_age_ms": None, "connected": False
}  # fmt: skip
VIEW: dict[str, Any] = {
    "region": "us", "domain": "main", "acting": False, "region_epoch": 8, "primary_region": "eu",
    "tidemark": {"number": 1, "age_ms": 1}, "waits_for": "dispute", "runs_twice": {}, "diverged_records": 0,
    "lag": {"lag": {"records": None, "bytes": 7, "ms": None}, "mirrors": {"asia": MIRROR}},
    "link": {"state": "streaming", "age_ms": None},
}  # fmt: skip


class Region:
    """A region that says `VIEW` of itself."""

    def describe(self) -> dict[str, Any]:
        return VIEW


def offered() -> dict[str, list[float]]:
    families = RegionCollector(Region()).collect()  # type: ignore[arg-type]  # a part of it
    return {family.name: [each.value for each in family.samples] for family in families}


def test_what_is_not_known_is_no_number() -> None:
    values = offered()
    unknown = {name for name, samples in values.items() if any(map(math.isnan, samples))}
    assert unknown == {
        "tidemark_region_lag_records", "tidemark_region_lag_ms", "tidemark_region_link_age_ms",
        "tidemark_mirror_lag_bytes", "tidemark_mirror_link_age_ms",
    }  # fmt: skip
    assert values["tidemark_region_lag_bytes"] == [7]
    assert values["tidemark_mirror_lag_records"] == [5]
    assert values["tidemark_mirror_connected"] == [0]


def test_one_reason_and_one_state_are_1_and_all_others_0() -> None:
    values = offered()
    assert values["tidemark_region_waits"] == [reason == "dispute" for reason in WAITS]
    assert values["tidemark_region_link_state"] == [state == "streaming" for state in LINK_STATES]


def test_a_follower_knows_no_tidemark_and_no_lag(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"tidemark": {"number": None, "age_ms": -1}, "lag": {}, "waits_for": ""}
    link = {"link": {"state": None, "age_ms": None}}
    monkeypatch.setitem(globals(), "VIEW", VIEW | known | link)
    values = offered()
    unknown = {name for name, samples in values.items() if any(map(math.isnan, samples))}
    assert unknown == {
        f"tidemark_region_{name}"
        for name in ("tidemark_number", "tidemark_age_ms", "lag_records", "lag_bytes", "lag_ms", "link_age_ms")
    }  # fmt: skip
    assert values["tidemark_region_primary_silent_ms"] == [0]
    assert not any(values["tidemark_region_waits"])


async def test_INV_HTM1_metrics_are_collected_in_pieces_and_made_into_text_beside_the_loop() -> (
    None
):
    registry, collected = CollectorRegistry(), list[int]()

    class Many(Collector):
        def collect(self) -> Iterable[Metric]:
            for number in range(3 * FAMILIES_AT_ONCE):
                collected.append(number)
                yield GaugeMetricFamily(f"tidemark_{number}", "One of many.", value=number)

    registry.register(Many())
    collected.clear()
    expected = generate_latest(registry)
    collected.clear()
    pieces, outside = list[int](), list[int]()

    async def count_turns() -> None:
        while True:
            pieces.append(len(collected))
            await asyncio.sleep(0)

    async def thread(work: Callable[[], None]) -> None:
        before = len(collected)
        work()
        outside.append(len(collected) - before)

    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(count_turns())
        text = await rendered(registry, thread)
        others.cancel()
    assert text == expected
    assert outside == [0]  # a thread collects nothing: what it would read belongs to the loop
    assert {FAMILIES_AT_ONCE, 2 * FAMILIES_AT_ONCE} <= set(pieces)
