"""Rights that go while a request is under way: what is told of it is what was done, and what waited on others is judged again."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from region_broker.limits import ADMIN_ITEMS_MAX
from region_broker.region.topics import TopicRegistry
from region_broker.security.access import AccessChange, Operation, Permission, ResourceType
from region_broker.security.audit.events import AuditEvent
from region_broker.security.authorizer import AclAuthorizer
from region_broker.security.identity import Identity
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.judged_apis import ALICE, DENIED, ROOT, Judged, acl, error_codes, judged_apis
from tests.unit.region_broker.handlers.kafka_acl_table import MEMBER

TOPIC, GROUP, ID = ResourceType.TOPIC, ResourceType.GROUP, ResourceType.TRANSACTIONAL_ID
READ, WRITE = Operation.READ, Operation.WRITE
BOB = Identity("User:bob", host="10.0.0.2")
TOPIC_DENIED, GROUP_DENIED, MEMBER_ID_REQUIRED = 29, 30, 79


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    async with judged_apis(tmp_path) as found:
        yield found


# --- offsets --------------------------------------------------------------------------------------


async def test_no_offset_is_acknowledged_that_was_left_out(judged: Judged) -> None:
    """1. TxnOffsetCommit is judged. 2. It waits for its coordinator. 3. The right to read the topic is taken away. 4. It goes on."""
    kept = (acl(ID, WRITE, name="x"), acl(GROUP, READ, name="g"))
    judged.give(*kept, acl(TOPIC, READ, name="orders"))
    begun = await judged.ask(22, 4, {"transactional_id": "x", "transaction_timeout": 60_000, "producer_id": -1, "producer_epoch": -1})  # fmt: skip
    txn = judged.services.txn
    add = txn.add_partitions

    async def added_and_gone(*asked: Any, **more: Any) -> Any:
        verdict = await add(*asked, **more)
        judged.give(*kept)
        return verdict

    txn.add_partitions = added_and_gone  # type: ignore[method-assign]
    part = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip
    answer = await judged.ask(28, 5, {
        "transactional_id": "x", "group_id": "g", "producer_id": begun.producer_id, "producer_epoch": begun.producer_epoch,
        "generation_id": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "orders", "partitions": [part]}],
    })  # fmt: skip
    groups = judged.services.groups
    staged = [each for shard in groups.shards for each in shard.table.pending.values()]
    told = int(answer.topics[0].partitions[0].error_code)
    assert (told == 0) == bool(staged), (told, staged)


# --- what waits on others -------------------------------------------------------------------------


async def join(judged: Judged, who: Identity, member_id: str = "") -> Any:
    asked = {**MEMBER, "member_id": member_id, "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
             "protocols": [{"name": "range", "metadata": b"what is subscribed"}], "reason": None}  # fmt: skip
    answer = await judged.ask(11, 9, asked, who=who)
    if int(answer.error_code) != MEMBER_ID_REQUIRED:
        return answer
    return await judged.ask(11, 9, {**asked, "member_id": answer.member_id}, who=who)


async def test_INV_HAZ6_who_may_read_a_group_no_more_is_not_told_who_else_is_in_it(
    judged: Judged,
) -> None:
    """1. Alice leads a group, and joins again. 2. That waits for Bob. 3. Her right goes. 4. He comes, and the group has its members."""
    of_alice, of_bob = (acl(GROUP, READ, name="g", who=each.principal) for each in (ALICE, BOB))
    judged.give(of_alice, of_bob)
    alice = (await join(judged, ALICE)).member_id
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        bob = tasks.create_task(join(judged, BOB))
        await _joined(judged, 2)
        joined = await join(judged, ALICE, alice)
    assert joined.leader == alice
    synced = {**MEMBER, "member_id": alice, "generation_id": joined.generation_id, "assignments": []}  # fmt: skip
    assert int((await judged.ask(14, 5, synced)).error_code) == 0
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        again = tasks.create_task(join(judged, ALICE, alice))
        while judged.services.groups.describe("g").state != "PreparingRebalance":  # noqa: ASYNC110 -- has no event of its own
            await asyncio.sleep(0)
        judged.give(of_bob)
        assert int((await join(judged, BOB, bob.result().member_id)).error_code) == 0
    told = again.result()
    assert (int(told.error_code), told.generation_id, told.members) == (GROUP_DENIED, -1, ())
    assert judged.told[-1] == (READ, GROUP, "g")


async def _joined(judged: Judged, count: int) -> None:
    while len(judged.services.groups.describe("g").members) != count:  # noqa: ASYNC110 -- has no event of its own
        await asyncio.sleep(0)


NEW_TOPIC = {"name": "mine", "num_partitions": 1, "replication_factor": 1, "assignments": [], "configs": []}  # fmt: skip
RETENTION = {"name": "retention.ms", "config_operation": 0, "value": "5"}
OF_TOPICS: list[tuple[int, int, dict[str, Any], Operation]] = [
    (20, 6, {"timeout": 1_000, "topics": [{"name": "orders", "topic_id": None}]}, Operation.DELETE),
    (19, 7, {"timeout": 1_000, "validate_only": False, "topics": [NEW_TOPIC]}, Operation.CREATE),
    (37, 3, {"timeout": 1_000, "validate_only": False, "topics": [{"name": "orders", "count": 900, "assignments": None}]}, Operation.ALTER),
    (44, 1, {"validate_only": False, "resources": [{"resource_type": 2, "resource_name": "orders", "configs": [RETENTION]}]}, Operation.ALTER_CONFIGS),
]  # fmt: skip


@pytest.mark.parametrize("change", OF_TOPICS, ids=lambda each: str(each[0]))
async def test_INV_TG4_who_may_change_a_topic_no_more_does_not_though_it_waited_its_turn(
    judged: Judged, change: tuple[int, int, dict[str, Any], Operation]
) -> None:
    """1. Very many changes of topics are under way. 2. Alice's is judged, and waits. 3. An administrator takes the right away, and is told so."""
    key, version, asked, operation = change
    registry = judged.services.metadata
    assert isinstance(registry, TopicRegistry)
    judged.give(*(acl(TOPIC, operation, name=name) for name in ("orders", "mine")))
    before = registry.image.topics
    await registry._turn.acquire()
    waiting = asyncio.get_running_loop().create_task(judged.ask(key, version, asked))
    while not registry._turn._waiters:  # noqa: ASYNC110 -- has no event of its own
        await asyncio.sleep(0)
    judged.give()
    registry._turn.release()
    assert error_codes(await waiting) == {TOPIC_DENIED}
    assert registry.image.topics == before
    assert judged.told[-1][0] is operation


