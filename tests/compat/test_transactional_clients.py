"""librdkafka and aiokafka (both TV1) run transactions against real partitions over real sockets.

The broker is `tests/fixtures/transaction_port.py`: the real parts of a node without its processes.
"""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition

from idempotency.identity import Round
from region_broker.partitions.parts.sight import Isolation
from tests.fixtures.kafka_port import LEADER_EPOCH
from tests.fixtures.transaction_port import REGION_EPOCH, txn_broker


def read_committed(address: str, expected: int) -> list[bytes]:
    """Read `expected` records of all partitions as a read-committed consumer."""
    consumer = Consumer(
        {
            "bootstrap.servers": address,
            "group.id": "unused",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    consumer.assign([TopicPartition("orders", number, 0) for number in range(3)])
    found: list[bytes] = []
    for _ in range(200):
        message = consumer.poll(0.05)
        if message is not None and message.error() is None:
            found.append(message.value() or b"")
        if len(found) >= expected:
            break
    consumer.close()
    return found


def transfer(producer: Producer, number: int, finish: Callable[..., Any]) -> None:
    """One transaction over two partitions."""
    producer.begin_transaction()
    producer.produce("orders", f"-{number}", partition=number % 3)
    producer.produce("orders", f"+{number}", partition=(number + 1) % 3)
    finish(10)


def run_librdkafka(address: str) -> list[bytes]:
    """Commit ten, abort three in between; a second instance fences the first."""
    settings = {"bootstrap.servers": address, "transactional.id": "transfers"}
    producer = Producer(settings)
    producer.init_transactions(10)
    for number in range(13):
        aborts = number in (2, 5, 11)
        transfer(
            producer, number, producer.abort_transaction if aborts else producer.commit_transaction
        )
    second = Producer(settings)
    second.init_transactions(10)
    with pytest.raises(KafkaException) as fenced:
        transfer(producer, 99, producer.commit_transaction)
    assert fenced.value.args[0].fatal()
    transfer(second, 13, second.commit_transaction)
    return read_committed(address, 22)


async def test_librdkafka_commits_aborts_and_is_fenced(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, txn):
        address = f"127.0.0.1:{fixture.server.port}"
        found = await asyncio.to_thread(run_librdkafka, address)
        numbers = [number for number in range(14) if number not in (2, 5, 11)]
        assert sorted(found) == sorted(
            sign + str(number).encode() for number in numbers for sign in (b"-", b"+")
        )
        assert txn.open_transactions == 0
        for index in range(3):
            partition = fixture.partition("orders", index)
            assert partition.state.open_transactions() == []
            assert (
                partition.sight.readable_end(Isolation.READ_COMMITTED) == partition.high_watermark
            )


async def test_aiokafka_commits_and_aborts(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, txn):
        address = f"127.0.0.1:{fixture.server.port}"
        async with AIOKafkaProducer(
            bootstrap_servers=address, transactional_id="a", enable_idempotence=True
        ) as producer:
            for number in range(6):
                await producer.begin_transaction()
                await producer.send_and_wait("orders", b"%d" % number, partition=number % 3)
                if number % 2:
                    await producer.abort_transaction()
                else:
                    await producer.commit_transaction()
        found = await asyncio.to_thread(read_committed, address, 3)
        assert sorted(found) == [b"0", b"2", b"4"]
        assert txn.open_transactions == 0


async def test_a_restart_finds_the_ledger_and_finishes(tmp_path: Path) -> None:
    async with txn_broker(tmp_path) as (fixture, txn):
        init = await txn.clients.init_producer_id("t", 60_000)
        pair = (init.producer_id, init.producer_epoch)
        partitions = [fixture.partition("orders", 0).tp]
        await txn.clients.add_partitions("t", *pair, partitions, implicit=False)
        await txn.load(LEADER_EPOCH, REGION_EPOCH)  # every entry read again from the log
        ended = await txn.clients.end_txn("t", *pair, True, 1)
        assert ended.verdict.name == "OK"
        entered = await txn.rounds.enter_round(Round(1 << 32 | 1))
        assert sorted(entered) == [0, 1]
