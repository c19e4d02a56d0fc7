"""Whole nodes with an audit trail: their starts, changes and failover steps, over a takeover and power cuts.

INV-NAU1, INV-ATR1: an order is refused where it cannot be recorded, and a takeover that has begun goes on.
"""

import asyncio
import json
import random
from pathlib import Path
from typing import Any

import pytest

from idempotency.record_batch import iter_headers
from region_broker.controller.image_database import MetadataUnwritable
from region_broker.records.batches import iter_records
from region_broker.security.audit.chain_files import chain_names
from region_broker.security.audit.events import Actor, acting_as
from region_broker.security.audit.recorder import AuditRecorder
from tests.simulation.region_cluster import region_cluster
from tests.simulation.region_pair import Pair, Region
from tests.simulation.test_region_of_three import all_in_sync
from tests.unit.region_broker.security.audit.chains import is_sound_by_hand

pytestmark = [pytest.mark.slow, pytest.mark.simulation, pytest.mark.usefixtures("silence")]


class Alice:
    """Asks for changes."""

    def actor(self) -> Actor:
        """See `Acting`."""
        return Actor("User:alice", "10.0.0.1", request_id="10.0.0.1:7#3")


def lines_of(region: Region) -> list[bytes]:
    folder = region.folder / "audit"
    return [
        line
        for name in chain_names(region.disk.list_dir(folder))
        for line in region.disk.read_file(folder / name).splitlines(keepends=True)
    ]


def rows_of(region: Region) -> list[dict[str, Any]]:
    return [json.loads(line) for line in lines_of(region)]


def operations(region: Region, kind: str) -> list[str]:
    return [row["operation"] for row in rows_of(region) if row["kind"] == kind]


async def test_two_regions_keep_their_trails_over_a_takeover_and_power_cuts(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 7)
    for region in pair.regions.values():
        region.settings = {"audit": "on", "audit_file_bytes": 64 << 10}
    await pair.start()
    try:
        with acting_as(Alice()):
            await pair.create_topic("orders", 2)
        await pair.until(lambda: "done" in outcomes(pair.eu, "CreateTopic"), "the outcome is there")
        assert outcomes(pair.eu, "CreateTopic") == ["intended", "done"]
        [intent, done] = [row for row in rows_of(pair.eu) if row["operation"] == "CreateTopic"]
        assert (intent["principal"], intent["host"], intent["request_id"]) == ("User:alice", "10.0.0.1", "10.0.0.1:7#3")  # fmt: skip
        assert done["answers"] == intent["seq"]
        await pair.until(lambda: outcomes(pair.us, "CreateTopic") == ["done"], "the mirror's own")
        assert [row["principal"] for row in rows_of(pair.us) if row["operation"] == "CreateTopic"] == ["Node:us/2"]  # fmt: skip

        await pair.until(
            lambda: carried(pair.eu) == whole(lines_of(pair.eu)), "all is in the topic"
        )
        await pair.until(lambda: pair.us.node.storage.partitions.get("tidemark.audit", 0) is not None, "and mirrored")  # fmt: skip
        await pair.eu.kill(power=random.Random(1))
        await pair.fail_over()
        await pair.until(lambda: set(lines_of(pair.us)) <= set(carried(pair.us)), "the mirror's waited, and came")  # fmt: skip
        steps = operations(pair.us, "step")
        assert "TakeoverBegun" in steps
        await pair.eu.start()
        await pair.until(lambda: "HigherEpochLearned" in operations(pair.eu, "step"), "eu is fenced, and says so")  # fmt: skip
        assert operations(pair.eu, "trail").count("node-started") == 2
        await pair.us.kill(power=random.Random(2))
        for region in pair.regions.values():
            assert is_sound_by_hand(whole(lines_of(region)))
    finally:
        await pair.stop()


def carried(region: Region) -> list[bytes]:
    """Return the values of the audit topic in a region, as lines."""
    partition = region.node.storage.partitions.get("tidemark.audit", 0)
    if partition is None or partition.high_watermark == 0:
        return []
    data = partition.reader.read_raw(0, 1 << 20)
    return [
        (record.value or b"") + b"\n"
        for position, header in iter_headers(data)
        if not header.is_control
        for record in iter_records(data[position : position + header.size_bytes])
    ]


def outcomes(region: Region, operation: str) -> list[str]:
    return [row["outcome"] for row in rows_of(region) if row["operation"] == operation]


def whole(lines: list[bytes]) -> list[bytes]:
    """Leave out what a power cut tore: nobody was told that it is durable."""
    return lines if lines[-1].endswith(b"\n") else lines[:-1]


async def test_a_full_trail_refuses_orders_and_lets_a_region_go_on(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 8)
    pair.us.settings = {"audit": "on"}
    await pair.start()
    try:
        trail = pair.us.node.storage.metadata.audit
        assert isinstance(trail, AuditRecorder)
        trail._files.failed = "the audit trail cannot be written any more"
        await pair.eu.kill()
        await pair.fail_over()
        with acting_as(Alice()), pytest.raises(MetadataUnwritable, match="audit trail cannot"):
            await pair.us.node.topics.create_topic("orders", 1, {})
        assert "orders" not in pair.us.node.storage.metadata.image.topics
        assert pair.us.node.storage.metadata.audit.is_on
        await pair.us.node.topics.create_topic("by-itself", 1, {})
    finally:
        await pair.stop()


async def test_nodes_of_a_region_keep_a_trail_each_and_carry_while_they_lead(
    tmp_path: Path,
) -> None:
    """INV-NAT3: carrying makes no records."""
    async with region_cluster(tmp_path, 5, audit="on") as cluster:
        first = await all_in_sync(cluster)
        with acting_as(Alice()):
            await first.node.topics.create_topic("orders", 1, {})
        await cluster.until(lambda: outcomes(first, "CreateTopic") == ["intended", "done", "done"], "both topics")  # fmt: skip
        await cluster.until(lambda: carried(first) == lines_of(first), "all is in the topic")
        await asyncio.sleep(5)
        assert outcomes(first, "CreateTopic") == ["intended", "done", "done"]
        assert carried(first) == lines_of(first)
        await first.kill(power=random.Random(3))
        await cluster.until(lambda: cluster.leader not in {None, first}, "another one leads")
        second = cluster.leader
        assert second is not None
        await cluster.until(lambda: set(lines_of(second)) <= set(carried(second)), "its own come")
        assert set(lines_of(first)[:3]) <= set(carried(second)), "what was carried stays"
        elections = [
            row
            for node in cluster.nodes.values()
            for row in rows_of(node)
            if row["operation"] == "ElectLeader"
        ]
        assert {row["principal"].partition(":")[0] for row in elections} == {"Node"}
        for node in cluster.nodes.values():
            assert is_sound_by_hand(whole(lines_of(node)))


async def test_without_security_no_trail_is_kept(tmp_path: Path) -> None:
    pair = Pair(tmp_path, 9)
    await pair.start()
    try:
        assert not pair.eu.node.storage.metadata.audit.is_on
        assert not pair.eu.disk.exists(pair.eu.folder / "audit")
    finally:
        await pair.stop()
