"""Produce and Fetch over a real socket and a real log: rules C2, C6, C12, C27-C29, C36-C39, P4, P18, T8.

Sources: exactly-once.md section 4, KIP-98, KIP-74, KIP-227, KIP-320, KIP-890.
"""

import asyncio
import threading
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import (
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.record_batch import ControlType
from region_broker.partitions.disk_room import DiskRoom
from region_broker.partitions.parts.writer import PartitionWriter
from region_broker.partitions.record_rules import Prepared
from region_broker.ports.network import Buffer
from region_broker.records.batches import Origin, Record, build_batch, iter_records
from region_broker.records.compression import Codec
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, WireFixture, wire_fixture
from tests.fixtures.node_logs import append_marker
from tests.fixtures.waiting import until
from txn_coordinator.verdicts import TxnVerdict

T0 = TopicPartition(TopicName("t"), 0)
NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC, KAFKA_STORAGE_ERROR = 0, 1, 3, 56


def batch(text: str = "v", *, origin: Origin | None = None, codec: Codec = Codec.NONE) -> bytes:
    record = Record(b"k", text.encode(), (("h", b"x"),), 1_700_000_000_000)
    return build_batch([record], origin=origin or Origin(), codec=codec)


def txn(sequence: int, *, producer_id: int = 9, producer_epoch: int = 0) -> Origin:
    return Origin(
        ProducerId(producer_id),
        ProducerEpoch(producer_epoch),
        SequenceNumber(sequence),
        transactional=True,
    )


def produce_of(
    *batches: bytes, acks: int = -1, transactional_id: str | None = None, topic: Any = "t",
    key: str = "name",
) -> dict[str, Any]:  # fmt: skip
    parts = [{"index": index, "records": data} for index, data in enumerate(batches)]
    return {
        "acks": acks, "timeout": 5000, "transactional_id": transactional_id,
        "topic_data": [{key: topic, "partition_data": parts}],
    }  # fmt: skip


async def produce(client: RawClient, version: int, *batches: bytes, **more: Any) -> Any:
    answer = await client.call(0, version, produce_of(*batches, **more))
    return answer.responses[0].partition_responses


def fetch_of(offset: int, **more: Any) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
    partition |= {name: more.pop(name) for name in ("current_leader_epoch", "partition_max_bytes")
                  if name in more}  # fmt: skip
    topic = {more.pop("key", "topic"): more.pop("topic", "t"), "partitions": [partition]}
    return {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [topic],
            "forgotten_topics_data": []} | more  # fmt: skip


async def fetch(client: RawClient, offset: int, *, version: int = 12, **more: Any) -> Any:
    answer = await client.call(1, version, fetch_of(offset, **more))
    return answer.responses[0].partitions[0]


def values(row: Any) -> list[bytes | None]:
    return [record.value for record in iter_records(row.records)] if row.records else []


@pytest.mark.parametrize("version", range(3, 13))
async def test_produce_and_fetch_round_trip_in_every_version(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        for expected in range(2):
            (row,) = await produce(client, version, batch(f"v{expected}"))
            assert (row.error_code, row.base_offset) == (NONE, expected)
        for fetch_version in range(4, 13):
            found = await fetch(client, 1, version=fetch_version)
            assert (found.error_code, found.high_watermark, values(found)) == (NONE, 2, [b"v1"])


async def test_produce_13_and_fetch_13_to_16_name_topics_by_id(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await produce(client, 13, batch(), topic=topic.topic_id, key="topic_id")
        assert row.error_code == NONE
        for version in range(13, 19):
            found = await fetch(client, 0, version=version, key="topic_id", topic=topic.topic_id)
            assert values(found) == [b"v"]
        unknown = fixture.services.chance.uuid()
        missing = await fetch(client, 0, version=13, key="topic_id", topic=unknown)
        assert missing.error_code == 100


@pytest.mark.parametrize("codec", list(Codec))
async def test_batches_come_back_byte_for_byte(tmp_path: Path, codec: Codec) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        sent = batch("x" * 300, codec=codec)
        await produce(client, 9, sent)
        found = await fetch(client, 0)
        # Base offset (8 bytes) and leader epoch (4 at 12) are the broker's, all else the producer's.
        assert found.records[8:12] + found.records[16:] == sent[8:12] + sent[16:]


async def test_C2_duplicate_is_answered_with_the_original_offset(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        first, second = (
            batch(str(n), origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(n)))
            for n in range(2)
        )
        rows = [(await produce(client, 9, data))[0] for data in (first, second, first)]
        assert [(row.error_code, row.base_offset) for row in rows] == [(0, 0), (0, 1), (0, 0)]
        assert fixture.partition("t").log_end_offset == 2


async def test_C3_C6_gaps_and_old_epochs_are_refused_with_kafkas_errors(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await produce(
            client, 9, batch(origin=Origin(ProducerId(7), ProducerEpoch(1), SequenceNumber(0)))
        )
        (gap,) = await produce(
            client, 9, batch(origin=Origin(ProducerId(7), ProducerEpoch(1), SequenceNumber(5)))
        )
        (old,) = await produce(
            client, 9, batch(origin=Origin(ProducerId(7), ProducerEpoch(0), SequenceNumber(0)))
        )
        assert (gap.error_code, gap.base_offset) == (45, -1)
        assert (old.error_code, old.base_offset) == (47, -1)


@pytest.mark.parametrize(
    ("data", "error"),
    [
        pytest.param(batch()[:-1] + b"\x00", 2, id="wrong CRC"),
        pytest.param(batch()[:40], 2, id="truncated"),
        pytest.param(b"", 87, id="no batch"),
        pytest.param(None, 87, id="null"),
        pytest.param(batch() + batch(), 87, id="two batches"),
        pytest.param(batch(origin=Origin(control=True)), 87, id="control batch"),
        pytest.param(batch()[:16] + b"\x01" + batch()[17:], 43, id="magic 1"),
        pytest.param(build_batch([Record(None, b"x" * 1_100_000)]), 10, id="too large"),
    ],
)
async def test_bad_batch_is_refused_and_the_connection_goes_on(
    tmp_path: Path, data: bytes, error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await produce(client, 9, data)
        assert (row.error_code, row.base_offset) == (error, -1)
        (row,) = await produce(client, 9, batch())
        assert (row.error_code, row.base_offset) == (NONE, 0)


async def test_unknown_topics_ledgers_and_zstd_below_version_7(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        await fixture.topic("__transaction_state")
        client = await fixture.connect()
        assert (await produce(client, 9, batch(), topic="nope"))[0].error_code == UNKNOWN_TOPIC
        assert (await produce(client, 9, batch(), topic="__transaction_state"))[0].error_code == 17
        assert (await produce(client, 6, batch(codec=Codec.ZSTD)))[0].error_code == 76
        assert (await produce(client, 9, batch(), acks=5))[0].error_code == 21


async def test_acks_0_gets_no_answer_and_the_next_request_gets_its_own(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        client.send(0, 9, produce_of(batch("silent"), acks=0))
        (row,) = await produce(client, 9, batch("loud"))
        assert row.base_offset == 1


async def test_refused_batch_with_acks_0_closes_the_connection(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        client.send(0, 9, produce_of(batch(), acks=0, topic="nope"))
        assert await client.closed()


# Holds INV-H16.
async def test_T8_transactional_batches_need_acks_all(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.txn.in_transaction = {T0}
        client = await fixture.connect()
        (row,) = await produce(client, 9, batch(origin=txn(0)), acks=1, transactional_id="a")
        assert row.error_code == 21
        (row,) = await produce(client, 9, batch(origin=txn(0)), transactional_id="a")
        assert row.error_code == NONE


# Holds INV-H16.
@pytest.mark.parametrize("other", [txn(0, producer_id=10), txn(0, producer_epoch=1)])
async def test_C12_one_producer_per_transactional_request(tmp_path: Path, other: Origin) -> None:
    """Source: Kafka ReplicaManager: the set of (producer id, producer epoch) has one element."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        rows = await produce(
            client, 9, batch(origin=txn(0)), batch(origin=other), transactional_id="a"
        )
        assert [row.error_code for row in rows] == [49, 49]
        assert fixture.partition("t").log_end_offset == 0


async def test_C12_plain_batches_of_several_producers_may_share_a_request(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 3)
        client = await fixture.connect()
        rows = await produce(
            client,
            9,
            batch(origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(0))),
            batch(origin=Origin(ProducerId(10), ProducerEpoch(0), SequenceNumber(0))),
            batch(),
        )
        assert [row.error_code for row in rows] == [NONE] * 3


@pytest.mark.parametrize(
    ("verdict", "version", "error"),
    [
        (TxnVerdict.NOT_IN_TRANSACTION, 10, 48),
        (TxnVerdict.NOT_IN_TRANSACTION, 11, 120),
        (TxnVerdict.FENCED, 11, 47),
        (TxnVerdict.UNKNOWN_PRODUCER_MAPPING, 11, 49),
        (TxnVerdict.CONCURRENT, 11, 19),
        (TxnVerdict.LOADING, 11, 19),
        (TxnVerdict.UNPROVEN_CONNECTION, 11, 19),  # P2: clients send it again at once
        (TxnVerdict.NOT_COORDINATOR, 9, 19),
        (TxnVerdict.FENCED_BY_TAKEOVER, 10, 47),
        (TxnVerdict.FENCED_BY_TAKEOVER, 11, 120),
    ],
)
async def test_C27_C28_C29_verification_errors_by_version(
    tmp_path: Path, verdict: TxnVerdict, version: int, error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.txn.verdict = verdict
        client = await fixture.connect()
        (row,) = await produce(client, version, batch(origin=txn(0)), transactional_id="a")
        assert row.error_code == error
        assert fixture.partition("t").log_end_offset == 0


async def test_KIP890_produce_12_adds_its_partition_and_reports_concurrent_as_such(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        (row,) = await produce(client, 12, batch(origin=txn(0)), transactional_id="a")
        assert (row.error_code, fixture.txn.added) == (NONE, [T0])
        fixture.txn.in_transaction.clear()
        fixture.txn.add_verdict = TxnVerdict.CONCURRENT
        (row,) = await produce(client, 12, batch(origin=txn(1)), transactional_id="a")
        assert row.error_code == 51


async def test_P4_transaction_that_ended_while_the_partition_was_added_gets_nothing(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")

        async def added_then_aborted(*_args: object, implicit: bool) -> TxnVerdict:
            fixture.txn.in_transaction.clear()
            return TxnVerdict.OK

        fixture.txn.add_partitions = added_then_aborted  # type: ignore[method-assign,assignment]
        client = await fixture.connect()
        (row,) = await produce(client, 12, batch(origin=txn(0)), transactional_id="a")
        assert row.error_code == 120
        assert fixture.partition("t").log_end_offset == 0


# Holds INV-H12.
async def test_C7_pipelined_batches_keep_their_order_while_the_first_waits(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.txn.gate = asyncio.Event()
        client = await fixture.connect()
        for sequence in range(4):
            data = batch(str(sequence), origin=txn(sequence))
            client.send(0, 12, produce_of(data, transactional_id="a"))
        await client.writer.drain()
        other = await fixture.connect()
        await produce(other, 9, batch("other"))
        fixture.txn.gate.set()
        rows = [
            (await client.receive(0, 12))[1].responses[0].partition_responses[0] for _ in range(4)
        ]
        assert [(row.error_code, row.base_offset) for row in rows] == [
            (0, 1),
            (0, 2),
            (0, 3),
            (0, 4),
        ]


# Holds INV-H13, INV-HPW1, INV-PT3.
async def test_P18_write_that_is_not_durable_in_time_is_answered_timed_out(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.group_commit.mark_dirty = lambda log: None  # type: ignore[method-assign]
        partition = fixture.partition("t")
        partition.log.listener.on_dirty = lambda log: None
        client = await fixture.connect()
        request = produce_of(batch()) | {"timeout": 20}
        answer = await client.call(0, 9, request)
        row = answer.responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (7, -1)
        assert partition.log_end_offset == 1


async def commit(fixture: WireFixture, *, aborted: bool, producer_id: int = 9) -> None:
    partition = fixture.partition("t")
    outcome = append_marker(partition,
        producer_id=producer_id, producer_epoch=0,
        control_type=ControlType.ABORT if aborted else ControlType.COMMIT,
        coordinator_epoch=1, decision=None, timestamp_ms=1,
    )  # fmt: skip
    await partition.wait_committed(outcome.next_offset)


async def test_C36_C37_C38_read_committed_stops_at_the_lso_and_lists_aborted(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.txn.in_transaction = {T0}
        client = await fixture.connect()
        await produce(client, 9, batch("open", origin=txn(0)), transactional_id="a")
        await produce(client, 9, batch("plain"))
        committed = await fetch(client, 0, isolation_level=1)
        assert (committed.high_watermark, committed.last_stable_offset) == (2, 0)
        assert values(committed) == []
        uncommitted = await fetch(client, 0, isolation_level=0)
        assert values(uncommitted) == [b"open"] or uncommitted.records
        await commit(fixture, aborted=True)
        committed = await fetch(client, 0, isolation_level=1)
        assert committed.last_stable_offset == 3
        assert [(a.producer_id, a.first_offset) for a in committed.aborted_transactions] == [(9, 0)]


# Holds INV-H9.
async def test_C39_first_batch_is_returned_though_larger_than_allowed(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await produce(client, 9, batch("x" * 5000))
        found = await fetch(client, 0, max_bytes=10, partition_max_bytes=10)
        assert values(found) == [b"x" * 5000]


async def test_fetch_waits_for_data_and_wakes_when_it_is_durable(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        reader, writer = await fixture.connect(), await fixture.connect()
        reader.send(1, 12, fetch_of(0, max_wait=30_000))
        await produce(writer, 9, batch("late"))
        _, answer = await reader.receive(1, 12)
        assert values(answer.responses[0].partitions[0]) == [b"late"]


async def test_fetch_without_data_is_answered_empty_after_max_wait(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        found = await fetch(client, 0, max_wait=10)
        assert (found.error_code, found.high_watermark, values(found)) == (NONE, 0, [])


async def test_fetch_errors_are_answered_at_once(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        long = {"max_wait": 30_000}
        assert (await fetch(client, 99, **long)).error_code == OFFSET_OUT_OF_RANGE
        assert (await fetch(client, 0, topic="nope", **long)).error_code == UNKNOWN_TOPIC
        older, newer = LEADER_EPOCH - 1, LEADER_EPOCH + 1
        assert (await fetch(client, 0, current_leader_epoch=older, **long)).error_code == 74
        assert (await fetch(client, 0, current_leader_epoch=newer, **long)).error_code == 75


# Holds INV-H11.
async def test_CVE_2018_1288_client_that_calls_itself_a_replica_gets_nothing(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        answer = await client.call(1, 12, fetch_of(0, replica_id=2))
        assert (answer.error_code, answer.responses) == (42, ())


async def test_T17_mirror_shows_no_more_than_the_last_tidemark_reached(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        for text in ("a", "b"):
            await produce(client, 9, batch(text))
        partition = fixture.partition("t")
        partition.become_mirror()
        partition.show_up_to(1, 1)
        found = await fetch(client, 0)
        assert (found.high_watermark, values(found)) == (1, [b"a"])
        latest = await client.call(2, 5, {
            "replica_id": -1, "isolation_level": 0,
            "topics": [{"name": "t", "partitions": [{"partition_index": 0, "timestamp": -1}]}],
        })  # fmt: skip
        assert latest.topics[0].partitions[0].offset == 1


async def test_peer_that_leaves_while_it_waits_leaves_nothing_behind(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        client.send(1, 12, fetch_of(0, max_wait=300_000))
        await client.writer.drain()
        other = await fixture.connect()
        await fetch(other, 0)
        client.writer.close()
        await client.writer.wait_closed()
        await fixture.server.wait_connections(1)
        assert len(fixture.partition("t").watchers) == 0


async def test_a_nearly_full_disk_refuses_records_and_takes_them_when_there_is_room(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        room = DiskRoom(free_bytes_min=100)
        fixture.services.partitions.room = room  # the watermark is 0 otherwise
        client = await fixture.connect()
        room.note(1_000, 99)
        (row,) = await produce(client, 9, batch("early"))
        assert (row.error_code, row.base_offset) == (KAFKA_STORAGE_ERROR, -1)
        assert "disk_free_bytes_min" in row.error_message
        room.note(1_000, 109)
        assert (await produce(client, 9, batch("early")))[0].error_code == KAFKA_STORAGE_ERROR
        room.note(1_000, 110)
        (row,) = await produce(client, 9, batch("late"))
        assert (row.error_code, row.base_offset) == (NONE, 0)


async def test_HD4_what_was_sent_behind_a_batch_without_room_is_not_judged(tmp_path: Path) -> None:
    """Else the second were out of order, and librdkafka would write it again under a new epoch."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        room = DiskRoom(free_bytes_min=100)
        fixture.services.partitions.room = room  # the watermark is 0 otherwise
        client = await fixture.connect()
        room.note(1_000, 99)
        (row,) = await produce(
            client,
            9,
            batch("one", origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(0))),
        )
        assert row.error_code == KAFKA_STORAGE_ERROR
        room.note(1_000, 500)
        with pytest.raises(asyncio.IncompleteReadError):
            await produce(
                client,
                9,
                batch("two", origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(1))),
            )
        again = await fixture.connect()
        for sequence, value in enumerate(("one", "two")):
            (row,) = await produce(
                again,
                9,
                batch(
                    value, origin=Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(sequence))
                ),
            )
            assert (row.error_code, row.base_offset) == (NONE, sequence)


async def test_C7_a_batch_that_takes_long_is_opened_in_a_thread_and_keeps_its_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[threading.Thread] = []
    prepared = PartitionWriter.prepared

    def noting(writer: PartitionWriter, data: Buffer) -> Prepared:
        threads.append(threading.current_thread())
        return prepared(writer, data)

    monkeypatch.setattr(PartitionWriter, "prepared", noting)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 1, {"compression.type": "gzip"})
        client = await fixture.connect()
        client.send(0, 9, produce_of(batch("heavy", codec=Codec.LZ4)))
        client.send(0, 9, produce_of(batch("light", codec=Codec.GZIP)))
        for base_offset in (0, 1):
            _, answer = await client.receive(0, 9)
            assert answer.responses[0].partition_responses[0].base_offset == base_offset
    assert len(threads) == 1
    assert threads[0] is not threading.main_thread()


async def test_INV_PTD1_acks_1_waits_for_one_disk_and_acks_all_for_the_nodes_in_sync(
    tmp_path: Path,
) -> None:
    """Kafka's `acks`: "1: the leader will write the record to its local log but will respond without awaiting full
    acknowledgement from all followers"; here, once it is durable there.
    """
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        partition = fixture.partition("t")
        partition.commit_up_to(0)  # another node of the region is in sync, and has nothing yet
        assert (await produce(client, 9, batch(), acks=1))[0].error_code == 0
        assert (partition.commits.durable_end, partition.high_watermark) == (1, 0)
        client.send(0, 9, produce_of(batch(), acks=-1))
        waiting = asyncio.get_running_loop().create_task(client.receive(0, 9))
        await until(lambda: partition.commits.durable_end == 2, "its own disk")
        assert not waiting.done()
        partition.commit_up_to(2)
        answered = await waiting
        row = answered[1].responses[0].partition_responses[0]
        assert (row.error_code, row.base_offset) == (0, 1)
