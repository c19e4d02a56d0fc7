"""How long a node lets others wait while topics are deleted, and how long deleting one takes.

    python -m tests.process.topic_deleting [PARTITIONS] [TOPICS] [SYNC_MS] [KEPT_MS] [NODES] [REGIONS]

As `tests.process.topic_making`, whose nodes it starts: each sync takes SYNC_MS longer. Topics with a record in each partition are deleted one
after the other at the first region, while a small request is asked all the while. KEPT_MS: `deleted_topic_retention_ms`. What each node does on its
loop's thread is told node by node: NODES in each region, and in the second region the mirrors, which delete at a tidemark.
"""

import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from confluent_kafka import Producer

from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.process.many_topics import metadata_of
from tests.process.nodes_measured import Wire, load
from tests.process.topic_making import (
    CREATE_TOPICS,
    Asking,
    creation_of,
    noted_by,
    starter,
    told,
    told_of,
)

DELETE_TOPICS, METADATA = 20, 3
AWAY_S = 120


class Wanted(NamedTuple):
    """What to measure."""

    partitions: int = 20
    topics: int = 6
    sync_ms: int = 100
    kept_ms: int = 86_400_000
    nodes: int = 1
    regions: int = 1


def deletion_of(name: str) -> bytes:
    """Return a request that deletes one topic."""
    return frame_of(DELETE_TOPICS, 5, {"topic_names": [name], "timeout": 60_000})


def make(cluster: LocalCluster, names: Sequence[str], partitions: int) -> None:
    """Make the topics, with a record in each partition, and let each node that is there have them."""
    wire = leader_of(cluster)
    for name in names:
        answer = wire.call_ms(creation_of(name, partitions))[1]
        assert parse_answer(CREATE_TOPICS, 5, answer)[1].topics[0].error_code == 0
    producer = Producer({"bootstrap.servers": cluster.plan.regions[0].bootstrap})
    for name in names:
        for number in range(partitions):
            producer.produce(name, b"x" * 100, partition=number)
    assert producer.flush(600) == 0
    until_each_has(cluster, set(names))


def leader_of(cluster: LocalCluster) -> Wire:
    """Return a connection to a node that takes commands: any node of the first region passes them on."""
    return Wire.to(cluster.plan.regions[0].nodes[0].kafka_port)


def until_each_has(cluster: LocalCluster, names: set[str]) -> None:
    """Return once all nodes of all regions tell clients of these topics, and no other."""
    ends_s = time.monotonic() + AWAY_S
    for node in cluster.plan.nodes:
        wire = Wire.to(node.kafka_port)
        while True:
            found = parse_answer(METADATA, 9, wire.call_ms(metadata_of(None))[1])[1].topics
            if {each.name for each in found if not each.is_internal} == names:
                break
            assert time.monotonic() < ends_s, (node.name, names)
            time.sleep(0.2)


def run(folder: Path, wanted: Wanted) -> None:
    """Measure in `folder`."""
    noted, names = folder / "on-the-loop", [f"t{number:04d}" for number in range(wanted.topics)]
    with LocalCluster.open(
        folder, region_count=wanted.regions, port=0, new_cluster_id=UUID(int=7),
        settings={"deleted_topic_retention_ms": wanted.kept_ms}, node_count=wanted.nodes,
    ) as cluster:  # fmt: skip
        cluster.start_by(starter(wanted.sync_ms, noted))
        cluster.start()
        make(cluster, names, wanted.partitions)
        time.sleep(3)
        pids = {node.name: cluster.pids(node.name)[0] for node in cluster.plan.nodes}
        for pid in pids.values():
            noted_by(noted, pid).write_text("")
        took, waited, alone = measured(cluster, names)
        until_each_has(cluster, set())
        time.sleep(3)
        print(f"{wanted}  ({load()})")
        print(f"deleted in: {told(took)}")
        print(f"longest wait of a small request meanwhile: {told(waited)}")
        print(f"the same while nothing is deleted: {told(alone)}")
        for name, pid in pids.items():
            print(name, end=": ")
            told_of(noted, pid)
        assert cluster.dead() == {}


def measured(
    cluster: LocalCluster, names: Sequence[str]
) -> tuple[list[float], list[float], list[float]]:
    """Return for each topic how long its deletion took, the longest wait meanwhile, and the longest wait as long afterwards, in ms."""
    wire, asking = leader_of(cluster), Asking(cluster.plan.regions[0].nodes[0].kafka_port)
    took, waited, alone = [], [], []
    try:
        for name in names:
            asking.longest_ms()
            ms, answer = wire.call_ms(deletion_of(name))
            waited.append(asking.longest_ms())
            assert parse_answer(DELETE_TOPICS, 5, answer)[1].responses[0].error_code == 0
            took.append(ms)
            time.sleep(ms / 1000)
            alone.append(asking.longest_ms())
    finally:
        asking.end()
    return took, waited, alone


def main(arguments: Sequence[str]) -> None:
    """Measure."""
    with tempfile.TemporaryDirectory(prefix="tidemark-deleting-") as folder:
        run(Path(folder), Wanted(*map(int, arguments)))


if __name__ == "__main__":
    main(sys.argv[1:])
