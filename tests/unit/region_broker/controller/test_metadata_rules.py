"""Stores of a region with several nodes: who is told what, in which order, and what a term allows."""

import asyncio
import errno
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, cast
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.image_database import MetadataInDoubt, MetadataUnwritable, Stored
from region_broker.controller.membership_keeping import (
    JOINING_MAX,
    MembershipKeeping,
    next_step,
)
from region_broker.controller.metadata_commands import (
    CommandRefused,
    CreateTopic,
    DeleteTopic,
    ResizeTopic,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_machine import (
    KNOWN_WISHES_MAX,
    Applied,
    MachineState,
    encode_wish,
    fold,
)
from region_broker.controller.metadata_store import (
    SETTLED_MS_MAX,
    Coming,
    Going,
    coming_in,
    going_in,
)
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.effects import Joining, PassedOn, SnapshotRequest
from region_broker.controller.raft.entries import Entry, EntryKind, LogIndex, Membership, Term
from region_broker.controller.raft.settings import RaftSettings
from tests.fixtures.metadata_members import Node, three_nodes
from tests.fixtures.raft_groups import Bus, member, until
from tests.simulation.simulated_loop import run_simulated

SNAPSHOTS: dict[str, Any] = {
    "settings": RaftSettings(kept_entries=0),
    "snapshot_after_bytes": 1_000,
}


def simulated(body: Callable[[], Coroutine[Any, Any, None]]) -> Callable[[], None]:
    """Run a test on simulated time."""

    def test() -> None:
        run_simulated(body(), 1)

    test.__name__ = body.__name__
    test.__doc__ = body.__doc__
    return test


def topic(number: int) -> CreateTopic:
    return CreateTopic(TopicImage(topic_id=UUID(int=number), name=f"t{number}", partition_count=1))


def told(node: Node) -> set[str]:
    """Return the topics that the node was told of as made by others."""
    return {name for old, new in node.foreign for name in new.topics.keys() - old.topics.keys()}


@simulated
async def test_INV_M15_others_changes_are_told_before_they_are_in_the_image() -> None:
    nodes = await three_nodes(Bus())
    store, seen = nodes[1].store, list[tuple[bool, bool]]()
    store.on_foreign = lambda old, new: seen.append((store.image is old, new.version > old.version))
    await nodes[0].store.apply(topic(1))
    await until(lambda: "t1" in store.image.topics)
    assert seen == [(True, True)]


@simulated
async def test_INV_M20_what_is_made_ready_for_a_topic_is_waited_for_before_it_is_in_the_image() -> (
    None
):
    nodes = await three_nodes(Bus())
    seen = list[tuple[str, range, bool]]()

    def watch(node: Node) -> None:
        async def make(coming: Sequence[Coming]) -> None:
            await asyncio.sleep(0.05)
            for each in coming:
                is_known = each.topic.name in node.store.image.topics
                seen.append((each.topic.name, each.numbers, is_known))

        node.store.on_coming = make

    for node in nodes:
        watch(node)
    await nodes[0].store.apply(topic(1))  # who asked, and who did not
    await until(lambda: all("t1" in node.store.image.topics for node in nodes))
    await nodes[0].store.apply(SetTopicConfigs(UUID(int=1), {"retention.ms": "1"}, {}))
    await until(lambda: all(node.store.image.topics["t1"].configs for node in nodes))
    assert seen == 3 * [("t1", range(1), False)]


@simulated
async def test_INV_RAP1_the_quorum_goes_on_while_something_is_made_ready() -> None:
    """INV-M20: whoever asked for it waits, and nobody else."""
    nodes = await three_nodes(Bus())
    goes_on = asyncio.Event()

    async def make(_coming: Sequence[Coming]) -> None:
        await goes_on.wait()

    nodes[0].store.on_coming = make
    term = nodes[0].store.group.term
    begun = asyncio.get_running_loop().create_task(nodes[0].store.apply(topic(1)))
    await until(lambda: "t1" in nodes[1].store.image.topics)
    for number in range(2, 6):
        await asyncio.sleep(2)
        await nodes[1].store.apply(topic(number))
    for node in nodes:
        assert (node.store.group.leader, node.store.group.term) == (nodes[0].member, term)
    assert (begun.done(), set(nodes[0].store.image.topics)) == (False, set())
    goes_on.set()
    await begun
    await until(lambda: len(nodes[0].store.image.topics) == 5)


@simulated
async def test_INV_M20_whoever_asked_goes_on_before_anything_else_is_made_ready() -> None:
    """Else the first partition would be opened while its topic grows by others: logs beyond would be opened, and made, at once."""
    nodes = await three_nodes(Bus())
    store, goes_on = nodes[0].store, asyncio.Event()
    seen, database = list[tuple[range, bool]](), store._database

    async def write_at_once(image: MetadataImage, position: LogPosition) -> None:
        # Time in which whoever asked would go on by chance.
        database.stored = Stored(image, position)

    async def make(coming: Sequence[Coming]) -> None:
        seen.extend((each.numbers, each.topic.name in store.image.topics) for each in coming)
        await goes_on.wait()

    store.on_coming = make
    cast("Any", database).write = write_at_once
    begun = asyncio.get_running_loop().create_task(store.apply(topic(1)))
    await until(lambda: "t1" in nodes[1].store.image.topics)
    await nodes[1].store.apply(ResizeTopic(UUID(int=1), 3, 1))
    goes_on.set()
    await begun
    await until(lambda: store.image.topics["t1"].partition_count == 3)
    assert seen == [(range(1), False), (range(1, 3), True)]


@simulated
async def test_INV_M21_what_goes_is_marked_before_the_database_has_forgotten_it() -> None:
    nodes = await three_nodes(Bus())
    seen = list[tuple[int, str, int, bool, bool]]()

    def watch(number: int, node: Node) -> None:
        async def mark(going: Sequence[Going]) -> None:
            await asyncio.sleep(0.05)
            for each in going:
                stored = node.store._database.stored.image.topics
                name = each.topic.name
                seen.append(
                    (number, name, each.keeps, name in stored, name in node.store.image.topics)
                )

        node.store.on_going = mark

    for number, node in enumerate(nodes):
        watch(number, node)
    await nodes[0].store.apply(topic(1))
    await nodes[0].store.apply(topic(2))
    await nodes[0].store.apply(DeleteTopic(UUID(int=1)))  # who asked, and who did not
    await until(lambda: all("t1" not in node.store.image.topics for node in nodes))
    assert sorted(seen) == [(number, "t1", 0, True, True) for number in range(3)]


@simulated
async def test_what_goes_is_what_a_node_has_of_a_topic_and_the_registry_no_more() -> None:
    nodes = await three_nodes(Bus())
    store = nodes[0].store
    empty = store.image
    one = await store.apply(topic(1))
    grown = await store.apply(ResizeTopic(UUID(int=1), 3, 1))
    configured = await store.apply(SetTopicConfigs(UUID(int=1), {"retention.ms": "1"}, {}))
    assert [(each.topic.name, each.keeps) for each in going_in(grown, one)] == [("t1", 1)]
    assert [(each.topic.name, each.keeps) for each in going_in(grown, empty)] == [("t1", 0)]
    assert going_in(one, grown) == going_in(grown, configured) == going_in(empty, one) == []


@simulated
async def test_what_comes_is_what_nobody_can_have_opened() -> None:
    nodes = await three_nodes(Bus())
    store = nodes[0].store
    before = await store.apply(topic(1))
    grown = await store.apply(ResizeTopic(UUID(int=1), 3, 1))
    assert [(each.numbers, each.grows) for each in coming_in(before, grown)] == [
        (range(1, 3), True)
    ]
    empty = msgspec.structs.replace(before, topics={})
    assert [(each.numbers, each.grows) for each in coming_in(empty, grown)] == [(range(3), False)]
    assert coming_in(grown, before) == []


@simulated
async def test_INV_M16_who_follows_hears_of_each_image_as_it_is_there_whoever_asked_for_it() -> (
    None
):
    nodes = await three_nodes(Bus())
    store, heard = nodes[1].store, list[tuple[int, bool]]()
    store.follow(lambda image: heard.append((image.version, store.image is image)))
    first = store.image.version
    await nodes[0].store.apply(topic(1))
    with pytest.raises(CommandRefused):
        await nodes[0].store.apply(topic(1))  # it is in the log, and makes no image
    await store.apply(topic(2))
    await nodes[2].store.apply(topic(3))
    await until(lambda: len(store.image.topics) == 3)
    assert heard == [(first + number, True) for number in range(4)]


async def _behind_a_snapshot(nodes: list[Node], *, waits: bool) -> MetadataImage | None:
    """Let the third node miss what its leader has thrown away; return what it gets for its own wish, if it `waits` for one."""
    bus, third = nodes[0].bus, nodes[2]
    await until(lambda: third.store.group.leader == nodes[0].member)
    waiting: asyncio.Task[MetadataImage] | None = None

    def cut_behind_the_wish(sender: object, _target: object, message: object) -> None:
        if isinstance(message, PassedOn) and sender == third.member:
            asyncio.get_running_loop().call_soon(bus.cut.add, third.member)

    if waits:
        bus.watch = cut_behind_the_wish
        waiting = asyncio.get_running_loop().create_task(third.store.apply(topic(7)))
        await until(lambda: "t7" in nodes[0].store.image.topics)
    else:
        bus.cut.add(third.member)
    for number in range(100, 130):
        await nodes[0].store.apply(topic(number))
    pieces: list[SnapshotRequest] = []
    bus.watch = lambda _sender, _target, message: (
        pieces.append(message) if isinstance(message, SnapshotRequest) else None
    )
    bus.cut.clear()
    found = await waiting if waiting is not None else None
    await until(lambda: third.store.image == nodes[0].store.image)
    assert pieces, "the case is the one that is meant"
    return found


@simulated
async def test_INV_M15_what_a_snapshot_brings_is_told_as_others_change() -> None:
    nodes = await three_nodes(Bus(), **SNAPSHOTS)
    nodes[2].foreign.clear()
    await _behind_a_snapshot(nodes, waits=False)
    assert told(nodes[2]) == {f"t{number}" for number in range(100, 130)}


@simulated
async def test_INV_M15_it_is_told_where_somebody_waits_for_a_change_of_his_own_in_it() -> None:
    """1. A node wishes, and is cut off. 2. Others make topics. 3. A snapshot brings it all: who wished opens his topic, and nobody
    would open the others'.
    """
    nodes = await three_nodes(Bus(), **SNAPSHOTS)
    nodes[2].foreign.clear()
    image = await _behind_a_snapshot(nodes, waits=True)
    assert image is not None
    assert "t7" in image.topics
    assert told(nodes[2]) >= {f"t{number}" for number in range(100, 130)}


@simulated
async def test_INV_M16_no_image_comes_back_behind_a_snapshot() -> None:
    """1. A wish is applied, and something behind it. 2. Before its caller has gone on, a snapshot takes the place of entries.

    INV-M6: nor is anything shown before that one goes on.
    """
    nodes = await three_nodes(Bus())
    store, versions, waited = nodes[1].store, list[int](), list[bool]()
    store.follow(lambda image: versions.append(image.version))
    store.follow(lambda _: waited.append(bool(store._asked)))
    machine = store._machine
    take = machine.on_applied

    def take_and_load(applied: list[Applied]) -> None:
        if not any(each.wish_id in store._asked for each in applied):
            take(applied)
            return
        newer = msgspec.structs.replace(machine.current, version=machine.current.version + 1)
        machine._state = MachineState(newer, machine._state.known)
        take([*applied, Applied(UUID(int=99), newer, None)])
        machine.on_loaded()

    machine.on_applied = take_and_load
    image = await store.apply(topic(1))
    await asyncio.sleep(1)
    assert image is store.image
    assert versions == sorted(versions)
    assert not any(waited)


@simulated
async def test_INV_CND1_a_command_of_a_term_is_applied_in_that_term_or_not_at_all() -> None:
    nodes = await three_nodes(Bus())
    leader = nodes[0].store
    term = leader.group.term
    image = await leader.apply(topic(1), in_term=term)
    assert "t1" in image.topics
    for other in (Term(term - 1), Term(term + 1)):
        with pytest.raises(MetadataUnwritable, match="does not lead the quorum in term"):
            await leader.apply(topic(2), in_term=other)
    with pytest.raises(MetadataUnwritable, match="does not lead the quorum in term") as refused:
        await nodes[1].store.apply(topic(2), in_term=nodes[1].store.group.term)
    assert not isinstance(refused.value, MetadataInDoubt)
    await asyncio.sleep(1)
    assert "t2" not in leader.image.topics


@simulated
async def test_a_command_of_a_term_that_ends_meanwhile_is_in_doubt() -> None:
    nodes = await three_nodes(Bus())
    leader = nodes[0].store
    nodes[0].bus.cut.add(nodes[0].member)
    with pytest.raises(MetadataInDoubt, match="is not settled"):
        await leader.apply(topic(1), in_term=leader.group.term)


@simulated
async def test_INV_UB1_who_is_cancelled_is_let_go_when_the_command_is_settled() -> None:
    nodes = await three_nodes(Bus())
    nodes[0].bus.cut.add(nodes[1].member)
    nodes[1].foreign.clear()
    caller = asyncio.get_running_loop().create_task(nodes[1].store.apply(topic(1)))
    await asyncio.sleep(0.2)
    caller.cancel()
    await asyncio.sleep(0.2)
    assert not caller.done(), "it may take effect yet"
    nodes[0].bus.cut.clear()
    with pytest.raises(asyncio.CancelledError):
        await caller
    assert "t1" in nodes[1].store.image.topics
    assert not told(nodes[1])


@simulated
async def test_a_command_that_nobody_settles_is_given_up_in_time() -> None:
    nodes = await three_nodes(Bus())
    nodes[0].bus.cut |= {nodes[1].member, nodes[2].member}
    caller = asyncio.get_running_loop().create_task(nodes[1].store.apply(topic(1)))
    await asyncio.sleep((SETTLED_MS_MAX - 100) / 1000)
    early = caller.done()
    await asyncio.sleep(2)
    in_time = caller.done()
    nodes[0].bus.cut.clear()  # it ends in any case then, and so does this test
    with pytest.raises(MetadataInDoubt):
        await caller
    assert (early, in_time) == (False, True)


@simulated
async def test_commands_of_one_node_are_applied_one_after_the_other() -> None:
    nodes = await three_nodes(Bus())
    bus, store = nodes[0].bus, nodes[1].store
    passed: set[bytes] = set()
    bus.watch = lambda _sender, _target, message: (
        passed.add(message.payload) if isinstance(message, PassedOn) else None
    )
    bus.cut.add(nodes[1].member)
    loop = asyncio.get_running_loop()
    callers = [loop.create_task(store.apply(topic(number))) for number in (1, 2)]
    await asyncio.sleep(0.2)
    assert len(passed) == 1
    bus.cut.clear()
    await asyncio.wait(callers)
    assert len(passed) == 2


@simulated
async def test_a_store_that_has_failed_is_waited_for_by_nobody() -> None:
    nodes = await three_nodes(Bus())
    nodes[0].bus.cut.add(nodes[1].member)
    store, loop = nodes[1].store, asyncio.get_running_loop()
    caller = loop.create_task(store.apply(topic(1)))
    await asyncio.sleep(0.2)
    store.failed = "a disk is gone"
    begun_s = loop.time()
    with pytest.raises(MetadataInDoubt):
        await caller
    assert loop.time() - begun_s < 2
    with pytest.raises(MetadataInDoubt, match="a disk is gone"):
        await store.apply(topic(2))


# -- who votes ---------------------------------------------------------------------------------------

A, B, C, D = (member(number) for number in (1, 2, 3, 4))


def test_INV_MK1_each_learner_is_looked_at_in_its_turn() -> None:
    """One that never catches up keeps no other one from voting."""
    present = Membership((A,), (B, C))
    assert next_step(present, {}, 3, 0) == Membership((A, B), (C,))
    assert next_step(present, {}, 3, 1) == Membership((A, C), (B,))


def test_INV_MK3_a_folder_does_not_displace_itself() -> None:
    assert next_step(Membership((A, B, C)), {C: C}, 3, 0) is None


def test_no_more_folders_ask_at_once_than_a_leader_remembers() -> None:
    keeping = MembershipKeeping(3)
    for number in range(2 * JOINING_MAX):
        keeping.note_joining(Joining(member(number), None))
    assert len(keeping._joining) == JOINING_MAX


@simulated
async def test_who_asked_is_forgotten_by_who_does_not_lead_and_once_he_is_in() -> None:
    """Whoever wants to be in goes on asking: what was asked for long ago is not carried out by a later leader."""
    nodes = await three_nodes(Bus())
    for node, asks in ((nodes[1], D), (nodes[0], nodes[2].member)):
        node.store._keeping.note_joining(Joining(asks, None))
        await asyncio.sleep(1)
        assert not node.store._keeping._joining
    assert nodes[0].store.group.membership == Membership(tuple(each.member for each in nodes))


@simulated
async def test_INV_M14_a_wish_that_comes_again_later_does_not_undo_what_came_behind_it() -> None:
    """1. A topic is made; the message that asked for it is doubled. 2. It is deleted. 3. The double arrives."""
    nodes = await three_nodes(Bus())
    bus, seen = nodes[0].bus, list[PassedOn]()
    bus.watch = lambda _sender, _target, message: (
        seen.append(message) if isinstance(message, PassedOn) else None
    )
    await nodes[1].store.apply(topic(1))
    bus.watch = lambda *_: None
    await nodes[0].store.apply(DeleteTopic(UUID(int=1)))
    bus.of(nodes[1].member).send(nodes[0].member, seen[0])
    await asyncio.sleep(1)
    for node in nodes:
        assert not node.store.image.topics


def test_INV_M14_of_so_many_wishes_it_is_known_what_became_of_them_the_newest_ones() -> None:
    """On every member alike, and bounded: it is part of a snapshot."""
    state = MachineState(MetadataImage(version=0, cluster_id="c"))
    count = KNOWN_WISHES_MAX + 5
    wishes = [UUID(int=number) for number in range(count)]
    entries = [
        Entry(
            LogIndex(at + 1),
            Term(1),
            EntryKind.COMMAND,
            encode_wish(wish, msgspec.msgpack.encode(DeleteTopic(UUID(int=1)))),
        )
        for at, wish in enumerate(wishes)
    ]
    after, applied = fold(state, entries)
    assert list(after.known) == wishes[5:]
    assert len(applied) == count
    again, twice = fold(after, entries[5:])
    assert (again, twice) == (after, [])


@simulated
async def test_a_node_that_nobody_heard_at_first_joins_later() -> None:
    bus = Bus()
    first, second = Node(bus, 1), Node(bus, 2)
    await (await first.start()).join()
    bus.cut.add(second.member)
    joining = asyncio.get_running_loop().create_task((await second.start()).join())
    await asyncio.sleep(1)
    assert not joining.done()
    bus.cut.clear()
    await until(joining.done)
    assert second.store.group.is_member


@simulated
async def test_a_store_that_is_stopped_ends() -> None:
    nodes = await three_nodes(Bus())
    nodes[1].store.stop()
    assert nodes[1]._task is not None
    _, running = await asyncio.wait([nodes[1]._task], timeout=5)
    assert not running


@simulated
async def test_a_store_whose_disk_fails_says_why_and_the_others_go_on() -> None:
    nodes = await three_nodes(Bus())

    def fault(_operation: str, path: Path) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO), str(path))

    nodes[1].disk.fault = fault
    await nodes[0].store.apply(topic(1))
    await until(lambda: nodes[1].store.failed)
    with pytest.raises(MetadataInDoubt, match="known after a restart"):
        await nodes[1].store.apply(topic(2))
    await until(lambda: "t1" in nodes[2].store.image.topics)


@simulated
async def test_INV_M14_a_snapshot_says_of_a_refused_wish_that_it_was_refused() -> None:
    nodes = await three_nodes(Bus(), **SNAPSHOTS)
    await nodes[0].store.apply(topic(7))
    with pytest.raises(CommandRefused, match="already exists"):
        await _behind_a_snapshot(nodes, waits=True)
