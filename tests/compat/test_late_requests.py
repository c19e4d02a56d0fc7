"""KAFKA-17754: a request that was held up meets a later transaction of the same producer, and what that does.

A proxy breaks the client's connection while one of its requests is on the way, and lets that arrive when the client
is in its next transaction, which under TV1 has the same producer id and epoch. With the connection-order fence
nothing comes of it. Without, transactions are torn: the tests count how, so that they are seen to notice it.
Judged by a read-committed reader; the broker is `tests/fixtures/transaction_port.py`, alone and behind a mirror.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, KafkaException, TopicPartition

from tests.compat.aiokafka_client import AiokafkaClient
from tests.compat.clients import POLL_S, POLLS_MAX, Client, Writer
from tests.compat.confluent_client import ConfluentClient
from tests.compat.delaying_proxy import END_TXN, PRODUCE, DelayingProxy, delaying_proxy
from tests.compat.kafka_python_client import KafkaPythonClient
from tests.fixtures.transaction_port import mirror_of, txn_broker
from txn_coordinator.settings import TxnSettings

pytestmark = pytest.mark.slow

CLIENTS: dict[str, Callable[[], Client]] = {
    "confluent-kafka": ConfluentClient,
    "aiokafka": AiokafkaClient,
    "kafka-python": KafkaPythonClient,
}
TOPICS = ("left", "right")
SCHEDULES = ("late-commit", "late-abort", "late-data-first", "late-data-behind")
LIMIT_S = 90.0
LATE_ANSWER_S = 10.0

# What a read-committed reader may see of each schedule: all of a committed transaction, nothing of an aborted one.
RIGHT = {
    "late-commit": {"1a", "1b"},
    "late-abort": {"2a", "2b"},
    "late-data-first": {"0a", "2a", "2b"},
    "late-data-behind": {"0a", "2a", "2b"},
}
# What it sees without the fence, where that is something else.
WRONG = {
    # Txn 2 was aborted by the application; the late commit took its first half.
    ("confluent-kafka", "late-commit"): {"1a", "1b", "2a"},
    ("aiokafka", "late-commit"): {"1a", "1b", "2a"},
    ("kafka-python", "late-commit"): {"1a", "1b", "2a"},
    # Txn 2 was committed; the late abort took its first half away.
    ("confluent-kafka", "late-abort"): {"2b"},
    ("aiokafka", "late-abort"): {"2b"},
    ("kafka-python", "late-abort"): {"2b"},
    # librdkafka gives the sequence number of an aborted record to the next one: the aborted one is committed,
    # and the new one is taken for a repeat of it. The others wait for their data before they abort.
    ("confluent-kafka", "late-data-first"): {"0a", "1a", "2b"},
}


class Stage:
    """One run: the writer's thread asks the proxy for what shall be late."""

    def __init__(self, client: Client, proxy: DelayingProxy) -> None:
        self.client = client
        self.proxy = proxy
        self.bootstrap = f"127.0.0.1:{proxy.port}"
        self._loop = asyncio.get_running_loop()

    def ask(self, what: Coroutine[Any, Any, Any]) -> None:
        """Run a coroutine of the proxy's loop from the writer's thread."""
        asyncio.run_coroutine_threadsafe(what, self._loop).result(LIMIT_S)

    async def hold_next(self, api_key: int) -> None:
        """Hold back the next request of this API."""
        self.proxy.hold_next(api_key)

    async def held(self) -> None:
        """Wait until it is held."""
        async with asyncio.timeout(LIMIT_S):
            await asyncio.shield(self.proxy.held)

    async def release(self) -> None:
        """Let it arrive, and wait for the broker's answer."""
        async with asyncio.timeout(LATE_ANSWER_S):
            await self.proxy.release()

    async def release_ahead_of_data(self) -> None:
        """Let it arrive just ahead of the next Produce."""
        self.proxy.before_next = PRODUCE


def write(writer: Writer, topic: str, value: str) -> None:
    """Send one record and wait until it is acknowledged."""
    writer.send(topic, value.encode())
    writer.flush()


def abort(writer: Writer) -> None:
    """Abort; once more if librdkafka says that it could not give up in time what it had under way.

    It does so in one of a hundred runs: the connection breaks while it purges. The error is retriable, and an
    application is told to call again.
    """
    try:
        writer.abort()
    except KafkaException as error:
        if not error.args[0].retriable():
            raise
        writer.abort()


def late_end(stage: Stage, *, commit: bool) -> None:
    """Txn 1 ends over a second connection, the first EndTxn arrives in the middle of txn 2."""
    writer = stage.client.writer(stage.bootstrap, "x")
    writer.begin()
    write(writer, "left", "1a")
    write(writer, "right", "1b")
    stage.ask(stage.hold_next(END_TXN))
    (writer.commit if commit else writer.abort)()
    writer.begin()
    write(writer, "left", "2a")
    stage.ask(stage.release())
    write(writer, "right", "2b")
    (writer.abort if commit else writer.commit)()
    writer.close()


