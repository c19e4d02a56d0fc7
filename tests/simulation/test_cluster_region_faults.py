"""What becomes of regions of several nodes side by side where nodes are deposed, emptied, or all start at once (ADR 48)."""

from pathlib import Path

import pytest

from geo_replicator.failover import Phase, State
from geo_replicator.failover_events import Event, ReturnBegun
from region_broker.region.failover import record
from region_broker.region.failover.record import RegionRecord
from tests.simulation.cluster_region_steps import (
    TOPIC,
    all_alike,
    connected,
    create,
    number_of,
    shown,
    tidemarks_go_on,
    values_at,
    write,
)
from tests.simulation.cluster_regions import AnyNode, ClusterRegion, Regions, cluster_regions
from tests.simulation.folder_faults import empty_folder
from tests.simulation.kafka_client import batch_of, patiently, produce_request
from tests.simulation.swarm.processor import committed_offset

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]
OFFSET_COMMIT = 8
PRODUCE = 0


async def begin_again(regions: Regions) -> None:
    for node in regions.nodes.values():
        if not node.runs:
            await node.begin()


async def test_INV_LSH1_a_deposed_leader_of_the_primary_is_left_by_the_mirror_and_publishes_nothing(
    tmp_path: Path,
) -> None:
    """It is cut off from its region's nodes, and still connected with the other region."""
    async with cluster_regions(tmp_path, 21) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1", b"2")
        await shown(regions, us, 2)
        first = eu.led
        connection = await connected(regions, first)
        producer = await patiently(lambda: connection.init_producer_id(None))
        regions.part([first], eu.others(first))
        connection.send(
            PRODUCE,
            9,
            produce_request(TOPIC, {0: batch_of(b"lost", producer, 0, transactional=False)}),
        )
        published = number_of(first)
        await regions.until_led(eu, but=first)
        await regions.until(lambda: eu.acts, "eu acts")
        await write(regions, eu, b"3")
        await shown(regions, us, 3)
        assert first.partition(TOPIC, 0).high_watermark == 2
        assert number_of(first) == published
        assert await values_at(regions, us) == [b"1", b"2", b"3"]
        await tidemarks_go_on(regions, eu, b"4")
        regions.join([first], eu.others(first))
        await all_alike(regions, "eu")
        assert await values_at(regions, us) == [b"1", b"2", b"3", b"4"]


async def test_a_deposed_leader_of_the_primary_promises_nothing_and_a_failover_goes_by_the_one_that_leads(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 22) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        first = eu.led
        regions.part([first], eu.others(first))
        await regions.until_led(eu, but=first)
        await regions.until(lambda: eu.acts, "eu acts")
        await write(regions, eu, b"2")
        await regions.take_over(us, planned=False)
        assert await values_at(regions, us) == [b"1", b"2"]
        await write(regions, us, b"3")
        assert not first.node.role.acting
        regions.join([first], eu.others(first))
        await all_alike(regions, "us")


async def test_a_deposed_leader_of_a_mirror_reaches_nothing_more_and_does_not_take_over(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 23) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        first = us.led
        regions.part([first], us.others(first))
        operation = await regions.ordered(us, planned=False)
        reached = number_of(first)
        second = await regions.until_led(us, but=first)
        await regions.until(lambda: eu.acts, "eu acts again: the drain was given up")
        await write(regions, eu, b"2", b"3")
        await shown(regions, us, 3)
        assert us.led is second
        assert not first.node.role.acting
        assert number_of(first) <= reached + 1
        assert first.partition(TOPIC, 0).high_watermark == 1
        assert operation.status != "succeeded"
        regions.join([first], us.others(first))
        await regions.until(lambda: follows(first), "it follows")
        await all_alike(regions, "eu" if eu.acts else "us")
        assert await values_at(regions, us) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("side", ["eu", "us"])
@pytest.mark.parametrize("power", [False, True])
async def test_all_nodes_of_a_region_start_again_at_once(
    side: str, power: bool, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 24) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        for node in regions.regions[side].nodes.values():
            await node.kill(power=regions.chance if power else None)
        await begin_again(regions)
        await regions.all_well()
        await tidemarks_go_on(regions, regions.eu, b"3")
        await all_alike(regions, "eu")
        assert await values_at(regions, regions.us) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("planned", [False, True])
