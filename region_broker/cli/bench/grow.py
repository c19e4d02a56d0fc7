"""`tidemark bench grow`: what clients notice while a node is added to a region that serves, and copies everything.

The acts, in this order: topics are made and filled; a producer of librdkafka writes at a steady rate (acks=all, idempotent), to the
partitions of one topic in turn, from then on; a node is added by `tidemark cluster node add`, and started with an empty folder; it is in sync.

The producer's loop is open: a record counts from when it was due, so a leader that stands still is charged for all that would have been
sent meanwhile. Periods are compared within one run: what else the machine does meets all of them.
Not here: single requests (`raw_node`), how figures are printed (`command`).
"""

import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import MEGA, BenchFailed, percentile
from region_broker.cli.bench.raw_node import until_acknowledged
from region_broker.cli.bench.size import PARTITIONS_PER_TOPIC, Figure, Say, late_looks, topics_of
from region_broker.cli.bench.stage import TIMEOUT_S, client, cost_of
from region_broker.ports.system.clock import SystemClock
from region_broker.records.batches import Record, build_batch
from region_broker.workbench.cluster_plan import ClusterError, NodePlace, free_ports
from region_broker.workbench.local_cluster import STOP_TIMEOUT_S, LocalCluster
from region_broker.workbench.node_http import ApiError, metrics_text, request

AIM: Final = 2.0
"""Of the p99 while a node copies, over the p99 before."""
_FILL_BATCH_BYTES: Final = 16_384
"""What Kafka's own producer builds by default."""
_FILLED_AT_ONCE: Final = 6
"""Topics in one request, of a MB in all."""
LATE_MS: Final = (10, 50)
_WARM_UP_S: Final = 2.0
_LOOK_S: Final = 0.1
_POLL_S: Final = 0.05
_SAY_S: Final = 5.0
_WITHIN_S: Final = 600.0
_TIDEMARK: Final = (sys.executable, "-m", "region_broker")


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowPlan:
    """What there is to copy, what is written meanwhile, and how long it is watched before and after."""

    partition_count: int
    megabytes: float
    record_bytes: int
    rate_per_s: float
    seconds: float


@dataclass(slots=True)
class Load:
    """The steady producer, in a thread of its own; `took_ms` has (when it was due, how long until it was acknowledged)."""

    bootstrap: str
    places: list[tuple[str, int]]
    plan: GrowPlan
    took_ms: list[tuple[float, float]] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)
    ends: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        producer = Producer(
            client(self.bootstrap, **{"enable.idempotence": True, "acks": "all", "linger.ms": 0})
        )
        value, began_s = b"x" * self.plan.record_bytes, time.monotonic()
        for number, (topic, partition) in enumerate(cycle(self.places)):
            due_s = began_s + number / self.plan.rate_per_s
            while (left_s := due_s - time.monotonic()) > 0:
                producer.poll(min(left_s, _POLL_S))
            if self.ends.is_set() or self.errors:
                break
            producer.produce(topic, value, partition=partition, on_delivery=self._acked(due_s))
        if producer.flush(TIMEOUT_S):
            self.errors.append(f"records were not acknowledged within {TIMEOUT_S:.0f} s")

    def _acked(self, due_s: float) -> Any:
        def delivered(error: object, _message: object) -> None:
            if error is not None:
                self.errors.append(f"a record was refused: {error}")
            else:
                self.took_ms.append((due_s, 1000 * (time.monotonic() - due_s)))

        return delivered

    def between(self, from_s: float, until_s: float) -> list[float]:
        """Return how long the records took that were due then, in ms."""
        return [took for due_s, took in self.took_ms if from_s <= due_s < until_s]


@dataclass(frozen=True, slots=True)
class Period:
    name: str
    from_s: float
    until_s: float
    cpu_s: dict[str, float]
    """By node: what it used meanwhile."""
    late: tuple[int, ...] = ()
    """How often the loop of the node that led was late by each of `LATE_MS`."""


