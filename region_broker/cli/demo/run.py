"""The demo's acts, in order, and the table at the end."""

import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.demo import secure
from region_broker.cli.demo.hosts import HostedFleet
from region_broker.cli.demo.losses import Asked, Comparison, compare
from region_broker.cli.demo.mirror_audit import Audit, MirrorAuditor
from region_broker.cli.demo.nodes import NodesOfRegion
from region_broker.cli.demo.report import labelled, render
from region_broker.cli.demo.story import Story
from region_broker.cli.kafka import admin_client, wait_for
from region_broker.cli.output import print_json, print_object
from region_broker.ports.system.chance import SystemChance
from region_broker.security.login import NO_SECURITY, Security
from region_broker.workbench import stage
from region_broker.workbench.audit import Entry, Findings, audit, read_accounts, shorten
from region_broker.workbench.cluster_plan import ClusterError
from region_broker.workbench.dataset import Transfer
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError
from region_broker.workbench.workload import (
    ACCOUNT_PARTITIONS,
    ACCOUNTS_TOPIC,
    INPUT_TOPIC,
    Journal,
    committed_rows,
    produce_input,
)

PRIMARY: Final = "eu"
OTHER: Final = "us"
INPUT_PARTITIONS: Final = 8
_PROGRESS_INTERVAL_S: Final = 2.0
_ROW_TIMEOUT_S: Final = 0.2
_SETTLE_TIMEOUT_S: Final = 60.0
_SHOWN_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What the command line asked for."""

    transfers: list[Transfer]
    worker_count: int
    engine: str
    folder: Path
    report_path: Path
    as_json: bool
    rows_in_source: int
    node_count: int = 1
    secure: bool = False


@dataclass(slots=True)
class Facts:
    """What the acts found out, for the table."""

    statement: Mapping[str, Any] = field(default_factory=dict)
    losses: Sequence[Mapping[str, Any]] = ()
    compared: Comparison = field(default_factory=Comparison)
    audits: list[Audit] = field(default_factory=list)
    without_writes_s: float = 0.0
    throughput_per_s: float = 0.0
    reconciled: Mapping[str, Any] = field(default_factory=dict)
    leaders_killed: list[str] = field(default_factory=list)
    differing_nodes: list[str] = field(default_factory=list)
    folders: Mapping[str, Path] = field(default_factory=dict)


def perform(plan: Plan) -> list[str]:
    """Play the demo; return which invariants are broken (none, if all is well)."""
    story = Story(quiet=plan.as_json)
    journal, facts = Journal(), Facts()
    cluster = LocalCluster.open(
        plan.folder, region_count=2, port=0, new_cluster_id=SystemChance().uuid(),
        node_count=plan.node_count,
    )  # fmt: skip
    try:
        with cluster:
            made = secure.shut(cluster) if plan.secure else None
            as_worker = _set_up(plan, story, cluster)
            if made is not None and not plan.as_json:
                secure.announce(cluster, made)
            _work_through_failover(plan, story, cluster, journal, facts, as_worker)
            findings = _audit(plan, story, cluster, journal, facts)
            facts.folders = {name: stage.leading_folder(cluster, name) for name in (OTHER, PRIMARY)}
        facts.reconciled = _reconcile(plan, story, facts)
    except (ClusterError, stage.StageError, KafkaException, ApiError, OSError) as error:
        return [f"the demo could not go on: {error!r}"]
    finally:
        secure.leave()
    broken = _judge(findings, facts, plan)
    _conclude(plan, story, journal, facts, findings, broken)
    return broken


def _set_up(plan: Plan, story: Story, cluster: LocalCluster) -> Security:
    """Start the regions, and write the input; return as whom workers ask."""
    several = f" of {plan.node_count} nodes" if plan.node_count > 1 else ""
    story.tell(f"starting two regions{several}, eu (primary) and us, each {'node ' if several else ''}a process of its own")  # fmt: skip
    cluster.start(on_up=lambda name: story.progress(f"node {name} runs") if several else None)
    if several:
        story.progress("waiting for the nodes of eu to be in sync")
        NodesOfRegion(cluster, PRIMARY).until_in_sync()
    bootstrap = cluster.place(PRIMARY).bootstrap
    topics = [
        NewTopic(INPUT_TOPIC, INPUT_PARTITIONS, 1),
        NewTopic(ACCOUNTS_TOPIC, ACCOUNT_PARTITIONS, 1),
    ]
    client = admin_client(bootstrap)
    for name, future in client.create_topics(topics).items():
        wait_for(future, f"topic {name} was not created")
    as_worker = NO_SECURITY
    if plan.secure:
        as_worker = secure.let_workers_in(bootstrap)
        story.tell(
            "TLS on all ports; workers log in by SCRAM, and may do their work alone, by ACLs"
        )
    count = produce_input(bootstrap, plan.transfers, INPUT_PARTITIONS)
    stage.wait_mirrored(cluster, PRIMARY, OTHER, _SETTLE_TIMEOUT_S)
    story.tell(f"{count:,} rows written to {INPUT_TOPIC} in eu, copied to us")
    return as_worker


def _work_through_failover(
    plan: Plan, story: Story, cluster: LocalCluster, journal: Journal, facts: Facts,
    as_worker: Security,
) -> None:  # fmt: skip
    total = len(plan.transfers)
    timeout_s = row_timeout_s(total)
    fleet = HostedFleet(plan.worker_count, cluster.bootstrap, journal, as_worker)
    auditors = {region: _auditor(cluster, region) for region in (OTHER, PRIMARY)}
    fleet.start()
    try:
        began_s = time.monotonic()
        story.tell(f"{plan.worker_count} workers consume, transfer and commit", "work begins")
        auditors[OTHER].start()
        first = total // (2 if plan.node_count == 1 else 4)
        watch(story, journal, total, timeout_s, lambda: len(journal.acks) >= first)
        facts.throughput_per_s = len(journal.acks) / (time.monotonic() - began_s)
        if plan.node_count > 1:
            _lose_leader(story, cluster, journal, total, facts)
            watch(story, journal, total, timeout_s, lambda: len(journal.acks) >= total // 2)
        before = len(journal.acks)
        auditors[OTHER].stop()
        _lose_primary(story, cluster, facts)
        acts_since_s = time.monotonic()
        stage.wait_until(
            "a commit in the new region", _SETTLE_TIMEOUT_S,
            lambda: len(journal.acks) >= total
            or any(ack.at_s > acts_since_s for ack in journal.acks[before:]),
        )  # fmt: skip
        facts.without_writes_s = longest_pause_s(journal)
        story.tell(
            f"workers go on in us; longest time without a commit: {facts.without_writes_s:.2f} s",
            "work goes on",
        )
        watch(story, journal, total, timeout_s, lambda: len(journal.acks) >= total * 3 // 4)
        _return_primary(story, cluster, facts)
        auditors[PRIMARY].start()
        bootstrap = cluster.place(OTHER).bootstrap
        watch(
            story, journal, total, timeout_s,
            lambda: len(journal.acks) >= total
            and committed_rows(bootstrap, INPUT_PARTITIONS) >= total,
        )  # fmt: skip
        # A short stream may be over before the mirror was looked at.
        stage.wait_until(
            "an audit of the mirror", _SETTLE_TIMEOUT_S, lambda: auditors[PRIMARY].has_judged
        )
        auditors[PRIMARY].stop()
    finally:
        fleet.stop()
    story.tell(f"all {total:,} rows are committed", "all committed")
    facts.audits = [audit for auditor in auditors.values() for audit in auditor.result()]


def _lose_leader(
    story: Story, cluster: LocalCluster, journal: Journal, total: int, facts: Facts
) -> None:
    """Kill the node that leads the primary region: the region goes on, and its mirror with it."""
    facts.leaders_killed.append(NodesOfRegion(cluster, PRIMARY).lose_leader(story, journal, total))
    stage.wait_mirrored(cluster, PRIMARY, OTHER, _SETTLE_TIMEOUT_S)


def _auditor(cluster: LocalCluster, region: str) -> MirrorAuditor:
    bootstrap = cluster.place(region).bootstrap
    return MirrorAuditor(bootstrap, ACCOUNTS_TOPIC, ACCOUNT_PARTITIONS, _half_of_row)


def _half_of_row(value: bytes) -> tuple[str, int]:
    row_id, change, _ = json.loads(value)
    return str(row_id), int(change)


def watch(
    story: Story, journal: Journal, total: int, timeout_s: float, done: Callable[[], bool]
) -> None:
    """Tell how the workload goes on until `done`; raises `StageError` when that takes longer than `timeout_s`."""
    shown_s = time.monotonic()

    def finished() -> bool:
        nonlocal shown_s
        if time.monotonic() - shown_s > _PROGRESS_INTERVAL_S:
            shown_s = time.monotonic()
            story.tell(f"{len(journal.acks):,} commits answered, {total:,} rows in all")
        return bool(done())

    stage.wait_until("the workload's progress", timeout_s, finished)


def _lose_primary(story: Story, cluster: LocalCluster, facts: Facts) -> None:
    cluster.kill(PRIMARY)
    each = "" if len(cluster.place(PRIMARY).nodes) == 1 else ", each of its nodes"
    story.tell(f"region eu was killed with SIGKILL{each}, in mid-stream", "eu killed")
    facts.statement = stage.loss_statement(cluster, OTHER)
    story.tell(_state(facts.statement))
    operation = stage.fail_over(cluster, OTHER, _SETTLE_TIMEOUT_S)
    # The statement that counts is the one made by the failover itself, before it acted.
    facts.statement = operation["statement"]
    story.tell(
        f"region us acts under region epoch {operation['region_epoch']}, from tidemark"
        f" {facts.statement['tidemark_number']}; the statement it kept before it acted names"
        f" {facts.statement['transaction_count']}",
        "us acts",
    )


def _state(statement: Mapping[str, Any]) -> str:
    return (
        f"loss statement: us stands at tidemark {statement['tidemark_number']},"
        f" {statement['age_ms']} ms old; {statement['transaction_count']} commits that arrived are"
        f" beyond it, and whatever eu acknowledged in its last {statement['last_heard_ms']} ms"
    )


def row_timeout_s(row_count: int) -> float:
    """Return how long so many rows may take."""
    return 30 + row_count * _ROW_TIMEOUT_S


def longest_pause_s(journal: Journal) -> float:
    """Return the longest time between two commits."""
    with journal.lock:
        times = sorted(ack.at_s for ack in journal.acks)
    return max((after - before for before, after in itertools.pairwise(times)), default=0.0)


def _return_primary(story: Story, cluster: LocalCluster, facts: Facts) -> None:
    story.tell("region eu is started again", "eu returns")
    cluster.start([PRIMARY])
    stage.wait_mirrored(cluster, OTHER, PRIMARY, _SETTLE_TIMEOUT_S)
    facts.losses = stage.losses(cluster, PRIMARY)
    lost = sum(found["transaction_count"] for found in facts.losses)
    story.tell(
        f"eu mirrors us, while work goes on; its tail went to quarantine: {lost} transactions that"
        " us did not have",
        "eu mirrors",
    )


def _audit(
    plan: Plan, story: Story, cluster: LocalCluster, journal: Journal, facts: Facts
) -> Findings:
    story.tell("reading everything back, read-committed, in both regions")
    acting, mirror = cluster.place(OTHER).bootstrap, cluster.place(PRIMARY).bootstrap
    entries = read_accounts(acting)
    mirrored = _read_mirror(cluster, mirror, len(entries))
    count = committed_rows(acting, INPUT_PARTITIONS)
    there = {entry.attempt for entry in entries}
    asked = Asked(journal.acks, journal.unknown)
    if plan.node_count > 1:
        regions = (OTHER, PRIMARY)
        found = (NodesOfRegion(cluster, region).differing() for region in regions)
        facts.differing_nodes = list(itertools.chain.from_iterable(found))
    facts.compared = compare(facts.statement, facts.losses, asked, there, plan.transfers)
    return audit(plan.transfers, count, entries, mirrored, journal)


def _read_mirror(cluster: LocalCluster, bootstrap: str, count: int) -> list[Entry]:
    """Read the mirror once its last tidemark shows all there is: a marker may be ahead of it."""
    stage.wait_mirrored(cluster, OTHER, PRIMARY, _SETTLE_TIMEOUT_S)
    deadline_s = time.monotonic() + _SHOWN_TIMEOUT_S
    while True:
        entries = read_accounts(bootstrap)
        if len(entries) >= count or time.monotonic() > deadline_s:
            return entries


def _reconcile(plan: Plan, story: Story, facts: Facts) -> Mapping[str, Any]:
    story.tell(f"reconciling both regions' logs with {plan.engine}", "reconcile")
    out = plan.folder / "reconcile"
    done = subprocess.run(  # noqa: S603 -- our own command
        [sys.executable, "-m", "region_broker", "reconcile", "all",
         "--primary", str(facts.folders[OTHER]), "--mirror", str(facts.folders[PRIMARY]),
         "--engine", plan.engine, "--out", str(out), "-o", "json"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    try:
        summary: dict[str, Any] = json.loads(done.stdout)
    except ValueError:
        summary = {"error": (done.stderr or done.stdout).strip()[-2000:]}
    summary["exit_code"] = done.returncode
    return summary


def _judge(findings: Findings, facts: Facts, plan: Plan) -> list[str]:
    broken = list(findings.broken)
    if findings.rows_expected != len(plan.transfers):
        broken.append(f"{len(plan.transfers) - findings.rows_expected} rows were not processed")
    if facts.compared.differences:
        broken.append("lost is not what was stated: " + shorten(facts.compared.differences))
    if facts.differing_nodes:
        broken.append("logs that differ between nodes: " + ", ".join(facts.differing_nodes))
    if plan.node_count > 1 and not facts.leaders_killed:
        broken.append("no leading node was killed")
    bad = [audit for audit in facts.audits if not audit.holds]
    if bad or not any(audit.transfer_count for audit in facts.audits):
        broken.append(
            f"the mirror was audited {len(facts.audits)} times, {len(bad)} failed: {bad[:1]}"
        )
    if facts.reconciled.get("exit_code") != 0:
        broken.append(
            f"reconcile ended with {facts.reconciled.get('exit_code')}:"
            f" {facts.reconciled.get('error') or facts.reconciled.get('verdict')}"
        )
    return broken


def _conclude(
    plan: Plan, story: Story, journal: Journal, facts: Facts, findings: Findings,
    broken: Sequence[str],
) -> None:  # fmt: skip
    figures = _figures(plan, journal, facts, findings)
    html = render(
        figures=labelled(figures),
        broken=broken,
        moments=story.moments,
        commits_at_s=[story.since_start(ack.at_s) for ack in journal.acks],
        lost=[str(lost) for lost in facts.compared.lost],
    )
    plan.report_path.write_text(html, encoding="utf-8")
    if plan.as_json:
        lost = [str(each) for each in facts.compared.lost]
        told = {"lost": lost, "broken": list(broken), "report": str(plan.report_path)}
        print_json({**figures, **told})
        return
    click.echo("")
    print_object(labelled(figures), "table", title="tidemark demo")
    if facts.compared.lost:
        click.echo("\ncommitted in eu, cut off by the failover, done again in us:")
        for each in facts.compared.lost:
            click.echo(f"  {each}")
    click.echo(f"\nreport: {plan.report_path}")


def _figures(plan: Plan, journal: Journal, facts: Facts, findings: Findings) -> dict[str, Any]:
    statement, compared = facts.statement, facts.compared
    return {
        "rows": len(plan.transfers),
        "rows_in_source": plan.rows_in_source,
        "transactions_committed": findings.rows_found,
        "torn": len(findings.torn),
        "doubled": len(findings.doubled),
        "missing": len(findings.missing),
        "lost_then_done_again": len(compared.lost),
        "named_beforehand": compared.named_count,
        "not_arrived": compared.not_arrived_count,
        "equal_to_the_statement": not compared.differences,
        "lost_and_never_answered": sum(not lost.answered for lost in compared.lost),
        "mirror_audits": len(facts.audits),
        "mirror_audits_transfers": max((each.transfer_count for each in facts.audits), default=0),
        "mirror_audits_torn": sum(not audit.holds for audit in facts.audits),
        "sum_over_accounts": findings.sum_over_accounts,
        "accounts": findings.accounts,
        "differing_between_regions": findings.differing_regions,
        "seconds_without_a_commit": round(facts.without_writes_s, 2),
        "tidemark_age_ms": statement.get("age_ms"),
        "commits_per_second": round(facts.throughput_per_s),
        "workers_started_anew": journal.rebuilds,
        "reconciliation": facts.reconciled.get("verdict", facts.reconciled.get("error", "?")),
        "coverage": facts.reconciled.get("coverage", "?"),
        **(_of_nodes(plan, facts) if plan.node_count > 1 else {}),
    }


def _of_nodes(plan: Plan, facts: Facts) -> dict[str, Any]:
    return {
        "leaders_killed": len(facts.leaders_killed),
        "nodes_killed_with_the_region": plan.node_count,
        "logs_differing_between_nodes": len(facts.differing_nodes),
    }
