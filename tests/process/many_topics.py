"""Two thousand topics: how long a start takes, how long Metadata of all of them, and what they cost at rest.

    python -m tests.process.many_topics [TOPICS] [REGIONS]

Starts real processes, makes the topics, stops the region cleanly and starts it, kills it with signal 9 and starts it, and
prints each figure beside its target (2,000 topics of one partition: start <= 5 s, Metadata <= 30 ms, <= 3 % of a core).
With two regions the second is a mirror, and is measured too.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from uuid import UUID

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.process.nodes_measured import Wire, idle_cpu_percent, load, resident_mb

METADATA, DESCRIBE_CONFIGS = 3, 32
CALLS = 11
IDLE_S = 10.0
AT_ONCE = 250


def metadata_of(topics: list[str] | None) -> bytes:
    """Return a request for the metadata of some topics, None: of all."""
    named = None if topics is None else [{"name": name} for name in topics]
    return frame_of(
        METADATA, 9,
        {"topics": named, "allow_auto_topic_creation": False,
         "include_cluster_authorized_operations": False,
         "include_topic_authorized_operations": False},
    )  # fmt: skip


def all_topics() -> bytes:
    """Return a request for the metadata of all topics."""
    return metadata_of(None)


def described(topics: int) -> bytes:
    """Return a request for the configs of all topics."""
    resources = [
        {"resource_type": 2, "resource_name": f"t{n:05d}", "configuration_keys": None}
        for n in range(topics)
    ]
    asked = {"resources": resources, "include_synonyms": True, "include_documentation": False}
    return frame_of(DESCRIBE_CONFIGS, 4, asked)


def create(cluster: LocalCluster, count: int) -> float:
    """Create the topics; return the seconds."""
    admin = AdminClient({"bootstrap.servers": cluster.plan.regions[0].bootstrap})
    started = time.monotonic()
    for first in range(0, count, AT_ONCE):
        wanted = [NewTopic(f"t{n:05d}", 1, 1) for n in range(first, min(first + AT_ONCE, count))]
        for made in admin.create_topics(wanted, operation_timeout=60).values():
            made.result(60)
    return time.monotonic() - started


def metadata_ms(port: int, topics: int) -> list[float]:
    """Return how long each of some requests for all topics took."""
    wire = Wire.to(port)
    frame = all_topics()
    first_ms, answer = wire.call_ms(frame)
    found = [first_ms, *(wire.call_ms(frame)[0] for _ in range(CALLS))]
    assert len(parse_answer(METADATA, 9, answer)[1].topics) >= topics
    return found


def beside_ms(port: int, frame: bytes) -> tuple[float, float]:
    """Return how long a large request takes, and the longest wait of small ones on another connection meanwhile."""
    large, small = Wire.to(port), Wire.to(port)
    asked = metadata_of([])
    small.call_ms(asked)
    started = time.perf_counter()
    large.send(frame)
    large.stream.setblocking(False)
    waits = []
    while True:
        waits.append(small.call_ms(asked)[0])
        try:
            assert large.stream.recv(1), "the node closed the connection"
            break
        except BlockingIOError:
            continue
    return 1000 * (time.perf_counter() - started), max(waits)


def await_topics(port: int, topics: int) -> float:
    """Return the seconds until a region knows all topics."""
    wire, started = Wire.to(port), time.monotonic()
    frame = all_topics()
    for _ in range(600):
        answer = wire.call_ms(frame)[1]
        if len(parse_answer(METADATA, 9, answer)[1].topics) >= topics:
            return time.monotonic() - started
        time.sleep(0.1)
    raise AssertionError("the mirror never saw all topics")


def measure(cluster: LocalCluster, name: str, topics: int) -> None:
    """Print a region's figures."""
    port, pid = cluster.place(name).kafka_port, cluster.pids(name)[0]
    print(f"{name}: all topics known after {await_topics(port, topics):.2f} s  ({load()})")
    took = metadata_ms(port, topics)
    print(f"{name}: Metadata of all topics: first {took[0]:.1f} ms, then median"
          f" {statistics.median(took[1:]):.1f} ms, worst {max(took[1:]):.1f} ms (target 30)")  # fmt: skip
    answered, waited = beside_ms(port, described(topics))
    print(f"{name}: DescribeConfigs of all topics {answered:.0f} ms; a small request beside it"
          f" waited {waited:.1f} ms at most (target 10)")  # fmt: skip
    percent = idle_cpu_percent(pid, IDLE_S)
    print(f"{name}: at rest {percent:.2f} % of a core over {IDLE_S:.0f} s (target 3),"
          f" {resident_mb(pid):.0f} MB resident  ({load()})")  # fmt: skip


def started_s(cluster: LocalCluster, name: str) -> float:
    """Start a region; return the seconds until it says that it is ready."""
    started = time.monotonic()
    cluster.start([name])
    return time.monotonic() - started


def run(folder: Path, topics: int, region_count: int) -> None:
    """Measure in `folder`."""
    with LocalCluster.open(
        folder, region_count=region_count, port=0, new_cluster_id=UUID(int=7)
    ) as cluster:
        cluster.start()
        print(f"{topics} topics made in {create(cluster, topics):.1f} s  ({load()})")
        names = [place.name for place in cluster.plan.regions]
        for name in names:
            measure(cluster, name, topics)
        for name in names:
            started = time.monotonic()
            cluster.stop([name])
            stopped_s = time.monotonic() - started
            print(f"{name}: stopped in {stopped_s:.2f} s, ready again in"
                  f" {started_s(cluster, name):.2f} s (target 5)  ({load()})")  # fmt: skip
            cluster.kill(name)
            print(f"{name}: killed with signal 9, ready again in"
                  f" {started_s(cluster, name):.2f} s (target 5)  ({load()})")  # fmt: skip
        for name in names:
            measure(cluster, name, topics)
        assert cluster.dead() == {}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tidemark-topics-") as made_folder:
        run(
            Path(made_folder),
            int(sys.argv[1]) if len(sys.argv) > 1 else 2000,
            int(sys.argv[2]) if len(sys.argv) > 2 else 1,
        )
