"""The metadata image: what is derived from it goes with it, and how many partitions of a topic a mirror copies early."""

from collections.abc import Iterator
from uuid import UUID

import msgspec
import pytest

from region_broker.controller.metadata_commands import (
    Command,
    CopyPartitions,
    CreateTopic,
    DeleteTopic,
    RenameTopic,
    ResizeTopic,
)
from region_broker.controller.metadata_image import MetadataImage, TopicImage
from tests.fixtures.cluster_images import after, born, refusal


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


class LookedThrough(dict[str, TopicImage]):
    """Counts how often all topics are gone over."""

    times = 0

    def __iter__(self) -> Iterator[str]:
        self.times += 1
        return super().__iter__()

    def __reversed__(self) -> Iterator[str]:
        self.times += 1
        return super().__reversed__()


def test_INV_HW2_topics_that_names_of_metrics_cannot_tell_apart_are_found_in_one_look_over_all() -> None:  # fmt: skip
    topics = LookedThrough({name: topic(name, at) for at, name in enumerate(("a.b", "a_b", "c"))})
    image = MetadataImage(version=1, cluster_id="c", topics=topics)
    for _ in range(100):
        assert [image.colliding_topic(name) for name in ("a.b", "a_b", "c", "c.d", "")] == ["a.b", "a.b", "c", None, None]  # fmt: skip
    assert topics.times == 1
    later = msgspec.structs.replace(image, topics={"c.d": topic("c.d", 5)})
    assert [later.colliding_topic(name) for name in ("a_b", "c_d")] == [None, "c.d"]


A = UUID(int=1)


def counts(*commands: Command) -> tuple[int, int, int]:
    """Return (partitions, copied, kept) of a topic of one partition after commands."""
    image = after(born(), CreateTopic(topic("a", 1)), *commands)
    found = image.topic_by_id(A)
    assert found is not None
    return found.partition_count, found.copied_count, found.as_kept.partition_count


@pytest.mark.parametrize(
    ("commands", "expected"),
    [
        ((), (1, 0, 1)),
        ((CopyPartitions(A, 4, 0),), (1, 4, 4)),
        ((CopyPartitions(A, 4, 0), CopyPartitions(A, 5, 4)), (1, 5, 5)),
        ((CopyPartitions(A, 4, 0), CopyPartitions(A, 0, 4)), (1, 0, 1)),
        ((CopyPartitions(A, 1, 0),), (1, 0, 1)),
        ((CopyPartitions(A, 4, 0), ResizeTopic(A, 2, 1)), (2, 4, 4)),
        ((CopyPartitions(A, 4, 0), ResizeTopic(A, 2, 1), ResizeTopic(A, 4, 2)), (4, 0, 4)),
        ((ResizeTopic(A, 3, 1), CopyPartitions(A, 4, 0), ResizeTopic(A, 2, 3)), (2, 0, 2)),
        ((CopyPartitions(A, 4, 0), RenameTopic(A, "b")), (1, 4, 4)),
    ],
)
def test_INV_M17_what_is_copied_early_is_beyond_the_topics_own_partitions_or_not_named(
    commands: tuple[Command, ...], expected: tuple[int, int, int]
) -> None:
    assert counts(*commands) == expected


def test_partitions_are_copied_if_nobody_has_changed_that_meanwhile() -> None:
    image = after(born(), CreateTopic(topic("a", 1)), CopyPartitions(A, 4, 0))
    assert refusal(image, CopyPartitions(A, 5, 0)) == "topic-copies-changed"
    assert refusal(image, CopyPartitions(UUID(int=9), 5, 0)) == "unknown-topic"
    assert after(image, DeleteTopic(A)).deleted[A].topic.copied_count == 0
