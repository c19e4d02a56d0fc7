"""Transactional batches that wait before they are appended, over a real socket and a real log: rules C5, P4, P5.

What they wait for is held: the coordinator's answer, or the turn behind a request that waits for it.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import ProducerEpoch, ProducerId, TopicName, TopicPartition
from idempotency.record_batch import ControlType
from region_broker.handlers.produce import produce
from tests.fixtures.kafka_port import PlayedCoordinator, RawClient, WireFixture, wire_fixture
from tests.fixtures.node_logs import append_marker
from tests.fixtures.waiting import until
from tests.spec.wire.test_wire_produce_fetch import batch, produce_of, txn

T0 = TopicPartition(TopicName("t"), 0)
NONE, NOT_ENOUGH_REPLICAS, OUT_OF_ORDER = 0, 19, 45


@asynccontextmanager
async def held_fixture(folder: Path) -> AsyncIterator[tuple[WireFixture, RawClient, asyncio.Event]]:
    """A coordinator that answers when the event is set, and says that every batch is in a transaction."""
    async with wire_fixture(folder) as fixture:
        await fixture.topic("t", 2)
        held = fixture.txn.gate = asyncio.Event()
        yield fixture, await fixture.connect(), held


def transactional(sequence: int = 0, *, producer_epoch: int = 0) -> dict[str, Any]:
    data = batch(origin=txn(sequence, producer_epoch=producer_epoch))
    return produce_of(data, transactional_id="a")


def another_producers() -> dict[str, Any]:
    """A request that waits for the coordinator, and holds back those behind it."""
    sent = produce_of(batch(origin=txn(0, producer_id=77)), transactional_id="b")
    sent["topic_data"][0]["partition_data"][0]["index"] = 1
    return sent


async def waits(fixture: WireFixture, producer_epoch: int = 0) -> None:
    attempts = fixture.partition("t").state.verifications
    await until(
        lambda: attempts.lowest_sequence(ProducerId(9), ProducerEpoch(producer_epoch)) is not None,
        "an attempt",
    )


def write_marker(fixture: WireFixture, producer_epoch: int) -> None:
    append_marker(fixture.partition("t"),
        producer_id=9, producer_epoch=producer_epoch, control_type=ControlType.ABORT,
        coordinator_epoch=1, decision=None, timestamp_ms=1,
    )  # fmt: skip


def as_sent_in(monkeypatch: pytest.MonkeyPatch, *, many: bool) -> None:
    """Let every request be run as one of many batches is."""
    if many:
        monkeypatch.setattr(produce, "is_many", lambda _: True)
        monkeypatch.setattr(produce, "whole", lambda *_: False)


async def error_of(client: RawClient, version: int) -> int:
    _, answer = await client.receive(0, version)
    return int(answer.responses[0].partition_responses[0].error_code.value)


@pytest.mark.parametrize("many", [False, True])
async def test_P4_batch_that_waited_over_a_marker_is_not_taken_into_the_next_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    as_sent_in(monkeypatch, many=many)
    async with held_fixture(tmp_path) as (fixture, client, held):
        fixture.txn.in_transaction.add(T0)
        client.send(0, 12, another_producers())
        client.send(0, 9, transactional())
        await waits(fixture)
        write_marker(fixture, producer_epoch=0)
        held.set()
        assert await error_of(client, 12) == NONE
        assert await error_of(client, 9) == NOT_ENOUGH_REPLICAS
        assert fixture.partition("t").log_end_offset == 1, "the marker"
        client.send(0, 9, transactional())
        assert await error_of(client, 9) == NONE, "sent again, it is verified anew"


@pytest.mark.parametrize("many", [False, True])
async def test_P4_answer_of_the_coordinator_that_comes_after_the_marker_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    as_sent_in(monkeypatch, many=many)
    async with held_fixture(tmp_path) as (fixture, client, held):
        client.send(0, 12, transactional())
        await waits(fixture)
        write_marker(fixture, producer_epoch=1)
        held.set()
        assert await error_of(client, 12) == NOT_ENOUGH_REPLICAS
        assert fixture.partition("t").log_end_offset == 1, "the marker"


async def test_P5_marker_of_the_transaction_before_refuses_no_batch_of_the_next_one(
    tmp_path: Path,
) -> None:
    async with held_fixture(tmp_path) as (fixture, client, held):
        client.send(0, 12, transactional(producer_epoch=1))
        await waits(fixture, producer_epoch=1)
        write_marker(fixture, producer_epoch=1)
        held.set()
        assert await error_of(client, 12) == NONE


async def test_C5_batch_that_overtakes_one_that_waits_is_out_of_order(tmp_path: Path) -> None:
    async with held_fixture(tmp_path) as (fixture, client, held):
        fixture.txn.in_transaction.add(T0)
        client.send(0, 12, another_producers())
        client.send(0, 9, transactional(0))
        await waits(fixture)
        quick = await fixture.connect()
        quick.send(0, 9, transactional(1))
        assert await error_of(quick, 9) == OUT_OF_ORDER
        held.set()
        assert [await error_of(client, 12), await error_of(client, 9)] == [NONE, NONE]
        quick.send(0, 9, transactional(1))
        assert await error_of(quick, 9) == NONE


class ProcessEnds(Exception):
    """Ends a node's tasks, as a failure of one of them does, while requests wait."""


@pytest.mark.parametrize("many", [False, True])
async def test_INV_H15_request_that_was_given_up_hinders_no_log_from_being_closed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, many: bool
) -> None:
    as_sent_in(monkeypatch, many=many)
    with pytest.RaisesGroup(ProcessEnds, allow_unwrapped=True, flatten_subgroups=True):
        async with held_fixture(tmp_path) as (fixture, client, held):
            partition = fixture.partition("t")
            partition.log.listener.on_dirty = lambda _log: None
            client.send(0, 12, transactional())
            held.set()
            await until(lambda: partition.log_end_offset == 1, "the append")
            raise ProcessEnds
    assert partition.log.content.closed


async def test_INV_G3_no_attempt_outlives_its_request(tmp_path: Path) -> None:
    async with held_fixture(tmp_path) as (fixture, client, held):
        fixture.txn.in_transaction.add(T0)
        client.send(0, 12, another_producers())
        client.send(0, 9, transactional())
        await waits(fixture)
        held.set()
        assert [await error_of(client, version) for version in (12, 9)] == [NONE, NONE]
        for producer_id, number in ((77, 1), (9, 0)):
            attempts = fixture.partition("t", number).state.verifications
            assert attempts.lowest_sequence(ProducerId(producer_id), ProducerEpoch(0)) is None


class Noting(PlayedCoordinator):
    """Notes which arrivals it is shown."""

    def __init__(self) -> None:
        super().__init__()
        self.arrivals: list[Any] = []

    def verify(self, *args: Any, **more: Any) -> Any:
        self.arrivals.append(args[4])
        return super().verify(*args, **more)


@pytest.mark.parametrize(("version", "shown"), [(11, True), (12, False)])
async def test_KAFKA_17754_only_v1_clients_are_held_to_the_order_of_their_connections(
    tmp_path: Path, version: int, shown: bool
) -> None:
    """Under transactions v2 each transaction has an epoch of its own: what is late is known by that."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 1)
        noting = fixture.services.txn = Noting()  # type: ignore[assignment]
        noting.in_transaction.add(T0)
        client = await fixture.connect()
        client.send(0, version, transactional())
        assert await error_of(client, version) == NONE
        assert [arrival is not None for arrival in noting.arrivals] == [shown]
