"""The metadata of a region with several nodes: commands of any of them, lost answers, nodes that die, come back and are replaced."""

import asyncio
import random
from collections.abc import Callable, Coroutine
from typing import Any
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.access_commands import FollowAccess
from region_broker.controller.image_database import MetadataInDoubt, MetadataUnsettled
from region_broker.controller.membership_keeping import next_step
from region_broker.controller.metadata_commands import CommandRefused, CreateTopic, DeleteTopic
from region_broker.controller.metadata_image import TopicImage
from region_broker.controller.metadata_store import MetadataStore
from region_broker.controller.raft.effects import Message, PassedOn, SnapshotRequest
from region_broker.controller.raft.entries import Member, Membership
from region_broker.controller.raft.settings import RaftSettings
from region_broker.security.access import (
    ACCESS_BYTES_MAX,
    Access,
    Acl,
    Operation,
    PatternType,
    Permission,
    ResourceType,
    bytes_in,
)
from tests.fixtures.metadata_members import Node, leader_among, three_nodes
from tests.fixtures.raft_groups import Bus, member, until
from tests.simulation.simulated_loop import run_simulated

Body = Callable[[], Coroutine[Any, Any, None]]


def simulated(body: Body) -> Callable[[], None]:
    """Run a test on simulated time."""

    def test() -> None:
        run_simulated(body(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def topic(number: int) -> CreateTopic:
    return CreateTopic(TopicImage(topic_id=UUID(int=number), name=f"t{number}", partition_count=1))


def names(node: Node) -> list[str]:
    return sorted(node.store.image.topics)


@simulated
async def test_nodes_join_and_vote_once_there_are_three() -> None:
    nodes = await three_nodes(Bus())
    for node in nodes:
        voters = node.store.group.membership.voters
        await until(lambda voters=voters: len(voters) <= 3)  # type: ignore[misc]
    assert nodes[0].store.group.membership == Membership(tuple(each.member for each in nodes))


@simulated
async def test_a_command_of_any_node_is_in_the_image_of_all() -> None:
    nodes = await three_nodes(Bus())
    for number, node in enumerate(nodes):
        image = await node.store.apply(topic(number))
        assert f"t{number}" in image.topics
        assert image is node.store.image
    for node in nodes:
        await until(lambda node=node: names(node) == ["t0", "t1", "t2"])  # type: ignore[misc]
        assert node.store.image == nodes[0].store.image


@simulated
async def test_INV_M15_what_others_changed_is_told_before_it_is_seen() -> None:
    nodes = await three_nodes(Bus())
    nodes[1].foreign.clear()
    await nodes[0].store.apply(topic(1))
    await until(lambda: names(nodes[1]) == ["t1"])
    ((old, new),) = nodes[1].foreign
    assert not old.topics
    assert list(new.topics) == ["t1"]
    nodes[1].foreign.clear()
    await nodes[1].store.apply(topic(2))
    assert not nodes[1].foreign, "what it asked for itself, it knows of"


@simulated
async def test_a_refusal_reaches_who_asked() -> None:
    nodes = await three_nodes(Bus())
    await nodes[0].store.apply(topic(1))
    for node in nodes:
        with pytest.raises(CommandRefused, match="already exists") as refused:
            await node.store.apply(topic(1))
        assert refused.value.code == "topic-exists"


@simulated
async def test_INV_M23_what_an_entry_has_no_room_for_is_refused_before_anything_waits() -> None:
    """1. A node asks for more than the leader of the quorum takes. 2. It was asked for ten seconds again and again, and elections of that node
    waited behind it; beyond 8 MiB it was no message, and the node ended.
    """
    bus = Bus()
    nodes = await three_nodes(bus)
    loop = asyncio.get_running_loop()
    fits = RaftSettings().payload_bytes_max - 1_000
    for at, node in enumerate(nodes):
        await until(lambda node=node: node.store.group.leader == nodes[0].member)  # type: ignore[misc]
        for more_bytes in (2_000, 2 * fits):
            sent: list[Message] = []
            bus.watch = lambda _sender, _target, message, sent=sent: sent.append(message)  # type: ignore[misc]
            began = loop.time()
            with pytest.raises(CommandRefused, match="bytes, and one change") as refused:
                await node.store.apply(named(at, fits + more_bytes))
            assert (refused.value.code, loop.time()) == ("command-too-large", began)
            assert not [message for message in sent if isinstance(message, PassedOn)]
        bus.watch = lambda _sender, _target, _message: None
        await node.store.apply(named(at, fits))


@simulated
async def test_INV_SAC5_a_region_of_several_nodes_takes_over_all_that_clients_make() -> None:
    nodes = await three_nodes(Bus())
    rule = Acl(ResourceType.TOPIC, PatternType.LITERAL, "", "User:a", "*", Operation.READ, Permission.ALLOW)  # fmt: skip
    each_bytes = 10_000
    acls = tuple(msgspec.structs.replace(rule, name=f"{at:04}" + "n" * (each_bytes - 50)) for at in range(ACCESS_BYTES_MAX // each_bytes))  # fmt: skip
    access = Access(number=1, acls=acls)
    assert bytes_in(access) > 0.99 * ACCESS_BYTES_MAX
    for at, node in enumerate(nodes):
        image = await node.store.apply(FollowAccess(msgspec.structs.replace(access, number=at)))
        assert image.access.acls == acls


def named(number: int, length: int) -> CreateTopic:
    """Make a topic whose name is as long as no client's."""
    name = f"{number}" + "n" * length
    return CreateTopic(TopicImage(topic_id=UUID(int=number), name=name, partition_count=1))


@simulated
async def test_INV_M14_a_wish_that_is_in_the_log_twice_takes_effect_once() -> None:
    """A command that is passed on again, as it was not settled in time, changes nothing the second time."""
    bus = Bus()
    nodes = await three_nodes(bus)
    seen: list[PassedOn] = []

    def repeat(sender: object, _target: object, message: object) -> None:
        if isinstance(message, PassedOn) and message not in seen:
            seen.append(message)
            for _ in range(3):
                bus.of(nodes[1].member).send(nodes[0].member, message)

    bus.watch = repeat
    await nodes[1].store.apply(topic(1))
    assert seen
    image = nodes[0].store.image
    await asyncio.sleep(1)
    assert nodes[0].store.image.version == image.version


@simulated
async def test_another_node_leads_where_the_leader_dies_and_commands_go_on() -> None:
    nodes = await three_nodes(Bus())
    await nodes[1].store.apply(topic(1))
    await nodes[0].crash()
    await nodes[1].store.apply(
        topic(2)
    )  # passed on to a dead one at first, and settled by who follows
    left = nodes[1:]
    assert leader_among(left) is not None
    for node in left:
        await until(lambda node=node: names(node) == ["t1", "t2"])  # type: ignore[misc]
    await nodes[0].start()
    await until(lambda: names(nodes[0]) == ["t1", "t2"])


@simulated
async def test_without_most_of_the_voters_nobody_knows_what_becomes_of_a_command() -> None:
    nodes = await three_nodes(Bus())
    for node in nodes[1:]:
        await node.crash()
    with pytest.raises(MetadataInDoubt, match="may take effect later, or never"):
        await nodes[0].store.apply(topic(1))
    assert names(nodes[0]) == []
    await nodes[1].start()
    await until(lambda: leader_among(nodes[:2]))
    await nodes[0].store.apply(topic(2))
    assert "t2" in names(nodes[0])


@simulated
async def test_INV_M25_what_most_voters_have_no_room_for_is_not_waited_for_without_end() -> None:
    nodes = await three_nodes(Bus())
    leader = nodes[0].store
    term = leader.group.term
    for node in nodes[1:]:
        node.disk.room_bytes = 0
    for number, in_term in ((1, None), (2, term)):
        with pytest.raises(MetadataUnsettled, match="have not taken it"):
            await leader.apply(named(number, 100_000), in_term=in_term)
    assert (leader.group.leads, leader.group.term) == (True, term)
    assert names(nodes[0]) == []
    nodes[0].foreign.clear()
    for node in nodes[1:]:
        node.disk.room_bytes = None
    await until(lambda: len(names(nodes[0])) == 2)
    assert nodes[0].foreign, "INV-M15: nobody waits for it any more"
    await leader.apply(topic(3))
    assert "t3" in names(nodes[0])


@simulated
async def test_INV_M25_who_is_to_stop_waits_no_longer_for_what_is_under_way() -> None:
    nodes = await three_nodes(Bus())
    store = nodes[0].store
    for node in nodes[1:]:
        node.disk.room_bytes = 0
    loop = asyncio.get_running_loop()
    async with asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(given_up(store, named(1, 100_000)))
        await asyncio.sleep(1)
        store.hasten(1_000)
        store.hasten(9_000)
        hastened = loop.time()
        assert await waiting - hastened < 2


@simulated
async def test_INV_M25_what_takes_effect_in_the_moment_in_which_it_is_given_up_was_done() -> None:
    """Its image is shown as the asker's own, so whoever asked has to go on with it: nobody else opens the logs of a topic."""
    for number, node in enumerate((await three_nodes(Bus()))[:2]):
        wish = node.store._wish

        async def given_up_then(*asked: Any, wish: Any = wish) -> None:
            await wish(*asked)
            raise MetadataUnsettled("the time is over")

        node.store._wish = given_up_then  # type: ignore[method-assign, assignment]
        assert f"t{number}" in (await node.store.apply(topic(number))).topics


async def given_up(store: MetadataStore, command: CreateTopic) -> float:
    """Return when a command was not waited for any more."""
    with pytest.raises(MetadataUnsettled):
        await store.apply(command)
    return asyncio.get_running_loop().time()


@simulated
async def test_what_was_given_up_and_takes_effect_later_is_what_others_changed() -> None:
    """INV-M15: nobody here waits for it any more, so the node is told of it as of any other's."""
    nodes = await three_nodes(Bus())
    for node in nodes[1:]:
        nodes[0].bus.cut.add(node.member)
    with pytest.raises(MetadataInDoubt):
        await nodes[0].store.apply(topic(1))
    nodes[0].foreign.clear()
    nodes[0].bus.cut.clear()
    await nodes[1].store.apply(topic(2))
    await until(lambda: "t2" in names(nodes[0]))
    told = [set(new.topics) - set(old.topics) for old, new in nodes[0].foreign]
    assert {"t2"} in told
    assert nodes[0].store.image == nodes[1].store.image


@simulated
async def test_INV_MK3_a_node_whose_folder_was_emptied_takes_its_place_again() -> None:
    nodes = await three_nodes(Bus())
    await nodes[0].store.apply(topic(1))
    lost = nodes[2].member
    await nodes[2].crash()
    nodes[2].empty()
    await (await nodes[2].start()).join()
    await until(lambda: nodes[2].member in nodes[0].store.group.membership.voters)
    assert lost not in nodes[0].store.group.membership.voters
    await until(lambda: names(nodes[2]) == ["t1"])


@simulated
async def test_INV_MK3_a_folder_does_not_take_the_place_of_one_that_is_heard() -> None:
    bus = Bus()
    nodes = await three_nodes(bus)
    second = Node(bus, 3)
    second.incarnation = UUID(int=999)
    store = await second.start()
    await asyncio.sleep(5)
    assert not store.group.is_member
    assert nodes[2].member in nodes[0].store.group.membership.voters
    await second.crash()


@simulated
async def test_INV_M14_a_snapshot_answers_whoever_waits_behind_it() -> None:
    """1. A node passes a command on, and is cut off. 2. It is settled, and goes into a snapshot. 3. The node gets that one."""
    bus = Bus()
    nodes = await three_nodes(
        bus, settings=RaftSettings(kept_entries=0), snapshot_after_bytes=1_000
    )
    third = nodes[2]
    await until(lambda: third.store.group.leader == nodes[0].member)

    def cut_behind_the_wish(sender: Member, _target: Member, message: Message) -> None:
        if isinstance(message, PassedOn) and sender == third.member:
            asyncio.get_running_loop().call_soon(bus.cut.add, third.member)

    bus.watch = cut_behind_the_wish
    waiting = asyncio.get_running_loop().create_task(third.store.apply(topic(7)))
    await until(lambda: "t7" in names(nodes[0]))
    for number in range(100, 130):
        await nodes[0].store.apply(topic(number))
    pieces: list[SnapshotRequest] = []
    bus.watch = lambda _sender, _target, message: (
        pieces.append(message) if isinstance(message, SnapshotRequest) else None
    )
    bus.cut.clear()
    assert "t7" in (await waiting).topics
    assert pieces
    await until(lambda: third.store.image == nodes[0].store.image)


@simulated
async def test_all_nodes_lose_power_and_nothing_that_was_answered_is_gone() -> None:
    nodes = await three_nodes(Bus())
    for number in range(5):
        await nodes[number % 3].store.apply(topic(number))
    for at, node in enumerate(nodes):
        await node.crash(power=at)
    for node in nodes:
        await node.start()
    await nodes[1].store.apply(topic(9))
    assert names(nodes[1]) == ["t0", "t1", "t2", "t3", "t4", "t9"]


@simulated
async def test_commands_of_all_nodes_under_losses_are_applied_once_each() -> None:
    bus = Bus(random.Random(5))
    nodes = await three_nodes(bus)
    done: list[int] = []

    async def write(node: Node, first: int) -> None:
        for number in range(first, first + 20):
            await node.store.apply(topic(number))
            done.append(number)
            if number % 3 == 0:
                await node.store.apply(DeleteTopic(UUID(int=number)))

    async with asyncio.TaskGroup() as tasks:
        for at, node in enumerate(nodes):
            tasks.create_task(write(node, 100 * at))
    expected = sorted(f"t{number}" for number in done if number % 3)
    for node in nodes:
        await until(lambda node=node: names(node) == expected)  # type: ignore[misc]
    assert all(node.store.image == nodes[0].store.image for node in nodes)


# -- who votes ---------------------------------------------------------------------------------------

A, B, C, D = (member(number) for number in (1, 2, 3, 4))


@pytest.mark.parametrize(
    ("present", "joining", "expected"),
    [
        (Membership((A,)), {}, None),
        (Membership((A,)), {B: None}, Membership((A,), (B,))),
        # INV-MK2: two are no majority that survives one of them
        (Membership((A,), (B,)), {}, None),
        (Membership((A,), (B, C)), {}, Membership((A, B), (C,))),
        (Membership((A, B), (C,)), {}, Membership((A, B, C))),
        # INV-MK1: no more than three vote
        (Membership((A, B, C), (D,)), {}, None),
        # INV-MK3: the silent folder goes first
        (Membership((A, B, C)), {D: C}, Membership((A, B))),
        (Membership((A, B)), {D: C}, Membership((A, B), (D,))),
        (Membership((A, B, C)), {C: None}, None),
    ],
)
def test_the_next_step_of_a_membership(
    present: Membership, joining: dict[Any, Any], expected: Membership | None
) -> None:
    assert next_step(present, joining, 3, 0) == expected
