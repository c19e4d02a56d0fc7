"""Bad input against a running node: a clear answer or a closed connection, and nobody else notices.

After each hostile input a client that was connected before writes and reads a record over its old connections, and
the node is still the same process.
"""

import asyncio
import itertools
import json
import shutil
import socket
import sqlite3
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from region_broker.records.batches import Record, build_batch
from region_broker.workbench.local_cluster import LocalCluster
from tests.fixtures.kafka_port import RawClient, frame_of, parse_answer
from tests.fixtures.tidemark_forks import run_tidemark

pytestmark = [pytest.mark.process, pytest.mark.slow]
METADATA, PRODUCE, API_VERSIONS = 3, 0, 18
CLIENT_HELLO = bytes.fromhex("16030100c5010000c10303") + bytes(180)
HTTP = b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n"
ALL_TOPICS = {
    "topics": None, "include_cluster_authorized_operations": False,
    "include_topic_authorized_operations": False,
}  # fmt: skip
HANG_S = 20


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    folder = tmp_path_factory.mktemp("bad")
    with LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=3)) as made:
        made.start()
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(20)
        yield made


class Bystander:
    """Somebody who works there, over connections that stay."""

    def __init__(self, brokers: str) -> None:
        self._producer = Producer({"bootstrap.servers": brokers, "enable.idempotence": True})
        self._consumer = Consumer(
            {"bootstrap.servers": brokers, "group.id": "bystander", "auto.offset.reset": "latest"}
        )
        self._numbers = itertools.count()
        self._lost: list[str] = []
        self._consumer.assign([TopicPartition("orders", 0, 0)])

    def works(self) -> None:
        """Write a record and read it."""
        value = b"bystander %d" % next(self._numbers)
        failures: list[object] = []
        self._producer.produce(
            "orders", value, on_delivery=lambda error, _: failures.append(error) if error else None
        )
        assert self._producer.flush(HANG_S) == 0
        assert failures == []
        for _ in range(200):
            message = self._consumer.poll(0.1)
            if message is not None and message.value() == value:
                return
        pytest.fail("the bystander's record did not come back")

    def close(self) -> None:
        self._consumer.close()


@pytest.fixture(scope="module")
def bystander(cluster: LocalCluster) -> Iterator[Bystander]:
    made = Bystander(cluster.bootstrap)
    made.works()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def unharmed(cluster: LocalCluster, bystander: Bystander) -> Iterator[None]:
    """Whatever a test does: the node goes on, and so does whoever else uses it."""
    before = cluster.pids("eu")
    yield
    bystander.works()
    assert cluster.pids("eu") == before


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def hostile_metadata() -> bytes:
    """Metadata v12 whose topic array claims 2^32 - 2 entries in five bytes: kio alone would allocate them."""
    header = struct.pack(">hhih", METADATA, 12, 1, 3) + b"bad" + b"\0"
    return framed(header + b"\xff\xff\xff\xff\x0f")


HOSTILE = {
    "random bytes": framed(bytes(range(7, 207))),
    "no frame at all": b"\x00\x01\x02",
    "an empty frame": framed(b""),
    "a frame of one byte": framed(b"\x00"),
    "a negative size": struct.pack(">i", -5) + b"x" * 10,
    "the largest size": struct.pack(">i", 2**31 - 1) + b"x" * 100,
    "an unknown API": framed(struct.pack(">hhih", 999, 0, 1, -1)),
    "an unknown version": framed(struct.pack(">hhih", METADATA, 99, 1, -1)),
    "HTTP": HTTP,
    "TLS": CLIENT_HELLO,
    "five hostile bytes": hostile_metadata(),
    "a body cut short": framed(frame_of(METADATA, 9, ALL_TOPICS)[:-3]),
    "bytes behind the body": framed(frame_of(METADATA, 9, ALL_TOPICS) + b"junk"),
}


