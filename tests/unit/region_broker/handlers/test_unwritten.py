"""What clients are told of topics and configs that are to change while the metadata take no change."""

from pathlib import Path
from typing import Any

import pytest

from region_broker.controller.image_database import MetadataUnsettled, MetadataUnwritable
from tests.fixtures.kafka_port import wire_fixture

REQUEST_TIMED_OUT, KAFKA_STORAGE_ERROR = 7, 56
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
TOPIC, NODE = 2, 4
"""Types of resources, by Kafka's numbers (ConfigResource.Type)."""
ERRORS = pytest.mark.parametrize(
    ("error", "code"),
    [
        (MetadataUnsettled("nobody leads the quorum"), REQUEST_TIMED_OUT),
        (MetadataUnwritable("the disk is read-only"), KAFKA_STORAGE_ERROR),
    ],
)


@ERRORS
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


@ERRORS
async def test_INV_UNW1_a_change_of_configs_without_a_quorum_is_no_error_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: MetadataUnwritable, code: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:
        await fixture.topic("t")

        async def fails(*_words: Any, **_more: Any) -> None:
            raise error

        monkeypatch.setattr(fixture.services.metadata, "change_configs", fails)
        monkeypatch.setattr(fixture.services.node_configs, "replace", fails)
        client = await fixture.connect()
        rows = []
        for kind, name, key, value in (
            (TOPIC, "t", "retention.ms", "5000"),
            (NODE, "1", "log_level", "debug"),
        ):
            config = {"name": key, "config_operation": 0, "value": value}
            resource = {"resource_type": kind, "resource_name": name, "configs": [config]}
            asked = {"resources": [resource], "validate_only": False}
            rows += (await client.call(44, 1, asked)).responses
            del config["config_operation"]
            rows += (await client.call(33, 2, asked)).responses
        assert [(row.error_code, row.error_message) for row in rows] == [(code, str(error))] * 4


@ERRORS
async def test_INV_UNW1_a_level_that_cannot_be_raised_without_a_quorum_is_no_error_of_a_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: MetadataUnwritable, code: int
) -> None:
    async with wire_fixture(tmp_path) as fixture:

        async def fails(*_words: Any, **_more: Any) -> None:
            raise error

        monkeypatch.setattr(fixture.services.features, "raise_to", fails)
        client = await fixture.connect()
        newest = fixture.services.features.supported[-1]
        update = {"feature": "tidemark.version", "max_version_level": newest, "upgrade_type": 1}
        asked = {"timeout_ms": 5000, "feature_updates": [update], "validate_only": False}
        told = await client.call(57, 1, asked)
        assert told.error_code == code
        assert str(error) in told.error_message