class GrowBench:
    """Measures a cluster that was started for that, and of which nobody else knows; a node more runs for as long as it lasts."""

    def __init__(self, cluster: LocalCluster, plan: GrowPlan, say: Say) -> None:
        """Measure the first region of `cluster`, whose nodes run."""
        self._cluster = cluster
        self._plan = plan
        self._say = say
        self._region = cluster.plan.regions[0]
        self._pids = {node.name: cluster.pids(node.name)[0] for node in self._region.nodes}
        self._led_at = ""
        self._topics = topics_of("grow", plan.partition_count)

    def figures(self) -> Iterator[Figure]:
        """Measure. Raises `BenchFailed`."""
        try:
            with ExitStack() as stack:
                yield from self._all(stack)
        except ClusterError as error:
            raise BenchFailed(str(error)) from error
        except KafkaException as error:
            raise BenchFailed(f"the region did not do it: {error.args[0].str()}") from error
        except (TimeoutError, ConnectionError, ApiError) as error:
            raise BenchFailed(
                f"a node did not answer in time ({error}): the machine is too busy, or the node is down"
            ) from error

    def _all(self, stack: ExitStack) -> Iterator[Figure]:
        self._make()
        self._until_whole()
        began_s = time.monotonic()
        copied_bytes = self._fill()
        yield Figure("filled", self._region.name, copied_bytes / MEGA, "MB")
        yield Figure("filling took", self._region.name, time.monotonic() - began_s, "s")
        topic, partitions = next(iter(self._topics.items()))
        load = Load(self._region.bootstrap, [(topic, each) for each in partitions], self._plan)
        writing = threading.Thread(target=load.run, daemon=True)
        stack.callback(writing.join, 2 * TIMEOUT_S)
        stack.callback(load.ends.set)
        writing.start()
        time.sleep(_WARM_UP_S)
        periods = list(self._periods(stack))
        load.ends.set()
        writing.join(2 * TIMEOUT_S)
        if load.errors:
            raise BenchFailed(load.errors[0])
        copying = next(each for each in periods if each.name == "copying")
        took_s = copying.until_s - copying.from_s
        yield Figure("copied", "new node", copied_bytes / MEGA, "MB")
        yield Figure("until in sync", "new node", took_s, "s")
        yield Figure("copying", "new node", copied_bytes / MEGA / took_s, "MB/s")
        yield from told(load, periods)

    # -- what there is to copy -------------------------------------------------------------------

    def _make(self) -> None:
        self._say(f"making {self._plan.partition_count} partitions")
        admin = AdminClient(client(self._region.bootstrap))
        count = len(self._region.nodes)
        configs = {"min.insync.replicas": "2"} if count > 2 else {}
        wanted = [NewTopic(topic, len(each), count, config=configs) for topic, each in self._topics.items()]  # fmt: skip
        for made in admin.create_topics(wanted, request_timeout=TIMEOUT_S).values():
            made.result(TIMEOUT_S)

    def _until_whole(self) -> None:
        """Return once all nodes that run are in sync: what they copy is not to be measured."""
        for node in self._region.nodes[1:]:
            self._until_in_sync(node.node_id)

    def _fill(self) -> int:
        """Write to all partitions, each its part; return how many bytes of batches that were."""
        self._say(f"filling them with {self._plan.megabytes:g} MB")
        now_ms, size = SystemClock().wall_ms(), self._plan.record_bytes
        records = [Record(None, b"x" * size, timestamp_ms=now_ms)] * (
            _FILL_BATCH_BYTES // size or 1
        )
        batch = build_batch(records)
        per_topic = len(batch) * PARTITIONS_PER_TOPIC
        rounds = max(1, int(self._plan.megabytes * MEGA / per_topic / len(self._topics)))
        topics, written = list(self._topics.items()), 0
        for _ in range(rounds):
            for first in range(0, len(topics), _FILLED_AT_ONCE):
                places = dict(topics[first : first + _FILLED_AT_ONCE])
                self._write(places, batch)
                written += len(batch) * sum(map(len, places.values()))
        return written

    def _write(self, places: dict[str, range], batch: bytes) -> None:
        """Write a batch to each of these partitions, at who led last at first; raises `BenchFailed`."""
        addresses = sorted(
            (node.bootstrap for node in self._region.nodes), key=lambda each: each != self._led_at
        )
        self._led_at = until_acknowledged(addresses, places, batch, TIMEOUT_S)

    # -- the new node ----------------------------------------------------------------------------

    def _periods(self, stack: ExitStack) -> Iterator[Period]:
        """Watch the load without the new node, while it is added, while it copies, and once it is in sync."""
        new = self._new_node(stack)
        self._say(f"before: {self._plan.seconds:g} s")
        with self._period("before") as before:
            time.sleep(self._plan.seconds)
        yield before.done
        self._say(f"adding node {new.node_id}")
        with self._period("adding") as adding:
            config_path = self._add(new)
        yield adding.done
        with self._period("copying") as copying:
            self._start(new, config_path, stack)
            self._until_in_sync(new.node_id)
        yield copying.done
        self._say(f"in sync; after: {self._plan.seconds:g} s")
        with self._period("after") as after:
            time.sleep(self._plan.seconds)
        yield after.done

    def _new_node(self, stack: ExitStack) -> NodePlace:
        kafka, http, peer = free_ports(3, stack)
        node_id = max(node.node_id for node in self._region.nodes) + 1
        return NodePlace(
            name="new", title="the new node", node_id=node_id, kafka_port=kafka, http_port=http, peer_port=peer
        )  # fmt: skip

    def _add(self, new: NodePlace) -> Path:
        """Add the node by the command; return the configuration that it prints. Raises `BenchFailed`."""
        folder = self._cluster.folder / new.name
        folder.mkdir()
        said = new.as_config(None)
        done = subprocess.run(  # noqa: S603 -- our own interpreter and module
            [*_TIDEMARK, "cluster", "node", "add", str(new.node_id), "--peer", said["peer"], "--kafka", said["kafka"],
             "--http", said["http"], "--data-dir", str(folder / "data"), "--url", self._region.nodes[0].http],
            capture_output=True, text=True, check=False, timeout=_WITHIN_S,
        )  # fmt: skip
        if done.returncode != 0:
            raise BenchFailed(f"the node was not added: {done.stderr}")
        path = folder / "node.toml"
        path.write_text(done.stdout, encoding="utf-8")
        return path

    def _start(self, new: NodePlace, config_path: Path, stack: ExitStack) -> None:
        with (config_path.parent / "node.log").open("ab") as log:
            process = subprocess.Popen(  # noqa: S603 -- our own interpreter and module
                [*_TIDEMARK, "broker", "--stop-with-stdin", "--config", str(config_path)],
                stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=log, start_new_session=True,
            )  # fmt: skip
        stack.callback(_end, process)
        self._pids[new.name] = process.pid

    def _until_in_sync(self, node_id: int) -> None:
        deadline_s = time.monotonic() + _WITHIN_S
        said_s = time.monotonic()
        while True:
            view = self._view()
            if node_id in view["leadership"]["in_sync"]:
                return
            if time.monotonic() > deadline_s:
                raise BenchFailed(f"node {node_id} is not in sync after {_WITHIN_S:.0f} s")
            if time.monotonic() > said_s + _SAY_S:
                said_s = time.monotonic()
                rows = [row for row in view["nodes"] if row["node_id"] == node_id]
                self._say(f"copying: {rows[0]['records_behind'] if rows else 'all'} records left")
            time.sleep(_LOOK_S)

    def _view(self) -> dict[str, Any]:
        """Return what the node that leads says of the region, or the first one where nobody does."""
        view: dict[str, Any] = request(self._region.nodes[0].http, "GET", "/v1/cluster", None)
        leader = view["leadership"]["leader"]
        for node in self._region.nodes[1:]:
            if node.node_id == leader:
                view = request(node.http, "GET", "/v1/cluster", None)
        return view

    @contextmanager
    def _period(self, name: str) -> Iterator["_Watched"]:
        """Time what is done meanwhile, and what each node uses for it."""
        watched = _Watched()
        before, late, from_s = self._cpu_s(), self._late(), time.monotonic()
        yield watched
        until_s, now = time.monotonic(), self._cpu_s()
        used = {node: now[node] - before.get(node, 0.0) for node in now}
        looks = tuple(now - was for now, was in zip(self._late(), late, strict=True))
        watched.done = Period(name, from_s, until_s, used, looks)

    def _late(self) -> list[int]:
        (node,) = (each for each in self._region.nodes if each.bootstrap == self._led_at)
        return late_looks(metrics_text(node.http), LATE_MS)

    def _cpu_s(self) -> dict[str, float]:
        return {name: cost_of([pid]).cpu_s or 0.0 for name, pid in self._pids.items()}


