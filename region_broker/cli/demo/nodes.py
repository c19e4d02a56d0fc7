"""The demo with several nodes: one region of them, whose leading node is killed in mid-stream, again and again.

Not here: the demo with two regions (`run`), of which the workload and the audit are used.
"""

import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

import click
from confluent_kafka import KafkaException
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.demo.hosts import HostedFleet
from region_broker.cli.demo.report import render
from region_broker.cli.demo.run import (
    INPUT_PARTITIONS,
    Plan,
    longest_pause_s,
    row_timeout_s,
    watch,
)
from region_broker.cli.demo.story import Story
from region_broker.cli.kafka import admin_client, wait_for
from region_broker.cli.output import print_json, print_object
from region_broker.ports.system.chance import SystemChance
from region_broker.workbench import stage
from region_broker.workbench.audit import Findings, audit, read_accounts
from region_broker.workbench.cluster_plan import ClusterError, NodePlace
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, request
from region_broker.workbench.workload import (
    ACCOUNT_PARTITIONS,
    ACCOUNTS_TOPIC,
    INPUT_TOPIC,
    Journal,
    committed_rows,
    produce_input,
)

LEADERS_KILLED: Final = 2
_SETTLE_TIMEOUT_S: Final = 60.0


def perform_with_nodes(plan: Plan, node_count: int) -> list[str]:
    """Play the demo; return which invariants are broken (none, if all is well)."""
    story, journal = Story(quiet=plan.as_json), Journal()
    cluster = LocalCluster.open(
        plan.folder, region_count=1, port=0, new_cluster_id=SystemChance().uuid(),
        node_count=node_count,
    )  # fmt: skip
    try:
        with cluster:
            _set_up(plan, story, cluster)
            killed = _work_through_kills(plan, story, cluster, journal)
            findings, differing = _audit(plan, story, cluster, journal)
    except (ClusterError, stage.StageError, KafkaException, ApiError, OSError) as error:
        return [f"the demo could not go on: {error!r}"]
    figures = _figures(plan, journal, findings, killed, differing)
    broken = _judge(plan, findings, killed, differing)
    _conclude(plan, story, journal, figures, broken)
    return broken


def _bootstrap(cluster: LocalCluster) -> str:
    return ",".join(node.bootstrap for node in cluster.plan.nodes)


def _view(cluster: LocalCluster) -> Mapping[str, Any]:
    """Return what a node that runs says of the region; raises `StageError` where none says it."""
    for node in cluster.plan.nodes:
        if not cluster.pids(node.name):
            continue
        try:
            view: Mapping[str, Any] = request(node.http, "GET", "/v1/cluster")
        except (OSError, ApiError):
            continue
        return view
    raise stage.StageError("no node answers")


def _leader(cluster: LocalCluster) -> NodePlace | None:
    """Return the node that leads, None where nobody does, or one that is dead is still named."""
    leader = _view(cluster)["leadership"]["leader"]
    found = [node for node in cluster.plan.nodes if node.node_id == leader]
    return found[0] if found and cluster.pids(found[0].name) else None


def _all_in_sync(cluster: LocalCluster) -> bool:
    view = _view(cluster)
    return len(view["leadership"]["in_sync"]) == len(cluster.plan.nodes) and all(
        not node["fenced"] for node in view["nodes"]
    )


def _until_in_sync(cluster: LocalCluster) -> None:
    stage.wait_until(
        "all nodes in sync", _SETTLE_TIMEOUT_S,
        lambda: _leader(cluster) is not None and _all_in_sync(cluster),
    )  # fmt: skip


def _set_up(plan: Plan, story: Story, cluster: LocalCluster) -> None:
    names = ", ".join(node.name for node in cluster.plan.nodes)
    story.tell(f"starting one region of {len(cluster.plan.nodes)} nodes ({names}), each a process of its own; no second region")  # fmt: skip
    cluster.start()
    _until_in_sync(cluster)
    bootstrap = _bootstrap(cluster)
    client = admin_client(bootstrap)
    topics = [
        NewTopic(INPUT_TOPIC, INPUT_PARTITIONS, 1),
        NewTopic(ACCOUNTS_TOPIC, ACCOUNT_PARTITIONS, 1),
    ]
    for name, future in client.create_topics(topics).items():
        wait_for(future, f"topic {name} was not created")
    count = produce_input(bootstrap, plan.transfers, INPUT_PARTITIONS)
    story.tell(f"{count:,} rows written to {INPUT_TOPIC}, each acknowledged by two nodes at least")


def _work_through_kills(
    plan: Plan, story: Story, cluster: LocalCluster, journal: Journal
) -> list[str]:
    total, bootstrap = len(plan.transfers), _bootstrap(cluster)
    timeout_s = row_timeout_s(total)
    killed: list[str] = []
    fleet = HostedFleet(plan.worker_count, bootstrap, journal)
    fleet.start()
    try:
        story.tell(f"{plan.worker_count} workers consume, transfer and commit", "work begins")
        for turn in range(1, LEADERS_KILLED + 1):
            wanted = total * turn // (LEADERS_KILLED + 1)
            watch(story, journal, total, timeout_s, partial(_has, journal, wanted))
            killed.append(_kill_leader(story, cluster, journal, total))
        watch(
            story, journal, total, timeout_s,
            lambda: len(journal.acks) >= total and committed_rows(bootstrap, INPUT_PARTITIONS) >= total,
        )  # fmt: skip
    finally:
        fleet.stop()
    story.tell(f"all {total:,} rows are committed", "all committed")
    return killed


