"""T18 for a planned switch: what was answered before it is there after it, topics and their configs too."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from geo_replicator.failover import Phase
from geo_replicator.topology import MirrorTopic
from region_broker.controller.metadata_commands import (
    NOT_ACTING,
    Command,
    CommandRefused,
    SetTopicConfigs,
)
from region_broker.controller.metadata_image import MetadataImage
from region_broker.records.batches import Record, build_batch
from region_broker.region.failover.messages import AskDrain
from region_broker.region.mirror.mirror_topics import MirrorTopicStore
from region_broker.region.mirror.primary_side import _FetchSession
from region_broker.region.peers.protocol import FetchLogs, PeerRefused
from region_broker.region.peers.sessions import Reply
from tests.fixtures.failover_regions import ORDERS, Pair
from tests.fixtures.waiting import until


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


# Holds INV-RR4.
async def test_T18_a_change_under_way_when_a_drain_begins_is_below_the_last_tidemark(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    apply, held = pair.eu.metadata.apply, asyncio.Event()

    async def waiting(command: Command) -> MetadataImage:
        await held.wait()
        return await apply(command)

    monkeypatch.setattr(pair.eu.metadata, "apply", waiting)
    async with asyncio.TaskGroup() as changes:
        changes.create_task(pair.eu.topics.create_topic("payments", 1, {}))
        changes.create_task(pair.eu.grow(3))
        await asyncio.sleep(0)
        operation = pair.us.operations.begin_switch()
        await pair.eu.until(Phase.DRAINING)
        with pytest.raises(CommandRefused) as late:
            await pair.eu.topics.create_topic("refunds", 1, {})
        assert late.value.code == NOT_ACTING
        # Something that was under way, too: a tidemark over it comes, and it is not the last one.
        batch = build_batch([Record(None, b"late")])
        await pair.eu.partition().wait_committed(
            pair.eu.partition().writer.append(batch).next_offset
        )
        await pair.reached("late")
        held.set()
    await pair.us.ended(operation)
    assert operation.status == "succeeded", operation
    assert "payments" in pair.us.metadata.image.topics
    assert pair.us.partition_count == 3


async def test_T18_a_switch_that_would_lose_what_acks_1_has_answered_names_the_log_that_it_waited_for(
    pair: Pair,
) -> None:
    """Its topic asks for more nodes than are in sync (INV-RPL3)."""
    pair.eu.driver.settings = replace(pair.eu.settings, final_round_timeout_ms=50)  # type: ignore[misc]
    partition = pair.eu.partition()
    partition.commit_up_to(0)
    await partition.commits.wait_durable(
        partition.writer.append(build_batch([Record(None, b"one")])).next_offset
    )
    with pytest.raises(PeerRefused, match=r"orders-0 first\) are not committed to their ends"):
        await pair.eu.answers.drain(AskDrain(operation_id="o", to_region="us", timeout_ms=60_000))
    await pair.eu.until(Phase.ACTING)


async def test_T18_a_switch_waits_until_the_changes_of_topics_are_carried_out_here(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the last tidemark covers comes behind the configs of then (INV-LK10)."""
    update, held, begun = MirrorTopicStore.update_configs, asyncio.Event(), asyncio.Event()
    collect, told = _FetchSession._collect, asyncio.Event()
    told.set()

    async def waiting(self: MirrorTopicStore, topic: MirrorTopic) -> None:
        if topic.name == ORDERS:
            begun.set()
            await held.wait()
        await update(self, topic)

    async def telling(self: _FetchSession, request: FetchLogs) -> Reply | None:
        await told.wait()
        return await collect(self, request)

    monkeypatch.setattr(MirrorTopicStore, "update_configs", waiting)
    monkeypatch.setattr(_FetchSession, "_collect", telling)
    await pair.us.until(Phase.MIRRORING)
    await pair.eu.write("first")
    await pair.reached("first")
    # The mirror hears of it with the last tidemark, however long that takes.
    told.clear()
    orders = pair.eu.metadata.image.topics[ORDERS]
    await pair.eu.metadata.apply(SetTopicConfigs(orders.topic_id, {"retention.ms": "77"}))
    known_claim, cut_leader = pair.us.driver.outlook.known_claim, pair.eu.tidemarks.cut_leader
    assert cut_leader is not None
    operation = pair.us.operations.begin_switch()
    await until(
        lambda: any(step.startswith("waiting to reach") for step in operation.steps),
        "the last tidemark",
    )
    told.set()
    await begun.wait()
    assert known_claim().point < cut_leader.published
    assert operation.status == "running"
    held.set()
    await pair.us.ended(operation)
    assert operation.status == "succeeded", operation
    assert pair.us.metadata.image.topics[ORDERS].configs == {"retention.ms": "77"}
