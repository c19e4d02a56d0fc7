"""The life of a key of sealed topics, by an operator's commands beside a node that runs: made, rotated, wrapped anew, destroyed.

What a destroyed version sealed is gone for every reader (crypto-shredding); what a later one sealed is not.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.stage import wait_until
from tests.fixtures.secret_scan import noted
from tests.process.client_fixture import CALL_S, open_cluster, read_all
from tests.process.test_cli import run

pytestmark = [pytest.mark.process, pytest.mark.slow]
TOPIC = "sealed"
WORD = noted("gone-with-its-key-8e20")


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    path = tmp_path / "keys.toml"
    run("key", "make", str(path), "secret", "--file", str(tmp_path / "first.key"))
    return path


@pytest.fixture
def cluster(tmp_path: Path, keys: Path) -> Iterator[LocalCluster]:
    with open_cluster(tmp_path / "c", 1, {"encryption_keys_file": str(keys)}) as made:
        made.start()
        yield made


def write(cluster: LocalCluster, value: str) -> int:
    """Write a record; return its offset."""
    heard: list[Any] = []
    producer = Producer({"bootstrap.servers": cluster.bootstrap, "acks": "all", "log_level": 0})
    producer.produce(
        TOPIC, value, partition=0, on_delivery=lambda error, record: heard.append((error, record))
    )
    assert producer.flush(CALL_S) == 0
    [(error, record)] = heard
    assert error is None
    return int(record.offset())


def versions(cluster: LocalCluster) -> list[str]:
    """Return by which version of the key each batch is sealed, as its log says."""
    [path] = [each for each in cluster.data_dir("eu").rglob("logs/*/0/*.log") if b"\x01\x06secret" in each.read_bytes()]  # fmt: skip
    rows = json.loads(run("log", "dump", str(path), "-o", "json"))
    return [row["sealed"]["version"] for row in rows]


def read_at(cluster: LocalCluster, offset: int) -> bytes | int:
    """Return the value of a record, or the error that its reader hears."""
    consumer = Consumer({"bootstrap.servers": cluster.bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(TOPIC, 0, offset)])
    message = consumer.poll(CALL_S)
    consumer.close()
    assert message is not None
    error, value = message.error(), message.value()
    return error.code() if error is not None else bytes(value or b"")


def test_what_a_destroyed_version_sealed_is_gone_and_what_others_sealed_is_not(
    cluster: LocalCluster, keys: Path, tmp_path: Path
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
    topic = NewTopic(TOPIC, 1, 1, config={"tidemark.encryption": "secret"})
    admin.create_topics([topic])[TOPIC].result(CALL_S)
    written = [f"{WORD} 0"]
    assert write(cluster, written[0]) == 0
    run("key", "rotate", str(keys), "secret")

    def is_rotated() -> bool:
        written.append(f"{WORD} {len(written)}")
        assert write(cluster, written[-1]) == len(written) - 1
        return len({*versions(cluster)}) == 2

    wait_until("the new version to seal", CALL_S, is_rotated)
    run("key", "rewrap", str(keys), "secret", "--file", str(tmp_path / "second.key"))
    (tmp_path / "first.key").unlink()
    cluster.stop(["eu"])
    cluster.start()
    assert read_all(cluster.bootstrap, TOPIC, partition_count=1) == written, (
        "by the new source alone"
    )
    old, newest = versions(cluster)[0], len(written) - 1
    run("key", "destroy", str(keys), "secret", "--version", old, "--yes")
    wait_until(
        "the destroyed version to be forgotten", CALL_S,
        lambda: read_at(cluster, 0) == KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )  # fmt: skip
    assert read_at(cluster, newest) == written[newest].encode()
    assert write(cluster, f"{WORD} and on") == newest + 1
