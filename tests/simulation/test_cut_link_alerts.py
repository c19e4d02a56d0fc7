"""The truth about lag: while a link is cut, both sides say so, and the alerts that operators install fire.

The expressions are read from docs/observability/alerts.yml, and judged by what the nodes export. How long they must hold
(`for`) is Prometheus' affair.
"""

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from region_broker.cli.inspect.top import lag_of, told_by
from region_broker.cli.region import lag_text, split_brain
from region_broker.http_api.region_metrics import RegionCollector
from region_broker.region.view import RegionService
from tests.simulation.folder_faults import empty_folder
from tests.simulation.kafka_client import Connection, batch_of
from tests.simulation.region_pair import Pair, Region, region_pair
from tests.simulation.simulated_loop import LoopClock
from tests.simulation.test_folders_without_history import shown, three_records, waits, write
from tests.tidy.tree import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
ALERTS = ROOT / "docs" / "observability" / "alerts.yml"
ALERT = re.compile(r"- alert: (\w+)\s+expr: '([^']+)'")
TERM = re.compile(r"^(tidemark_[a-z_]+) > ([0-9]+)$")


class MovedClock(LoopClock):
    """The loop's time, moved on by hand."""

    moved_ms = 0

    def monotonic_ms(self) -> int:
        return super().monotonic_ms() + self.moved_ms


def view_of(region: Region) -> Mapping[str, Any]:
    """Return what the region tells its operators."""
    return service_of(region).describe()


def service_of(region: Region) -> RegionService:
    """Return the region as its operators reach it."""
    node = region.node
    table = node.storage.partitions
    return RegionService(node.failover, node.operations, table.kept, lambda: table.room.refusal)


def exported(region: Region) -> dict[str, list[float]]:
    """Return the values of every series of the region."""
    service = service_of(region)
    values: dict[str, list[float]] = defaultdict(list)
    for family in RegionCollector(service).collect():
        for sample in family.samples:
            values[sample.name].append(sample.value)
    return values


def firing(region: Region) -> set[str]:
    """Return the alerts about mirrors that hold, of those that compare with a number."""
    values = exported(region)
    found = set()
    for alert, expression in ALERT.findall(ALERTS.read_text()):
        for term in expression.split(" or "):
            match = TERM.match(term)
            if match and any(value > float(match[2]) for value in values[match[1]]):
                found.add(alert)
    return found


def expect_unknown_and_counted(
    mirror: Mapping[str, Any], primary: Mapping[str, Any], records: float
) -> None:
    """Expect that `top` says of a cut link what the regions know."""
    assert lag_of(mirror) == {"records": None, "bytes": None, "ms": None}
    told = told_by(primary)
    assert (told["role"], told["acting"], told["waits_for"]) == ("acting", True, "")
    assert told["mirrors"]["us"]["records"] == told["lag"]["records"] == records
    assert told["mirrors"]["us"]["heard_ms_ago"] >= 20_000
    assert told["mirrors"]["us"]["link_age_ms"] is None


def expect_primary_not_heard(mirror: Region) -> None:
    """Expect that the mirror, which serves reads and so is ready, does not claim that the primary acts (INV-RR6)."""
    service = service_of(mirror)
    said = str(service.describe()["reason_not_acting"])
    assert re.match(r"region eu acted when last heard, 2\d s ago", said), said
    assert "docs/runbooks/region_failover.md" in said
    assert service.not_ready() is None
    assert service.remark() == said


