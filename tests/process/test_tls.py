"""Clients of all kinds over TLS against a real node, and regions that speak TLS to each other.

Goal: who has the right certificates works as without TLS, and goes on while they are replaced; who has not is refused, with the
reason in a metric.
"""

import asyncio
import json
import socket
import ssl
import struct
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.errors import KafkaConnectionError
from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic
from kafka import KafkaConsumer, KafkaProducer

from region_broker.security.tls_contents import TlsFiles
from tests.fixtures.certificates import NOW, authority, crl_of, put, user_certificate
from tests.fixtures.secret_scan import save_metrics
from tests.process.client_fixture import CALL_S, create_topic, fail_over, read_all
from tests.process.tls_cluster import TlsCluster, open_tls_cluster

pytestmark = [pytest.mark.process, pytest.mark.slow]

SUPER_USERS = "User:CN=alice;User:ANONYMOUS"
"""Where a listener asks who clients are, only these may do anything without ACLs."""
MALLORY = user_certificate("mallory")
VALUES = [str(number) for number in range(20)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsCluster]:
    folder = tmp_path_factory.mktemp("tls")
    with open_tls_cluster(
        folder,
        1,
        crl=crl_of(MALLORY),
        further=True,
        security_protocol="SSL",
        http_security_protocol="SSL",
        super_users=SUPER_USERS,
    ) as made:
        made.start()
        yield made


@pytest.fixture(scope="module")
def alice(tmp_path_factory: pytest.TempPathFactory) -> TlsFiles:
    return put(tmp_path_factory.mktemp("alice"), user_certificate())


def librdkafka(brokers: str, files: TlsFiles | None, **more: Any) -> dict[str, Any]:
    secured: dict[str, Any] = {}
    if files is not None:
        secured = {"security.protocol": "SSL", "ssl.ca.location": files.ca}
        if files.certificate:
            secured |= {
                "ssl.certificate.location": files.certificate,
                "ssl.key.location": files.key,
            }
    return {"bootstrap.servers": brokers, "log_level": 0, **secured, **more}


def mutual(cluster: TlsCluster) -> str:
    return f"localhost:{cluster.listening['MUTUAL']}"


def metric(cluster: TlsCluster, reason: str) -> float:
    """Return how many handshakes failed on the Kafka port for a reason, as HTTP tells it, over TLS, too."""
    context = context_of(put(cluster.folder / "alice", user_certificate()))
    url = f"https://localhost:{cluster.plan.nodes[0].http_port}/metrics"
    with urllib.request.urlopen(url, context=context, timeout=CALL_S) as answer:
        said = answer.read().decode()
    (cluster.folder / "metrics.txt").write_text(said)  # to be looked through with the log
    named = f'tidemark_tls_handshakes_failed_total{{port="kafka",reason="{reason}"}} '
    return next(
        (float(line.removeprefix(named)) for line in said.splitlines() if line.startswith(named)),
        0.0,
    )


@pytest.mark.parametrize("by", ["kafka", "MUTUAL", "INSIDE"])
def test_librdkafka_by_each_listener(cluster: TlsCluster, alice: TlsFiles, by: str) -> None:
    brokers = cluster.bootstrap if by == "kafka" else f"localhost:{cluster.listening[by]}"
    files = None if by == "INSIDE" else alice
    admin = AdminClient(librdkafka(brokers, files))
    admin.create_topics([NewTopic(f"c-{by}", 2, 1)])[f"c-{by}"].result(CALL_S)
    told = admin.list_topics(timeout=CALL_S).brokers.values()
    assert [f"{broker.host}:{broker.port}" for broker in told] == [brokers], "where it came by"
    producer = Producer(librdkafka(brokers, files, **{"transactional.id": f"x-{by}"}))
    producer.init_transactions(CALL_S)
    for outcome in (producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for value in VALUES:
            producer.produce(f"c-{by}", f"{outcome.__name__}-{value}".encode(), partition=0)
        outcome(CALL_S)
    consumer = Consumer(
        librdkafka(brokers, files, **{"group.id": f"g-{by}", "auto.offset.reset": "earliest"})
    )
    consumer.subscribe([f"c-{by}"])
    found: list[bytes] = []
    for _ in range(100):
        found += [m.value() for m in consumer.consume(100, 1.0) if m.error() is None]  # type: ignore[misc]
        if len(found) >= len(VALUES):
            break
    consumer.close()
    assert found == [f"commit_transaction-{value}".encode() for value in VALUES]


def context_of(files: TlsFiles) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=files.ca)
    if files.certificate:
        context.load_cert_chain(files.certificate, files.key)
    return context


