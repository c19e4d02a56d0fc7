"""The metadata image: what is derived from it goes with it."""

from uuid import UUID

import msgspec

from region_broker.controller.metadata_image import MetadataImage, TopicImage


def topic(name: str, number: int) -> TopicImage:
    return TopicImage(name=name, topic_id=UUID(int=number), partition_count=1)


def test_a_topic_is_found_by_id_in_the_image_that_has_it_and_in_no_other() -> None:
    before = MetadataImage(version=1, cluster_id="c", topics={"a": topic("a", 1)})
    assert before.topic_by_id(UUID(int=1)) == topic("a", 1)
    after = msgspec.structs.replace(before, version=2, topics={"b": topic("b", 2)})
    assert after.topic_by_id(UUID(int=1)) is None
    assert after.topic_by_id(UUID(int=2)) == topic("b", 2)
    assert before.topic_by_id(UUID(int=2)) is None
    asked, fresh = before, MetadataImage(version=1, cluster_id="c", topics={"a": topic("a", 1)})
    assert asked == fresh
    assert msgspec.json.encode(asked) == msgspec.json.encode(fresh)
