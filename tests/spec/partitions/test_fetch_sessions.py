"""Fetch sessions over a real socket: rule C40.

Sources: KIP-227; Kafka FetchSession (CachedPartition.maybeUpdateResponseData, FetchManager.newContext), FetchMetadata.
"""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from idempotency.identity import NO_LEADER_EPOCH
from region_broker.handlers.fetch import fetch
from region_broker.handlers.fetch import reading as fetch_reading
from region_broker.handlers.fetch.fetch import Fetching
from region_broker.handlers.fetch.reading import Read
from region_broker.partitions.fetch_sessions import FetchSession, SessionRequest, Wanted
from region_broker.partitions.parts.reader import PartitionReader
from region_broker.partitions.parts.sight import Isolation
from region_broker.records.batches import Record, build_batch, iter_records
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, WireFixture, watched_by, wire_fixture

NONE, OFFSET_OUT_OF_RANGE, UNKNOWN_TOPIC = 0, 1, 3
SESSION_NOT_FOUND, WRONG_EPOCH, TOPIC_ID_ERROR, INVALID_REQUEST = 70, 71, 106, 42
FINAL = -1
VERSION = 12


class Session:
    """A client's side of a session: `wants` maps partitions of `t` to offsets."""

    def __init__(self, client: RawClient, *, version: int = VERSION, topic: Any = "t") -> None:
        self.client, self.version, self.topic = client, version, topic
        self.session_id = self.epoch = 0

    async def fetch(
        self, wants: dict[int, int], forgotten: tuple[int, ...] = (), **more: Any
    ) -> Any:
        key = "topic_id" if self.version >= 13 else "topic"
        parts = [
            {"partition": index, "fetch_offset": offset, "partition_max_bytes": 1 << 20}
            for index, offset in wants.items()
        ]
        answer = await self.client.call(1, self.version, {
            "max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20,
            "session_id": self.session_id, "session_epoch": self.epoch,
            "topics": [{key: self.topic, "partitions": parts}] if parts else [],
            "forgotten_topics_data":
                [{key: self.topic, "partitions": list(forgotten)}] if forgotten else [],
            **more,
        })  # fmt: skip
        if answer.error_code == NONE:
            self.session_id = answer.session_id
            self.epoch = self.epoch + 1 if answer.session_id else 0
        return answer

    async def wait_for_news(self, fixture: WireFixture, forgotten: tuple[int, ...] = ()) -> None:
        """Send a fetch of all that the session knows, and return once it waits; its answer is the next one."""
        self.client.send(1, VERSION, {
            "max_wait": 60_000, "min_bytes": 1, "max_bytes": 1 << 20, "topics": [],
            "session_id": self.session_id, "session_epoch": self.epoch,
            "forgotten_topics_data":
                [{"topic": self.topic, "partitions": list(forgotten)}] if forgotten else [],
        })  # fmt: skip
        await self.client.writer.drain()
        await waiting(fixture, 1)


def named(answer: Any) -> list[int]:
    return [row.partition_index for topic in answer.responses for row in topic.partitions]


def row_of(answer: Any, index: int) -> Any:
    rows = [row for topic in answer.responses for row in topic.partitions]
    return next(row for row in rows if row.partition_index == index)


async def write(fixture: WireFixture, index: int, text: str) -> None:
    partition = fixture.partition("t", index)
    outcome = partition.writer.append(build_batch([Record(None, text.encode())]))
    await partition.wait_committed(outcome.next_offset)


async def waiting(fixture: WireFixture, count: int) -> None:
    """Return once so many fetches wait."""
    async with asyncio.timeout(10):
        while len(fixture.services.deadlines) < count:  # noqa: ASYNC110 -- has no event of its own
            await asyncio.sleep(0.001)


