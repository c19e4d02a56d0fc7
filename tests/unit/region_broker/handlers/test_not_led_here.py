"""Each API on a node that does not lead its region's logs: which error, for everything asked, in every version (INV-HNL, INV-HD5).

The expected errors are those after which the Java client, librdkafka and franz-go look for the leader and ask again; they stand
in `not_led_here`, with their sources.
"""

from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from kio.schema.errors import ErrorCode

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from region_broker.controller.raft.entries import Member
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.nodes import NodeFacts, NodesView
from region_broker.handlers.dispatch.not_led_here import RULES, Elsewhere
from region_broker.handlers.dispatch.services import ForwardingFailed
from region_broker.records.batches import Origin
from tests.fixtures.cluster_images import leader_epoch
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.waiting import until
from tests.spec.wire.test_wire_produce_fetch import batch, fetch_of, produce_of

NOT_LEADER, COORDINATOR_LOADS, NO_COORDINATOR, NOT_COORDINATOR, NOT_CONTROLLER = 6, 14, 15, 16, 41
TIMED_OUT = 7
ID = UUID(int=5)
TP = {"name": "t", "topic_id": ID}
PRODUCER = {"transactional_id": "x", "producer_id": 7, "producer_epoch": 0}
MEMBER = {"group_id": "g", "member_id": "m", "generation_id": 1, "member_epoch": 1,
          "generation_id_or_member_epoch": 1, "group_instance_id": None}  # fmt: skip
ADDED = [{"name": "t", "partitions": (3,)}]
COMMITTED = [
    {**TP, "partitions": [{"partition_index": 3, "committed_offset": 5, "committed_metadata": ""}]}
]
CONFIG = {"resource_type": 2, "resource_name": "t",
          "configs": [{"name": "retention.ms", "value": "5", "config_operation": 0}]}  # fmt: skip

REFUSED: dict[int, tuple[int, dict[str, Any]]] = {
    0: (NOT_LEADER, {"transactional_id": None, "acks": -1, "timeout": 1,
        "topic_data": [{**TP, "partition_data": [{"index": 3, "records": b"r"}]}]}),
    1: (NOT_LEADER, {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "forgotten_topics_data": [],
        "topics": [{"topic": "t", "topic_id": ID, "partitions": [
            {"partition": 3, "fetch_offset": 0, "partition_max_bytes": 1 << 20}]}]}),
    2: (NOT_LEADER, {"replica_id": -1, "isolation_level": 0, "timeout": 1, "topics": [
        {"name": "t", "partitions": [{"partition_index": 3, "timestamp": -1, "current_leader_epoch": -1}]}]}),
    8: (NOT_COORDINATOR, {**MEMBER, "topics": COMMITTED}),
    9: (NOT_COORDINATOR, {"group_id": "g", "topics": [{"name": "t", "partition_indexes": (3,)}],
        "groups": [{"group_id": "g", "topics": [{**TP, "partition_indexes": (3,)}]}]}),
    11: (NOT_COORDINATOR, {**MEMBER, "session_timeout": 6000, "rebalance_timeout": 6000,
         "protocol_type": "consumer", "protocols": [{"name": "r", "metadata": b""}]}),
    12: (NOT_COORDINATOR, MEMBER),
    13: (NOT_COORDINATOR, {**MEMBER, "members": [{"member_id": "m"}]}),
    14: (NOT_COORDINATOR, {**MEMBER, "assignments": []}),
    15: (NOT_COORDINATOR, {"groups": ("g",), "include_authorized_operations": False}),
    21: (NOT_LEADER, {"timeout": 1, "topics": [{"name": "t", "partitions": [{"partition_index": 3, "offset": 0}]}]}),
    22: (NOT_COORDINATOR, {**PRODUCER, "transaction_timeout": 1000}),
    23: (NOT_LEADER, {"replica_id": -1, "topics": [{"topic": "t", "partitions": [
        {"partition": 3, "current_leader_epoch": -1, "leader_epoch": 1}]}]}),
    24: (NOT_COORDINATOR, {
        "v3_and_below_transactional_id": "x", "v3_and_below_producer_id": 7, "v3_and_below_producer_epoch": 0,
        "v3_and_below_topics": ADDED,
        "transactions": [{**PRODUCER, "verify_only": False, "topics": ADDED}]}),
    25: (NOT_COORDINATOR, {**PRODUCER, "group_id": "g"}),
    26: (NOT_COORDINATOR, {**PRODUCER, "committed": True}),
    27: (NOT_LEADER, {"markers": [{"producer_id": 7, "producer_epoch": 0, "transaction_result": False,
         "coordinator_epoch": 0, "topics": [{"name": "t", "partition_indexes": (3,)}]}]}),
    28: (NOT_COORDINATOR, {**PRODUCER, **MEMBER, "topics": COMMITTED}),
    42: (NOT_COORDINATOR, {"groups_names": ("g",)}),
    47: (NOT_COORDINATOR, {"group_id": "g", "topics": [{"name": "t", "partitions": [{"partition_index": 3}]}]}),
    61: (NOT_LEADER, {"topics": [{"name": "t", "partition_indexes": (3,)}]}),
    65: (NOT_COORDINATOR, {"transactional_ids": ("x",)}),
    68: (NOT_COORDINATOR, {**MEMBER, "member_epoch": 0, "rebalance_timeout": 6000, "subscribed_topic_names": ("t",), "topic_partitions": None}),
    69: (NOT_COORDINATOR, {"group_ids": ("g",), "include_authorized_operations": False}),
}  # fmt: skip
LISTED: dict[int, tuple[str, dict[str, Any]]] = {
    16: ("groups", {"states_filter": (), "types_filter": ()}),
    66: ("transaction_states", {"state_filters": (), "producer_id_filters": (), "duration_filter": -1}),
}  # fmt: skip
ACL = {"resource_type": 2, "resource_name": "t", "resource_pattern_type": 3, "principal": "User:a", "host": "*", "operation": 3,
       "permission_type": 3}  # fmt: skip
