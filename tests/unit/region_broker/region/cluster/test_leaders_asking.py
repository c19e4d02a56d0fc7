"""What leaders that ask each other believe, and whom they ask: rule by rule, without a connection (ADR 53)."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from idempotency.identity import (
    LogKey,
    ProducerEpoch,
    ProducerId,
    SequenceNumber,
    TopicName,
    TopicPartition,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.handlers.dispatch.led_apart import AskedBatch, OpenHere, Question
from region_broker.region.cluster.leader_messages import (
    AbortOpen,
    LedLog,
    SentBatch,
    SentOpen,
    SentQuestion,
    VerifiedTransactions,
    VerifyTransactions,
)
from region_broker.region.cluster.txn_answering import AnsweringParts, TransactionsAnswered
from region_broker.region.cluster.txn_asking import TransactionsAsked
from region_broker.region.peers.protocol import PeerRefused, PeerUnreachable
from tests.fixtures.cluster_images import leader_epoch, member
from tests.fixtures.node_logs import TOPIC_ID
from tests.fixtures.played_spread import (
    MAIN_EPOCH,
    BegunLines,
    gathered,
    group_epoch,
    partitions_of,
    spread_region,
)
from txn_coordinator.connection_order import Sender
from txn_coordinator.verdicts import TxnVerdict

LOADING = [TxnVerdict.LOADING]
PAIR = ProducerId(7), ProducerEpoch(0)
CLIENT = Sender(0, 5, 5)


class Asker:
    """Node 2, which leads data group 1."""

    def __init__(self) -> None:
        self.image = spread_region(TOPIC_ID)
        self.lines = BegunLines()
        self.side = TransactionsAsked(lambda: self.image, cast("Any", self.lines), 72)
        (self.partition,) = partitions_of(self.image, TOPIC_ID, 1)

    def sees(self, image: MetadataImage) -> None:
        self.image = image
        self.side.take_image(image)

    def verify(
        self, *, adds: bool, batches: int = 1, sender: Sender = CLIENT
    ) -> asyncio.Future[Sequence[TxnVerdict]]:
        key = LogKey(TOPIC_ID, self.partition)
        asked = AskedBatch(key, group_epoch(1), SequenceNumber(0))
        found: Awaitable[Sequence[TxnVerdict]] = self.side.verify(
            Question("t", *PAIR, adds, sender, (asked,) * batches)
        )
        assert isinstance(found, asyncio.Future)
        return found

    def answers(self, *verdicts: tuple[str, ...], message: int = 0) -> None:
        self.lines.begun[message][2](VerifiedTransactions(verdicts=verdicts))


async def test_INV_AVT1_INV_AVT2_a_verdict_asked_under_another_spread_is_none() -> None:
    """A snapshot brings the next spread without the election between: leaders were never seen gathered."""
    some = Asker()
    waiting = some.verify(adds=True)
    main = some.image.leadership
    assert main is not None
    some.sees(replace(some.image, leadership=replace(main, leader_epoch=leader_epoch(50))))
    assert waiting.done(), "INV-AVT2"
    some.answers(("OK",))
    assert waiting.result() == LOADING, "INV-AVT1"


async def test_INV_AVT2_an_image_under_which_the_same_node_leads_ends_no_question() -> None:
    some = Asker()
    waiting = some.verify(adds=True)
    some.sees(replace(some.image, version=some.image.version + 1))
    assert not waiting.done()
    some.answers(("OK",))
    assert waiting.result() == [TxnVerdict.OK]


async def test_INV_AVT2_where_nobody_leads_the_main_group_nobody_is_asked() -> None:
    """Data groups go on then (INV-RGR10)."""
    some = Asker()
    main = some.image.leadership
    assert main is not None
    some.sees(replace(some.image, leadership=replace(main, leader=None)))
    assert some.verify(adds=True).result() == LOADING
    assert some.verify(adds=False).result() == LOADING
    await asyncio.sleep(0)
    assert not some.lines.begun


async def test_INV_AVT4_whose_producer_it_is_is_known_from_an_answer_that_says_so() -> None:
    some = Asker()
    waiting = some.verify(adds=True)
    assert not some.side.is_of("t", PAIR[0])
    some.answers(("NOT_IN_TRANSACTION",))
    assert waiting.result() == [TxnVerdict.NOT_IN_TRANSACTION]
    assert not some.side.is_of("t", PAIR[0])
    again = some.verify(adds=True)
    some.answers(("OK",), message=1)
    assert again.result() == [TxnVerdict.OK]
    assert some.side.is_of("t", PAIR[0])
    assert not some.side.is_of("u", PAIR[0])
    assert not some.side.is_of("t", ProducerId(8))


async def test_INV_AVT4_of_so_many_producers_it_is_known_and_the_latest_stay(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("region_broker.region.cluster.txn_asking.OWNERS_KNOWN_MAX", 2)
    some = Asker()
    key = LogKey(TOPIC_ID, some.partition)
    asked = AskedBatch(key, group_epoch(1), SequenceNumber(0))
    for number, producer in enumerate((1, 2, 1, 3)):
        question = Question(f"t{producer}", ProducerId(producer), ProducerEpoch(0), True, CLIENT, (asked,))  # fmt: skip
        waiting = some.side.verify(question)
        some.answers(("OK",), message=number)
        assert await waiting == [TxnVerdict.OK]
    assert [some.side.is_of(f"t{n}", ProducerId(n)) for n in (1, 2, 3)] == [True, False, True]


async def test_INV_AVT3_what_adds_partitions_is_a_message_of_its_own() -> None:
    some = Asker()
    first, adding, last = (some.verify(adds=adds) for adds in (False, True, False))
    await asyncio.sleep(0)
    sizes = [
        [question.adds for question in message.questions] for _, message, _ in some.lines.begun
    ]
    assert sizes == [[True], [False, False]]
    some.answers(("OK",), ("NOT_IN_TRANSACTION",), message=1)
    assert (first.result(), last.result()) == ([TxnVerdict.OK], [TxnVerdict.NOT_IN_TRANSACTION])
    assert not adding.done()


async def test_INV_AVT2_what_a_leader_that_is_deposed_in_this_turn_was_to_be_asked_is_not_sent() -> (
    None
):
    some = Asker()
    waiting = some.verify(adds=False)
    main = some.image.leadership
    assert main is not None
    some.sees(replace(some.image, leadership=replace(main, leader_epoch=leader_epoch(50))))
    assert waiting.result() == LOADING
    await asyncio.sleep(0)
    assert not some.lines.begun


@pytest.mark.parametrize(
    "answer",
    [
        VerifiedTransactions(verdicts=()),
        VerifiedTransactions(verdicts=(("OK",), ("OK", "OK"))),
        VerifiedTransactions(verdicts=(("OK",),)),
        PeerUnreachable("it broke", sent=True),
    ],
    ids=["nothing", "of two questions", "of one batch", "nobody"],
)
async def test_an_answer_that_does_not_fit_what_was_asked_is_none(answer: object) -> None:
    some = Asker()
    waiting = some.verify(adds=True, batches=2)
    some.lines.begun[0][2](answer)
    assert waiting.result() == LOADING * 2


async def test_a_verdict_that_is_not_known_here_is_asked_for_again() -> None:
    some = Asker()
    waiting = some.verify(adds=True)
    some.answers(("OF_A_LATER_VERSION",))
    assert waiting.result() == LOADING


async def test_INV_TO3_connections_are_compared_under_the_listener_that_counted_them() -> None:
    some = Asker()
    waiting = [some.verify(adds=True, sender=each) for each in (Sender(0, 5, 6), Sender(31, 8, 9))]
    assert not any(each.done() for each in waiting)
    sent = [message.questions[0] for _, message, _ in some.lines.begun]
    assert [(each.origin, each.connection, each.newest_connection) for each in sent] == [
        (72, 5, 6),
        (31, 8, 9),
    ]


@pytest.mark.parametrize(
    "error", [PeerRefused("not-leading", "another one"), PeerUnreachable("it broke", sent=True)]
)
async def test_B13_an_abort_that_nobody_decides_is_to_be_ordered_again(error: Exception) -> None:
    some = Asker()

    async def fails(*_: object) -> None:
        raise error

    some.lines.call = fails
    here = [OpenHere(LogKey(TOPIC_ID, some.partition), group_epoch(1), 0, 1)]
    assert await some.side.abort_producer(*PAIR, here) is TxnVerdict.NOT_COORDINATOR
    some.sees(gathered(some.image, 3))
    some.lines.call = None
    assert await some.side.abort_producer(*PAIR, here) is TxnVerdict.NOT_COORDINATOR, "nobody asked"


# --- the answer ----------------------------------------------------------------------------------


class Coordinator:
    """`TransactionService` of a coordinator that says what it is told to; `begins`: called as partitions are being added."""

    def __init__(self) -> None:
        self.verdicts: dict[TopicPartition, TxnVerdict] = {}
        self.added: list[TopicPartition] = []
        self.refuses = TxnVerdict.OK
        self.begins: Callable[[], None] = lambda: None

    def verify(
        self, _name: object, _id: object, _epoch: object, tp: TopicPartition, _arrival: object = None
    ) -> TxnVerdict:  # fmt: skip
        return self.verdicts.get(tp, TxnVerdict.NOT_IN_TRANSACTION)

    async def add_partitions(
        self, _name: object, _id: object, _epoch: object, missing: Sequence[TopicPartition], *, implicit: bool
    ) -> TxnVerdict:  # fmt: skip
        assert implicit
        self.begins()
        if self.refuses is TxnVerdict.OK:
            self.added += missing
            self.verdicts |= dict.fromkeys(missing, TxnVerdict.OK)
        return self.refuses

    async def abort_open(self, *_: object) -> TxnVerdict:
        return TxnVerdict.OK


class Answerer:
    """Node 1, which leads the main group; node 2, which leads data group 1, asks. Partitions by the group that they are in."""

    def __init__(self) -> None:
        topic = TopicImage(topic_id=TOPIC_ID, name="orders", partition_count=30)
        self.image = replace(spread_region(TOPIC_ID), topics={"orders": topic})
        self.acts = True
        self.clients = Coordinator()
        self.side = TransactionsAnswered(
            AnsweringParts(
                me=member(1), image=lambda: self.image, acts=lambda: self.acts, clients=cast("Any", self.clients),
                desk=cast("Any", self.clients),
            )
        )  # fmt: skip
        spread = self.image.spread
        assert spread is not None
        numbers = [n for n in range(30) if spread.group_of(LogKey(TOPIC_ID, n)) == 1]
        self.first, self.second = numbers[:2]

    def log(self, number: int, *, topic_id: UUID = TOPIC_ID, election: int = 0) -> LedLog:
        return LedLog(topic_id, number, group_epoch(1, election))

    async def verifies(self, *logs: LedLog, adds: bool) -> tuple[str, ...]:
        batches = tuple(SentBatch(log, SequenceNumber(0)) for log in logs)
        question = SentQuestion("t", *PAIR, adds, 72, 5, 5, batches)
        message = VerifyTransactions(main_epoch=MAIN_EPOCH, questions=(question,))
        answer = await self.side._on_verify(session_of(2), message, memoryview(b""))
        (found,) = answer.verdicts
        return found

    async def aborts(self, *logs: LedLog) -> str:
        message = AbortOpen(
            main_epoch=MAIN_EPOCH, producer_id=PAIR[0], producer_epoch=PAIR[1],
            still_open=tuple(SentOpen(log, 0, 1) for log in logs),
        )  # fmt: skip
        return (await self.side._on_abort(session_of(2), message, memoryview(b""))).verdict


def session_of(node_id: int) -> Any:
    return SimpleNamespace(member=member(node_id))


def tp(number: int) -> TopicPartition:
    return TopicPartition(TopicName("orders"), number)


@pytest.mark.parametrize("adds", [False, True])
async def test_INV_ATA1_each_log_has_a_verdict_and_one_that_the_asker_does_not_lead_none(
    adds: bool,
) -> None:
    some = Answerer()
    some.clients.verdicts[tp(some.first)] = TxnVerdict.OK
    some.clients.verdicts[tp(some.second)] = TxnVerdict.OK
    older = some.log(some.second, election=1)
    unknown = some.log(some.first, topic_id=UUID(int=99))
    found = await some.verifies(some.log(some.first), older, unknown, adds=adds)
    assert found == ("OK", "LOADING", "LOADING")
    assert some.clients.added == []


async def test_INV_ATA2_only_what_is_missing_is_added_and_nothing_that_another_node_leads() -> None:
    some = Answerer()
    some.clients.verdicts[tp(some.first)] = TxnVerdict.OK
    logs = some.log(some.first), some.log(some.second), some.log(some.first, election=1)
    assert await some.verifies(*logs, adds=True) == ("OK", "OK", "LOADING")
    assert some.clients.added == [tp(some.second)]


async def test_INV_ATA2_what_adds_and_names_no_transaction_is_refused() -> None:
    """By a rule that is broken the node that is asked would end, and not the one that asks."""
    some = Answerer()
    question = SentQuestion(None, *PAIR, True, 72, 5, 5, (SentBatch(some.log(some.first), SequenceNumber(0)),))  # fmt: skip
    message = VerifyTransactions(main_epoch=MAIN_EPOCH, questions=(question,))
    with pytest.raises(PeerRefused, match="names its transaction"):
        await some.side._on_verify(session_of(2), message, memoryview(b""))


async def test_INV_ATA2_what_could_not_be_added_is_told_of_it_alone() -> None:
    some = Answerer()
    some.clients.verdicts[tp(some.first)] = TxnVerdict.OK
    some.clients.refuses = TxnVerdict.CONCURRENT
    logs = some.log(some.first), some.log(some.second), some.log(some.first, election=1)
    assert await some.verifies(*logs, adds=True) == ("OK", "CONCURRENT", "LOADING")


@pytest.mark.parametrize("closes", [False, True], ids=["deposed", "gate closed"])
async def test_INV_ATA1_who_is_deposed_while_it_adds_partitions_does_not_answer(
    closes: bool,
) -> None:
    some = Answerer()

    def deposed() -> None:
        if closes:
            some.acts = False
        else:
            some.image = gathered(some.image, 3)

    some.clients.begins = deposed
    with pytest.raises(PeerRefused, match="main group"):
        await some.verifies(some.log(some.first), adds=True)


async def test_INV_ATA1_an_abort_is_decided_where_the_asker_leads_all_that_it_names() -> None:
    some = Answerer()
    assert await some.aborts(some.log(some.first)) == "OK"
    logs = some.log(some.first), some.log(some.second, election=1)
    assert await some.aborts(*logs) == "NOT_COORDINATOR"
    some.acts = False
    with pytest.raises(PeerRefused, match="main group"):
        await some.aborts(some.log(some.first))
