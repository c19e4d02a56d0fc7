"""What clients that come by a listener are told of the nodes of a region of several: addresses of that listener, and no others.

Errors, and what is left out: KRaftMetadataCache.java and KafkaApis.scala of Kafka 4.1.
"""

import asyncio
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term
from region_broker.controller.raft.group_facts import GroupFacts
from region_broker.handlers.dispatch.nodes import MetNodes, as_met
from region_broker.wire.codec.answers import encode_response
from region_broker.wire.listening import Listening
from tests.fixtures.cluster_images import leader_epoch
from tests.fixtures.kafka_port import RawClient, WireFixture, wire_fixture
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.transaction_port import mirror_of
from tests.spec.wire.test_wire_produce_fetch import batch
from tests.unit.region_broker.handlers.test_led_apart import produce_to, rows_of, spread_at
from tests.unit.region_broker.handlers.test_not_led_here import REFUSED, follows

METADATA, FIND_COORDINATOR, QUORUM, CLUSTER, TOPIC_PARTITIONS = 3, 10, 55, 60, 75
NOT_LEADER, LEADER_NOT_AVAILABLE, NO_COORDINATOR, LISTENER_NOT_FOUND = 6, 5, 15, 72
ALL = {each: (f"eu{each}.example.org", 19_090 + each) for each in (1, 2, 3)}
"""Where nodes are met by the listener; by the `kafka` address all of them are at 127.0.0.1:9092."""
WITHOUT_LEADER = {each: ALL[each] for each in (2, 3)}
NOTHING_ELSE = {"allow_auto_topic_creation": False, "include_topic_authorized_operations": False}


async def by_listener(fixture: WireFixture, met_at: dict[int, tuple[str, int]]) -> RawClient:
    """Return a client that came by a listener, by which nodes are met there."""
    await fixture.server.start("127.0.0.1", 0, Listening("OUTSIDE", met_at=met_at))
    streams = await asyncio.open_connection("127.0.0.1", fixture.server.ports[-1])
    fixture.clients.append(RawClient(*streams))
    return fixture.clients[-1]


def places(rows: Any, id_field: str = "node_id") -> dict[int, tuple[str, int]]:
    return {getattr(row, id_field): (row.host, row.port) for row in rows}


async def metadata(client: RawClient, version: int = 12, names: tuple[str, ...] = ("t",)) -> Any:
    of_id = {"topic_id": None} if version >= 10 else {}
    asked: dict[str, Any] = {"topics": [{"name": each, **of_id} for each in names]}
    if version >= 4:
        asked |= NOTHING_ELSE if version >= 8 else {"allow_auto_topic_creation": False}
    if 8 <= version <= 10:
        asked["include_cluster_authorized_operations"] = False
    return await client.call(METADATA, version, asked)


async def described(client: RawClient) -> Any:
    asked = {"endpoint_type": 1, "include_cluster_authorized_operations": False}
    return await client.call(CLUSTER, 1, asked)


async def coordinators(client: RawClient) -> Any:
    answer = await client.call(FIND_COORDINATOR, 4, {"key_type": 0, "coordinator_keys": ["g"]})
    return answer.coordinators[0]


