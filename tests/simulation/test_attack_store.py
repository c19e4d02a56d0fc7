"""What others changed, beside what a node waits for: sequences of events that kept it from being told, or told it too early."""

import asyncio
from uuid import UUID

from region_broker.controller.metadata_commands import CreateTopic, DeleteTopic
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.raft.effects import Message, PassedOn
from region_broker.controller.raft.entries import Member
from region_broker.controller.raft.settings import RaftSettings
from tests.fixtures.metadata_members import Node, three_nodes
from tests.fixtures.raft_groups import Bus, until


def topic(number: int, name: str = "") -> CreateTopic:
    return CreateTopic(
        TopicImage(topic_id=UUID(int=number), name=name or f"t{number}", partition_count=1)
    )


def cut_behind_a_wish(bus: Bus, node: Node) -> None:
    """Cut a node off as soon as it has passed a command on."""

    def watch(sender: Member, _target: Member, message: Message) -> None:
        if isinstance(message, PassedOn) and sender == node.member:
            asyncio.get_running_loop().call_soon(bus.cut.add, node.member)

    bus.watch = watch


async def test_INV_M15_what_others_changed_in_a_snapshot_is_told_although_somebody_waits_here() -> (
    None
):
    """1. A node passes a command on, and is cut off. 2. Others change topics; all of it goes into a snapshot. 3. The node gets that.

    Whoever keeps partitions open by what `on_foreign` tells would never open these.
    """
    bus = Bus()
    nodes = await three_nodes(
        bus, settings=RaftSettings(kept_entries=0), snapshot_after_bytes=1_000
    )
    third = nodes[2]
    await until(lambda: third.store.group.leader == nodes[0].member)
    cut_behind_a_wish(bus, third)
    waiting = asyncio.get_running_loop().create_task(third.store.apply(topic(7)))
    await until(lambda: "t7" in nodes[0].store.image.topics)
    for number in range(100, 130):
        await nodes[0].store.apply(topic(number))
    third.foreign.clear()
    bus.watch = lambda *_: None
    bus.cut.clear()
    await waiting
    await until(lambda: third.store.image == nodes[0].store.image)
    told = {name for old, new in third.foreign for name in new.topics.keys() - old.topics.keys()}
    assert {f"t{number}" for number in range(100, 130)} <= told


async def test_INV_M15_what_comes_behind_a_command_is_not_seen_before_whoever_asked_goes_on() -> (
    None
):
    """1. A node has a topic deleted, and is cut off. 2. Another node makes one of that name. 3. The first hears of both at once.

    It drops the partitions of the former one as soon as its command returns: were it told of the new one before, two topics
    would be open under one name.
    """
    bus = Bus()
    nodes = await three_nodes(bus)
    third = nodes[2]
    await until(lambda: third.store.group.leader == nodes[0].member)
    await third.store.apply(topic(1, "t"))
    cut_behind_a_wish(bus, third)
    seen: list[list[tuple[MetadataImage, MetadataImage]]] = []
    answers: list[MetadataImage] = []

    async def delete() -> None:
        third.foreign.clear()
        answers.append(await third.store.apply(DeleteTopic(UUID(int=1))))
        seen.append(list(third.foreign))

    waiting = asyncio.get_running_loop().create_task(delete())
    await until(lambda: "t" not in nodes[0].store.image.topics)
    await nodes[0].store.apply(topic(2, "t"))
    bus.watch = lambda *_: None
    bus.cut.clear()
    await waiting
    assert seen == [[]]
    assert "t" not in answers[0].topics
    await until(lambda: third.store.image == nodes[0].store.image)
    ((old, new),) = third.foreign
    assert "t" not in old.topics
    assert new.topics["t"].topic_id == UUID(int=2)
