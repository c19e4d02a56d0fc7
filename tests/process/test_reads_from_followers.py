"""Real processes: confluent-kafka with `client.rack` reads at a follower of a region of three nodes, and goes on wherever it can."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos.nodes.stage import NodesStage
from region_broker.workbench.cluster_plan import NodePlace
from region_broker.workbench.node_http import request
from region_broker.workbench.stage import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]
TOPIC, PARTITIONS, WITHIN_S = "orders", 3, 30.0


class Reading:
    """A consumer without a group: it is given each record once, in the order of its partition."""

    def __init__(self, bootstrap: str, rack: str) -> None:
        self._consumer = Consumer(
            {"bootstrap.servers": bootstrap, "client.rack": rack, "group.id": "no-group", "enable.auto.commit": False,
             "auto.offset.reset": "error", "isolation.level": "read_committed", "log_level": 0}
        )  # fmt: skip
        self._consumer.assign([TopicPartition(TOPIC, number, 0) for number in range(PARTITIONS)])
        self.seen: dict[int, list[int]] = {number: [] for number in range(PARTITIONS)}

    def until(self, count: int) -> None:
        """Read until that many records were given in all."""
        deadline_s = time.monotonic() + WITHIN_S
        while sum(map(len, self.seen.values())) < count:
            assert time.monotonic() < deadline_s, self.seen
            message = self._consumer.poll(0.5)
            if message is not None and message.error() is None:
                partition, value = message.partition(), message.value()
                assert partition is not None
                assert value is not None
                self.seen[partition].append(int(value))

    def close(self) -> None:
        self._consumer.close()


def here(node: NodePlace) -> Any:
    """Return what a node says of itself."""
    return request(node.http, "GET", "/v1/cluster")["here"]


def until_readers_go_to(near: NodePlace, leader: NodePlace) -> None:
    """Return once the leader sends readers to that node."""

    def sends() -> bool:
        rows = request(leader.http, "GET", "/v1/cluster")["nodes"]
        return any(row["serves_readers"] and row["node_id"] == near.node_id for row in rows)

    wait_until("readers to be sent to the follower", WITHIN_S, sends)


@contextmanager
def a_region(folder: Path) -> Iterator[NodesStage]:
    stage = NodesStage(9, folder)
    with stage.cluster:
        stage.start()
        assert stage.wait_whole()
        yield stage


def write(stage: NodesStage, values: range) -> None:
    """Write numbers, in turn to all partitions, and return once all are acknowledged."""
    failed: list[Any] = []
    producer = Producer({"bootstrap.servers": stage.bootstrap, "log_level": 0, "linger.ms": 5})
    for value in values:
        producer.produce(
            TOPIC, str(value), partition=value % PARTITIONS, on_delivery=lambda error, _: failed.append(error) if error else None,
        )  # fmt: skip
    assert producer.flush(WITHIN_S) == 0
    assert failed == []


@pytest.mark.own_process
def test_a_consumer_reads_in_its_rack_and_goes_on_without_that_node_and_without_the_leader(
    tmp_path: Path,
) -> None:
    with a_region(tmp_path / "cluster") as stage:
        admin = AdminClient({"bootstrap.servers": stage.bootstrap})
        for made in admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)]).values():
            made.result(WITHIN_S)
        leader = stage.leader()
        nodes = {node.node_id: node for node in stage.cluster.plan.nodes}
        near = next(node for node_id, node in nodes.items() if node_id != leader)
        assert leader is not None
        write(stage, range(300))
        until_readers_go_to(near, nodes[leader])
        reading = Reading(stage.bootstrap, near.rack)
        reading.until(300)
        assert here(near)["copy_bytes_read"] > 300
        assert here(nodes[leader])["readers_sent_away"] >= PARTITIONS

        stage.cluster.kill(near.name)
        write(stage, range(300, 600))
        reading.until(600)
        stage.cluster.start([near.name])
        assert stage.wait_whole()

        until_readers_go_to(near, nodes[leader])
        stage.cluster.kill(nodes[leader].name)
        write(stage, range(600, 900))
        reading.until(900)
        assert reading.seen == {n: list(range(n, 900, PARTITIONS)) for n in range(PARTITIONS)}
        reading.close()
