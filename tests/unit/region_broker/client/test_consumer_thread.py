"""The consumer's thread and its loop: polls that are given up, seeks, pauses, and partitions that go.

Played: confluent-kafka's Consumer, as a log that grows, a position and seek; it decides nothing.
"""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple, cast

import pytest
from confluent_kafka import OFFSET_END, OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from region_broker.client import (
    Position,
    ReadCommittedConsumer,
    Refused,
    TransactionAborted,
    Unreachable,
    Unreadable,
    from_json,
)
from region_broker.client import read_committed_consumer as module
from region_broker.client.transaction import Attempt, Transaction


class PlayedMessage:
    def __init__(self, partition: int, offset: int) -> None:
        self._partition, self._offset = partition, offset
        self._value: Any = b"%d" % offset

    def error(self) -> None:
        return None

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int:
        return 7

    def key(self) -> None:
        return None

    def value(self) -> Any:
        return self._value

    def set_value(self, value: Any) -> None:
        self._value = value


class Unknown(NamedTuple):
    """What librdkafka returns of a partition that it could not ask for."""

    topic: str
    partition: int
    error: KafkaError
    offset: int = OFFSET_INVALID


class PlayedConsumer:
    def __init__(self, *_arguments: Any, **_more: Any) -> None:
        self.ends, self.at = {0: 2, 1: 0}, {0: 0, 1: 0}
        self.committed_at = 0
        self.answers = threading.Event()
        self.answers.set()
        self.error_of: dict[int, KafkaError] = {}
        """By partition: what a question for a place meets."""
        self.unmoved: set[int] = set()
        self.unmoved_by = KafkaError._TIMED_OUT
        self.generation = 1
        self.is_coordinator_gone = False
        self.news = threading.Condition()
        self.paused: set[int] = set()
        self.waiting = threading.Event()
        self.revoking: list[TopicPartition] = []
        self.assigned = set(self.ends)
        self.giving: list[TopicPartition] = []
        self.told_to_resume: list[int] = []
        self.on_revoke: Callable[[Any, Any], None] = lambda _kafka, _partitions: None
        self.on_assign: Callable[[Any, Any], None] = lambda _kafka, _partitions: None

    def list_topics(self, timeout: float) -> None:
        """Answer at once."""

    def subscribe(self, _topics: Any, *, on_assign: Any, on_revoke: Any, on_lost: Any) -> None:
        assert on_lost == on_revoke
        self.on_assign, self.on_revoke = on_assign, on_revoke

    def close(self) -> None:
        """Nothing is open."""

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("orders", n) for n in self.ends if n in self.assigned]

    def committed(self, assigned: list[TopicPartition], timeout: float) -> list[TopicPartition]:
        assert self.answers.wait(20.0)
        return self._answered(
            [TopicPartition(each.topic, each.partition, self.committed_at) for each in assigned]
        )

    def _answered(self, found: list[TopicPartition]) -> list[TopicPartition]:
        """Raise where each partition meets an error, as librdkafka does, or name the error of each."""
        errors = [self.error_of.get(each.partition) for each in found]
        if all(errors):
            raise KafkaException(errors[0])
        return [
            each
            if error is None
            else cast("TopicPartition", Unknown(each.topic, each.partition, error))
            for each, error in zip(found, errors, strict=True)
        ]

    def commit(self, offsets: list[TopicPartition], *, asynchronous: bool) -> None:
        assert not asynchronous
        if self.is_coordinator_gone:
            raise KafkaException(KafkaError(KafkaError.COORDINATOR_NOT_AVAILABLE))
        (self.committed_at,) = (each.offset for each in offsets)

    def consumer_group_metadata(self) -> object:
        return f"generation {self.generation}"

    def seek(self, to: TopicPartition) -> None:
        if to.partition in self.unmoved:
            raise KafkaException(KafkaError(self.unmoved_by))
        self.at[to.partition] = self.ends[to.partition] if to.offset == OFFSET_END else to.offset

    def offsets_for_times(
        self, asked: list[TopicPartition], timeout: float
    ) -> list[TopicPartition]:
        """Record n of a partition is of millisecond 10 n."""
        assert self.answers.wait(20.0)
        for each in asked:
            first = -(-each.offset // 10)
            each.offset = first if first < self.ends[each.partition] else OFFSET_END
        return self._answered(asked)

    def pause(self, partitions: list[TopicPartition]) -> None:
        assert {each.partition for each in partitions} <= self.assigned
        self.paused |= {each.partition for each in partitions}

    def resume(self, partitions: list[TopicPartition]) -> None:
        assert {each.partition for each in partitions} <= self.assigned
        self.told_to_resume += [each.partition for each in partitions]
        self.paused -= {each.partition for each in partitions}

    def poll(self, timeout_s: float) -> PlayedMessage | None:
        with self.news:
            if self.revoking:
                gone, self.revoking = self.revoking, []
                self.on_revoke(self, gone)
                self.assigned -= {each.partition for each in gone}
                self.generation += 1  # it has joined again
            if self.giving:
                given, self.giving = self.giving, []
                self.on_assign(self, given)
                self.assigned |= {each.partition for each in given}
            if not self._ready() and timeout_s:
                self.waiting.set()
                self.news.wait(timeout_s)
            for partition in self._ready():
                self.at[partition] += 1
                return PlayedMessage(partition, self.at[partition] - 1)
            return None

    def _ready(self) -> list[int]:
        return [
            n for n in self.ends if n in self.assigned - self.paused and self.at[n] < self.ends[n]
        ]

    def grow(self, partition: int, count: int) -> None:
        with self.news:
            self.ends[partition] += count
            self.news.notify_all()


@asynccontextmanager
async def reading(
    monkeypatch: pytest.MonkeyPatch, **more: Any
) -> AsyncIterator[tuple[ReadCommittedConsumer, PlayedConsumer]]:
    kafka = PlayedConsumer()
    monkeypatch.setattr(module, "Consumer", lambda *_arguments, **_more: kafka)
    async with ReadCommittedConsumer(["orders"], bootstrap="b", group_id="g", **more) as consumer:
        yield consumer, kafka


async def told(consumer: ReadCommittedConsumer, count: int) -> list[tuple[int, int]]:
    found = []
    for _ in range(count):
        message = await consumer.poll(20.0)
        assert message is not None
        found.append((message.partition() or 0, message.offset() or 0))
    return found


async def given_up_poll(consumer: ReadCommittedConsumer, kafka: PlayedConsumer) -> None:
    """Leave a poll waiting in the thread, and nobody waiting for it."""
    kafka.waiting.clear()
    polling = asyncio.get_running_loop().create_task(consumer.poll(20.0))
    await asyncio.to_thread(kafka.waiting.wait, 20.0)
    polling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await polling


async def test_INV_CP15_a_rewind_behind_a_poll_that_was_given_up_reads_from_the_committed_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await given_up_poll(consumer, kafka)
        rewinding = asyncio.get_running_loop().create_task(consumer.rewind())
        await asyncio.sleep(0)
        kafka.grow(0, 1)  # what the given-up poll finds lies beyond the committed position
        await rewinding
        assert consumer.position() == []
        assert await told(consumer, 3) == [(0, 0), (0, 1), (0, 2)]


async def test_INV_CP15_what_a_poll_that_was_given_up_finds_is_handed_out_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        await told(consumer, 2)
        await given_up_poll(consumer, kafka)
        kafka.grow(0, 2)
        assert await told(consumer, 2) == [(0, 2), (0, 3)]


async def test_INV_CP25_nothing_is_handed_out_of_a_partition_that_the_fetch_under_way_may_find_gone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 1) == [(0, 0)]
        await consumer.pause([("orders", 0)])
        assert await consumer.poll(0.01) is None  # (0, 1) was fetched before
        await given_up_poll(consumer, kafka)
        loop = asyncio.get_running_loop()
        resuming = loop.create_task(consumer.resume([("orders", 0)]))
        polling = loop.create_task(consumer.poll_many(10, 20.0))
        await asyncio.wait([polling], timeout=0)
        assert not polling.done()
        kafka.revoking = [TopicPartition("orders", 0)]
        kafka.grow(1, 1)
        assert [(each.partition(), each.offset()) for each in await polling] == [(1, 0)]
        assert [each.partition for each in consumer.position()] == [1]
        await resuming


