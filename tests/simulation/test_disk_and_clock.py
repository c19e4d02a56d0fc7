"""A node whose clock jumps, whose file system turns read-only or has no inodes left, seen through its ports.

Read-only (EROFS) is what ext4 and xfs do after an error; the end of inodes is ENOSPC where a name is made, while files
that are there still grow. The wall clock jumps by ten minutes, as after a broken NTP server; the monotonic one does not.
"""

import asyncio
import errno
import os
import random
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from geo_replicator.reconciliation.segments.sidecar import decode
from geo_replicator.reconciliation.segments.sidecar_names import sidecar_path
from geo_replicator.tidemark import TidemarkError
from idempotency.identity import ProducerPair
from idempotency.pieces import drained
from region_broker.cli.region import remark
from tests.simulation.disk import SimulatedDisk
from tests.simulation.folder_faults import lose_log
from tests.simulation.kafka_client import Connection, Reader, Refused, batch_of
from tests.simulation.network import Fabric
from tests.simulation.region_pair import Pair, Region, region_pair, until
from tests.simulation.test_cut_link_alerts import view_of

JUMP_MS = 10 * 60 * 1000
CHANGES = (
    "pwrite",
    "truncate",
    "fdatasync",
    "rename",
    "remove",
    "remove_tree",
    "fsync_dir",
    "write_file_atomic",
)
STORAGE_ERRORS = {"kafka_storage_error", "not_leader_or_follower", "unknown_server_error"}


def failing(number: int, path: Path) -> OSError:
    return OSError(number, os.strerror(number), str(path))


def turn_read_only(disk: SimulatedDisk) -> None:
    def fault(operation: str, path: Path) -> None:
        if operation in CHANGES or (operation == "open" and not disk.exists(path)):
            raise failing(errno.EROFS, path)

    disk.fault = fault


def use_up_inodes(disk: SimulatedDisk) -> None:
    def fault(operation: str, path: Path) -> None:
        made = operation == "write_file_atomic" or (operation == "open" and not disk.exists(path))
        if made:
            raise failing(errno.ENOSPC, path)

    disk.fault = fault


@pytest.fixture
async def region(tmp_path: Path) -> AsyncIterator[Region]:
    made = Region("eu", tmp_path / "eu", Fabric(random.Random(1)), random.Random(2), ("eu",))
    await made.start()
    await made.node.topics.create_topic("t", 2, {"segment.bytes": "1048576"})
    await made.node.topics.create_topic("other", 1, {})
    yield made
    await made.kill()


async def connect(region: Region) -> Connection:
    return await Connection.open(region.fabric.site("client"), region.kafka_port)


async def values_of(region: Region, topic: str, partitions: int) -> set[bytes]:
    client = await connect(region)
    reader = Reader(topic, partitions, committed=True)
    while await reader.read(client):
        pass
    client.close()
    return {value for _, _, value in reader.records}


async def write(
    client: Connection, topic: str, index: int, producer: ProducerPair, number: int
) -> bytes:
    """Write record `number` of a producer; return its value once it is acknowledged; raises `Refused`."""
    value = b"%s/%d/%d" % (topic.encode(), index, number)
    await client.produce(topic, {index: batch_of(value, producer, number, transactional=False)})
    return value


