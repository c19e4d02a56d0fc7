"""Kafka's own reader of log files over our ledgers: `python -m tests.compat.kafka_dump`.

Not part of the test run. Starts one region, lets confluent-kafka commit offsets in every way that is written
differently (classic group, group of the new protocol, pattern, transaction, deleted group), stops it, and reads the
files of `__consumer_offsets` and `__transaction_state` with `kafka.tools.DumpLogSegments` of Apache Kafka's jars, whose
decoders know Kafka's schemas. Every batch must be sound and every record decoded, down to the topic's id.

Exit codes: 0 all was understood; 1 something was not, and is printed; 2 a tool or a download is missing.
"""

import base64
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final
from uuid import UUID

from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from idempotency.ledger_records import ROUND_KEY_KIND
from region_broker.workbench.local_cluster import LocalCluster
from tests.compat.apache_kafka import jars
from tests.compat.clients import CALL_S, POLLS_MAX

TOPIC: Final = "orders"
RECORD_COUNT: Final = 10
DUMP_S: Final = 120
DECODERS: Final = {
    "__consumer_offsets": "--offsets-decoder",
    "__transaction_state": "--transaction-log-decoder",
}
# Kafka's tool names what it does not know and goes on; the rounds of a ledger are Tidemark's own (T2).
_OURS: Final = f"Unknown record type {ROUND_KEY_KIND} "
_UNDERSTOOD: Final = (" payload: {", " payload: <DELETE>", " endTxnMarker: ")


def main() -> int:
    """Write, stop, read with Kafka's tool, judge; returns the exit code."""
    found = None if shutil.which("java") is None or shutil.which("mvn") is None else jars()
    if found is None:
        print(
            "java, mvn and Maven Central are needed: one is missing or out of reach",
            file=sys.stderr,
        )
        return 2
    with tempfile.TemporaryDirectory(prefix="tidemark-dump-") as name:
        folder = Path(name)
        with LocalCluster.open(
            folder, region_count=1, port=0, new_cluster_id=UUID(int=1), settings={"shard_count": 1}
        ) as cluster:
            cluster.start()
            play(cluster.plan.regions[0].bootstrap)
        logs = topic_folders(folder / "eu" / "logs")
        faults = []
        for ledger, decoder in DECODERS.items():
            lines = dumped(logs[ledger] / "0", decoder, found)
            print(f"{ledger}: {len(lines)} lines of Kafka's DumpLogSegments")
            faults += [f"{ledger}: {fault}" for fault in not_understood(lines)]
            if ledger == "__consumer_offsets" and not names_topic(lines, logs[TOPIC].name):
                faults.append(f"{ledger}: a committed offset does not name its topic's id")
    print("\n".join(faults) or "Kafka understood every record")
    return 1 if faults else 0


def play(bootstrap: str) -> None:
    """Write what every kind of group writes."""
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(TOPIC, 2, 1)])[TOPIC].result(CALL_S)
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(RECORD_COUNT):
        producer.produce(TOPIC, b"%d" % number, partition=number % 2)
    producer.flush(CALL_S)
    for protocol, subscribed in (
        ("classic", TOPIC), ("consumer", TOPIC), ("consumer", f"^{TOPIC}.*"),
    ):  # fmt: skip
        _read_and_commit(bootstrap, protocol, subscribed)
    for deleted in admin.delete_consumer_groups([f"classic of {TOPIC}"]).values():
        deleted.result(CALL_S)


def _read_and_commit(bootstrap: str, protocol: str, subscribed: str) -> None:
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": f"{protocol} of {subscribed}", "group.protocol": protocol,
         "auto.offset.reset": "earliest", "enable.auto.commit": False}
    )  # fmt: skip
    consumer.subscribe([subscribed])
    read = 0
    for _ in range(POLLS_MAX):
        read += sum(message.error() is None for message in consumer.consume(RECORD_COUNT, 0.1))
        if read >= RECORD_COUNT:
            break
    else:
        raise AssertionError(f"{protocol} {subscribed}: {read} of {RECORD_COUNT} records came")
    consumer.commit(asynchronous=False)
    writer = Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": f"{protocol} {subscribed}"}
    )
    writer.init_transactions(CALL_S)
    for end in (writer.commit_transaction, writer.abort_transaction):
        writer.begin_transaction()
        places, group = [TopicPartition(TOPIC, 0, 4)], consumer.consumer_group_metadata()
        writer.send_offsets_to_transaction(places, group, CALL_S)
        end(CALL_S)
    consumer.close()


def topic_folders(logs: Path) -> dict[str, Path]:
    """Return the folder of each topic by its name."""
    return {
        json.loads(path.read_bytes())["name"]: path.parent for path in logs.glob("*/topic.json")
    }


def dumped(partition: Path, decoder: str, found: Path) -> list[str]:
    """Return what Kafka's tool prints about a partition's files."""
    files = ",".join(str(path) for path in sorted(partition.glob("*.log")))
    done = subprocess.run(
        ["java", "-Xmx256m", "-Dorg.slf4j.simpleLogger.defaultLogLevel=warn", "-cp", f"{found}/*",
         "kafka.tools.DumpLogSegments", "--deep-iteration", "--print-data-log", decoder, "--files", files],
        capture_output=True, text=True, timeout=DUMP_S, check=False,
    )  # fmt: skip
    return [*done.stdout.splitlines(), *(f"| {line}" for line in done.stderr.splitlines())]


def not_understood(lines: Sequence[str]) -> list[str]:
    """Return the lines that tell of an unsound batch or of a record that Kafka could not decode."""
    batches = [line for line in lines if line.startswith("baseOffset: ")]
    records = [line for line in lines if line.startswith("| ")]
    faults = [line for line in batches if not line.endswith(" isvalid: true")]
    faults += [line for line in records if not _is_understood(line)]
    return faults if batches and records else ["no batch, or no record, was read"]


def _is_understood(line: str) -> bool:
    return _OURS in line or any(word in line for word in _UNDERSTOOD)


def names_topic(lines: Sequence[str], topic_folder: str) -> bool:
    """Whether offsets were committed and each names the topic whose log folder that is."""
    spelled = base64.urlsafe_b64encode(bytes.fromhex(topic_folder)).decode().rstrip("=")
    offsets = [line for line in lines if '"commitTimestamp"' in line]
    return bool(offsets) and all(f'"topicId":"{spelled}"' in line for line in offsets)


if __name__ == "__main__":
    sys.exit(main())
