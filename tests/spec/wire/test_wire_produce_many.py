"""Produce requests of many batches over a real socket and real logs: the rules of any Produce hold in pieces, too.

A piece is made of two or three batches here (`YIELD_ROWS`), so that a few are many.
"""

import asyncio
from collections.abc import Iterator, Sequence
from inspect import getgeneratorlocals
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
from idempotency.pieces import drained
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.produce import batches as produce_batches
from region_broker.handlers.produce import pipeline
from region_broker.handlers.produce.wait import Item
from region_broker.limits import PIECE_ELEMENTS
from region_broker.partitions.parts.writer import PartitionWriter
from region_broker.records.batches import NO_ORIGIN, Origin, Record, build_batch
from region_broker.records.compression import Codec
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.codec.fast_paths.produce import ProducedRow, ProduceRequest, answer_pieces
from tests.fixtures.kafka_port import PlayedCoordinator, WireFixture, wire_fixture
from tests.fixtures.waiting import until
from tests.spec.wire.test_wire_produce_fetch import batch, fetch, produce_of, txn, values

NONE, INVALID_RECORD, UNKNOWN_TOPIC, CORRUPT = 0, 87, 3, 2
TIMED_OUT = 7
INVALID_PRODUCER_ID_MAPPING, INVALID_TXN_STATE = 49, 48


@pytest.fixture(autouse=True)
def _few_are_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pipeline, "YIELD_ROWS", 3)


def errors(answered: Any) -> list[int]:
    return [row.error_code.value for row in answered.responses[0].partition_responses]


@pytest.mark.parametrize("version", range(3, 13))
async def test_each_batch_of_many_gets_its_own_answer_in_every_version(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 9)
        client = await fixture.connect()
        broken = batch("bad")[:-1] + b"\xff"
        sent = [*(batch(f"v{n}") for n in range(7)), broken, b"", *(batch() for _ in range(3))]
        for round_number in range(2):
            answered = await client.call(0, version, produce_of(*sent))
            rows = answered.responses[0].partition_responses
            assert [row.index for row in rows] == list(range(12))
            assert errors(answered) == [NONE] * 7 + [CORRUPT, INVALID_RECORD] + [UNKNOWN_TOPIC] * 3
            assert [row.base_offset for row in rows] == [round_number] * 7 + [-1] * 5
        assert values(await fetch(client, 1)) == [b"v0"]


async def test_INV_HPM1_others_are_served_between_the_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[tuple[int, int]] = []
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    def noting(ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]) -> None:
        sizes.append((len(items), ticks))
        produce_batches.append(ctx, request, items)

    monkeypatch.setattr(pipeline, "append", noting)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 20)
        client = await fixture.connect()
        ticking = asyncio.get_running_loop().create_task(tick())
        answered = await client.call(0, 9, produce_of(*(batch() for _ in range(20))))
        ticking.cancel()
        assert errors(answered) == [NONE] * 20
        assert [size for size, _ in sizes] == [3] * 6 + [2]
        assert len({at for _, at in sizes}) == 7


@pytest.mark.parametrize("seals", [False, True], ids=["plain", "sealed"])
async def test_INV_HPM4_a_step_appends_so_many_bytes_of_few_batches_that_are_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, seals: bool
) -> None:
    """95 batches of a megabyte, less than are many, were appended in one step: 60 ms of the loop, and 160 ms where they were sealed."""
    monkeypatch.setattr(pipeline, "YIELD_ROWS", 200)
    monkeypatch.setattr(pipeline, "PRODUCE_STEP_BYTES", 64_000 if seals else 16_000)
    monkeypatch.setattr(PartitionWriter, "seals", seals)
    steps: list[tuple[int, int]] = []
    ticks = 0

    async def tick() -> None:
        nonlocal ticks
        while True:
            ticks += 1
            await asyncio.sleep(0)

    def noting(ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]) -> None:
        steps.append((len(items), ticks))
        produce_batches.append(ctx, request, items)

    monkeypatch.setattr(pipeline, "append", noting)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 11)
        client = await fixture.connect()
        ticking = asyncio.get_running_loop().create_task(tick())
        sizes = [7_000] * 2 + [20_000] + [5_000] * 3 + [100] + [2_000] * 4
        answered = await client.call(0, 9, produce_of(*(batch("v" * size) for size in sizes)))
        ticking.cancel()
        assert errors(answered) == [NONE] * len(sizes)
        assert [count for count, _ in steps] == [2, 1, 4, 4]
        assert len({at for _, at in steps}) == 4, (
            "the last of them is small, and the one before it large"
        )
        assert (await client.call(0, 9, produce_of(batch("v" * 20_000)))).responses
        assert len(steps) == 5, "one batch, whatever it has, is appended at once"


