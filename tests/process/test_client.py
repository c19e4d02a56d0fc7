"""The client against real regions: what it promises when nothing fails, and when the application does."""

import asyncio
from collections.abc import Iterator, Sequence

import pytest
from confluent_kafka import Message

from region_broker.client import (
    Fenced,
    OutcomeUnknown,
    Position,
    Producer,
    ReadCommittedConsumer,
    Refused,
    Timeouts,
    TransactionAborted,
    TransactionalProducer,
    Unreachable,
    Verdict,
    from_json,
    to_json,
)
from region_broker.workbench.local_cluster import LocalCluster
from region_broker.workbench.node_http import request
from tests.fixtures.waiting import until
from tests.process.client_fixture import create_topic, open_cluster, read_all

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalCluster]:
    with open_cluster(tmp_path_factory.mktemp("client"), 1) as started:
        started.start()
        yield started
        assert started.dead() == {}


def producer(cluster: LocalCluster, name: str, **config: object) -> TransactionalProducer:
    return TransactionalProducer(
        bootstrap=cluster.bootstrap, urls=cluster.http, transactional_id=name, config=config
    )


def values(message: Message) -> str:
    value = message.value()
    assert isinstance(value, bytes)
    return value.decode()


async def final_word(writer: TransactionalProducer, positions: Sequence[Position]) -> Verdict:
    """Ask until the markers are written."""
    async with asyncio.timeout(20):
        while (verdict := await writer.verdict(positions)) is Verdict.OPEN:
            pass
    return verdict


async def test_a_block_commits_and_an_exception_aborts(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "blocks")
    async with producer(cluster, "blocks") as writer:
        async with writer.transaction() as first:
            await first.send("blocks", "a", partition=0, key="k", headers=[("h", b"1")])
            await first.send("blocks", b"b", partition=1)
        assert sorted(first.positions) == [Position("blocks", 0, 0), Position("blocks", 1, 0)]
        with pytest.raises(ZeroDivisionError):  # noqa: PT012
            async with writer.transaction() as second:
                await second.send("blocks", "never", partition=0)
                raise ZeroDivisionError
        with pytest.raises(Refused, match="over"):
            await second.send("blocks", "late")
        async with writer.transaction():
            pass  # an empty one is fine
        async with writer.transaction() as third:
            await third.send("blocks", "c", partition=0)
        assert await final_word(writer, first.positions) is Verdict.COMMITTED
        assert await final_word(writer, third.positions) is Verdict.COMMITTED
        with pytest.raises(Refused, match="no record was written"):
            await writer.verdict([Position("blocks", 0, 10_000)])
        with pytest.raises(Refused, match="nothing of the transaction"):
            await writer.verdict([])
    assert read_all(cluster.bootstrap, "blocks") == ["a", "c", "b"]


async def test_verdict_on_an_aborted_transaction(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "undone", 1)
    async with producer(cluster, "undone", **{"linger.ms": 0}) as writer:
        with pytest.raises(KeyError):  # noqa: PT012
            async with writer.transaction() as undone:
                await undone.send("undone", "x", partition=0)
                await asyncio.to_thread(undone.attempt.kafka.flush, 10)
                assert await writer.verdict([Position("undone", 0, 0)]) is Verdict.OPEN
                raise KeyError
        assert await final_word(writer, undone.positions) is Verdict.ABORTED


async def test_one_transaction_at_a_time(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "single", 1)
    async with producer(cluster, "single") as writer, writer.transaction() as outer:
        await outer.send("single", "outer")
        with pytest.raises(Refused, match="has a transaction open"):
            async with writer.transaction():
                pass
    assert read_all(cluster.bootstrap, "single", partition_count=1) == ["outer"]


async def test_records_that_can_never_be_written_are_refused(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "limits", 1)
    async with producer(
        cluster, "limits",
        **{"message.max.bytes": 10_000_000, "topic.metadata.propagation.max.ms": 200},
    ) as writer:  # fmt: skip
        async with writer.transaction() as warm:
            await warm.send("limits", "first")
        with pytest.raises(Refused, match="artition"):
            async with writer.transaction() as wrong:
                await wrong.send("limits", "x", partition=7)
        with pytest.raises(Refused, match="too large") as caught:  # noqa: PT012
            async with writer.transaction() as large:
                await large.send("limits", "small")
                await large.send("limits", b"x" * 5_000_000)
        assert caught.value.code == "MSG_SIZE_TOO_LARGE"
        assert not caught.value.retriable
        assert not caught.value.maybe_written
        with pytest.raises(Refused, match="nknown topic"):
            async with writer.transaction() as nowhere:
                await nowhere.send("nowhere", "x")
        async with writer.transaction() as last:
            await last.send("limits", "last")
    assert read_all(cluster.bootstrap, "limits", partition_count=1) == ["first", "last"]


