"""Requests of many elements: few are objects at once, whoever sends how many (INV-HLR1)."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from region_broker.groups.coordinator import GroupCoordinator
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch import large_requests, request_places
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.dispatch.registry import Api, ApiTable, Fields
from region_broker.handlers.dispatch.services import RequestContext
from region_broker.limits import ELEMENTS_AT_ONCE_MAX, LARGE_REQUESTS_MAX
from region_broker.security.access import Operation, ResourceType
from region_broker.security.identity import Identity
from region_broker.wire.codec.requests import request_pieces
from region_broker.wire.connection import Incoming, Peer
from region_broker.wire.connection_state import ConnectionState
from region_broker.wire.server import CloseConnection
from tests.fixtures.judged_apis import ALICE, Judged, acl, error_codes, judged_apis
from tests.fixtures.kafka_port import frame_of, parse_answer, wire_fixture
from tests.fixtures.waiting import until

COUNT = ELEMENTS_AT_ONCE_MAX + 1
OFFSET_COMMIT, JOIN_GROUP, SYNC_GROUP, FETCH, PRODUCE, QUOTAS = 8, 11, 14, 1, 0, 49
BOB = Identity("User:bob", host="10.0.0.2")
PART = {"committed_offset": 1, "committed_metadata": "", "committed_leader_epoch": -1}
COMMIT = {
    "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
    "topics": [{"name": "orders", "partitions": [{"partition_index": at, **PART} for at in range(COUNT)]}],
}  # fmt: skip
JOIN = {
    "group_id": "g", "session_timeout": 30_000, "rebalance_timeout": 60_000, "member_id": "", "group_instance_id": None,
    "protocol_type": "consumer", "protocols": [{"name": f"p{at}", "metadata": b""} for at in range(COUNT)], "reason": None,
}  # fmt: skip
SYNC = {
    "group_id": "g", "generation_id": 1, "member_id": "m", "group_instance_id": None, "protocol_type": "consumer", "protocol_name": "p",
    "assignments": [{"member_id": f"m{at}", "assignment": b""} for at in range(COUNT)],
}  # fmt: skip
ALTER = {"entries": [{"entity": [], "ops": []}] * COUNT, "validate_only": False}


def incoming(
    key: int, version: int, values: dict[str, Any], who: Identity = ALICE, number: int = 1
) -> Incoming:
    peer = Peer(number, f"{who.host}:5", state=ConnectionState(identity=who))
    return Incoming(peer, memoryview(frame_of(key, version, values)), key, version, number)


class Decoded:
    """Counts what is decoded in pieces, and notes who sent it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        pieces = request_pieces

        def counted(*asked: Any) -> Any:
            self.count += 1
            return pieces(*asked)

        monkeypatch.setattr(large_requests, "request_pieces", counted)


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        yield found


def free_of(judged: Judged) -> int:
    return judged.services.turns.large._free


async def turns() -> None:
    """Let whatever needs no one else get as far as it can: some twenty pieces each."""
    for _ in range(400):
        await asyncio.sleep(0)


async def test_INV_HLR1_few_are_decoded_until_one_of_them_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gate, begun, decoded = asyncio.Event(), list[str](), Decoded(monkeypatch)

    async def handle(ctx: RequestContext, _request: Any) -> Fields:
        begun.append(ctx.identity.principal)
        await gate.wait()
        return {"entries": []}

    async with wire_fixture(tmp_path) as fixture:
        table = ApiTable.of(Api(QUOTAS, "AlterClientQuotas", range(2), handle))
        dispatcher = Dispatcher(fixture.services, table)
        async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
            for who in [ALICE] * 3 * LARGE_REQUESTS_MAX + [BOB]:
                tasks.create_task(dispatcher.answer(incoming(QUOTAS, 1, ALTER, who)))
            await until(lambda: len(begun) == LARGE_REQUESTS_MAX)
            await turns()
            assert decoded.count == len(begun) == LARGE_REQUESTS_MAX
            small = {"entries": [], "validate_only": True}
            other = tasks.create_task(dispatcher.answer(incoming(QUOTAS, 1, small)))
            await until(lambda: len(begun) == LARGE_REQUESTS_MAX + 1)
            gate.set()
        assert other.result() is not None
        assert decoded.count == 3 * LARGE_REQUESTS_MAX + 1
        assert BOB.principal in begun[: LARGE_REQUESTS_MAX + 3], "he is not behind all of hers"
        assert fixture.services.turns.large._free == LARGE_REQUESTS_MAX


