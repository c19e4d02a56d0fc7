"""Ways round an authorizer that other brokers have had, each tried here; and what an answer would give away."""

import asyncio
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from msgspec import structs

from idempotency.identity import ProducerEpoch, ProducerId, SequenceNumber
from region_broker.handlers.dispatch.authorizing import check_rows
from region_broker.records.batches import Origin, Record, build_batch
from region_broker.security.access import (
    CLUSTER_NAME,
    AccessChange,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
)
from region_broker.security.authorizer import AclAuthorizer, AllowAll
from region_broker.security.identity import ANONYMOUS_PRINCIPAL, Identity
from tests.fixtures.cluster_images import in_sync
from tests.fixtures.judged_apis import (
    DENIED,
    ROOT,
    Judged,
    acl,
    error_codes,
    judged_apis,
)
from tests.fixtures.kafka_port import RawClient
from tests.fixtures.nodes_seen import SeenRegion
from tests.fixtures.played_spread import spread_over
from tests.fixtures.transaction_port import mirror_of
from tests.unit.region_broker.handlers.kafka_acl_table import batch, described, produce
from tests.unit.region_broker.handlers.test_led_apart import SeenMetadata

TOPIC, GROUP, CLUSTER, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.CLUSTER, ResourceType.TRANSACTIONAL_ID  # fmt: skip
READ, WRITE, DESCRIBE, DELETE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.DELETE  # fmt: skip
TOPIC_DENIED, ID_DENIED, SECURITY_DISABLED, SESSION_NOT_FOUND = 29, 53, 54, 70
NAMELESS = {"allow_auto_topic_creation": False, "include_cluster_authorized_operations": False,
            "include_topic_authorized_operations": False}  # fmt: skip


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        found.give(acl(TOPIC, Operation.ALL, name="mine"), acl(ID, Operation.ALL, name="my-id"))
        yield found


def orders_of(judged: Judged) -> UUID:
    return judged.services.metadata.image.topics["orders"].topic_id


def fetch_of(topic: UUID | str, *, session_id: int = 0, session_epoch: int = -1, wait_ms: int = 0) -> dict[str, Any]:  # fmt: skip
    partition = {"partition": 0, "current_leader_epoch": -1, "fetch_offset": 0, "last_fetched_epoch": -1,
                 "log_start_offset": -1, "partition_max_bytes": 1000}  # fmt: skip
    return {"replica_id": -1, "max_wait": wait_ms, "min_bytes": 1, "max_bytes": 1000, "isolation_level": 0,
            "session_id": session_id, "session_epoch": session_epoch, "forgotten_topics_data": [], "rack_id": "",
            "topics": [{"topic_id": topic, "topic": topic, "partitions": [partition]}]}  # fmt: skip


def test_INV_HAZ1_an_api_that_nobody_has_said_who_may_use_is_served_to_nobody() -> None:
    check_rows([0, 1])
    with pytest.raises(AssertionError, match=r"INV-HAZ1.*\[999\]"):
        check_rows([0, 999])


# --- by forwarding --------------------------------------------------------------------------------


async def produce_over(port: int) -> set[int]:
    client = RawClient(*await asyncio.open_connection("127.0.0.1", port))
    try:
        return error_codes(await client.call(0, 9, produce(batch())))
    finally:
        client.writer.close()


async def test_INV_HAZ2_a_mirror_that_allows_everything_gives_its_clients_no_rights_elsewhere(
    judged: Judged,
) -> None:
    real, judged.services.authorizer = judged.services.authorizer, AllowAll()
    async with mirror_of(judged.wire) as (port, _region):
        judged.services.authorizer = real
        judged.give(acl(TOPIC, Operation.ALL, name="orders", who="User:carol"))
        assert await produce_over(port) == {TOPIC_DENIED}
        assert judged.wire.partition("orders").log_end_offset == 0
        judged.give(acl(TOPIC, WRITE, name="orders", who=ANONYMOUS_PRINCIPAL, host="127.0.0.1"))
        assert await produce_over(port) == set()
        judged.give(acl(TOPIC, WRITE, name="orders", who=ANONYMOUS_PRINCIPAL, host="10.9.9.9"))
        assert await produce_over(port) == {TOPIC_DENIED}, "the client's address goes with it"


