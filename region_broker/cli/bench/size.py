"""`tidemark bench size`: what many partitions cost a region of several nodes that has nothing, or little, to do.

The acts, in this order: topics are made, and each partition is given a record; the nodes rest; Metadata of all topics is asked
of each; all partitions move, with tidemarks as configured and with hardly any; the nodes are stopped and started again; killed
when each partition has got another record, and started again; and the node that leads is killed, as often as there are runs,
while a client tries to write, each partition having got a record shortly before.

A region is back when each of its nodes has said that it is ready, and a write to a partition is acknowledged (acks=all).
Without an acknowledged write: from before the kill to the first answer after it, each node being tried in turn.
Not here: a single request (`raw_node`), how figures are printed (`command`).
"""

import os
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import MEGA, BenchFailed, percentile
from region_broker.cli.bench.raw_node import (
    ask_ms,
    metadata_of_all,
    until_acknowledged,
)
from region_broker.cli.bench.stage import TIMEOUT_S, client, cost_between, cost_of
from region_broker.ports.system.clock import SystemClock
from region_broker.records.batches import Record, build_batch
from region_broker.workbench.cluster_plan import ClusterError, NodePlace
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import ApiError, metrics_text, request

PARTITIONS_PER_TOPIC: Final = 10
_TOPICS_PER_REQUEST: Final = 10
_METADATA_TIMES: Final = 100
_SETTLE_S: Final = 3.0
_WITHIN_S: Final = 120.0
_LOOK_S: Final = 0.05
_MOVES_PER_S: Final = 1
_HARDLY_ANY_MS: Final = 60_000
_LAG_MS: Final = (10, 50)
_INTERVAL: Final = "tidemark_interval_ms"

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class SizePlan:
    """How many partitions, how long the nodes are watched, and how often the leader is killed."""

    partition_count: int
    seconds: float
    run_count: int


@dataclass(frozen=True, slots=True)
class Figure:
    """One figure; `where` is a node or a region, `at_most` what is aimed at, None where nothing is."""

    what: str
    where: str
    value: float
    unit: str
    at_most: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """Return it as JSON-able values, with the machine's load over the last minute, which was there beside it."""
        return {
            "what": self.what, "where": self.where, "value": round(self.value, 3), "unit": self.unit,
            "aim at most": self.at_most, "load": round(os.getloadavg()[0], 2),
        }  # fmt: skip


def topics_of(name: str, partition_count: int) -> dict[str, range]:
    """Return the topics that so many partitions make, with the partitions of each; their names begin with `name`."""
    return {
        f"{name}-{first:05d}": range(min(PARTITIONS_PER_TOPIC, partition_count - first))
        for first in range(0, partition_count, PARTITIONS_PER_TOPIC)
    }


