"""The Spark engine against the fault table: the same findings as the local engine, byte for byte."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from geo_replicator.reconciliation.findings import Finding, Kind
from geo_replicator.reconciliation.job import Engine, LocalEngine, Request, reconcile_all
from geo_replicator.reconciliation.plan import Options, Until
from idempotency.record_batch import read_header
from tests.reconciliation.faults import FAULTS, Fault, flip_payload, sound_pair
from tests.reconciliation.sealed import sealed_pair
from tests.reconciliation.two_regions import (
    A0,
    PLAIN,
    Pair,
    Primary,
    flipped,
    segments,
    sound_primary,
    with_crc,
)

pytestmark = [
    pytest.mark.spark,
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::ResourceWarning"),
]

ROOT_KINDS_ONCE = {
    frozenset(kind for kind, _ in fault.roots): fault for fault in reversed(FAULTS)
}.values()
"""One fault per kind of finding: the local engine runs them all, Spark shows that it moves every kind."""


def _roots(findings: list[Finding]) -> set[tuple[object, str]]:
    return {(f.kind, f"{f.topic}-{f.partition}") for f in findings if f.is_root}


@pytest.mark.parametrize("until", list(Until))
def test_a_sound_pair_has_no_finding(spark_engine: Engine, tmp_path: Path, until: Until) -> None:
    source, mirror = sound_pair().write(tmp_path)
    request = Request(source=source, mirror=mirror, options=Options(until=until))
    outcome = reconcile_all(request, spark_engine)
    assert outcome.findings == []
    assert outcome.exit_code == 0
    assert outcome.summary.coverage == 1.0
    assert outcome.summary.engine.startswith("spark ")


@pytest.mark.parametrize("is_damaged", [False, True], ids=["sound", "damaged"])
def test_sealed_topics_are_judged_without_a_key(
    spark_engine: Engine, tmp_path: Path, is_damaged: bool
) -> None:
    pair = sealed_pair(sound_primary())
    if is_damaged:
        flip_payload(pair, A0, 2)
    source, mirror = pair.write(tmp_path)
    request = Request(source=source, mirror=mirror)
    outcome = reconcile_all(request, spark_engine)
    assert _roots(outcome.findings) == (
        {(Kind.CRC_BAD_LOCAL, "accounts-0")} if is_damaged else set()
    )
    assert outcome.exit_code == int(is_damaged)
    assert outcome.summary.decisions_checked > 0
    assert outcome.findings == reconcile_all(request, LocalEngine()).findings


@pytest.mark.parametrize("fault", ROOT_KINDS_ONCE, ids=lambda fault: fault.name)
def test_a_fault_shows_exactly_its_root(spark_engine: Engine, tmp_path: Path, fault: Fault) -> None:
    source, mirror = fault.build().write(tmp_path)
    request = Request(source=source, mirror=mirror, options=Options(until=fault.until))
    outcome = reconcile_all(request, spark_engine)
    assert _roots(outcome.findings) == fault.roots, outcome.findings
    assert outcome.exit_code == fault.exit_code
    local = reconcile_all(request, LocalEngine())
    assert outcome.findings == local.findings
    assert msgspec.structs.replace(outcome.summary, engine="local", run_id="") == (
        msgspec.structs.replace(local.summary, run_id="")
    )


def _twice(primary: Path, away: Path) -> None:
    """A batch stands at the end of one segment and, otherwise, at the start of the next, which is larger."""
    first, second = segments(away, PLAIN)[:2]
    again = second.read_bytes()[: read_header(second.read_bytes()).size_bytes]
    first.write_bytes(first.read_bytes() + with_crc(flipped(again, at=-2)))
    assert second.stat().st_size > first.stat().st_size


def _no_segments(primary: Path, away: Path) -> None:
    for path in (*segments(primary, PLAIN), *segments(away, PLAIN)):
        path.unlink()


def _larger_second(primary: Primary) -> None:
    for _ in range(5):
        primary.plain(PLAIN, 40)


@pytest.mark.parametrize("fault", [_twice, _no_segments])
def test_both_engines_say_the_same_whatever_order_files_are_read_in(
    spark_engine: Engine, tmp_path: Path, fault: Callable[[Path, Path], None]
) -> None:
    pair = Pair.of(sound_primary(_larger_second))
    pair.byte_faults.append(fault)
    source, mirror = pair.write(tmp_path)
    request = Request(source=source, mirror=mirror)
    outcome, local = (reconcile_all(request, engine) for engine in (spark_engine, LocalEngine()))
    assert outcome.findings
    assert outcome.findings == local.findings
    assert outcome.summary.coverage == local.summary.coverage