async def test_an_emptied_node_on_each_side_joins_again_during_a_takeover(
    planned: bool, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 25) as regions:
        await create(regions, regions.eu)
        await write(regions, regions.eu, b"1", b"2")
        await shown(regions, regions.us, 2)
        emptied = [regions.eu.follower, regions.us.follower]
        for node in emptied:
            await node.kill()
            empty_folder(node)
        await regions.ordered(regions.us, planned=planned)
        for node in emptied:
            await node.begin()
        await regions.until(lambda: regions.us.acts, "us acts")
        await write(regions, regions.us, b"3")
        await all_alike(regions, "us")
        assert await values_at(regions, regions.eu) == [b"1", b"2", b"3"]


@pytest.mark.parametrize("room", [False, True], ids=["no room", "room"])
async def test_INV_FS7_the_return_of_an_emptied_region_of_several_nodes_names_no_log_where_it_has_no_room_for_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, room: bool
) -> None:
    """Where an entry of the metadata has room for all logs of all takeovers, a node of an older version that leads next can read it."""
    if not room:
        monkeypatch.setattr(record, "STATE_BYTES_MAX", 1_000)
    async with cluster_regions(tmp_path, 29) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        for region in (us, eu):
            await regions.take_over(region, planned=True)
            await regions.all_well("us" if region is us else "eu")
        for node in us.nodes.values():
            await node.kill()
            empty_folder(node)
            node.made = False  # its first one founds it
        recorded: list[bool] = []
        append = RegionRecord.append

        async def noted(region: RegionRecord, event: Event, after: State) -> None:
            if isinstance(event, ReturnBegun):
                recorded.extend(bool(entry.positions) for entry in event.entries)
            await append(region, event, after)

        monkeypatch.setattr(RegionRecord, "append", noted)
        for node in us.nodes.values():
            await node.begin()
        await regions.all_well()
        await write(regions, eu, b"2")
        await all_alike(regions, "eu")
        assert await values_at(regions, us) == [b"1", b"2"]
        assert set(recorded) == {room}
        lineages = [each.led.node.storage.metadata.image.main_domain.lineage for each in (eu, us)]
        assert lineages[0] == lineages[1]
        assert all(entry.positions for entry in lineages[1])


async def test_an_old_region_returns_whose_leader_had_a_tail_that_its_region_never_committed(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 26) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        first = eu.led
        connection = await connected(regions, first)
        producer = await patiently(lambda: connection.init_producer_id(None))
        regions.part(list(eu.nodes.values()), list(us.nodes.values()))
        regions.part([first], eu.others(first))
        for number, value in enumerate((b"tail", b"more")):
            batch = batch_of(value, producer, number, transactional=False)
            connection.send(PRODUCE, 9, produce_request(TOPIC, {0: batch}))
        await regions.until(
            lambda: first.partition(TOPIC, 0).log_end_offset > 1, "the tail is there"
        )
        for node in eu.nodes.values():
            await node.kill()
        await regions.take_over(us, planned=False)
        await write(regions, us, b"2", b"3", b"4")
        regions.join(list(eu.nodes.values()), list(us.nodes.values()))
        regions.join([first], eu.others(first))
        await begin_again(regions)
        await all_alike(regions, "us")
        assert await values_at(regions, eu) == [b"1", b"2", b"3", b"4"]


@pytest.mark.parametrize("again", [False, True])
async def test_INV_FA3_another_node_of_the_old_region_ends_its_return(
    again: bool, tmp_path: Path
) -> None:
    async with cluster_regions(tmp_path, 27) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        regions.part(list(eu.nodes.values()), list(us.nodes.values()))
        await write(regions, eu, b"lost", b"too")
        await regions.take_over(us, planned=False)
        await write(regions, us, b"2", b"3")
        regions.join(list(eu.nodes.values()), list(us.nodes.values()))
        await regions.until(lambda: eu.phase is Phase.RETURNING, "eu returns")
        first = eu.led
        await first.kill()
        second = await regions.until_led(eu, but=first)
        if again:
            await first.begin()
            await regions.until(
                lambda: eu.in_sync() == 3 or eu.led is not second, "all in sync again"
            )
            await second.kill()
        await begin_again(regions)
        await all_alike(regions, "us")
        assert await values_at(regions, eu) == [b"1", b"2", b"3"]
        losses = await eu.led.node.operations.losses()
        assert losses