# Holds INV-HPM2.
async def test_C7_what_follows_many_batches_is_appended_behind_them(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 10)
        client = await fixture.connect()
        first = [
            batch(f"first-{n}", origin=Origin(ProducerId(5), ProducerEpoch(0), SequenceNumber(0)))
            for n in range(10)
        ]
        client.send(0, 9, produce_of(*first))
        second = produce_of(
            batch("second", origin=Origin(ProducerId(5), ProducerEpoch(0), SequenceNumber(1)))
        )
        second["topic_data"][0]["partition_data"][0]["index"] = 9
        client.send(0, 9, second)
        _, large = await client.receive(0, 9)
        _, small = await client.receive(0, 9)
        assert errors(large) == [NONE] * 10
        assert errors(small) == [NONE]
        assert small.responses[0].partition_responses[0].base_offset == 1


class NotedPreparations:
    """What is held of a request, and how much of it is in the log, whenever a thread is to make another batch of it ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, some: WireFixture) -> None:
        self.ends: list[int] = []
        self.held: list[int] = []
        self.named: list[int] = []
        self._some = some
        self._items: list[Item] = []
        self._prepare = produce_batches.prepare
        monkeypatch.setattr(produce_batches, "prepare", self._noted)
        monkeypatch.setattr(pipeline, "append", self._append)

    async def _noted(self, ctx: RequestContext, item: Item, until_s: float) -> None:
        self.ends.append(self._some.partition("t").log_end_offset)
        self.held.append(sum(each.ahead is not None for each in self._items))
        self.named.append(sum(len(each.bad_records) for each in self._items))
        await self._prepare(ctx, item, until_s)

    def _append(self, ctx: RequestContext, request: ProduceRequest, items: Sequence[Item]) -> None:
        self._items += items
        produce_batches.append(ctx, request, items)


def _to_one_partition(*batches: bytes) -> dict[str, Any]:
    sent = produce_of(*batches)
    for row in sent["topic_data"][0]["partition_data"]:
        row["index"] = 0
    return sent


async def test_INV_H18_a_batch_is_made_ready_when_the_one_before_it_is_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """48 kB of small batches held 400 MB of what they were recompressed into."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "uncompressed"})
        client, noted = await fixture.connect(), NotedPreparations(monkeypatch, fixture)
        packed = build_batch([Record(None, bytes(10_000), timestamp_ms=-1)], codec=Codec.ZSTD)
        plain = build_batch([Record(None, b"v", timestamp_ms=-1)])
        sent = [packed, packed, plain, plain, packed, plain, packed]
        answered = await client.call(0, 9, _to_one_partition(*sent))
        assert errors(answered) == [NONE] * 7
        rows = answered.responses[0].partition_responses
        assert [row.base_offset for row in rows] == list(range(7))
        assert noted.ends == [0, 1, 3, 6], (
            "batches that need no thread go with the next one, within a piece"
        )
        assert noted.held == [0] * 4


async def test_INV_H18_records_that_were_refused_are_kept_as_far_as_they_are_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pipeline, "RECORD_ERRORS_MAX", 5)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"cleanup.policy": "compact"})
        client, noted = await fixture.connect(), NotedPreparations(monkeypatch, fixture)
        keyless = build_batch([Record(None, b"v")] * 4, codec=Codec.ZSTD)
        answered = await client.call(0, 9, _to_one_partition(*[keyless] * 4))
        assert errors(answered) == [INVALID_RECORD] * 4
        assert noted.named == [0, 4, 5, 5]
        rows = answered.responses[0].partition_responses
        assert [len(row.record_errors) for row in rows] == [4, 1, 0, 0]


