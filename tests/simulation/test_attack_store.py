"""What others changed, beside what a node waits for: a sequence of events that told it too early (a snapshot: `test_metadata_rules`)."""

import asyncio
from uuid import UUID

from region_broker.controller.metadata_commands import CreateTopic, DeleteTopic
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.raft.effects import Message, PassedOn
from region_broker.controller.raft.entries import Member
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