def answer_to(port: int, data: bytes) -> bytes:
    """Send bytes and our end; return all that is answered until the node closes. Fails if it hangs."""
    with socket.create_connection(("127.0.0.1", port), timeout=HANG_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while piece := connection.recv(65536):
                found += piece
        except ConnectionResetError:
            pass
        return found


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_on_the_kafka_port_close_that_connection_only(
    cluster: LocalCluster, name: str
) -> None:
    answer = answer_to(cluster.plan.regions[0].kafka_port, HOSTILE[name])
    if name == "HTTP":
        assert answer.startswith(b"HTTP/1.1 400 ")
        assert b"Kafka" in answer
    elif not name.startswith(("an unknown version", "bytes behind")):
        assert len(answer) < 100


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_bytes_on_the_peer_port_close_that_connection_only(
    cluster: LocalCluster, name: str
) -> None:
    assert len(answer_to(cluster.plan.regions[0].peer_port, HOSTILE[name])) < 1000


def test_kafka_bytes_on_the_http_port_get_a_400(cluster: LocalCluster) -> None:
    answer = answer_to(cluster.plan.regions[0].http_port, HOSTILE["random bytes"])
    assert answer.startswith(b"HTTP/1.") or answer == b""


def test_half_a_frame_and_then_silence_holds_nobody_up(
    cluster: LocalCluster, bystander: Bystander
) -> None:
    place = cluster.plan.regions[0]
    frame = framed(frame_of(METADATA, 9, ALL_TOPICS))
    with socket.create_connection(("127.0.0.1", place.kafka_port)) as silent:
        silent.sendall(frame[: len(frame) // 2])
        bystander.works()
        silent.sendall(frame[len(frame) // 2 :])  # and it is whole after all
        (size,) = struct.unpack(">i", silent.recv(4, socket.MSG_WAITALL))
        _, answer = parse_answer(METADATA, 9, silent.recv(size, socket.MSG_WAITALL))
        assert [topic.name for topic in answer.topics if not topic.is_internal] == ["orders"]


async def ask(cluster: LocalCluster, key: int, version: int, values: dict[str, Any]) -> Any:
    port = cluster.plan.regions[0].kafka_port
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        return await client.call(key, version, values)
    finally:
        client.writer.close()
        await client.writer.wait_closed()


async def test_an_unknown_version_of_api_versions_is_answered_with_what_there_is(
    cluster: LocalCluster,
) -> None:
    answer = answer_to(
        cluster.plan.regions[0].kafka_port, framed(struct.pack(">hhih", API_VERSIONS, 99, 7, -1))
    )
    (size,) = struct.unpack(">i", answer[:4])
    assert size == len(answer) - 4
    correlation_id, body = parse_answer(API_VERSIONS, 0, answer[4:])
    assert correlation_id == 7
    assert body.error_code.name == "unsupported_version"
    assert API_VERSIONS in {each.api_key for each in body.api_keys}


def wrong_crc(batch: bytes) -> bytes:
    return batch[:-1] + bytes([batch[-1] ^ 1])


BATCH = build_batch([Record(b"k", b"v" * 100, timestamp_ms=1)])
BAD_BATCHES: dict[str, tuple[bytes, set[str]]] = {
    "wrong CRC": (wrong_crc(BATCH), {"corrupt_message"}),
    "cut off": (BATCH[:-10], {"corrupt_message", "invalid_record"}),
    "header only": (BATCH[:61], {"corrupt_message", "invalid_record"}),
    "length beyond the request": (
        BATCH[:8] + struct.pack(">i", 1 << 20) + BATCH[12:], {"corrupt_message", "invalid_record"}
    ),
    "magic 1": (BATCH[:16] + b"\x01" + BATCH[17:],
                {"corrupt_message", "unsupported_for_message_format", "invalid_record"}),
    "empty": (b"", {"corrupt_message", "invalid_record"}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_BATCHES)
async def test_a_bad_batch_is_refused_by_name_and_nothing_of_it_is_kept(
    cluster: LocalCluster, name: str
) -> None:
    data, allowed = BAD_BATCHES[name]
    answer = await ask(cluster, PRODUCE, 9, produce_of("orders", data))
    (row,) = answer.responses[0].partition_responses
    assert row.error_code.name in allowed
    assert row.base_offset == -1


def produce_of(topic: str, data: bytes) -> dict[str, Any]:
    rows = [{"name": topic, "partition_data": [{"index": 0, "records": data}]}]
    return {"transactional_id": None, "acks": -1, "timeout": 5000, "topic_data": rows}


async def test_an_unknown_topic_is_named_so(cluster: LocalCluster) -> None:
    answer = await ask(cluster, PRODUCE, 9, produce_of("nowhere", BATCH))
    (row,) = answer.responses[0].partition_responses
    assert row.error_code.name == "unknown_topic_or_partition"


@pytest.mark.parametrize(
    ("config", "named"),
    [({"retention.msec": "1"}, "retention.msec"), ({"retention.ms": "soon"}, "soon")],
)
def test_a_bad_topic_config_is_refused_with_its_name(
    cluster: LocalCluster, config: dict[str, str], named: str
) -> None:
    admin = AdminClient({"bootstrap.servers": cluster.bootstrap})
    wanted = NewTopic("configured", 1, 1, config=config)
    with pytest.raises(KafkaException, match=named) as refused:
        admin.create_topics([wanted])["configured"].result(HANG_S)
    assert refused.value.args[0].name() == "INVALID_CONFIG"
    assert "configured" not in admin.list_topics(timeout=HANG_S).topics


Change = Callable[[dict[str, Any], Path], None]


def other_ports(config: dict[str, Any]) -> None:
    with socket.socket() as first, socket.socket() as second, socket.socket() as third:
        for held, key in ((first, "kafka"), (second, "peer"), (third, "http")):
            held.bind(("127.0.0.1", 0))
            config["regions"][0][key] = f"127.0.0.1:{held.getsockname()[1]}"


def same_folder(config: dict[str, Any], _folder: Path) -> None:
    other_ports(config)


def same_ports(config: dict[str, Any], folder: Path) -> None:
    config["data_dir"] = str(folder / "other")


def misspelt_key(config: dict[str, Any], folder: Path) -> None:
    same_ports(config, folder)
    other_ports(config)
    config["flush_polcy"] = "commit"


def newer_folder(config: dict[str, Any], folder: Path) -> None:
    same_ports(config, folder)
    other_ports(config)
    data_dir = Path(config["data_dir"])
    data_dir.mkdir()
    with sqlite3.connect(data_dir / "metadata.db") as database:
        database.execute("CREATE TABLE alembic_version (version_num VARCHAR(32) NOT NULL)")
        database.execute("INSERT INTO alembic_version VALUES ('r9999')")
    database.close()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (same_folder, "is in use by another running node"),
        (same_ports, "cannot be bound"),
        (misspelt_key, "flush_polcy"),
        (newer_folder, "newer version"),
    ],
)
def test_a_second_node_that_cannot_start_says_why(
    cluster: LocalCluster, tmp_path: Path, change: Change, said: str
) -> None:
    config = json.loads((cluster.data_dir("eu") / "node.json").read_bytes())
    change(config, tmp_path)
    path = tmp_path / "second.json"
    path.write_text(json.dumps(config))
    done = run_tidemark("broker", "--config", str(path))
    assert done.returncode in {1, 2}
    assert done.stdout == ""
    last = done.stderr.strip().splitlines()[-1]
    assert said in last
    assert "Traceback" not in done.stderr
    checked = run_tidemark("broker", "--config", str(path), "--check")
    if change is same_folder:  # a check beside a running node is no mistake
        assert checked.returncode == 0
        assert "a node runs on" in checked.stderr
    else:
        assert (checked.returncode, checked.stdout) == (done.returncode, "")
        assert checked.stderr.strip().splitlines()[-1] == last


def flip(path: Path, *positions: int) -> None:
    content = bytearray(path.read_bytes())
    for position in positions:
        content[position] ^= 0x10
    path.write_bytes(content)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A cluster's folder, with a transaction and a group's offsets in it."""
    folder = tmp_path_factory.mktemp("written")
    with LocalCluster.open(folder, region_count=1, port=0, new_cluster_id=UUID(int=4)) as made:
        made.start()
        admin = AdminClient({"bootstrap.servers": made.bootstrap})
        admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(20)
        producer = Producer({"bootstrap.servers": made.bootstrap, "transactional.id": "writer"})
        producer.init_transactions()
        producer.begin_transaction()
        producer.produce("orders", b"one")
        producer.commit_transaction()
        consumer = Consumer({"bootstrap.servers": made.bootstrap, "group.id": "readers"})
        consumer.commit(offsets=[TopicPartition("orders", 0, 1)], asynchronous=False)
        consumer.close()
    return folder


@pytest.mark.parametrize(
    ("damaged", "positions", "said"),
    [
        ("logs/format", (0,), "does not name a Tidemark log format"),
        ("logs/journal", (8, 2056), "the journal has no sound head"),
        ("failover.journal", (0,), "failover.journal has no magic number"),
        ("identity", (8,), "is damaged"),
        ("__transaction_state", (0,), "no region acts without all of its ledgers: __transaction_state-"),
        ("__consumer_offsets", (0,), "no region acts without all of its ledgers: __consumer_offsets-"),
    ],
)  # fmt: skip
def test_a_node_whose_folder_is_damaged_says_why_it_ends(
    written: Path, tmp_path: Path, damaged: str, positions: tuple[int, ...], said: str
) -> None:
    config = json.loads((written / "eu" / "node.json").read_bytes())
    folder = tmp_path / "copy"
    shutil.copytree(config["data_dir"], folder)
    flip(largest_log(folder, damaged) if damaged.startswith("_") else folder / damaged, *positions)
    config["data_dir"] = str(folder)
    other_ports(config)
    path = tmp_path / "copy.json"
    path.write_text(json.dumps(config))
    done = run_tidemark("broker", "--config", str(path))
    assert done.returncode == 1, done.stderr
    assert "Traceback" not in done.stderr
    assert said in done.stderr.strip().splitlines()[-1]


def largest_log(folder: Path, ledger: str) -> Path:
    """Return the fullest segment of a ledger."""
    [described] = [
        path for path in folder.glob("logs/*/topic.json") if f'"{ledger}"' in path.read_text()
    ]
    return max(described.parent.glob("*/*.log"), key=lambda path: path.stat().st_size)
