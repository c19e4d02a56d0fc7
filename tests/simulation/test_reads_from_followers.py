"""Readers that say their rack (KIP-392): sent to a follower, served by it, and sent back where it may not serve (ADR 50)."""

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from region_broker.partitions.partition import Partition
from tests.simulation.cluster_regions import ClusterRegion, NodeAmong, Regions, cluster_regions
from tests.simulation.cut_judge import whole
from tests.simulation.kafka_client import FETCH, Connection, Reader, batch_of, patiently
from tests.simulation.region_cluster import Cluster, Member, rack_of, region_cluster
from tests.simulation.test_region_of_three import TOPIC, all_in_sync, connected, write

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]

NOBODY = -1


def followers_of(cluster: Cluster, leader: Member) -> list[Member]:
    return [node for node in cluster.nodes.values() if node is not leader]


def serves(node: Member) -> bool:
    replication = node.node._replication
    return replication is not None and replication.following.readers.is_open


def serving(leader: Member) -> set[int]:
    replication = leader.node._replication
    assert replication is not None
    return {member.node_id for member in replication.leading.serving()}


def shows(node: Member) -> bool:
    partition = node.node.storage.partitions.get(TOPIC, 0)
    return partition is not None and partition.sight.shows_committed


async def all_serve(cluster: Cluster) -> Member:
    """Return the leader once it knows that both followers serve readers, of `TOPIC` too."""
    leader = await all_in_sync(cluster)
    others = followers_of(cluster, leader)
    await cluster.until(
        lambda: (
            serving(leader) == {node.node_id for node in others}
            and all(shows(node) for node in others)
        ),
        "followers serve readers",
    )
    return leader


async def until_copied(cluster: Cluster, copy: Partition, end: int) -> None:
    """Return once a follower knows that all below `end` is committed."""
    await cluster.until(lambda: copy.high_watermark >= end, "its HW is there")


async def asked(
    connection: Connection, rack: str, *, offset: int = 0, committed: bool = True, wait_ms: int = 0
) -> Any:
    """Return what partition 0 answers a reader in `rack`."""
    [row] = await connection.fetch(
        TOPIC, {0: offset}, committed=committed, wait_ms=wait_ms, rack=rack
    )
    return row


async def read_at(connection: Connection, rack: str, *, committed: bool) -> list[bytes]:
    """Return all values of partition 0 that a reader in `rack` sees there."""
    reader = Reader(TOPIC, 1, committed=committed)
    while True:
        before = reader.positions[0]
        reader.take_row(await asked(connection, rack, offset=before, committed=committed))
        if reader.positions[0] == before:
            return [value for _, _, value in reader.records]


async def test_INV_HRD1_INV_HRD2_a_reader_is_sent_to_its_rack_and_served_there(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 50) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        at_leader = await connected(cluster, leader)
        await write(at_leader, [b"1", b"2", b"3"])
        for node in followers_of(cluster, leader):
            rack = rack_of(node.name)
            sent = await asked(at_leader, rack)
            assert (int(sent.preferred_read_replica), sent.error_code.value) == (node.node_id, 0)
            assert not sent.records
            assert sent.high_watermark == 3
            # What is beyond the end, or below the start, the leader judges itself.
            refused = await asked(at_leader, rack, offset=4)
            assert refused.error_code.name == "offset_out_of_range"
            connection = await connected(cluster, node)
            await until_copied(cluster, node.partition(TOPIC, 0), 3)
            assert await read_at(connection, rack, committed=True) == [b"1", b"2", b"3"]
            assert node.node._services.readers.counts.copy_bytes > 0  # type: ignore[union-attr]
            # Who says no rack, or another one, is to ask the leader.
            for other in ("", rack_of(leader.name), "elsewhere"):
                row = await asked(connection, other)
                assert row.error_code.name == "not_leader_or_follower"
        for rack in ("", rack_of(leader.name), "elsewhere"):
            row = await asked(at_leader, rack)
            assert (int(row.preferred_read_replica), bool(row.records)) == (NOBODY, True)
        assert leader.node._services.readers.counts.sent_away == 2  # type: ignore[union-attr]