async def test_aiokafka(cluster: TlsCluster, alice: TlsFiles) -> None:
    create_topic_by(cluster, alice, "aio")
    secured = {
        "bootstrap_servers": mutual(cluster), "security_protocol": "SSL", "ssl_context": context_of(alice),
    }  # fmt: skip
    async with (
        AIOKafkaProducer(**secured, transactional_id="aio") as producer,
        producer.transaction(),
    ):
        await producer.send_and_wait("aio", b"one")
    async with AIOKafkaConsumer("aio", **secured, auto_offset_reset="earliest") as consumer:
        async with asyncio.timeout(CALL_S):
            assert (await consumer.getone()).value == b"one"


def test_kafka_python(cluster: TlsCluster, alice: TlsFiles) -> None:
    create_topic_by(cluster, alice, "kp")
    secured = {
        "bootstrap_servers": mutual(cluster), "security_protocol": "SSL", "ssl_context": context_of(alice),
    }  # fmt: skip
    producer = KafkaProducer(**secured)
    producer.send("kp", b"one").get(CALL_S)
    producer.close()
    consumer = KafkaConsumer(
        "kp", **secured, auto_offset_reset="earliest", consumer_timeout_ms=int(CALL_S * 1000)
    )
    assert next(consumer).value == b"one"
    consumer.close()


def kcat(
    brokers: str, files: TlsFiles, *arguments: str, said: bytes = b""
) -> subprocess.CompletedProcess[bytes]:
    options = {
        key: value
        for key, value in librdkafka(brokers, files).items()
        if "ssl" in key or "security" in key
    }
    command = ["kcat", "-b", brokers, *arguments]
    for key, value in options.items():
        command += ["-X", f"{key}={value}"]
    return subprocess.run(command, input=said, capture_output=True, timeout=CALL_S, check=False)


def test_kcat(cluster: TlsCluster, alice: TlsFiles) -> None:
    create_topic_by(cluster, alice, "kcat")
    assert kcat(mutual(cluster), alice, "-P", "-t", "kcat", said=b"one\ntwo\n").returncode == 0
    read = kcat(mutual(cluster), alice, "-C", "-t", "kcat", "-e", "-q")
    assert sorted(read.stdout.split()) == [b"one", b"two"]


KAFKA_PYTHON_LEFT = "Unable to bootstrap"
_KAFKA_PYTHON = """
import sys
from kafka import KafkaProducer
brokers, ca, certificate, key = sys.argv[1:]
KafkaProducer(
    bootstrap_servers=brokers, security_protocol="SSL", ssl_cafile=ca, ssl_certfile=certificate, ssl_keyfile=key,
    bootstrap_timeout_ms=500,
)
"""


def kafka_python_says(brokers: str, files: TlsFiles) -> str:
    """Return why a producer does not begin; in a process of its own, as it forgets its sockets then."""
    arguments = [brokers, files.ca, files.certificate, files.key]
    done = subprocess.run(
        [sys.executable, "-c", _KAFKA_PYTHON, *arguments], capture_output=True, text=True, timeout=CALL_S, check=False
    )  # fmt: skip
    assert done.returncode != 0
    return done.stderr


@pytest.mark.parametrize(
    "reason", ["no_certificate", "expired", "revoked", "unknown_ca", "refused_by_peer"]
)
async def test_who_has_not_the_right_certificates_is_refused_and_counted(
    cluster: TlsCluster, tmp_path: Path, reason: str
) -> None:
    other = authority("another CA")
    files = put(
        tmp_path / "files",
        {
            "no_certificate": None,
            "expired": user_certificate(now=NOW - timedelta(days=400)),
            "revoked": MALLORY,
            "unknown_ca": user_certificate(by=other),
            "refused_by_peer": user_certificate(),
        }[reason],
        trusted=[other] if reason == "refused_by_peer" else [],
    )
    before = metric(cluster, reason)
    admin = AdminClient(librdkafka(mutual(cluster), files))
    with pytest.raises(KafkaException):
        admin.list_topics(timeout=0.7)
    assert kcat(mutual(cluster), files, "-L", "-m", "1").returncode != 0
    producer = AIOKafkaProducer(
        bootstrap_servers=mutual(cluster), security_protocol="SSL", ssl_context=context_of(files)
    )
    with pytest.raises(KafkaConnectionError):
        await producer.start()
    await producer.stop()
    if reason == "unknown_ca":
        assert KAFKA_PYTHON_LEFT in kafka_python_says(mutual(cluster), files)
    assert metric(cluster, reason) >= before + 2, (
        "by OpenSSL's word at least from librdkafka and kcat"
    )


