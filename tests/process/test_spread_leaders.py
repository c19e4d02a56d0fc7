"""Three real nodes of which each leads its part of the partitions (ADR 53): clients go to each, one is killed, one node leads all again."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.main import main
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_until

pytestmark = [pytest.mark.process, pytest.mark.slow]

TOPIC = "orders"
PARTITIONS = 6
WITHIN_S = 60.0


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[LocalCluster]:
    with LocalCluster.open(
        tmp_path, region_count=1, node_count=3, port=0, new_cluster_id=UUID(int=78)
    ) as opened:
        opened.start()
        yield opened


class Teller:
    """Writes one record to each partition in each transaction, and aborts every third one."""

    def __init__(self, bootstrap: str) -> None:
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "transactional.id": "teller", "log_level": 0, "retry.backoff.ms": 50}
        )  # fmt: skip
        self._producer.init_transactions(WITHIN_S)
        self._number = 0
        self.committed: list[int] = []

    def tell(self, count: int) -> None:
        """End so many transactions."""
        for _ in range(count):
            self._number += 1
            self._producer.begin_transaction()
            for partition in range(PARTITIONS):
                self._producer.produce(TOPIC, b"%d" % self._number, partition=partition)
            if self._number % 3 == 0:
                self._producer.flush(WITHIN_S)
                self._producer.abort_transaction(WITHIN_S)
            else:
                self._producer.commit_transaction(WITHIN_S)
                self.committed.append(self._number)


def read(bootstrap: str, partition: int) -> list[int]:
    """Return what a read-committed consumer finds in one partition, from its beginning to its end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "g", "enable.auto.commit": False, "log_level": 0,
         "enable.partition.eof": True, "isolation.level": "read_committed"}
    )  # fmt: skip
    found: list[int] = []
    try:
        consumer.assign([TopicPartition(TOPIC, partition, 0)])
        while (message := consumer.poll(WITHIN_S)) is not None and message.error() is None:
            value = message.value()
            assert value is not None
            found.append(int(value))
    finally:
        consumer.close()
    return found


def test_partitions_are_led_by_all_nodes_and_by_one_again_under_transactions(
    cluster: LocalCluster,
) -> None:
    nodes = cluster.plan.nodes
    urls, bootstrap = ",".join(n.http for n in nodes), ",".join(n.bootstrap for n in nodes)
    admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 0})
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 3)])[TOPIC].result(WITHIN_S)

    def rebalance(*words: str) -> dict[str, Any]:
        words = ("cluster", "rebalance", *words, "--url", urls, "-o", "json", "--timeout", "60")
        done = CliRunner().invoke(main, list(words))
        assert done.exit_code == 0, done.output
        found: dict[str, Any] = json.loads(done.stdout)
        return found

    def leaders() -> list[int]:
        told = admin.list_topics(TOPIC, timeout=WITHIN_S).topics[TOPIC].partitions
        return [told[number].leader for number in range(PARTITIONS)]

    teller = Teller(bootstrap)
    teller.tell(5)
    assert len(set(leaders())) == 1
    groups = rebalance()["groups"]
    assert [each["partitions"] for each in groups] == [2, 2]
    wait_until("clients are told", WITHIN_S, lambda: sorted(leaders()) == [1, 1, 2, 2, 3, 3])
    teller.tell(20)

    victim = groups[0]["leader"]
    cluster.kill(f"eu/{victim}")
    teller.tell(20)
    assert victim not in leaders()
    cluster.start([f"eu/{victim}"])
    teller.tell(5)
    assert rebalance("--gather")["groups"] == []
    wait_until("one leads all", WITHIN_S, lambda: len(set(leaders())) == 1)
    teller.tell(5)
    for partition in range(PARTITIONS):
        assert read(bootstrap, partition) == teller.committed