def _packed(sequence: int | None = None) -> bytes:
    origin = NO_ORIGIN
    if sequence is not None:
        origin = Origin(ProducerId(5), ProducerEpoch(0), SequenceNumber(sequence))
    return build_batch([Record(None, bytes(9_000), timestamp_ms=-1)], origin=origin, codec=Codec.ZSTD)  # fmt: skip


class SlowThreads:
    """The time of each request is over once a thread has made so many of its batches ready."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ready: int) -> None:
        self.made = 0
        self._ready = ready
        self._prepare = produce_batches.prepare
        monkeypatch.setattr(produce_batches, "prepare", self._limited)

    async def _limited(self, ctx: RequestContext, item: Item, until_s: float) -> None:
        await self._prepare(ctx, item, 0 if self.made == self._ready else until_s)
        self.made += 1


async def test_INV_HPM3_a_request_ends_where_its_batches_have_had_their_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """40,000 batches of 2 kB that are 64 MiB each held their frame for hours, and three such frames all of the memory."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "gzip"})
        client, slow = await fixture.connect(), SlowThreads(monkeypatch, ready=2)
        sent = [_packed(), batch(), _packed(), batch(), *[_packed()] * 6, batch()]
        answered = await client.call(0, 9, _to_one_partition(*sent))
        assert errors(answered) == [NONE] * 3 + [TIMED_OUT] * 8
        assert slow.made == 2
        rows = answered.responses[0].partition_responses
        assert [row.base_offset for row in rows] == [0, 1, 2] + [-1] * 8
        assert fixture.partition("t").log_end_offset == 3
        assert fixture.services.memory.held_bytes == 0


async def test_INV_HPM3_the_time_of_a_request_counts_from_its_begin_and_not_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """64 requests that were sent ahead on one connection had half a minute each, one behind the other."""
    begun, ends, goes_on = [0], list[float](), asyncio.Event()
    items_of, prepare = produce_batches.items_of, produce_batches.prepare

    def counted(request: Any) -> Any:
        begun[0] += 1
        return items_of(request)

    async def held(ctx: RequestContext, item: Item, until_s: float) -> None:
        ends.append(until_s)
        await goes_on.wait()
        await prepare(ctx, item, until_s)

    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "gzip"})
        client = await fixture.connect()
        with monkeypatch.context() as patched:
            patched.setattr(pipeline, "items_of", counted)
            patched.setattr(produce_batches, "prepare", held)
            for _ in range(2):
                client.send(0, 9, produce_of(_packed()))
            await until(lambda: begun[0] == 5 and len(ends) == 1)  # both are waiting by then
            patched.setattr(pipeline, "PREPARED_S_MAX", 100_000)
            goes_on.set()
            for _ in range(2):
                _, answered = await client.receive(0, 9)
                assert errors(answered) == [NONE]
    assert ends[1] - ends[0] < 50_000


async def test_INV_HPM3_what_an_idempotent_producer_sent_behind_a_late_batch_is_not_executed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "gzip"})
        client = await fixture.connect()
        with monkeypatch.context() as patched:
            SlowThreads(patched, ready=0)
            client.send(0, 9, produce_of(_packed(0)))
            client.send(0, 9, produce_of(_packed(1)))
            _, late = await client.receive(0, 9)
            assert errors(late) == [TIMED_OUT]
            assert await client.closed()
        again = await fixture.connect()
        for sequence in range(2):
            answered = await again.call(0, 9, produce_of(_packed(sequence)))
            assert errors(answered) == [NONE]


async def test_INV_HPM3_a_late_batch_without_acks_ends_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", configs={"compression.type": "gzip"})
        SlowThreads(monkeypatch, ready=0)
        client = await fixture.connect()
        client.send(0, 9, produce_of(_packed(), acks=0))
        assert await client.closed()