async def test_INV_HMN1_all_nodes_are_told_where_they_are_met_by_the_listener(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        await fixture.topic("t")
        client = await by_listener(fixture, ALL)
        told = await metadata(client)
        assert (places(told.brokers), told.controller_id) == (ALL, 1)
        (row,) = told.topics[0].partitions
        assert (row.error_code, row.leader_id, row.offline_replicas) == (0, 1, ())
        cluster = await described(client)
        assert (places(cluster.brokers, "broker_id"), cluster.controller_id) == (ALL, 1)
        found = await coordinators(client)
        assert (found.error_code, found.node_id, (found.host, found.port)) == (0, 1, ALL[1])
        produced = await client.call(0, 10, REFUSED[0][1])
        assert places(produced.node_endpoints) == {1: ALL[1]}
        fetched = await client.call(1, 16, REFUSED[1][1])
        assert places(fetched.node_endpoints) == {1: ALL[1]}


async def test_INV_HMN1_who_came_by_the_kafka_address_is_told_what_nodes_registered(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        await fixture.topic("t")
        others = await by_listener(fixture, WITHOUT_LEADER)
        client = await fixture.connect()
        for _ in range(2):  # what is kept for the one is not told the other
            assert (await metadata(others)).topics[0].partitions[0].leader_id == -1
            told = await metadata(client)
            assert places(told.brokers) == dict.fromkeys((1, 2, 3), ("127.0.0.1", 9092))
            assert told.topics[0].partitions[0].leader_id == 1


@pytest.mark.parametrize("version", [0, 4, 5, 6, 9, 12])
async def test_INV_HMN2_what_a_node_leads_that_is_not_met_by_the_listener_nobody_leads(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        await fixture.topic("t")
        client = await by_listener(fixture, WITHOUT_LEADER)
        told = await metadata(client, version)
        assert places(told.brokers) == WITHOUT_LEADER
        (row,) = told.topics[0].partitions
        error = LISTENER_NOT_FOUND if version >= 6 else LEADER_NOT_AVAILABLE
        assert (row.error_code, row.leader_id) == (error, -1)
        assert set(row.replica_nodes) == {1, 2, 3}
        if version >= 1:
            assert told.controller_id == -1
        if version >= 5:
            assert row.offline_replicas == (1,)


async def test_INV_HMN2_nothing_else_names_that_node(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        await fixture.topic("t")
        client = await by_listener(fixture, WITHOUT_LEADER)
        found = await coordinators(client)
        assert (found.error_code, found.node_id, found.host) == (NO_COORDINATOR, -1, "")
        assert "met by the listener of this connection is not known" in found.error_message
        cluster = await described(client)
        assert (places(cluster.brokers, "broker_id"), cluster.controller_id) == (WITHOUT_LEADER, -1)
        asked = {"topics": [{"name": "t"}], "response_partition_limit": 9, "cursor": None}
        parts = (await client.call(TOPIC_PARTITIONS, 0, asked)).topics[0].partitions
        assert [(row.error_code, row.leader_id) for row in parts] == [(LISTENER_NOT_FOUND, -1)]
        produced = await client.call(0, 10, REFUSED[0][1])
        row = produced.responses[0].partition_responses[0]
        assert (row.error_code, row.current_leader.leader_id) == (NOT_LEADER, -1)
        assert produced.node_endpoints == ()
        fetched = await client.call(1, 16, REFUSED[1][1])
        assert fetched.responses[0].partitions[0].current_leader.leader_id == -1
        assert fetched.node_endpoints == ()


@pytest.mark.parametrize("met_at", [ALL, WITHOUT_LEADER])
async def test_INV_HMN1_leaders_of_a_spread_are_told_by_the_listener_one_by_one(
    tmp_path: Path, met_at: dict[int, tuple[str, int]]
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 2)
        client = await by_listener(fixture, met_at)
        leaders = {some.main: 1, some.two: 2, some.three: 3}
        expected = {n: node if node in met_at else -1 for n, node in leaders.items()}
        rows = (await metadata(client)).topics[0].partitions
        assert {row.partition_index: row.leader_id for row in rows} == expected
        errors = {row.partition_index: row.error_code for row in rows}
        assert errors == {n: LISTENER_NOT_FOUND if expected[n] < 0 else 0 for n in expected}
        hinted = {node: ALL[node] for node in (1, 3) if node in met_at}
        produced = await client.call(0, 10, produce_to({n: batch() for n in range(3)}))
        told = {n: row.current_leader.leader_id for n, row in rows_of(produced).items()}
        assert told == expected | {some.led: -1}
        assert places(produced.node_endpoints) == hinted
        asked = [{"partition": n, "fetch_offset": 0, "partition_max_bytes": 1 << 20} for n in range(3)]  # fmt: skip
        fetched = await client.call(1, 16, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [],
            "topics": [{"topic_id": some.topic.topic_id, "partitions": asked}]})  # fmt: skip
        assert places(fetched.node_endpoints) == hinted


@dataclass
class Nearer:
    """Replicas in the reader's rack."""

    ids: tuple[int, ...]

    def nearer(self, rack: str) -> tuple[int, ...]:
        return self.ids if rack == "b" else ()

    def serves(self, _rack: str) -> bool:
        return False

    def have(self, _key: object, _offset: int) -> bool:
        return True

    @property
    def counts(self) -> "Nearer":
        return self

    sent_away = 0


async def test_INV_HMN1_a_reader_is_not_sent_to_a_nearer_node_that_it_does_not_meet(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        fixture.services.readers = Nearer((3, 2))  # type: ignore[assignment]
        assert fixture.services.nearer_nodes("b") == (3, 2)
        assert fixture.services.nearer_nodes("b", {1: ("eu1", 1), 2: ("eu2", 1)}) == [2]


def fetch(*, wait_ms: int = 0) -> dict[str, Any]:
    parts = [{"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]
    return {"max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1 << 20, "rack_id": "b", "forgotten_topics_data": [],
            "topics": [{"topic": "t", "partitions": parts}]}  # fmt: skip


@pytest.mark.parametrize(("met", "sent_to"), [((1, 2, 3), 3), ((1, 2), 2), ((1,), -1)])
async def test_INV_HMN1_a_fetch_by_a_listener_names_the_nearer_nodes_that_its_reader_meets(
    tmp_path: Path, met: tuple[int, ...], sent_to: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        await fixture.topic("t")
        fixture.services.readers = Nearer((3, 2))  # type: ignore[assignment]
        client = await by_listener(fixture, {each: ALL[each] for each in met})
        told = await client.call(1, 12, fetch())
        assert told.responses[0].partitions[0].preferred_read_replica == sent_to


async def test_INV_HMN1_who_meets_no_nearer_node_waits_here_for_records(tmp_path: Path) -> None:
    """Not one empty answer after another, as for somebody who is sent away."""
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        await fixture.topic("t")
        fixture.services.readers = Nearer((3, 2))  # type: ignore[assignment]
        client = await by_listener(fixture, {1: ALL[1]})
        client.send(1, 12, fetch(wait_ms=600_000))
        other = await fixture.connect()
        for _ in range(5):
            await metadata(other)
        written = {"transactional_id": None, "acks": -1, "timeout": 1_000,
            "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": batch()}]}]}  # fmt: skip
        await other.call(0, 9, written)
        _, told = await client.receive(1, 12)
        assert told.responses[0].partitions[0].records


async def test_INV_HMN3_a_client_of_a_mirror_is_sent_to_no_node_of_the_primary_region(
    tmp_path: Path,
) -> None:
    """It came by a listener of its own region; ours may speak otherwise, and its region is the one that it is to go on with."""
    async with wire_fixture(tmp_path) as fixture:
        some = await spread_at(fixture, 1)
        async with mirror_of(fixture) as (port, _):
            client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
            answer = await client.call(0, 10, produce_to({n: batch() for n in range(3)}))
            client.writer.close()
        rows = rows_of(answer)
        assert [rows[n].error_code for n in (some.led, *some.others)] == [0, NOT_LEADER, NOT_LEADER]
        assert {row.current_leader.leader_id for row in rows.values()} == {-1}
        assert answer.node_endpoints == ()


THREE = [Member(each, UUID(int=each)) for each in (1, 2, 3)]


@pytest.mark.parametrize("leads", [True, False])
async def test_INV_HMN1_voters_are_told_by_the_listener_whoever_leads_their_quorum(
    tmp_path: Path, leads: bool
) -> None:
    """The quorum's leader, which another node asks, does not know by which listener the client came."""
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        fixture.services.quorum = lambda: GroupFacts(
            me=THREE[1], leader=THREE[1 if leads else 0], term=Term(7), commit_index=LogIndex(40), last_index=LogIndex(40),
            membership=Membership(tuple(THREE), ()), followers={},
        )  # fmt: skip
        by_kafka = [{"name": "PLAINTEXT", "host": "127.0.0.1", "port": 9092}]
        partition: dict[str, Any] = {
            "partition_index": 0, "error_code": 0, "error_message": None, "leader_id": 1, "leader_epoch": 7, "high_watermark": 41,
            "current_voters": [], "observers": [],
        }  # fmt: skip
        fixture.services.quorum_leader = fixture.forwarder
        client = await by_listener(fixture, WITHOUT_LEADER)
        sent = client.send(QUORUM, 2, {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]})  # fmt: skip
        fixture.forwarder.answer = bytes(encode_response(QUORUM, 2, sent, {
            "error_code": 0, "error_message": None, "topics": [{"topic_name": "__cluster_metadata", "partitions": [partition]}],
            "nodes": [{"node_id": each, "listeners": by_kafka} for each in (1, 2, 3)],
        }))  # fmt: skip
        _, answer = await client.receive(QUORUM, 2)
        for version in (0, 1):  # these name no nodes
            asked = {
                "topics": [
                    {"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}
                ]
            }
            sent = client.send(QUORUM, version, asked)
            fixture.forwarder.answer = bytes(encode_response(QUORUM, version, sent, {
                "error_code": 0, "topics": [{"topic_name": "__cluster_metadata", "partitions": [partition]}],
            }))  # fmt: skip
            _, before = await client.receive(QUORUM, version)
            assert before.topics[0].partitions[0].leader_epoch == 7
        told = {node.node_id: [(each.name, each.host, each.port) for each in node.listeners] for node in answer.nodes}  # fmt: skip
        assert told == {1: [], 2: [("OUTSIDE", *ALL[2])], 3: [("OUTSIDE", *ALL[3])]}
        assert answer.topics[0].partitions[0].leader_epoch == 7


def test_what_is_told_by_a_listener_is_made_once_for_the_facts_of_one_moment() -> None:
    seen, kept = SeenRegion(2), MetNodes()
    facts = seen.view.facts
    assert kept.of(facts, "", None) is facts
    once = kept.of(facts, "OUTSIDE", ALL)
    assert once is kept.of(facts, "OUTSIDE", ALL)
    assert kept.of(facts, "OUTSIDE", WITHOUT_LEADER) == as_met(facts, WITHOUT_LEADER) != once
    assert kept.of(facts, "OUTSIDE", ALL) == once
    assert once == as_met(facts, ALL)
    assert once.leader_epoch == leader_epoch(1)
    seen.led_by_nobody()
    again = kept.of(seen.view.facts, "OUTSIDE", ALL)
    assert (again.leader, again.hides_leader, again.hides_nodes) == (None, False, False)
