"""A request that names as many topics as requests may, all of which are judged: who else asks is served meanwhile (INV-HAZ7)."""

import asyncio
import struct
import threading
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest
from kio.schema.errors import ErrorCode

from idempotency.ledger_records import TxnStatus
from idempotency.pieces import drained
from region_broker.groups.modern.patterns.topic_regex import TopicRegex
from region_broker.groups.verdicts import GroupVerdict
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.registry import ApiTable
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.handlers.dispatch.whole_errors import error_for_all
from region_broker.handlers.groups import consumer_group_heartbeat, offset_commit, offset_fetch
from region_broker.handlers.groups.names import topic_names
from region_broker.handlers.topics import config_resources
from region_broker.handlers.topics.config_resources import answer_resources, asks_for_nodes
from region_broker.handlers.topics.delete_topics import handle_delete_topics
from region_broker.handlers.topics.describe_configs import handle_describe_configs
from region_broker.handlers.topics.describe_topic_partitions import handle_describe_topic_partitions
from region_broker.handlers.transactions import txn_offset_commit
from region_broker.limits import (
    ADMIN_ITEMS_MAX,
    ELEMENTS_AT_ONCE_MAX,
    FETCH_PARTITION_COUNT_MAX,
    YIELD_ROWS,
)
from region_broker.security.access import Operation, ResourceType
from region_broker.security.authorizer import AclAuthorizer
from region_broker.security.identity import Identity
from region_broker.wire.codec.entities import request_schema
from region_broker.wire.codec.requests import request_pieces
from region_broker.wire.headers import read_header
from tests.fixtures.cluster_images import in_sync
from tests.fixtures.judged_apis import Judged, acl, error_codes, judged_apis
from tests.fixtures.kafka_port import frame_of
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.played_spread import spread_over
from tests.unit.region_broker.handlers.kafka_acl_table import MEMBER, PRODUCER, batch
from tests.unit.region_broker.handlers.test_led_apart import SeenMetadata

