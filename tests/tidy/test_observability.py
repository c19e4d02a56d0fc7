"""Dashboard, alerts and the list of metrics name what a node really offers."""

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from idempotency.ledger_records import TxnStatus
from region_broker.http_api.cluster_metrics import ClusterCollector
from region_broker.http_api.doors import Doors
from region_broker.http_api.region_metrics import RegionCollector
from region_broker.http_api.waiting import Waiting, WaitingCollector
from region_broker.metrics import Metrics
from region_broker.node.auditing import AuditCollector
from region_broker.node.client_quotas import ClientQuotas
from region_broker.node.gauges import GaugeSources, NodeCollector
from region_broker.node.http_doors import DoorCollector
from region_broker.node.name_series import NameCollector
from region_broker.ports.network import FailedHandshake
from region_broker.ports.system.clock import SystemClock
from region_broker.security.audit.recorder import AuditRecorder
from region_broker.security.failed_handshakes import FailedHandshakes
from region_broker.security.tls import TlsCollector, TlsState
from tests.fixtures.cluster_views import view
from tests.fixtures.kafka_port import node_file
from tests.fixtures.node_logs import ManualClock, fixture
from tests.fixtures.scrubbing import Twin, scrubber_of
from tests.simulation.disk import SimulatedDisk
from tests.tidy.tree import ROOT
from tests.unit.region_broker.security.audit.chains import opened

FOLDER = ROOT / "docs" / "observability"
NAME = re.compile(r"\b(?:tidemark|process)_[a-z_0-9]+\b")
GROUPED = {"tidemark_request_seconds", "tidemark_loop_lag_seconds"}


class Region:
    """A region that says what a region says."""

    def describe(self) -> dict[str, Any]:
        """See `RegionApi`."""
        return {
            "region": "eu", "domain": "main", "acting": True, "region_epoch": 8,
            "tidemark": {"number": 1, "age_ms": 1}, "lag": {}, "waits_for": "", "runs_twice": {},
            "diverged_records": 0,
            "link": {"state": None, "age_ms": None},
        }  # fmt: skip


class Cluster:
    """A region of several nodes that says what the one that leads says."""

    def describe(self) -> dict[str, Any]:
        """See `ClusterApi`."""
        return view(1)


def offered() -> set[str]:
    """Return the name of every series of a node."""
    found = families()
    return {sample.name for family in found for sample in family.samples} | {
        family.name for family in found
    }


def families() -> list[Metric]:
    """Return all that a node offers."""
    metrics = Metrics()
    metrics.api("Produce").answered(duration_s=0.1, request_bytes=1, response_bytes=1)
    metrics.error("Produce", "x")
    metrics.connections_refused.labels("x").inc()
    metrics.logins.labels("x", "refused").inc()
    node = fixture()
    sources = GaugeSources(
        partitions=node.table,
        transactions=lambda: dict.fromkeys(TxnStatus, 0),
        group_states=lambda: (),
        offsets=lambda: {"taken": 0, "refused": 0},
        held_back=lambda: {"logs": 0, "ms": 0, "splits": 0},
        scrub=scrubber_of(node, Twin(node.partition)).figures,
    )
    collectors: list[Collector] = [
        NodeCollector(sources),
        ClientQuotas(None, None, SystemClock()),  # type: ignore[arg-type]  # limits nobody
        NameCollector(fixture().table, tuple, names_max=1),
        RegionCollector(Region()),  # type: ignore[arg-type]  # a part of it
        WaitingCollector(Waiting(region="eu", reason=str, without_leader_ms=int)),
        ClusterCollector(Cluster()),  # type: ignore[arg-type]  # a part of it
        DoorCollector(node_file(), Doors()),
        TlsCollector(TlsState([]), SystemClock()),
        failed_handshakes(),
        AuditCollector(
            AuditRecorder(opened(SimulatedDisk()), ManualClock(), node="eu/1", bytes_max=1)
        ),
    ]
    found = [*metrics.registry.collect()]
    for collector in collectors:
        found += collector.collect()
    return found


def failed_handshakes() -> FailedHandshakes:
    failed = FailedHandshakes(SystemClock())
    failed.on_port("kafka")(FailedHandshake("a client", "gone", "it is gone"))
    return failed


def named(text: str) -> Iterator[str]:
    """Yield the metrics that a text names; a prefix with a star stands for many."""
    for name in NAME.findall(text):
        yield name.removesuffix("_")


def expect_offered(text: str) -> None:
    """Fail unless every metric in `text` is offered."""
    there = offered()
    assert not {name for name in named(text) if name not in there and name != "process"}


def test_the_dashboard_asks_for_what_there_is() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text())
    expressions = [target["expr"] for panel in dashboard["panels"] for target in panel["targets"]]
    assert len(expressions) >= 18
    for expression in expressions:
        expect_offered(expression)


def test_alerts_ask_for_what_there_is_and_name_runbooks_that_are_there() -> None:
    text = (FOLDER / "alerts.yml").read_text()
    for line in text.splitlines():
        if line.lstrip().startswith("expr:"):
            expect_offered(line)
    runbooks = re.findall(r"runbook: (\S+)", text)
    assert runbooks
    assert not [path for path in runbooks if not (ROOT / path).is_file()]


@pytest.mark.parametrize("name", ["alerts.yml", "dashboard.json"])
def test_only_counters_are_taken_for_counters(name: str) -> None:
    """`increase` and `rate` take each fall for a start at 0, and a series that begins above 0 for none: of a gauge both are wrong."""
    gauges = {family.name for family in families() if family.type == "gauge"}
    asked = re.findall(r"\b(?:increase|rate|irate)\((\w+)", (FOLDER / name).read_text())
    assert asked
    assert not gauges & set(asked)


def test_the_list_of_metrics_is_whole_and_true() -> None:
    text = (FOLDER / "README.md").read_text()
    expect_offered(text)
    ours = {
        name.removesuffix("_total").removesuffix("_created")
        for name in offered()
        if name.startswith("tidemark_") and not name.endswith(("_bucket", "_sum", "_count"))
    }
    listed = {name.removesuffix("_total") for name in named(text)}
    assert ours - listed == set(), "say in docs/observability/README.md what they mean"
