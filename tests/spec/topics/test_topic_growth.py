"""Topics that grow: CreatePartitions through the wire, and T15 on a mirror and through a takeover.

Sources: KIP-195, Kafka ReplicationControlManager.createPartitions; tidemarks.md T15.
"""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from geo_replicator.failover import Phase
from geo_replicator.loss import UndoneChange
from geo_replicator.tail import LostOffsets
from geo_replicator.whole_ends import WholeEnds
from idempotency.identity import NO_LEADER_EPOCH, TopicName, TopicPartition
from region_broker.controller.metadata_image import OFFSETS_LEDGER
from region_broker.groups.records import (
    OffsetKey,
    OffsetValue,
    encode_offset_key,
    encode_offset_value,
)
from region_broker.records.batches import Record, build_batch
from tests.fixtures.failover_regions import ORDERS, Pair, fail_over
from tests.fixtures.kafka_port import LEADER_EPOCH, wire_fixture
from tests.fixtures.waiting import until

NONE, UNKNOWN_TOPIC, INVALID_PARTITIONS, BAD_ASSIGNMENT, INVALID_REQUEST = 0, 3, 37, 39, 42


def grow_of(*topics: Any, dry: bool = False) -> dict[str, Any]:
    return {"topics": topics, "timeout": 5000, "validate_only": dry}


def topic_of(name: str, count: int, assigned: list[list[int]] | None = None) -> dict[str, Any]:
    rows = None if assigned is None else [{"broker_ids": ids} for ids in assigned]
    return {"name": name, "count": count, "assignments": rows}