async def test_INV_FCH1_an_error_that_sends_a_reader_away_names_who_leads(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 58) as cluster:
        leader = await all_in_sync(cluster)
        topic = await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        await write(await connected(cluster, leader), [b"1"])
        node = followers_of(cluster, leader)[0]
        connection = await connected(cluster, node)
        now = leader.node.role.leader_epoch
        for epoch, error in ((now - 1, "fenced_leader_epoch"), (now + 1, "unknown_leader_epoch")):
            part = {"partition": 0, "fetch_offset": 0, "partition_max_bytes": 1 << 20, "current_leader_epoch": epoch}  # fmt: skip
            answer = await connection.call(
                FETCH, 16,
                {"max_wait": 0, "min_bytes": 1, "max_bytes": 1 << 20, "isolation_level": 1, "session_id": 0, "session_epoch": -1,
                 "topics": [{"topic_id": topic.topic_id, "partitions": [part]}], "forgotten_topics_data": [],
                 "rack_id": rack_of(node.name)},
            )  # fmt: skip
            [row] = answer.responses[0].partitions
            assert row.error_code.name == error
            if error == "fenced_leader_epoch":
                named = row.current_leader.leader_id, row.current_leader.leader_epoch
                assert named == (leader.node_id, now)
                assert [each.node_id for each in answer.node_endpoints] == [leader.node_id]


async def test_INV_HRD4_INV_RPR4_a_follower_serves_again_once_what_a_reader_has_met_is_mended(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 59) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {"segment.bytes": "4096"})
        leader = await all_serve(cluster)
        values = [b"%06d" % number * 150 for number in range(12)]
        await write(await connected(cluster, leader), values)
        node = followers_of(cluster, leader)[0]
        partition, rack = node.partition(TOPIC, 0), rack_of(node.name)
        await until_copied(cluster, partition, 12)
        await cluster.until(lambda: bool(partition.log.sealed_paths()), "one is full")
        connection, [path, *_] = await connected(cluster, node), partition.log.sealed_paths()
        node.disk.damage(path, 200)
        row = await asked(connection, rack)
        assert row.error_code.name == "not_leader_or_follower"
        await cluster.until(lambda: not serves(node), "readers are sent to the leader")
        await cluster.until(lambda: node.node.scrubber.mended_ranges == 1, "it is mended")
        await cluster.until(lambda: serves(node), "readers are served again")
        assert await read_at(await connected(cluster, node), rack, committed=True) == values


async def test_INV_PT11_a_copy_shows_no_undecided_and_no_aborted_record(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 51) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        node = followers_of(cluster, leader)[0]
        rack, partition = rack_of(node.name), node.partition(TOPIC, 0)
        connection, writing = await connected(cluster, node), await connected(cluster, leader)
        expected: list[bytes] = []
        producer = await patiently(lambda: writing.init_producer_id("t"))
        for number in range(4):
            await patiently(lambda: writing.add_partitions("t", producer, TOPIC, [0]))
            value = f"t{number}".encode()
            batch = batch_of(value, producer, number, transactional=True)
            base = (await writing.produce(TOPIC, {0: batch}, transactional_id="t"))[0]
            await until_copied(cluster, partition, base + 1)
            assert await read_at(connection, rack, committed=True) == expected
            assert value in await read_at(connection, rack, committed=False)
            commit = number % 2 == 0
            await patiently(partial(writing.end_txn, "t", producer, commit=commit, tv2=False))
            await until_copied(cluster, partition, base + 2)
            expected += [value] if commit else []
            assert await read_at(connection, rack, committed=True) == expected


async def test_a_reader_that_waits_at_a_follower_is_told_of_what_is_committed(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 52) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        node = followers_of(cluster, leader)[0]
        connection, loop = await connected(cluster, node), asyncio.get_running_loop()
        began_s = loop.time()
        waiting = loop.create_task(asked(connection, rack_of(node.name), wait_ms=20_000))
        await asyncio.sleep(0.1)
        assert not waiting.done()
        await write(await connected(cluster, leader), [b"1"])
        row = await waiting
        assert (row.error_code.value, bool(row.records), row.high_watermark) == (0, True, 1)
        assert loop.time() - began_s < 10


async def test_INV_HRD3_a_follower_says_of_no_offset_that_it_is_out_of_range(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 53) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        await write(await connected(cluster, leader), [b"1", b"2", b"3"])
        node = followers_of(cluster, leader)[0]
        partition, rack = node.partition(TOPIC, 0), rack_of(node.name)
        await cluster.until(lambda: partition.high_watermark == 3, "its HW is there")
        connection = await connected(cluster, node)
        for offset in (4, 100):
            row = await asked(connection, rack, offset=offset, wait_ms=50)
            assert row.error_code.name == "offset_not_available"
        await leader.partition(TOPIC, 0).retention.delete_records(2)
        await cluster.until(lambda: partition.log_start_offset == 2, "deleted there, too")
        row = await asked(connection, rack, offset=1)
        assert row.error_code.name == "not_leader_or_follower"
        assert (await asked(connection, rack, offset=2)).error_code.value == 0