async def test_the_drained_leader_dies_and_the_switch_ends_or_is_given_back(tmp_path: Path) -> None:
    async with cluster_regions(tmp_path, 28) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1")
        await shown(regions, us, 1)
        first = eu.led
        await regions.ordered(us, planned=True)
        await regions.until(lambda: first.phase in {Phase.DRAINING, Phase.FENCED}, "eu drains")
        await first.kill()
        await regions.until(lambda: bool(acting(regions)) and eu.leader is not None, "one acts")
        await begin_again(regions)
        await regions.until(
            lambda: any(map(regions.is_well, regions.regions)), "one acts, and all is well"
        )
        [at] = acting(regions)
        await write(regions, at, b"2")
        await all_alike(regions, at.name)
        for region in (eu, us):
            assert await values_at(regions, region) == [b"1", b"2"]


def follows(node: AnyNode) -> bool:
    replication = node.node._replication
    return replication is not None and replication.leadership.follows


def acting(regions: Regions) -> list[ClusterRegion]:
    return [each for each in regions.regions.values() if each.acts]


async def test_topics_come_grow_and_go_while_the_leaders_of_the_mirror_change(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 29) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        topics = eu.led.node.topics
        for number in range(6):
            await topics.create_topic(f"t{number}", 2, {})
            if number % 2:
                await topics.grow_topic(f"t{number}", 3, 2)
            if number % 3 == 2:
                await topics.delete_topic(f"t{number - 1}")
            await write(regions, eu, b"%d" % number)
            if number in {1, 3, 4}:
                await regions.until(lambda: us.in_sync() == len(us.nodes), "all are in sync")
                first = us.led
                await first.kill()
                await write(regions, eu, b"and")
                await regions.until_led(us, but=first)
                await first.begin()
        await all_alike(regions, "eu")
        names = [
            {t.name: t.partition_count for t in n.node.storage.metadata.image.topics.values()}
            for n in regions.nodes.values()
        ]
        assert all(each == names[0] for each in names)


async def commit(regions: Regions, at: ClusterRegion, group: str, offset: int) -> None:
    connection = await connected(regions, at.led)
    row = {
        "partition_index": 0,
        "committed_offset": offset,
        "committed_leader_epoch": -1,
        "committed_metadata": "",
    }
    answer = await connection.call(
        OFFSET_COMMIT, 7,
        {"group_id": group, "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
         "topics": [{"name": TOPIC, "partitions": [row]}]},
    )  # fmt: skip
    assert all(p.error_code.value == 0 for t in answer.topics for p in t.partitions), answer
    connection.close()


async def test_committed_offsets_of_groups_are_there_after_a_failover_whoever_leads(
    tmp_path: Path,
) -> None:
    async with cluster_regions(tmp_path, 30) as regions:
        eu, us = regions.eu, regions.us
        await create(regions, eu)
        await write(regions, eu, b"1", b"2", b"3")
        await commit(regions, eu, "g", 2)
        await tidemarks_go_on(regions, eu, b"4")
        for node in eu.nodes.values():
            await node.kill()
        first = us.led
        await first.kill()
        await regions.until_led(us, but=first)
        await regions.take_over(us, planned=False)
        second = us.led
        assert await committed_offset(await connected(regions, second), "g", TOPIC, 0) == 2
        await first.begin()
        await regions.until(lambda: us.in_sync() == 3, "in sync")
        await second.kill()
        await regions.until_led(us, but=second)
        await regions.until(lambda: us.acts, "us acts")
        assert await committed_offset(await connected(regions, us.led), "g", TOPIC, 0) == 2
        await begin_again(regions)
        await all_alike(regions, "us")
