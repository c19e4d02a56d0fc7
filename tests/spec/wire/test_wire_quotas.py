"""Client quotas over a real socket: their APIs, throttle times in answers, and sockets that are left unread.

Sources: KIP-13, KIP-124, KIP-219 (the answer is sent at once, then the channel is muted), KIP-546, KIP-599, KIP-612;
ClientQuotasImage.java, ClientQuotaControlManager.java. The raw client calls itself "raw".
"""

import asyncio
import struct
import time
from pathlib import Path
from typing import Any

import pytest

from region_broker.log.group_commit import GroupCommit
from region_broker.records.batches import Record, build_batch
from region_broker.security.access import AccessChange, Quota
from region_broker.security.identity import Identity
from region_broker.security.quotas.entities import QuotaKey
from tests.fixtures.kafka_port import (
    RawClient,
    WireFixture,
    answer_body_of,
    frame_of,
    wire_fixture,
)
from tests.fixtures.waiting import until

PRODUCE, FETCH, METADATA, CREATE, DELETE, GROW, DESCRIBE, ALTER = 0, 1, 3, 19, 20, 37, 48, 49
THROTTLED, INVALID = 89, 42
UNKNOWN_TOPIC = 3
RAW = (("client-id", "raw"),)
Pairs = tuple[tuple[str, str | None], ...]


def entry(entity: Pairs, **values: float | None) -> dict[str, Any]:
    return {
        "entity": [{"entity_type": kind, "entity_name": name} for kind, name in entity],
        "ops": [{"key": key, "value": value or 0.0, "remove": value is None} for key, value in values.items()],
    }  # fmt: skip


async def alter(
    client: RawClient, *entries: dict[str, Any], version: int = 1, dry: bool = False
) -> list[tuple[int, str | None]]:
    asked = {"entries": list(entries), "validate_only": dry}
    answer = await client.call(ALTER, version, asked)
    return [(row.error_code.value, row.error_message) for row in answer.entries]


async def described(
    client: RawClient,
    *components: tuple[str, int, str | None],
    strict: bool = False,
    version: int = 1,
) -> dict[Pairs, dict[str, float]]:
    rows = [
        {"entity_type": kind, "match_type": how, "match": name} for kind, how, name in components
    ]
    answer = await client.call(DESCRIBE, version, {"components": rows, "strict": strict})
    assert answer.error_code.value == 0
    return {
        tuple((part.entity_type, part.entity_name) for part in row.entity): {
            value.key: value.value for value in row.values
        }
        for row in answer.entries
    }


async def limit(fixture: WireFixture, entity: Pairs = RAW, **limits: float) -> None:
    await fixture.services.metadata.change_access(AccessChange(quotas_put=(Quota(entity, limits),)))


def ms(answer: Any) -> int:
    milliseconds: int = round(answer.throttle_time.total_seconds() * 1_000)
    return milliseconds


def produce_of(size_bytes: int, acks: int = 1) -> dict[str, Any]:
    data = build_batch([Record(None, b"v" * size_bytes, (), 1_700_000_000_000)])
    return {
        "acks": acks, "timeout": 5_000, "transactional_id": None,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": data}]}],
    }  # fmt: skip


def fetch_of(bytes_max: int = 1 << 20, max_wait: int = 5_000) -> dict[str, Any]:
    partition = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}
    return {"max_wait": max_wait, "min_bytes": 1, "max_bytes": bytes_max, "forgotten_topics_data": [],
            "session_id": 0, "session_epoch": -1,
            "topics": [{"topic": "t", "partitions": [partition]}]}  # fmt: skip


