"""A producer that was fenced is let go only when none of its requests is under way (INV-CP13).

Method: librdkafka's own mock broker, which confluent-kafka brings with it, answers the two partitions of a
transaction INVALID_PRODUCER_EPOCH one after the other, as a broker that fences does.
"""

import asyncio
import ctypes
import logging
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException, Producer

from region_broker.client import TransactionalProducer, transactional_producer
from region_broker.client.retirement import retire

PRODUCE = 0
FIRST_MS, SECOND_MS = 100, 10_000
WAIT_S = 20.0
QUIET = logging.getLogger("tests.retirement")
QUIET.addHandler(logging.NullHandler())
QUIET.propagate = False


def librdkafka() -> ctypes.CDLL:
    """Return the library that confluent-kafka has loaded."""
    mapped = Path("/proc/self/maps").read_text(encoding="utf-8").splitlines()
    library = ctypes.CDLL(next(line.split()[-1] for line in mapped if "librdkafka" in line))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


@contextmanager
def fencing_broker() -> Iterator[str]:
    """Start a broker whose first two answers to Produce are a fence, the second later; give its address."""
    library = librdkafka()
    conf = ctypes.c_void_p(library.rd_kafka_conf_new())
    owner = ctypes.c_void_p(library.rd_kafka_new(0, conf, None, ctypes.c_size_t(0)))
    cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(owner, 1))
    library.rd_kafka_mock_topic_create(cluster, b"t", 2, 1)
    for rtt_ms in (FIRST_MS, SECOND_MS):
        library.rd_kafka_mock_broker_push_request_error_rtts(
            cluster, ctypes.c_int32(1), ctypes.c_int16(PRODUCE), ctypes.c_size_t(1),
            ctypes.c_int(KafkaError.INVALID_PRODUCER_EPOCH), ctypes.c_int(rtt_ms),
        )  # fmt: skip
    yield library.rd_kafka_mock_cluster_bootstraps(cluster).decode()
    library.rd_kafka_mock_cluster_destroy(cluster)
    library.rd_kafka_destroy(owner)


@pytest.fixture
def fenced() -> Iterator[tuple[Producer, list[KafkaError | None]]]:
    """Give a producer whose commit was fenced by one partition while the other's answer is on its way."""
    reported: list[KafkaError | None] = []
    with fencing_broker() as address:
        producer = Producer(
            {"bootstrap.servers": address, "transactional.id": "p", "linger.ms": 0, "log_level": 0},
            logger=QUIET,
        )
        producer.init_transactions(WAIT_S)
        producer.begin_transaction()
        for partition in range(2):
            producer.produce(
                "t", b"v", partition=partition, on_delivery=lambda error, _: reported.append(error)
            )
        with pytest.raises(KafkaException) as raised:
            producer.commit_transaction(WAIT_S)
        assert raised.value.args[0].code() == KafkaError._FENCED
        yield producer, reported


def test_INV_CP13_no_request_of_a_fenced_producer_is_left_under_way(
    fenced: tuple[Producer, list[KafkaError | None]],
) -> None:
    producer, reported = fenced
    assert len(producer) > 0, "the commit is not expected to wait for the second answer"
    assert retire(producer, WAIT_S) == 0
    codes = sorted(error.code() for error in reported if error is not None)
    assert codes == [KafkaError._PURGE_INFLIGHT, KafkaError.INVALID_PRODUCER_EPOCH]


def test_INV_CP13_tells_what_is_left_when_the_time_is_over(
    fenced: tuple[Producer, list[KafkaError | None]],
) -> None:
    producer, _ = fenced
    assert retire(producer, 0.0) > 0
    assert retire(producer, WAIT_S) == 0


class Waiting:
    """Stands for a librdkafka producer with a request under way; `steps` notes what is done with any of them."""

    steps: ClassVar[list[str]] = []

    def __init__(self, committing: asyncio.Event, loop: asyncio.AbstractEventLoop) -> None:
        self.steps.append("built")
        self.goes_on = threading.Event()
        self._left = 1
        self._committing, self._loop = committing, loop

    def begin_transaction(self) -> None:
        """It has."""

    def commit_transaction(self, _timeout_s: float) -> None:
        self._loop.call_soon_threadsafe(self._committing.set)
        assert self.goes_on.wait(WAIT_S)

    def purge(self) -> None:
        self.steps.append("purged")
        self._left = 0

    def flush(self, _timeout_s: float) -> int:
        return 0

    def __len__(self) -> int:
        return self._left


async def test_INV_CP13_one_whose_commit_was_cancelled_is_let_go_before_the_next_is_built(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """No error has condemned it, and it was dropped as it was."""
    committing, loop = asyncio.Event(), asyncio.get_running_loop()
    built: list[Waiting] = []

    def initialised(*_arguments: object) -> Waiting:
        built.append(Waiting(committing, loop))
        return built[-1]

    monkeypatch.setattr(transactional_producer, "initialised", initialised)
    monkeypatch.setattr(Waiting, "steps", [])
    async with TransactionalProducer(bootstrap="nowhere", transactional_id="p") as producer:

        async def write() -> None:
            async with producer.transaction():
                pass

        async with asyncio.TaskGroup() as tasks:
            cut_off = tasks.create_task(write())
            await committing.wait()
            cut_off.cancel()
        committing.clear()
        built[0].goes_on.set()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(write())
            await committing.wait()
            built[1].goes_on.set()
    assert Waiting.steps[:3] == ["built", "purged", "built"]
