"""What a group tells of topics that its members may not see: nothing, whether it is by a pattern, by a name or by the number of an epoch."""

import asyncio
import struct
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from region_broker.security.access import AccessChange, Operation, ResourceType
from region_broker.security.authorizer import AclAuthorizer
from region_broker.security.identity import Identity
from tests.fixtures.judged_apis import ALICE, ROOT, Judged, acl, judged_apis
from tests.unit.region_broker.handlers.kafka_acl_table import MEMBER

TOPIC, GROUP = ResourceType.TOPIC, ResourceType.GROUP
READ, DESCRIBE = Operation.READ, Operation.DESCRIBE
HIDDEN, ABSENT = "orders", "absent"
READS_GROUP = acl(GROUP, READ, name="g")
SEES_ORDERS = acl(TOPIC, DESCRIBE, name=HIDDEN)
MEMBER_ID_REQUIRED = 79


@pytest.fixture
async def judged(tmp_path: Path) -> AsyncIterator[Judged]:
    """Alice may read a group, and sees no topic."""
    async with judged_apis(tmp_path) as found:
        found.give(READS_GROUP)
        yield found


def beat(epoch: int, pattern: str | None = None, *, member: str = "m", **more: Any) -> dict[str, Any]:  # fmt: skip
    joins = epoch == 0
    return {"group_id": "g", "member_id": member, "member_epoch": epoch, "instance_id": None, "rack_id": None,
            "rebalance_timeout": 60_000 if joins else -1, "subscribed_topic_names": () if joins else None,
            "subscribed_topic_regex": pattern, "server_assignor": None, "topic_partitions": () if joins else None, **more}  # fmt: skip


def partitions_of(answer: Any) -> int:
    """Return how many partitions an answer assigns."""
    found = answer.assignment
    return 0 if found is None else sum(len(each.partitions) for each in found.topic_partitions)


async def told(judged: Judged, name: str) -> list[str]:
    """Return all that a member hears of whose pattern is a name, and who then takes another pattern."""
    described = {"group_ids": ("g",), "include_authorized_operations": False}
    asked = [
        (68, beat(0, name)), (69, described), (68, beat(1)), (68, beat(1, "zzz")), (69, described),
        (68, beat(2)), (68, beat(2, f"{name}|zzz")), (69, described), (68, beat(-1)),
    ]  # fmt: skip
    answers = [str(await judged.ask(key, 1, values)) for key, values in asked]
    await judged.ask(42, 2, {"groups_names": ("g",)}, who=ROOT)
    return [each.replace(name, "NAME") for each in answers]


async def test_INV_NX3_a_pattern_tells_nobody_whether_a_topic_is_there(judged: Judged) -> None:
    assert await told(judged, HIDDEN) == await told(judged, ABSENT)


def subscription(*names: str) -> bytes:
    """Return ConsumerProtocolSubscription, version 1 (Kafka's clients/src/main/resources/common/message)."""
    parts = [struct.pack(">hi", 1, len(names))]
    parts += [struct.pack(">h", len(name)) + name.encode() for name in names]
    return b"".join(parts) + struct.pack(">ii", -1, 0)


