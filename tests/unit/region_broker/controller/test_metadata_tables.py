"""What a change of the metadata costs in the tables behind it."""

from collections.abc import Callable
from pathlib import Path
from typing import Any
from uuid import UUID

import msgspec
import pytest
from sqlalchemy import Table

from idempotency.identity import Member
from region_broker.controller import metadata_tables
from region_broker.controller.image_database import ImageDatabase, Stored, read_stored
from region_broker.controller.metadata_image import DeletedTopic, MetadataImage, TopicImage
from region_broker.controller.metadata_tables import LogPosition
from region_broker.controller.raft.entries import LogIndex, Term
from region_broker.ports.system.disk import RealDisk

POSITION = LogPosition(Member(1, UUID(int=1)), LogIndex(1), Term(1))
NO_ROW_OF_IT: Any = {"retention.ms": object()}
"""Configs that no row can be made of."""
UNTOUCHED = TopicImage(
    topic_id=UUID(int=1), name="untouched", partition_count=1, configs=NO_ROW_OF_IT
)
NEW = TopicImage(topic_id=UUID(int=2), name="new", partition_count=1)


def image_of(**values: Any) -> MetadataImage:
    return msgspec.structs.replace(MetadataImage(version=7, cluster_id="c"), **values)


@pytest.mark.parametrize(
    ("before", "after", "found_in"),
    [
        (
            image_of(topics={"untouched": UNTOUCHED}),
            image_of(topics={"untouched": UNTOUCHED, "new": NEW}),
            lambda image: list(image.topics.values()),
        ),
        (
            image_of(deleted={UNTOUCHED.topic_id: DeletedTopic(topic=UNTOUCHED, metadata_version=5, deleted_wall_ms=5)}),
            image_of(topics={"new": NEW}),
            lambda image: list(image.topics.values()),
        ),
    ],
    ids=["a topic among others", "others that were deleted"],
)  # fmt: skip
async def test_INV_MDT1_no_row_is_made_of_what_did_not_change(
    tmp_path: Path,
    before: MetadataImage,
    after: MetadataImage,
    found_in: Callable[[MetadataImage], list[TopicImage]],
) -> None:
    path = tmp_path / "metadata.db"
    database = await ImageDatabase.open(path, RealDisk(), new_cluster_id="c")
    database.stored = Stored(before, POSITION)
    after = msgspec.structs.replace(after, deleted=before.deleted)
    await database.write(after, POSITION)
    await database.close()
    stored = read_stored(path)
    assert stored is not None
    assert found_in(stored.image) == [NEW]


def test_INV_MDT1_every_table_has_its_statements() -> None:
    """Also those that are made when something is in them, which have a MetaData of their own."""
    there = {each for each in vars(metadata_tables).values() if isinstance(each, Table)}
    assert there == set(metadata_tables._INSERTS) == set(metadata_tables._DELETES)
