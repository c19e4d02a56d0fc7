"""Markers of many transactions on their way into partitions: one write each, told when durable, in log order."""

from dataclasses import dataclass, field

import pytest

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    ProducerEpoch,
    ProducerId,
    Round,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from idempotency.record_batch import ControlType, iter_headers, read_marker
from region_broker.controller.metadata_image import OFFSETS_LEDGER, MetadataImage
from region_broker.ledgers.marker_channel import PartitionMarkerChannel
from region_broker.records.batches import Origin
from tests.fixtures.node_logs import LEADER_EPOCH, Fixture, Topic, all_bytes, batch, fixture
from txn_coordinator.ports import MarkerOrder, MarkerResult

STAMP = Round(LEADER_EPOCH << 32 | 1)
Told = tuple[int, int, MarkerResult]


@dataclass
class Listener:
    """Notes (producer id, partition, result)."""

    told: list[Told] = field(default_factory=list)
    closed: bool = False

    def marked(self, order: MarkerOrder, tp: TopicPartition, result: MarkerResult) -> None:
        self.told.append((order.producer_id, tp.partition, result))


def channel_of(some: Fixture, groups: list[tuple[int, int, bool]]) -> PartitionMarkerChannel:
    return PartitionMarkerChannel(
        some.table,
        some.clock,
        image=lambda: MetadataImage(version=0, cluster_id="c"),
        on_offsets_marker=lambda *heard: groups.append(heard),
    )


def order(
    listener: Listener,
    producer_id: int,
    *partitions: int,
    offset: int,
    commit: bool = True,
    topic: str = "orders",
) -> MarkerOrder:
    return MarkerOrder(
        transactional_id=f"t{producer_id}",
        partitions=tuple(TopicPartition(TopicName(topic), number) for number in partitions),
        producer_id=ProducerId(producer_id),
        producer_epoch=ProducerEpoch(0),
        commit=commit,
        coordinator_epoch=CoordinatorEpoch(LEADER_EPOCH),
        decision=DecisionId(0, LEADER_EPOCH, offset, STAMP),
        listener=listener,
    )


def markers_in(some: Fixture, partition: int) -> list[tuple[int, ProducerId, ControlType, int]]:
    """(log offset, producer id, kind, ledger offset of the decision), as the bytes say."""
    data = all_bytes(some.partitions[partition])
    found = []
    for at, header in iter_headers(data):
        if header.is_control:
            assert header.leader_epoch == LEADER_EPOCH
            marker = read_marker(data[at : at + header.size_bytes])
            assert marker.decision is not None
            found.append(
                (
                    header.base_offset,
                    marker.producer_id,
                    marker.control_type,
                    marker.decision.offset,
                )
            )
    return found


def with_open_transactions(count: int) -> Fixture:
    some = fixture(partition_count=2)
    for producer_id in range(count):
        for partition in some.partitions:
            partition.writer.append(
                batch(
                    1,
                    origin=Origin(
                        ProducerId(producer_id),
                        ProducerEpoch(0),
                        SequenceNumber(0),
                        transactional=True,
                    ),
                )
            )
    some.sync()
    return some


def writes_of(some: Fixture) -> list[str]:
    """Note the disk's writes from now on."""
    seen: list[str] = []

    def note(operation: str, path: object) -> None:
        if operation == "pwrite":
            seen.append(str(path))

    some.disk.fault = note
    return seen


# Holds INV-AM3, INV-TQ1.
async def test_AM3_markers_of_many_transactions_are_one_write_for_each_partition() -> None:
    some = with_open_transactions(5)
    listener = Listener()
    writes = writes_of(some)
    channel_of(some, []).write(
        [
            order(listener, producer, 0, 1, offset=producer, commit=producer != 3)
            for producer in range(5)
        ]
    )
    assert len(writes) == 2
    assert listener.told == []  # C35: nothing is below the high watermark yet
    some.sync()
    done = MarkerResult.DONE
    assert listener.told == [(n, p, done) for p in (0, 1) for n in range(5)]
    for partition in (0, 1):
        assert markers_in(some, partition) == [
            (5 + n, n, ControlType.ABORT if n == 3 else ControlType.COMMIT, n) for n in range(5)
        ]
        assert some.partitions[partition].sight.last_stable_offset == 10


# Holds INV-TP2.
async def test_T6_a_repeat_among_new_markers_writes_nothing_and_is_confirmed() -> None:
    some = with_open_transactions(3)
    listener = Listener()
    channel = channel_of(some, [])
    channel.write([order(listener, 1, 0, offset=7)])
    some.sync()
    channel.write([order(listener, n, 0, offset=7 + n * n) for n in (0, 1, 2)])  # 1: an older one
    channel.write([order(listener, 1, 0, offset=7)])
    some.sync()
    assert [marker[1] for marker in markers_in(some, 0)] == [1, 0, 1, 2]
    assert [told[0] for told in listener.told] == [1, 0, 1, 2, 1]
    assert {told[2] for told in listener.told} == {MarkerResult.DONE}


# Holds INV-MW1.
async def test_T6_two_decisions_of_one_producer_in_one_call_are_judged_in_order() -> None:
    some = with_open_transactions(1)
    listener = Listener()
    channel_of(some, []).write(
        [order(listener, 0, 0, offset=9), order(listener, 0, 0, offset=9, commit=False)]
    )
    some.sync()
    assert markers_in(some, 0) == [(1, 0, ControlType.COMMIT, 9)]
    assert len(listener.told) == 2


# Holds INV-AM2.
async def test_AM2_groups_hear_of_new_markers_in_log_order_and_of_no_repeat() -> None:
    some = Fixture(
        fixture().disk,
        Topic(partition_count=1, name=OFFSETS_LEDGER, internal=True),
        fixture().config,
    )
    listener = Listener()
    groups: list[tuple[int, int, bool]] = []
    orders = [
        order(listener, n, 0, offset=n, commit=n != 1, topic=OFFSETS_LEDGER) for n in range(3)
    ]
    channel_of(some, groups).write([*orders, orders[0]])
    assert groups == [(0, 0, True), (0, 1, False), (0, 2, True)]


async def test_a_partition_that_stopped_is_said_to_have_and_the_other_is_written() -> None:
    some = with_open_transactions(2)
    listener = Listener()
    some.partitions[0].log.fail("the disk is gone")
    channel_of(some, []).write([order(listener, n, 0, 1, offset=n) for n in range(2)])
    some.sync()
    stopped, done = MarkerResult.STOPPED, MarkerResult.DONE
    assert listener.told == [(0, 0, stopped), (1, 0, stopped), (0, 1, done), (1, 1, done)]


async def test_INV_SSD1_a_stopped_partition_that_owes_markers_fills_no_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    some = with_open_transactions(2)
    some.partitions[0].log.fail("the disk is gone")
    caplog.clear()
    channel = channel_of(some, [])
    for _ in range(5):  # an owed marker is tried each second
        channel.write([order(Listener(), n, 0, offset=n) for n in range(2)])
    lines = [line for line in caplog.records if "not written" in line.getMessage()]
    assert len(lines) == 1


async def test_C33_a_partition_of_no_topic_is_gone() -> None:
    some = with_open_transactions(1)
    listener = Listener()
    channel_of(some, []).write([order(listener, 0, 7, offset=1, topic="deleted")])
    assert listener.told == [(0, 7, MarkerResult.GONE)]