COUNT = 5_000
OF_THE_WHOLE = 2
"""Judgements of a request before any of a topic: of its transactional id and its group."""
NAMES = [f"topic-{at}" for at in range(COUNT)]
PART = {"partition_index": 0, "committed_offset": 0, "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip


class Counting(AclAuthorizer):
    """Counts what it is asked between two turns of the loop."""

    in_this_turn = most = asked = 0

    def allows(
        self, identity: Identity, operation: Operation, resource_type: ResourceType, name: str
    ) -> bool:
        self.asked += 1
        self.in_this_turn += 1
        self.most = max(self.most, self.in_this_turn)
        return super().allows(identity, operation, resource_type, name)

    async def turn(self) -> None:
        """Begin to count anew in each turn."""
        while True:
            await asyncio.sleep(0)
            self.in_this_turn = 0


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        found.give(acl(ResourceType.GROUP, Operation.ALL), acl(ResourceType.TRANSACTIONAL_ID, Operation.ALL))  # fmt: skip
        found.services.authorizer = Counting(lambda: found.access)
        yield found


REQUESTS: list[tuple[int, int, dict[str, Any]]] = [
    (0, 9, {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [
        {"name": name, "partition_data": [{"index": 0, "records": batch()}]} for name in NAMES]}),
    (2, 6, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": []} for name in NAMES]}),
    (8, 9, {**MEMBER, "topics": [{"name": name, "partitions": [PART]} for name in NAMES]}),
    (9, 7, {"require_stable": False, "group_id": "g", "topics": [{"name": name, "partition_indexes": (0,)} for name in NAMES]}),
    (9, 8, {"require_stable": False, "groups": [{"group_id": "g", "topics": [{"name": name, "partition_indexes": (0,)} for name in NAMES]}]}),
    (23, 4, {"replica_id": -1, "topics": [{"topic": name, "partitions": []} for name in NAMES]}),
    (24, 3, {"v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
             "v3_and_below_topics": [{"name": name, "partitions": (0,)} for name in NAMES]}),
    (28, 4, {**PRODUCER, **MEMBER, "topics": [{"name": name, "partitions": [PART]} for name in NAMES]}),
    (33, 2, {"validate_only": True, "resources": [{"resource_type": 2, "resource_name": name, "configs": ()} for name in NAMES]}),
    (44, 1, {"validate_only": True, "resources": [{"resource_type": 2, "resource_name": name, "configs": ()} for name in NAMES]}),
    (47, 0, {"group_id": "g", "topics": [{"name": name, "partitions": [{"partition_index": 0}]} for name in NAMES]}),
    (61, 0, {"topics": [{"name": name, "partition_indexes": (0,)} for name in NAMES]}),
    (68, 1, {"group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 1_000,
             "subscribed_topic_names": NAMES, "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": ()}),
]  # fmt: skip


@pytest.mark.parametrize("request_", REQUESTS, ids=lambda each: f"{each[0]} v{each[1]}")
async def test_INV_HAZ7_who_else_asks_is_served_while_many_topics_are_judged(
    judged: Judged, request_: tuple[int, int, dict[str, Any]]
) -> None:
    authorizer = await counted(judged, *request_)
    assert authorizer.asked >= COUNT
    assert authorizer.most <= ELEMENTS_AT_ONCE_MAX + OF_THE_WHOLE


async def counted(judged: Judged, key: int, version: int, values: dict[str, Any]) -> Counting:
    """Return what was asked of the authorizer for a request."""
    authorizer = judged.services.authorizer
    assert isinstance(authorizer, Counting)
    async with asyncio.TaskGroup() as tasks:
        turning = tasks.create_task(authorizer.turn())
        await asyncio.sleep(0)  # it counts from here on
        await judged.ask(key, version, values)
        turning.cancel()
    return authorizer


async def test_INV_HAZ7_so_it_is_where_no_partition_of_them_is_named(judged: Judged) -> None:
    judged.give(acl(ResourceType.TOPIC, Operation.DELETE, name=NAMES[0]))
    topics = [{"name": name, "partitions": ()} for name in NAMES]
    authorizer = await counted(judged, 21, 2, {"timeout": 1_000, "topics": topics})
    assert authorizer.asked >= COUNT
    assert authorizer.most <= ELEMENTS_AT_ONCE_MAX + OF_THE_WHOLE


async def turns_of(work: Awaitable[Any]) -> tuple[Any, int]:
    """Return what some work returns, and how often others had their turn meanwhile."""
    turns = 0

    async def turning() -> None:
        nonlocal turns
        while True:
            await asyncio.sleep(0)
            turns += 1

    async with asyncio.TaskGroup() as tasks:
        others = tasks.create_task(turning())
        done = await work
        others.cancel()
    return done, turns


async def test_INV_HAZ7_who_else_asks_is_served_while_too_many_resources_are_refused() -> None:
    resource = SimpleNamespace(resource_type=2, resource_name="t")
    request = SimpleNamespace(resources=[resource] * 50_000)
    answer, turns = await turns_of(handle_describe_configs(cast("Any", None), request))
    assert isinstance(answer, dict)
    assert len(answer["results"]) == 50_000
    assert turns >= 50_000 // ELEMENTS_AT_ONCE_MAX


class NotLookedAt(list[Any]):
    """As many things as requests may name: how many there are is all that may be asked."""

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("looked at")


class Named(list[Any]):
    """As many things as requests may name; counts how many are looked at between two turns of the loop."""

    in_this_turn = most = 0

    def __iter__(self) -> Iterator[Any]:
        for each in super().__iter__():
            self.in_this_turn += 1
            self.most = max(self.most, self.in_this_turn)
            yield each

    async def turn(self) -> None:
        """Begin to count anew in each turn."""
        while True:
            await asyncio.sleep(0)
            self.in_this_turn = 0


@pytest.mark.parametrize("version", [1, 6])
async def test_INV_HW2_topics_to_be_deleted_are_looked_at_a_few_at_a_time(
    judged: Judged, version: int
) -> None:
    named = Named(f"t-{n}" for n in range(5_000))
    if version == 6:
        named = Named(SimpleNamespace(name=name, topic_id=None) for name in named)
    request = SimpleNamespace(topics=named, topic_names=named)
    ctx = RequestContext(judged.services, 1, 20, version, 77)
    async with asyncio.TaskGroup() as tasks:
        turning = tasks.create_task(named.turn())
        await asyncio.sleep(0)
        answer = await handle_delete_topics(ctx, request)
        turning.cancel()
    assert len(answer["responses"]) == len(named)
    assert named.most <= ELEMENTS_AT_ONCE_MAX


async def test_INV_HW2_topics_to_be_described_are_sorted_a_few_at_a_time(judged: Judged) -> None:
    """A client names all that there are in the request for each page, as Java's does: they may be more than what one answer describes."""
    names = [f"topic-{at % 40_000}" for at in range(50_000)]
    request = SimpleNamespace(
        topics=[SimpleNamespace(name=name) for name in names], response_partition_limit=3,
        cursor=SimpleNamespace(topic_name="topic-9", partition_index=0),
    )  # fmt: skip
    ctx = RequestContext(judged.services, 1, 75, 0, 77)
    answer, turns = await turns_of(handle_describe_topic_partitions(ctx, request))
    assert [row["name"] for row in answer["topics"]][:2] == ["topic-9", "topic-90"]
    assert turns >= 2 * 50_000 // YIELD_ROWS - 1


async def test_INV_HW2_resources_to_be_altered_are_counted_before_they_are_looked_at(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert asks_for_nodes(SimpleNamespace(resources=NotLookedAt([None] * (ADMIN_ITEMS_MAX + 1))))
    monkeypatch.setattr(config_resources, "Counter", None)
    resource = SimpleNamespace(resource_type=2, resource_name="t", configs=())
    request = SimpleNamespace(resources=[resource] * 50_000)
    answer, turns = await turns_of(answer_resources(cast("Any", None), request, cast("Any", None)))
    assert {row["error_code"] for row in answer["responses"]} == {ErrorCode.invalid_request}
    assert len(answer["responses"]) == 50_000
    assert turns >= 50_000 // YIELD_ROWS - 1


async def test_INV_HW2_resources_to_be_altered_are_compared_a_few_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Those of what is read at once are compared in one step: it holds its connection's order."""
    for count, expected in ((ELEMENTS_AT_ONCE_MAX - 1, 0), (10 * ELEMENTS_AT_ONCE_MAX, 40)):
        reached = list[int]()

        def counted_now(names: list[Any], reached: list[int] = reached) -> Any:
            reached.append(len(names))
            raise InterruptedError

        monkeypatch.setattr(config_resources, "Counter", counted_now)
        resource = SimpleNamespace(resource_type=2, resource_name="t", configs=())

        async def interrupted(count: int = count, resource: Any = resource) -> None:
            request = SimpleNamespace(resources=[resource] * count)
            with pytest.raises(InterruptedError):
                await answer_resources(cast("Any", None), request, cast("Any", None))

        _, turns = await turns_of(interrupted())
        assert reached == [count]
        assert turns >= expected


async def test_INV_HAZ7_so_it_is_where_a_produce_may_be_written_to_all_of_them(
    judged: Judged,
) -> None:
    """It needs no task then: whether it may be written was asked of all its topics before any of them was looked at."""
    judged.give(acl(ResourceType.TOPIC, Operation.WRITE))
    few = NAMES[: ELEMENTS_AT_ONCE_MAX // 3]
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch()}]} for name in few]
    authorizer = await counted(judged, 0, 9, {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": topics})  # fmt: skip
    assert authorizer.asked >= len(few)
    assert authorizer.most <= YIELD_ROWS + OF_THE_WHOLE


async def test_INV_HAZ7_so_it_is_at_a_node_that_does_not_lead_them(judged: Judged) -> None:
    """Leaders are spread there: whom the answer names goes by what may be seen, each topic judged once."""
    seen = SeenRegion(2, spread_over(in_sync(), judged.services.metadata.image.topics["orders"].topic_id))  # fmt: skip
    judged.services.region_nodes, judged.services.leader_wait_s = seen.view, 0.0
    judged.services.metadata = SeenMetadata(judged.wire, seen)
    judged.wire.region.node_id = 2
    topics = [{"name": name, "partition_data": [{"index": 0, "records": batch()}]} for name in [*NAMES, *NAMES]]  # fmt: skip
    authorizer = None
    for version, count in ((9, 0), (10, COUNT)):  # v9 names nobody
        authorizer = await counted(judged, 0, version, {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": topics})  # fmt: skip
        assert authorizer.asked == count
    assert authorizer is not None
    assert authorizer.most <= YIELD_ROWS
    assert judged.told == [], "nobody is told: nothing was asked of this node"


PARTED: dict[int, tuple[int, dict[str, Any]]] = {
    0: (10, {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [
        {"name": name, "partition_data": [{"index": 0, "records": b""}]} for name in NAMES]}),
    1: (11, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [], "topics": [
        {"topic": name, "partitions": [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]} for name in NAMES]}),
    2: (6, {"replica_id": -1, "isolation_level": 0, "topics": [
        {"name": name, "partitions": [{"partition_index": 0, "timestamp": -1, "current_leader_epoch": -1}]} for name in NAMES]}),
    23: (4, {"replica_id": -1, "topics": [
        {"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}]} for name in NAMES]}),
    43: (2, {"timeout": 1, "election_type": 0, "topic_partitions": [{"topic": name, "partitions": (0,)} for name in NAMES]}),
    45: (0, {"timeout": 1, "topics": [{"name": name, "partitions": [{"partition_index": 0, "replicas": (1,)}]} for name in NAMES]}),
}  # fmt: skip
"""By API, a request for a partition of each of COUNT topics."""


def request_of(key: int, version: int, values: dict[str, Any]) -> Any:
    """Return a request as a handler gets it."""
    frame = memoryview(frame_of(key, version, values))
    body_start = read_header(frame, flexible=request_schema(key, version).flexible).body_start
    return drained(request_pieces(key, version, frame[body_start:]))


@pytest.mark.parametrize("key", [key for key, api in all_apis().by_key.items() if api.not_here])
async def test_INV_HW2_who_else_asks_is_served_while_a_node_that_does_not_lead_says_who_does(
    judged: Judged, key: int
) -> None:
    version, values = PARTED[key]
    not_here = all_apis().by_key[key].not_here
    assert not_here is not None
    ctx = RequestContext(judged.services, 1, key, version, 77)
    _, turns = await turns_of(not_here(ctx, request_of(key, version, values), 6))
    assert turns >= COUNT // YIELD_ROWS


@pytest.mark.parametrize("count", [1, COUNT])
async def test_INV_HW2_one_error_for_all_that_a_large_request_names_is_said_in_a_thread(
    judged: Judged, count: int
) -> None:
    """By who may not ask, by a node that does not lead, and of a version that is not served."""
    commit = all_apis().by_key[8]
    on_error, ran_in = commit.on_error, list[bool]()
    assert on_error is not None

    def noted(*asked: Any) -> Any:
        ran_in.append(threading.current_thread() is threading.main_thread())
        return on_error(*asked)

    table = ApiTable.of(replace(commit, on_error=noted, versions=range(2, 9)))
    judged.dispatcher = Dispatcher(judged.services, table)
    topics = [{"name": name, "partitions": [PART]} for name in NAMES[:count]]
    asked = {**MEMBER, "topics": topics}
    judged.give(acl(ResourceType.GROUP, Operation.DESCRIBE, name="another"))
    assert error_codes(await judged.ask(8, 8, asked)) == {30}
    judged.services.region_nodes, judged.services.leader_wait_s = SeenRegion(2).view, 0.0
    judged.wire.region.node_id = 2
    assert error_codes(await judged.ask(8, 8, asked)) == {16}
    assert error_codes(await judged.ask(8, 9, asked)) == {35}
    assert ran_in == 3 * [count == 1]


async def test_INV_HWE1_errors_for_all_of_large_requests_are_made_one_at_a_time_in_one_thread(
    judged: Judged,
) -> None:
    """1. Many are refused at once. 2. The first one's connection is cut. 3. Its thread works on: nobody else's begins beside it."""
    ctx = RequestContext(judged.services, 1, 8, 8, 77)
    ctx.is_large = True
    begun, go_on = list[int](), threading.Event()

    def on_error(_ctx: RequestContext, request: int, code: int) -> dict[str, int]:
        begun.append(request)
        assert go_on.wait(10)
        return {"code": code}

    loop = asyncio.get_running_loop()
    asked = [loop.create_task(error_for_all(ctx, at, 30, on_error)) for at in range(3)]
    while not begun:  # noqa: ASYNC110 -- has no event of its own
        await asyncio.sleep(0)
    asked[0].cancel()
    await asyncio.to_thread(int)  # the threads are not taken
    for _ in range(20):
        await asyncio.sleep(0)
    assert begun == [0]
    go_on.set()
    answers = await asyncio.gather(*asked, return_exceptions=True)
    assert isinstance(answers[0], asyncio.CancelledError)
    assert answers[1:] == [{"code": 30}] * 2


@pytest.mark.parametrize("module", [offset_commit, txn_offset_commit], ids=["8", "28"])
async def test_INV_HWE1_so_is_what_a_handler_refuses_by_itself(
    judged: Judged, module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    on_error, ran_in = module._on_error, list[bool]()

    def noted(*asked: Any) -> Any:
        ran_in.append(threading.current_thread() is threading.main_thread())
        return on_error(*asked)

    monkeypatch.setattr(module, "_on_error", noted)
    judged.give(acl(ResourceType.GROUP, Operation.READ, name="g"), acl(ResourceType.TRANSACTIONAL_ID, Operation.WRITE, name="x"))  # fmt: skip
    topics = [{"name": name, "partitions": [PART]} for name in NAMES]
    asked = {**MEMBER, "group_id": "g", "topics": topics}
    if module is txn_offset_commit:
        asked |= {**PRODUCER, "transactional_id": "x", "generation_id": -1, "member_id": ""}
        assert error_codes(await judged.ask(28, 3, asked)) == {29}
    else:
        assert error_codes(await judged.ask(8, 8, asked)) == {29}
    assert ran_in == [False]


async def test_a_node_that_does_not_lead_takes_no_larger_fetch_than_one_that_does(judged: Judged) -> None:  # fmt: skip
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1}
    seen = SeenRegion(2)
    judged.services.region_nodes, judged.services.leader_wait_s = seen.view, 0.0
    judged.wire.region.node_id = 2
    for count, expected in ((FETCH_PARTITION_COUNT_MAX, {6}), (FETCH_PARTITION_COUNT_MAX + 1, {42})):  # fmt: skip
        topics = [{"topic": "orders", "partitions": [partition] * count}]
        answer = await judged.ask(1, 11, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1, "forgotten_topics_data": [], "topics": topics})  # fmt: skip
        assert error_codes(answer) == expected


async def test_INV_HAZ7_a_list_of_many_things_is_judged_a_few_at_a_time(judged: Judged) -> None:
    groups = [SimpleNamespace(group_id=name, protocol_type="", state="Empty", kind="classic") for name in NAMES]  # fmt: skip
    records = [SimpleNamespace(transactional_id=name, producer_id=1, status=TxnStatus.EMPTY) for name in NAMES]  # fmt: skip
    judged.services.groups = cast("Any", SimpleNamespace(list=lambda: (GroupVerdict.OK, groups)))
    judged.services.txn_admin = cast("Any", SimpleNamespace(listing=lambda: records))
    judged.give(acl(ResourceType.GROUP, Operation.READ, name="g"))
    told = await counted(judged, 16, 5, {"states_filter": (), "types_filter": ()})
    assert told.asked >= COUNT
    assert told.most <= ELEMENTS_AT_ONCE_MAX
    told = await counted(judged, 66, 1, {"state_filters": (), "producer_id_filters": (), "duration_filter": -1})  # fmt: skip
    assert told.asked >= 2 * COUNT
    assert told.most <= ELEMENTS_AT_ONCE_MAX


async def test_INV_HAZ7_what_a_member_of_a_group_subscribes_to_is_judged_a_few_at_a_time(
    judged: Judged,
) -> None:
    """In a group of the new protocol, in which that counts; in a classic one nothing is judged (INV-NX4)."""
    names = b"".join(struct.pack(">h", len(name)) + name.encode() for name in NAMES)
    subscription = struct.pack(">hi", 0, COUNT) + names + struct.pack(">i", -1)
    await judged.ask(68, 1, {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 60_000,
        "subscribed_topic_names": (), "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    })  # fmt: skip
    joined = await counted(judged, 11, 9, {
        **MEMBER, "member_id": "", "group_instance_id": "i", "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
        "protocols": [{"name": "range", "metadata": subscription}], "reason": None,
    })  # fmt: skip
    assert joined.asked >= COUNT
    assert joined.most <= ELEMENTS_AT_ONCE_MAX + OF_THE_WHOLE


async def test_INV_HAZ7_what_a_described_group_subscribes_to_is_judged_a_few_at_a_time(
    judged: Judged,
) -> None:
    judged.give(acl(ResourceType.GROUP, Operation.ALL), acl(ResourceType.TOPIC, Operation.ALL, name="*"))  # fmt: skip
    told = await counted(judged, 68, 1, {
        "group_id": "g", "member_id": "m", "member_epoch": 0, "instance_id": None, "rack_id": None, "rebalance_timeout": 60_000,
        "subscribed_topic_names": NAMES, "subscribed_topic_regex": None, "server_assignor": None, "topic_partitions": (),
    })  # fmt: skip
    told.asked = told.most = 0
    told = await counted(judged, 69, 1, {"group_ids": ["g"], "include_authorized_operations": False})  # fmt: skip
    assert told.asked >= COUNT
    assert told.most <= ELEMENTS_AT_ONCE_MAX + OF_THE_WHOLE


async def test_INV_HLT1_patterns_are_matched_one_at_a_time_with_what_may_be_seen(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    records = [SimpleNamespace(transactional_id=name, producer_id=1, status=TxnStatus.EMPTY) for name in NAMES[:20]]  # fmt: skip
    judged.services.txn_admin = cast("Any", SimpleNamespace(listing=lambda: records))
    of_ten = [acl(ResourceType.TRANSACTIONAL_ID, Operation.DESCRIBE, name=name) for name in NAMES[:10]]  # fmt: skip
    under_way, matched, most = 0, list[str](), 0
    those_of = TopicRegex.those_of

    def slowly(regex: TopicRegex, names: Iterable[str]) -> tuple[str, ...]:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        chosen = list(names)
        matched.extend(chosen)
        another_may_begin.wait(0.2)
        found = those_of(regex, chosen)
        under_way -= 1
        return found

    another_may_begin = threading.Event()  # nobody sets it: who began beside is seen meanwhile
    monkeypatch.setattr(TopicRegex, "those_of", slowly)
    asked = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1, "transactional_id_pattern": "topic-[0-3]"}  # fmt: skip
    judged.give(acl(ResourceType.GROUP, Operation.ALL))
    assert (await judged.ask(66, 2, asked)).transaction_states == ()
    assert matched == [], "nothing may be seen"
    judged.give(*of_ten)
    answers = await asyncio.gather(*(judged.ask(66, 2, asked) for _ in range(3)))
    for each in answers:
        names = [row.transactional_id for row in each.transaction_states]
        assert names == ["topic-0", "topic-1", "topic-2", "topic-3"]
    assert set(matched) == set(NAMES[:10])
    assert most == 1


LONG = "x" * 32_700


@pytest.mark.parametrize(("key", "version"), [(33, 1), (33, 2), (44, 0), (44, 1)])
@pytest.mark.parametrize(
    "configs",
    [
        [(f"retention.milliseconds.{number}", None) for number in range(3_000)],
        [(f"{LONG}{number}", "1") for number in range(20)],
        [("cleanup.policy", LONG), ("retention.ms", LONG), ("segment.ms", "9" * 4_000)],
    ],
    ids=["nulls", "names", "values"],
)
async def test_what_is_said_of_very_many_configs_fits_an_answer(
    judged: Judged, key: int, version: int, configs: list[tuple[str, str | None]]
) -> None:
    """A text of an older version has 32,767 bytes: one that is longer had the connection closed, whatever else of the request was done."""
    judged.give(acl(ResourceType.TOPIC, Operation.ALTER_CONFIGS))
    items = [{"name": name, "value": value, "config_operation": 0} for name, value in configs]
    asked = [{"resource_type": 2, "resource_name": "orders", "configs": items}]
    answer = await judged.ask(key, version, {"validate_only": True, "resources": asked})
    [row] = answer.responses
    assert int(row.error_code) != 0
    assert len(row.error_message) < 10_000


async def test_INV_HW2_what_a_member_says_that_it_has_is_read_a_few_rows_at_a_time() -> None:
    topic_id, count, turns = UUID(int=1), 10 * ELEMENTS_AT_ONCE_MAX, 0
    read_in = Counter[int]()

    async def turn() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    def rows() -> Iterator[SimpleNamespace]:
        for number in range(count):
            read_in[turns] += 1
            yield SimpleNamespace(topic_id=topic_id, partitions=(number,))

    async with asyncio.TaskGroup() as tasks:
        turning = tasks.create_task(turn())
        await asyncio.sleep(0)
        owned = await consumer_group_heartbeat._owned(rows())
        turning.cancel()
    assert owned == {topic_id: frozenset(range(count))}
    assert max(read_in.values()) <= ELEMENTS_AT_ONCE_MAX


async def test_topics_are_listed_by_their_ids_once_for_all_groups_of_a_request(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A request names up to 20,000 groups: for each of them all topics of the region were gone over, twice."""
    listed = 0

    def counting(ctx: Any) -> Any:
        nonlocal listed
        listed += 1
        return topic_names(ctx)

    monkeypatch.setattr(offset_fetch, "topic_names", counting)
    groups = [{"group_id": f"g{at}", "member_id": None, "member_epoch": -1, "topics": None} for at in range(20)]  # fmt: skip
    await judged.ask(9, 10, {"require_stable": False, "groups": groups})
    assert listed == 1
