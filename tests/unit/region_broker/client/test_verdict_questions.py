"""Whose word a client takes on its transaction, and what it asks with (INV-CP30 to INV-CP32, INV-CP40).

Played: what regions answer over HTTP, and librdkafka's producer. That a region's own answer is right: `http_api/test_verdicts`.
"""

import asyncio
import gc
import weakref
from collections.abc import Callable
from http.client import BadStatusLine, IncompleteRead
from types import SimpleNamespace
from typing import Any, cast
from urllib.parse import parse_qs, urlsplit

import pytest
from confluent_kafka import KafkaError, KafkaException

from idempotency.identity import ProducerEpoch, ProducerId, RegionEpoch
from region_broker.client import (
    OutcomeUnknown,
    Position,
    Refused,
    Timeouts,
    Transaction,
    TransactionalProducer,
    Unreachable,
    Verdict,
    VerdictClient,
    WrittenBy,
    transactional_producer,
    verdicts,
)
from region_broker.client.verdicts import Standing
from tests.unit.region_broker.client.test_sending import PlayedProducer

GIVEN, SWITCHED, LATER = RegionEpoch(8), RegionEpoch(16), RegionEpoch(25)
PAIR = (ProducerId(70), ProducerEpoch(2))
AT = Position("orders", 0, 3)
TIMED_OUT = KafkaException(KafkaError(KafkaError._TIMED_OUT))


class Answers:
    """Regions by address: under which region epoch each acts, and the verdict that all of them give."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.acting: dict[str, int] = {"http://eu": GIVEN}
        self.given: dict[str, Any] = {"verdict": "lost", "why": "", "by_producer": True}
        self.asked: list[dict[str, str]] = []
        self.problem: Exception | None = None
        """Met by each question but which region acts."""
        self.broken: dict[str, Exception] = {}
        """What becomes of the answers of an address."""
        self.refused: list[Exception] = []
        """Of the questions that come, the first are answered so."""
        monkeypatch.setattr(verdicts, "_get", self._get)

    def _get(self, url: str, path: str, _timeout_s: float, _security: object) -> dict[str, Any]:
        if url in self.broken:
            raise self.broken[url]
        if url not in self.acting:
            raise OSError("it is silent")
        if path == "/v1/region":
            return {"acting": True, "region_epoch": self.acting[url]}
        if self.problem is not None:
            raise self.problem
        query = parse_qs(urlsplit(path).query)
        self.asked.append({name: value for name, (value,) in query.items()} | {"at": url})
        if self.refused:
            raise self.refused.pop(0)
        return self.given


@pytest.fixture
def answers(monkeypatch: pytest.MonkeyPatch) -> Answers:
    return Answers(monkeypatch)


async def test_INV_CP30_a_region_that_was_cut_off_is_not_believed_where_it_is_all_that_answers(
    answers: Answers,
) -> None:
    client = VerdictClient("http://eu,http://us")
    assert await client.region_epoch() == GIVEN
    answers.acting["http://us"] = LATER
    assert await client.region_epoch() == LATER
    del answers.acting["http://us"]
    assert await client.region_epoch() is None
    with pytest.raises(Unreachable, match="under region epoch 8, and 25 has acted since"):
        await client.ask_of(AT, WrittenBy(GIVEN, PAIR))
    assert not answers.asked
    answers.acting["http://us"] = LATER
    assert await client.ask_of(AT, WrittenBy(GIVEN, PAIR)) is Verdict.LOST
    assert [each["at"] for each in answers.asked] == ["http://us"]


async def test_INV_CP31_what_a_region_calls_lost_of_a_pair_is_believed(answers: Answers) -> None:
    client = VerdictClient("http://eu")
    assert await client.ask_of(AT, WrittenBy(GIVEN, PAIR)) is Verdict.LOST
    (asked,) = answers.asked
    assert (asked["region_epoch"], asked["producer_id"], asked["producer_epoch"]) == (
        "8",
        "70",
        "2",
    )
    assert (asked["topic"], asked["partition"], asked["offset"]) == ("orders", "0", "3")


async def test_INV_CP31_what_is_lost_by_a_region_epoch_alone_is_not_known(answers: Answers) -> None:
    """A region of an older version does not look at the pair."""
    client = VerdictClient("http://eu")
    del answers.given["by_producer"]
    with pytest.raises(Refused, match="older version"):
        await client.ask_of(AT, WrittenBy(GIVEN, PAIR))
    for word in (Verdict.COMMITTED, Verdict.ABORTED, Verdict.OPEN):
        answers.given["verdict"] = word.value
        assert await client.ask_of(AT, WrittenBy(GIVEN, PAIR)) is word
    answers.given["verdict"] = "lost"
    assert await client.ask(AT, GIVEN) is Verdict.LOST, "who asks so says what it was written under"


@pytest.mark.parametrize("written_by", [WrittenBy(), WrittenBy(GIVEN)])
async def test_INV_CP31_of_a_writer_that_nobody_knows_nothing_is_told(
    answers: Answers, written_by: WrittenBy
) -> None:
    """Nor that it is committed: another's record may lie there."""
    with pytest.raises(Refused, match="may it Describe its transactional id"):
        await VerdictClient("http://eu").ask_of(AT, written_by)
    assert not answers.asked


