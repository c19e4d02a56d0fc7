"""Changes of topics whose callers are cancelled at any moment: registry and partitions say the same behind them (INV-UB1)."""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from region_broker.region.mirror.mirror_topics import MirrorTopicStore, mirror_topic
from tests.simulation.region_pair import Pair, Region, region_pair

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

PATIENCE = 120
"""After so many turns of the loop each of these changes is over."""


async def cancelled_after(region: Region, turns: int, work: Coroutine[Any, Any, object]) -> bool:
    """Cancel `work` after `turns` turns of the loop and wait for its end; tell whether it was over by then."""
    task = region.as_process(work)
    for _ in range(turns):
        await asyncio.sleep(0)
    over = task.done()
    task.cancel()
    with suppress(asyncio.CancelledError):
        await task
    return over


def agree(region: Region, name: str) -> int | None:
    """Return how many partitions a topic has, None where there is none; fail where registry and table differ."""
    storage = region.node.storage
    image = storage.metadata.image.topics.get(name)
    held = [p.tp.partition for p in storage.partitions if p.tp.topic == name]
    assert held == ([] if image is None else list(range(image.partition_count)))
    return None if image is None else image.partition_count


@pytest.mark.parametrize("change", ["create", "grow", "delete"])
async def test_INV_UB1_a_cancelled_change_of_the_primary_is_whole(
    tmp_path: Path, change: str
) -> None:
    async with region_pair(tmp_path, 3) as pair:
        topics, found = pair.eu.node.topics, set()
        for turns in range(PATIENCE):
            name = f"t-{turns}"
            work = {
                "create": partial(topics.create_topic, name, 1, {}),
                "grow": partial(topics.grow_topic, name, 3, 1),
                "delete": partial(topics.delete_topic, name),
            }
            if change != "create":
                await topics.create_topic(name, 1, {})
            over = await cancelled_after(pair.eu, turns, work[change]())
            found.add((agree(pair.eu, name), over))
        expected = {"create": 1, "grow": 3, "delete": None}[change]
        assert (expected, False) in found, "some were cancelled in the middle, and carried out"
        assert (expected, True) in found, "and some were over before"


async def mirrors_of(pair: Pair, name: str) -> MirrorTopicStore:
    """Return what changes the topics of us, which follows nobody any more, and has topic `name`."""
    await pair.create_topic(name, 1)
    link = pair.us.node.tidemarks.link
    assert link is not None
    topics = link._ports.topics
    assert isinstance(topics, MirrorTopicStore)
    return topics


@pytest.mark.parametrize("change", ["delete", "rename", "create"])
async def test_INV_UB1_a_cancelled_change_of_a_mirror_is_whole(tmp_path: Path, change: str) -> None:
    """Seed 93219: a link was cancelled behind the commit of a deletion, and the next takeover ended the node."""
    async with region_pair(tmp_path, 5) as pair:
        whole = set()
        for turns in range(PATIENCE):
            name = f"t-{turns}"
            topics = await mirrors_of(pair, name)
            image = pair.us.node.storage.metadata.image.topics[name]
            topic = mirror_topic(image)
            new = replace(topic, topic_id=pair.us.node._ports.chance.uuid(), name=f"new-{turns}")
            work = {
                "delete": partial(topics.delete, topic),
                "rename": partial(topics.rename, {topic.topic_id: f"{name}-b"}),
                "create": partial(topics.create, new),
            }
            over = await cancelled_after(pair.us, turns, work[change]())  # type: ignore[operator]
            for each in (name, f"{name}-b", new.name):
                agree(pair.us, each)
            changed = {
                "delete": agree(pair.us, name) is None,
                "rename": agree(pair.us, f"{name}-b") == 1,
                "create": agree(pair.us, new.name) == 1,
            }[change]
            whole.add((changed, over))
        assert (True, False) in whole
        assert (True, True) in whole