# --- changes of access ----------------------------------------------------------------------------


ADMIN = acl(ResourceType.CLUSTER, Operation.ALTER, name="kafka-cluster")
QUOTAS = acl(ResourceType.CLUSTER, Operation.ALTER_CONFIGS, name="kafka-cluster")
TOKENS = acl(ResourceType.USER, Operation.CREATE_TOKENS, name="User:carol")
DENY = acl(TOPIC, READ, name="orders", permission=Permission.DENY)
CREATION = {"resource_type": 4, "resource_name": "kafka-cluster", "resource_pattern_type": 3, "principal": "User:alice",
            "host": "*", "operation": 7, "permission_type": 3}  # fmt: skip
FILTER = {"resource_type_filter": 2, "resource_name_filter": None, "pattern_type_filter": 1, "principal_filter": None,
          "host_filter": None, "operation": 1, "permission_type": 1}  # fmt: skip
USER_KEY = {"name": "alice2", "mechanism": 1, "iterations": 4096, "salt": b"s" * 16, "salted_password": b"p" * 32}  # fmt: skip
QUOTA = {"entity": [{"entity_type": "user", "entity_name": "alice"}], "ops": [{"key": "producer_byte_rate", "value": 1e9, "remove": False}]}  # fmt: skip
CHANGES: list[tuple[int, int, dict[str, Any]]] = [
    (30, 3, {"creations": [CREATION]}),
    (31, 3, {"filters": [FILTER]}),
    (51, 0, {"deletions": [], "upsertions": [USER_KEY]}),
    (49, 1, {"validate_only": False, "entries": [QUOTA]}),
    (38, 3, {"owner_principal_type": "User", "owner_principal_name": "carol", "renewers": [], "max_lifetime": -1}),
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES, ids=lambda each: str(each[0]))
async def test_INV_HAC1_who_may_change_access_no_more_changes_nothing(
    judged: Judged, change: tuple[int, int, dict[str, Any]]
) -> None:
    """1. Alice asks for a change, which is judged. 2. Before it is made all that she may is taken away. 3. She would have it again."""
    services = judged.services
    services.authorizer = AclAuthorizer(
        lambda: services.metadata.image.access, frozenset({ROOT.principal})
    )
    make = services.metadata.change_access
    hers = (ADMIN, QUOTAS, TOKENS)
    await make(AccessChange(acls_added=(*hers, DENY)))
    came: list[AccessChange] = [AccessChange(acls_removed=hers)]

    async def made_second(what: AccessChange, expected: int | None = None) -> None:
        if came:
            await make(came.pop())
        await make(what, expected)

    services.metadata.change_access = made_second  # type: ignore[method-assign, assignment]
    answer = await judged.ask(*change)
    assert error_codes(answer) & DENIED, answer
    access = services.metadata.image.access
    assert access.acls == (DENY,)
    assert (access.keys, access.quotas, access.tokens) == ((), (), ())


