"""The markers of leaders that are spread: which confirmation is believed, and what is written for whom, without a connection (ADR 53)."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from msgspec.structs import replace

from idempotency.decision import DecisionId
from idempotency.identity import (
    CoordinatorEpoch,
    LogKey,
    ProducerEpoch,
    ProducerId,
    Round,
    TopicName,
    TopicPartition,
)
from region_broker.controller.metadata_image import TopicImage
from region_broker.region.cluster.leader_messages import (
    LedLog,
    SentMarker,
    WriteMarkers,
    WrittenMarkers,
)
from region_broker.region.cluster.marker_sending import MarkerSending, SendingParts
from region_broker.region.cluster.marker_taking import MarkerTaking, TakingParts
from tests.fixtures.cluster_images import member
from tests.fixtures.node_logs import TOPIC_ID, fixture
from tests.fixtures.played_spread import (
    MAIN_EPOCH,
    BegunLines,
    PlayedGroups,
    elected,
    gathered,
    group_epoch,
    partitions_of,
    spread_region,
)
from txn_coordinator.ports import MarkerOrder, MarkerResult

PAIR = ProducerId(7), ProducerEpoch(0)


def session_of(node_id: int) -> Any:
    return SimpleNamespace(member=member(node_id))


def tp(number: int) -> TopicPartition:
    return TopicPartition(TopicName("orders"), number)


@dataclass
class Told:
    """A listener; and the markers of one log, as `MarkersOfALog`."""

    partition: int
    count: int = 1
    closed: bool = False
    results: list[MarkerResult] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.tp, self.key = tp(self.partition), LogKey(TOPIC_ID, self.partition)
        self.orders = [order(self, self.tp, number) for number in range(self.count)]

    def marked(self, _order: MarkerOrder, _tp: TopicPartition, result: MarkerResult) -> None:
        self.results.append(result)


def order(listener: Told, to: TopicPartition, number: int) -> MarkerOrder:
    decision = DecisionId(0, MAIN_EPOCH, number, Round(1))
    return MarkerOrder(
        transactional_id="t", partitions=(to,), producer_id=PAIR[0], producer_epoch=PAIR[1], commit=True,
        coordinator_epoch=CoordinatorEpoch(1), decision=decision, listener=listener,
    )  # fmt: skip


class Owing:
    """Node 1, the leader of the main group, which owes markers."""

    def __init__(self) -> None:
        self.image = spread_region(TOPIC_ID)
        self.lines = BegunLines()
        self.noted: list[tuple[int, int]] = []
        self.side = MarkerSending(
            SendingParts(
                me=member(1), image=lambda: self.image, lines=cast("Any", self.lines),
                note=lambda key, end: self.noted.append((key.partition, end)),
            )
        )  # fmt: skip
        ((self.at_two,), (self.at_three,)) = (partitions_of(self.image, TOPIC_ID, group) for group in (1, 2))  # fmt: skip

    def answers(self, *results: tuple[tuple[str, int], ...], message: int = 0) -> None:
        self.lines.begun[message][2](WrittenMarkers(results=results))


async def test_INV_AMK2_what_is_confirmed_is_noted_and_nothing_else() -> None:
    some = Owing()
    told = Told(some.at_two, count=4)
    some.side.write([told])
    some.answers((("DONE", 8),), (("RETRY", 9),), (("OF_A_LATER_VERSION", 10),))
    assert some.noted == [(some.at_two, 8)]
    assert told.results == [MarkerResult.DONE] + [MarkerResult.RETRY] * 3, "each once (INV-AMK1)"
    assert not some.side._under_way


async def test_INV_AMK1_who_leads_the_main_group_no_more_believes_no_confirmation() -> None:
    """The node is fenced, and nobody is elected yet: data groups go on (INV-RGR10)."""
    some = Owing()
    told = Told(some.at_two)
    some.side.write([told])
    main = some.image.leadership
    assert main is not None
    some.image = replace(some.image, leadership=replace(main, leader=None))
    some.answers((("DONE", 8),))
    assert (some.noted, told.results) == ([], [MarkerResult.RETRY])


async def test_INV_AMK4_INV_AMK1_an_election_ends_the_wait_for_that_groups_logs_alone() -> None:
    some = Owing()
    two, three = Told(some.at_two), Told(some.at_three)
    some.side.write([two, three])
    some.image = elected(some.image, 1, 3, 1)
    some.side.take_image(some.image)
    assert (two.results, three.results) == ([MarkerResult.RETRY], [])
    some.answers((("DONE", 8),))
    some.answers((("DONE", 9),), message=1)
    assert (two.results, three.results) == ([MarkerResult.RETRY], [MarkerResult.DONE])
    assert some.noted == [(some.at_three, 9)]


@pytest.mark.parametrize("is_spread", [False, True], ids=["gathered", "nobody leads the group"])
async def test_INV_AMK1_where_nobody_is_to_be_asked_it_is_tried_again_in_a_turn_of_its_own(
    is_spread: bool,
) -> None:
    some = Owing()
    some.image = elected(some.image, 1, None, 1) if is_spread else gathered(some.image, 3)
    told = Told(some.at_two, count=2)
    some.side.write([told])
    assert told.results == []
    await asyncio.sleep(0)
    assert told.results == [MarkerResult.RETRY] * 2
    assert not some.lines.begun


async def test_INV_AMK3_what_is_owed_to_one_node_is_one_message_in_the_order_of_its_decisions() -> (
    None
):
    some = Owing()
    some.image = elected(some.image, 2, 2, 1)
    first, second = Told(some.at_two, count=2), Told(some.at_three)
    second.orders = [first.orders[1]]
    some.side.write([first, second])
    ((to, message, _),) = some.lines.begun
    assert to == member(2)
    assert [log.leader_epoch for log in message.logs] == [group_epoch(1), group_epoch(2, 1)]
    assert [(sent.decision.offset, sent.logs) for sent in message.markers] == [(0, (0,)), (1, (0, 1))]  # fmt: skip


# --- and who writes them -------------------------------------------------------------------------


class Writing:
    """Node 2, which leads data group 1 and writes what it is sent; each marker is below HW at once."""

    def __init__(self) -> None:
        self.some = fixture(partition_count=3)
        topic = TopicImage(topic_id=TOPIC_ID, name="orders", partition_count=3)
        self.image = replace(spread_region(TOPIC_ID), topics={"orders": topic})
        (self.partition,) = partitions_of(self.image, TOPIC_ID, 1)
        self.groups = PlayedGroups(member(2), self.image)
        self.written: list[tuple[TopicPartition, ...]] = []
        self.side = MarkerTaking(
            TakingParts(
                image=lambda: self.image, partitions=self.some.table, leads_under=self.groups.leads_under,
                write=self._write,
            )
        )  # fmt: skip

    def _write(self, orders: Sequence[MarkerOrder]) -> None:
        for each in orders:
            self.written.append(each.partitions)
            for to in each.partitions:
                each.listener.marked(each, to, MarkerResult.DONE)

    async def takes(self, logs: Sequence[LedLog], *numbers: int) -> tuple[tuple[str, int], ...]:
        marker = SentMarker("t", *PAIR, True, CoordinatorEpoch(1), DecisionId(0, MAIN_EPOCH, 0, Round(1)), True, numbers)  # fmt: skip
        message = WriteMarkers(main_epoch=MAIN_EPOCH, logs=tuple(logs), markers=(marker,))
        answer = await self.side._on_write(session_of(1), message, memoryview(b""))
        (found,) = answer.results
        return found


async def test_INV_AMT1_a_marker_goes_into_what_is_led_here_under_that_leader_epoch_and_nowhere_else() -> (
    None
):
    some = Writing()
    led = LedLog(TOPIC_ID, some.partition, group_epoch(1))
    older = LedLog(TOPIC_ID, some.partition, group_epoch(1, 1))
    unknown = LedLog(UUID(int=99), some.partition, group_epoch(1))
    retry = "RETRY", -1
    hw = some.some.partitions[some.partition].high_watermark
    assert await some.takes((led, older, unknown), 0, 1, 2) == (("DONE", hw), retry, retry)
    assert some.written == [(tp(some.partition),)]


@pytest.mark.parametrize("number", [1, -1, 77])
async def test_a_log_that_the_message_does_not_have_is_none(number: int) -> None:
    some = Writing()
    led = LedLog(TOPIC_ID, some.partition, group_epoch(1))
    assert await some.takes((led,), number) == (("RETRY", -1),)
    assert some.written == [()]