def late_data(stage: Stage, *, first: bool) -> None:
    """Txn 1 is aborted while its record is on the way; that arrives in txn 2, ahead of its data or behind."""
    writer = stage.client.writer(stage.bootstrap, "x")
    writer.begin()
    write(writer, "left", "0a")
    writer.commit()
    writer.begin()
    stage.ask(stage.hold_next(PRODUCE))
    writer.send("left", b"1a")
    stage.ask(stage.held())
    abort(writer)
    writer.begin()
    if first:
        stage.ask(stage.release_ahead_of_data())
        write(writer, "left", "2a")
    else:
        write(writer, "left", "2a")
        stage.ask(stage.release())
    write(writer, "right", "2b")
    writer.commit()
    writer.close()


PLAYS: dict[str, Callable[[Stage], None]] = {
    "late-commit": lambda stage: late_end(stage, commit=True),
    "late-abort": lambda stage: late_end(stage, commit=False),
    "late-data-first": lambda stage: late_data(stage, first=True),
    "late-data-behind": lambda stage: late_data(stage, first=False),
}


@asynccontextmanager
async def stage_of(
    folder: Path, name: str, *, fenced: bool, mirrored: bool = False
) -> AsyncIterator[Stage]:
    """Run broker, mirror and proxy for one client."""
    settings = TxnSettings(connection_order=fenced)
    async with txn_broker(folder, settings=settings) as (fixture, _txn):
        for topic in TOPICS:
            await fixture.services.metadata.create_topic(topic, 1, {})
        if mirrored:
            async with mirror_of(fixture) as (port, region), delaying_proxy(port) as proxy:
                region.kafka_port = proxy.port
                yield Stage(CLIENTS[name](), proxy)
        else:
            async with delaying_proxy(fixture.server.port) as proxy:
                fixture.region.kafka_port = proxy.port
                yield Stage(CLIENTS[name](), proxy)


def read_committed(bootstrap: str) -> list[bytes]:
    """Return what both topics hold for a read-committed reader, up to the last transaction."""
    reader = Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "not-joined",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    )
    reader.assign([TopicPartition(topic, 0, 0) for topic in TOPICS])
    values: list[bytes] = []
    for _ in range(POLLS_MAX):
        message = reader.poll(POLL_S)
        if message is not None and message.error() is None:
            values.append(message.value() or b"")
        if values.count(b"last") == len(TOPICS):
            break
    reader.close()
    assert values.count(b"last") == len(TOPICS), values
    return values


def seen(stage: Stage) -> set[str]:
    """Return what a read-committed reader sees up to a last transaction, which fences and ends what is open."""
    last = stage.client.writer(stage.bootstrap, "x")
    last.begin()
    for topic in TOPICS:
        write(last, topic, "last")
    last.commit()
    last.close()
    values = read_committed(stage.bootstrap)
    found = [value.decode() for value in values if value != b"last"]
    assert len(found) == len(set(found)), f"twice: {found}"
    return set(found)


async def outcome(stage: Stage, schedule: str) -> set[str]:
    """Play a schedule; return what is visible in the end."""
    async with asyncio.timeout(LIMIT_S):
        await asyncio.to_thread(PLAYS[schedule], stage)
        return await asyncio.to_thread(seen, stage)


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", CLIENTS)
async def test_P1_P2_with_the_fence_a_late_request_changes_nothing(
    tmp_path: Path, name: str, schedule: str
) -> None:
    async with stage_of(tmp_path, name, fenced=True) as stage:
        assert await outcome(stage, schedule) == RIGHT[schedule]


@pytest.mark.parametrize(("name", "schedule"), WRONG)
async def test_P1_P2_without_the_fence_transactions_are_torn(
    tmp_path: Path, name: str, schedule: str
) -> None:
    async with stage_of(tmp_path, name, fenced=False) as stage:
        assert await outcome(stage, schedule) == WRONG[name, schedule]


@pytest.mark.parametrize("schedule", SCHEDULES)
async def test_P1_P2_the_fence_holds_through_a_mirror(tmp_path: Path, schedule: str) -> None:
    async with stage_of(tmp_path, "confluent-kafka", fenced=True, mirrored=True) as stage:
        assert await outcome(stage, schedule) == RIGHT[schedule]


@pytest.mark.parametrize("mirrored", [False, True], ids=["direct", "mirrored"])
@pytest.mark.parametrize("name", CLIENTS)
async def test_the_fence_refuses_nobody_whose_connections_break_all_the_time(
    tmp_path: Path, name: str, mirrored: bool
) -> None:
    """Every connection breaks at its 9th request, answered or not; every transaction has to come through."""
    async with stage_of(tmp_path, name, fenced=True, mirrored=mirrored) as stage:

        def work() -> set[str]:
            writer = stage.client.writer(stage.bootstrap, "x")
            stage.proxy.cut_every = 9
            committed = set()
            for number in range(12):
                writer.begin()
                for topic in TOPICS:
                    write(writer, topic, f"{number}-{topic}")
                if number % 3 == 2:
                    writer.abort()
                else:
                    writer.commit()
                    committed |= {f"{number}-left", f"{number}-right"}
            stage.proxy.cut_every = 0
            writer.close()
            return committed

        async with asyncio.timeout(2 * LIMIT_S):
            committed = await asyncio.to_thread(work)
            assert stage.proxy.cuts >= 3
            assert await asyncio.to_thread(seen, stage) == committed