def _has(journal: Journal, wanted: int) -> bool:
    return len(journal.acks) >= wanted


def _kill_leader(story: Story, cluster: LocalCluster, journal: Journal, total: int) -> str:
    """Kill the node that leads, wait for a commit without it, and start it again."""
    _until_in_sync(cluster)
    leader = _leader(cluster)
    assert leader is not None, "just waited for"
    before = len(journal.acks)
    cluster.kill(leader.name)
    at_s = time.monotonic()
    story.tell(f"node {leader.name}, which led, was killed with SIGKILL, in mid-stream", f"{leader.name} killed")  # fmt: skip
    stage.wait_until(
        "a commit without it", _SETTLE_TIMEOUT_S,
        lambda: len(journal.acks) >= total or any(ack.at_s > at_s for ack in journal.acks[before:]),
    )  # fmt: skip
    after = _leader(cluster)
    story.tell(f"work goes on, led by {after.name if after else 'another one'}, {time.monotonic() - at_s:.2f} s after the kill", "work goes on")  # fmt: skip
    cluster.start([leader.name])
    _until_in_sync(cluster)
    story.tell(f"{leader.name} is back, has copied what it missed, and is in sync", "back in sync")
    return leader.name


def _audit(
    plan: Plan, story: Story, cluster: LocalCluster, journal: Journal
) -> tuple[Findings, list[str]]:
    story.tell("reading everything back, read-committed, and comparing the nodes' logs")
    _until_in_sync(cluster)
    stage.wait_until("equal logs", _SETTLE_TIMEOUT_S, lambda: not _differing(cluster))
    bootstrap = _bootstrap(cluster)
    entries = read_accounts(bootstrap)
    count = committed_rows(bootstrap, INPUT_PARTITIONS)
    return audit(plan.transfers, count, entries, None, journal), _differing(cluster)


def _differing(cluster: LocalCluster) -> list[str]:
    """Return the logs of the workload that do not end at the same offset, all committed, on all nodes."""
    ends: dict[str, set[tuple[int, int]]] = {}
    for node in cluster.plan.nodes:
        for log in request(node.http, "GET", "/v1/cluster/partitions")["partitions"]:
            if log["topic"] in {INPUT_TOPIC, ACCOUNTS_TOPIC}:
                name = f"{log['topic']}-{log['partition']}"
                ends.setdefault(name, set()).add((log["high_watermark"], log["log_end_offset"]))
    return sorted(name for name, found in ends.items() if len(found) > 1)


def _judge(
    plan: Plan, findings: Findings, killed: Sequence[str], differing: Sequence[str]
) -> list[str]:
    broken = list(findings.broken)
    if findings.rows_expected != len(plan.transfers):
        broken.append(f"{len(plan.transfers) - findings.rows_expected} rows were not processed")
    if findings.lost:
        broken.append(f"acknowledged and lost: {len(findings.lost)}")
    if differing:
        broken.append("logs that differ between nodes: " + ", ".join(differing))
    if len(killed) < LEADERS_KILLED:
        broken.append(f"only {len(killed)} leaders were killed")
    return broken


def _figures(
    plan: Plan, journal: Journal, findings: Findings, killed: Sequence[str], differing: Sequence[str]
) -> dict[str, Any]:  # fmt: skip
    return {
        "rows": len(plan.transfers),
        "rows_in_source": plan.rows_in_source,
        "transactions_committed": findings.rows_found,
        "torn": len(findings.torn),
        "doubled": len(findings.doubled),
        "missing": len(findings.missing),
        "lost": len(findings.lost),
        "sum_over_accounts": findings.sum_over_accounts,
        "accounts": findings.accounts,
        "leaders_killed": len(killed),
        "logs_differing_between_nodes": len(differing),
        "seconds_without_a_commit": round(longest_pause_s(journal), 2),
        "workers_started_anew": journal.rebuilds,
    }


def _conclude(
    plan: Plan, story: Story, journal: Journal, figures: Mapping[str, Any], broken: Sequence[str]
) -> None:
    labelled = {name.replace("_", " "): value for name, value in figures.items()}
    html = render(
        figures=labelled,
        broken=broken,
        moments=story.moments,
        commits_at_s=[story.since_start(ack.at_s) for ack in journal.acks],
        lost=[],
    )
    plan.report_path.write_text(html, encoding="utf-8")
    if plan.as_json:
        print_json({**figures, "broken": list(broken), "report": str(plan.report_path)})
        return
    click.echo("")
    print_object(labelled, "table", title="tidemark demo, one region of several nodes")
    click.echo(f"\nreport: {plan.report_path}")
