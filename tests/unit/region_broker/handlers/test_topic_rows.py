"""Metadata from written rows: byte for byte what is written field by field, and never older than the topic."""

import struct
from pathlib import Path
from typing import Any

import pytest
from kio.schema.errors import ErrorCode

from idempotency.identity import LeaderEpoch
from region_broker.handlers.dispatch.topic_rows import VERSIONS_MAX, RowsOfVersion, TopicRows
from tests.fixtures.kafka_port import LEADER_EPOCH, RawClient, WireFixture, wire_fixture

METADATA = 3


def asking(version: int, names: list[str] | None) -> dict[str, object]:
    """Return a request for these topics, None: for all (an empty list in version 0)."""
    found: dict[str, object] = {"topics": None if names is None else [{"name": n} for n in names]}
    if version == 0 and names is None:
        found["topics"] = []
    if version >= 4:
        found["allow_auto_topic_creation"] = False
    if version >= 8:
        found["include_topic_authorized_operations"] = True
    if 8 <= version <= 10:
        found["include_cluster_authorized_operations"] = True
    return found


async def raw_body(client: RawClient, version: int, names: list[str] | None) -> bytes:
    """Return an answer without its correlation id."""
    client.send(METADATA, version, asking(version, names))
    return (await client.receive_raw())[struct.calcsize(">i") :]


@pytest.mark.parametrize("version", range(13))
async def test_written_rows_are_what_fields_would_be(tmp_path: Path, version: int) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("orders", 3)
        await fixture.topic("bills")
        client = await fixture.connect()
        first = await raw_body(client, version, None)
        again = await raw_body(client, version, None)
        fixture.services.topic_rows = NothingKept()
        by_fields = await raw_body(client, version, None)
        assert first == again == by_fields


class NothingKept(TopicRows):
    """Has no written row for any topic, so that all are written field by field."""

    def of(
        self, version: int, *, operations: bool, topic_count: int, listener: str = ""
    ) -> RowsOfVersion:
        rows = super().of(version, operations=operations, topic_count=topic_count)
        return _NoRow(rows.path, rows.kept)


class _NoRow(RowsOfVersion):
    def row(self, topic: object, nodes: object, partitions: object, describe: object) -> None:
        return None


async def seen(
    fixture: WireFixture, client: RawClient, names: list[str] | None = None
) -> list[Any]:
    """Return (error, name, (leader epoch, error) of each partition) of all topics."""
    answer = await client.call(METADATA, 9, asking(9, names) | {
        "include_cluster_authorized_operations": False})  # fmt: skip
    return [
        (t.error_code, t.name, [(p.leader_epoch, p.error_code) for p in t.partitions])
        for t in answer.topics
    ]


async def test_a_row_follows_its_partitions(tmp_path: Path) -> None:
    none, away = ErrorCode.none, ErrorCode.leader_not_available
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("orders", 2)
        client = await fixture.connect()
        one = LEADER_EPOCH
        assert await seen(fixture, client) == [(none, "orders", [(one, none), (one, none)])]
        fixture.partition("orders", 1).become_leader(LeaderEpoch(one + 1))
        assert await seen(fixture, client) == [(none, "orders", [(one, none), (one + 1, none)])]
        fixture.partition("orders", 0).log.fail("its disk broke")
        assert await seen(fixture, client) == [(none, "orders", [(one, away), (one + 1, none)])]


async def test_a_topic_that_is_made_again_has_its_own_row(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        before = await fixture.topic("orders", 1)
        client = await fixture.connect()
        await client.call(METADATA, 12, asking(12, None))
        await fixture.services.metadata.delete_topic("orders")
        after = await fixture.topic("orders", 1)
        answer = await client.call(METADATA, 12, asking(12, None))
        assert [topic.topic_id for topic in answer.topics] == [after.topic_id]
        assert before.topic_id != after.topic_id


async def test_a_topic_that_is_not_there_is_told_beside_those_that_are(tmp_path: Path) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("orders")
        client = await fixture.connect()
        found = await seen(fixture, client, ["orders", "lost"])
        assert [(error, name) for error, name, _ in found] == [
            (ErrorCode.none, "orders"),
            (ErrorCode.unknown_topic_or_partition, "lost"),
        ]


def test_rows_are_kept_for_a_few_versions_only() -> None:
    rows = TopicRows()
    first = rows.of(1, operations=False, topic_count=5)
    for version in range(2, 2 + VERSIONS_MAX):
        rows.of(version, operations=False, topic_count=5)
    assert rows.of(1, operations=False, topic_count=5) is not first