async def test_INV_RRD1_who_is_cut_off_from_the_leader_soon_serves_nobody(tmp_path: Path) -> None:
    async with region_cluster(tmp_path, 54) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        await write(await connected(cluster, leader), [b"1"])
        node, other = followers_of(cluster, leader)
        connection, rack = await connected(cluster, node), rack_of(node.name)
        for name in (leader.name, other.name):
            cluster.fabric.mute(node.name, name)
            cluster.fabric.mute(name, node.name)
        began_s = asyncio.get_running_loop().time()
        waiting = asyncio.get_running_loop().create_task(
            asked(connection, rack, offset=1, wait_ms=30_000)
        )
        await cluster.until(lambda: not serves(node), "it serves nobody")
        assert asyncio.get_running_loop().time() - began_s < 3
        row = await waiting
        assert asyncio.get_running_loop().time() - began_s < 3, "who waits hears at once"
        assert row.error_code.name == "not_leader_or_follower"
        assert (await asked(connection, rack)).error_code.name == "not_leader_or_follower"
        # The leader serves the reader meanwhile.
        at_leader = await connected(cluster, leader)
        await cluster.until(lambda: node.node_id not in serving(leader), "the leader knows")
        row = await asked(at_leader, rack)
        assert (int(row.preferred_read_replica), bool(row.records)) == (NOBODY, True)
        for name in (leader.name, other.name):
            cluster.fabric.unmute(node.name, name)
            cluster.fabric.unmute(name, node.name)
        await all_serve(cluster)
        assert await read_at(connection, rack, committed=True) == [b"1"]


async def test_INV_RRD2_whoever_waits_at_a_follower_hears_at_once_that_another_one_leads(
    tmp_path: Path,
) -> None:
    async with region_cluster(tmp_path, 55) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        await write(await connected(cluster, leader), [b"1"])
        loop = asyncio.get_running_loop()
        waiting = []
        for node in followers_of(cluster, leader):
            connection = await connected(cluster, node)
            ask = asked(connection, rack_of(node.name), offset=1, wait_ms=30_000)
            waiting.append(loop.create_task(ask))
        await asyncio.sleep(0.1)
        await leader.kill()
        second = await cluster.until_led(but=leader)
        rows = [await each for each in waiting]
        assert {row.error_code.name for row in rows} == {"not_leader_or_follower"}
        await write(await connected(cluster, second), [b"2"])
        await leader.start()
        await all_serve(cluster)
        connection = await connected(cluster, leader)
        assert await read_at(connection, rack_of(leader.name), committed=True) == [b"1", b"2"]


async def test_INV_RRD1_followers_serve_readers_while_their_region_takes_writes(
    tmp_path: Path,
) -> None:
    """A leader that takes no writes says so in its answers, before the metadata say what is to come of it."""
    async with region_cluster(tmp_path, 57) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {})
        leader = await all_serve(cluster)
        await write(await connected(cluster, leader), [b"1"])
        leader.node.role.close_gate("this is a test")
        node, other = followers_of(cluster, leader)
        at_leader = await connected(cluster, leader)
        row = await asked(at_leader, rack_of(node.name))
        assert (int(row.preferred_read_replica), bool(row.records)) == (NOBODY, True)
        await cluster.until(lambda: not (serves(node) or serves(other)), "they serve nobody")
        row = await asked(await connected(cluster, node), rack_of(node.name))
        assert row.error_code.name == "not_leader_or_follower"


def copies_shown(regions: Regions, name: str) -> list[bytes]:
    """Return the bytes of the copies of `TOPIC` that readers see now at nodes of a region that do not lead it."""
    found = []
    for node in regions.regions[name].nodes.values():
        partition = None
        if node.runs and (not isinstance(node, NodeAmong) or node.member.node is not None):
            partition = node.node.storage.partitions.get(TOPIC, 0)
        if partition is not None and partition.sight.is_copy_shown:
            end = partition.sight.visible_end
            found.append(bytes(whole(partition, partition.kept_from, end)))
    return found


async def look_on(regions: Regions, wrong: list[str]) -> None:
    """Look at each moment whether the nodes of eu show a record that was written in us, or any while eu mirrors."""
    while True:
        shown = copies_shown(regions, "eu")
        if any(b"of-us" in data for data in shown):
            wrong.append("a follower of eu shows what was written in us")
        leader = regions.eu.leader
        if shown and leader is not None and leader.node.role.mirrors:
            wrong.append("a follower shows a copy although its region mirrors")
        await asyncio.sleep(0.001)


