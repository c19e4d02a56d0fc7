"""Real nodes: nothing of a sealed topic is on any disk in the open, through a crash, a mirror without the key, and back.

A topic without a key, written beside it by the same client, shows that what is looked for would be found.
"""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from confluent_kafka import Consumer, KafkaError, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.workbench.stage import wait_mirrored
from tests.fixtures.sealing_keys import keys_in_files
from tests.fixtures.secret_scan import noted
from tests.process.client_fixture import CALL_S, open_cluster, read_all

pytestmark = pytest.mark.process
HIDDEN = noted("kept-from-the-disk-5b1c")
SHOWN = "left-in-the-open-5b1c"
COUNT = 40


def write(bootstrap: str, first: int) -> None:
    """Write to both topics, in transactions and outside of them."""
    settings = {"bootstrap.servers": bootstrap, "log_level": 0, "compression.type": "none"}
    plain = Producer(settings)
    transactional = Producer({**settings, "transactional.id": f"writer-{first}"})
    transactional.init_transactions(CALL_S)
    transactional.begin_transaction()
    for number in range(first, first + COUNT):
        producer = transactional if number % 2 else plain
        for topic, word in (("sealed", HIDDEN), ("open", SHOWN)):
            producer.produce(
                topic, f"{word} {number}", key=f"key-{word}", headers={"h": word}, partition=0
            )
    assert plain.flush(CALL_S) == 0
    transactional.commit_transaction(CALL_S)


def holding(folder: Path, word: str) -> list[Path]:
    """Return which files hold the word."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    return [path for path in files if word.encode() in path.read_bytes()]


def numbers(bootstrap: str, topic: str) -> list[int]:
    values = read_all(bootstrap, topic, partition_count=1)
    return sorted(int(value.rpartition(" ")[2]) for value in values)


def refused(bootstrap: str, topic: str) -> int:
    """Return the error that a consumer hears."""
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "g", "log_level": 0})
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        for _ in range(200):
            message = consumer.poll(0.1)
            error = None if message is None else message.error()
            if error is not None:
                return error.code()
            assert message is None, message.value()
        return KafkaError.NO_ERROR
    finally:
        consumer.close()


def segments(folder: Path, region: str) -> Sequence[bytes]:
    return [path.read_bytes() for path in sorted((folder / region).rglob("logs/*/0/*.log"))]


def reconciled(folder: Path, primary: str, mirror: str) -> int:
    """Return the exit code of the command that compares both regions, without Java."""
    words = (
        "reconcile",
        "all",
        "--engine",
        "local",
        "--out",
        str(folder.parent / "reconciliation"),
    )
    done = subprocess.run(
        [sys.executable, "-m", "region_broker", *words, "--primary", str(folder / primary), "--mirror", str(folder / mirror)],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert "sealed-0" in done.stdout or done.returncode == 0, done.stderr
    return done.returncode


def test_nothing_of_a_sealed_topic_is_on_any_disk_in_the_open(tmp_path: Path) -> None:
    folder, keys = tmp_path / "cluster", keys_in_files(tmp_path / "keys", "secret")
    with open_cluster(folder, 2, {"encryption_keys_file": str(keys)}) as cluster:
        with_key, without = (place.name for place in cluster.plan.regions)
        primary, mirror = (place.bootstrap for place in cluster.plan.regions)
        cluster.start([with_key])
        del cluster._settings["encryption_keys_file"]
        cluster.start([without])
        admin = AdminClient({"bootstrap.servers": primary, "log_level": 0})
        wanted = [NewTopic("sealed", 1, 1, config={"tidemark.encryption": "secret"}),
                  NewTopic("open", 1, 1)]  # fmt: skip
        for made in admin.create_topics(wanted).values():
            made.result(CALL_S)
        write(primary, 0)
        wait_mirrored(cluster, with_key, without, 30)
        assert refused(mirror, "sealed") == KafkaError.TOPIC_AUTHORIZATION_FAILED
        assert numbers(mirror, "open") == list(range(COUNT))
        cluster.kill(with_key)
        assert not holding(folder, HIDDEN)
        assert {path.relative_to(folder).parts[0] for path in holding(folder, SHOWN)} >= {
            with_key, without,
        }  # fmt: skip
        cluster._settings["encryption_keys_file"] = str(keys)
        cluster.start([with_key])
        write(primary, COUNT)
        assert numbers(primary, "sealed") == numbers(primary, "open") == list(range(2 * COUNT))
        wait_mirrored(cluster, with_key, without, 30)
        cluster.stop([with_key, without])
        assert not holding(folder, HIDDEN)
        assert segments(folder, with_key) != []
        sealed = [data for data in segments(folder, with_key) if b"\x01\x06secret" in data]
        assert len(sealed) == 1
        assert [data for data in segments(folder, without) if b"\x01\x06secret" in data] == sealed
        assert not any(b"\xb3" * 8 in path.read_bytes() for path in folder.rglob("*.log"))
    assert reconciled(folder, with_key, without) == 0, "by who has no key"
    [path] = [
        path
        for path in (folder / without).rglob("logs/*/0/*.log")
        if b"\x01\x06secret" in path.read_bytes()
    ]
    data = bytearray(path.read_bytes())
    data[data.index(b"\x01\x06secret") + 100] ^= 1
    path.write_bytes(data)
    assert reconciled(folder, with_key, without) == 1