async def test_alerts_fire_on_both_sides_of_a_cut_link_and_lag_grows(tmp_path: Path) -> None:
    pair, clock = Pair(tmp_path, 1), MovedClock()
    pair.eu.clock = pair.us.clock = clock
    await pair.start()
    try:
        await pair.create_topic("orders", 1)
        connection = await Connection.open(pair.fabric.site("client"), pair.eu.kafka_port)
        producer = await connection.init_producer_id(None)
        sequence = 0

        async def write(count: int) -> None:
            nonlocal sequence
            for _ in range(count):
                batch = batch_of(b"value", producer, sequence, transactional=False)
                await connection.produce("orders", {0: batch})
                sequence += 1

        def exports(name: str) -> Callable[[], float]:
            return lambda: exported(pair.eu)[f"tidemark_mirror_{name}"][0]

        records, lag_ms = exports("lag_records"), exports("lag_ms")
        await write(1)
        await pair.until(lambda: pair.us.partition("orders", 0).sight.visible_end == 1, "shown")
        await pair.until(lambda: records() == lag_ms() == 0, "all is taken and reached")
        assert not firing(pair.eu) | firing(pair.us)
        assert view_of(pair.us)["reason_not_acting"] == "region eu acts; this one mirrors it"

        pair.fabric.cut("eu", "us")
        await write(3)
        assert records() >= 3
        before = records()
        await write(4)
        assert records() >= before + 4
        assert exports("lag_bytes")() > 0
        await pair.until(lambda: lag_ms() >= 0, "known")
        clock.moved_ms += 20_000
        assert lag_ms() >= 20_000
        assert {"TidemarkMirrorLags", "TidemarkMirrorNotHeard"} <= firing(pair.eu)
        assert "TidemarkPrimaryNotHeard" in firing(pair.us)
        assert math.isnan(exported(pair.us)["tidemark_region_lag_records"][0])
        primary, mirror = view_of(pair.eu), view_of(pair.us)
        assert re.match(
            r"us: \d+ records, \d+ bytes, \d+ ms, not heard for 2\d s", lag_text(primary)
        )
        assert lag_text(mirror).startswith("unknown, not heard for 2")
        expect_primary_not_heard(pair.us)
        expect_unknown_and_counted(mirror, primary, records())

        pair.fabric.heal("eu", "us")
        await pair.until(lambda: records() == lag_ms() == 0, "all is taken and reached again")
        assert not firing(pair.eu) | firing(pair.us)
        assert service_of(pair.us).remark() == ""
    finally:
        await pair.stop()


async def test_lag_grows_while_the_primary_publishes_no_tidemark(tmp_path: Path) -> None:
    """All bytes arrive, and the mirror shows none of them: by the tidemarks alone it would be whole."""
    async with region_pair(tmp_path, 2) as pair:
        await three_records(pair)

        def lag_ms() -> float:
            return exported(pair.eu)["tidemark_mirror_lag_ms"][0]

        await pair.until(lambda: lag_ms() == 0, "all is reached")
        assert exported(pair.eu)["tidemark_mirror_link_age_ms"][0] >= 0
        link = view_of(pair.us)["link"]
        assert (link["state"], link["age_ms"] >= 0) == ("streaming", True)
        leader = pair.eu.node.tidemarks.cut_leader
        assert leader is not None
        leader.core.interval_ms = 3_600_000
        await leader.final_round()
        await write(pair.eu, b"four")
        at = lag_ms()
        await pair.until(lambda: lag_ms() > at, "it grows")
        assert shown(pair.us) == 3


async def test_a_region_that_waits_for_an_operator_is_a_metric_and_an_alert(tmp_path: Path) -> None:
    async with region_pair(tmp_path, 3) as pair:
        await three_records(pair)
        assert "TidemarkRegionWaits" not in firing(pair.eu) | firing(pair.us)
        await pair.eu.kill()
        empty_folder(pair.eu)
        await pair.eu.begin()
        await waits(pair.eu)
        assert view_of(pair.eu)["waits_for"] == "history"
        assert "TidemarkRegionWaits" in firing(pair.eu)


def test_status_says_which_regions_take_writes_at_the_same_time() -> None:
    views = {
        name: {"acting": True, "region_epoch": epoch} for name, epoch in (("us", 17), ("eu", 8))
    }
    assert split_brain(views) == ["eu (region epoch 8)", "us (region epoch 17)"]
    assert not split_brain({"eu": views["eu"], "us": {"acting": False, "region_epoch": 8}})