async def test_INV_HAZ2_the_primary_region_decides_though_a_mirror_that_lags_would_refuse(
    judged: Judged,
) -> None:
    real = judged.services.authorizer
    judged.services.authorizer = AclAuthorizer(
        lambda: replace_access(judged, acl(TOPIC, WRITE, name="nothing"))
    )
    async with mirror_of(judged.wire) as (port, _region):
        judged.services.authorizer = real
        judged.give(acl(TOPIC, WRITE, name="orders", who=ANONYMOUS_PRINCIPAL))
        assert await produce_over(port) == set()


def replace_access(judged: Judged, *acls: Acl) -> Any:
    return structs.replace(judged.access, acls=acls)


# --- by the id of a topic -------------------------------------------------------------------------


async def test_INV_HAZ4_a_topic_that_is_named_by_its_id_is_judged_by_its_name(
    judged: Judged,
) -> None:
    orders = orders_of(judged)
    written = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [
        {"topic_id": orders, "partition_data": [{"index": 0, "records": batch()}]}]}  # fmt: skip
    assert error_codes(await judged.ask(0, 13, written)) == {TOPIC_DENIED}
    assert judged.wire.partition("orders").log_end_offset == 0
    await judged.ask(0, 13, written, who=ROOT)
    assert judged.wire.partition("orders").log_end_offset == 1
    read = await judged.ask(1, 17, fetch_of(orders))
    assert error_codes(read) == {TOPIC_DENIED}
    assert not read.responses[0].partitions[0].records
    named = await judged.ask(3, 12, {"topics": [{"name": None, "topic_id": orders}], **NAMELESS})
    assert error_codes(named) == {TOPIC_DENIED}
    assert "orders" not in str(named)
    gone = await judged.ask(20, 6, {"timeout": 1, "topics": [{"name": None, "topic_id": orders}]})
    assert error_codes(gone) == {TOPIC_DENIED}
    assert "orders" not in str(gone), "an id is no secret, its name may be"
    assert "orders" in judged.services.metadata.image.topics


async def test_a_topic_that_may_be_seen_and_not_deleted_is_named(judged: Judged) -> None:
    judged.give(acl(TOPIC, DESCRIBE, name="orders"))
    asked = {"timeout": 1, "topics": [{"name": None, "topic_id": orders_of(judged)}]}
    gone = await judged.ask(20, 6, asked)
    assert (error_codes(gone), gone.responses[0].name) == ({TOPIC_DENIED}, "orders")


# --- by what a batch says -------------------------------------------------------------------------


async def refused_whole(judged: Judged, values: dict[str, Any]) -> bool:
    answer = await judged.ask(0, 11, values)
    rows = [row for topic in answer.responses for row in topic.partition_responses]
    assert judged.wire.partition("orders").log_end_offset == 0
    return all(int(row.error_code) == ID_DENIED for row in rows)


async def test_CVE_2018_17196_INV_HPP1_a_transactional_batch_needs_its_id_whatever_the_request_says(
    judged: Judged,
) -> None:
    judged.give(acl(TOPIC, WRITE, name="orders"), acl(ID, WRITE, name="my-id"))
    sealed = batch(producer=7, transactional=True)
    assert await refused_whole(judged, produce(sealed, None)), "none is named"
    assert await refused_whole(judged, produce(sealed, "their-id"))
    hidden = produce(batch())
    hidden["topic_data"].append(
        {"name": "orders", "partition_data": [{"index": 1, "records": sealed}]}
    )
    assert await refused_whole(judged, hidden), "behind one that needs none"
    many = produce(batch())
    many["topic_data"][0]["partition_data"] = [
        {"index": index % 3, "records": batch()} for index in range(300)
    ] + [{"index": 0, "records": sealed}]
    assert await refused_whole(judged, many), "in a request that is taken in pieces"
    plain = await judged.ask(0, 11, produce(batch(), "their-id"))
    assert error_codes(plain) == set(), "as in Kafka, an id without a transaction is nothing"
    mine = await judged.ask(0, 11, produce(sealed, "my-id"))
    assert not error_codes(mine) & DENIED