class Ending(PlayedCoordinator):
    """A coordinator whose transaction ends after some batches were verified."""

    def __init__(self, verified: int) -> None:
        super().__init__()
        self.left = verified

    def verify(self, *args: Any, **more: Any) -> Any:
        if self.left == 0:
            self.in_transaction.clear()
        self.left -= 1
        return super().verify(*args, **more)


async def test_P4_what_is_left_when_the_transaction_ends_is_refused(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 10)
        ending = Ending(verified=6)
        fixture.services.txn = ending  # type: ignore[assignment]
        ending.in_transaction |= {TopicPartition(TopicName("t"), n) for n in range(10)}
        client = await fixture.connect()
        sent = produce_of(*(batch(origin=txn(0)) for _ in range(10)), transactional_id="x")
        answered = await client.call(0, 9, sent)
        assert errors(answered) == [NONE] * 6 + [INVALID_TXN_STATE] * 4
        ends = [fixture.partition("t", n).log_end_offset for n in range(10)]
        assert ends == [1] * 6 + [0] * 4


async def test_KIP890_all_partitions_of_many_batches_are_added_at_once(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 10)
        fixture.txn.in_transaction.add(TopicPartition(TopicName("t"), 4))
        client = await fixture.connect()
        sent = produce_of(*(batch(origin=txn(0)) for _ in range(10)), transactional_id="x")
        answered = await client.call(0, 12, sent)
        assert errors(answered) == [NONE] * 10
        expected = [TopicPartition(TopicName("t"), n) for n in range(10) if n != 4]
        assert fixture.txn.added == expected


async def test_C12_two_producer_ids_among_many_batches_refuse_all(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 10)
        client = await fixture.connect()
        origins = [txn(0)] * 9 + [txn(0, producer_id=10)]
        sent = produce_of(*(batch(origin=each) for each in origins), transactional_id="x")
        answered = await client.call(0, 9, sent)
        assert errors(answered) == [INVALID_PRODUCER_ID_MAPPING] * 10
        assert {fixture.partition("t", n).log_end_offset for n in range(10)} == {0}


async def test_many_batches_with_acks_0_get_no_answer(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 10)
        client = await fixture.connect()
        client.send(0, 9, produce_of(*(batch() for _ in range(10)), acks=0))
        (row,) = (await client.call(0, 9, produce_of(batch()))).responses[0].partition_responses
        assert row.base_offset == 1


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_an_answer_in_pieces_pauses_after_so_many_rows(version: int) -> None:
    count = 4 * PIECE_ELEMENTS
    topics = [("t", [ProducedRow(n, 0, n) for n in range(count)])]
    pieces: Iterator[None] = answer_pieces(version, 1, topics)
    pauses = sum(1 for _ in pieces)
    assert pauses == 4


@pytest.mark.parametrize("version", [3, 8, 9, 12])
def test_INV_HW2_an_answer_in_pieces_is_joined_as_it_is_made(version: int) -> None:
    """Half a million small parts that are joined at the end took 70 ms in one step."""
    count = 4 * PIECE_ELEMENTS + 7
    topics = [("t", [ProducedRow(n, 0, n) for n in range(count)])]
    pieces = answer_pieces(version, 1, topics)
    for pauses, _ in enumerate(pieces, 1):
        assert len(getgeneratorlocals(pieces)["parts"]) == pauses
    rows = [{"index": n, "error_code": 0, "base_offset": n} for n in range(count)]
    fields = {"responses": [{"name": "t", "partition_responses": rows}]}
    assert drained(answer_pieces(version, 1, topics)) == encode_response(0, version, 1, fields)


@pytest.mark.parametrize("version", [3, 9])
def test_INV_HW2_topics_without_batches_are_answered_in_pieces_too(version: int) -> None:
    topics = [(f"t-{n}", list[ProducedRow]()) for n in range(2 * PIECE_ELEMENTS)]
    assert sum(1 for _ in answer_pieces(version, 1, topics)) == 2
