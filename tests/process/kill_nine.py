"""kill -9 of a node under load: everything acknowledged is there, nothing twice, order kept, transactions whole.

    python -m tests.process.kill_nine [KILLS] [SEED] [FOLDER]

Five kinds of writers work throughout, and none of them is restarted with the node: an idempotent producer of
confluent-kafka with five batches in flight, three transactional ones, an idempotent and a transactional one of aiokafka.
librdkafka's idempotent one must never have had reason to take a new epoch: it would then write again what may be in the
log. The node is killed at moments that the seed draws.
"""

import argparse
import random
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from uuid import UUID

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from chaos import transfers
from chaos.checker import check
from chaos.history import History
from chaos.transfers import ACCOUNTS, Journal, Reader, end_all, tellers, write_ends
from idempotency.record_batch import BatchHeader, iter_headers
from region_broker.workbench.local_cluster import LocalCluster
from tests.process import stream
from tests.process.aio_writers import PAIRS_TOPIC, STREAM_TOPIC, AioWriters, check_pairs
from tests.process.stream import Streamed, Streamer, check_stream

TELLERS = 3
WRITTEN_WITHIN_S = 120.0


@contextmanager
def one_region(folder: Path) -> Iterator[LocalCluster]:
    """A region on free ports, with the topics that are written to."""
    with LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=9)) as made:
        made.start()
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        wanted = [
            NewTopic(transfers.TOPIC, ACCOUNTS, 1),
            NewTopic(stream.TOPIC, stream.PARTITIONS, 1),
            NewTopic(STREAM_TOPIC, stream.PARTITIONS, 1),
            NewTopic(PAIRS_TOPIC, stream.PARTITIONS, 1),
        ]
        for created in admin.create_topics(wanted).values():
            created.result(20)
        yield made
        assert made.dead() == {}


def kill_under_load(cluster: LocalCluster, kills: int, seed: int) -> None:
    """Kill the node `kills` times, then judge what is there."""
    chance, journal, streamed = random.Random(seed), Journal(), Streamed()
    streamer, aio = Streamer(cluster.bootstrap, streamed), AioWriters(cluster.bootstrap)
    streamer.start()
    aio.start()
    working = list(tellers(TELLERS, cluster.bootstrap, journal, chance))
    for _ in range(kills):
        streamed.await_more(chance.randrange(1, 300), WRITTEN_WITHIN_S)
        wanted = journal.committed(0) + chance.randrange(1, 30)
        journal.await_commits(0, wanted, WRITTEN_WITHIN_S)
        aio.await_more(chance.randrange(0, 5), WRITTEN_WITHIN_S)
        cluster.kill("eu")
        cluster.start(["eu"])
    journal.await_commits(0, journal.committed(0) + 10, WRITTEN_WITHIN_S)

    def hangs(name: str) -> None:
        raise AssertionError(f"{name} hangs")

    end_all(working, hangs)
    streamer.stop()
    aio.stop()
    assert not streamer.is_alive()
    assert streamed.failed == [], streamed.failed[:8]
    reader = Reader(cluster.bootstrap)
    final = {"eu": list(reader.read_to(write_ends(cluster.bootstrap)))}
    reader.close()
    assert check(History(attempts=journal.attempts, final=final)) == []
    assert check_stream(streamed.answered, read_topic(cluster.bootstrap, stream.TOPIC)) == []
    assert aio.streamed.failed == [], aio.streamed.failed[:8]
    assert check_stream(aio.streamed.answered, read_topic(cluster.bootstrap, STREAM_TOPIC)) == []
    assert check_pairs(aio.attempts, read_topic(cluster.bootstrap, PAIRS_TOPIC)) == []
    counts = [len(answered) for answered in streamed.answered.values()]
    print(f"{kills} kills, seed {seed}: {journal.committed(0)} commits and {sum(counts)} records of confluent-kafka,"
          f" {aio.committed()} commits and {aio.streamed.count()} records of aiokafka:"
          " nothing acknowledged lost, nothing twice")  # fmt: skip
    assert min(counts) > kills
    assert aio.committed() >= 1


def judge_sequences(folder: Path, kills: int) -> None:
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
            streams += len(batches) > kills
    assert streams >= stream.PARTITIONS


def read_topic(brokers: str, topic: str) -> dict[int, list[tuple[int, int]]]:
    """Return (offset, number) of every record, per partition."""
    consumer = Consumer(
        {"bootstrap.servers": brokers, "group.id": "judge", "log_level": 0,
         "enable.partition.eof": True, "enable.auto.commit": False,
         "isolation.level": "read_committed"}
    )  # fmt: skip
    consumer.assign([TopicPartition(topic, n, 0) for n in range(stream.PARTITIONS)])
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


def run(folder: Path, kills: int, seed: int) -> None:
    """Do it in `folder`; raises AssertionError if anything was lost, twice, torn or out of order."""
    with one_region(folder) as region:
        kill_under_load(region, kills, seed)
    judge_sequences(folder, kills)


def main() -> None:
    """Read the command line and do it."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.process.kill_nine",
        description="Kill a node under load again and again; then judge what is there.",
        epilog="Example: python -m tests.process.kill_nine 20 9",
    )
    parser.add_argument("kills", type=int, nargs="?", default=20, help="how often (20)")
    parser.add_argument("seed", type=int, nargs="?", default=9, help="draws the moments (9)")
    parser.add_argument("folder", type=Path, nargs="?", help="where; it stays (a new one, removed)")
    given = parser.parse_args()
    if given.folder:
        run(given.folder, given.kills, given.seed)
        return
    with tempfile.TemporaryDirectory(prefix="tidemark-kill-") as made:
        run(Path(made), given.kills, given.seed)


if __name__ == "__main__":
    main()