def test_a_certificate_is_replaced_under_a_producer_that_goes_on(
    cluster: TlsCluster, alice: TlsFiles
) -> None:
    address = ("localhost", cluster.plan.nodes[0].kafka_port)
    shown, disconnects, lost = ssl.get_server_certificate(address), [0], []

    def count(text: str) -> None:
        disconnects.append(
            sum(each["disconnects"] for each in json.loads(text)["brokers"].values())
        )

    create_topic_by(cluster, alice, "reload")
    producer = Producer(
        librdkafka(cluster.bootstrap, alice, **{"statistics.interval.ms": 50, "acks": "all", "retries": 0}), stats_cb=count
    )  # fmt: skip
    cluster.issue("eu")
    sent = 0
    while ssl.get_server_certificate(address) == shown:
        for _ in range(10):
            producer.produce("reload", b"x", on_delivery=lambda error, _: lost.append(error))
            sent += 1
            producer.poll(0.02)
        assert sent < 5_000, "the new certificate is not in use"
    producer.produce("reload", b"behind", on_delivery=lambda error, _: lost.append(error))
    assert producer.flush(CALL_S) == 0
    producer.poll(0.2)
    assert lost == [None] * (sent + 1)
    assert disconnects[-1] == 0


def is_let_in(cluster: TlsCluster, files: TlsFiles) -> bool:
    """Connect where certificates are required, and ask for ApiVersions."""
    raw = socket.create_connection(("localhost", cluster.listening["MUTUAL"]), CALL_S)
    with (
        raw,
        suppress(ssl.SSLError, ConnectionError),
        context_of(files).wrap_socket(raw, server_hostname="localhost") as stream,
    ):
        stream.sendall(struct.pack(">ihhih", 10, 18, 0, 1, -1))
        return bool(stream.recv(4))
    return False


def test_a_revocation_counts_for_who_comes_and_drops_nobody(
    cluster: TlsCluster, alice: TlsFiles, tmp_path: Path
) -> None:
    again = user_certificate()
    files, lost, disconnects = put(tmp_path / "again", again), list[object](), [0]

    def count(text: str) -> None:
        disconnects.append(
            sum(each["disconnects"] for each in json.loads(text)["brokers"].values())
        )

    create_topic_by(cluster, alice, "revoked")
    config = librdkafka(mutual(cluster), files, **{"statistics.interval.ms": 50, "retries": 0})
    producer = Producer(config, stats_cb=count)

    def produce() -> None:
        producer.produce("revoked", b"x", on_delivery=lambda error, _: lost.append(error))
        producer.poll(0.05)

    produce()
    assert producer.flush(CALL_S) == 0
    assert is_let_in(cluster, files)
    cluster.crl = crl_of(MALLORY, again)
    (cluster.folder / "tls-1" / "crl.pem").write_bytes(cluster.crl)
    sent = 1
    while is_let_in(cluster, files):
        produce()
        sent += 1
        assert sent < 1_000, "the new CRL is not in use"
    produce()
    assert producer.flush(CALL_S) == 0
    producer.poll(0.2)
    assert lost == [None] * (sent + 1), "who was in when it was revoked stays"
    assert disconnects[-1] == 0
    assert is_let_in(cluster, alice), "of the same name, and not revoked"


def create_topic_by(cluster: TlsCluster, files: TlsFiles, name: str) -> None:
    admin = AdminClient(librdkafka(cluster.bootstrap, files))
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(CALL_S)


def test_regions_that_speak_tls_to_each_other_fail_over(tmp_path: Path) -> None:
    with open_tls_cluster(tmp_path, 2, peer_security_protocol="SSL") as regions:
        regions.start()
        create_topic(regions.bootstrap, "t")
        producer = Producer(
            {"bootstrap.servers": regions.place("eu").bootstrap, "transactional.id": "x"}
        )
        producer.init_transactions(CALL_S)
        producer.begin_transaction()
        for value in VALUES:
            producer.produce("t", value.encode(), partition=0)
        producer.commit_transaction(CALL_S)
        us = regions.place("us").bootstrap
        assert read_all(us, "t") == VALUES, "mirrored over TLS"
        forwarded = Producer({"bootstrap.servers": us, "acks": "all"})
        forwarded.produce("t", b"forwarded", partition=1)
        assert forwarded.flush(CALL_S) == 0
        for _ in range(100):
            if len(read_all(us, "t")) > len(VALUES):
                break
        regions.kill("eu")
        fail_over(regions, "us")
        assert read_all(us, "t") == [*VALUES, "forwarded"]
        save_metrics(regions)