@pytest.mark.parametrize("version", [0, 1])
async def test_KIP_546_quotas_are_set_described_and_removed(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        alice, both = (("user", "alice"),), (("user", "alice"), ("client-id", None))
        asked = (
            entry(alice, producer_byte_rate=1024.0, request_percentage=12.5),
            entry(both, consumer_byte_rate=5.0),
            entry((("ip", "10.1.2.3"),), connection_creation_rate=7.0),
        )
        before = fixture.services.metadata.image
        assert await alter(client, *asked, version=version, dry=True) == [(0, None)] * 3
        assert fixture.services.metadata.image is before, "nothing is written"
        assert await described(client, version=version) == {}
        assert await alter(client, *asked, version=version) == [(0, None)] * 3
        two = (("client-id", None), ("user", "alice"))
        all_of = {
            alice: {"producer_byte_rate": 1024.0, "request_percentage": 12.5},
            two: {"consumer_byte_rate": 5.0},
            (("ip", "10.1.2.3"),): {"connection_creation_rate": 7.0},
        }
        assert await described(client, version=version) == all_of
        of_alice = {entity: all_of[entity] for entity in (alice, two)}
        assert await described(client, ("user", 0, "alice")) == of_alice
        assert await described(client, ("user", 2, None)) == of_alice
        assert await described(client, ("user", 0, "alice"), strict=True) == {alice: all_of[alice]}
        assert await described(client, ("client-id", 1, None), ("user", 2, None), strict=True) == {two: all_of[two]}  # fmt: skip
        assert await described(client, ("client-id", 0, "x")) == {}
        gone = entry(alice, producer_byte_rate=None, consumer_byte_rate=None)
        assert await alter(client, gone, entry(two, consumer_byte_rate=None)) == [(0, None)] * 2
        assert await described(client, ("user", 2, None)) == {alice: {"request_percentage": 12.5}}


async def test_INV_FL1_below_feature_level_4_a_quota_is_refused_with_what_to_do(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path, levels=range(1, 4)) as fixture:
        client = await fixture.connect()
        for dry in (True, False):
            asked = entry((("user", "a"),), producer_byte_rate=1.0)
            [(code, text)] = await alter(client, asked, dry=dry)
            assert code == 35
            assert text is not None
            assert "came with feature level 4, and this region is at 3" in text
            assert "tidemark cluster upgrade --finalize" in text
        assert await described(client) == {}


async def test_INV_HTH1_what_the_primary_region_throttles_is_left_unread_here(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await limit(fixture, controller_mutation_rate=1_000.0)
        fixture.region.acting = False
        body = {"throttle_time": 1_000, "topics": []}
        fixture.forwarder.answer = struct.pack(">ib", 1, 0) + answer_body_of(CREATE, 6, body)
        began_s = time.monotonic()
        assert ms(await client.call(CREATE, 6, created("a"))) == 1_000
        assert time.monotonic() - began_s < 0.9
        client.send(METADATA, 1, {"topics": []})
        await client.receive(METADATA, 1)
        assert time.monotonic() - began_s >= 0.99


async def test_KIP_546_what_is_wrong_with_one_entity_changes_no_other(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        answers = await alter(
            client,
            entry((("user", "good"),), producer_byte_rate=1.0),
            entry((("user", "twice"),), producer_byte_rate=1.0),
            entry((("user", "twice"),), producer_byte_rate=2.0),
            entry((("user", "nan"),), request_percentage=float("nan")),
            entry((("user", "x" * 30_000),), request_percentage=1.0),
            entry((("user", "half"),), request_percentage=1.0, nonsense=1.0),
            entry(()),
        )
        assert [code for code, _ in answers] == [0, *[INVALID] * 6]
        assert answers[1] == answers[2] == (INVALID, "Ignoring duplicate entity user twice")
        assert answers[5] == (INVALID, "Invalid configuration key nonsense")
        assert await described(client) == {(("user", "good"),): {"producer_byte_rate": 1.0}}


async def test_INV_HD9_INV_CQT1_nothing_is_measured_without_quotas(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = [fixture.services.quotas]
        for entity, limits in (
            (RAW, {}),
            ((("ip", None),), {"connection_creation_rate": 1.0}),
            (RAW, {"request_percentage": 50.0}),
            (RAW, {}),
        ):
            await limit(fixture, entity, **limits)
            seen.append(fixture.services.quotas)
        assert [each is not None for each in seen] == [False, False, False, True, False]


@pytest.mark.parametrize("version", [3, 12])
async def test_KIP_219_produce_is_answered_at_once_and_its_connection_left_unread(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client, other = await fixture.connect(), await fixture.connect()
        await limit(fixture, producer_byte_rate=10_000.0)
        began_s = time.monotonic()
        told_ms = ms(await client.call(PRODUCE, version, produce_of(20_000)))
        assert 990 <= told_ms <= 1_100, "10,000 were saved up, 20,000 and the request's head taken"
        assert time.monotonic() - began_s < 0.9
        client.send(METADATA, 1, {"topics": []})
        await other.call(METADATA, 1, {"topics": []})
        assert time.monotonic() - began_s < 0.95, "others are not throttled"
        await client.receive(METADATA, 1)
        assert time.monotonic() - began_s >= 0.99
        assert fixture.partition("t").high_watermark == 1


async def test_KIP_219_a_connection_is_muted_with_acks_0_too(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await limit(fixture, producer_byte_rate=10_000.0)
        began_s = time.monotonic()
        client.send(PRODUCE, 7, produce_of(13_000, acks=0))
        client.send(METADATA, 1, {"topics": []})
        await client.receive(METADATA, 1)
        assert 0.29 <= time.monotonic() - began_s < 2.0


async def test_a_pipeline_that_is_forwarded_waits_too(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()
        await limit(fixture, producer_byte_rate=10_000.0)
        fixture.region.acting = False
        fixture.forwarder.answer = answer_of_produce()
        frame = frame_of(PRODUCE, 7, produce_of(9_000))
        client.send_raw((struct.pack(">i", len(frame)) + frame) * 6)
        assert [ms((await client.receive(PRODUCE, 7))[1]) > 0 for _ in range(2)] == [False, True]
        await asyncio.sleep(0.02)
        assert len(fixture.forwarder.frames) == 2, "the third waits, though it came with the first"


def answer_of_produce() -> bytes:
    return struct.pack(">i", 1) + answer_body_of(PRODUCE, 7, {"responses": [], "throttle_time": 0})


async def test_INV_CQT2_what_is_owed_outlives_a_change_and_a_change_counts_at_once(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        await limit(fixture, producer_byte_rate=1_000.0)
        first, second, third = [await fixture.connect() for _ in range(3)]
        assert 4_000 < ms(await first.call(PRODUCE, 7, produce_of(5_000))) < 4_500
        await limit(fixture, producer_byte_rate=10_000.0)
        assert 400 < ms(await second.call(PRODUCE, 7, produce_of(300))) < 600, (
            "paid back at the new rate"
        )
        await limit(fixture, request_percentage=100.0)
        assert ms(await third.call(PRODUCE, 7, produce_of(5_000))) == 0


async def test_a_pipeline_of_produces_is_held_to_the_rate(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await limit(fixture, producer_byte_rate=20_000.0)
        began_s = time.monotonic()
        for _ in range(6):
            client.send(PRODUCE, 7, produce_of(5_000))
        for _ in range(6):
            await client.receive(PRODUCE, 7)
        client.send(METADATA, 1, {"topics": []})
        await client.receive(METADATA, 1)
        assert time.monotonic() - began_s >= 0.5, "30,000 were sent, 20,000 saved up"


@pytest.mark.parametrize("version", [4, 12])
async def test_a_fetch_beyond_its_quota_returns_less_then_nothing(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        for _ in range(10):
            await client.call(PRODUCE, 7, produce_of(1_000))
        await limit(fixture, consumer_byte_rate=4_000.0)
        first, second = await fixture.connect(), await fixture.connect()
        answer = await first.call(FETCH, version, fetch_of())
        sizes = [len(part.records) for part in answer.responses[0].partitions]
        assert 3_000 <= sizes[0] <= 4_000, "what a second gives, of 10,000 that are there"
        assert ms(answer) == 0
        answer = await first.call(FETCH, version, fetch_of())
        assert 400 <= ms(answer) <= 1_000
        began_s = time.monotonic()
        answer = await second.call(FETCH, version, fetch_of())
        (row,) = answer.responses[0].partitions
        assert (row.error_code.value, row.records or b"", row.high_watermark) == (0, b"", 10)
        assert ms(answer) > 0
        assert time.monotonic() - began_s < 0.3, "it is told at once, though it would have waited"


async def test_KIP_124_request_time_is_charged_and_users_have_their_own(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await limit(fixture, (("user", "alice"),), request_percentage=0.005)
        alice, bob = await fixture.connect(), await fixture.connect()
        await alice.call(METADATA, 1, {"topics": None})
        (link, *_) = fixture.server._links
        link.core.peer.state.identity = Identity("User:alice")
        told_ms = 0
        for _ in range(100):
            told_ms = ms(await alice.call(METADATA, 3, {"topics": None}))
            if told_ms:
                break
        assert 0 < told_ms <= 1_000, "50 microseconds of the loop each second"
        assert ms(await bob.call(METADATA, 3, {"topics": None})) == 0


async def test_INV_SQT2_INV_CN4_the_smallest_quotas_that_are_taken_are_counted_by_and_end_no_node(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        by = await fixture.connect()
        clients = [await fixture.connect() for _ in range(8)]
        least = entry((("user", None),), producer_byte_rate=1.0, consumer_byte_rate=1.0, request_percentage=5e-324, controller_mutation_rate=5e-324)  # fmt: skip
        of_address = entry((("ip", "127.0.0.1"),), connection_creation_rate=1.0)
        assert await alter(by, least, of_address) == [(0, None)] * 2
        for at in range(2):  # nothing is owed yet, then all is
            produces, fetches, creates, asks = clients[at::2]
            told_ms = [
                ms(await produces.call(PRODUCE, 7, produce_of(1_000))),
                ms(await fetches.call(FETCH, 12, fetch_of())),
                ms(await creates.call(CREATE, 6, created(f"made-{at}"))),
                ms(await asks.call(METADATA, 3, {"topics": None})),
            ]
            assert told_ms[0] == 30_000
            assert all(1_000 <= each <= 30_000 for each in told_ms), told_ms
        quotas = fixture.services.quotas
        assert quotas is not None
        assert quotas.owing()[QuotaKey.REQUEST] == 1
        await (await fixture.connect()).call(18, 0, {})


async def test_KIP_124_a_produce_that_is_answered_with_nothing_is_charged_for_its_time(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await limit(fixture, request_percentage=0.000_1)
        quotas = fixture.services.quotas
        assert quotas is not None
        client.send(PRODUCE, 7, produce_of(10, acks=0))
        await until(lambda: quotas.owing()[QuotaKey.REQUEST] == 1, what="more than 1 us is charged")


@pytest.mark.parametrize("key", [PRODUCE, FETCH])
async def test_INV_HD9_the_time_in_which_a_request_waits_is_not_charged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, key: int
) -> None:
    """A Produce for the disk, a Fetch for records."""
    loop, may_sync, sync = asyncio.get_running_loop(), asyncio.Event(), GroupCommit.sync_group
    passed_s, real_s = [0.0], loop.time
    monkeypatch.setattr(loop, "time", lambda: real_s() + passed_s[0])

    async def held(commit: GroupCommit) -> list[Path]:
        await may_sync.wait()
        return await sync(commit)

    monkeypatch.setattr(GroupCommit, "sync_group", held)
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await limit(fixture, request_percentage=1_000.0)  # 10 s of the loop can be saved up
        client.send(key, 7, produce_of(10) if key == PRODUCE else fetch_of(max_wait=60_000))
        links = fixture.server._links
        await until(lambda: any(link.core.in_flight for link in links), what="it waits")
        passed_s[0] = 90.0
        may_sync.set()
        assert ms((await client.receive(key, 7))[1]) == 0


async def test_INV_HTH2_who_is_about_to_log_in_is_not_charged(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await client.call(METADATA, 1, {"topics": None})
        (link, *_) = fixture.server._links
        await limit(
            fixture, (("user", "ANONYMOUS"),), request_percentage=0.0001, producer_byte_rate=1.0
        )
        link.core.peer.state.must_log_in = True
        for _ in range(3):
            link.core.peer.state.must_log_in = True
            answer = await client.call(
                18, 3, {"client_software_name": "x", "client_software_version": "1"}
            )
            assert ms(answer) == 0
        link.core.peer.state.must_log_in = False
        answer = await client.call(
            18, 3, {"client_software_name": "x", "client_software_version": "1"}
        )
        assert ms(answer) > 0


def created(name: str, partition_count: int = 1) -> dict[str, Any]:
    topic = {
        "name": name,
        "num_partitions": partition_count,
        "replication_factor": -1,
        "assignments": [],
        "configs": [],
    }
    return {"topics": [topic], "timeout": 5_000, "validate_only": False}  # fmt: skip


async def test_KIP_599_mutations_are_refused_by_strict_versions(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await limit(fixture, controller_mutation_rate=1.0)
        clients = [await fixture.connect() for _ in range(5)]
        answer = await clients[0].call(CREATE, 6, created("a", 14))
        assert (answer.topics[0].error_code.value, ms(answer)) == (0, 0), (
            "11 are saved up: it goes through whole"
        )
        answer = await clients[1].call(CREATE, 6, created("b"))
        row = answer.topics[0]
        assert (row.error_code.value, row.error_message) == (
            THROTTLED,
            "The throttling quota has been exceeded.",
        )
        assert 0 < ms(answer) <= 3_000
        grown = {
            "topics": [{"name": "a", "count": 15, "assignments": None}],
            "timeout": 5_000,
            "validate_only": False,
        }
        assert (await clients[2].call(GROW, 3, grown)).results[0].error_code.value == THROTTLED
        gone = {"topic_names": ["a"], "timeout": 5_000}
        assert (await clients[3].call(DELETE, 5, gone)).responses[0].error_code.value == THROTTLED
        answer = await clients[4].call(CREATE, 5, created("c", 5))
        assert answer.topics[0].error_code.value == 0, "older versions are let through"
        assert ms(answer) > 3_000, "and made to wait"
        assert set(fixture.services.metadata.image.topics) == {"a", "c"}


async def test_KIP_599_topics_that_are_made_by_being_asked_for_count_too(tmp_path: Path) -> None:
    """Who may make so many partitions a second makes no more of them by Metadata: while something is owed a topic is unknown."""
    async with wire_fixture(tmp_path) as fixture:
        fixture.config.auto_create_topics = True
        fixture.config.default_partition_count = 14
        await limit(fixture, controller_mutation_rate=1.0)
        clients = [await fixture.connect() for _ in range(2)]

        def asked(name: str) -> dict[str, Any]:
            return {"topics": [{"name": name}], "allow_auto_topic_creation": True}

        answer = await clients[0].call(METADATA, 4, asked("a"))
        assert (answer.topics[0].error_code.value, ms(answer)) == (0, 0), "11 are saved up"
        answer = await clients[1].call(METADATA, 4, asked("b"))
        assert answer.topics[0].error_code.value == UNKNOWN_TOPIC
        assert 0 < ms(answer) <= 3_000
        assert set(fixture.services.metadata.image.topics) == {"a"}


async def test_KIP_612_an_address_may_open_so_many_connections(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await limit(fixture, (("ip", "127.0.0.1"),), connection_creation_rate=2.0)
        clients = [await fixture.connect() for _ in range(8)]
        closed = 0
        for client in clients:
            client.send(METADATA, 1, {"topics": []})
            try:
                await client.receive(METADATA, 1)
            except (asyncio.IncompleteReadError, ConnectionResetError):
                closed += 1
        assert closed >= 3, "a burst of 4 is let in"
        assert closed < 8
        await fixture.services.metadata.change_access(
            AccessChange(quotas_put=(Quota((("ip", "127.0.0.1"),), {}),))
        )
        await (await fixture.connect()).call(METADATA, 1, {"topics": []})


async def test_INV_WS9_a_server_ends_while_connections_are_muted(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        await limit(fixture, producer_byte_rate=1.0)
        assert ms(await client.call(PRODUCE, 7, produce_of(1_000))) == 30_000
        frame = frame_of(METADATA, 1, {"topics": []})
        client.send_raw(struct.pack(">i", len(frame)) + frame)
        began_s = time.monotonic()
        fixture.server.close()
        await fixture.server.wait_connections(0)
        assert time.monotonic() - began_s < 5.0


LISTED: dict[str, Any] = {"replica_id": -1, "topics": [{"name": "t", "partitions": [
    {"partition_index": at, "timestamp": -1} for at in range(600)]}]}  # fmt: skip
TOO_MUCH: dict[str, Any] = {**LISTED, "topics": LISTED["topics"] * 40}


@pytest.mark.parametrize(
    ("values", "lacks_bytes"), [(TOO_MUCH, 0), (TOO_MUCH, 2), (LISTED, 2), (LISTED, 0)]
)
async def test_INV_HD9_a_request_that_ends_its_connection_is_charged_too(
    tmp_path: Path, values: dict[str, Any], lacks_bytes: int
) -> None:
    """Else whoever is limited sends what costs most, is cut off, and comes back with nothing owed."""
    async with wire_fixture(tmp_path) as fixture:
        await limit(fixture, request_percentage=100.0)
        quotas = fixture.services.quotas
        assert quotas is not None
        spent: list[float] = []
        charge = quotas.charge

        def heard(key: QuotaKey, user: str, client_id: str, amount: float) -> int:
            spent.append(amount)
            return charge(key, user, client_id, amount)

        quotas.charge = heard  # type: ignore[method-assign]
        client = await fixture.connect()
        whole = frame_of(2, 1, values)
        frame = whole[: len(whole) - lacks_bytes]
        client.send_raw(struct.pack(">i", len(frame)) + frame)
        if (values, lacks_bytes) == (LISTED, 0):
            await client.receive(2, 1)
        else:
            assert await client.closed()
        assert len(spent) == 1
        assert spent[0] > 0.0