async def test_INV_HPP2_an_idempotent_batch_needs_its_topic_alone(judged: Judged) -> None:
    judged.give(acl(TOPIC, WRITE, name="orders"))
    origin = Origin(ProducerId(7), ProducerEpoch(0), base_sequence=SequenceNumber(0))
    written = produce(bytes(build_batch([Record(key=None, value=b"v")], origin=origin)))
    assert error_codes(await judged.ask(0, 11, written)) == set()
    drawn = {"transactional_id": None, "transaction_timeout": 1, "producer_id": -1, "producer_epoch": -1}  # fmt: skip
    assert error_codes(await judged.ask(22, 5, drawn)) == set()
    judged.give(acl(TOPIC, READ, name="orders"))
    assert error_codes(await judged.ask(0, 11, written)) == {TOPIC_DENIED}
    assert error_codes(await judged.ask(22, 5, drawn)) == {31}


async def test_a_batch_for_a_topic_that_is_denied_leaves_the_others_alone(judged: Judged) -> None:
    await judged.wire.topic("mine")
    both = produce(batch())
    both["topic_data"].append({"name": "mine", "partition_data": [{"index": 0, "records": batch()}]})  # fmt: skip
    answer = await judged.ask(0, 9, both)
    codes = [int(topic.partition_responses[0].error_code) for topic in answer.responses]
    assert codes == [TOPIC_DENIED, 0]
    assert judged.told == [(WRITE, TOPIC, "orders")], "told once"


async def test_an_id_of_somebody_else_is_no_way_to_their_transaction(judged: Judged) -> None:
    theirs = {"transactional_id": "their-id", "producer_id": 1, "producer_epoch": 0}
    for key, version, more in (
        (22, 5, {"transaction_timeout": 1}), (25, 3, {"group_id": "g"}), (26, 4, {"committed": True}), (26, 1, {"committed": False}),
    ):  # fmt: skip
        assert error_codes(await judged.ask(key, version, {**theirs, **more})) == {ID_DENIED}
    batched = {"transactions": [{**theirs, "verify_only": True, "topics": []}]}
    assert error_codes(await judged.ask(24, 5, batched)) == {31}, "what brokers ask is no client's"


# --- of an answer ---------------------------------------------------------------------------------


