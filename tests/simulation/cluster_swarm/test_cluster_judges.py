"""That the judges of topics and of deletions in a region of three see what is wrong."""

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast
from uuid import UUID

import pytest

from chaos.judges.trims import Deletion
from chaos.story import Place
from region_broker.controller.metadata_image import TopicImage
from tests.simulation.cluster_swarm.logs import ClusterTrims
from tests.simulation.cluster_swarm.topics import Made, records_wrong, topics_wrong
from tests.simulation.node_faults.refusals import of_no_clock
from tests.simulation.region_cluster import Member
from tests.simulation.swarm.workloads.trims import TOPIC

FIRST, SECOND = UUID(int=1), UUID(int=2)
NAME = "maker-0-0"
HERE = Place(NAME, 0, 0, "maker-0 0 1")


@pytest.mark.parametrize(
    ("refused", "was_behind", "wrong"),
    [
        ("", True, ""),
        ("1/70 early, 1/71 order, 1/72 order, 1/73 order, 1/74 order", True, ""),
        ("1/70 early, 1/71 early, 1/72 order, 1/9 early, 1/10 order", True, ""),
        ("1/70 early, 1/71 order", False, "1/70 early, 1/71 order"),
        ("1/71 order", True, "1/71 order"),
        ("1/70 order, 1/70 early", True, "1/70 order"),
        ("1/70 early, 1/75 order", True, "1/75 order"),
        ("1/70 early, 1/70 order", True, "1/70 order"),
        ("1/70 early, 0/71 order", True, "0/71 order"),
        ("1/70 early, 1/71 fenced", True, "1/71 fenced"),
    ],
)
def test_INV_NFR1_what_a_clock_that_is_behind_accounts_for(
    refused: str, was_behind: bool, wrong: str
) -> None:
    def told(texts: str) -> list[str]:
        names = {"early": "invalid_timestamp", "order": "out_of_order_sequence_number"}
        words = [each.split() for each in texts.split(", ") if each]
        return [f"{place}: {names.get(error, error)}" for place, error in words]

    assert list(of_no_clock(told(refused), was_behind=was_behind)) == told(wrong)


def made(**values: Any) -> Made:
    return replace(Made(NAME, "maker-0 0", 1, FIRST, 1), **values)


def topics(topic_id: UUID = FIRST, count: int = 1, name: str = NAME) -> dict[str, TopicImage]:
    return {name: TopicImage(topic_id=topic_id, name=name, partition_count=count)}


@pytest.mark.parametrize(
    ("one", "there", "wrong"),
    [
        (made(), topics(), ""),
        (made(), {}, "its creation was answered"),
        (made(), topics(SECOND), "its creation was answered"),
        (made(is_deletion_asked=True), {}, ""),
        (made(is_deletion_asked=True), topics(), ""),
        (made(is_deletion_asked=True, is_deleted=True), topics(), "its deletion was answered"),
        (made(is_deletion_asked=True, is_deleted=True), topics(SECOND), ""),
        (made(topic_id=None, partitions=0), topics(SECOND), ""),
        (made(topic_id=None, partitions=0), {}, ""),
        (made(), topics(count=2), "2 partitions, of 1 answered and 1 asked for"),
        (made(asked_partitions=3, partitions=2), topics(count=1), "1 partitions"),
        (made(), topics() | topics(SECOND, name="maker-0-1"), "nobody made it"),
    ],
)
def test_INV_CST1_INV_CST2_INV_CST3_what_topics_there_are(
    one: Made, there: dict[str, TopicImage], wrong: str
) -> None:
    found = list(topics_wrong([one], there))
    assert [wrong in text for text in found] == [True] * bool(wrong), found


def test_INV_CST1_INV_CST2_which_records_a_topic_has() -> None:
    former = made(is_deletion_asked=True, is_deleted=True, acked=[HERE])
    own = Place(NAME, 0, 0, "maker-0 1 2")
    present = replace(former, label="maker-0 1", topic_id=SECOND, is_deleted=False, acked=[own])
    known = [former, present]
    assert not list(records_wrong(frozenset({own}), known, SECOND))
    assert "another topic" in "".join(records_wrong(frozenset({own, HERE}), known, SECOND))
    assert "gone" in "".join(records_wrong(frozenset(), known, SECOND))
    unanswered = replace(present, topic_id=None)
    assert not list(records_wrong(frozenset({own}), [former, unanswered], SECOND))


def starts_at(start: int, failed: str | None = None) -> Callable[[str, int], object]:
    log = SimpleNamespace(log_start_offset=start, failed=failed)
    return lambda topic, number: log if (topic, number) == (TOPIC, 1) else None


@pytest.mark.parametrize(
    ("log", "is_wrong"),
    [(starts_at(4), True), (starts_at(5), False), (starts_at(4, "its disk has failed"), False)],
)
def test_INV_CSG1_who_may_lead_and_starts_lower_than_was_answered(
    log: Callable[[str, int], object], *, is_wrong: bool
) -> None:
    trims = ClusterTrims.__new__(ClusterTrims)
    deletions = [
        Deletion("one", 1, 5, 0.0, 0.1, 5), Deletion("one", 1, 9, 0.2), Deletion("one", 1, 3, 0.3, 0.4, 3),
    ]  # fmt: skip
    trims.trimmer = cast("Any", SimpleNamespace(deletions=deletions))
    assert trims.below() == [0, 5]
    partitions = SimpleNamespace(get=log)
    node = SimpleNamespace(storage=SimpleNamespace(partitions=partitions))
    member = cast("Member", SimpleNamespace(name="eu-1", node=node))
    assert bool(list(trims.broken([member]))) == is_wrong