async def test_a_fetch_that_is_late_holds_up_what_is_resumed_no_longer_than_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 1) == [(0, 0)]
        await consumer.pause([("orders", 0)])
        assert await consumer.poll(0.01) is None
        await given_up_poll(consumer, kafka)
        monkeypatch.setattr(module, "_LATE_S", 0.0)
        resuming = asyncio.get_running_loop().create_task(consumer.resume())
        assert await consumer.poll(0.0) is None
        kafka.grow(1, 1)
        await resuming
        assert await told(consumer, 2) == [(0, 1), (1, 0)]


async def test_INV_CP12_a_partition_that_goes_takes_its_records_along(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(1, 2)
        assert await told(consumer, 3) == [(0, 0), (0, 1), (1, 0)]
        kafka.revoking = [TopicPartition("orders", 1)]
        kafka.grow(0, 1)
        await told(consumer, 1)  # fetched before
        assert await told(consumer, 1) == [(0, 2)]
        assert [each.partition for each in consumer.position()] == [0]


async def test_a_seek_drops_what_was_fetched_of_its_partition_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(1, 2)
        assert await told(consumer, 1) == [(0, 0)]
        await consumer.seek(Position("orders", 0, 0))
        assert sorted(await told(consumer, 4)) == [(0, 0), (0, 1), (1, 0), (1, 1)]


async def test_what_is_paused_is_neither_handed_out_nor_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(1, 2)
        assert await told(consumer, 1) == [(0, 0)]
        await consumer.pause([("orders", 0)])
        assert await told(consumer, 2) == [(1, 0), (1, 1)]
        kafka.grow(0, 1)
        assert await consumer.poll(0.01) is None
        await consumer.resume()
        assert await told(consumer, 2) == [(0, 1), (0, 2)]


async def test_many_are_taken_without_waiting_for_more_than_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert [each.offset() for each in await consumer.poll_many(1)] == [0]
        kafka.grow(0, 3)
        assert [each.offset() for each in await consumer.poll_many(10)] == [1]
        assert [each.offset() for each in await consumer.poll_many(10)] == [2, 3, 4]
        assert await consumer.poll_many(10, 0.01) == []


async def test_values_are_deserialized_and_what_is_not_readable_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch, value_deserializer=from_json) as (consumer, _kafka):
        first = await consumer.poll(20.0)
        assert first is not None
        value: object = first.value()
        assert value == 0

    def never(_data: bytes) -> Any:
        raise ValueError("no")

    async with reading(monkeypatch, value_deserializer=never) as (consumer, _kafka):
        with pytest.raises(
            Unreadable, match="the value of orders-0 at offset 0 cannot be deserialized: no"
        ) as caught:
            await consumer.poll(20.0)
    assert caught.value.position == Position("orders", 0, 0)


