"""Answers that list all that there is: few are made at once, and none without room for it (INV-HD10)."""

import asyncio
import weakref
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import TopicName, TopicPartition
from region_broker.groups.coordinator import GroupCoordinator
from region_broker.groups.messages import FetchedOffset, FetchOutcome
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.dispatch import answer_budget, request_places
from region_broker.handlers.dispatch.answer_budget import described
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.listing_places import ListingPlaces
from region_broker.handlers.dispatch.registry import Api, ApiTable, Fields, always
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups import offset_fetch
from region_broker.handlers.groups.errors import COORDINATOR_NOT_AVAILABLE
from region_broker.limits import (
    ELEMENTS_AT_ONCE_MAX,
    FREE_HELD_BYTES,
    LISTINGS_AT_ONCE_MAX,
    SMALL_LISTING_BYTES,
    YIELD_ROWS,
)
from region_broker.security.access import Operation, ResourceType
from region_broker.wire import cooperative_yield
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.cooperative_yield import CooperativeYield
from region_broker.wire.memory_budget import Share
from region_broker.wire.server import CloseConnection
from tests.fixtures.judged_apis import acl, judged_apis
from tests.fixtures.kafka_port import frame_of, wire_fixture
from tests.fixtures.waiting import until
from tests.unit.region_broker.groups.fakes import MemoryLedger

LIST_GROUPS, METADATA, JOIN_GROUP = 16, 3, 11