async def classic_assignment(judged: Judged, name: str) -> bytes:
    """Return what the coordinator assigns to a member of the classic protocol that subscribes to a topic."""
    join = {**MEMBER, "member_id": "", "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(name)}], "reason": None}  # fmt: skip
    drawn = await judged.ask(11, 9, join)
    assert drawn.error_code == MEMBER_ID_REQUIRED
    joined = await judged.ask(11, 9, {**join, "member_id": drawn.member_id})
    asked = {**MEMBER, "member_id": drawn.member_id, "generation_id": joined.generation_id}
    synced = await judged.ask(14, 5, {**asked, "assignments": []})
    assert (joined.error_code, synced.error_code) == (0, 0)
    return bytes(synced.assignment).replace(name.encode(), b"NAME")


async def test_INV_NX3_a_classic_member_is_assigned_nothing_that_it_may_not_see(
    judged: Judged,
) -> None:
    await judged.ask(68, 1, beat(0))
    assert await classic_assignment(judged, HIDDEN) == await classic_assignment(judged, ABSENT)
    judged.give(READS_GROUP, SEES_ORDERS)
    assert b"NAME" in await classic_assignment(judged, HIDDEN)


BOB = Identity("User:bob", host="10.0.0.2")


@pytest.mark.parametrize(("pattern", "bobs_share"), [("or.*", 3), ("ord.*", 2)])
async def test_INV_NX3_who_may_see_a_topic_has_it_whoever_else_is_in_the_group(
    judged: Judged, pattern: str, bobs_share: int
) -> None:
    """Alice has another pattern than Bob, or that very one, which they share as in Kafka; she is shown nothing, and takes nothing away later."""
    of_bob = (acl(GROUP, READ, name="g", who=BOB.principal), acl(TOPIC, DESCRIBE, name=HIDDEN, who=BOB.principal))  # fmt: skip
    judged.give(READS_GROUP, *of_bob)
    await judged.ask(68, 1, beat(0, pattern))
    joined = await judged.ask(68, 1, beat(0, "ord.*", member="bob"), who=BOB)
    assert partitions_of(joined) == bobs_share
    for epoch in (1, 2, 2):
        heard = await judged.ask(68, 1, beat(epoch))
        assert (int(heard.error_code), partitions_of(heard)) == (0, 0)
    bobs = await judged.ask(68, 1, beat(2, member="bob"), who=BOB)
    assert (int(bobs.error_code), bobs.member_epoch) == (0, 2), "nobody has moved the group"


async def test_INV_NX3_rights_that_come_and_go_count_with_the_next_heartbeat(
    judged: Judged,
) -> None:
    services = judged.services
    services.authorizer = AclAuthorizer(
        lambda: services.metadata.image.access, frozenset({ROOT.principal})
    )
    change = services.metadata.change_access
    await change(AccessChange(acls_added=(READS_GROUP,)))
    assert partitions_of(await judged.ask(68, 1, beat(0, "ord.*"))) == 0
    await change(AccessChange(acls_added=(SEES_ORDERS,)))
    given = await judged.ask(68, 1, beat(1))
    assert (given.member_epoch, partitions_of(given)) == (2, 3)
    await change(AccessChange(acls_removed=(SEES_ORDERS,)))
    await judged.ask(68, 1, beat(2))
    described = await judged.ask(69, 1, {"group_ids": ("g",), "include_authorized_operations": False}, who=ROOT)  # fmt: skip
    (member,) = described.groups[0].members
    assert member.target_assignment.topic_partitions == ()
    assert ALICE.principal not in str(described)


# --- a classic group that becomes one of the new protocol ----------------------------------------


def assignment(name: str) -> bytes:
    """Return ConsumerProtocolAssignment, version 1, of partition 0."""
    return struct.pack(">hih", 1, 1, len(name)) + name.encode() + struct.pack(">iii", 1, 0, -1)


async def told_of_an_upgrade(judged: Judged, subscribed: list[str], assigned: str) -> list[str]:
    """Return what is heard of a group whose classic leader has assigned a topic to itself, and that then gets a member of the new protocol."""
    join = {**MEMBER, "member_id": "", "session_timeout": 10_000, "rebalance_timeout": 10_000, "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": subscription(*subscribed)}], "reason": None}  # fmt: skip
    drawn = (await judged.ask(11, 9, join)).member_id
    joined = await judged.ask(11, 9, {**join, "member_id": drawn})
    given = [{"member_id": drawn, "assignment": assignment(assigned)}]
    synced = await judged.ask(14, 5, {**MEMBER, "member_id": drawn, "generation_id": joined.generation_id, "assignments": given})  # fmt: skip
    assert (joined.error_code, synced.error_code) == (0, 0)
    answers = [
        await judged.ask(68, 1, beat(0)),
        await judged.ask(69, 1, {"group_ids": ("g",), "include_authorized_operations": False}),
        await judged.ask(68, 1, beat(2)),
    ]
    await judged.ask(68, 1, beat(-1))
    await judged.ask(13, 5, {"group_id": "g", "members": [{"member_id": drawn, "group_instance_id": None, "reason": None}]})  # fmt: skip
    await judged.ask(42, 2, {"groups_names": ("g",)}, who=ROOT)
    return [str(each).replace(assigned, "NAME").replace(drawn, "MEMBER") for each in answers]


@pytest.mark.parametrize("subscribes", [False, True])
async def test_INV_NX5_what_a_classic_leader_assigns_tells_nobody_whether_a_topic_is_there(
    judged: Judged, subscribes: bool
) -> None:
    """1. Alice assigns a topic that she may not see to herself. 2. Another member of hers changes the protocol. 3. She describes the group."""
    hidden, absent = [
        await told_of_an_upgrade(judged, [name] if subscribes else [], name) for name in (HIDDEN, ABSENT)
    ]  # fmt: skip
    assert hidden == absent
    judged.give(READS_GROUP, SEES_ORDERS)
    seen = await told_of_an_upgrade(judged, [HIDDEN], HIDDEN)
    assert "member_epoch=2" in seen[0]
    assert "topic_name='NAME'" in seen[1]


# --- the order of a connection --------------------------------------------------------------------


@pytest.mark.parametrize("is_modern", [False, True])
async def test_INV_NX4_who_joins_with_many_topics_and_leaves_at_once_is_not_in_the_group(
    judged: Judged, is_modern: bool
) -> None:
    """1. A static member sends a JoinGroup that names 500 topics, and a LeaveGroup behind it. 2. While they were judged it left; then it joined."""
    if is_modern:
        await judged.ask(68, 1, beat(0))
    names = [f"topic-{at}" for at in range(500)]
    join = {**MEMBER, "member_id": "", "group_instance_id": "i", "session_timeout": 10_000, "rebalance_timeout": 10_000,
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": subscription(*names)}], "reason": None}  # fmt: skip
    leave = {"group_id": "g", "members": [{"member_id": "", "group_instance_id": "i", "reason": None}]}  # fmt: skip
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(judged.ask(11, 9, join))
        left = tasks.create_task(judged.ask(13, 5, leave))
    assert [int(each.error_code) for each in left.result().members] == [0]
    groups = judged.services.groups
    found = groups.describe_modern("g") if is_modern else groups.describe("g")
    assert [each.instance_id for each in found.members if each.instance_id] == []
