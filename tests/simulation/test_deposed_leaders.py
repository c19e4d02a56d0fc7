"""A node of a region that is named to lead, and then no more, before all is committed that its logs hold: it follows."""

import asyncio
from pathlib import Path
from uuid import UUID

import pytest
from msgspec.structs import replace

from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import Leadership
from region_broker.controller.metadata_commands import CreateTopic
from region_broker.controller.metadata_image import TopicImage
from region_broker.region.cluster import replica_term
from region_broker.region.ports import Term
from tests.simulation.region_cluster import Member, region_cluster
from tests.simulation.test_region_of_three import all_in_sync

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


async def test_INV_LSH3_a_leader_that_is_deposed_before_it_serves_follows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """1. eu-1 is gone, and another one is elected, whose logs are committed once eu-3 has them, too. 2. It is cut off before.
    3. A third election, by the others. 4. It hears of that while it waits."""
    async with region_cluster(tmp_path, 1) as cluster:
        await all_in_sync(cluster)
        eu1, eu2, eu3 = cluster.nodes.values()
        # What was committed no disk has noted yet: its followers have to say.
        monkeypatch.setattr(replica_term, "noted_high_watermark", lambda log: log.log_start_offset)
        begun = list[Member]()

        def cut_off(member: Member) -> None:
            leading = member.node._replication.leading  # type: ignore[union-attr]
            begin = leading.begin

            def begin_alone(leadership: Leadership) -> None:
                begin(leadership)
                if not begun:
                    begun.append(member)
                    for each in {eu1, eu2, eu3} - {member}:
                        cluster.fabric.cut(member.name, each.name)

            leading.begin = begin_alone  # type: ignore[method-assign]

        for member in (eu2, eu3):
            cut_off(member)
        await eu1.kill()
        await cluster.until(lambda: bool(begun), "named")
        [elected] = begun
        [other] = {eu2, eu3} - {elected}
        assert not elected.node.role.acting
        waiting = elected.node._replication.leading._term  # type: ignore[union-attr]
        assert waiting is not None
        assert waiting._unsettled, (
            "all logs were settled before it was cut off: nothing is tried here"
        )
        assert not waiting._settled.is_set(), "who waits for all logs is told behind the first"
        await eu1.begin()
        await cluster.until(lambda: cluster.leader is not None, "somebody else leads")
        assert cluster.leader is not elected
        for each in (other, eu1):
            cluster.fabric.heal(elected.name, each.name)
        leader = await all_in_sync(cluster)
        assert leader is not elected
        await asyncio.sleep(0.1)


async def test_INV_RGF1_a_topic_that_comes_before_it_serves_is_led_too(tmp_path: Path) -> None:
    """1. A topic is made at the node that leads, which dies. 2. Another one is named. 3. Only then the topic is in the metadata."""
    async with region_cluster(tmp_path, 1) as cluster:
        await all_in_sync(cluster)
        eu1, *others = cluster.nodes.values()
        go, waiting = asyncio.Event(), list[Member]()

        def hold_back(member: Member) -> None:
            leading = member.node._replication.leading  # type: ignore[union-attr]
            until_committed = leading.until_committed

            async def held_back() -> None:
                waiting.append(member)
                await go.wait()
                await until_committed()

            leading.until_committed = held_back  # type: ignore[method-assign]

        for member in others:
            hold_back(member)
        await eu1.kill()
        await cluster.until(lambda: bool(waiting), "another one is about to lead")
        topic = TopicImage(topic_id=UUID(int=9), name="late", partition_count=1, configs={})
        [follower] = set(others) - set(waiting)
        await follower.node.storage.metadata.apply(CreateTopic(topic))
        await cluster.until(
            lambda: waiting[0].node.storage.partitions.get("late", 0) is not None, "it is there"
        )
        go.set()
        leader = await cluster.until_led(but=eu1)
        assert leader.partition("late", 0).is_leader


async def test_INV_LSH1_whoever_is_deposed_as_it_has_loaded_opens_no_gate(tmp_path: Path) -> None:
    """The metadata name another node in the turn of the loop in which the last ledger is loaded."""
    async with region_cluster(tmp_path, 1) as cluster:
        await all_in_sync(cluster)
        eu1, *others = cluster.nodes.values()
        opened = list[bool]()

        def depose(member: Member) -> None:
            node = member.node
            services = node.role._services.transactions
            load = services.load

            async def load_too_late(term: Term) -> None:
                await load(term)
                image = node.storage.metadata.image
                assert image.leadership is not None
                other = replace(
                    image.leadership, leader=eu1.member._begun.member,
                    leader_epoch=LeaderEpoch(term.leader_epoch + 1),
                )  # fmt: skip
                leadership = node._replication.leadership  # type: ignore[union-attr]
                leadership.take_image(replace(image, leadership=other))
                asyncio.get_running_loop().call_soon(lambda: opened.append(node.role.acting))

            services.load = load_too_late  # type: ignore[method-assign]

        for member in others:
            depose(member)
        await eu1.kill()
        await cluster.until(lambda: bool(opened), "one of them has loaded")
        assert opened == [False]