async def test_INV_HAC1_changes_that_come_at_once_are_all_made(judged: Judged) -> None:
    services = judged.services
    services.authorizer = AclAuthorizer(
        lambda: services.metadata.image.access, frozenset({ROOT.principal})
    )
    await services.metadata.change_access(AccessChange(acls_added=(ADMIN,)))
    asked = [{**CREATION, "principal": f"User:{at}"} for at in range(30)]
    answers = await asyncio.gather(
        *(judged.ask(30, 3, {"creations": [one]}) for one in asked),
        *(judged.ask(51, 0, {"deletions": [], "upsertions": [{**USER_KEY, "name": f"u{at}"}]}) for at in range(30)),
    )  # fmt: skip
    assert {code for each in answers for code in error_codes(each)} == set()
    assert len(services.metadata.image.access.acls) == 31


@pytest.mark.parametrize("change", CHANGES[:4], ids=lambda each: str(each[0]))
async def test_INV_HAC2_who_renews_a_token_without_end_keeps_nobody_from_changing_access(
    judged: Judged, change: tuple[int, int, dict[str, Any]]
) -> None:
    """1. Bob renews his own token, very often at a time. 2. Alice's change waits behind one renewal, and is refused a round of the quorum later, as
    other access came between. 3. Another renewal waits by then: his right could not be taken away, nor could it where she waited for all of them.
    """
    services = judged.services
    judged.give(ADMIN, QUOTAS)
    make, line = services.metadata.change_access, asyncio.Lock()
    await make(AccessChange(acls_added=(DENY,)))
    made = await judged.ask(38, 3, {"owner_principal_type": None, "owner_principal_name": None, "renewers": [], "max_lifetime": -1}, who=BOB)  # fmt: skip

    async def made_in_a_quorum(what: AccessChange, expected: int | None = None) -> None:
        async with line:  # what one node asks for goes one after the other, and is refused where the log settles it
            for _ in range(5):
                await asyncio.sleep(0)
            await make(what, expected)

    services.metadata.change_access = made_in_a_quorum  # type: ignore[method-assign, assignment]
    done, renewed = asyncio.Event(), 0

    async def renew() -> None:
        nonlocal renewed
        while not done.is_set():
            answer = await judged.ask(39, 2, {"hmac": made.hmac, "renew_period": 60_000}, who=BOB)
            assert error_codes(answer) == set()
            renewed += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(20):
            tasks.create_task(renew())
        while not line.locked():  # noqa: ASYNC110 -- has no event of its own
            await asyncio.sleep(0)
        renewed_before = renewed
        answer = await judged.ask(*change)
        renewed_meanwhile = renewed - renewed_before
        done.set()
    assert error_codes(answer) == set()
    assert renewed_meanwhile <= 2, "one at most stands before her"


