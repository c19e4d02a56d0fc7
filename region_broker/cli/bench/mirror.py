"""What a mirror costs and how fast it catches up: loads that need two regions of our own.

A mirror has caught up once its own read-committed readers are shown the primary's ends of all partitions. The clock
starts when the mirror's process has said that it is ready; it begins to copy at that moment.

Not here: how soon a single record is shown (`open_loop`), starting the regions (`local_cluster`).
"""

import time
from collections.abc import Sequence
from typing import Final

from confluent_kafka import IsolationLevel, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import MEGA, BenchFailed, Cost, Plan, Run
from region_broker.cli.bench.stage import TIMEOUT_S, Stage, client, cost_between, cost_of
from region_broker.cli.bench.streams import fill_records
from region_broker.workbench.cluster_plan import ClusterError
from region_broker.workbench.local_cluster import LocalCluster

CAUGHT_UP_TIMEOUT_S: Final = 300.0
_LOOK_S: Final = 0.05
_SETTLE_S: Final = 3.0
_TOPICS_PER_REQUEST: Final = 250


def catch_up_runs(stage: Stage, plan: Plan, number: int) -> tuple[Run, Run]:
    """Fill the primary while its mirror is stopped, start the mirror, and time it until it shows everything.

    Return the same run twice: with the cost of the primary, and with that of the mirror. Raises `BenchFailed`.
    """
    cluster = _pair(stage)
    primary, mirror = (place.name for place in cluster.plan.regions[:2])
    cluster.stop([mirror])
    with stage.topic(f"catch-up-{number}", plan.partition_count) as topic:
        try:
            record_count = fill_records(
                stage, plan, topic, max(int(plan.megabytes * MEGA / plan.size_bytes), 1)
            )
            ends = _ends(AdminClient(stage.client()), topic, plan.partition_count)
            primary_before = cost_of(cluster.pids(primary))
        finally:
            _start(cluster, mirror)
        started_s = time.monotonic()
        mirror_before = cost_of(cluster.pids(mirror))
        _await_shown(stage.mirror, topic, ends)
        seconds = time.monotonic() - started_s
        costs = (
            cost_between(primary_before, cost_of(cluster.pids(primary))),
            cost_between(mirror_before, cost_of(cluster.pids(mirror))),
        )
    at_primary, at_mirror = (Run(count=record_count, seconds=seconds, cost=cost) for cost in costs)
    return at_primary, at_mirror


def _start(cluster: LocalCluster, region: str) -> None:
    try:
        cluster.start([region])
    except ClusterError as error:
        raise BenchFailed(str(error)) from error


def _pair(stage: Stage) -> LocalCluster:
    if stage.cluster is None or not stage.mirror:
        raise BenchFailed(
            "this load starts and stops a mirror of its own: give --regions 2, no --bootstrap"
        )
    return stage.cluster


def _ends(admin: AdminClient, topic: str, partition_count: int) -> list[int]:
    """Return where a read-committed reader finds the end of each partition; all in one request."""
    latest = OffsetSpec.latest()  # type: ignore[no-untyped-call]  # confluent-kafka's own
    asked = {TopicPartition(topic, number): latest for number in range(partition_count)}
    found = admin.list_offsets(
        asked, isolation_level=IsolationLevel.READ_COMMITTED, request_timeout=TIMEOUT_S
    )
    by_number = {place.partition: future.result().offset for place, future in found.items()}
    return [by_number[number] for number in range(partition_count)]


def _await_shown(bootstrap: str, topic: str, ends: Sequence[int]) -> None:
    admin = AdminClient(client(bootstrap))
    deadline_s = time.monotonic() + CAUGHT_UP_TIMEOUT_S
    shown: list[int] = []
    while time.monotonic() < deadline_s:
        try:
            shown = _ends(admin, topic, len(ends))
        except KafkaException:  # the mirror does not know the topic yet
            shown = []
        if shown == list(ends):
            return
        time.sleep(_LOOK_S)
    raise BenchFailed(
        f"the mirror shows {sum(shown)} of {sum(ends)} records after {CAUGHT_UP_TIMEOUT_S:.0f} s:"
        " run `tidemark dev --regions 2` and look at its log"
    )


def idle_runs(stage: Stage, plan: Plan, topic_count: int) -> list[tuple[Run, Run]]:
    """Let both regions stand with `topic_count` topics and nothing written; CPU in % of a core.

    Return (the primary, mirror) for each of `plan.run_count` runs. Raises `BenchFailed`.
    """
    cluster = _pair(stage)
    names = [f"tidemark-bench-{stage.mark}-idle-{number}" for number in range(topic_count)]
    admin = AdminClient(stage.client())
    try:
        for start in range(0, topic_count, _TOPICS_PER_REQUEST):
            wanted = [NewTopic(name, 1, 1) for name in names[start : start + _TOPICS_PER_REQUEST]]
            for made in admin.create_topics(wanted, request_timeout=TIMEOUT_S).values():
                made.result(TIMEOUT_S)
        _await_topics(stage.mirror, set(names))
        time.sleep(_SETTLE_S)
        return [_idle(cluster, plan.seconds) for _ in range(plan.run_count)]
    except KafkaException as error:
        raise BenchFailed(f"{topic_count} topics cannot be made: {error.args[0].str()}") from error
    finally:
        _remove(admin, names)


def _remove(admin: AdminClient, names: Sequence[str]) -> None:
    for start in range(0, len(names), _TOPICS_PER_REQUEST):
        gone = admin.delete_topics(
            list(names[start : start + _TOPICS_PER_REQUEST]), request_timeout=TIMEOUT_S
        )
        for deleted in gone.values():
            deleted.exception(
                TIMEOUT_S
            )  # one that was never made; the folder goes with the cluster


def _await_topics(bootstrap: str, names: set[str]) -> None:
    admin = AdminClient(client(bootstrap))
    deadline_s = time.monotonic() + CAUGHT_UP_TIMEOUT_S
    while not names <= admin.list_topics(timeout=TIMEOUT_S).topics.keys():
        if time.monotonic() > deadline_s:
            raise BenchFailed(f"the mirror does not show {len(names)} topics in time")
        time.sleep(_LOOK_S)


def _idle(cluster: LocalCluster, seconds: float) -> tuple[Run, Run]:
    regions = [place.name for place in cluster.plan.regions[:2]]
    before = [cost_of(cluster.pids(region)) for region in regions]
    started_s = time.monotonic()
    time.sleep(seconds)
    took_s = time.monotonic() - started_s
    costs = [
        cost_between(was, cost_of(cluster.pids(region)))
        for region, was in zip(regions, before, strict=True)
    ]
    at_primary, at_mirror = (
        Run(count=100 * (cost.cpu_s or 0.0), seconds=took_s, cost=Cost(rss_bytes=cost.rss_bytes))
        for cost in costs
    )
    return at_primary, at_mirror