class SizeBench:
    """Measures a cluster that was started for that, and of which nobody else knows. The first region is the primary."""

    def __init__(self, cluster: LocalCluster, plan: SizePlan, say: Say) -> None:
        """Measure `cluster`, whose nodes run."""
        self._cluster = cluster
        self._plan = plan
        self._say = say
        self._primary = cluster.plan.regions[0]
        # Records of now: a segment whose first one is older than `segment.ms` is full at the first append of a life.
        now_ms = SystemClock().wall_ms()
        self._batch = build_batch([Record(None, b"x" * 100, timestamp_ms=now_ms)])
        self._places = topics_of("size", plan.partition_count)
        self._led_at = ""
        self._one = {next(iter(self._places)): range(1)}

    def figures(self) -> Iterator[Figure]:
        """Measure one thing after the other. Raises `BenchFailed`."""
        try:
            yield from self._made()
            yield from self._at_rest()
            yield from self._metadata()
            yield from self._moving()
            yield from self._started()
            yield from self._loss()
        except ClusterError as error:
            raise BenchFailed(str(error)) from error
        except KafkaException as error:
            raise BenchFailed(f"the region did not do it: {error.args[0].str()}") from error
        except (TimeoutError, ConnectionError, ApiError) as error:
            raise BenchFailed(
                f"a node did not answer in time ({error}): the machine is too busy, or the node is down;"
                " try --partitions 100, and `tidemark dev --nodes 3` to see a node's log"
            ) from error

    # -- topics ----------------------------------------------------------------------------------

    def _made(self) -> Iterator[Figure]:
        self._say(f"making {self._plan.partition_count} partitions")
        admin = AdminClient(client(self._primary.bootstrap))
        before_s, began_s = self._cpu_s(), time.monotonic()
        wanted = [NewTopic(topic, len(each)) for topic, each in self._places.items()]
        for first in range(0, len(wanted), _TOPICS_PER_REQUEST):
            self._make(admin, wanted[first : first + _TOPICS_PER_REQUEST])
        yield Figure("topics made", self._primary.name, time.monotonic() - began_s, "s")
        yield Figure("CPU of making them", "all nodes", self._cpu_s() - before_s, "s")
        self._await_copies()
        for topic, partitions in self._places.items():
            self._write({topic: partitions})

    def _make(self, admin: AdminClient, wanted: list[NewTopic]) -> None:
        """Make topics, again where another node has begun to lead meanwhile. Raises what the last try raised."""
        deadline_s = time.monotonic() + _WITHIN_S
        while wanted:
            futures = admin.create_topics(wanted, request_timeout=_WITHIN_S)
            errors = {name: made.exception(_WITHIN_S) for name, made in futures.items()}
            left = {name: error for name, error in errors.items() if error and not _exists(error)}
            wanted = [topic for topic in wanted if topic.topic in left]
            if wanted and time.monotonic() > deadline_s:
                raise next(iter(left.values()))

    def _write(self, places: dict[str, range] | None = None) -> str:
        """Write a record to each of these, or to one partition; return who leads, whom the next one is tried at first."""
        addresses = sorted(
            (node.bootstrap for node in self._primary.nodes), key=lambda each: each != self._led_at
        )
        self._led_at = until_acknowledged(addresses, places or self._one, self._batch, _WITHIN_S)
        return self._led_at

    def _await_copies(self) -> None:
        """Return once every node knows all topics, and all of them are in sync. Raises `BenchFailed`."""
        deadline_s = time.monotonic() + _WITHIN_S
        for node in self._cluster.plan.nodes:
            while not self._is_whole(node):
                if time.monotonic() > deadline_s:
                    raise BenchFailed(f"{node.title} did not come along within {_WITHIN_S:.0f} s")
                time.sleep(_LOOK_S)

    def _is_whole(self, node: NodePlace) -> bool:
        known = AdminClient(client(node.bootstrap)).list_topics(timeout=TIMEOUT_S).topics
        if not self._places.keys() <= known.keys():
            return False
        if not any(
            node in region.nodes and region.siblings for region in self._cluster.plan.regions
        ):
            return True
        try:
            seen = request(node.http, "GET", "/v1/cluster", None)
        except (OSError, ApiError):
            return False
        count = 1 + len(self._primary.siblings)
        return len(seen["leadership"]["in_sync"]) == count

    # -- nothing to do ---------------------------------------------------------------------------

    def _at_rest(self) -> Iterator[Figure]:
        self._say(f"at rest for {self._plan.seconds:g} s")
        time.sleep(_SETTLE_S)
        used = self._watched(lambda: time.sleep(self._plan.seconds))
        yield from self._cpu("idle", used, at_most=10.0)
        for node in self._cluster.plan.nodes:
            (pid,) = self._cluster.pids(node.name)
            rss_bytes = cost_of([pid]).rss_bytes or 0
            yield Figure("resident", node.name, rss_bytes / MEGA, "MB")
            yield Figure("file descriptors", node.name, _count(Path(f"/proc/{pid}/fd")), "")

    def _watched(self, act: Callable[[], None]) -> dict[str, float]:
        """Return how much of a core each node used during `act`, in %."""
        nodes = [node.name for node in self._cluster.plan.nodes]
        before = {name: cost_of(self._cluster.pids(name)) for name in nodes}
        began_s = time.monotonic()
        act()
        took_s = time.monotonic() - began_s
        return {
            name: 100 * (cost_between(was, cost_of(self._cluster.pids(name))).cpu_s or 0.0) / took_s
            for name, was in before.items()
        }

    def _cpu(
        self, what: str, used: dict[str, float], at_most: float | None = None
    ) -> Iterator[Figure]:
        for name, percent in used.items():
            yield Figure(f"{what}, one node", name, percent, "% of a core")
        for region in self._cluster.plan.regions:
            percent = sum(used[node.name] for node in region.nodes)
            yield Figure(f"{what}, all nodes", region.name, percent, "% of a core", at_most)

    # -- Metadata --------------------------------------------------------------------------------

    def _metadata(self) -> Iterator[Figure]:
        self._say("Metadata of all topics")
        for node in self._cluster.plan.nodes:
            took_ms = ask_ms(node.bootstrap, metadata_of_all(), _METADATA_TIMES)
            yield Figure("Metadata, first", node.name, took_ms[0], "ms")
            yield Figure("Metadata, p50", node.name, percentile(took_ms, 0.50), "ms", 20.0)
            yield Figure("Metadata, p99", node.name, percentile(took_ms, 0.99), "ms")

    # -- all partitions move ---------------------------------------------------------------------

    def _moving(self) -> Iterator[Figure]:
        each_ms = list[float]()
        numbers = list[int]()
        count = max(1, int(self._plan.seconds * _MOVES_PER_S))
        for what, interval in (("moving", None), ("moving, hardly any tidemarks", _HARDLY_ANY_MS)):
            self._say(f"{what}: a record to each partition, {count} times")
            self._tidemark_each(interval)
            self._move(1)
            begun, late, used_s = self._tidemark(), self._late(), self._cpu_s()
            self._move(count)
            each_ms.append(1000 * (self._cpu_s() - used_s) / count)
            numbers.append(self._tidemark() - begun)
            yield Figure(f"CPU of a record to each, {what}", "all nodes", each_ms[-1], "ms")
            yield from self._late_since(late, what)
        self._tidemark_each(None)
        rounds = (numbers[0] - numbers[1]) / count
        yield Figure("tidemarks for a record to each", self._primary.name, rounds, "")
        yield Figure("CPU of these tidemarks", "all nodes", each_ms[0] - each_ms[1], "ms", 50.0)

    def _late_since(self, before: dict[str, list[int]], what: str) -> Iterator[Figure]:
        for name, counts in self._late().items():
            for at_least_ms, now, was in zip(_LAG_MS, counts, before[name], strict=True):
                yield Figure(f"loop late by {at_least_ms} ms, {what}", name, now - was, "looks")

    def _move(self, count: int) -> None:
        """Write a record to each partition, so many times: each log is one that was written to since the start."""
        began_s = time.monotonic()
        for number in range(count):
            time.sleep(max(0.0, began_s + number / _MOVES_PER_S - time.monotonic()))
            self._write(self._places)

    def _tidemark_each(self, interval_ms: int | None) -> None:
        """Have tidemarks cut that far from each other, or as configured."""
        operation = AlterConfigOpType.DELETE if interval_ms is None else AlterConfigOpType.SET
        entry = ConfigEntry(_INTERVAL, str(interval_ms or 0), incremental_operation=operation)
        admin = AdminClient(client(self._primary.bootstrap))
        for node in self._primary.nodes:
            broker = ConfigResource(
                ResourceType.BROKER, str(node.node_id), incremental_configs=[entry]
            )
            for done in admin.incremental_alter_configs([broker]).values():
                done.result(TIMEOUT_S)

    def _tidemark(self) -> int:
        numbers = [
            seen["tidemark"]["number"] or 0
            for seen in (
                request(node.http, "GET", "/v1/region", None) for node in self._primary.nodes
            )
        ]
        return max(numbers)

    def _late(self) -> dict[str, list[int]]:
        """Return how often the event loop of each node came back late by that much (`_LAG_MS`), since it started."""
        return {
            node.name: late_looks(metrics_text(node.http), _LAG_MS)
            for node in self._cluster.plan.nodes
        }

    # -- starting --------------------------------------------------------------------------------

    def _started(self) -> Iterator[Figure]:
        names = [node.name for node in self._cluster.plan.nodes]
        self._say("stopping all nodes")
        began_s = time.monotonic()
        self._cluster.stop(names)
        yield Figure("stopped", "all nodes", time.monotonic() - began_s, "s")
        yield from self._start("after a clean stop", names)
        self._move(1)
        for name in names:
            self._cluster.kill(name)
        yield from self._start("after kill -9", names)

    def _cpu_s(self) -> float:
        """Return the CPU that all nodes have used since they were started, in seconds."""
        return sum(
            cost_of(self._cluster.pids(node.name)).cpu_s or 0.0 for node in self._cluster.plan.nodes
        )

    def _start(self, after: str, names: Sequence[str]) -> Iterator[Figure]:
        self._say(f"starting all nodes {after}")
        began_s = time.monotonic()
        self._cluster.start(names)
        ready_s = time.monotonic() - began_s
        self._write()
        written_s = time.monotonic() - began_s
        cpu_s = self._cpu_s()
        self._await_copies()
        yield Figure(f"CPU until written {after}", "all nodes", cpu_s, "s")
        yield Figure(f"ready {after}", "all nodes", ready_s, "s")
        yield Figure(f"written {after}", self._primary.name, written_s, "s", 10.0)
        yield Figure(f"all in sync {after}", "all nodes", time.monotonic() - began_s, "s")

    # -- the leader dies -------------------------------------------------------------------------

    def _loss(self) -> Iterator[Figure]:
        if not self._primary.siblings:
            return
        gaps_s, used_s = list[float](), list[float]()
        for number in range(self._plan.run_count):
            time.sleep(_SETTLE_S)
            self._move(1)
            at = self._write()
            (node,) = (each for each in self._primary.nodes if each.bootstrap == at)
            # CPU of the others alone: a busy machine stretches the time, and not that.
            before_s = self._cpu_s() - (cost_of(self._cluster.pids(node.name)).cpu_s or 0.0)
            began_s = time.monotonic()
            self._cluster.kill(node.name)
            self._write()
            gaps_s.append(time.monotonic() - began_s)
            used_s.append(self._cpu_s() - before_s)
            self._say(
                f"{node.title} killed, run {number + 1} of {self._plan.run_count}: {gaps_s[-1]:.2f} s, {used_s[-1]:.2f} s of CPU"
            )
            self._cluster.start([node.name])
            self._await_copies()
        yield Figure("without a write, median", self._primary.name, statistics.median(gaps_s), "s")
        yield Figure("CPU of the others meanwhile, longest", self._primary.name, max(used_s), "s")
        yield Figure("without a write, longest", self._primary.name, max(gaps_s), "s", 2.0)


def _exists(error: BaseException) -> bool:
    return (
        isinstance(error, KafkaException)
        and error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS
    )


def _count(folder: Path) -> int:
    return sum(1 for _ in folder.iterdir())


def late_looks(metrics: str, at_least_ms: Sequence[int]) -> list[int]:
    """Return how many looks of the loop's lag were at least that late, by the buckets of a node's metrics."""
    found = dict[float, float]()
    for line in metrics.splitlines():
        if line.startswith("tidemark_loop_lag_seconds_bucket"):
            bound, _, count = line.partition('le="')[2].partition('"} ')
            found[float(bound)] = float(count)
    total = max(found.values(), default=0.0)
    return [
        int(total - max((n for at, n in found.items() if at <= ms / 1000), default=0.0))
        for ms in at_least_ms
    ]
