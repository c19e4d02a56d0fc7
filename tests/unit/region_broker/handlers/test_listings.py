"""Answers that list all that there is: few are made at once, and none without room for it (INV-HD10)."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.registry import Api, ApiTable, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import LISTINGS_AT_ONCE_MAX, SMALL_LISTING_BYTES, YIELD_ROWS
from region_broker.security.access import Operation, ResourceType
from region_broker.wire import cooperative_yield
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.memory_budget import Share
from tests.fixtures.judged_apis import acl, judged_apis
from tests.fixtures.kafka_port import frame_of, wire_fixture
from tests.fixtures.waiting import until

LIST_GROUPS, METADATA = 16, 3


class Listing:
    """A handler that lists once `gate` is open, and knows how many do so at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def handle(self, _ctx: RequestContext, _request: Any) -> Fields:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        return {"error_code": 0, "groups": []}


def incoming(number: int) -> Incoming:
    frame = frame_of(LIST_GROUPS, 5, {"states_filter": [], "types_filter": []})
    return Incoming(Peer(number, "10.0.0.1:5"), memoryview(frame), LIST_GROUPS, 5, number)


async def test_INV_HD10_few_listings_are_made_at_once(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        listing = Listing()
        api = Api(LIST_GROUPS, "ListGroups", range(6), listing.handle, lists=always)
        dispatcher = Dispatcher(fixture.services, ApiTable.of(api))
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            answers = [
                tasks.create_task(dispatcher.answer(incoming(number)))
                for number in range(3 * LISTINGS_AT_ONCE_MAX)
            ]
            await until(lambda: listing.at_once == LISTINGS_AT_ONCE_MAX)
            listing.gate.set()
        assert all(answer.result() for answer in answers)
        assert listing.most_at_once == LISTINGS_AT_ONCE_MAX


NAMED = {"topics": [{"topic_id": None, "name": "t"}]}
NAMED_LARGELY = {"topics": [{"topic_id": None, "name": "t" * 200}] * (SMALL_LISTING_BYTES // 200)}
REST = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


@pytest.mark.parametrize("asked", [{"topics": None}, NAMED_LARGELY], ids=["all", "many"])
async def test_INV_HD10_without_memory_nothing_is_listed_and_few_topics_are_told(
    tmp_path: Path, asked: dict[str, Any]
) -> None:
    """A client that asks for its topics is served whatever others list."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        memory, filler = fixture.services.memory, Share()
        memory.hold(filler, memory.left_bytes)
        greedy, client = await fixture.connect(), await fixture.connect()
        greedy.send(METADATA, 12, {**asked, **REST})
        for _ in range(3):  # which would be answered behind it
            (topic,) = (await client.call(METADATA, 12, {**NAMED, **REST})).topics
            assert topic.error_code == 0
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waiting = tasks.create_task(greedy.receive(METADATA, 12))
            await asyncio.sleep(0.01)
            assert not waiting.done()
            memory.hold(filler, 0)


async def test_INV_HD10_a_description_of_few_topics_waits_for_none(tmp_path: Path) -> None:
    """As Java's AdminClient asks for a topic (describeTopics)."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        memory = fixture.services.memory
        memory.hold(Share(), memory.left_bytes)
        client = await fixture.connect()
        asked = {"topics": [{"name": "t"}], "response_partition_limit": 2_000, "cursor": None}
        (topic,) = (await asyncio.wait_for(client.call(75, 0, asked), 10)).topics
        assert topic.error_code == 0


@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [
        (METADATA, 12, {"topics": None, **REST, "include_topic_authorized_operations": True}),
        (75, 0, {"topics": [], "response_partition_limit": 2_000, "cursor": None}),
    ],
    ids=["Metadata", "DescribeTopicPartitions"],
)
async def test_INV_HW2_to_judge_all_that_may_be_done_with_a_topic_is_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: int, version: int, asked: dict[str, Any]
) -> None:
    """Eight decisions of 26 us each: 200 topics in one step held the loop for 40 ms."""
    async with judged_apis(tmp_path) as judged:
        for number in range(50):
            await judged.wire.topic(f"t{number}")
        judged.give(acl(ResourceType.TOPIC, Operation.DESCRIBE, name="*"))
        steps = 0

        async def counted() -> None:
            nonlocal steps
            steps += 1
            await asyncio.sleep(0)

        monkeypatch.setattr(cooperative_yield, "give_way", counted)
        answer = await judged.ask(key, version, asked)
        assert len(answer.topics) >= 50
        assert steps >= 50 * 20 // YIELD_ROWS