class PlayedWriter:
    """A producer, and its transactions: what commits is the position only."""

    def __init__(self, kafka: PlayedConsumer) -> None:
        self._kafka = kafka
        self._offsets: list[TopicPartition] = []

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator["PlayedWriter"]:
        yield self
        self._kafka.commit(self._offsets, asynchronous=False)

    async def send_offsets(self, consumer: Any) -> None:
        self._offsets = consumer.to_send()


def but_one(data: bytes) -> Any:
    if data == b"1":
        raise LookupError("no schema")
    return from_json(data)


@pytest.mark.parametrize("is_transactional", [False, True])
async def test_INV_CP26_a_handler_goes_on_behind_a_record_that_was_skipped(
    monkeypatch: pytest.MonkeyPatch, *, is_transactional: bool
) -> None:
    seen: list[object] = []

    async def handle(record: Any, *_transaction: object) -> None:
        seen.append(record.value())
        if record.value() == 3:
            raise Done

    async with reading(monkeypatch, value_deserializer=but_one) as (consumer, kafka):
        kafka.ends = {0: 4}
        writer: Any = PlayedWriter(kafka) if is_transactional else None
        for _ in range(2):  # a seek by itself moves nothing that is committed
            with pytest.raises(Unreadable, match=r"`skip\(error.position\)`") as caught:
                await consumer.run(handle, writer)
            assert caught.value.position == Position("orders", 0, 1)
            await consumer.seek(Position("orders", 0, 2))
        await consumer.skip(Position("orders", 0, 1))
        assert kafka.committed_at == 2
        with pytest.raises(Done):
            await consumer.run(handle, writer)
    assert seen == [0, 2, 3]


async def test_INV_CP26_what_is_skipped_is_read_on_behind_and_counts_as_read(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch, value_deserializer=but_one) as (consumer, kafka):
        kafka.ends = {0: 4}
        with pytest.raises(Unreadable) as caught:
            await told(consumer, 2)
        kafka.is_coordinator_gone = True
        with pytest.raises(Unreachable, match="the position was not committed"):
            await consumer.skip(caught.value.position)
        assert kafka.committed_at == 0
        kafka.is_coordinator_gone = False
        await consumer.skip(caught.value.position)
        assert await told(consumer, 2) == [(0, 2), (0, 3)]
        await consumer.rewind()
        assert await told(consumer, 2) == [(0, 2), (0, 3)]


