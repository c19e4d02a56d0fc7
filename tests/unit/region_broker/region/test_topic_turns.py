"""Changes of topics that clients ask for at once: one after the other, and nothing of the node's own waits behind more than one (INV-TG2, INV-TG3)."""

import asyncio
import random
from collections.abc import Coroutine, Sequence
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any, cast

import pytest

from region_broker.controller.metadata_commands import (
    NOT_ACTING,
    Command,
    CommandRefused,
    CountNodeStart,
    CreateTopic,
    DeleteTopic,
    ResizeTopic,
)
from region_broker.controller.metadata_commands import apply as applied
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from region_broker.controller.metadata_store import Coming
from region_broker.controller.refusals import TOO_MANY_PARTITIONS
from region_broker.region import topics as topics_module
from region_broker.region.ports import MetadataSide
from region_broker.region.topics import TopicRegistry
from tests.fixtures.metadata_members import three_nodes
from tests.fixtures.raft_groups import Bus
from tests.simulation.region_pair import SeededChance
from tests.simulation.simulated_loop import run_simulated
from tests.unit.region_broker.region.test_role_rules import played


class Partitions:
    """Opens nothing; what a deletion leaves is out of the way when `finished` says so."""

    def __init__(self) -> None:
        self.finished = asyncio.Event()
        self.finished.set()
        self.letting_go = SimpleNamespace(finish_of=self._finish_of)

    def open_topic(self, _topic: TopicImage) -> Sequence[Any]:
        return ()

    def drop_topic(self, _topic_id: object) -> None:
        """Nothing is open."""

    async def mark_topic(self, _topic_id: object, _why: str) -> None:
        """Nothing is on a disk."""

    async def _finish_of(self, _topic_id: object) -> None:
        await self.finished.wait()


class Quorum:
    """A `MetadataSide` whose log settles what it is asked for one after the other, each when it is let."""

    def __init__(self) -> None:
        self.image = MetadataImage(version=0, cluster_id="c")
        self.asked: list[Command] = []
        self.settles = asyncio.Semaphore(0)
        self._line = asyncio.Lock()

    async def apply(self, command: Command) -> MetadataImage:
        self.asked.append(command)
        async with self._line:
            await self.settles.acquire()
            self.image = applied(self.image, command)
            return self.image


def registry_of(
    metadata: MetadataSide, change: Any = nullcontext, partitions: Partitions | None = None
) -> TopicRegistry:
    table = cast("Any", partitions or Partitions())
    return TopicRegistry(metadata, table, SeededChance(random.Random(1)), lambda _: None, change)


def begun(work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
    return asyncio.get_running_loop().create_task(work)


async def steps() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_INV_TG2_what_a_node_asks_for_itself_waits_for_one_change_of_topics_at_most() -> None:
    """1. Somebody sends very many CreateTopics. 2. A follower is lost. 3. The in-sync set would change behind all of them, and what is
    produced with acks=all would hang until then.
    """

    async def body() -> None:
        nodes = await three_nodes(Bus())
        store = nodes[0].store

        async def make(_coming: Sequence[Coming]) -> None:
            await asyncio.sleep(1)

        store.on_coming = make
        registry = registry_of(store)
        creating = [begun(registry.create_topic(f"t{at}", 1, {})) for at in range(20)]
        await steps()
        await store.apply(CountNodeStart())
        assert len(store.image.topics) <= 2
        await asyncio.gather(*creating)
        assert len(store.image.topics) == 20

    run_simulated(body(), 1)


async def test_INV_TG2_a_region_that_stands_still_waits_for_one_change_and_refuses_those_behind_it() -> (
    None
):
    async with played() as services:
        await services.act()
        services.role.open_gate()
        metadata = Quorum()
        registry = registry_of(metadata, services.role.change)
        creating = [begun(registry.create_topic(f"t{at}", 1, {})) for at in range(5)]
        await steps()
        assert len(metadata.asked) == 1
        standing = begun(services.role.stand_still("a planned switch"))
        await steps()
        assert not standing.done(), "INV-RR4"
        metadata.settles.release()
        await standing
        found = await asyncio.gather(*creating, return_exceptions=True)
        assert [type(each) for each in found] == [TopicImage, *[CommandRefused] * 4]
        assert {each.code for each in found if isinstance(each, CommandRefused)} == {NOT_ACTING}
        assert len(metadata.asked) == 1


async def test_INV_TG2_a_change_that_waits_is_not_made_once_who_asked_is_gone() -> None:
    metadata = Quorum()
    registry = registry_of(metadata)
    first, second, third = (begun(registry.create_topic(name, 1, {})) for name in "abc")
    await steps()
    for gone in (first, second):
        gone.cancel()
    await steps()
    assert second.cancelled()
    assert not first.done(), "INV-UB1: it was begun"
    metadata.settles.release()
    metadata.settles.release()
    await third
    assert first.cancelled()
    assert sorted(metadata.image.topics) == ["a", "c"]


async def test_INV_TG2_the_folder_of_a_deleted_topic_holds_up_no_other_change() -> None:
    metadata, partitions = Quorum(), Partitions()
    registry = registry_of(metadata, partitions=partitions)
    for _ in range(3):
        metadata.settles.release()
    await registry.create_topic("a", 1, {})
    partitions.finished.clear()
    deleting = begun(registry.delete_topic("a"))
    await steps()
    await registry.create_topic("a", 1, {})
    assert not deleting.done()
    partitions.finished.set()
    assert (await deleting).name == "a"
    assert [type(each) for each in metadata.asked] == [CreateTopic, DeleteTopic, CreateTopic]


async def test_INV_TG3_topics_that_are_made_at_once_have_no_more_partitions_than_there_is_room_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """1. Very many CreateTopics come at once. 2. Each sees room, as none of the others has been made. 3. All would be made."""
    monkeypatch.setattr(topics_module, "ALL_PARTITIONS_MAX", 6)
    metadata = Quorum()
    registry = registry_of(metadata)
    metadata.settles.release()
    await registry.create_topic("a", 1, {})
    changes = [
        begun(registry.create_topic("b", 3, {})), begun(registry.grow_topic("a", 3, 1)),
        begun(registry.create_topic("c", 1, {})),
    ]  # fmt: skip
    for _ in changes:
        metadata.settles.release()
    found = await asyncio.gather(*changes, return_exceptions=True)
    assert [each.code for each in found if isinstance(each, CommandRefused)] == [
        TOO_MANY_PARTITIONS
    ]
    assert sum(topic.partition_count for topic in metadata.image.topics.values()) == 6
    assert [type(each) for each in metadata.asked] == [CreateTopic, CreateTopic, ResizeTopic]
