"""A gigabyte of log, killed with signal 9: how long until the node is ready again, and until the first read.

    python -m tests.process.back_in_service [BATCH_BYTES] [MEGABYTES] [REGIONS]

Starts real processes and writes the megabytes (default 1,000) through the Kafka port into one partition, as batches of one
record (default 1,000 bytes; 16000 is the other case to look at) of one idempotent producer, so that index and producers'
state have to come back too. With two regions the second is a mirror, which is killed and measured too. Prints seconds from
the start of the process, beside the target of 2 s.
"""

import struct
import sys
import tempfile
import time
from pathlib import Path
from typing import Any
from uuid import UUID

from crc32c import crc32c

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from idempotency.record_batch import look_over
from region_broker.ports.system.clock import SystemClock
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import frame_of, parse_answer
from tests.process.client_fixture import create_topic
from tests.process.nodes_measured import Wire, cpu_s, load, resident_mb

PRODUCE, FETCH, INIT_PRODUCER_ID = 0, 1, 22
TOPIC = "filled"
AHEAD = 256
CHECKED_EACH = 1000
_SEQUENCE_AT, _CRC_AT, _COVERED_FROM = 53, 17, 21


def producer_id(wire: Wire) -> int:
    """Return a producer id of this cluster."""
    asked = {"transactional_id": None, "transaction_timeout": 60_000}
    answer = parse_answer(
        INIT_PRODUCER_ID, 0, wire.call_ms(frame_of(INIT_PRODUCER_ID, 0, asked))[1]
    )
    assert answer[1].error_code == 0, answer
    return int(answer[1].producer_id)


def frame_for(batch: bytes) -> bytes:
    """Return a produce request of one batch."""
    asked = {
        "transactional_id": None, "acks": -1, "timeout": 60_000,
        "topic_data": [{"name": TOPIC, "partition_data": [{"index": 0, "records": batch}]}],
    }  # fmt: skip
    frame = frame_of(PRODUCE, 9, asked)
    return struct.pack(">i", len(frame)) + frame


def fill(wire: Wire, batch_bytes: int, count: int) -> None:
    """Write `count` batches, many on their way at once; every one must be acknowledged."""
    origin = Origin(ProducerId(producer_id(wire)), ProducerEpoch(0), SequenceNumber(0))
    empty = len(build_batch([Record(None, b"", timestamp_ms=1)], origin=origin))
    value = b"v" * max(batch_bytes - empty, 1)
    batch = build_batch([Record(None, value, timestamp_ms=SystemClock().wall_ms())], origin=origin)
    frame = bytearray(frame_for(batch))
    at = bytes(frame).index(batch)
    covered = slice(at + _COVERED_FROM, at + len(batch))
    for first in range(0, count, AHEAD):
        sent = min(AHEAD, count - first)
        pieces = []
        for number in range(first, first + sent):
            struct.pack_into(">i", frame, at + _SEQUENCE_AT, number)
            struct.pack_into(">I", frame, at + _CRC_AT, crc32c(frame[covered]))
            pieces.append(bytes(frame))
        wire.stream.sendall(b"".join(pieces))
        for number in range(first, first + sent):
            answer = wire.receive()
            if number % CHECKED_EACH and number != count - 1:
                continue  # what lies between two that have the right offsets is in its place
            parsed = parse_answer(PRODUCE, 9, answer)[1]
            (row,) = parsed.responses[0].partition_responses
            assert (row.error_code, row.base_offset) == (0, number), row


def fetched(wire: Wire, offset: int) -> Any:
    """Return what one Fetch from `offset` answers about the partition."""
    asked = {
        "replica_id": -1, "max_wait": 0, "min_bytes": 0, "max_bytes": 1 << 20, "isolation_level": 0,
        "topics": [{"topic": TOPIC, "partitions": [
            {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}]}],
    }  # fmt: skip
    answer = parse_answer(FETCH, 4, wire.call_ms(frame_of(FETCH, 4, asked))[1])[1]
    return answer.responses[0].partitions[0]


def await_end(port: int, count: int) -> None:
    """Return once a region's readers see all batches."""
    wire = Wire.to(port)
    for _ in range(3000):
        if fetched(wire, 0).high_watermark == count:
            return
        time.sleep(0.1)
    raise AssertionError("the mirror does not catch up")


def back(cluster: LocalCluster, name: str, count: int) -> None:
    """Kill a region, start it, read its first and its last records; print what it took."""
    cluster.kill(name)
    started = time.monotonic()
    cluster.start([name])
    ready_s = time.monotonic() - started
    node_cpu_s = cpu_s(cluster.pids(name)[0])
    wire = Wire.to(cluster.place(name).kafka_port)
    for offset in (count - 1, 0):
        found = fetched(wire, offset)
        while found.high_watermark < count:  # a mirror shows it once it knows its tidemark again
            found = fetched(wire, offset)
        assert found.error_code == 0, found
        assert not look_over(bytes(found.records), offset).is_bad
    read_s = time.monotonic() - started
    print(f"{name}: ready {ready_s:.2f} s after the start of the process, first and last record read"
          f" after {read_s:.2f} s (target 2); {node_cpu_s:.2f} s of CPU,"
          f" {resident_mb(cluster.pids(name)[0]):.0f} MB  ({load()})")  # fmt: skip


def run(folder: Path, batch_bytes: int, megabytes: int, region_count: int) -> None:
    """Measure in `folder`."""
    count = megabytes * 1_000_000 // batch_bytes
    with LocalCluster.open(
        folder, region_count=region_count, port=0, new_cluster_id=UUID(int=7)
    ) as cluster:
        cluster.start()
        names = [place.name for place in cluster.plan.regions]
        create_topic(cluster.place(names[0]).bootstrap, TOPIC, 1)
        started = time.monotonic()
        fill(Wire.to(cluster.place(names[0]).kafka_port), batch_bytes, count)
        for name in names:
            await_end(cluster.place(name).kafka_port, count)
        print(
            f"{count} batches of {batch_bytes} bytes written in {time.monotonic() - started:.0f} s  ({load()})"
        )
        for name in names:
            for _ in range(3):
                back(cluster, name, count)
        assert cluster.dead() == {}


if __name__ == "__main__":
    given = [int(text) for text in sys.argv[1:]]
    with tempfile.TemporaryDirectory(prefix="tidemark-back-") as made:
        run(Path(made), *(given + [1000, 1000, 1][len(given) :]))
