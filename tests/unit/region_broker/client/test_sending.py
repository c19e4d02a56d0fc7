"""Sends that wait for room, and serializers. Played: librdkafka's producer, with a queue that is full for a while."""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from region_broker.client import (
    OutcomeUnknown,
    Producer,
    Refused,
    Timeouts,
    TransactionalProducer,
    Unreachable,
    to_json,
    to_text,
)
from region_broker.client import producer as plain
from region_broker.client import transactional_producer as transactional
from tests.fixtures.waiting import until

TOO_LARGE = "too large"


class PlayedProducer:
    def __init__(self) -> None:
        self.written: list[Any] = []
        self.full = False
        self.is_silent = False
        self.tries = 0
        self.error: KafkaError | None = None
        self.fatal: KafkaError | None = None
        """What the next poll raises, as confluent-kafka does where librdkafka cannot go on."""
        self.reports: list[Callable[[], None]] = []

    def list_topics(self, timeout: float) -> None:
        """Answer at once."""

    def produce(self, _topic: str, value: Any, on_delivery: Any, **_more: Any) -> None:
        self.tries += 1
        if value == TOO_LARGE:
            raise KafkaException(KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        if self.full:
            raise BufferError
        offset = len(self.written)
        self.written.append(value)
        error = self.error
        self.reports.append(lambda: on_delivery(error, Delivered(offset)))

    def poll(self, timeout_s: float) -> int:
        if self.fatal is not None:
            fatal, self.fatal = self.fatal, None
            raise KafkaException(fatal)
        if self.is_silent:
            time.sleep(min(timeout_s, 0.005))
            return 0
        reports, self.reports = self.reports, []
        for report in reports:
            report()
        time.sleep(0 if reports else min(timeout_s, 0.005))
        return max(len(reports), 1)

    def flush(self, *_timeout: float) -> int:
        self.poll(0)
        return len(self.reports)

    def __len__(self) -> int:
        return len(self.reports)

    def purge(self) -> None:
        """Nothing waits."""

    def begin_transaction(self) -> None:
        """Agree."""

    def commit_transaction(self, *_timeout: float) -> None:
        """Agree."""

    def abort_transaction(self, *_timeout: float) -> None:
        """Agree."""


class Delivered:
    def __init__(self, offset: int) -> None:
        self._offset = offset

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return 0

    def offset(self) -> int:
        return self._offset


@pytest.fixture
def kafka(monkeypatch: pytest.MonkeyPatch) -> PlayedProducer:
    played = PlayedProducer()
    monkeypatch.setattr(transactional, "initialised", lambda *_: played)
    monkeypatch.setattr(plain, "KafkaProducer", lambda *_, **__: played)
    return played


async def test_INV_CP9_a_send_that_was_given_up_and_done_again_is_written_once(
    kafka: PlayedProducer,
) -> None:
    async with TransactionalProducer(bootstrap="b", transactional_id="t") as writer:
        async with writer.transaction() as txn:
            kafka.full = True
            sending = asyncio.get_running_loop().create_task(txn.send("orders", "payment"))
            await until(lambda: kafka.tries > 1)
            sending.cancel()
            with pytest.raises(asyncio.CancelledError):
                await sending
            kafka.full = False
            await txn.send("orders", "payment")
        assert [record.value for record in txn.records] == ["payment"]
        assert kafka.written == ["payment"]


async def test_INV_CP9_sends_that_wait_for_room_keep_their_order(kafka: PlayedProducer) -> None:
    async with TransactionalProducer(bootstrap="b", transactional_id="t") as writer:
        async with writer.transaction() as txn:
            kafka.full = True
            async with asyncio.TaskGroup() as tasks:
                for number in range(5):
                    tasks.create_task(txn.send("orders", str(number)))
                await until(lambda: kafka.tries > 1)
                kafka.full = False
        assert kafka.written == ["0", "1", "2", "3", "4"]


async def test_INV_CP24_what_waits_when_its_transaction_is_aborted_is_in_none_of_the_next(
    kafka: PlayedProducer,
) -> None:
    async with TransactionalProducer(bootstrap="b", transactional_id="t") as writer:
        sending: list[asyncio.Task[None]] = []
        with pytest.raises(Refused, match="is refused"):  # noqa: PT012
            async with writer.transaction() as txn:
                kafka.full = True
                sending += [
                    asyncio.get_running_loop().create_task(txn.send("orders", each))
                    for each in ("a0", TOO_LARGE, "a1", "a2")
                ]
                await until(lambda: kafka.tries > 1)
                sending.pop(0).cancel()  # what stood in front of the others
                await sending.pop(0)
        kafka.full = False
        async with writer.transaction() as later:
            await asyncio.wait(sending)
            await later.send("orders", "b0")
        assert kafka.written == ["b0"]
        for each in sending:
            assert isinstance(each.exception(), Refused)


async def test_INV_CP24_a_send_that_waits_when_its_transaction_is_committed_is_refused(
    kafka: PlayedProducer,
) -> None:
    async with TransactionalProducer(bootstrap="b", transactional_id="t") as writer:
        async with writer.transaction() as txn:
            await txn.send("orders", "a0")
            kafka.full = True
            sending = [
                asyncio.get_running_loop().create_task(txn.send("orders", each))
                for each in ("a1", "a2")
            ]
            await until(lambda: kafka.tries > 2)
        kafka.full = False
        for each in sending:
            with pytest.raises(Refused, match="this transaction is over"):
                await each
        assert kafka.written == ["a0"]
        assert [record.value for record in txn.records] == ["a0"]


async def test_what_cannot_be_serialized_is_refused_and_not_sent(kafka: PlayedProducer) -> None:
    async with TransactionalProducer(
        bootstrap="b", transactional_id="t", value_serializer=to_json
    ) as writer:
        async with writer.transaction() as txn:
            await txn.send("orders", {"pairs": 1})
            await txn.send("orders", None)
            with pytest.raises(Refused, match="cannot be serialized"):
                await txn.send("orders", object())
        assert kafka.written == [b'{"pairs":1}', None]


async def test_text_is_sent_as_utf_8(kafka: PlayedProducer) -> None:
    async with Producer(bootstrap="b", value_serializer=to_text) as producer:
        await producer.send("orders", "größer")
    assert kafka.written == [b"gr\xc3\xb6\xc3\x9fer"]


async def test_INV_CPP1_a_plain_send_returns_its_place(kafka: PlayedProducer) -> None:
    async with Producer(bootstrap="b", value_serializer=to_json) as producer:
        first = await producer.send("orders", 1)
        places = await producer.send_many("orders", [2, 3])
        assert [first.offset, *(place.offset for place in places)] == [0, 1, 2]
    assert kafka.written == [b"1", b"2", b"3"]
    with pytest.raises(Refused, match="not started"):
        await producer.send("orders", 4)


async def test_INV_CPP3_a_plain_send_that_was_given_up_was_not_sent(kafka: PlayedProducer) -> None:
    async with Producer(bootstrap="b") as producer:
        kafka.full = True
        sending = asyncio.get_running_loop().create_task(producer.send("orders", "x"))
        await until(lambda: kafka.tries > 1)
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        kafka.full = False
        await producer.send("orders", "y")
    assert kafka.written == ["y"]


class FlushedProducer(PlayedProducer):
    """All deliveries are told while it is flushed, none to whoever polls."""

    def __init__(self) -> None:
        super().__init__()
        self.on_flush: Callable[[], object] = lambda: None

    def poll(self, timeout_s: float) -> int:
        time.sleep(min(timeout_s, 0.005))
        return 0

    def flush(self, *_timeout: float) -> int:
        super().poll(0)
        self.full = False
        self.on_flush()
        return 0


@pytest.fixture
def flushed(monkeypatch: pytest.MonkeyPatch) -> FlushedProducer:
    played = FlushedProducer()
    monkeypatch.setattr(plain, "KafkaProducer", lambda *_, **__: played)
    return played


async def steps() -> None:
    """Let everything go on that can go on by itself."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_INV_CPP4_room_that_a_flush_makes_is_told_to_who_waits_for_it(
    flushed: FlushedProducer,
) -> None:
    async with Producer(bootstrap="b") as producer:
        flushed.full = True
        sending = asyncio.get_running_loop().create_task(producer.send("orders", "x"))
        await until(lambda: flushed.tries > 0)
        await producer.flush()
        await steps()
        assert flushed.written == ["x"]
        await producer.flush()
        assert (await sending).offset == 0


async def test_INV_CPP4_what_comes_while_it_closes_is_refused_and_not_left_without_an_answer(
    flushed: FlushedProducer,
) -> None:
    loop, sending = asyncio.get_running_loop(), []
    producer = Producer(bootstrap="b")

    def send() -> None:
        sending.append(loop.create_task(producer.send("orders", "late")))

    flushed.on_flush = lambda: loop.call_soon_threadsafe(send)
    await producer.start()
    await producer.close()
    await steps()
    assert [type(each.exception()) for each in sending if each.done()] == [Refused]
    assert flushed.written == []


async def test_INV_CPP4_what_waits_for_room_when_it_closes_is_written_first(
    kafka: PlayedProducer,
) -> None:
    loop = asyncio.get_running_loop()
    producer = Producer(bootstrap="b")
    await producer.start()
    kafka.full = True
    sending = [loop.create_task(producer.send("orders", each)) for each in ("x", "y")]
    await until(lambda: kafka.tries > 1)
    closing = loop.create_task(producer.close())
    await steps()
    kafka.full = False
    await closing
    assert [(await each).offset for each in sending] == [0, 1]
    with pytest.raises(Refused, match="closed"):
        await producer.send("orders", "z")


async def test_INV_CPP4_a_fatal_error_leaves_no_send_without_its_answer_and_lets_it_close(
    kafka: PlayedProducer,
) -> None:
    loop = asyncio.get_running_loop()
    producer = Producer(bootstrap="b")
    await producer.start()
    kafka.is_silent = True
    first = await producer.offer("orders", "x")
    kafka.full = True
    second = loop.create_task(producer.send("orders", "y"))
    await until(lambda: kafka.tries > 1)
    kafka.fatal = KafkaError(KafkaError._FATAL)
    await until(lambda: kafka.fatal is None)
    kafka.full = kafka.is_silent = False
    await producer.close()
    assert [(await each).offset for each in (first, second)] == [0, 1]


@pytest.mark.parametrize("waits_for_room", [True, False])
async def test_INV_CPP4_a_close_that_is_given_up_leaves_no_send_without_its_answer(
    kafka: PlayedProducer, *, waits_for_room: bool
) -> None:
    loop = asyncio.get_running_loop()
    producer = Producer(bootstrap="b")
    await producer.start()
    kafka.full, kafka.is_silent = waits_for_room, True
    sending = loop.create_task(producer.send("orders", "x"))
    await until(lambda: kafka.tries > 0)
    closing = loop.create_task(producer.close())
    await steps()
    closing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await closing
    kafka.full = kafka.is_silent = False
    assert (await sending).offset == 0
    await producer.close()


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (KafkaError.MSG_SIZE_TOO_LARGE, Refused),
        (KafkaError._MSG_TIMED_OUT, OutcomeUnknown),
        (KafkaError._PURGE_INFLIGHT, OutcomeUnknown),
        (KafkaError._PURGE_QUEUE, Unreachable),
    ],
)
async def test_INV_CPP2_an_error_says_whether_the_record_may_be_there(
    kafka: PlayedProducer, code: int, kind: type[Exception]
) -> None:
    kafka.error = KafkaError(code)
    async with Producer(bootstrap="b") as producer:
        with pytest.raises(kind) as caught:
            await producer.send("orders", "x")
    assert caught.value.maybe_written == (kind is OutcomeUnknown)  # type: ignore[attr-defined]


@pytest.mark.parametrize("seconds", [0, -1, float("inf"), float("nan")])
def test_a_time_out_is_a_number_of_seconds(seconds: float) -> None:
    with pytest.raises(ValueError, match="call_s"):
        Timeouts(call_s=seconds)