@pytest.mark.parametrize("version", range(7, 19))
async def test_C40_incremental_answer_omits_what_did_not_change(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t", 3)
        key = topic.topic_id if version >= 13 else "t"
        session = Session(await fixture.connect(), version=version, topic=key)
        opened = await session.fetch({0: 0, 1: 0, 2: 0})
        assert opened.session_id != 0
        assert named(opened) == [0, 1, 2]
        assert named(await session.fetch({})) == []
        await write(fixture, 1, "a")
        news = await session.fetch({})
        assert (news.session_id, named(news)) == (session.session_id, [1])
        (record,) = iter_records(row_of(news, 1).records)
        assert record.value == b"a"
        assert named(await session.fetch({1: 1})) == []  # read it: its ends are known


# Holds INV-FE3.
async def test_C40_wrong_epochs_and_unknown_ids_are_errors(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0})
        session.epoch = 2
        assert (await session.fetch({})).error_code == WRONG_EPOCH
        session.epoch = 1
        answer = await session.fetch({})  # a refused request costs no epoch
        assert (answer.error_code, session.epoch) == (NONE, 2)
        session.epoch = 1
        late = await session.fetch({})
        assert (late.error_code, late.session_id, late.responses) == (WRONG_EPOCH, 0, ())
        stranger = Session(client)
        stranger.session_id, stranger.epoch = session.session_id ^ 1, 1
        assert (await stranger.fetch({})).error_code == SESSION_NOT_FOUND
        nobody = Session(client)
        nobody.epoch = 1
        assert (await nobody.fetch({0: 0})).error_code == SESSION_NOT_FOUND


async def test_C40_forgotten_partitions_leave_and_new_ones_join(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 3)
        session = Session(await fixture.connect())
        await session.fetch({0: 0, 1: 0})
        assert named(await session.fetch({2: 0}, forgotten=(0,))) == [2]
        for index in range(3):
            await write(fixture, index, "a")
        assert named(await session.fetch({})) == [1, 2]
        emptied = await session.fetch({}, forgotten=(1, 2))
        assert (emptied.error_code, emptied.session_id) == (NONE, 0)  # nothing left: it ends
        assert len(fixture.services.fetch_sessions) == 0


