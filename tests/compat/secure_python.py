"""A Python client, or kcat, comes in over TLS as standard input says: `python -m tests.compat.secure_python CLIENT`.

It lists, writes and reads, each by a client of its own and at the same time, and prints what became of each (`secure_cases`).
"""

import asyncio
import json
import logging
import os
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, AIOKafkaProducer
from aiokafka.abc import AbstractTokenProvider
from aiokafka.admin import AIOKafkaAdminClient
from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from kafka import KafkaAdminClient, KafkaConsumer, KafkaProducer
from kafka import TopicPartition as PureTopicPartition
from kafka.net.sasl.oauth import AbstractTokenProvider as PureTokenProvider
from typing_extensions import override

from region_broker.ports.system.clock import SystemClock
from tests.compat.secure_cases import BEARER, Told

LIMIT_S: Final = 25.0
TOKEN_S: Final = 3_600.0
_POLL_S: Final = 0.1
_LOG_CHARACTERS: Final = 500
_FINAL: Final = (KafkaError._AUTHENTICATION, KafkaError._SSL)
Step = Callable[[Told], None]


class Refused(Exception):
    """What a client says, where it says so otherwise than by an exception."""


# --- confluent-kafka (librdkafka)


class _Heard:
    """The first error of a client that it goes on after by itself, though it tells that it is refused."""

    def __init__(self) -> None:
        self.error: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        # An alert behind a handshake that the client takes for done (TLS 1.3) is told as a failed read.
        tells = error.code() in _FINAL or "alert" in error.str()
        if self.error is None and tells:
            self.error = error

    def check(self) -> None:
        if self.error is not None:
            raise Refused(f"{self.error.name()}: {self.error.str()}")


def librdkafka(told: Told) -> dict[str, Any]:
    """Return what librdkafka is told."""
    config: dict[str, Any] = {
        "bootstrap.servers": told.bootstrap, "security.protocol": "SASL_SSL" if told.mechanism else "SSL",
        "ssl.ca.location": told.ca, "log_level": 0,
    }  # fmt: skip
    if told.certificate:
        config |= {"ssl.certificate.location": told.certificate, "ssl.key.location": told.key}
    if told.mechanism:
        config["sasl.mechanism"] = told.mechanism
    if told.mechanism and told.mechanism != BEARER:
        config |= {"sasl.username": told.user, "sasl.password": told.secret}
    return config


def _confluent(told: Told, heard: _Heard, **more: Any) -> dict[str, Any]:
    if told.mechanism == BEARER:
        more["oauth_cb"] = lambda _config: (told.secret, SystemClock().wall_ms() / 1_000 + TOKEN_S)
    return {**librdkafka(told), "error_cb": heard, **more}


def _until(done: Callable[[], bool], heard: _Heard) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while not done():
        heard.check()
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not done within {LIMIT_S} s")


def confluent_list(told: Told) -> None:
    heard = _Heard()
    client = AdminClient(_confluent(told, heard))

    def listed() -> bool:
        client.poll(_POLL_S)
        try:
            return told.topic in client.list_topics(timeout=0.5).topics
        except KafkaException:
            return False

    _until(listed, heard)


def confluent_produce(told: Told) -> None:
    heard, delivered = _Heard(), []
    producer = Producer(_confluent(told, heard))
    producer.produce(told.topic, told.value.encode(), on_delivery=lambda error, _: delivered.append(error))  # fmt: skip

    def written() -> bool:
        producer.poll(_POLL_S)
        return bool(delivered)

    try:
        _until(written, heard)
    except Refused:
        producer.purge()
        raise
    if delivered[0] is not None:
        raise KafkaException(delivered[0])


def confluent_consume(told: Told) -> None:
    heard = _Heard()
    consumer = Consumer(_confluent(told, heard, **{"group.id": f"confluent-{told.value}"}))
    consumer.assign([TopicPartition(told.topic, 0, 0)])

    def read() -> bool:
        message = consumer.poll(_POLL_S)
        return message is not None and message.value() == told.value.encode()

    try:
        _until(read, heard)
    finally:
        consumer.close()


# --- kcat


