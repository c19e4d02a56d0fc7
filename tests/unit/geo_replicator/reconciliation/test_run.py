"""A run as a whole: outputs, coverage, horizon, races with a live region, sidecars, exit codes."""

import json
from pathlib import Path

import msgspec
import pyarrow.parquet as pq
import pytest

from geo_replicator.reconciliation import job
from geo_replicator.reconciliation.findings import Kind, Side
from geo_replicator.reconciliation.job import LocalEngine, Outcome, Request, reconcile_all
from geo_replicator.reconciliation.plan import Cut, Fork, Options, Plan, SegmentSpec, Until, pack
from geo_replicator.reconciliation.segments.sidecar import write_sidecar
from idempotency.identity import RegionEpoch
from idempotency.record_batch import read_header
from region_broker.ports.system.disk import RealDisk
from tests.reconciliation.faults import FAULTS, NEXT_LEADER_EPOCH, sound_pair
from tests.reconciliation.two_regions import (
    A0,
    PLAIN,
    TXN_LEDGER,
    Pair,
    Place,
    end_of,
    flipped,
    restamped,
    segments,
    with_crc,
)

TXN_LEDGER_0: Place = (TXN_LEDGER, 0)


def run(pair: Pair, folder: Path, **options: object) -> Outcome:
    source, mirror = pair.write(folder)
    return reconcile_all(
        Request(source=source, mirror=mirror, options=Options(**options)),  # type: ignore[arg-type]
        LocalEngine(),
    )


# Holds INV-RCJB2, INV-RCJB3.
def test_outputs_are_whole_and_the_same_for_the_same_horizon(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "marker_flipped")
    source, mirror = fault.build().write(tmp_path / "regions")
    request = Request(source=source, mirror=mirror, out=tmp_path / "out")
    first = reconcile_all(request, LocalEngine())
    assert first.run_dir is not None
    written = {path.name: path.read_bytes() for path in first.run_dir.rglob("*") if path.is_file()}
    assert set(written) == {
        "_SUCCESS", "manifest.json", "part-00000.parquet", "report.html", "summary.json",
    }  # fmt: skip
    again = reconcile_all(request, LocalEngine())
    assert again.run_dir == first.run_dir
    assert {p.name: p.read_bytes() for p in again.run_dir.rglob("*") if p.is_file()} == written
    assert (first.run_dir.parent / "LATEST").read_text().strip() == first.run_dir.name
    assert not list(first.run_dir.parent.glob(".*"))


def test_the_tables_and_the_page_name_the_finding(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "payload_changed_crc_recomputed")
    source, mirror = fault.build().write(tmp_path / "regions")
    outcome = reconcile_all(
        Request(source=source, mirror=mirror, out=tmp_path / "out"), LocalEngine()
    )
    assert outcome.run_dir is not None
    (row,) = pq.read_table(outcome.run_dir / "findings").to_pylist()
    (finding,) = outcome.findings
    assert (row["finding_id"], row["kind"]) == (finding.finding_id, "divergent")
    assert row["digest_source"] != row["digest_mirror"]
    summary = json.loads((outcome.run_dir / "summary.json").read_bytes())
    assert (summary["exit_code"], summary["coverage"]) == (1, 1.0)
    assert summary["roots"] == {"divergent": 1}
    page = (outcome.run_dir / "report.html").read_text()
    for text in (
        finding.finding_id,
        finding.digest_source,
        finding.digest_mirror,
        "clicks",
        "100 %",
    ):
        assert text in page
    assert "http" not in page.replace("<!doctype html>", "").lower().replace("http-equiv", "")


# Holds INV-RCR1.
def test_a_finding_keeps_its_id_while_the_logs_grow(tmp_path: Path) -> None:
    fault = next(fault for fault in FAULTS if fault.name == "payload_changed_crc_recomputed")
    pair = fault.build()
    (before,) = run(pair, tmp_path / "a").findings
    for logs in (pair.source, pair.mirror):
        logs[PLAIN].append(restamped(logs[PLAIN][-1], base_offset=end_of(logs[PLAIN])))
    after = run(pair, tmp_path / "b").findings
    assert before.finding_id in {finding.finding_id for finding in after}


# Holds INV-RCRP1.
@pytest.mark.parametrize("region", ["primary", "away"])
@pytest.mark.parametrize("place", [A0, TXN_LEDGER_0])
def test_an_unreadable_segment_is_incomplete_not_consistent_and_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, region: str, place: Place
) -> None:
    source, mirror = sound_pair().write(tmp_path)
    plan_of = job.plan_of

    def racing(request: Request, parallelism: int) -> Plan:
        plan = plan_of(request, parallelism)
        target = segments(tmp_path / region, place)[1]
        target.unlink()
        target.mkdir()  # reading it is an error of the disk, not of the log
        return plan

    monkeypatch.setattr(job, "plan_of", racing)
    outcome = reconcile_all(Request(source=source, mirror=mirror), LocalEngine())
    assert outcome.findings == []
    assert outcome.summary.coverage < 1
    assert any(" offsets " in text for text in outcome.summary.not_read)
    assert outcome.exit_code == 3


def test_retention_during_the_run_moves_the_start_and_is_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, mirror = sound_pair().write(tmp_path)
    plan_of = job.plan_of

    def racing(request: Request, parallelism: int) -> Plan:
        plan = plan_of(request, parallelism)
        for region in ("primary", "away"):
            segments(tmp_path / region, PLAIN)[0].unlink()
        return plan

    monkeypatch.setattr(job, "plan_of", racing)
    outcome = reconcile_all(Request(source=source, mirror=mirror), LocalEngine())
    assert outcome.findings == []
    assert outcome.exit_code == 0


