"""The audit trail behind a real Kafka port: who asked, by which request, what is destroyed, and what cannot be recorded.

Error codes: Kafka's protocol guide (KAFKA_STORAGE_ERROR 56, TOPIC_ALREADY_EXISTS 36).
"""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from region_broker.security.audit.chain_files import ChainFiles, Owner
from region_broker.security.audit.recorder import AuditRecorder
from region_broker.security.audit.trail import AuditTrail
from tests.fixtures.audit_trails import ToldTrail
from tests.fixtures.kafka_port import WireFixture, wire_fixture
from tests.fixtures.node_logs import batch
from tests.fixtures.waiting import until

STORAGE_ERROR, EXISTS = 56, 36


@asynccontextmanager
async def audited(folder: Path, trail: AuditTrail) -> AsyncIterator[WireFixture]:
    async with wire_fixture(folder) as fixture:
        fixture.services.audit = fixture.store.audit = trail
        yield fixture


def creation(*names: str) -> dict[str, Any]:
    topics = [{"name": name, "num_partitions": 1, "replication_factor": 1, "assignments": (), "configs": ()} for name in names]  # fmt: skip
    return {"topics": topics, "timeout": 5_000, "validate_only": False}


def deletion(name: str) -> dict[str, Any]:
    partitions = [{"partition_index": 0, "offset": -1}]
    return {"topics": [{"name": name, "partitions": partitions}], "timeout": 5_000}


async def test_a_change_over_the_wire_says_who_asked_and_by_which_request(tmp_path: Path) -> None:
    trail = ToldTrail()
    async with audited(tmp_path, trail) as fixture:
        client = await fixture.connect()
        port = client.writer.get_extra_info("sockname")[1]
        answer = await client.call(19, 5, creation("orders", "orders2"))
        assert [row.error_code.value for row in answer.topics] == [0, 0]
    assert trail.short() == [
        ("User:ANONYMOUS", "CreateTopic", name, outcome)
        for name in ("orders", "orders2")
        for outcome in ("intended", "done")
    ]
    actor = trail.told[0].actor
    assert (actor.host, actor.request_id) == ("127.0.0.1", f"127.0.0.1:{port}#1")


async def test_what_destroys_records_is_recorded_before(tmp_path: Path) -> None:
    """INV-DAR1."""
    trail = ToldTrail()
    async with audited(tmp_path, trail) as fixture:
        await fixture.topic("orders")
        trail.told.clear()
        client = await fixture.connect()
        await client.call(21, 2, deletion("orders"))
        await client.call(21, 2, deletion("unknown"))
    assert [(each.operation, each.outcome.value, each.reason) for each in trail.told] == [
        ("DeleteRecords", "intended", ""), ("DeleteRecords", "done", ""),
        ("DeleteRecords", "intended", ""), ("DeleteRecords", "refused", "unknown_topic_or_partition"),
    ]  # fmt: skip
    assert trail.told[0].details == {"below": ["orders-0 below -1"]}


async def test_INV_DAR2_what_was_destroyed_in_part_is_not_recorded_as_refused(
    tmp_path: Path,
) -> None:
    trail = ToldTrail()
    async with audited(tmp_path, trail) as fixture:
        await fixture.topic("orders")
        trail.told.clear()
        client = await fixture.connect()
        topics = [*deletion("orders")["topics"], *deletion("unknown")["topics"]]
        await client.call(21, 2, {"topics": topics, "timeout": 5_000})
    assert [(each.outcome.value, each.reason) for each in trail.told] == [
        ("intended", ""), ("done", "in part: unknown_topic_or_partition"),
    ]  # fmt: skip


@pytest.mark.parametrize(("deposes", "error"), [(False, "request_timed_out"), (True, "not_leader_or_follower")])  # fmt: skip
async def test_INV_DAR2_what_may_have_been_destroyed_is_not_recorded_as_refused(
    tmp_path: Path, deposes: bool, error: str
) -> None:
    """1. Records are deleted here, durably. 2. Another member in sync is late, or another node is elected, before all have heard of it."""
    trail = ToldTrail()
    async with audited(tmp_path, trail) as fixture:
        await fixture.topic("orders")
        partition = fixture.services.partitions.get("orders", 0)
        assert partition is not None
        partition.writer.append(batch(3))
        await partition.wait_committed(3)
        partition.commits.agree_on_start(0)  # as who leads others does
        trail.told.clear()
        client = await fixture.connect()
        asked = asyncio.get_running_loop().create_task(client.call(21, 2, deletion("orders") | {"timeout": 100 if not deposes else 60_000}))  # fmt: skip
        await until(lambda: partition.log_start_offset == 3)
        if deposes:
            partition.become_mirror()
        [topic] = (await asked).topics
        assert topic.partitions[0].error_code.name == error
    assert [(each.outcome.value, each.reason) for each in trail.told] == [
        ("intended", ""), ("unknown", error),
    ]  # fmt: skip


async def test_what_cannot_be_recorded_is_refused_on_the_wire(tmp_path: Path) -> None:
    """INV-ATR1: KAFKA_STORAGE_ERROR, with the reason where the answer has a place for it; reads go on."""
    trail = ToldTrail()
    async with audited(tmp_path, trail) as fixture:
        await fixture.topic("orders")
        trail.refuses = "the audit trail cannot be written: No space left on device"
        client = await fixture.connect()
        [row] = (await client.call(19, 5, creation("other"))).topics
        assert row.error_code.value == STORAGE_ERROR
        assert "No space left" in row.error_message
        [topic] = (await client.call(21, 2, deletion("orders"))).topics
        assert topic.partitions[0].error_code.value == STORAGE_ERROR
        metadata = await client.call(3, 9, {"topics": None, "include_cluster_authorized_operations": False, "include_topic_authorized_operations": False})  # fmt: skip
        assert [each.name for each in metadata.topics] == ["orders"]


async def test_a_name_with_control_characters_makes_one_line(tmp_path: Path) -> None:
    """INV-ACH2, over the real disk: what a client names does not begin a record of its own."""
    folder = tmp_path / "audit"
    async with wire_fixture(tmp_path) as fixture:
        owner = Owner("wire-world", "eu", 1, "ab" * 16)
        files = ChainFiles.open(fixture.services.partitions._disk, folder, owner, file_bytes_max=1 << 20, wall_ms=1)  # fmt: skip
        recorder = AuditRecorder(files, fixture.services.clock, node="eu/1", bytes_max=1 << 30)
        fixture.services.audit = fixture.store.audit = recorder
        name = 'x\n{"seq":3,"prev":"","hash":""}\n\x1b[2J'
        running = asyncio.get_running_loop().create_task(recorder.run())
        client = await fixture.connect()
        await client.call(21, 2, deletion(name))
        running.cancel()
        await asyncio.wait([running])
        recorder.close()
    lines = (folder / "audit-00000001.jsonl").read_bytes().splitlines()
    assert [json.loads(line)["seq"] for line in lines] == [1, 2, 3]
    assert json.loads(lines[1])["resource"] == name
    assert all(32 <= byte < 127 for line in lines for byte in line)