class _Watched:
    """A period that has ended."""

    done: Period


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert process.stdin is not None
    process.stdin.close()


def told(load: Load, periods: Sequence[Period]) -> Iterator[Figure]:
    """Return the figures of each period, and the ratio that is aimed at; raises `BenchFailed` where one has no record."""
    p99_ms = {}
    for period in periods:
        took_ms = load.between(period.from_s, period.until_s)
        if not took_ms:
            raise BenchFailed(f"no record was due while {period.name}: give a higher --rate")
        p99_ms[period.name] = percentile(took_ms, 0.99)
        yield Figure(f"produce p50, {period.name}", "client", percentile(took_ms, 0.50), "ms")
        yield Figure(f"produce p99, {period.name}", "client", p99_ms[period.name], "ms")
        yield Figure(f"produce longest, {period.name}", "client", max(took_ms), "ms")
        for at_least_ms, count in zip(LATE_MS, period.late, strict=True):
            yield Figure(f"loop late by {at_least_ms} ms, {period.name}", "leader", count, "looks")
        seconds = period.until_s - period.from_s
        for node, used_s in period.cpu_s.items():
            yield Figure(f"CPU, {period.name}", node, 100 * used_s / seconds, "% of a core")
    yield Figure(
        "p99, copying over before", "client", p99_ms["copying"] / p99_ms["before"], "", AIM
    )
    yield Figure("p99, after over before", "client", p99_ms["after"] / p99_ms["before"], "")