class Done(Exception):
    """Everything was read."""


@pytest.mark.parametrize("error", [ValueError, KeyError])
async def test_INV_CP5_what_cannot_be_read_stands_until_a_seek_and_hides_nothing_before_it(
    monkeypatch: pytest.MonkeyPatch, error: type[Exception]
) -> None:
    def but_two(data: bytes) -> Any:
        if data == b"2":
            raise error("no")
        return from_json(data)

    async with reading(monkeypatch, value_deserializer=but_two) as (consumer, kafka):
        kafka.ends[0] = 4
        found = await consumer.poll_many(10, 20.0)
        assert [message.offset() for message in found] == [0, 1]
        assert [each.offset for each in consumer.position()] == [2]
        for _ in range(2):
            with pytest.raises(Refused, match="orders-0 at offset 2"):
                await consumer.poll_many(10, 20.0)
        await consumer.seek(Position("orders", 0, 3))
        assert await told(consumer, 1) == [(0, 3)]


async def test_P16_INV_CP18_a_rewind_before_the_first_commit_skips_nothing_that_came_since_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch, from_beginning=False) as (consumer, kafka):
        kafka.committed_at = OFFSET_INVALID
        assert await told(consumer, 1) == [(0, 0)]
        kafka.grow(1, 1)
        await consumer.rewind()
        assert await told(consumer, 3) == [(0, 0), (0, 1), (1, 0)]
        await consumer.seek(Position("orders", 0, 1))
        await consumer.rewind()
        assert await told(consumer, 2) == [(0, 1), (1, 0)]


async def test_a_seek_to_a_time_goes_to_the_first_record_at_or_after_it_in_each_partition(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(0, 3)
        kafka.grow(1, 2)
        await consumer.seek_to_time(25)
        kafka.grow(1, 1)  # nothing was as young in partition 1: it goes on with what comes
        assert await told(consumer, 3) == [(0, 3), (0, 4), (1, 2)]


MOVING = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)