@pytest.mark.parametrize("status", [400, 401, 403, 404, 410, 409, 429, 500, 503])
async def test_INV_CP39_what_would_be_answered_so_again_is_refused_and_all_else_may_be_asked_again(
    answers: Answers, status: int
) -> None:
    is_final = status in {400, 401, 403, 404, 410}
    answers.problem = verdicts._Problem(status, b"")
    client = VerdictClient("http://eu")
    for _ in range(2):
        with pytest.raises(Refused if is_final else Unreachable):
            await client.ask_of(AT, WrittenBy(GIVEN, PAIR))
        with pytest.raises(Refused if is_final else Unreachable):
            await client.standing("t")


@pytest.mark.parametrize("broken", [IncompleteRead(b"{"), BadStatusLine("nonsense")])
async def test_INV_CP39_an_answer_that_breaks_off_is_none_and_another_region_is_heard(
    answers: Answers, broken: Exception
) -> None:
    client = VerdictClient("http://eu,http://us")
    answers.broken["http://us"] = broken
    assert await client.ask_of(AT, WrittenBy(GIVEN, PAIR)) is Verdict.LOST
    answers.problem = broken
    for question in (client.ask_of(AT, WrittenBy(GIVEN, PAIR)), client.standing("t")):
        with pytest.raises(Unreachable):
            await question
    answers.broken["http://eu"] = broken
    assert await client.region_epoch() is None


