"""Acceptance: each injected fault shows exactly its root finding; a sound pair shows none (spark.md 4.4)."""

from pathlib import Path

import pytest

from geo_replicator.reconciliation.findings import Finding, Kind
from geo_replicator.reconciliation.job import (
    TRANSACTIONS,
    LocalEngine,
    Outcome,
    Request,
    reconcile_all,
)
from geo_replicator.reconciliation.plan import Options, Until
from idempotency.record_batch import read_header
from tests.reconciliation.faults import FAULTS, Fault, Root, sound_pair


def roots(findings: list[Finding]) -> set[Root]:
    return {(f.kind, f"{f.topic}-{f.partition}") for f in findings if f.is_root}


def run(fault: Fault, folder: Path, jobs: tuple[str, ...]) -> Outcome:
    source, mirror = fault.build().write(folder)
    options = Options(until=fault.until)
    return reconcile_all(
        Request(source=source, mirror=mirror, options=options, jobs=jobs), LocalEngine()
    )


@pytest.mark.parametrize("until", list(Until))
def test_a_sound_pair_has_no_finding(tmp_path: Path, until: Until) -> None:
    source, mirror = sound_pair().write(tmp_path)
    outcome = reconcile_all(
        Request(source=source, mirror=mirror, options=Options(until=until)), LocalEngine()
    )
    assert outcome.findings == []
    assert outcome.exit_code == 0
    assert outcome.summary.coverage == 1.0


# Holds INV-RCDI4.
@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: fault.name)
def test_a_fault_shows_exactly_its_root(tmp_path: Path, fault: Fault) -> None:
    outcome = run(fault, tmp_path, ("transactions", "verify"))
    assert roots(outcome.findings) == fault.roots, outcome.findings
    assert sum(finding.is_root for finding in outcome.findings) == len(fault.roots)
    assert outcome.exit_code == fault.exit_code


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.transaction_roots], ids=lambda fault: fault.name
)
def test_transactions_alone_shows_what_readers_would_see(tmp_path: Path, fault: Fault) -> None:
    outcome = run(fault, tmp_path, (TRANSACTIONS,))
    assert roots(outcome.findings) == fault.transaction_roots, outcome.findings


@pytest.mark.parametrize(
    "fault", [f for f in FAULTS if f.transaction_roots], ids=lambda fault: fault.name
)
def test_INV_RCTX8_a_transaction_is_told_by_the_epoch_of_its_data(
    tmp_path: Path, fault: Fault
) -> None:
    """All of the pairs are of transactions v2: decision and marker have the next epoch."""
    pair = fault.build()
    source, mirror = pair.write(tmp_path)
    request = Request(source=source, mirror=mirror, options=Options(until=fault.until), jobs=(TRANSACTIONS,))  # fmt: skip
    written = {
        (topic, partition, header.producer_id, header.producer_epoch)
        for logs in (pair.source, pair.mirror)
        for (topic, partition), log in logs.items()
        for batch in log
        for header in [read_header(batch)]
        if header.is_transactional and not header.is_control
    }
    shown = [each for each in reconcile_all(request, LocalEngine()).findings if each.record_count]
    for each in shown:
        key = (each.topic, each.partition, each.producer_id, each.producer_epoch)
        assert key in written, each


def test_every_kind_of_finding_has_a_fault_that_shows_it() -> None:
    shown = {kind for fault in FAULTS for kind, _ in fault.roots}
    assert set(Kind) - shown == set()