def all_open(regions: Regions, name: str) -> bool:
    region = regions.regions[name]
    return region.acts and len(copies_shown(regions, name)) == len(region.nodes) - 1


@pytest.mark.parametrize("planned", [True, False])
async def test_INV_RRD3_followers_of_a_region_that_mirrors_show_nothing(
    tmp_path: Path, planned: bool
) -> None:
    """The region that acted is another one's mirror later: its followers never show what only tidemarks may show there (T17)."""
    async with cluster_regions(tmp_path, 56) as regions:
        eu, us = regions.eu, regions.us
        await eu.led.node.topics.create_topic(TOPIC, 1, {})
        await regions.until(lambda: all_open(regions, "eu"), "followers of eu serve readers")
        site = regions.fabric.site("client")
        await write(await Connection.open(site, eu.led.kafka_port), [b"of-eu-1", b"of-eu-2"])
        await regions.until(
            lambda: us.led.node.storage.partitions.get(TOPIC, 0) is not None, "us has the topic"
        )
        await regions.until(
            lambda: us.led.partition(TOPIC, 0).sight.visible_end == 2, "us shows what eu has"
        )
        await nobody_is_sent_away(regions, us)

        wrong: list[str] = []
        looking = asyncio.get_running_loop().create_task(look_on(regions, wrong))
        sides = list(eu.nodes.values()), list(us.nodes.values())
        if not planned:
            regions.part(*sides)
            await write(await Connection.open(site, eu.led.kafka_port), [b"of-eu-lost"], first=2)
        await regions.take_over(us, planned=planned)
        await regions.until(lambda: all_open(regions, "us"), "followers of us serve readers now")
        await write(await Connection.open(site, us.led.kafka_port), [b"of-us-1", b"of-us-2"])
        regions.join(*sides)
        await regions.until(
            lambda: eu.mirrors and eu.led.partition(TOPIC, 0).sight.visible_end >= 4,
            "eu shows what us has",
        )
        end = eu.led.partition(TOPIC, 0).log_end_offset
        await regions.until(
            lambda: all(n.partition(TOPIC, 0).high_watermark >= end for n in eu.nodes.values()),
            "all nodes of eu have it",
        )
        await nobody_is_sent_away(regions, eu)
        looking.cancel()
        assert wrong == []


async def nobody_is_sent_away(regions: Regions, mirror: ClusterRegion) -> None:
    """Ask the nodes of a mirror region as a reader in a follower's rack."""
    site, follower = regions.fabric.site("client"), mirror.follower
    rack = rack_of(follower.name)
    row = await asked(await Connection.open(site, mirror.led.kafka_port), rack)
    assert (int(row.preferred_read_replica), bool(row.records)) == (NOBODY, True)
    row = await asked(await Connection.open(site, follower.kafka_port), rack)
    assert row.error_code.name == "not_leader_or_follower"


async def test_INV_HRD1_nobody_is_sent_to_a_copy_that_starts_behind_what_is_asked_for(
    tmp_path: Path,
) -> None:
    """1. A leader deletes. 2. One follower does so, too. 3. The leader is lost, and the one that has not heard of it leads."""
    async with region_cluster(tmp_path, 50) as cluster:
        leader = await all_in_sync(cluster)
        await leader.node.topics.create_topic(TOPIC, 1, {"segment.bytes": "4096"})
        leader = await all_serve(cluster)
        at_leader = await connected(cluster, leader)
        values = [b"%d" % number * 2_000 for number in range(9)]
        for value in values:
            await write(at_leader, [value])
        node, rack = (
            followers_of(cluster, leader)[0],
            rack_of(followers_of(cluster, leader)[0].name),
        )
        copy = node.partition(TOPIC, 0)
        await until_copied(cluster, copy, 9)
        copy.retention.forget_below(6)
        copy.trimming.leader_keeps_from = 6  # as that leader has said (INV-RFN8)
        await cluster.until(lambda: copy.trimming.start_is_kept, "the start is durable")
        await node.node.maintain()
        replication = node.node._replication
        assert replication is not None
        replication.following.compare_anew("its records are deleted")
        await cluster.until(lambda: not serves(node), "it begins anew")
        await all_serve(cluster)
        assert copy.log_start_offset > 0
        row = await asked(at_leader, rack)
        assert (int(row.preferred_read_replica), bool(row.records)) == (NOBODY, True)
        row = await asked(at_leader, rack, offset=copy.log_start_offset)
        assert int(row.preferred_read_replica) == node.node_id
