"""Requests of nearly twenty thousand partitions: how long they take, and how long a small request beside them waits.

    python -m tests.process.many_partitions [REGIONS]

Starts real processes and makes a topic of a thousand partitions. Sends OffsetCommit, OffsetFetch,
TxnOffsetCommit and Produce that name all of them nineteen times over, and prints how long the slowest small
request on another connection waited meanwhile (house rule: nothing holds the event loop over 10 ms). With two regions
the second is a mirror, where the same requests are forwarded.
"""

import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.records.batches import Record, build_batch
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.process.many_topics import await_topics, beside_ms
from tests.process.nodes_measured import Wire, load

TOPICS, PARTITIONS, TIMES = 1, 1_000, 19  # OffsetFetch takes 20,000 names and no more
REPEATS = 5
PRODUCE, OFFSET_COMMIT, OFFSET_FETCH = 0, 8, 9
INIT_PRODUCER_ID, ADD_OFFSETS, TXN_OFFSET_COMMIT, END_TXN = 22, 25, 28, 26
VERSIONS = {PRODUCE: 9, OFFSET_COMMIT: 8, OFFSET_FETCH: 8, TXN_OFFSET_COMMIT: 3}


NAMES = [f"wide-{number}" for number in range(TOPICS)]


def create(cluster: LocalCluster) -> float:
    """Create the topics; return the seconds."""
    admin = AdminClient({"bootstrap.servers": cluster.plan.regions[0].bootstrap})
    started = time.monotonic()
    for name in NAMES:
        for made in admin.create_topics(
            [NewTopic(name, PARTITIONS, 1)], operation_timeout=60
        ).values():
            made.result(60)
    return time.monotonic() - started


def offsets() -> list[dict[str, Any]]:
    """Return offset 0 for every partition."""
    parts = [
        {"partition_index": number, "committed_offset": 0, "committed_metadata": ""}
        for number in range(PARTITIONS)
    ]
    return [{"name": name, "partitions": parts} for name in NAMES * TIMES]


def commit() -> bytes:
    """Return an OffsetCommit of all partitions."""
    asked = {"group_id": "wide", "generation_id_or_member_epoch": -1, "member_id": "",
             "topics": offsets()}  # fmt: skip
    return frame_of(OFFSET_COMMIT, VERSIONS[OFFSET_COMMIT], asked)


def fetch() -> bytes:
    """Return an OffsetFetch of all partitions, by name."""
    listed = [{"name": name, "partition_indexes": range(PARTITIONS)} for name in NAMES * TIMES]
    asked = {"groups": [{"group_id": "wide", "topics": listed}], "require_stable": True}
    return frame_of(OFFSET_FETCH, VERSIONS[OFFSET_FETCH], asked)


def fetch_all() -> bytes:
    """Return an OffsetFetch of whatever the group has."""
    asked = {"groups": [{"group_id": "wide", "topics": None}] * TIMES, "require_stable": True}
    return frame_of(OFFSET_FETCH, VERSIONS[OFFSET_FETCH], asked)


def produce() -> bytes:
    """Return a Produce of one small batch to every partition."""
    batch = build_batch([Record(None, b"v", timestamp_ms=1)])
    parts = [{"index": number, "records": batch} for number in range(PARTITIONS)]
    asked = {"transactional_id": None, "acks": -1, "timeout": 60_000,
             "topic_data": [{"name": name, "partition_data": parts} for name in NAMES * TIMES]}  # fmt: skip
    return frame_of(PRODUCE, VERSIONS[PRODUCE], asked)


SMALL = frame_of(OFFSET_FETCH, 8, {"groups": [], "require_stable": False})


class Transactions:
    """A producer that stages offsets of all partitions, one transaction after the other."""

    def __init__(self, port: int) -> None:
        self.wire = Wire.to(port)
        asked = {"transactional_id": "wide", "transaction_timeout": 60_000, "producer_id": -1,
                 "producer_epoch": -1}  # fmt: skip
        given = self._call(INIT_PRODUCER_ID, 3, asked)
        assert given.error_code == 0, given
        self.who = {"transactional_id": "wide", "producer_id": given.producer_id,
                    "producer_epoch": given.producer_epoch}  # fmt: skip

    def _call(self, key: int, version: int, asked: dict[str, Any]) -> Any:
        for _ in range(100):
            answer = parse_answer(key, version, self.wire.call_ms(frame_of(key, version, asked))[1])
            if answer[1].error_code not in (14, 15, 16, 51):
                return answer[1]
            time.sleep(0.1)
        raise AssertionError("the coordinator never answered")

    def begun(self) -> bytes:
        """Begin a transaction; return the TxnOffsetCommit that stages all offsets."""
        assert self._call(ADD_OFFSETS, 3, {**self.who, "group_id": "wide-txn"}).error_code == 0
        asked = {**self.who, "group_id": "wide-txn", "topics": offsets()}
        return frame_of(TXN_OFFSET_COMMIT, VERSIONS[TXN_OFFSET_COMMIT], asked)

    def end(self, small: Wire, asked: bytes) -> float:
        """Commit; return how long the slowest small request waited until the offsets were there."""
        assert self._call(END_TXN, 3, {**self.who, "committed": True}).error_code == 0
        return max(small.call_ms(asked)[0] for _ in range(200))


def measure(cluster: LocalCluster, name: str) -> None:
    """Print a region's figures."""
    port = cluster.place(name).kafka_port
    frames = {
        "OffsetCommit": commit(),
        "OffsetFetch by name": fetch(),
        "OffsetFetch of all": fetch_all(),
        "Produce": produce(),
    }
    for what, frame in frames.items():
        report(name, what, [beside_ms(port, frame) for _ in range(REPEATS)])
    sender = Transactions(port)
    report(name, "TxnOffsetCommit", [_staged(port, sender) for _ in range(REPEATS)])


def _staged(port: int, sender: Transactions) -> tuple[float, float]:
    took_ms, waited_ms = beside_ms(port, sender.begun())
    ended_ms = sender.end(Wire.to(port), SMALL)
    return took_ms, max(waited_ms, ended_ms)


def report(name: str, what: str, figures: list[tuple[float, float]]) -> None:
    """Print one line."""
    took, waited = zip(*figures, strict=True)
    print(f"{name}: {what}: {statistics.median(took):.0f} ms; a small request beside it waited"
          f" {statistics.median(waited):.1f} ms, worst {max(waited):.1f} ms (target 10)  ({load()})",
          flush=True)  # fmt: skip


def run(folder: Path, region_count: int) -> None:
    """Measure in `folder`."""
    with LocalCluster.open(
        folder, region_count=region_count, port=0, new_cluster_id=UUID(int=7)
    ) as cluster:
        cluster.start()
        print(
            f"{TOPICS * PARTITIONS} partitions made in {create(cluster):.1f} s  ({load()})",
            flush=True,
        )
        for place in cluster.plan.regions:
            await_topics(place.kafka_port, TOPICS)
            measure(cluster, place.name)
        assert cluster.dead() == {}


if __name__ == "__main__":
    with tempfile.TemporaryDirectory(prefix="tidemark-partitions-") as made_folder:
        run(
            Path(made_folder),
            int(sys.argv[1]) if len(sys.argv) > 1 else 1,
        )