async def test_more_records_than_the_queue_holds(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "many", 1)
    async with producer(cluster, "many", **{"queue.buffering.max.messages": 50}) as writer:
        async with writer.transaction() as txn:
            for number in range(1000):
                await txn.send("many", f"{number}")
        assert len(txn.positions) == 1000
    assert read_all(cluster.bootstrap, "many", partition_count=1) == [str(n) for n in range(1000)]


async def test_another_instance_fences_this_one_and_is_left_alone(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "fence", 1)
    async with producer(cluster, "fence") as old, producer(cluster, "fence") as new:
        for _ in range(2):
            with pytest.raises(Fenced, match="another producer uses") as caught:
                async with old.transaction() as late:
                    await late.send("fence", "zombie")
            assert not caught.value.retriable
            assert not caught.value.maybe_written
        async with new.transaction() as txn:
            await txn.send("fence", "new")
    assert read_all(cluster.bootstrap, "fence", partition_count=1) == ["new"]


async def test_an_old_instance_that_was_idle_in_a_transaction_is_fenced(
    cluster: LocalCluster,
) -> None:
    create_topic(cluster.bootstrap, "idle", 1)
    async with producer(cluster, "idle") as old:
        with pytest.raises(Fenced) as caught:  # noqa: PT012
            async with old.transaction() as txn:
                await txn.send("idle", "zombie")
                await asyncio.to_thread(txn.attempt.kafka.flush, 10)
                async with producer(cluster, "idle") as new, new.transaction() as other:
                    await other.send("idle", "new")
        assert not caught.value.maybe_written  # the verdict was asked: aborted
    assert read_all(cluster.bootstrap, "idle", partition_count=1) == ["new"]


async def test_consume_process_produce_with_an_application_that_fails(
    cluster: LocalCluster,
) -> None:
    create_topic(cluster.bootstrap, "input")
    create_topic(cluster.bootstrap, "output")
    async with producer(cluster, "feed") as feed, feed.transaction() as txn:
        for number in range(20):
            await txn.send("input", str(number), partition=number % 2)
    failures = {3, 9, 17}
    done: set[str] = set()
    async with (
        producer(cluster, "work") as writer,
        ReadCommittedConsumer(["input"], bootstrap=cluster.bootstrap, group_id="work") as consumer,
    ):
        async with asyncio.timeout(40):
            async for message in consumer:
                name = values(message)
                try:
                    async with writer.transaction() as work:
                        await work.send("output", f"out-{name}", partition=0)
                        await work.send_offsets(consumer)
                        if int(name) in failures:
                            failures.remove(int(name))
                            raise LookupError(name)  # noqa: TRY301
                except LookupError:
                    await consumer.rewind()
                else:
                    done.add(name)
                if len(done) == 20:
                    break
    assert failures == set()
    assert sorted(read_all(cluster.bootstrap, "output")) == sorted(f"out-{n}" for n in range(20))
    async with ReadCommittedConsumer(
        ["input"], bootstrap=cluster.bootstrap, group_id="work"
    ) as again:
        for _ in range(10):
            assert await again.poll(0.2) is None


async def test_position_is_what_was_handed_out_and_commit_keeps_it(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "positions", 1)
    async with producer(cluster, "positions") as feed, feed.transaction() as txn:
        for number in range(6):
            await txn.send("positions", str(number), partition=0)

    async def read(count: int, *, commit: bool) -> list[str]:
        found: list[str] = []
        async with (
            asyncio.timeout(20),
            ReadCommittedConsumer(
                ["positions"], bootstrap=cluster.bootstrap, group_id="positions"
            ) as consumer,
        ):
            while len(found) < count:
                message = await consumer.poll()
                if message is not None:
                    found.append(values(message))
            if commit:
                await consumer.commit()
        return found

    assert await read(2, commit=True) == ["0", "1"]
    assert await read(3, commit=False) == ["2", "3", "4"]
    assert await read(4, commit=True) == ["2", "3", "4", "5"]


async def test_unknown_topic_is_refused_by_the_consumer(cluster: LocalCluster) -> None:
    async with (
        asyncio.timeout(20),
        ReadCommittedConsumer(["absent"], bootstrap=cluster.bootstrap, group_id="g") as consumer,
    ):
        with pytest.raises(Refused, match="there is no topic absent"):  # noqa: PT012
            while await consumer.poll() is None:
                pass


async def test_dead_addresses_among_the_bootstrap_are_no_error(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "several", 1)
    async with TransactionalProducer(
        bootstrap=["127.0.0.1:1", cluster.bootstrap],
        urls=["http://127.0.0.1:1", cluster.http],
        transactional_id="several",
    ) as writer:
        async with writer.transaction() as txn:
            await txn.send("several", "x")
        assert await final_word(writer, txn.positions) is Verdict.COMMITTED
    assert read_all(cluster.bootstrap, "several", partition_count=1) == ["x"]


