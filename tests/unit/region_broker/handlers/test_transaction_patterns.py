"""Patterns of transactional ids: how long one may take, and whom it may keep waiting meanwhile."""

import asyncio
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from kio.schema.errors import ErrorCode

from idempotency.ledger_records import TxnStatus
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.dispatcher import Dispatcher
from region_broker.handlers.transactions import list_transactions
from region_broker.limits import LISTINGS_AT_ONCE_MAX
from region_broker.wire.connection import Incoming, Peer
from tests.fixtures.kafka_port import WireFixture, frame_of, parse_answer, wire_fixture
from tests.fixtures.waiting import until
from tests.unit.region_broker.groups.fakes import HeldMatching, settle

KEY = 66
IDS = [f"id-{number}" for number in range(20)]
ASKED = {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}


def with_ids(fixture: WireFixture) -> Dispatcher:
    records = [SimpleNamespace(transactional_id=name, producer_id=1, status=TxnStatus.EMPTY) for name in IDS]  # fmt: skip
    fixture.services.txn_admin = cast("Any", SimpleNamespace(listing=lambda: records))
    return Dispatcher(fixture.services, all_apis())


def incoming(peer: Peer, pattern: str = "id-[0-3]") -> Incoming:
    frame = frame_of(KEY, 2, {**ASKED, "transactional_id_pattern": pattern})
    return Incoming(peer, memoryview(frame), KEY, 2, 1)


def told(answer: Any) -> tuple[int, list[str]]:
    """Return the error code, and the ids."""
    parsed = parse_answer(KEY, 2, bytes(answer))[1]
    return int(parsed.error_code), [row.transactional_id for row in parsed.transaction_states]


async def test_INV_HLT2_who_waits_for_the_turn_of_patterns_keeps_nobody_from_lists(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        dispatcher, turn = with_ids(fixture), fixture.services.turns.patterns
        peers = [Peer(number, "10.0.0.1:5") for number in range(LISTINGS_AT_ONCE_MAX)]
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks, turn.turn("User:other"):
            waiting = [tasks.create_task(dispatcher.answer(incoming(peer))) for peer in peers]
            await until(lambda: all(peer.waiting for peer in peers))
            plain = memoryview(frame_of(KEY, 1, ASKED))
            answer = await dispatcher.answer(Incoming(Peer(99, "10.0.0.2:5"), plain, KEY, 1, 1))
            assert answer is not None
            assert len(parse_answer(KEY, 1, bytes(answer))[1].transaction_states) == len(IDS)
            assert not any(each.done() for each in waiting)
        assert [told(each.result()) for each in waiting] == [(0, IDS[:4])] * len(peers)
        assert not any(peer.waiting for peer in peers)


async def test_INV_HLT2_a_pattern_is_waited_for_no_longer_than_clients_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(list_transactions, "PATTERN_S_MAX", 0)
    async with wire_fixture(tmp_path) as fixture:
        dispatcher, turn = with_ids(fixture), fixture.services.turns.patterns
        async with turn.turn("User:other"):
            answer = await dispatcher.answer(incoming(Peer(1, "10.0.0.1:5")))
        assert told(answer) == (ErrorCode.request_timed_out, [])


async def test_INV_HLT2_so_it_is_where_its_own_thread_takes_that_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    matching, peer = HeldMatching(monkeypatch), Peer(1, "10.0.0.1:5")
    matching.hold()
    async with wire_fixture(tmp_path) as fixture:
        dispatcher, turn = with_ids(fixture), fixture.services.turns.patterns
        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            asked = tasks.create_task(dispatcher.answer(incoming(peer)))
            await matching.begun.wait()
            (patience,) = peer.waiting
            patience.give_up()
            patience.give_up()  # as where its connection is cut off, and ends
            await settle()
            assert not asked.done(), "nobody begins beside the thread"
            assert turn._places.locked()
            matching.let_go()
        assert told(asked.result()) == (ErrorCode.request_timed_out, [])
        assert matching.looked == IDS[:1]
        assert not turn._places.locked()


async def test_INV_HLT1_one_who_asks_for_many_patterns_keeps_nobody_elses_from_its_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. One asks for twenty at once. 2. Another one asks for one."""
    ended: list[str] = []
    matching = HeldMatching(monkeypatch)
    matching.hold()
    async with wire_fixture(tmp_path) as fixture:
        dispatcher = with_ids(fixture)

        async def ask(who: str) -> None:
            await dispatcher.answer(incoming(Peer(len(ended), f"{who}:5")))
            ended.append(who)

        async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
            for who in ["10.0.0.1"] * 20 + ["10.9.0.1"]:
                tasks.create_task(ask(who))
            await matching.begun.wait()
            await settle()
            matching.let_go()
        assert "10.9.0.1" in ended[:3]


async def test_INV_HLT2_who_has_the_turn_leaves_time_to_the_next_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Both have waited since the same moment: the first one must not use the time of both."""
    assert 2 * list_transactions.TURN_S_MAX < list_transactions.PATTERN_S_MAX
    monkeypatch.setattr(list_transactions, "TURN_S_MAX", 0)
    async with wire_fixture(tmp_path) as fixture:
        answer = await with_ids(fixture).answer(incoming(Peer(1, "10.0.0.1:5")))
        assert told(answer) == (ErrorCode.request_timed_out, [])


@pytest.mark.parametrize("how", ["client goes", "cut off", "server closes"])
async def test_INV_HPT1_the_thread_of_a_pattern_ends_with_its_connection(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str
) -> None:
    matching = HeldMatching(monkeypatch)
    matching.hold()
    async with wire_fixture(tmp_path) as fixture:
        server = fixture.server
        with_ids(fixture)
        client = await fixture.connect()
        client.send(KEY, 2, {**ASKED, "transactional_id_pattern": ".*"})
        await matching.begun.wait()
        (link,) = server._links
        if how == "client goes":
            client.writer.close()
        elif how == "cut off":
            server.hold()
            assert server.end_unanswered() == 1
        else:
            server.close()
        await until(lambda: link.closing)
        await settle()
        matching.let_go()
        await server.wait_connections(0)
        assert matching.looked == IDS[:1]
        assert not fixture.services.turns.patterns._places.locked()