async def test_C40_final_epoch_and_a_new_full_request_end_the_session(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        session = Session(await fixture.connect())
        await session.fetch({0: 0})
        first = session.session_id
        session.epoch = 0
        again = await session.fetch({0: 0})
        assert again.session_id not in (0, first)
        assert len(fixture.services.fetch_sessions) == 1
        session.epoch = FINAL
        last = await session.fetch({0: 0})
        assert (last.session_id, named(last)) == (0, [0])
        assert len(fixture.services.fetch_sessions) == 0


async def test_C40_request_without_session_gets_none(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        session = Session(await fixture.connect())
        session.epoch = FINAL
        assert (await session.fetch({0: 0})).session_id == 0
        assert len(fixture.services.fetch_sessions) == 0


# Holds INV-FE2.
async def test_C40_errors_are_told_each_time_and_their_end_too(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        session = Session(await fixture.connect())
        opened = await session.fetch({0: 0, 1: 7})
        assert row_of(opened, 1).error_code == OFFSET_OUT_OF_RANGE
        assert named(await session.fetch({})) == [1]
        mended = await session.fetch({1: 0})
        assert (named(mended), row_of(mended, 1).error_code) == ([1], NONE)
        assert named(await session.fetch({})) == []
        assert row_of(await session.fetch({1: 7}), 1).error_code == OFFSET_OUT_OF_RANGE
        assert named(await session.fetch({1: 0})) == [1]
        assert named(await session.fetch({})) == []


async def test_C40_topic_ids_and_names_do_not_mix_in_a_session(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t")
        session = Session(await fixture.connect(), version=13, topic=topic.topic_id)
        await session.fetch({0: 0})
        session.version, session.topic = 12, "t"
        assert (await session.fetch({})).error_code == TOPIC_ID_ERROR


async def test_C40_session_outlives_its_connection_and_moved_ends_are_news(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        session = Session(await fixture.connect())
        await session.fetch({0: 0})
        session.client = await fixture.connect()
        assert named(await session.fetch({})) == []
        await write(fixture, 0, "a")
        fixture.partition("t").become_mirror()  # shows nothing, and then D of a reached tidemark
        assert named(await session.fetch({})) == []
        fixture.partition("t").show_up_to(1, 0)
        told = row_of(await session.fetch({}, isolation_level=1), 0)
        assert (told.high_watermark, told.last_stable_offset, told.records) == (1, 0, b"")
        fixture.partition("t").show_up_to(1, 1)
        news = row_of(await session.fetch({}, isolation_level=1), 0)
        assert (news.last_stable_offset, len(list(iter_records(news.records)))) == (1, 1)


async def test_C40_waits_for_data_of_all_that_the_session_holds(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0, 1: 0})
        await session.wait_for_news(fixture)
        await write(fixture, 1, "a")
        _, answer = await client.receive(1, VERSION)
        assert named(answer) == [1]


async def test_INV_WS4_a_fetch_that_waits_is_given_up_when_its_reader_has_gone(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0, 1: 0})
        await session.wait_for_news(fixture)
        assert len(fixture.services.deadlines) == 1
        client.writer.transport.abort()
        await asyncio.wait_for(fixture.server.wait_connections(0), 10)
        sessions = fixture.services.fetch_sessions
        watching = sum(len(fixture.partition("t", index).watchers) for index in (0, 1))
        assert watching == watched_by(sessions) == 2, "the session goes on, the request does not"
        assert len(fixture.services.deadlines) == 0


async def test_C40_answer_that_a_later_request_overtook_has_a_wrong_epoch(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0})
        fields = {"min_bytes": 1, "max_bytes": 1 << 20, "topics": [], "forgotten_topics_data": [],
                  "session_id": session.session_id}  # fmt: skip
        client.send(1, VERSION, fields | {"max_wait": 60_000, "session_epoch": 1})
        await client.writer.drain()
        await waiting(fixture, 1)
        other = await fixture.connect()  # on one connection, a fetch waits for the one before
        other.send(1, VERSION, fields | {"max_wait": 60_000, "session_epoch": 2})
        await other.writer.drain()
        _, first = await client.receive(1, VERSION)
        await waiting(fixture, 1)
        await write(fixture, 0, "a")
        _, second = await other.receive(1, VERSION)
        assert (first.error_code, first.session_id) == (WRONG_EPOCH, session.session_id)
        assert (second.error_code, named(second)) == (NONE, [0])


async def test_C40_request_for_too_much_is_refused(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        session = Session(await fixture.connect())
        many = dict.fromkeys(range(20_001), 0)
        assert (await session.fetch(many)).error_code == INVALID_REQUEST
        await session.fetch({0: 0})
        assert (await session.fetch({}, forgotten=tuple(many))).error_code == INVALID_REQUEST


async def test_KIP951_fenced_reader_is_told_who_leads(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t")
        client = await fixture.connect()
        part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 100,
                "current_leader_epoch": LEADER_EPOCH - 1}  # fmt: skip
        answer = await client.call(1, 16, {
            "max_wait": 0, "min_bytes": 1, "max_bytes": 100, "forgotten_topics_data": [],
            "topics": [{"topic_id": topic.topic_id, "partitions": [part]}]})  # fmt: skip
        row = answer.responses[0].partitions[0]
        assert row.error_code == 74
        leader = row.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (1, LEADER_EPOCH)
        (node,) = answer.node_endpoints
        assert (node.node_id, node.host, node.port) == (1, "127.0.0.1", fixture.server.port)


async def test_INV_FE6_a_fetch_that_waits_is_told_of_what_changes_and_looks_at_that_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    readable_bytes = PartitionReader.readable_bytes

    def counted(reader: PartitionReader, *args: Any, **more: Any) -> Any:
        looked_at.append(reader._reads._tp.partition)
        return readable_bytes(reader, *args, **more)

    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 50)
        client = await fixture.connect()
        session = Session(client)
        await session.fetch(dict.fromkeys(range(50), 0))
        monkeypatch.setattr(PartitionReader, "readable_bytes", counted)
        for epoch, index in ((1, 7), (2, 9)):
            session.epoch = epoch
            await session.wait_for_news(fixture, forgotten=(7,) if epoch == 2 else ())
            await write(fixture, index, "a")
            _, answer = await client.receive(1, VERSION)
            assert named(answer) == [index]
        assert set(looked_at) == {7, 9}


async def test_INV_PU1_a_fetch_that_waits_in_a_session_ends_when_the_role_changes(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0, 1: 0})
        await session.wait_for_news(fixture)
        fixture.partition("t", 1).become_mirror()
        _, answer = await asyncio.wait_for(client.receive(1, VERSION), 10)
        assert answer.error_code == NONE


async def test_INV_FE7_a_session_that_ends_watches_nothing_and_answers_who_waits(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 3)
        client = await fixture.connect()
        session = Session(client)
        await session.fetch({0: 0, 1: 0, 2: 0})
        await session.wait_for_news(fixture)
        other = Session(await fixture.connect())
        other.session_id, other.epoch = session.session_id, FINAL
        await other.fetch({0: 0})
        _, answer = await client.receive(1, VERSION)
        assert (answer.error_code, named(answer)) == (NONE, [])
        assert [len(fixture.partition("t", index).watchers) for index in range(3)] == [0, 0, 0]
        assert (await session.fetch({})).error_code == SESSION_NOT_FOUND


async def test_INV_FE1_more_than_one_answer_takes_is_told_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch_reading, "ELEMENTS_AT_ONCE_MAX", 2)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 5)
        session = Session(await fixture.connect())
        await session.fetch(dict.fromkeys(range(4), 0) | {4: 7})  # the last one is out of range
        assert named(await session.fetch({})) == [4]
        for index in (3, 0, 1):
            await write(fixture, index, "a")
        assert named(await session.fetch({})) == [4, 3]
        assert named(await session.fetch({3: 1})) == [0, 1]
        assert named(await session.fetch({0: 1, 1: 1})) == [4]


