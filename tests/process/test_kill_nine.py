"""kill -9 of a node under load, twenty times: everything acknowledged is there, nothing twice, order kept.

An idempotent producer with five batches in flight and three transactional ones write throughout; none of them
is restarted with the node. The idempotent one must never have had reason to take a new epoch: librdkafka would
then write again what may be in the log.
"""

import random
import sys
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import UUID

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos import stream, transfers
from chaos.checker import check
from chaos.history import History
from chaos.stream import Streamed, Streamer, check_stream
from chaos.transfers import ACCOUNTS, Journal, Reader, end_all, tellers, write_ends
from idempotency.record_batch import BatchHeader, iter_headers
from region_broker.cli.local_cluster import LocalCluster
from tests.process.own_process import run_in_own_process

pytestmark = [pytest.mark.process, pytest.mark.slow]
KILLS = 20
TELLERS = 3


@contextmanager
def one_region(folder: Path) -> Iterator[LocalCluster]:
    with LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=9)) as made:
        made.start()
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        wanted = [
            NewTopic(transfers.TOPIC, ACCOUNTS, 1),
            NewTopic(stream.TOPIC, stream.PARTITIONS, 1),
        ]
        for created in admin.create_topics(wanted).values():
            created.result(20)
        yield made
        assert made.dead() == {}


def test_nothing_acknowledged_is_lost_by_kill_nine(tmp_path: Path) -> None:
    run_in_own_process("tests.process.test_kill_nine", tmp_path)


def kill_under_load(cluster: LocalCluster) -> None:
    chance, journal, streamed = random.Random(9), Journal(), Streamed()
    streamer = Streamer(cluster.bootstrap, streamed)
    streamer.start()
    working = list(tellers(TELLERS, cluster.bootstrap, journal, chance))
    for _ in range(KILLS):
        streamed.await_more(chance.randrange(1, 300))
        journal.await_commits(0, journal.committed(0) + chance.randrange(1, 30))
        cluster.kill("eu")
        cluster.start(["eu"])
    journal.await_commits(0, journal.committed(0) + 10)
    end_all(working, lambda name: pytest.fail(f"{name} hangs"))
    streamer.stop()
    assert not streamer.is_alive()
    assert streamed.failed == [], streamed.failed[:8]
    reader = Reader(cluster.bootstrap)
    final = {"eu": list(reader.read_to(write_ends(cluster.bootstrap)))}
    reader.close()
    assert check(History(attempts=journal.attempts, final=final)) == []
    assert check_stream(streamed.answered, read_stream(cluster.bootstrap)) == []
    counts = [len(answered) for answered in streamed.answered.values()]
    print(f"{journal.committed(0)} commits, {sum(counts)} records over {KILLS} kills")
    assert min(counts) > KILLS


def judge_sequences(folder: Path) -> None:
    """Every idempotent producer kept its first epoch; none of its sequences is twice on disk, or left out."""
    streams = 0
    for segment in sorted(folder.glob("eu/logs/*/*/*.log")):
        assert segment.stem == "0" * 20, "one segment holds all"
        of_producer: dict[int, list[BatchHeader]] = defaultdict(list)
        for _, header in iter_headers(segment.read_bytes()):
            if header.base_sequence >= 0 and not header.is_transactional:
                of_producer[header.producer_id].append(header)
        for batches in of_producer.values():
            assert {header.producer_epoch for header in batches} == {0}
            assert batches[0].base_sequence == 0
            for before, after in pairwise(batches):
                assert after.base_sequence == before.last_sequence + 1
            streams += len(batches) > KILLS
    assert streams == stream.PARTITIONS


def read_stream(brokers: str) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of every record, per partition."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "judge", "log_level": 0,
         "enable.partition.eof": True, "enable.auto.commit": False,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(stream.TOPIC, n, 0) for n in range(stream.PARTITIONS)])
    found: dict[int, list[tuple[int, int]]] = {n: [] for n in range(stream.PARTITIONS)}
    ended = 0
    for _ in range(transfers.POLLS_MAX):
        for message in consumer.consume(10_000, 0.1):
            error, partition, offset = message.error(), message.partition(), message.offset()
            if error is not None:
                assert error.name() == "_PARTITION_EOF", error
                ended += 1
                continue
            assert partition is not None
            assert offset is not None
            found[partition].append((offset, int(message.value() or b"-1")))
        if ended == stream.PARTITIONS:
            break
    consumer.close()
    assert ended == stream.PARTITIONS
    return found


if __name__ == "__main__":
    with one_region(Path(sys.argv[1])) as region:
        kill_under_load(region)
        judge_sequences(Path(sys.argv[1]))