def test_history_that_the_source_no_longer_has_is_not_extra(tmp_path: Path) -> None:
    pair = sound_pair()
    pair.byte_faults.append(lambda primary, _: segments(primary, PLAIN)[0].unlink())
    assert run(pair, tmp_path).findings == []


# Holds INV-RCRP1.
def test_nothing_compared_is_never_consistent(tmp_path: Path) -> None:
    outcome = run(sound_pair(), tmp_path, topics=("no-such-*",))
    assert (outcome.exit_code, outcome.summary.coverage) == (3, 0.0)


def test_globs_choose_topics(tmp_path: Path) -> None:
    outcome = run(sound_pair(), tmp_path, topics=("acc*", "clicks"), exclude=("cl*",))
    assert [row.topic for row in outcome.summary.topics] == ["accounts"]
    assert outcome.findings == []


def test_lag_counts_against_its_budget_only(tmp_path: Path) -> None:
    pair = sound_pair()
    del pair.mirror[PLAIN][-1]
    assert run(pair, tmp_path / "a").exit_code == 0
    assert run(pair, tmp_path / "b", rpo_records=2).exit_code == 0
    outcome = run(pair, tmp_path / "c", rpo_records=1)
    assert (outcome.exit_code, outcome.summary.lag_offsets) == (4, 2)


def test_a_known_failover_that_the_mirror_did_not_follow_is_behind_not_damaged(
    tmp_path: Path,
) -> None:
    pair = sound_pair()
    log = pair.source[PLAIN]
    base = read_header(log[-2]).base_offset
    for index in (-2, -1):
        log[index] = restamped(with_crc(flipped(log[index], at=-2)), leader_epoch=NEXT_LEADER_EPOCH)
    source, mirror = pair.write(tmp_path)
    positions = {f"{topic}/{number}": end_of(log) for (topic, number), log in pair.mirror.items()}
    fork = Fork(region_epoch=RegionEpoch(17), positions={**positions, "clicks/0": base})
    until_base = reconcile_all(Request(source=source, mirror=mirror, fork=fork), LocalEngine())
    assert (until_base.findings, until_base.exit_code) == ([], 0)
    beyond = Request(source=source, mirror=mirror, fork=fork, options=Options(until=Until.END))
    outcome = reconcile_all(beyond, LocalEngine())
    assert [finding.kind for finding in outcome.findings] == [Kind.POST_PROMOTION_FORK]
    assert (outcome.findings[0].first_offset, outcome.exit_code) == (base, 4)


def test_a_cut_given_as_positions_bounds_the_comparison(tmp_path: Path) -> None:
    pair = sound_pair()
    pair.mirror[PLAIN][6] = with_crc(flipped(pair.mirror[PLAIN][6], at=-2))
    source, mirror = pair.write(tmp_path)
    at = read_header(pair.mirror[PLAIN][6]).base_offset
    for end, found in ((at, 0), (at + 1, 1)):
        cut = Cut(label="mine", positions={"clicks/0": end})
        outcome = reconcile_all(Request(source=source, mirror=mirror, cut=cut), LocalEngine())
        assert len(outcome.findings) == found
        assert outcome.summary.horizon == "mine"


def test_trusted_sidecars_show_what_was_there_at_the_seal(tmp_path: Path) -> None:
    source, mirror = sound_pair().write(tmp_path)
    sealed = segments(tmp_path / "away", A0)[1]
    write_sidecar(sealed, RealDisk())
    sealed.write_bytes(flipped(sealed.read_bytes(), at=100))
    outcomes = [
        reconcile_all(
            Request(source=source, mirror=mirror, options=Options(trust_sidecars=trust)),
            LocalEngine(),
        )
        for trust in (True, False)
    ]
    assert [outcome.exit_code for outcome in outcomes] == [0, 1]
    assert Kind.CRC_BAD_LOCAL in {finding.kind for finding in outcomes[1].findings}


def test_the_cap_limits_what_is_written_and_not_what_is_counted(tmp_path: Path) -> None:
    pair = sound_pair()
    for index in (2, 4, 6):
        pair.mirror[PLAIN][index] = with_crc(flipped(pair.mirror[PLAIN][index], at=-2))
    source, mirror = pair.write(tmp_path / "regions")
    request = Request(
        source=source, mirror=mirror, options=Options(findings_max=2), out=tmp_path / "out"
    )
    outcome = reconcile_all(request, LocalEngine())
    assert outcome.run_dir is not None
    assert (outcome.summary.findings_total, outcome.summary.findings_listed) == (3, 2)
    assert pq.read_table(outcome.run_dir / "findings").num_rows == 2


# Holds INV-RCP2.
def test_tasks_are_even_and_hold_every_segment_once() -> None:
    sizes = [900, 10, 10, 400, 500, 880]
    specs = [
        SegmentSpec(Side.SOURCE, "t", index, 0, f"/{index}", size << 20, True, -1, -1)
        for index, size in enumerate(sizes)
    ]
    tasks = pack(specs, parallelism=2)
    assert sorted(spec.partition for task in tasks for spec in task) == list(range(len(sizes)))
    loads = [sum(spec.size_bytes for spec in task) >> 20 for task in tasks]
    assert len(tasks) == 3
    assert max(loads) <= 1024
    assert pack([], parallelism=4) == []


def test_a_summary_survives_json(tmp_path: Path) -> None:
    summary = run(sound_pair(), tmp_path).summary
    assert msgspec.json.decode(msgspec.json.encode(summary), type=type(summary)) == summary
