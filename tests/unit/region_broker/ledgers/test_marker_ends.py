"""Where markers were confirmed by other nodes (INV-MKE1)."""

from uuid import UUID

from msgspec.structs import replace

from idempotency.identity import LogKey
from region_broker.controller.metadata_image import TopicImage
from region_broker.ledgers.marker_ends import MarkerEnds
from tests.fixtures.node_logs import TOPIC_ID
from tests.fixtures.played_spread import elected, gathered, spread_region

ONE, TWO = LogKey(TOPIC_ID, 1), LogKey(TOPIC_ID, 2)


def test_INV_MKE1_an_end_never_goes_back_until_another_term_begins() -> None:
    ends = MarkerEnds()
    ends.note(ONE, 7)
    ends.note(ONE, 5)  # a repeat that was confirmed late
    assert (ends.end_of(ONE), ends.end_of(TWO)) == (7, 0)
    ends.clear()
    assert ends.end_of(ONE) == 0


def test_INV_MKE2_another_main_leader_begins_with_nothing_and_an_election_of_a_group_changes_nothing() -> (
    None
):
    ends, image = MarkerEnds(), spread_region(TOPIC_ID)
    ends.take_image(image)
    ends.note(ONE, 7)
    ends.take_image(elected(image, 1, 3, 1))
    assert ends.end_of(ONE) == 7
    ends.take_image(gathered(image))
    assert ends.end_of(ONE) == 0


def test_INV_MKE3_nothing_is_kept_of_a_topic_that_was_deleted() -> None:
    topics = {
        name: TopicImage(topic_id=UUID(int=n), name=name, partition_count=1)
        for n, name in ((1, "a"), (2, "b"))
    }
    ends, image = MarkerEnds(), replace(spread_region(), topics=topics)
    ends.take_image(image)
    a, b = (LogKey(topic.topic_id, 0) for topic in topics.values())
    ends.note(a, 7)
    ends.note(b, 8)
    ends.take_image(replace(image, topics={"b": topics["b"]}))
    assert (ends.end_of(a), ends.end_of(b)) == (0, 8)