ACL_FILTER = {"resource_type_filter": 2, "resource_name_filter": "t", "pattern_type_filter": 3, "principal_filter": None,
              "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
FORWARDED: dict[int, dict[str, Any]] = {
    19: {"timeout": 1, "validate_only": False, "topics": [
        {"name": "t", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}]},
    20: {"timeout": 1, "topic_names": ("t",), "topics": [{"name": "t", "topic_id": None}]},
    30: {"creations": [ACL]},
    31: {"filters": [ACL_FILTER]},
    33: {"validate_only": False, "resources": [CONFIG]},
    37: {"timeout": 1, "validate_only": False, "topics": [{"name": "t", "count": 3, "assignments": None}]},
    38: {"renewers": [], "max_lifetime": -1, "owner_principal_type": None, "owner_principal_name": None},
    39: {"hmac": b"x", "renew_period": 1},
    40: {"hmac": b"x", "expiry_time_period": 1},
    43: {"timeout": 1, "election_type": 0, "topic_partitions": [{"topic": "t", "partitions": (3,)}]},
    44: {"validate_only": False, "resources": [CONFIG]},
    45: {"timeout": 1, "topics": [{"name": "t", "partitions": [{"partition_index": 3, "replicas": (1,)}]}]},
    49: {"validate_only": False, "entries": [{"entity": [{"entity_type": "user", "entity_name": "u"}],
        "ops": [{"key": "request_percentage", "value": 1.0, "remove": False}]}]},
    51: {"deletions": [{"name": "a", "mechanism": 1}], "upsertions": []},
    57: {"timeout": 1, "validate_only": False, "feature_updates": [
        {"feature": "metadata.version", "max_version_level": 1, "allow_downgrade": False, "upgrade_type": 1}]},
    64: {"broker_id": 3},
}  # fmt: skip
DRAWN = {"transactional_id": None, "transaction_timeout": 1000, "producer_id": -1, "producer_epoch": -1}  # fmt: skip
APIS = all_apis().by_key


def codes(answer: Any) -> set[int]:
    """Return all error codes of an answer."""
    if isinstance(answer, tuple | list):
        return {code for each in answer for code in codes(each)}
    if not is_dataclass(answer):
        return set()
    found = set()
    for each in fields(answer):
        value = getattr(answer, each.name)
        found |= {int(value)} if each.name.endswith("error_code") else codes(value)
    return found


def follows(fixture: WireFixture, node_id: int = 2) -> SeenRegion:
    """Let the node be one of three, where nothing waits for a leader."""
    seen = SeenRegion(node_id)
    fixture.services.leader_wait_s = 0.0
    fixture.services.region_nodes = seen.view
    fixture.region.node_id = node_id
    return seen


def test_INV_HNL1_each_api_has_a_row_and_each_row_an_api() -> None:
    assert set(RULES) == set(APIS)
    for key, rule in RULES.items():
        assert (rule.what is Elsewhere.HERE) == (rule.error is ErrorCode.none), key


def test_each_row_that_is_not_served_here_is_tested_below() -> None:
    of = {what: {key for key, rule in RULES.items() if rule.what is what} for what in Elsewhere}
    assert of[Elsewhere.REFUSED] == set(REFUSED)
    assert of[Elsewhere.LISTED] == set(LISTED)
    assert of[Elsewhere.FORWARDED] == set(FORWARDED)


@pytest.mark.parametrize("acting", [True, False], ids=["primary", "mirror"])
@pytest.mark.parametrize("key", REFUSED)
async def test_INV_HNL2_what_the_leader_must_execute_is_refused_so_that_it_is_asked(
    tmp_path: Path, key: int, acting: bool
) -> None:
    error, values = REFUSED[key]
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = acting
        seen = follows(fixture)
        client = await fixture.connect()
        for _ in range(2):
            for version in APIS[key].versions:
                found = codes(await client.call(key, version, values))
                assert found - {0} == {error}, version
            seen.led_by_nobody()
        assert fixture.forwarder.frames == []


@pytest.mark.parametrize("acting", [True, False], ids=["primary", "mirror"])
@pytest.mark.parametrize("key", LISTED)
async def test_lists_of_what_the_leader_has_are_empty_here_and_asked_again_while_nobody_leads(
    tmp_path: Path, key: int, acting: bool
) -> None:
    name, values = LISTED[key]
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = acting
        seen = follows(fixture)
        client = await fixture.connect()
        for expected in (0, NO_COORDINATOR):
            for version in APIS[key].versions:
                answer = await client.call(key, version, values)
                assert (answer.error_code, getattr(answer, name)) == (expected, ())
            seen.led_by_nobody()
        assert fixture.forwarder.frames == []


@pytest.mark.parametrize("acting", [True, False], ids=["primary", "mirror"])
@pytest.mark.parametrize("key", FORWARDED)
async def test_what_changes_something_is_carried_to_the_leader_and_asked_again_while_nobody_leads(
    tmp_path: Path, key: int, acting: bool
) -> None:
    values, forwarder_error = FORWARDED[key], ForwardingFailed("away", may_have_happened=False)
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = acting
        seen = follows(fixture)
        client = await fixture.connect()
        for version in APIS[key].versions:
            fixture.forwarder.failure = forwarder_error
            if (key, version) != (43, 0):  # its answer has no place for an error but the rows
                assert codes(await client.call(key, version, values)) - {0} == {NOT_CONTROLLER}
        carried = len(fixture.forwarder.frames)
        assert carried >= len(APIS[key].versions) - 1
        fixture.forwarder.failure = ForwardingFailed("away", may_have_happened=True)
        assert codes(await client.call(key, APIS[key].versions[-1], values)) - {0} == {TIMED_OUT}
        seen.led_by_nobody()
        carried = len(fixture.forwarder.frames)
        for version in APIS[key].versions:
            assert codes(await client.call(key, version, values)) - {0} == {NOT_CONTROLLER}
        assert len(fixture.forwarder.frames) == carried


async def test_a_producer_id_without_transactional_id_is_drawn_by_the_leader(
    tmp_path: Path,
) -> None:
    """The Java client would look for the coordinator of nothing after 15 or 16, and fail for good."""
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        fixture.forwarder.failure = ForwardingFailed("away")
        client = await fixture.connect()
        for version in APIS[22].versions:
            assert codes(await client.call(22, version, DRAWN)) == {COORDINATOR_LOADS}
        assert len(fixture.forwarder.frames) == len(APIS[22].versions)
        seen.led_by_nobody()
        for version in APIS[22].versions:
            assert codes(await client.call(22, version, DRAWN)) == {COORDINATOR_LOADS}


@pytest.mark.parametrize("key", [key for key in RULES if APIS[key].forward])
async def test_who_leads_a_mirror_carries_to_the_primary_region_what_that_one_must_execute(
    tmp_path: Path, key: int
) -> None:
    values = {**{key: of[1] for key, of in (REFUSED | LISTED).items()}, **FORWARDED}[key]
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        follows(fixture, 1)
        client = await fixture.connect()
        for version in APIS[key].versions:
            fixture.forwarder.answer = b"as it came"
            client.send(key, version, values)
            assert await client.receive_raw() == b"as it came"
        assert len(fixture.forwarder.frames) == len(APIS[key].versions)


async def test_the_answer_of_the_leader_is_passed_on(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        fixture.forwarder.answer = b"as it came"
        client = await fixture.connect()
        client.send(19, 5, FORWARDED[19])
        assert await client.receive_raw() == b"as it came"


# -- changes wait for a leader --------------------------------------------------------------------

LONG_S = 3_600.0


class Looked:
    """A `NodesView` that counts how often it was looked at."""

    def __init__(self, view: NodesView) -> None:
        self._view = view
        self.looks = 0

    @property
    def facts(self) -> NodeFacts:
        self.looks += 1
        return self._view.facts


async def test_INV_HD6_a_change_waits_until_a_leader_is_elected(tmp_path: Path) -> None:
    """librdkafka's admin client asks no second time: a change in an election would fail for whoever asked."""
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        fixture.services.leader_wait_s = LONG_S
        seen.led_by_nobody()
        fixture.services.region_nodes = looked = Looked(seen.view)
        fixture.forwarder.answer = b"as it came"
        client = await fixture.connect()
        client.send(19, 5, FORWARDED[19])
        await until(lambda: looked.looks > 10, "it was looked for a leader")
        assert fixture.forwarder.frames == []
        seen.led_by(3, 2)
        assert await client.receive_raw() == b"as it came"
        assert len(fixture.forwarder.frames) == 1


async def test_INV_HD6_a_change_that_did_not_reach_the_leader_is_carried_to_the_next_one(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        fixture.services.leader_wait_s = LONG_S
        fixture.forwarder.failure = ForwardingFailed("away", may_have_happened=False)
        client = await fixture.connect()
        client.send(19, 5, FORWARDED[19])
        await until(lambda: bool(fixture.forwarder.frames), "it was tried")
        fixture.forwarder.failure, fixture.forwarder.answer = None, b"as it came"
        seen.led_by_nobody()
        seen.led_by(3, 2)
        assert await client.receive_raw() == b"as it came"


async def test_INV_HD6_a_change_at_the_node_that_is_elected_is_executed_there_once_it_acts(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        fixture.services.leader_wait_s = LONG_S
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("nobody acts", may_have_happened=False)
        seen.led_by_nobody()
        seen.led_by(2, 2)
        client = await fixture.connect()
        client.send(19, 5, FORWARDED[19])
        await until(lambda: bool(fixture.forwarder.frames), "it was tried")
        fixture.region.acting = True
        _, answer = await client.receive(19, 5)
        assert codes(answer) == {0}


async def test_INV_HD6_a_change_that_may_have_been_made_is_not_carried_anywhere_again(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        fixture.services.leader_wait_s = LONG_S
        fixture.forwarder.failure = ForwardingFailed("away", may_have_happened=True)
        client = await fixture.connect()
        assert codes(await client.call(19, 5, FORWARDED[19])) - {0} == {TIMED_OUT}
        assert len(fixture.forwarder.frames) == 1


async def test_INV_HD6_what_was_handed_back_is_not_sent_again(tmp_path: Path) -> None:
    """Its beginning alone is left: that was sent as the request, and what does not decode ended the connection with a traceback."""
    metadata = [{"name": "range", "metadata": bytes(10_000)}]
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        fixture.services.leader_wait_s = LONG_S
        fixture.region.acting = False
        loads = iter([True] * 3)
        fixture.services.begins_to_act = lambda: next(loads, False)
        fixture.forwarder.failure = ForwardingFailed("it leads no more", may_have_happened=False)
        client = await fixture.connect()
        answer = await client.call(11, 9, {**REFUSED[11][1], "protocols": metadata})
        assert codes(answer) == {NO_COORDINATOR}
        (frame,) = fixture.forwarder.frames
        assert len(frame) > 10_000


async def test_INV_HD7_what_comes_before_an_elected_node_takes_writes_waits_and_keeps_its_order(
    tmp_path: Path,
) -> None:
    """Batches of one producer, the later ones sent when the gate has just opened: any other order is an error of sequences."""
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        await fixture.topic("t")
        fixture.services.leader_wait_s = LONG_S
        fixture.region.acting, asked = False, 0

        def begins() -> bool:
            nonlocal asked
            asked += 1
            return True

        fixture.services.begins_to_act = begins
        client = await fixture.connect()
        for at in range(3):
            client.send(0, 9, produced(at))
        await until(lambda: asked > 8, "the first one looks again and again")
        fixture.region.acting = True
        for at in range(3, 6):
            client.send(0, 9, produced(at))
        offsets = []
        for _ in range(6):
            _, answer = await client.receive(0, 9)
            [told] = answer.responses[0].partition_responses
            offsets.append((told.error_code.value, told.base_offset))
        assert offsets == [(0, at) for at in range(6)]
        assert fixture.forwarder.frames == []


async def test_INV_HD7_a_node_that_does_not_come_to_act_does_not_let_anybody_wait_for_good(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        await fixture.topic("t")
        fixture.services.leader_wait_s = 0.2
        fixture.region.acting = False
        fixture.services.begins_to_act = lambda: True
        fixture.forwarder.failure = ForwardingFailed("nobody acts", may_have_happened=False)
        client = await fixture.connect()
        client.send(0, 9, produced(0))
        _, answer = await client.receive(0, 9)
        assert codes(answer) - {0}, "as it was answered without waiting"
        assert len(fixture.forwarder.frames) == 1


def produced(at: int) -> dict[str, Any]:
    origin = Origin(ProducerId(9), ProducerEpoch(0), SequenceNumber(at))
    return produce_of(batch(f"{at}", origin=origin))


# -- the quorum -----------------------------------------------------------------------------------

QUORUM = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}


async def test_who_does_not_lead_the_quorum_asks_who_does(tmp_path: Path) -> None:
    """kafka-metadata-quorum.sh asks one node, any, and knows no other than the answer of the quorum's leader."""
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)  # it leads the logs; that is another matter
        alone = fixture.services.quorum()
        other = Member(2, UUID(int=2))
        fixture.services.quorum = lambda: replace(alone, leader=other, followers={})
        fixture.forwarder.answer = b"as it came"
        client = await fixture.connect()
        client.send(55, 2, QUORUM)
        assert await client.receive_raw() == b"as it came"
        fixture.forwarder.failure = ForwardingFailed("away", may_have_happened=False)
        assert codes(await client.call(55, 2, QUORUM)) == {0, NOT_LEADER}
        fixture.services.quorum = lambda: replace(alone, leader=None, followers={})
        carried = len(fixture.forwarder.frames)
        assert codes(await client.call(55, 2, QUORUM)) == {0, NOT_LEADER}
        assert len(fixture.forwarder.frames) == carried


async def test_KIP853_the_leader_of_the_quorum_tells_where_its_voters_are_met(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        alone = fixture.services.quorum()
        voters = (alone.me, Member(2, UUID(int=2)))
        membership = msgspec.structs.replace(alone.membership, voters=voters)
        told = replace(alone, membership=membership)
        fixture.services.quorum = lambda: told
        client = await fixture.connect()
        answer = await client.call(55, 2, QUORUM)
        assert {int(node.node_id): len(node.listeners) for node in answer.nodes}[2] == 1
        assert fixture.forwarder.frames == []


async def test_configs_of_this_very_node_are_changed_here(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 2)
        fixture.region.node_id = 1
        client = await fixture.connect()
        of_node = {"resource_type": 4, "resource_name": "1", "configs": ()}
        await client.call(44, 1, {"validate_only": True, "resources": [of_node]})
        assert fixture.forwarder.frames == []


# -- KIP-951 --------------------------------------------------------------------------------------


@pytest.mark.parametrize("version", range(3, 14))
async def test_KIP951_a_refused_produce_says_who_leads(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        client = await fixture.connect()
        answer = await client.call(0, version, REFUSED[0][1])
        (row,) = answer.responses[0].partition_responses
        assert (row.index, row.base_offset) == (3, -1)
        if version < 10:
            assert not hasattr(row, "current_leader")
            return
        leader = row.current_leader
        assert (leader.leader_id, leader.leader_epoch) == (1, leader_epoch(1))
        (endpoint,) = answer.node_endpoints
        assert (endpoint.node_id, endpoint.host, endpoint.port) == (1, "127.0.0.1", 9092)
        seen.led_by_nobody()
        answer = await client.call(0, version, REFUSED[0][1])
        (row,) = answer.responses[0].partition_responses
        assert (row.current_leader.leader_id, row.current_leader.leader_epoch) == (-1, -1)
        assert answer.node_endpoints == ()


@pytest.mark.parametrize("version", range(4, 19))
async def test_KIP951_a_refused_fetch_says_who_leads(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        client = await fixture.connect()
        answer = await client.call(1, version, REFUSED[1][1])
        (row,) = answer.responses[0].partitions
        assert (row.partition_index, row.records or b"") == (3, b"")
        if version >= 16:
            leader = row.current_leader
            assert (leader.leader_id, leader.leader_epoch) == (1, leader_epoch(1))
            (endpoint,) = answer.node_endpoints
            assert (endpoint.node_id, endpoint.host, endpoint.port) == (1, "127.0.0.1", 9092)


async def test_KIP227_a_session_of_a_node_that_leads_no_more_begins_anew(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture, 1)
        await fixture.topic("t")
        client = await fixture.connect()
        opened = await client.call(1, 12, fetch_of(0, session_id=0, session_epoch=0))
        assert opened.session_id != 0
        seen.led_by_nobody()
        seen.led_by(2, 2)
        goes_on = {**fetch_of(0), "topics": [], "session_id": opened.session_id}
        answer = await client.call(1, 12, goes_on | {"session_epoch": 1})
        assert (answer.error_code, answer.session_id) == (ErrorCode.fetch_session_id_not_found, 0)
        anew = fetch_of(0, session_id=opened.session_id, session_epoch=0)
        answer = await client.call(1, 12, anew)
        assert (answer.error_code, answer.session_id) == (ErrorCode.none, 0)
        assert answer.responses[0].partitions[0].error_code == NOT_LEADER


# -- the order of a connection --------------------------------------------------------------------


async def test_INV_HD5_no_produce_is_executed_behind_one_that_was_refused_though_the_node_leads_now(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        seen = follows(fixture, 2)
        client = await fixture.connect()
        assert codes(await client.call(0, 9, produce_of(batch("first")))) == {NOT_LEADER}
        seen.led_by_nobody()
        seen.led_by(2, 2)
        client.send(0, 9, produce_of(batch("second")))
        assert await client.closed()
        assert fixture.partition("t").log_end_offset == 0
        again = await fixture.connect()
        assert codes(await again.call(0, 9, produce_of(batch("first")))) == {0}


async def test_a_produce_without_acks_closes_the_connection(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        client = await fixture.connect()
        client.send(0, 9, produce_of(batch(), acks=0))
        assert await client.closed()


async def test_other_requests_of_a_connection_that_had_a_refused_produce_go_on(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture)
        client = await fixture.connect()
        for _ in range(2):
            assert codes(await client.call(0, 9, produce_of(batch()))) == {NOT_LEADER}
            await client.call(3, 9, {"topics": (), "allow_auto_topic_creation": False,
                "include_cluster_authorized_operations": False,
                "include_topic_authorized_operations": False})  # fmt: skip


# -- what all nodes tell --------------------------------------------------------------------------

EVERYTHING = {"topics": None, "allow_auto_topic_creation": False,
              "include_cluster_authorized_operations": False,
              "include_topic_authorized_operations": False}  # fmt: skip


def told(answer: Any) -> tuple[list[int], int, list[tuple[int, int, int]]]:
    """Return the brokers, the controller, and (error, leader, leader epoch) of each partition."""
    rows = [row for topic in answer.topics for row in topic.partitions]
    return (
        [int(each.node_id) for each in answer.brokers],
        int(answer.controller_id),
        [(int(row.error_code), int(row.leader_id), int(row.leader_epoch)) for row in rows],
    )


@pytest.mark.parametrize("me", [1, 2])
async def test_metadata_follow_the_leadership_from_one_leader_over_none_to_another(
    tmp_path: Path, me: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t")
        seen = follows(fixture, me)
        client = await fixture.connect()

        async def ask() -> Any:
            answer = await client.call(3, 9, EVERYTHING)
            assert answer == await client.call(3, 9, EVERYTHING), "the second from written rows"
            return answer

        assert told(await ask()) == ([1, 2, 3], 1, [(0, 1, leader_epoch(1))])
        seen.led_by_nobody()
        known = [1, 2, 3]  # librdkafka gives up who is not named any more
        answer = await ask()
        assert told(answer) == (known, -1, [(5, -1, leader_epoch(1))])
        (row,) = answer.topics[0].partitions
        assert (row.replica_nodes, row.isr_nodes) == ((1, 2, 3), (1, 2, 3))
        assert row.offline_replicas == (() if me == 1 else (1,))
        seen.led_by(2, 2)
        answer = await ask()
        assert told(answer) == (known, 2, [(0, 2, leader_epoch(2))])
        (row,) = answer.topics[0].partitions
        # An election drops nobody: the new leader does, as its first act (ADR 47).
        assert (row.replica_nodes, row.isr_nodes) == ((2, 1, 3), (1, 2, 3))
        described = await client.call(75, 0, {"topics": [{"name": "t"}], "cursor": None})
        (row,) = described.topics[0].partitions
        assert (row.leader_id, row.leader_epoch, row.isr_nodes) == (2, leader_epoch(2), (1, 2, 3))
        assert topic == fixture.services.metadata.image.topics["t"]


async def test_a_partition_that_is_not_here_yet_is_led_all_the_same_and_one_stopped_at_the_leader_is_not(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        seen = follows(fixture, 2)
        fixture.partition("t").log.fail("its disk broke")
        client = await fixture.connect()
        answer = await client.call(3, 9, EVERYTHING)
        assert told(answer)[2] == [(0, 1, leader_epoch(1))]
        seen.led_by_nobody()
        seen.led_by(2, 2)
        answer = await client.call(3, 9, EVERYTHING)
        assert told(answer)[2] == [(5, -1, leader_epoch(2))]
        (row,) = answer.topics[0].partitions
        assert (row.isr_nodes, row.offline_replicas) == ((1, 3), (1, 2))


async def test_KIP1073_describe_cluster_tells_the_fenced_ones_where_they_are_asked_for(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        seen = follows(fixture)
        client = await fixture.connect()
        asked = {"include_cluster_authorized_operations": False, "endpoint_type": 1}
        answer = await client.call(60, 1, asked)
        assert [int(each.broker_id) for each in answer.brokers] == [1, 2, 3]
        assert answer.controller_id == 1
        seen.led_by_nobody()
        answer = await client.call(60, 2, asked | {"include_fenced_brokers": True})
        assert [(each.broker_id, each.is_fenced) for each in answer.brokers] == [
            (1, True), (2, False), (3, False),
        ]  # fmt: skip
        answer = await client.call(60, 2, asked | {"include_fenced_brokers": False})
        assert ([int(each.broker_id) for each in answer.brokers], answer.controller_id) == (
            [2, 3],
            -1,
        )


@pytest.mark.parametrize("version", range(7))
async def test_the_leader_coordinates_once_it_has_loaded(tmp_path: Path, version: int) -> None:
    asked = {"key": "g", "key_type": 0, "coordinator_keys": ("g",)}
    async with wire_fixture(tmp_path) as fixture:
        client = await fixture.connect()

        async def found() -> tuple[int, int, str, int]:
            answer = await client.call(10, version, asked)
            row = answer.coordinators[0] if version >= 4 else answer
            return int(row.error_code), int(row.node_id), row.host, int(row.port)

        for me in (2, 1):
            seen = follows(fixture, me)
            assert await found() == (0, 1, "127.0.0.1", 9092)
        fixture.region.acting = False
        assert await found() == (NO_COORDINATOR, -1, "", -1)
        seen = follows(fixture, 2)
        assert (await found())[:2] == (0, 1), "whether the leader has loaded, others do not know"
        seen.led_by_nobody()
        assert await found() == (NO_COORDINATOR, -1, "", -1)


# -- at the leader --------------------------------------------------------------------------------


async def test_a_topic_may_ask_for_as_many_replicas_as_the_region_has_nodes_and_has_them_all(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        client = await fixture.connect()
        for factor, error in ((-1, 0), (1, 0), (3, 0), (4, 38), (0, 38)):
            name = f"t{factor}"
            topic = {"name": name, "num_partitions": 1, "replication_factor": factor, "configs": (),
                     "assignments": ()}  # fmt: skip
            answer = await client.call(
                19, 5, {"topics": [topic], "timeout": 1, "validate_only": False}
            )
            assert answer.topics[0].error_code == error, factor
            if not error:
                assert answer.topics[0].replication_factor == 3
        for replicas, error in (((2, 1), 0), ((1, 2, 3), 0), ((4,), 39), ((1, 1), 39), ((), 39)):
            topic = {"name": f"a{len(replicas)}{sum(replicas)}", "num_partitions": -1,
                     "replication_factor": -1, "configs": (),
                     "assignments": [{"partition_index": 0, "broker_ids": replicas}]}  # fmt: skip
            answer = await client.call(
                19, 5, {"topics": [topic], "timeout": 1, "validate_only": False}
            )
            assert answer.topics[0].error_code == error, replicas


@pytest.mark.parametrize(("nodes", "most"), [(1, 1), (3, 3)])
async def test_no_more_nodes_must_be_in_sync_than_there_are(
    tmp_path: Path, nodes: int, most: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        if nodes == 3:
            follows(fixture, 1)
        await fixture.topic("t")
        client = await fixture.connect()
        for count in (1, 2, 3, 4):
            configs = [{"name": "min.insync.replicas", "value": str(count), "config_operation": 0}]
            resource = {"resource_type": 2, "resource_name": "t", "configs": configs}
            answer = await client.call(44, 1, {"validate_only": True, "resources": [resource]})
            assert answer.responses[0].error_code == (0 if count <= most else 40), count


async def test_INV_HRD5_who_leads_and_is_not_sure_of_it_names_no_fault_that_may_be_none(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        gap = batch(origin=Origin(ProducerId(7), ProducerEpoch(0), base_sequence=SequenceNumber(5)))
        first = batch(
            origin=Origin(ProducerId(7), ProducerEpoch(0), base_sequence=SequenceNumber(0))
        )
        older = batch(
            origin=Origin(ProducerId(8), ProducerEpoch(0), base_sequence=SequenceNumber(0))
        )
        newer = batch(
            origin=Origin(ProducerId(8), ProducerEpoch(1), base_sequence=SequenceNumber(0))
        )
        assert codes(await client.call(0, 9, produce_of(first))) == {0}
        assert codes(await client.call(0, 9, produce_of(newer))) == {0}
        fixture.services.is_sure = lambda _: False
        assert codes(await client.call(0, 9, produce_of(gap))) == {6}
        fenced = await fixture.connect()
        assert codes(await fenced.call(0, 9, produce_of(older))) == {47}, (
            "no other leader undoes it"
        )
        assert codes(await client.call(1, 12, fetch_of(99))) == {0, 6}
        assert codes(await client.call(1, 12, fetch_of(0))) == {0}
        assert fixture.partition("t").log_end_offset == 2
        fixture.services.is_sure = lambda _: True
        again = await fixture.connect()
        assert codes(await again.call(0, 9, produce_of(gap))) == {45}
        assert codes(await again.call(1, 12, fetch_of(99))) == {0, 1}


async def test_R1_acks_all_is_refused_before_the_append_while_too_few_are_in_sync(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        await fixture.topic("u")
        client = await fixture.connect()
        fixture.services.is_short = lambda partition: partition.tp.topic == "t"
        assert codes(await client.call(0, 9, produce_of(batch()))) == {19}
        assert fixture.partition("t").log_end_offset == 0
        assert codes(await client.call(0, 9, produce_of(batch(), topic="u"))) == {0}
        assert codes(await client.call(0, 9, produce_of(batch(), acks=1))) == {0}
        assert fixture.partition("t").log_end_offset == 1
        fixture.services.is_short = lambda _: False
        assert codes(await client.call(0, 9, produce_of(batch()))) == {0}


@pytest.mark.parametrize(
    ("replicas", "error"),
    [((1, 2, 3), 0), ((2, 1, 3), 39), ((1, 2), 39), ((1, 2, 3, 4), 39), (None, 85)],
)
async def test_a_partition_stays_on_all_nodes(
    tmp_path: Path, replicas: tuple[int, ...] | None, error: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        follows(fixture, 1)
        client = await fixture.connect()
        part = {"partition_index": 0, "replicas": replicas}
        answer = await client.call(
            45, 0, {"timeout": 1, "topics": [{"name": "t", "partitions": [part]}]}
        )
        assert answer.responses[0].partitions[0].error_code == error


async def test_a_node_of_the_region_is_not_unregistered_by_this_order(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        follows(fixture, 1)
        client = await fixture.connect()
        answers = [await client.call(64, 0, {"broker_id": each}) for each in (1, 3, 9)]
        assert [int(answer.error_code) for answer in answers] == [42, 42, 102]
