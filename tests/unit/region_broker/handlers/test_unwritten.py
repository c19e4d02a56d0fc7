"""What clients are told of topics, configs and levels that are to change while the metadata take no change."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.image_database import MetadataUnsettled, MetadataUnwritable
from tests.fixtures.kafka_port import wire_fixture
from tests.fixtures.metadata_stores import open_metadata

UNKNOWN_TOPIC_OR_PARTITION, REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR = 3, 7, 56
CREATE = {
    "topics": [{"name": "new", "num_partitions": 1, "replication_factor": -1, "assignments": [], "configs": []}],
    "timeout": 5000, "validate_only": False,
}  # fmt: skip
GROW = {
    "topics": [{"name": "t", "count": 3, "assignments": None}],
    "timeout": 5000,
    "validate_only": False,
}
DELETE = {"topic_names": ["t"], "timeout": 5000}
UNWRITTEN = pytest.mark.parametrize(
    ("error", "code"),
    [
        (MetadataUnsettled("nobody leads the quorum"), REQUEST_TIMED_OUT),
        (MetadataUnwritable("the disk is read-only"), KAFKA_STORAGE_ERROR),
    ],
)


@UNWRITTEN
async def test_INV_UNW1_a_change_of_topics_without_a_quorum_is_no_error_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: MetadataUnwritable, code: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")

        async def fails(*_words: Any, **_more: Any) -> None:
            raise error

        for name in ("create_topic", "grow_topic", "delete_topic"):
            monkeypatch.setattr(fixture.services.metadata, name, fails)
        client = await fixture.connect()
        told = [
            *(await client.call(19, 5, CREATE)).topics,
            *(await client.call(37, 3, GROW)).results,
            *(await client.call(20, 5, DELETE)).responses,
        ]
        assert [(row.error_code, row.error_message) for row in told] == [(code, str(error))] * 3


def _resource(kind: int, name: str, key: str, value: str) -> dict[str, Any]:
    configs = [{"name": key, "config_operation": 0, "value": value}]
    return {"resource_type": kind, "resource_name": name, "configs": configs}


@UNWRITTEN
async def test_INV_UNW1_a_change_of_configs_says_of_each_resource_what_became_of_it(
    tmp_path: Path, error: MetadataUnwritable, code: int
) -> None:
    """The quorum goes away between two resources of a request: the first one has changed."""
    async with wire_fixture(tmp_path) as fixture:
        for name in ("first", "second"):
            await fixture.topic(name)
        apply, asked = fixture.store._apply, 0

        async def fails_later(*words: Any) -> Any:
            nonlocal asked
            asked += 1
            if asked > 1:
                raise error
            return await apply(*words)

        fixture.store._apply = fails_later  # type: ignore[method-assign,assignment]
        client = await fixture.connect()
        resources = [
            _resource(2, "first", "retention.ms", "7000"),
            _resource(2, "second", "retention.ms", "7000"),
            _resource(4, "", "log_level", "debug"),
        ]
        told = await client.call(44, 1, {"resources": resources, "validate_only": False})
        rows = [(row.error_code, row.error_message) for row in told.responses]
        assert rows == [(0, None), (code, str(error)), (code, str(error))]
        assert fixture.store.image.topics["first"].configs == {"retention.ms": "7000"}


@UNWRITTEN
async def test_INV_UNW1_a_level_that_could_not_be_raised_is_no_error_of_a_disk(
    tmp_path: Path, error: MetadataUnwritable, code: int
) -> None:
    born = await open_metadata(
        tmp_path / "metadata.db", new_cluster_id="wire-world", levels=range(1, 4)
    )
    await born.close()
    async with wire_fixture(tmp_path) as fixture:

        async def fails(*_words: Any) -> None:
            raise error

        fixture.store._apply = fails  # type: ignore[method-assign,assignment]
        client = await fixture.connect()
        update = {"feature": "tidemark.version", "max_version_level": 4, "upgrade_type": 1}
        told = await client.call(
            57, 1, {"timeout": 5000, "feature_updates": [update], "validate_only": False}
        )
        assert told.error_code == code
        assert str(error) in told.error_message


@UNWRITTEN
async def test_INV_UNW1_who_asks_for_a_topic_that_cannot_be_made_hears_of_those_that_are_there(
    tmp_path: Path, error: MetadataUnwritable, code: int
) -> None:
    """Without an answer the client knows no leader of any topic, and its connection has ended. As in Kafka it asks again for the one."""
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")
        fixture.config.auto_create_topics = True

        asked_for = 0

        async def fails(*_words: Any) -> None:
            nonlocal asked_for
            asked_for += 1
            raise error

        fixture.store._apply = fails  # type: ignore[method-assign,assignment]
        client = await fixture.connect()
        for version in (4, 12):
            topics = [{"topic_id": None, "name": name} for name in ("new", "t", "newer")]
            asked = {"topics": topics, "allow_auto_topic_creation": True}
            more = {"include_topic_authorized_operations": False} if version > 4 else {}
            told = await client.call(3, version, asked | more)
            assert [(row.name, row.error_code) for row in told.topics] == [
                ("new", UNKNOWN_TOPIC_OR_PARTITION), ("t", 0), ("newer", UNKNOWN_TOPIC_OR_PARTITION),
            ]  # fmt: skip
    assert asked_for == 2, (
        "once for each request: each is waited for as long as a quorum that is away"
    )
    assert code != UNKNOWN_TOPIC_OR_PARTITION, "which clients ask for again, too"