async def test_INV_CP16_nobody_at_all_is_an_error_and_no_silence() -> None:
    dead, soon = "127.0.0.1:1", Timeouts(connect_s=0.2, call_s=0.2, recovery_s=0.2)
    for client in (
        TransactionalProducer(bootstrap=dead, transactional_id="nobody", timeouts=soon),
        Producer(bootstrap=dead, timeouts=soon),
        ReadCommittedConsumer(["t"], bootstrap=dead, group_id="g", timeouts=soon),
    ):
        with pytest.raises(Unreachable, match="tidemark region status") as caught:
            await client.start()
        assert caught.value.retriable
        assert not caught.value.maybe_written
        if not isinstance(client, Producer):
            await client.close()


async def test_a_transaction_that_outlasts_its_time_out_is_repeated(cluster: LocalCluster) -> None:
    """The region aborts it and fences the producer, but nobody has taken its place."""
    create_topic(cluster.bootstrap, "slow", 1)
    async with TransactionalProducer(
        bootstrap=cluster.bootstrap, urls=cluster.http, transactional_id="slow",
        transaction_timeout_ms=1_000, config={"socket.timeout.ms": 1_000},
    ) as writer:  # fmt: skip
        async with writer.transaction() as txn:
            await txn.send("slow", "first", partition=0)
            await asyncio.to_thread(txn.attempt.kafka.flush, 5)
            await until(lambda: state_of(cluster, "slow") == "complete_abort", looks=3_000)
            await txn.send("slow", "second", partition=0)
        async with writer.transaction() as txn:
            await txn.send("slow", "third", partition=0)
    found = await asyncio.to_thread(read_all, cluster.bootstrap, "slow", partition_count=1)
    assert found == ["first", "second", "third"]


def state_of(cluster: LocalCluster, transactional_id: str) -> str:
    (row,) = request(
        cluster.http, "GET", f"/v1/transactions?transactional_id={transactional_id}"
    )["transactions"]  # fmt: skip
    return str(row["state"])


async def test_records_of_a_plain_producer_come_as_they_went(cluster: LocalCluster) -> None:
    create_topic(cluster.bootstrap, "plain")
    async with Producer(bootstrap=cluster.bootstrap, value_serializer=to_json) as producer:
        place = await producer.send("plain", {"n": 0}, key="k", headers=[("h", b"1")], partition=1)
        assert place == Position("plain", 1, 0)
        places = await producer.send_many(
            "plain", [{"n": number} for number in range(1, 1_000)], partition=0
        )
        assert [each.offset for each in places] == list(range(999))
        with pytest.raises(Refused):
            await producer.send("plain", {}, partition=9)
    async with (
        asyncio.timeout(30),
        ReadCommittedConsumer(
            ["plain"], bootstrap=cluster.bootstrap, group_id="plain", value_deserializer=from_json
        ) as consumer,
    ):
        found: dict[int, list[int]] = {0: [], 1: []}
        while sum(map(len, found.values())) < 1_000:
            for message in await consumer.poll_many():
                value: object = message.value()
                assert isinstance(value, dict)
                found[message.partition() or 0].append(value["n"])
                if message.partition() == 1:
                    assert (message.key(), message.headers()) == (b"k", [("h", b"1")])
        assert found == {0: list(range(1, 1_000)), 1: [0]}
        await consumer.commit()
        await consumer.seek(Position("plain", 0, 990))
        assert [m.offset() for m in [await next_of(consumer) for _ in range(9)]] == list(
            range(990, 999)
        )
        await consumer.rewind()
        assert await consumer.poll(0.2) is None
        await consumer.skip(Position("plain", 0, 994))
        await consumer.rewind()
        assert [(await next_of(consumer)).offset() for _ in range(4)] == list(range(995, 999))


async def next_of(consumer: ReadCommittedConsumer) -> Message:
    message = None
    while message is None:
        message = await consumer.poll()
    return message


async def test_not_started() -> None:
    writer = TransactionalProducer(bootstrap="127.0.0.1:1", transactional_id="x")
    with pytest.raises(Refused, match="not started"):
        async with writer.transaction():
            pass
    consumer = ReadCommittedConsumer(["t"], bootstrap="127.0.0.1:1", group_id="g")
    with pytest.raises(Refused, match="not started"):
        await consumer.poll()


def test_errors_never_say_both_retriable_and_maybe_written() -> None:
    for kind in (Fenced, OutcomeUnknown, Refused, TransactionAborted, Unreachable):
        error = kind("text")
        assert not (error.retriable and error.maybe_written), kind