@pytest.mark.parametrize(
    ("key", "kind", "asked"),
    [
        (42, GROUP, {"groups_names": ["g", "h"]}),
        (21, TOPIC, {"timeout": 1_000, "topics": [{"name": "orders", "partitions": [{"partition_index": 0, "offset": 0}]}]}),
    ],
)  # fmt: skip
async def test_INV_DAR3_who_may_delete_nothing_writes_no_intent(
    judged: Judged, key: int, kind: ResourceType, asked: dict[str, Any]
) -> None:
    """Beyond `audit_bytes_max` refusals are only counted, and intents written: they would fill the disk, without which nothing is changed."""
    judged.services.audit = trail = ToldTrail()
    judged.give(acl(kind, READ))
    denied = await judged.ask(key, 2, asked)
    assert error_codes(denied) == {29 if kind is TOPIC else 30}
    assert trail.told == []
    names = asked.get("groups_names", ["orders"])
    assert judged.told == [(Operation.DELETE, kind, name) for name in names]
    judged.give(acl(kind, Operation.DELETE, name=names[0]))
    await judged.ask(key, 2, asked)
    assert [each.outcome.value for each in trail.told] == ["intended", "done" if key == 21 else "refused"]  # fmt: skip


async def test_INV_DAR5_a_record_names_what_who_asks_may_delete(judged: Judged) -> None:
    """One group or topic of one's own beside very many others, which need not even be there, was a record of a megabyte."""
    judged.services.audit = trail = ToldTrail()
    judged.give(acl(TOPIC, Operation.ALL, name="orders"), acl(GROUP, Operation.ALL, name="g"))
    others = [f"{at}" + "\U0001f600" * 100 for at in range(200)]
    parts = [{"partition_index": 0, "offset": 0}]
    topics = [{"name": name, "partitions": parts} for name in [*others, "orders", "orders"]]
    asked: list[tuple[int, int, dict[str, Any]]] = [
        (21, 2, {"timeout": 1_000, "topics": topics}),
        (42, 2, {"groups_names": [*others, "g", "g"]}),
        (47, 0, {"group_id": "g", "topics": [{"name": each["name"], "partitions": [{"partition_index": 0}]} for each in topics]}),
    ]  # fmt: skip
    for each in asked:
        await judged.ask(*each)
    told = [(each.resource, dict(each.details)) for each in trail.told if not each.answers]
    assert told == [
        ("orders", {"below": ["orders-0 below 0"]}), ("g", {"groups": ["g"]}), ("g", {"offsets": ["orders-0"]}),
    ]  # fmt: skip


async def test_INV_DAR3_too_many_names_are_refused_before_anything_is_recorded(
    judged: Judged,
) -> None:
    judged.services.audit = trail = ToldTrail()
    judged.give(acl(GROUP, Operation.DELETE))
    many = [f"g{number}" for number in range(ADMIN_ITEMS_MAX + 1)]
    assert error_codes(await judged.ask(42, 2, {"groups_names": many})) == {42}
    assert trail.told == []


async def test_INV_HAZ3_what_is_recorded_first_is_judged_when_it_begins(judged: Judged) -> None:
    """1. DeleteGroups is judged, and recorded before it is done. 2. That takes a while, and the right goes. 3. Nothing is deleted."""
    may = acl(GROUP, Operation.ALL, name="g")
    judged.give(may, acl(TOPIC, READ, name="orders"))
    part = {"partition_index": 0, "committed_offset": 7, "committed_leader_epoch": -1, "committed_metadata": ""}  # fmt: skip
    commit = {**MEMBER, "generation_id_or_member_epoch": -1, "member_id": "", "topics": [{"name": "orders", "partitions": [part]}]}  # fmt: skip
    assert error_codes(await judged.ask(8, 9, commit)) == set()
    trail = ToldTrail()
    intended = trail.intended

    async def slowly(event: AuditEvent) -> Any:
        judged.give(acl(TOPIC, READ, name="orders"))
        return await intended(event)

    trail.intended = slowly  # type: ignore[method-assign]
    judged.services.audit = trail
    asked = {"group_id": "g", "topics": [{"name": "orders", "partitions": [{"partition_index": 0}]}]}  # fmt: skip
    assert error_codes(await judged.ask(47, 0, asked)) == {GROUP_DENIED}
    assert [each.outcome.value for each in trail.told] == ["intended", "refused"]
    judged.give(may)
    assert "committed_offset=7" in str(await judged.ask(9, 7, {"require_stable": False, "group_id": "g", "topics": None}, who=ROOT))  # fmt: skip