class Listing:
    """A handler that lists once `gate` is open, and knows how many do so at once."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.at_once = self.most_at_once = 0

    async def handle(self, ctx: RequestContext, _request: Any) -> Fields:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        await self.gate.wait()
        self.at_once -= 1
        if ctx.api_key != LIST_GROUPS:
            return {"error_code": 0, "error_message": None, "entries": []}
        return {"error_code": 0, "groups": []}


def incoming(number: int, peer: Peer | None = None, *, states: Sequence[str] = ()) -> Incoming:
    frame = frame_of(LIST_GROUPS, 5, {"states_filter": states, "types_filter": []})
    peer = peer or Peer(number, "10.0.0.1:5")
    return Incoming(peer, memoryview(frame), LIST_GROUPS, 5, number)


MANY_STATES = ["s" * 20] * (SMALL_LISTING_BYTES // 20)
"""With which a request is too large to be read before it has its place."""
sizes = pytest.mark.parametrize("states", [(), MANY_STATES], ids=["small", "large"])


def list_groups(listing: Listing, *, forward: bool = False) -> Api:
    return Api(LIST_GROUPS, "ListGroups", range(6), listing.handle, lists=always, forward=forward)


def join(number: int, peer: Peer) -> Incoming:
    """Return a request that is read in pieces, so that what its connection sends behind it waits."""
    protocols = [{"name": f"p{at}", "metadata": b""} for at in range(ELEMENTS_AT_ONCE_MAX + 1)]
    frame = frame_of(JOIN_GROUP, 9, {
        "group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 60_000, "member_id": "", "group_instance_id": None,
        "protocol_type": "consumer", "protocols": protocols, "reason": None,
    })  # fmt: skip
    return Incoming(peer, memoryview(frame), JOIN_GROUP, 9, number)


@sizes
async def test_INV_HLP1_who_waits_for_the_order_of_its_connection_has_no_place(
    tmp_path: Path, states: Sequence[str]
) -> None:
    """1. A member waits for its group, for days if that likes. 2. Behind it, on each of some connections, comes a list."""
    async with wire_fixture(tmp_path) as fixture:
        listing, group, joined = Listing(), asyncio.Event(), 0
        listing.gate.set()

        async def wait_for_group(_ctx: RequestContext, _request: Any) -> bytes:
            nonlocal joined
            joined += 1
            await group.wait()
            return b""

        member = Api(JOIN_GROUP, "JoinGroup", range(10), wait_for_group, forward=True)
        dispatcher = Dispatcher(fixture.services, ApiTable.of(list_groups(listing), member))
        peers = [Peer(number, "10.0.0.1:5") for number in range(LISTINGS_AT_ONCE_MAX)]
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for peer in peers:
                tasks.create_task(dispatcher.answer(join(1, peer)))
            await until(lambda: joined == len(peers))
            behind = [tasks.create_task(dispatcher.answer(incoming(2, peer, states=states))) for peer in peers]  # fmt: skip
            await until(lambda: all(peer.state.starts_waiting for peer in peers))
            assert await dispatcher.answer(incoming(1))
            assert not any(each.done() for each in behind)
            group.set()
        assert all(each.result() for each in behind)


@sizes
async def test_INV_HLP1_what_another_region_makes_takes_no_place(
    tmp_path: Path, states: Sequence[str]
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        fixture.forwarder.may_leave = asyncio.Event()
        fixture.forwarder.answer = b"forwarded"
        own = Listing()
        own.gate.set()
        of_this_node = Api(48, "DescribeClientQuotas", range(2), own.handle, lists=always)
        table = ApiTable.of(list_groups(Listing(), forward=True), of_this_node)
        dispatcher = Dispatcher(fixture.services, table)
        asked_here = memoryview(frame_of(48, 1, {"components": (), "strict": False}))
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for number in range(LISTINGS_AT_ONCE_MAX):
                tasks.create_task(dispatcher.answer(incoming(number, states=states)))
            await until(lambda: len(fixture.forwarder.frames) == LISTINGS_AT_ONCE_MAX)
            assert await dispatcher.answer(Incoming(Peer(9, "::1:5"), asked_here, 48, 1, 1))
            fixture.forwarder.may_leave.set()


@sizes
async def test_INV_HLP1_who_waited_for_a_place_is_judged_as_things_are_by_then(
    tmp_path: Path, states: Sequence[str]
) -> None:
    """1. All places are taken, and one more waits. 2. Another region takes over."""
    async with wire_fixture(tmp_path) as fixture:
        fixture.forwarder.answer = b"forwarded"
        listing = Listing()
        dispatcher = Dispatcher(fixture.services, ApiTable.of(list_groups(listing, forward=True)))
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for number in range(LISTINGS_AT_ONCE_MAX):
                tasks.create_task(dispatcher.answer(incoming(number)))
            await until(lambda: listing.at_once == LISTINGS_AT_ONCE_MAX)
            late = tasks.create_task(dispatcher.answer(incoming(99, states=states)))
            for _ in range(20):
                await asyncio.sleep(0)
            assert not late.done()
            fixture.region.acting = False
            listing.gate.set()
        assert late.result() == b"forwarded"
        assert listing.most_at_once == LISTINGS_AT_ONCE_MAX


async def test_INV_HWE1_what_is_refused_keeps_its_place_until_the_thread_has_said_so(
    tmp_path: Path,
) -> None:
    """Requests that are decoded would gather before that thread."""
    async with wire_fixture(tmp_path) as fixture:
        services = fixture.services
        ctx = RequestContext(services, 1, LIST_GROUPS, 5, 77)
        ctx.is_large = True
        with ListingPlaces(services.memory, services.clock).of("ListGroups", "User:a") as place:
            ctx.listing = place
            await place.take()
            turn = services.turns.errors.turn("User:other")
            async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, turn:
                refused = tasks.create_task(error_for_all(ctx, None, 30, lambda *_: {}))
                for _ in range(20):
                    await asyncio.sleep(0)
                assert not refused.done()
                assert place.is_taken


@sizes
async def test_INV_HLP2_nobody_waits_for_a_place_for_ever(
    tmp_path: Path, states: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        listing = Listing()
        dispatcher = Dispatcher(fixture.services, ApiTable.of(list_groups(listing)))
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for number in range(LISTINGS_AT_ONCE_MAX):
                tasks.create_task(dispatcher.answer(incoming(number)))
            await until(lambda: listing.at_once == LISTINGS_AT_ONCE_MAX)
            monkeypatch.setattr(request_places, "WAIT_MS_MAX", 0)
            late = Peer(99, "10.0.0.1:5")
            with pytest.raises(CloseConnection, match="other lists were being made"):
                await dispatcher.answer(incoming(99, late, states=states))
            assert late.state.starts is None, "what comes behind it is not held up"
            listing.gate.set()
        assert await dispatcher.answer(incoming(100))


async def test_INV_HLP3_who_asks_once_is_not_behind_all_that_another_one_asks(
    tmp_path: Path,
) -> None:
    """1. One principal has all places, and asks for as many again. 2. Another one asks. 3. Places become free."""
    async with wire_fixture(tmp_path) as fixture:
        places = ListingPlaces(fixture.services.memory, fixture.services.clock)
        given: list[str] = []

        async def ask(who: str, until_s: asyncio.Event) -> None:
            with places.of("ListGroups", who) as place:
                await place.take()
                given.append(who)
                await until_s.wait()

        first, later = asyncio.Event(), asyncio.Event()
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for gate in [first] * LISTINGS_AT_ONCE_MAX + [later] * LISTINGS_AT_ONCE_MAX:
                tasks.create_task(ask("User:greedy", gate))
            tasks.create_task(ask("User:a", later))
            await until(lambda: len(given) == LISTINGS_AT_ONCE_MAX)
            first.set()
            await until(lambda: len(given) == 2 * LISTINGS_AT_ONCE_MAX)
            assert "User:a" in given[: LISTINGS_AT_ONCE_MAX + 2]
            later.set()
        assert len(given) == 2 * LISTINGS_AT_ONCE_MAX + 1


@pytest.mark.parametrize("leaves", [True, False], ids=["given one in that step", "given none"])
async def test_INV_HLP3_who_gives_up_takes_no_place_along(tmp_path: Path, *, leaves: bool) -> None:
    async with wire_fixture(tmp_path) as fixture:
        places = ListingPlaces(fixture.services.memory, fixture.services.clock)
        for _ in range(LISTINGS_AT_ONCE_MAX):
            await places.take("ListGroups", "User:a")
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            waits = tasks.create_task(places.take("ListGroups", "User:b"))
            await asyncio.sleep(0)
            if leaves:
                places.leave()
            waits.cancel()
        if not leaves:
            places.leave()
        async with asyncio.timeout(10):
            await places.take("ListGroups", "User:c")


class Row(dict[str, Any]):
    """One that a test sees go."""

    __slots__ = ("__weakref__",)


async def test_INV_AB3_what_is_large_is_made_anew_once_there_is_a_place_for_it(
    tmp_path: Path,
) -> None:
    """It would be held for as long as its client waits, and be counted for nobody."""
    async with wire_fixture(tmp_path) as fixture:
        made: list[weakref.ref[Row]] = []
        held_at_take: list[Row | None] = []

        class Watching:
            is_taken = False

            async def take(self) -> None:
                self.is_taken = True
                held_at_take.extend(each() for each in made)

            def leave(self) -> None:
                raise AssertionError

        async def describe(name: str, _yielding: CooperativeYield) -> Row:
            row = Row(text="x" * (FREE_HELD_BYTES if name == "large" else 1))
            made.append(weakref.ref(row))
            return row

        ctx = RequestContext(fixture.services, 1, LIST_GROUPS, 5, 77)
        ctx.listing = Watching()
        rows = await described(ctx, ["small", "large", "large"], describe, lambda _name: {})
        assert [len(row["text"]) for row in rows] == [1, FREE_HELD_BYTES, FREE_HELD_BYTES]
        assert len(made) == 3
        assert held_at_take == [rows[0], None]


def _groups_asked(count: int) -> dict[str, Any]:
    groups = [
        {"group_id": f"g{at}", "member_id": None, "member_epoch": -1, "topics": None}
        for at in range(count)
    ]
    return {"require_stable": True, "groups": groups}


async def test_INV_OFE1_who_holds_offsets_of_groups_waits_for_no_place_and_no_room(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many of them held all of the memory that each waited for. 1. One has its place. 2. Others fill the memory."""
    async with judged_apis(tmp_path) as judged:
        judged.give(
            acl(ResourceType.GROUP, Operation.READ), acl(ResourceType.TOPIC, Operation.READ)
        )
        free, patience = list[int](), list[float | None]()
        memory, filler = judged.services.memory, Share()

        async def fetch(
            _groups: GroupCoordinator, *_: Any, durable_within_s: float | None, **_named: Any
        ) -> FetchOutcome:
            free.append(judged.dispatcher._listings._free)
            patience.append(durable_within_s)
            if len(free) == 2:
                memory.hold(filler, memory.left_bytes)
            found = [TopicPartition(TopicName("orders"), number) for number in range(YIELD_ROWS)]
            return FetchOutcome(GroupVerdict.OK, tuple(FetchedOffset(each, GroupVerdict.OK) for each in found))  # fmt: skip

        monkeypatch.setattr(GroupCoordinator, "fetch_offsets", fetch)
        monkeypatch.setattr(request_places, "WAIT_MS_MAX", 0)
        answer = await judged.ask(9, 9, _groups_asked(5))
        assert [len(each.topics[0].partitions) for each in answer.groups] == [YIELD_ROWS] * 5
        assert free == [LISTINGS_AT_ONCE_MAX] + [LISTINGS_AT_ONCE_MAX - 1] * 4
        assert patience[0] is None, "who has no place is in nobody's way"
        left_s = [each for each in patience if each is not None]
        assert len(left_s) == 4
        assert left_s == sorted(left_s, reverse=True), "in all, not for each group"


