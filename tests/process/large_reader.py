"""What others notice of one reader who asks for 50 MB at a time, plain and by TLS.

    python -m tests.process.large_reader --seconds 6

A region of one node, a topic of 50 partitions with 6 MB each. One consumer (librdkafka) reads it again and again with Kafka's default of 50 MB for each answer;
beside it, in a process of its own, a connection says ApiVersions every 2 ms. Told: p50, p99 and the longest of these, quiet and beside the reader; memory of the node.
"""

import argparse
import asyncio
import os
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final
from uuid import UUID

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.cli.bench.figures import percentile
from region_broker.cli.bench.stage import client
from region_broker.workbench.credentials import present_as
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.secure_cluster import secured
from tests.fixtures.memory_census import Process

TOPIC: Final = "large"
PARTITIONS: Final = 50
RECORD: Final = os.urandom(20_000)
RECORDS: Final = 300  # of each partition
FETCH_BYTES: Final = 50 * 1024 * 1024
WAIT_S: Final = 30.0
_API_VERSIONS: Final = struct.pack(">ihhih", 10, 18, 0, 7, -1)


def main() -> None:
    """Measure, or be the small client."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=6.0, help="of each period (6)")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--ca", default="", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.port:
        asyncio.run(ask(options.port, options.ca, options.seconds))
        return
    for by_tls in (False, True):
        measure(options.seconds, by_tls=by_tls)


def measure(seconds: float, *, by_tls: bool) -> None:
    """Tell what is noticed, quiet and beside the reader."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="tidemark-large-")))
        cluster = stack.enter_context(
            LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=13))
        )
        ca = ""
        if by_tls:
            made = secured(folder, cluster.plan)
            cluster.tell(made.settings, made.of_node, "https")
            present_as(made.admin)
            ca = made.admin.ca
        cluster.start()
        plan, process = cluster.plan.regions[0], Process(cluster.pids("eu")[0])
        fill(plan.bootstrap)

        def tell(period: str) -> None:
            command = [
                sys.executable,
                "-m",
                "tests.process.large_reader",
                "--port",
                str(plan.kafka_port),
                "--ca",
                ca,
            ]
            told = subprocess.run([*command, "--seconds", str(seconds)], capture_output=True, text=True, check=True)  # fmt: skip
            print(f"{'TLS' if by_tls else 'plain':6}{period:8}{told.stdout.strip()}; {process.resident_bytes() / 1e6:.0f} MB", flush=True)  # fmt: skip

        tell("quiet")
        ends = threading.Event()
        reader = threading.Thread(target=read, args=(plan.bootstrap, ends), daemon=True)
        reader.start()
        tell("beside")
        ends.set()
        reader.join(WAIT_S)


def fill(bootstrap: str) -> None:
    """Make the topic."""
    admin = AdminClient(client(bootstrap))
    admin.create_topics([NewTopic(TOPIC, PARTITIONS, 1)])[TOPIC].result(WAIT_S)
    producer = Producer(client(bootstrap, **{"linger.ms": 50, "batch.size": 500_000}))
    for _ in range(RECORDS):
        for partition in range(PARTITIONS):
            producer.produce(TOPIC, RECORD, partition=partition)
        producer.flush(WAIT_S)


def read(bootstrap: str, ends: threading.Event) -> None:
    """Read all of it, again and again."""
    reader = Consumer(client(bootstrap, **{
        "group.id": "large", "fetch.max.bytes": FETCH_BYTES, "receive.message.max.bytes": 2 * FETCH_BYTES,
        "queued.min.messages": 1_000_000, "queued.max.messages.kbytes": 1_000_000, "check.crcs": False,
    }))  # fmt: skip
    while not ends.is_set():
        reader.assign([TopicPartition(TOPIC, each, 0) for each in range(PARTITIONS)])
        left = PARTITIONS * RECORDS
        while left > 0 and not ends.is_set():
            left -= len(reader.consume(5_000, 1.0))
    reader.close()


async def ask(port: int, ca: str, seconds: float) -> None:
    """Say ApiVersions until the time is over, and tell how long the answers took."""
    context = ssl.create_default_context(cafile=ca) if ca else None
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    took_ms: list[float] = []
    until_s = time.monotonic() + seconds
    while time.monotonic() < until_s:
        from_s = time.perf_counter()
        writer.write(_API_VERSIONS)
        (size,) = struct.unpack(">i", await reader.readexactly(4))
        await reader.readexactly(size)
        took_ms.append(1000 * (time.perf_counter() - from_s))
        await asyncio.sleep(0.002)
    writer.close()
    print(f"p50 {percentile(took_ms, 0.5):.2f} p99 {percentile(took_ms, 0.99):.2f} longest {max(took_ms):.1f} ms")  # fmt: skip


if __name__ == "__main__":
    main()