@pytest.mark.parametrize("failing", [{0: MOVING, 1: MOVING}, {1: MOVING}])
@pytest.mark.parametrize("by_time", [True, False])
async def test_INV_CP33_a_seek_or_a_rewind_that_fails_passes_nothing_by(
    monkeypatch: pytest.MonkeyPatch, failing: dict[int, KafkaError], *, by_time: bool
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(0, 3)
        kafka.grow(1, 2)
        assert await told(consumer, 1) == [(0, 0)]
        assert kafka.at == {0: 5, 1: 2}, "all of it is fetched"
        kafka.error_of = failing
        with pytest.raises(Unreachable):
            await (consumer.seek_to_time(0) if by_time else consumer.rewind())
        assert [(each.partition, each.offset) for each in consumer.position()] == [(0, 1)]
        rest = [(0, number) for number in range(1, 5)] + [(1, 0), (1, 1)]
        assert await told(consumer, 6) == rest


async def test_INV_CP33_what_a_rewind_has_moved_before_it_fails_is_read_again_and_the_rest_goes_on(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(1, 3)
        assert await told(consumer, 3) == [(0, 0), (0, 1), (1, 0)]
        kafka.unmoved = {1}
        with pytest.raises(Unreachable):
            await consumer.rewind()
        assert [(each.partition, each.offset) for each in consumer.position()] == [(1, 1)]
        assert sorted(await told(consumer, 4)) == [(0, 0), (0, 1), (1, 1), (1, 2)]


async def test_INV_CP33_while_a_rewind_that_was_given_up_is_under_way_nothing_is_handed_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_LATE_S", 0.0)
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(0, 3)
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        kafka.answers.clear()
        rewinding = asyncio.get_running_loop().create_task(consumer.rewind())
        await asyncio.sleep(0)
        rewinding.cancel()
        with pytest.raises(asyncio.CancelledError):
            await rewinding
        assert await consumer.poll(0.0) is None
        kafka.answers.set()
        assert await told(consumer, 5) == [(0, number) for number in range(5)]


@pytest.mark.parametrize("by_time", [True, False])
async def test_INV_CP33_a_poll_that_waits_already_hands_nothing_out_while_a_seek_is_under_way(
    monkeypatch: pytest.MonkeyPatch, *, by_time: bool
) -> None:
    """1. A poll waits, and its fetch in the thread. 2. Another task asks for a seek, which is queued behind that. 3. The fetch finds
    records: they would come again behind a rewind, or stand in a batch whose position the seek has taken away."""
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        kafka.committed_at = 2
        kafka.waiting.clear()
        loop = asyncio.get_running_loop()
        polling = loop.create_task(consumer.poll_many(10, 20.0))
        await asyncio.to_thread(kafka.waiting.wait, 20.0)
        kafka.answers.clear()
        moving = loop.create_task(consumer.seek_to_time(10_000) if by_time else consumer.rewind())
        await asyncio.sleep(0)
        kafka.grow(0, 2)
        assert await polling == []
        assert [(each.partition, each.offset) for each in consumer.position()] == [(0, 2)]
        kafka.answers.set()
        await moving
        kafka.grow(0, 1)
        assert await told(consumer, 1) == [(0, 4) if by_time else (0, 2)]


async def test_INV_CP33_a_poll_that_waited_for_one_seek_hands_nothing_out_while_the_next_is_under_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(0, 3)
        assert await told(consumer, 1) == [(0, 0)]
        go_on, seek = threading.Event(), kafka.seek

        def late(to: TopicPartition) -> None:
            assert go_on.wait(20.0)
            seek(to)

        monkeypatch.setattr(kafka, "seek", late)
        loop = asyncio.get_running_loop()
        seeking = loop.create_task(consumer.seek(Position("orders", 1, 0)))
        await asyncio.sleep(0)
        polling = loop.create_task(consumer.poll(20.0))
        await asyncio.sleep(0)
        kafka.answers.clear()
        rewinding = loop.create_task(consumer.rewind())
        await asyncio.sleep(0)
        go_on.set()
        await seeking
        assert await polling is None
        kafka.answers.set()
        await rewinding
        assert await told(consumer, 5) == [(0, number) for number in range(5)]


async def rebalanced(consumer: ReadCommittedConsumer, kafka: PlayedConsumer, *, gone: bool) -> None:
    """Let the group take both partitions away, or give them; librdkafka keeps what it was told of pauses."""
    both = [TopicPartition("orders", 0), TopicPartition("orders", 1)]
    if gone:
        kafka.revoking = both
    else:
        kafka.giving = both
    assert await consumer.poll(0.0) is None


@pytest.mark.parametrize("by_name", [True, False])
async def test_INV_CP34_a_partition_that_is_resumed_while_a_rebalance_is_under_way_is_read_again(
    monkeypatch: pytest.MonkeyPatch, *, by_name: bool
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await consumer.pause([("orders", 0)])
        await rebalanced(consumer, kafka, gone=True)
        await consumer.resume([("orders", 0)] if by_name else None)
        assert kafka.paused == {0}, "librdkafka cannot be told yet"
        await rebalanced(consumer, kafka, gone=False)
        kafka.grow(0, 2)
        assert await told(consumer, 2) == [(0, 2), (0, 3)]
        assert kafka.told_to_resume == [0], "what goes on is left alone"


async def test_INV_CP34_a_partition_that_is_paused_while_a_rebalance_is_under_way_is_not_fetched(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "_BATCH_COUNT", 10)
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await rebalanced(consumer, kafka, gone=True)
        await consumer.pause([("orders", 0)])
        kafka.grow(0, 3_000)
        await rebalanced(consumer, kafka, gone=False)
        kafka.grow(1, 1)
        assert await told(consumer, 1) == [(1, 0)]
        assert kafka.at[0] <= 2 + 10, "at most what came with it"
        await consumer.resume()
        assert await told(consumer, 3_000) == [(0, number) for number in range(2, 3_002)]


async def test_INV_CP34_a_pause_holds_where_librdkafka_has_forgotten_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await consumer.pause([("orders", 0)])
        await rebalanced(consumer, kafka, gone=True)
        kafka.paused.clear()
        await rebalanced(consumer, kafka, gone=False)
        assert await consumer.poll(0.0) is None
        assert kafka.paused == {0}


async def test_INV_CRB2_a_rewind_leaves_out_a_partition_that_is_not_started_yet(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """librdkafka asks for what is committed of it still, and answers `_STATE` (rd_kafka_toppar_seek)."""
    async with reading(monkeypatch) as (consumer, kafka):
        kafka.grow(1, 1)
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        kafka.unmoved, kafka.unmoved_by = {1}, KafkaError._STATE
        await consumer.rewind()
        assert sorted(await told(consumer, 3)) == [(0, 0), (0, 1), (1, 0)]
        with pytest.raises(Refused, match="Is the partition assigned"):
            await consumer.seek(Position("orders", 1, 0))


class Room:
    """The producer of a transaction that nothing is sent with."""

    async def wait_for_room(self, attempt: Attempt) -> None:
        """There is room."""


async def sent(
    consumer: ReadCommittedConsumer, offsets: list[TopicPartition] | None = None
) -> list[tuple[int, int, object]]:
    """Return what a transaction commits of a consumer: partition, offset, and as which member."""
    transaction = Transaction(Room())
    transaction.begin_attempt(cast("Any", None))
    await transaction.send_offsets(consumer, offsets)
    return [
        (each.partition, each.offset, membership)
        for chosen, membership in transaction.offsets
        for each in chosen
    ]


FIRST = TopicPartition("orders", 0)


async def gone_by_a_poll(consumer: ReadCommittedConsumer, kafka: PlayedConsumer) -> None:
    kafka.revoking = [FIRST]
    assert await consumer.poll(0.01) is None


async def test_INV_CP35_what_a_rebalance_took_between_two_polls_is_not_committed_without_its_position(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await gone_by_a_poll(consumer, kafka)
        kafka.grow(1, 1)
        assert await told(consumer, 1) == [(1, 0)]
        for _ in range(2):
            with pytest.raises(TransactionAborted, match=r"orders-0 away.*rewind"):
                await sent(consumer)
        with pytest.raises(TransactionAborted):
            await sent(consumer, [TopicPartition("orders", 0, 2)])
        assert await sent(consumer, [TopicPartition("orders", 1, 1)]) == [(1, 1, "generation 2")]
        await consumer.rewind()
        assert await sent(consumer) == []
        assert await told(consumer, 1) == [(1, 0)]
        assert await sent(consumer) == [(1, 1, "generation 2")]


async def test_INV_CP35_what_was_sent_or_committed_before_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for settle in (sent, ReadCommittedConsumer.commit):
        async with reading(monkeypatch) as (consumer, kafka):
            assert await told(consumer, 2) == [(0, 0), (0, 1)]
            await cast("Any", settle)(consumer)
            await gone_by_a_poll(consumer, kafka)
            kafka.grow(1, 1)
            assert await told(consumer, 1) == [(1, 0)]
            assert await sent(consumer) == [(1, 1, "generation 2")]


async def test_INV_CP35_what_was_handed_out_since_it_was_sent_may_not(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 1) == [(0, 0)]
        assert await sent(consumer) == [(0, 1, "generation 1")]
        assert await told(consumer, 1) == [(0, 1)]
        await gone_by_a_poll(consumer, kafka)
        with pytest.raises(TransactionAborted):
            await sent(consumer)
        await consumer.commit()
        with pytest.raises(TransactionAborted):
            await sent(consumer)  # a commit says nothing of what is another member's
        await consumer.rewind()
        assert await sent(consumer) == []


async def test_INV_CP35_what_was_sent_ahead_of_what_was_handed_out_may_go(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An application sends an offset of its own: behind a marker, say."""
    for ahead in (3, 1):
        async with reading(monkeypatch) as (consumer, kafka):
            if ahead > 1:
                assert await told(consumer, 2) == [(0, 0), (0, 1)]
            await sent(consumer, [TopicPartition("orders", 0, ahead)])
            if ahead == 1:
                kafka.at[0] = kafka.ends[0]
            await gone_by_a_poll(consumer, kafka)
            assert await sent(consumer) == []


async def test_INV_CP36_a_position_is_sent_as_the_member_that_read_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A poll that was given up goes on in its thread, and takes part in a rebalance there."""
    async with reading(monkeypatch) as (consumer, kafka):
        assert await told(consumer, 2) == [(0, 0), (0, 1)]
        await given_up_poll(consumer, kafka)
        kafka.generation += 1
        assert await sent(consumer) == [(0, 2, "generation 1")]
        kafka.grow(1, 1)
        assert await told(consumer, 1) == [(1, 0)]
        assert {member for _, _, member in await sent(consumer)} == {"generation 2"}