async def create(client: Connection, name: str) -> str:
    """Ask for a topic; return the error's name."""
    answer = await client.call(19, 5, {"timeout": 5_000, "validate_only": False, "topics": [
        {"name": name, "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}]})  # fmt: skip
    return str(answer.topics[0].error_code.name)


async def test_EROFS_a_read_only_file_system_refuses_writes_and_keeps_what_was_acknowledged(
    region: Region,
) -> None:
    client = await connect(region)
    producer = await client.init_producer_id(None)
    kept = {await write(client, "t", 0, producer, number) for number in range(3)}
    kept.add(await write(client, "other", 0, producer, 0))
    turn_read_only(region.disk)
    with pytest.raises(Refused) as refused:
        await write(client, "t", 0, producer, 3)
    assert refused.value.code.name in STORAGE_ERRORS
    assert await create(client, "new") == "kafka_storage_error"
    await use_up_ids(client)  # ids are drawn: they need no disk (C11)
    committed = await client.call(8, 8, {
        "group_id": "g", "generation_id_or_member_epoch": -1, "member_id": "", "group_instance_id": None,
        "topics": [{"name": "t", "partitions": [{"partition_index": 0, "committed_offset": 1,
                    "committed_leader_epoch": -1, "committed_metadata": ""}]}]})  # fmt: skip
    assert committed.topics[0].partitions[0].error_code.name == "coordinator_not_available"
    # What nobody wrote to is still read, and the node says what is wrong.
    assert await values_of(region, "other", 1) == {b"other/0/0"}
    assert region.node._partition_check() is not None
    assert "start the node again" in region.node.storage.metadata.failed
    region.check_running()
    client.close()

    await region.kill()
    await region.start()  # on a disk that is well again
    client = await connect(region)
    assert kept <= await values_of(region, "t", 2) | await values_of(region, "other", 1)
    assert await create(client, "new") in {"none", "topic_already_exists"}
    assert await write(client, "t", 1, await client.init_producer_id(None), 0)
    client.close()


async def test_ENOSPC_without_inodes_what_exists_is_written_and_what_needs_a_name_is_refused(
    region: Region,
) -> None:
    client = await connect(region)
    producer = await client.init_producer_id(None)
    kept = {await write(client, "t", index, producer, 0) for index in range(2)}
    use_up_inodes(region.disk)
    kept |= {await write(client, "t", index, producer, 1) for index in range(2)}
    # As in Kafka a topic is made by the metadata; its partition is offline until the disk is well.
    assert await create(client, "new") == "none"
    with pytest.raises(Refused, match="kafka_storage_error"):
        await write(client, "new", 0, producer, 0)
    region.check_running()
    # Partition 0 needs a new segment: it stops, the other goes on.
    with pytest.raises(Refused, match=r"kafka_storage_error|not_leader_or_follower"):
        await fill(client, producer)
    kept.add(await write(client, "t", 1, producer, 2))
    assert kept - {b"t/0/0", b"t/0/1"} <= await values_of_partition(region, 1)
    client.close()

    await region.kill()
    await region.start()
    client = await connect(region)
    assert kept <= await values_of(region, "t", 2)
    assert await create(client, "new") in {"none", "topic_already_exists"}
    await write(client, "new", 0, await client.init_producer_id(None), 0)
    client.close()


# Holds INV-DRM1.
async def test_INV_TAD1_where_the_disk_is_nearly_full_what_is_open_ends_and_nothing_begins(
    region: Region,
) -> None:
    client = await connect(region)
    producer = await client.init_producer_id("open")
    await client.add_partitions("open", producer, "t", [0])
    room = region.node.storage.partitions.room
    before = room.free_bytes_min
    room.free_bytes_min = 1 << 60
    await until(lambda: room.refusal is not None, "somebody looks at the disk")
    with pytest.raises(Refused, match="coordinator_not_available"):  # clients ask again after it
        await client.init_producer_id("new")
    with pytest.raises(Refused, match="coordinator_not_available"):
        await client.add_partitions("open", producer, "t", [1])
    await client.end_txn("open", producer, commit=True, tv2=False)
    room.free_bytes_min = before
    await until(lambda: room.refusal is None, "there is room again")
    producer = await client.init_producer_id("new")
    await client.add_partitions("new", producer, "t", [0, 1])
    client.close()


async def use_up_ids(client: Connection) -> None:
    """Ask for more producer ids than are in stock."""
    for _ in range(3_000):
        await client.init_producer_id(None)


async def fill(client: Connection, producer: ProducerPair) -> None:
    """Write into partition 0 until it is refused, for ten segments at most."""
    for number in range(2, 32):
        batch = batch_of(bytes(400_000), producer, number, transactional=False)
        await client.produce("t", {0: batch})


async def values_of_partition(region: Region, index: int) -> set[bytes]:
    client = await connect(region)
    reader = Reader("t", 2, committed=True)
    reader.positions = {index: 0}
    while await reader.read(client):
        pass
    client.close()
    return {value for _, _, value in reader.records}


async def scanned(region: Region) -> None:
    """Let everything be looked at that is done by the clock: what is overdue, old, idle."""
    transactions = region.node.transactions
    for shard in list(transactions._shards):
        await shard.abort_overdue()
        await shard.forget_idle()
    drained(region.node.storage.partitions.upkeep.maintain(lambda _partition: None))


@pytest.mark.parametrize("jump_ms", [JUMP_MS, -JUMP_MS])
async def test_a_wall_clock_that_jumps_ends_no_transaction_and_no_member_and_stops_no_mirror(
    tmp_path: Path, jump_ms: int
) -> None:
    """There and back again; a transaction of ten seconds and a member of ten seconds live through both jumps."""
    async with region_pair(tmp_path, 5) as pair:
        clock = pair.eu.wall
        await pair.create_topic("t", 1)
        client = await connect(pair.eu)
        heart = await connect(pair.eu)
        member = await heart.call(11, 3, {
            "group_id": "g", "session_timeout": 10_000, "rebalance_timeout": 10_000, "member_id": "",
            "protocol_type": "consumer", "protocols": [{"name": "range", "metadata": b""}]})  # fmt: skip
        producer = await client.init_producer_id("x")
        values: list[bytes] = []
        for number, off_ms in enumerate((jump_ms, 0, -jump_ms, 0)):
            await client.add_partitions("x", producer, "t", [0])
            for part in range(2):
                value = b"%d/%d" % (number, part)
                batch = batch_of(value, producer, 2 * number + part, transactional=True)
                await client.produce("t", {0: batch}, transactional_id="x")
                values.append(value)
                clock.off_ms = off_ms  # in the midst of it
                await scanned(pair.eu)
            await client.end_txn("x", producer, commit=True, tv2=False)
            beat = await heart.call(12, 3, {
                "group_id": "g", "generation_id": member.generation_id, "member_id": member.member_id,
                "group_instance_id": None})  # fmt: skip
            assert beat.error_code.name == "none"
            assert await values_of(pair.eu, "t", 1) == set(values)
            end_offset = (await client.ends("t", 1))[0]
            mirrored = await connect(pair.us)
            async with asyncio.timeout(30):
                while (await mirrored.ends("t", 1))[0] < end_offset:
                    pass
            mirrored.close()
            assert await values_of(pair.us, "t", 1) == set(values)
        found = await client.call(2, 7, {"replica_id": -1, "isolation_level": 0, "topics": [
            {"name": "t", "partitions": [{"partition_index": 0, "current_leader_epoch": -1, "timestamp": 0}]}]})  # fmt: skip
        assert found.topics[0].partitions[0].offset == 0
        client.close()
        heart.close()
        await pair.eu.kill()
        await pair.eu.start()
        assert await values_of(pair.eu, "t", 1) == set(values)


def loses_its_tidemarks(region: Region) -> None:
    folder = region.node.storage.metadata.image.topics["__tidemarks"].topic_id.hex

    def fault(_operation: str, path: Path) -> None:
        if folder in path.parts:
            raise failing(errno.EIO, path)

    region.disk.fault = fault


async def commit(
    client: Connection, name: str, topic: str = "t", partitions: Sequence[int] = (0,)
) -> None:
    """Commit one record in each partition as one transaction."""
    producer = await client.init_producer_id(name)
    await client.add_partitions(name, producer, topic, list(partitions))
    for index in partitions:
        batch = batch_of(name.encode(), producer, 0, transactional=True)
        await client.produce(topic, {index: batch}, transactional_id=name)
    await client.end_txn(name, producer, commit=True, tv2=False)


async def one_is_shown(pair: Pair) -> None:
    """Make the topic, and commit a transaction that the mirror shows."""
    await pair.create_topic("t", 1)
    await commit(await connect(pair.eu), "before")
    await pair.until(lambda: pair.us.partition("t", 0).sight.last_stable_offset == 2, "it is shown")


async def test_T4_a_start_without_readable_tidemarks_holds_no_marker_and_tells_the_way_out(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await pair.create_topic("t", 1)
        client = await connect(pair.eu)
        await commit(client, "before")
        await pair.eu.kill()
        loses_its_tidemarks(pair.eu)
        await pair.eu.start()
        client = await connect(pair.eu)
        await commit(client, "after")
        reader = Reader("t", 1, committed=True)
        while len(reader.records) < 2:
            await reader.read(client, wait_ms=5)
        said = pair.eu.node._tidemark_check()
        assert said is not None
        assert "__tidemarks has stopped" in said
        assert "tidemark region failover" in said
        assert remark(view_of(pair.eu)) == said, "region status says it, too"
        await pair.eu.node.maintain()  # a round of retention finds no tidemark, and ends nothing
        with pytest.raises(
            TidemarkError
        ):  # T25: nobody may cut a log at what a damaged log seems to say
            pair.eu.node.tidemarks.claim()


async def test_T16_a_mirror_without_readable_tidemarks_shows_nothing_and_tells_the_way_out(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await one_is_shown(pair)
        await pair.us.kill()
        loses_its_tidemarks(pair.us)
        await pair.us.start()
        said = pair.us.node._tidemark_check()
        assert said is not None
        assert "remove that folder" in said
        with pytest.raises(
            TidemarkError
        ):  # T25: nobody may cut a log at what seems to be no tidemark
            pair.us.node.tidemarks.claim()


async def test_T16_an_old_primary_without_readable_tidemarks_returns_and_copies_them_again(
    tmp_path: Path,
) -> None:
    async with region_pair(tmp_path, 1) as pair:
        await one_is_shown(pair)
        await pair.eu.kill()
        await pair.fail_over()
        await commit(await connect(pair.us), "after")
        loses_its_tidemarks(pair.eu)
        await pair.eu.start()
        await pair.until(lambda: pair.eu.node._tidemark_check() is not None, "eu says why")
        assert "remove that folder" in (pair.eu.node._tidemark_check() or "")
        await pair.eu.kill()
        pair.eu.disk.fault = None
        lose_log(pair.eu, "__tidemarks", 0)
        await pair.eu.start()
        await pair.until(
            lambda: pair.eu.partition("t", 0).sight.last_stable_offset == 4, "it shows all"
        )


async def test_INV_RCSD1_a_full_segment_gets_its_digests_on_the_nodes_own_disk(
    region: Region,
) -> None:
    client = await connect(region)
    producer = await client.init_producer_id(None)
    for number in range(3):
        value = bytes(500_000)
        await client.produce("t", {0: batch_of(value, producer, number, transactional=False)})
    client.close()
    [sealed] = region.partition("t", 0).log.sealed_paths()
    digests = sidecar_path(sealed)
    await until(lambda: region.disk.exists(digests), "the digests of a full segment")
    assert decode(region.disk.read_file(digests)).segment_bytes == region.disk.file_size(sealed)