@pytest.mark.parametrize("version", range(4))
async def test_KIP195_topic_grows_and_its_new_partitions_take_writes(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        topic = await fixture.topic("t")
        client = await fixture.connect()
        (row,) = (await client.call(37, version, grow_of(topic_of("t", 3)))).results
        assert (row.error_code, row.name) == (NONE, "t")
        asked = {"topics": [{"name": "t"}], "allow_auto_topic_creation": False}
        (found,) = (await client.call(3, 7, asked)).topics
        rows = [(p.partition_index, p.leader_id, p.leader_epoch) for p in found.partitions]
        assert rows == [(0, 1, LEADER_EPOCH), (1, 1, LEADER_EPOCH), (2, 1, LEADER_EPOCH)]
        assert fixture.services.metadata.image.topics["t"].topic_id == topic.topic_id
        assert fixture.partition("t", 2).is_leader


@pytest.mark.parametrize(
    ("asked", "error", "text"),
    [
        ([topic_of("t", 2)], INVALID_PARTITIONS, "already"),
        ([topic_of("t", 1)], INVALID_PARTITIONS, "fewer"),
        ([topic_of("t", 0)], INVALID_PARTITIONS, "fewer"),
        ([topic_of("t", 1_001)], INVALID_PARTITIONS, "at most 1000"),
        ([topic_of("nope", 3)], UNKNOWN_TOPIC, "nope"),
        ([topic_of("__ledger", 3)], INVALID_PARTITIONS, "ledger"),
        ([topic_of("t", 3), topic_of("t", 4)], INVALID_REQUEST, "twice"),
        ([topic_of("t", 4, [[1]])], BAD_ASSIGNMENT, "2 partitions are new"),
        ([topic_of("t", 3, [[9]])], BAD_ASSIGNMENT, "only node"),
        ([topic_of("t", 3, [[1, 2]])], BAD_ASSIGNMENT, "only node"),
        ([topic_of("t", 3, [[1, 1]])], BAD_ASSIGNMENT, "only node"),
    ],
)
async def test_KIP195_growth_is_refused_with_the_reason(
    tmp_path: Path, asked: Any, error: int, text: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t", 2)
        await fixture.internal_topic("__ledger")
        client = await fixture.connect()
        before = fixture.services.metadata.image
        (row,) = (await client.call(37, 3, grow_of(*asked))).results
        assert row.error_code == error
        assert text in (row.error_message or "")
        assert fixture.services.metadata.image is before


async def test_KIP195_validate_only_grows_nothing_and_assignments_may_name_any_regions_node(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        client = await fixture.connect()
        asked = topic_of("t", 3, [[1], [2]])  # 2: what clients of a mirror see
        for dry, count in ((True, 1), (False, 3)):
            (row,) = (await client.call(37, 1, grow_of(asked, dry=dry))).results
            assert row.error_code == NONE
            assert fixture.services.metadata.image.topics["t"].partition_count == count


async def test_KIP195_of_two_that_grow_a_topic_at_a_time_one_is_refused(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        rows: list[Any] = []

        async def grow(count: int) -> None:
            client = await fixture.connect()
            rows.extend((await client.call(37, 3, grow_of(topic_of("t", count)))).results)

        async with asyncio.TaskGroup() as tasks:
            for count in (3, 4):
                tasks.create_task(grow(count))
        assert {row.error_code for row in rows} <= {NONE, INVALID_PARTITIONS}
        assert fixture.services.metadata.image.topics["t"].partition_count in (3, 4)


@pytest.fixture
async def pair(tmp_path: Path) -> AsyncIterator[Pair]:
    async with Pair(tmp_path) as regions:
        yield regions


async def grow_without_a_tidemark(pair: Pair) -> None:
    """Let the mirror copy what lies in a new partition that no tidemark names."""
    await pair.eu.write("first")
    await pair.reached("first")
    publishing = [task for task in asyncio.all_tasks() if task.get_name() == "cut-leader"]
    for task in publishing:
        task.cancel()
    await asyncio.wait(publishing)
    await pair.eu.grow(3)
    await pair.eu.write("young", number=2)
    await until(lambda: (p := pair.us.table.get(ORDERS, 2)) is not None and p.high_watermark == 1)
    assert pair.us.partition(2).sight.visible_end == 0
    assert pair.us.partition_count == 2


async def test_T15_a_mirror_grows_at_a_tidemark_that_names_the_new_partitions(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    await pair.eu.grow(3)
    await until(lambda: pair.us.partition_count == 3)
    await pair.eu.write("in the new one", number=2)
    await until(lambda: b"in the new one" in pair.us.values(2))
    await pair.eu.kill()
    await fail_over(pair.us)
    assert pair.us.partition_count == 3
    assert b"in the new one" in pair.us.values(2)
    await pair.us.write("goes on", number=2)


async def test_T15_growth_is_durable_before_the_tidemark_counts_as_reached(pair: Pair) -> None:
    await pair.eu.write("first")
    await pair.reached("first")
    link = pair.us.link
    counts = []
    save = link._ports.reached.save

    async def saving(point: Any, whole: WholeEnds) -> None:
        vector = link.reaching.book.vector(point)
        assert vector is not None
        named = [key for key in vector.positions if key.partition == 2]
        if named:
            counts.append(pair.us.partition_count)
        await save(point, whole)

    link._ports.reached.save = saving  # type: ignore[method-assign]
    await pair.eu.grow(3)
    await pair.eu.write("young", number=2)
    await until(lambda: pair.us.table.get("orders", 2) is not None)
    await until(lambda: b"young" in pair.us.raw(2) and pair.us.partition(2).sight.visible_end == 1)
    assert counts
    assert set(counts) == {3}


@pytest.mark.parametrize("restarted", [False, True])
async def test_T15_a_partition_that_no_tidemark_names_goes_to_quarantine_at_a_takeover(
    pair: Pair, restarted: bool
) -> None:
    await grow_without_a_tidemark(pair)
    await pair.eu.kill()
    if restarted:
        await pair.us.kill()
        await pair.us.start()
        assert pair.us.partition(2).high_watermark == 1
    await fail_over(pair.us)
    assert pair.us.partition_count == 2
    assert pair.us.table.get(ORDERS, 2) is None
    assert [tail.partition for tail in pair.us.quarantine.tails() if tail.topic == ORDERS] == [2]
    await pair.us.write("on the new primary")
    # The old primary comes back: its growth was lost, so it shrinks, and keeps the tail aside.
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    await until(lambda: pair.eu.partition_count == 2 and pair.eu.table.get(ORDERS, 2) is None)
    assert 2 in [tail.partition for tail in pair.eu.quarantine.tails() if tail.topic == ORDERS]
    # It may grow again, and the new partition begins empty in both regions.
    await pair.us.grow(3)
    await pair.us.write("anew", number=2)
    await until(lambda: pair.eu.partition_count == 3 and b"anew" in pair.eu.values(2))
    assert b"young" not in pair.eu.raw(2) + pair.us.raw(2)


async def test_INV_LO1_a_statement_names_offset_commits_and_topic_changes_beyond_its_tidemark(
    pair: Pair,
) -> None:
    await grow_without_a_tidemark(pair)
    place = OffsetKey("readers", TopicPartition(TopicName(ORDERS), 1))
    for at in (7, 9):
        value = encode_offset_value(OffsetValue(at, NO_LEADER_EPOCH, "", 0))
        batch = build_batch([Record(encode_offset_key(place), value)])
        pair.eu.partition(0, OFFSETS_LEDGER).writer.append_ledger(batch)
    await until(lambda: pair.us.partition(0, OFFSETS_LEDGER).high_watermark == 2)
    await pair.eu.kill()
    stated = await pair.us.operations.statement()
    lost = LostOffsets(group_id="readers", topic=ORDERS, partition=1, commit_count=2, last_offset=9)
    assert (stated.offsets, stated.offset_commit_count) == ((lost,), 2)
    assert stated.topic_changes == (UndoneChange(topic=ORDERS, change="grown to 3 partitions"),)
    await fail_over(pair.us)
    assert pair.us.partition_count == 2
    await pair.eu.start()
    await pair.eu.until(Phase.MIRRORING)
    for site in (pair.us, pair.eu):
        (losses,) = await site.operations.losses()
        assert losses.offsets == (lost,)
        assert losses.statement is not None
        assert losses.statement.topic_changes == stated.topic_changes