def kcat(told: Told, *arguments: str, said: str = "") -> str:
    """Return what kcat prints; raises `Refused`."""
    config = {name: value for name, value in librdkafka(told).items() if name != "bootstrap.servers"}  # fmt: skip
    del config["log_level"]
    options = [word for name, value in config.items() for word in ("-X", f"{name}={value}")]
    done = subprocess.run(
        ["kcat", "-b", told.bootstrap, *arguments, *options],
        input=said, capture_output=True, text=True, timeout=LIMIT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise Refused(done.stderr.strip().replace("\n", " "))
    return done.stdout


def kcat_list(told: Told) -> None:
    found = json.loads(kcat(told, "-L", "-J", "-m", "5"))
    assert told.topic in [each["topic"] for each in found["topics"]]


def kcat_produce(told: Told) -> None:
    kcat(told, "-P", "-t", told.topic, said=told.value)


def kcat_consume(told: Told) -> None:
    ends_s = time.monotonic() + LIMIT_S
    while told.value not in kcat(told, "-C", "-t", told.topic, "-e").split():
        if time.monotonic() > ends_s:
            raise TimeoutError(f"not done within {LIMIT_S} s")


# --- aiokafka and kafka-python


class _AioToken(AbstractTokenProvider):  # type: ignore[misc]  # aiokafka has no types
    def __init__(self, text: str) -> None:
        self.text = text

    async def token(self) -> str:
        return self.text


class _PureToken(PureTokenProvider):  # type: ignore[misc]  # nor has kafka-python
    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def token(self) -> str:
        return self.text


def _python(told: Told, token: Callable[[str], Any]) -> dict[str, Any]:
    context = ssl.create_default_context(cafile=told.ca)
    if told.certificate:
        context.load_cert_chain(told.certificate, told.key)
    config: dict[str, Any] = {"bootstrap_servers": told.bootstrap, "ssl_context": context}
    if not told.mechanism:
        return config | {"security_protocol": "SSL"}
    config |= {"security_protocol": "SASL_SSL", "sasl_mechanism": told.mechanism}
    if told.mechanism == BEARER:
        return config | {"sasl_oauth_token_provider": token(told.secret)}
    return config | {"sasl_plain_username": told.user, "sasl_plain_password": told.secret}


def _in_a_loop(step: Callable[[Told], Coroutine[Any, Any, None]]) -> Step:
    return lambda told: asyncio.run(asyncio.wait_for(step(told), LIMIT_S))


async def aiokafka_list(told: Told) -> None:
    client = AIOKafkaAdminClient(**_python(told, _AioToken))
    try:
        await client.start()
        assert told.topic in await client.list_topics()
    finally:
        await client.close()


async def aiokafka_produce(told: Told) -> None:
    producer = AIOKafkaProducer(**_python(told, _AioToken))
    try:
        await producer.start()
        await producer.send_and_wait(told.topic, told.value.encode())
    finally:
        await producer.stop()


async def aiokafka_consume(told: Told) -> None:
    consumer = AIOKafkaConsumer(
        told.topic, **_python(told, _AioToken), auto_offset_reset="earliest"
    )
    try:
        await consumer.start()
        async for message in consumer:
            if message.value == told.value.encode():
                return
    finally:
        await consumer.stop()


def _pure(told: Told) -> dict[str, Any]:
    return _python(told, _PureToken) | {"bootstrap_timeout_ms": 5_000}


def kafka_python_list(told: Told) -> None:
    with KafkaAdminClient(**_pure(told)) as client:
        assert told.topic in client.list_topics()


def kafka_python_produce(told: Told) -> None:
    producer = KafkaProducer(**_pure(told))
    try:
        producer.send(told.topic, told.value.encode()).get(LIMIT_S)
    finally:
        producer.close()


def kafka_python_consume(told: Told) -> None:
    consumer = KafkaConsumer(**_pure(told), consumer_timeout_ms=int(LIMIT_S * 1_000))
    try:
        where = PureTopicPartition(told.topic, 0)
        consumer.assign([where])
        consumer.seek_to_beginning(where)
        if not any(message.value == told.value.encode() for message in consumer):
            raise TimeoutError(f"not read within {LIMIT_S} s")
    finally:
        consumer.close()


STEPS: Final[dict[str, dict[str, Step]]] = {
    "confluent": {
        "list": confluent_list, "produce": confluent_produce, "consume": confluent_consume,
    },
    "kcat": {"list": kcat_list, "produce": kcat_produce, "consume": kcat_consume},
    "aiokafka": {
        "list": _in_a_loop(aiokafka_list), "produce": _in_a_loop(aiokafka_produce), "consume": _in_a_loop(aiokafka_consume),
    },
    "kafka-python": {
        "list": kafka_python_list, "produce": kafka_python_produce, "consume": kafka_python_consume,
    },
}  # fmt: skip


class _Log(logging.Handler):
    """What a client logs: aiokafka and kafka-python raise that they cannot bootstrap, and log why."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said = ""

    @override
    def emit(self, record: logging.LogRecord) -> None:
        self.said += f" {record.getMessage()}"


def tell(name: str, step: Step, told: Told, log: _Log) -> None:
    """Go a step, and print what became of it, in one write."""
    outcome = "ok"
    try:
        step(told)
    except Exception as error:  # noqa: BLE001  # whatever a client raises is what it says
        said = " ".join(f"{error} (log:{log.said[:_LOG_CHARACTERS]})".split())
        outcome = f"refused\t{type(error).__name__}: {said}"
    os.write(sys.stdout.fileno(), f"{name}\t{outcome}\n".encode())


def main(client: str) -> None:
    """Go all steps at once; a step that never ends is left behind."""
    told = Told.of(sys.stdin.read())
    log = _Log()
    logging.getLogger().addHandler(log)
    print("begun", flush=True)
    threads = [
        threading.Thread(target=tell, args=(name, step, told, log), daemon=True)
        for name, step in STEPS[client].items()
    ]
    for thread in threads:
        thread.start()
    ends_s = time.monotonic() + LIMIT_S + 1
    for thread in threads:
        thread.join(max(0.0, ends_s - time.monotonic()))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1])
