"""Administration on a mirror: what changes something is forwarded whole, and a failure is an error of its own shape.

Forwarding itself: `test_wire_protocol`.

"""

import logging
from pathlib import Path
from typing import Any

import pytest

from idempotency.said_seldom import SAY_AGAIN_MS
from region_broker.handlers.apis import all_apis
from region_broker.handlers.dispatch.services import ForwardingFailed
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.node_logs import ManualClock

COORDINATOR_NOT_AVAILABLE = 15
TOPIC = 2
CONFIG = {"resource_type": TOPIC, "resource_name": "t"}
# API key, version, request, and where the answer keeps its errors.
CHANGES: list[tuple[int, int, dict[str, Any], str]] = [
    *[(33, version, {"resources": [{**CONFIG, "configs": [{"name": "a", "value": "5"}]}],
                     "validate_only": False}, "responses") for version in range(3)],
    *[(44, version, {"resources": [{**CONFIG, "configs": [
        {"name": "a", "config_operation": 0, "value": "5"}]}], "validate_only": False},
       "responses") for version in range(2)],
    *[(37, version, {"topics": [{"name": "t", "count": 3, "assignments": None}], "timeout": 1000,
                     "validate_only": False}, "results") for version in range(4)],
    *[(21, version, {"topics": [{"name": "t", "partitions": [{"partition_index": 0, "offset": 0}]}],
                     "timeout": 1000}, "topics") for version in range(3)],
    *[(42, version, {"groups_names": ["g", "h"]}, "results") for version in range(3)],
]  # fmt: skip
READS = {1, 2, 3, 10, 17, 18, 23, 32, 35, 36, 55, 60, 71, 72, 74, 75}
# The same in every region: there is nothing to change, or it is the node's own quorum.
REFUSALS = {29, 30, 31, 34, 41, 43, 45, 46, 48, 50, 57, 64, 80, 81}


@pytest.mark.parametrize(("key", "version", "fields", "rows"), CHANGES)
async def test_changes_are_forwarded_and_failures_told(
    tmp_path: Path, key: int, version: int, fields: dict[str, Any], rows: str
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        before = fixture.services.metadata.image
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("the primary region is away")
        client = await fixture.connect()
        answer = await client.call(key, version, fields)
        assert len(fixture.forwarder.frames) == 1
        found = getattr(answer, rows)
        if key == 21:
            found = found[0].partitions
        assert {row.error_code for row in found} == {COORDINATOR_NOT_AVAILABLE}
        assert fixture.services.metadata.image is before


async def test_deleting_offsets_is_forwarded_and_a_failure_is_told_at_the_top(
    tmp_path: Path,
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        fixture.region.acting = False
        fixture.forwarder.failure = ForwardingFailed("the primary region is away")
        client = await fixture.connect()
        answer = await client.call(47, 0, {"group_id": "g", "topics": []})
        assert len(fixture.forwarder.frames) == 1
        assert (answer.error_code, answer.topics) == (COORDINATOR_NOT_AVAILABLE, ())


@pytest.mark.parametrize("version", range(4, 14))
async def test_topics_created_by_being_asked_for_are_created_by_the_primary_region(
    tmp_path: Path, version: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("known")
        fixture.region.acting = False
        fixture.config.auto_create_topics = True
        client = await fixture.connect()

        async def asked(name: str, *, allowed: bool) -> int:
            topics = [{"name": name, "topic_id": None} if version >= 10 else {"name": name}]
            fields = {"topics": topics, "allow_auto_topic_creation": allowed}
            for since, until, operations in (
                (8, 10, "include_cluster_authorized_operations"),
                (8, 99, "include_topic_authorized_operations"),
            ):
                if since <= version <= until:
                    fields[operations] = False
            answer = await client.call(3, version, fields)
            return int(answer.topics[0].error_code)

        assert [await asked("known", allowed=True), await asked("new", allowed=False)] == [0, 3]
        assert await asked("not a name", allowed=True) == 17
        assert fixture.forwarder.frames == []
        assert await asked("new", allowed=True) == 3
        assert [frame[:4] for frame in fixture.forwarder.frames] == [bytes((0, 3, 0, version))]
        fixture.forwarder.failure = ForwardingFailed("the primary region is away")
        assert await asked("new", allowed=True) == 3
        assert "new" not in fixture.services.metadata.image.topics


async def test_INV_SSD1_topics_that_are_asked_for_while_the_primary_region_is_away_fill_no_log(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock = ManualClock()
    async with wire_fixture(tmp_path, clock=clock) as fixture:
        fixture.region.acting = False
        fixture.config.auto_create_topics = True
        fixture.forwarder.failure = ForwardingFailed("the primary region is away")
        client = await fixture.connect()
        asked = {"topics": [{"name": "new"}], "allow_auto_topic_creation": True}
        with caplog.at_level(logging.INFO, "tidemark.topics"):
            for wait_ms in (0, 0, SAY_AGAIN_MS):
                clock.now_ms += wait_ms
                await client.call(3, 4, asked)
    told = [each.getMessage() for each in caplog.records if each.name == "tidemark.topics"]
    assert len(told) == 2
    assert all("the primary region is away" in each for each in told)


def test_only_what_reads_is_answered_by_a_mirror_itself() -> None:
    local = {api.key for api in all_apis().by_key.values() if not api.forward}
    assert local <= READS | REFUSALS