async def test_INV_FE6_only_partitions_that_changed_are_looked_at(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    looked_at: list[int] = []
    read = PartitionReader.fetch

    def counted(reader: PartitionReader, *args: Any, **more: Any) -> Any:
        looked_at.append(reader._reads._tp.partition)
        return read(reader, *args, **more)

    monkeypatch.setattr(PartitionReader, "fetch", counted)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 5)
        await write(fixture, 1, "first")
        session = Session(await fixture.connect())
        await session.fetch(dict.fromkeys(range(5), 0))
        assert looked_at == [0, 1, 2, 3, 4]
        looked_at.clear()
        answer = await session.fetch({})
        assert (named(answer), looked_at) == ([1], [1]), "what was not taken is brought again"
        looked_at.clear()
        assert named(await session.fetch({1: 1})) == []
        assert looked_at == [1]
        looked_at.clear()
        assert named(await session.fetch({})) == []
        assert looked_at == []
        await write(fixture, 3, "second")
        assert named(await session.fetch({}, isolation_level=0)) == [3]
        assert looked_at == [3]
        looked_at.clear()
        assert named(await session.fetch({}, isolation_level=1)) == [3]
        assert sorted(looked_at) == [0, 1, 2, 3, 4], "another isolation may see other things"
        looked_at.clear()
        await fixture.services.metadata.delete_topic("t")
        assert row_of(await session.fetch({}), 0).error_code == UNKNOWN_TOPIC


async def test_INV_H10_a_request_that_is_overtaken_while_it_is_answered_changes_its_session_no_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "YIELD_ROWS", 1)  # others are served after each partition
    note_quiet = Fetching._note_quiet
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 4)
        session, sessions = Session(await fixture.connect()), fixture.services.fetch_sessions
        await session.fetch(dict.fromkeys(range(4), 0))
        later = [
            SessionRequest(session.session_id, 2, False, (), [("t", 3)]),
            SessionRequest(
                session.session_id, 3, False, (Wanted("t", 3, NO_LEADER_EPOCH, 0, 1 << 20),)
            ),
            SessionRequest(session.session_id, 4, False, (), (), Isolation.READ_COMMITTED),
        ]

        def overtaken(fetching: Fetching, found: Sequence[Read]) -> Iterator[None]:
            for piece in note_quiet(fetching, found):
                while later:
                    assert isinstance(sessions.enter(later.pop(0), 0), FetchSession)
                yield piece

        monkeypatch.setattr(Fetching, "_note_quiet", overtaken)
        answer = await session.fetch(dict.fromkeys(range(4), 0))
        assert answer.error_code == WRONG_EPOCH
        assert watched_by(sessions) == 0, "nothing was looked at under the new isolation yet"
        session.epoch = 5
        assert named(await session.fetch({}, isolation_level=1)) == [3], "it is new, and untold"