@pytest.mark.parametrize("budget_s", [3.0, 0.5])
async def test_INV_CP40_a_region_that_says_when_to_ask_again_is_asked_again_within_the_time_limit(
    answers: Answers, monkeypatch: pytest.MonkeyPatch, budget_s: float
) -> None:
    slept, now_s = list[float](), 0.0

    async def sleep(for_s: float) -> None:
        nonlocal now_s
        slept.append(for_s)
        now_s += for_s

    monkeypatch.setattr(verdicts, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(verdicts, "time", SimpleNamespace(monotonic=lambda: now_s))
    client = VerdictClient("http://eu", timeout_s=budget_s)
    answers.refused = [_full(), _full()]
    if budget_s < 1:
        with pytest.raises(Unreachable, match="too many"):
            await client.ask_of(AT, WrittenBy(GIVEN, PAIR))
        assert (slept, len(answers.asked)) == ([], 1)
        return
    assert await client.ask_of(AT, WrittenBy(GIVEN, PAIR)) is Verdict.LOST
    assert (slept, len(answers.asked)) == ([1, 1], 3)
    answers.refused = [_full() for _ in range(9)]
    with pytest.raises(Unreachable, match="too many"):
        await client.ask_of(AT, WrittenBy(GIVEN, PAIR))
    assert (slept[2:], len(answers.refused)) == ([1, 1, 1], 5)


async def test_INV_CP40_what_says_nothing_of_asking_again_is_told_at_once(answers: Answers) -> None:
    answers.refused = [verdicts._Problem(503, b'{"detail": "moved", "code": "moved"}')]
    with pytest.raises(Unreachable, match="moved"):
        await VerdictClient("http://eu").ask_of(AT, WrittenBy(GIVEN, PAIR))
    assert len(answers.asked) == 1


@pytest.mark.parametrize(
    ("said", "wait_s"), [("1", 1), ("7", 7), ("0", 1), ("Wed, 21 Oct 2026 07:28:00 GMT", None), ("", None), (None, None)],
)  # fmt: skip
def test_INV_CP40_when_to_ask_again_is_said_in_seconds(
    said: str | None, wait_s: int | None
) -> None:
    assert verdicts._seconds_of(said) == wait_s


def _full() -> Exception:
    return verdicts._Problem(503, b'{"detail": "too many", "code": "too-many-questions"}', 1)


class Regions:
    """`VerdictClient` that gives each request for a producer id another pair, and notes what a verdict is asked with."""

    can_ask = True

    def __init__(self) -> None:
        self.acting = GIVEN
        self.given: Standing | None = None
        self.word = Verdict.OPEN
        self.asked: list[tuple[Position, WrittenBy]] = []

    async def region_epoch(self) -> RegionEpoch:
        return self.acting

    async def standing(self, _transactional_id: str) -> Standing | None:
        return self.given

    async def ask_of(self, position: Position, written_by: WrittenBy) -> Verdict:
        self.asked.append((position, written_by))
        return self.word


class FailingProducer(PlayedProducer):
    """One whose commit does `on_commit`."""

    on_commit: Callable[[], None] = staticmethod(lambda: None)

    def commit_transaction(self, *_timeout: float) -> None:
        self.on_commit()


class Writer:
    """A transactional producer, its regions, and librdkafka's producers."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.regions, self.kafka = Regions(), FailingProducer()
        monkeypatch.setattr(transactional_producer, "initialised", self._initialised)
        self.producer = TransactionalProducer(
            bootstrap="b", transactional_id="t", timeouts=Timeouts(recovery_s=0.000_001)
        )
        self.producer._verdicts = cast("VerdictClient", self.regions)

    def _initialised(self, *_asked: object) -> FailingProducer:
        acting = self.regions.acting
        pair = PAIR if self.regions.given is None else (ProducerId(acting), ProducerEpoch(0))
        self.regions.given = Standing("empty", *pair, acting)
        self.kafka.on_commit = lambda: None
        return self.kafka

    async def writes(self) -> Transaction:
        async with self.producer.transaction() as txn:
            await txn.send("orders", b"v")
        return txn

    async def loses_its_answer(self) -> tuple[Transaction, OutcomeUnknown]:
        """Write a transaction whose commit meets the loss of its region: another one acts by the time anybody asks."""

        def lost() -> None:
            self.regions.acting = LATER
            raise TIMED_OUT

        self.kafka.on_commit = lost
        with pytest.raises(OutcomeUnknown) as caught:
            async with self.producer.transaction() as txn:
                await txn.send("orders", b"v")
        return txn, caught.value


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    return Writer(monkeypatch)


async def test_INV_CP32_a_verdict_is_asked_of_who_wrote_it_and_not_of_who_writes_now(
    writer: Writer,
) -> None:
    async with writer.producer:
        await writer.writes()
        writer.regions.acting = SWITCHED  # nobody notices
        txn, unknown = await writer.loses_its_answer()
        (position,) = txn.positions
        of_it = (position, WrittenBy(GIVEN, PAIR))
        assert set(writer.regions.asked) == {of_it}
        assert str(of_it[1]) in str(unknown)
        assert writer.producer.region_epoch == LATER
        writer.regions.asked.clear()
        writer.regions.word = Verdict.COMMITTED
        for question in (txn, txn.positions):
            assert await writer.producer.verdict(question) is Verdict.COMMITTED
        assert writer.regions.asked == [of_it] * 2


async def test_INV_CP32_of_an_earlier_transaction_its_positions_alone_are_not_asked(
    writer: Writer,
) -> None:
    """What it wrote was lost, and the next one was written to the same place."""
    async with writer.producer:
        txn, _ = await writer.loses_its_answer()
        writer.kafka.written.clear()
        then = await writer.writes()
        assert then.positions == txn.positions
        writer.regions.asked.clear()
        with pytest.raises(Refused, match="give the transaction itself"):
            await writer.producer.verdict(txn.positions)
        await writer.producer.verdict(txn)
        await writer.producer.verdict(txn.positions, written_by=txn.written_by)
        await writer.producer.verdict(then.positions)
        by = [written_by.region_epoch for _, written_by in writer.regions.asked]
        assert by == [GIVEN, GIVEN, LATER]


async def test_INV_CP32_who_has_written_nothing_yet_is_not_asked_of_as_the_writer(
    writer: Writer,
) -> None:
    """1. A transaction is written; its process ends, and keeps where it lies. 2. It starts again, and is given another pair."""
    async with writer.producer:
        with pytest.raises(Refused, match="has begun no transaction yet"):
            await writer.producer.verdict([AT])
        assert not writer.regions.asked
        await writer.producer.verdict(positions=[AT], written_by=WrittenBy(GIVEN, PAIR))
        assert writer.regions.asked == [(AT, WrittenBy(GIVEN, PAIR))]


class Large(str):
    """A value that can be told to be gone."""

    __slots__ = ("__weakref__",)


async def test_INV_CP32_of_the_last_transaction_is_kept_where_it_lies_and_not_what_it_wrote(
    writer: Writer,
) -> None:
    """Nor is librdkafka's producer, which has its threads and sockets until the last reference to it goes."""
    kafka = weakref.ref(writer.kafka)
    async with writer.producer:
        async with writer.producer.transaction() as txn:
            await txn.send("orders", value := Large("v"))
        positions, large = txn.positions, weakref.ref(value)
        writer.kafka.written.clear()
        del txn, value
        gc.collect()
        assert large() is None
    del writer.kafka
    writer.producer._thread.shutdown(wait=True)
    gc.collect()
    assert kafka() is None
    await writer.producer.verdict(positions)
    assert writer.regions.asked == [(positions[0], WrittenBy(GIVEN, PAIR))], "it can still be asked"