async def test_INV_OFE1_offsets_that_are_not_durable_keep_a_place_for_a_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a region without enough nodes they are not for long, and other lists need no ledger."""
    monkeypatch.setattr(offset_fetch, "DURABLE_MS_MAX", 0)
    monkeypatch.setattr(answer_budget, "FREE_HELD_BYTES", 0)
    async with judged_apis(tmp_path) as judged:
        judged.give(
            acl(ResourceType.GROUP, Operation.READ), acl(ResourceType.TOPIC, Operation.READ)
        )
        row = {"partition_index": 0, "committed_offset": 1, "committed_metadata": "", "committed_leader_epoch": -1}  # fmt: skip
        topics = [{"name": "orders", "partitions": [row]}]
        for at in range(3):
            await judged.ask(8, 9, {"group_id": f"g{at}", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None, "topics": topics})  # fmt: skip
        waited, durable = 0, MemoryLedger.committed

        async def committed(ledger: MemoryLedger, shard: int, next_offset: int) -> None:
            nonlocal waited
            waited += 1
            if waited == 2:
                await asyncio.Event().wait()
            await durable(ledger, shard, next_offset)

        monkeypatch.setattr(MemoryLedger, "committed", committed)
        async with asyncio.timeout(10):
            answer = await judged.ask(9, 9, _groups_asked(3))
        assert [each.error_code for each in answer.groups] == [0, COORDINATOR_NOT_AVAILABLE, 0]
        assert judged.dispatcher._listings._free == LISTINGS_AT_ONCE_MAX


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