@pytest.mark.parametrize(
    ("key", "version", "asked"),
    [(QUOTAS, 1, ALTER), (OFFSET_COMMIT, 9, COMMIT), (JOIN_GROUP, 9, JOIN), (SYNC_GROUP, 5, SYNC)],
    ids=["AlterClientQuotas", "OffsetCommit", "JoinGroup", "SyncGroup"],
)
async def test_INV_HLR1_so_are_those_of_who_may_do_nothing(
    judged: Judged, monkeypatch: pytest.MonkeyPatch, key: int, version: int, asked: dict[str, Any]
) -> None:
    """Each waited, decoded, for the one thread that says one error for all: many of them were gigabytes."""
    judged.give(acl(ResourceType.GROUP, Operation.READ, name="another"))
    decoded = Decoded(monkeypatch)
    turn = judged.services.turns.errors.turn("User:other")
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks, turn:
        asking = [
            tasks.create_task(judged.dispatcher.answer(incoming(key, version, asked)))
            for _ in range(2 * LARGE_REQUESTS_MAX)
        ]
        await until(lambda: decoded.count == LARGE_REQUESTS_MAX)
        await turns()
        assert decoded.count == LARGE_REQUESTS_MAX
        assert not any(each.done() for each in asking)
    for each in asking:
        raw = each.result()
        assert raw is not None
        assert error_codes(parse_answer(key, version, bytes(raw))[1]) & {30, 31}
    assert free_of(judged) == LARGE_REQUESTS_MAX


async def test_INV_HLR1_so_are_those_of_a_version_that_is_not_served(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = replace(all_apis().by_key[OFFSET_COMMIT], versions=range(2, 9))
    dispatcher, decoded = Dispatcher(judged.services, ApiTable.of(commit)), Decoded(monkeypatch)
    turn = judged.services.turns.errors.turn("User:other")
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks, turn:
        for _ in range(2 * LARGE_REQUESTS_MAX):
            tasks.create_task(dispatcher.answer(incoming(OFFSET_COMMIT, 9, COMMIT)))
        await until(lambda: decoded.count == LARGE_REQUESTS_MAX)
        await turns()
        assert decoded.count == LARGE_REQUESTS_MAX
    assert free_of(judged) == LARGE_REQUESTS_MAX


async def test_INV_HLP2_nobody_waits_for_ever_to_be_decoded(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(LARGE_REQUESTS_MAX):
        await judged.services.turns.large.take("OffsetCommit", "User:other")
    monkeypatch.setattr(request_places, "WAIT_MS_MAX", 0)
    late = incoming(OFFSET_COMMIT, 9, COMMIT)
    with pytest.raises(CloseConnection, match="other large requests were being answered"):
        await judged.dispatcher.answer(late)
    assert late.peer.state.starts is None, "what comes behind it is not held up"


async def test_INV_HLR2_offsets_that_wait_for_their_ledger_keep_nobody_from_being_decoded(
    judged: Judged, monkeypatch: pytest.MonkeyPatch
) -> None:
    judged.give(acl(ResourceType.GROUP, Operation.READ), acl(ResourceType.TOPIC, Operation.READ))
    gate, waiting, commit = asyncio.Event(), list[int](), GroupCoordinator.commit_offsets

    async def late(groups: GroupCoordinator, *asked: Any) -> Any:
        waiting.append(free_of(judged))
        await gate.wait()
        return await commit(groups, *asked)

    monkeypatch.setattr(GroupCoordinator, "commit_offsets", late)
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for _ in range(2 * LARGE_REQUESTS_MAX):
            tasks.create_task(judged.dispatcher.answer(incoming(OFFSET_COMMIT, 9, COMMIT)))
        await until(lambda: len(waiting) == 2 * LARGE_REQUESTS_MAX)
        gate.set()
    assert free_of(judged) == LARGE_REQUESTS_MAX


async def test_INV_HLR2_a_produce_that_waits_for_what_came_before_it_keeps_nobody_either(
    judged: Judged,
) -> None:
    judged.give(acl(ResourceType.TOPIC, Operation.WRITE))
    rows = [{"index": at, "records": b""} for at in range(COUNT)]
    values = {
        "transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [{"name": "orders", "partition_data": rows}]
    }  # fmt: skip
    before: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
    asked = [incoming(PRODUCE, 9, values) for _ in range(2 * LARGE_REQUESTS_MAX)]
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        for each in asked:
            each.peer.state.appending.append(before)
            tasks.create_task(judged.dispatcher.answer(each))
        await until(lambda: all(len(each.peer.state.appending) == 2 for each in asked))
        await turns()
        assert free_of(judged) == LARGE_REQUESTS_MAX
        before.set_result(False)


async def test_INV_HLR2_what_another_region_executes_is_held_here_as_bytes_alone(
    judged: Judged,
) -> None:
    judged.wire.region.acting = False
    forwarder = judged.wire.forwarder
    forwarder.may_leave, forwarder.answer = asyncio.Event(), b"forwarded"
    async with asyncio.timeout(30), asyncio.TaskGroup() as tasks:
        asking = [
            tasks.create_task(judged.dispatcher.answer(incoming(OFFSET_COMMIT, 9, COMMIT)))
            for _ in range(LARGE_REQUESTS_MAX)
        ]
        await until(lambda: len(forwarder.frames) == LARGE_REQUESTS_MAX)
        forwarder.may_leave.set()
        await until(lambda: free_of(judged) == LARGE_REQUESTS_MAX)
    assert [each.result() for each in asking] == [b"forwarded"] * LARGE_REQUESTS_MAX