def about(name: str) -> list[tuple[int, int, dict[str, Any]]]:
    """Return requests about a topic, which may be there or not."""
    part = {"partition_index": 0}
    return [
        (0, 9, produce(batch(), topic=name)),
        (1, 11, fetch_of(name)),
        (2, 6, {"replica_id": -1, "isolation_level": 0, "topics": [{"name": name, "partitions": [{**part, "timestamp": -1, "current_leader_epoch": -1}]}]}),
        (3, 9, {"topics": [{"name": name}], **NAMELESS, "allow_auto_topic_creation": True}),
        (19, 5, {"timeout": 1, "validate_only": True, "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}]}),
        (20, 5, {"timeout": 1, "topic_names": (name,)}),
        (21, 1, {"timeout": 1, "topics": [{"name": name, "partitions": [{**part, "offset": 0}]}]}),
        (23, 4, {"replica_id": -1, "topics": [{"topic": name, "partitions": [{"partition": 0, "current_leader_epoch": -1, "leader_epoch": 1}]}]}),
        (32, 1, described(2, name)),
        (37, 1, {"timeout": 1, "validate_only": True, "topics": [{"name": name, "count": 9, "assignments": None}]}),
        (61, 0, {"topics": [{"name": name, "partition_indexes": (0,)}]}),
        (75, 0, {"topics": [{"name": name}], "response_partition_limit": 9, "cursor": None}),
    ]  # fmt: skip


async def test_INV_HAZ4_who_may_not_see_a_topic_cannot_tell_whether_it_is_there(
    judged: Judged,
) -> None:
    assert "orders" in judged.services.metadata.image.topics
    judged.wire.config.auto_create_topics = True
    for there, not_there in zip(about("orders"), about("absent"), strict=True):
        one, other = str(await judged.ask(*there)), str(await judged.ask(*not_there))
        assert one.replace("orders", "NAME") == other.replace("absent", "NAME"), there[0]
    assert "absent" not in judged.services.metadata.image.topics


async def test_INV_HAZ4_whom_a_node_names_instead_of_itself_tells_nobody_what_is_there(
    judged: Judged,
) -> None:
    """Leaders are spread: of a topic that is there each group's leader is named, of any other the one of the main group."""
    seen = SeenRegion(2, spread_over(in_sync(), orders_of(judged)))
    services = judged.services
    services.region_nodes, services.leader_wait_s = seen.view, 0.0
    services.metadata = SeenMetadata(judged.wire, seen)
    judged.wire.region.node_id = 2

    async def named(topic: str, **who: Any) -> list[str]:
        written = {"transactional_id": None, "acks": -1, "timeout": 1, "topic_data": [
            {"name": topic, "partition_data": [{"index": at, "records": batch()} for at in range(3)]}]}  # fmt: skip
        key = orders_of(judged) if topic == "orders" else UUID(int=99)
        fetch = fetch_of(key)
        [part] = fetch["topics"][0]["partitions"]
        fetch["topics"][0]["partitions"] = [{**part, "partition": at} for at in range(3)]
        told = [await judged.ask(0, 10, written, **who), await judged.ask(1, 16, fetch, **who)]
        return [str(each).replace(topic, "NAME").replace(str(key), "ID") for each in told]

    assert await named("orders") == await named("absent")
    for one, other in zip(
        await named("orders", who=ROOT), await named("absent", who=ROOT), strict=True
    ):
        assert one != other, "who may see it is told"


async def test_lists_leave_out_what_may_not_be_seen(judged: Judged) -> None:
    await judged.wire.topic("mine")
    everything = {"topics": None, **NAMELESS}
    told = await judged.ask(3, 9, everything)
    assert [topic.name for topic in told.topics] == ["mine"]
    paged = await judged.ask(75, 0, {"topics": [], "response_partition_limit": 9, "cursor": None})
    assert [topic.name for topic in paged.topics] == ["mine"]
    assert judged.told == [], "nobody asked for them"
    told = await judged.ask(3, 9, everything, who=ROOT)
    assert {"mine", "orders"} <= {topic.name for topic in told.topics}


async def test_texts_of_refusals_name_nothing_that_was_not_asked(judged: Judged) -> None:
    for key, version, values in about("orders"):
        text = str(await judged.ask(key, version, values))
        assert not re.search(r"User:|10\.0\.0\.|carol|ACL", text), key


# --- rights that come and go ----------------------------------------------------------------------


async def test_a_session_that_may_read_no_more_is_told_so_and_shown_nothing(
    judged: Judged,
) -> None:
    orders = orders_of(judged)
    judged.give(acl(TOPIC, READ, name="orders"), acl(TOPIC, WRITE, name="orders", who="User:bob"))
    opened = await judged.ask(1, 17, fetch_of(orders, session_epoch=0))
    assert opened.session_id > 0
    goes_on = {**fetch_of(orders, session_id=opened.session_id, session_epoch=1, wait_ms=5_000), "topics": []}  # fmt: skip
    async with asyncio.timeout(5), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(judged.ask(1, 17, goes_on))
        await asyncio.sleep(0)
        judged.give(acl(TOPIC, WRITE, name="orders", who="User:bob"))
        await judged.ask(0, 9, produce(batch()), who=Identity("User:bob", host="10.0.0.2"))
    answer = waiting.result()
    assert error_codes(answer) == {TOPIC_DENIED}
    (row,) = answer.responses[0].partitions
    assert not row.records


async def test_INV_FE8_a_session_of_somebody_else_is_not_there(
    judged: Judged,
) -> None:
    orders = orders_of(judged)
    await judged.ask(0, 9, produce(batch()), who=ROOT)
    opened = await judged.ask(1, 17, fetch_of(orders, session_epoch=0), who=ROOT)
    await judged.ask(0, 9, produce(batch()), who=ROOT)
    stolen = {**fetch_of(orders, session_id=opened.session_id, session_epoch=1), "topics": []}
    answer = await judged.ask(1, 17, stolen)
    assert error_codes(answer) == {SESSION_NOT_FOUND}
    assert not answer.responses, "nor what it reads"
    await judged.ask(1, 17, fetch_of(orders, session_id=opened.session_id, session_epoch=-1))
    theirs = await judged.ask(1, 17, stolen, who=ROOT)
    assert error_codes(theirs) == set(), "nobody else has ended it"
    assert theirs.responses[0].partitions[0].records


# --- what one may do (KIP-430) --------------------------------------------------------------------


def operations(bits: int) -> set[Operation]:
    return {each for each in Operation if bits >> each & 1}


async def test_KIP430_operations_are_those_of_who_asks(judged: Judged) -> None:
    await judged.wire.topic("mine")
    judged.give(
        acl(TOPIC, READ, name="mine"), acl(TOPIC, DELETE, name="mine"), acl(GROUP, DESCRIBE, name="g"),
        acl(CLUSTER, Operation.ALTER, name=CLUSTER_NAME),
    )  # fmt: skip
    asked = {"topics": [{"name": "mine"}], "allow_auto_topic_creation": False, "include_cluster_authorized_operations": True,
             "include_topic_authorized_operations": True}  # fmt: skip
    for _ in range(2):
        told = await judged.ask(3, 9, asked)
        assert operations(told.topics[0].topic_authorized_operations) == {READ, DELETE, DESCRIBE}
        assert operations(told.cluster_authorized_operations) == {Operation.ALTER, DESCRIBE}
        other = await judged.ask(3, 9, asked, who=ROOT)
        assert len(operations(other.topics[0].topic_authorized_operations)) == 8
    cluster = await judged.ask(60, 0, {"include_cluster_authorized_operations": True})
    assert operations(cluster.cluster_authorized_operations) == {Operation.ALTER, DESCRIBE}
    group = await judged.ask(15, 5, {"groups": ("g",), "include_authorized_operations": True})
    assert operations(group.groups[0].authorized_operations) == {DESCRIBE}
    judged.give(acl(TOPIC, READ, name="mine"))
    cluster = await judged.ask(60, 0, {"include_cluster_authorized_operations": True})
    assert cluster.cluster_authorized_operations == 0, "who may not describe it is told so"


async def test_configs_of_a_new_topic_are_told_to_who_may_see_them(judged: Judged) -> None:
    judged.give(acl(CLUSTER, Operation.CREATE, name=CLUSTER_NAME))
    new = {"timeout": 1, "validate_only": True, "topics": [
        {"name": "new", "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}]}  # fmt: skip
    (row,) = (await judged.ask(19, 7, new)).topics
    assert (int(row.error_code), int(row.topic_config_error_code), row.configs) == (0, TOPIC_DENIED, None)  # fmt: skip
    assert (row.num_partitions, row.replication_factor) == (-1, -1)


# --- the audit trail's topic ----------------------------------------------------------------------


@pytest.mark.parametrize("name", ["kept.trail", "kept_trail"])
async def test_INV_AUZ7_a_right_on_the_cluster_makes_no_audit_topic(
    judged: Judged, name: str
) -> None:
    """CREATE on the cluster is CREATE on all topics: whoever makes this one first says for how long it keeps records."""
    root = frozenset({ROOT.principal})
    judged.services.authorizer = AclAuthorizer(lambda: judged.access, root, trail_topic="kept.trail")  # fmt: skip
    judged.wire.config.auto_create_topics = True
    asked = (
        (19, 5, {"timeout": 1, "validate_only": False, "topics": [
            {"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()}]}),
        (3, 9, {"topics": [{"name": name}], **NAMELESS, "allow_auto_topic_creation": True}),
    )  # fmt: skip
    creates = [acl(CLUSTER, Operation.CREATE, name=CLUSTER_NAME), acl(TOPIC, DESCRIBE)]
    judged.give(*creates)
    for one in asked:
        assert TOPIC_DENIED in error_codes(await judged.ask(*one))
    assert name not in judged.services.metadata.image.topics
    judged.give(*creates, acl(CLUSTER, Operation.ALTER, name=CLUSTER_NAME))
    assert not error_codes(await judged.ask(*asked[1])) & DENIED
    assert name in judged.services.metadata.image.topics


async def test_INV_AUZ7_a_right_on_the_cluster_deletes_no_audit_topic(judged: Judged) -> None:
    root = frozenset({ROOT.principal})
    judged.services.authorizer = AclAuthorizer(lambda: judged.access, root, trail_topic="orders")
    deletes = acl(CLUSTER, DELETE, name=CLUSTER_NAME)
    judged.give(deletes)
    for topic in ({"name": "orders", "topic_id": None}, {"name": None, "topic_id": orders_of(judged)}):  # fmt: skip
        gone = await judged.ask(20, 6, {"timeout": 1, "topics": [topic]})
        assert error_codes(gone) == {TOPIC_DENIED}
    judged.give(deletes, acl(CLUSTER, Operation.ALTER, name=CLUSTER_NAME))
    await judged.ask(20, 6, {"timeout": 1, "topics": [{"name": "orders", "topic_id": None}]})
    assert "orders" not in judged.services.metadata.image.topics


# --- while nothing is configured ------------------------------------------------------------------


class Unasked(AllowAll):
    """An authorizer that is not in force, and must not be asked."""

    def allows(self, *_: object) -> bool:
        raise AssertionError("INV-HAZ5: nothing is judged")

    def allows_any(self, *_: object) -> bool:
        raise AssertionError("INV-HAZ5: nothing is judged")


async def test_INV_HAZ5_nothing_is_judged_while_no_access_is_in_force(judged: Judged) -> None:
    judged.services.authorizer = Unasked()
    for key, version, values in about("orders"):
        if key not in (20, 21):
            assert not error_codes(await judged.ask(key, version, values)) & DENIED
    assert judged.told == []


# --- the ACLs themselves --------------------------------------------------------------------------


def creation(one: Acl) -> dict[str, Any]:
    return {"resource_type": int(one.resource_type), "resource_name": one.name, "resource_pattern_type": int(one.pattern_type),
            "principal": one.principal, "host": one.host, "operation": int(one.operation), "permission_type": int(one.permission)}  # fmt: skip


def filter_of(
    kind: int = 1, name: str | None = None, how: int = 1, who: str | None = None, host: str | None = None, *,
    operation: int = 1, permission: int = 1,
) -> dict[str, Any]:  # fmt: skip
    return {"resource_type_filter": kind, "resource_name_filter": name, "pattern_type_filter": how, "principal_filter": who,
            "host_filter": host, "operation": operation, "permission_type": permission}  # fmt: skip


def listed(answer: Any) -> set[tuple[int, str, int, str, int]]:
    return {
        (int(resource.resource_type), resource.resource_name, int(resource.pattern_type), each.principal, int(each.operation))
        for resource in answer.resources
        for each in resource.acls
    }  # fmt: skip


@pytest.fixture
async def kept(judged: Judged) -> Judged:
    """Keep ACLs in the metadata, as a node does."""
    judged.services.authorizer = AclAuthorizer(
        lambda: judged.services.metadata.image.access, frozenset({ROOT.principal})
    )
    return judged


FOUR = [
    acl(TOPIC, READ, name="orders", who="User:a"),
    acl(TOPIC, WRITE, name="ord", who="User:a", how=PatternType.PREFIXED),
    acl(TOPIC, READ, name="*", who="User:b", permission=Permission.DENY),
    acl(GROUP, READ, name="orders", who="User:a", host="10.0.0.1"),
]
A, B, C, D = (
    (2, "orders", 3, "User:a", 3), (2, "ord", 4, "User:a", 4), (2, "*", 3, "User:b", 3), (3, "orders", 3, "User:a", 3),
)  # fmt: skip


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (filter_of(), {A, B, C, D}), (filter_of(kind=2), {A, B, C}), (filter_of(how=4), {B}), (filter_of(who="User:a"), {A, B, D}),
        (filter_of(name="orders"), {A, D}), (filter_of(name="orders", how=3), {A, D}), (filter_of(name="orders", how=4), set()),
        (filter_of(kind=2, name="orders", how=2), {A, B, C}), (filter_of(kind=2, name="order", how=2), {B, C}),
        (filter_of(name="*", how=3), {C}), (filter_of(host="10.0.0.1"), {D}), (filter_of(permission=2), {C}),
        (filter_of(operation=4), {B}), (filter_of(2, "orders", 3, "User:a", "*", operation=3, permission=3), {A}), (filter_of(2, "orders", 3, "User:a", "*", operation=4, permission=3), set()),
    ],
)  # fmt: skip
async def test_KIP290_filters_mean_what_kafkas_mean(
    kept: Judged, asked: dict[str, Any], expected: set[Any]
) -> None:
    made = await kept.ask(30, 3, {"creations": [creation(each) for each in FOUR]}, who=ROOT)
    assert error_codes(made) == set()
    assert listed(await kept.ask(29, 3, asked, who=ROOT)) == expected
    gone = await kept.ask(31, 3, {"filters": [asked]}, who=ROOT)
    (result,) = gone.filter_results
    assert {(int(each.resource_type), each.resource_name, int(each.pattern_type), each.principal, int(each.operation))
            for each in result.matching_acls} == expected  # fmt: skip
    assert listed(await kept.ask(29, 3, filter_of(), who=ROOT)) == {A, B, C, D} - expected


async def test_what_is_no_acl_is_refused_and_what_is_one_beside_it_is_made(kept: Judged) -> None:
    good = acl(TOPIC, READ, name="orders", who="User:a")
    bad = [
        replace_acl(good, resource_type=99), replace_acl(good, resource_type=1), replace_acl(good, resource_pattern_type=2),
        replace_acl(good, resource_pattern_type=1), replace_acl(good, operation=1), replace_acl(good, operation=0),
        replace_acl(good, permission_type=1), replace_acl(good, resource_name=""), replace_acl(good, principal="alice"),
        replace_acl(good, host=""), replace_acl(good, resource_type=4), replace_acl(good, resource_name="n" * 1_001),
    ]  # fmt: skip
    made = await kept.ask(30, 3, {"creations": [*bad, creation(good)]}, who=ROOT)
    assert [int(each.error_code) for each in made.results] == [42] * len(bad) + [0]
    assert listed(await kept.ask(29, 3, filter_of(), who=ROOT)) == {A}
    for key, name in ((29, None), (31, "filters")):
        values = filter_of(kind=99)
        answer = await kept.ask(key, 3, {name: [values]} if name else values, who=ROOT)
        assert error_codes(answer) == {42}


def replace_acl(good: Acl, **changes: Any) -> dict[str, Any]:
    return creation(good) | changes


async def test_INV_HAF1_while_nothing_is_in_force_nobody_locks_out_all(kept: Judged) -> None:
    kept.services.authorizer = AclAuthorizer(lambda: kept.services.metadata.image.access)
    asked = {"creations": [creation(FOUR[0])]}
    assert error_codes(await kept.ask(30, 3, asked)) == {SECURITY_DISABLED}
    assert error_codes(await kept.ask(31, 3, {"filters": [filter_of()]})) == {SECURITY_DISABLED}
    assert error_codes(await kept.ask(29, 3, filter_of())) == {SECURITY_DISABLED}
    assert kept.services.metadata.image.access.acls == ()


async def test_INV_ACC1_what_goes_is_what_was_seen(kept: Judged) -> None:
    await kept.ask(30, 3, {"creations": [creation(FOUR[0])]}, who=ROOT)
    change = kept.services.metadata.change_access
    came: list[Acl] = [FOUR[1]]

    async def changed_meanwhile(what: Any, expected: int | None = None) -> None:
        if came:
            await change(replaced_change(came.pop()))
        await change(what, expected)

    kept.services.metadata.change_access = changed_meanwhile  # type: ignore[method-assign, assignment]
    gone = await kept.ask(31, 3, {"filters": [filter_of()]}, who=ROOT)
    assert len(gone.filter_results[0].matching_acls) == 2, "it looked again"
    assert kept.services.metadata.image.access.acls == ()


def replaced_change(one: Acl) -> Any:
    return AccessChange(acls_added=(one,))


async def test_INV_SID3_what_kafka_acls_denies_to_an_ipv6_address_is_denied_to_it(
    judged: Judged,
) -> None:
    """`kafka-acls.sh --deny-host` sends what its user wrote; Java writes addresses so: Inet6Address.getHostAddress."""
    services = judged.services
    services.authorizer = AclAuthorizer(
        lambda: services.metadata.image.access, frozenset({ROOT.principal})
    )
    everybody, thief = "User:*", Identity("User:alice", host="2001:db8::1")
    allowed = {"resource_type": 2, "resource_name": "orders", "resource_pattern_type": 3, "principal": everybody, "host": "*",
               "operation": 3, "permission_type": 3}  # fmt: skip
    denied = {**allowed, "host": "2001:db8:0:0:0:0:0:1", "operation": 2, "permission_type": 2}
    answer = await judged.ask(30, 3, {"creations": [allowed, denied]}, who=ROOT)
    assert error_codes(answer) == set()
    asked = {"replica_id": -1, "isolation_level": 0, "topics": [{"name": "orders", "partitions": [
        {"partition_index": 0, "current_leader_epoch": -1, "timestamp": -1}]}]}  # fmt: skip
    assert error_codes(await judged.ask(2, 6, asked, who=thief)) == {TOPIC_DENIED}
    other = structs.replace(thief, host="2001:db8::2")
    assert error_codes(await judged.ask(2, 6, asked, who=other)) == set()
