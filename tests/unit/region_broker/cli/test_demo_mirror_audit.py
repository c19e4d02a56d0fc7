"""The mirror's auditor: exactly what lies below the ends that were answered is judged."""

from collections.abc import Iterable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from region_broker.cli.demo.mirror_audit import Audit, MirrorAuditor, _Books


def test_what_lies_below_the_ends_is_judged_and_nothing_else() -> None:
    books = _Books(2)
    books.enter(0, 0, ("a", -5))
    books.enter(0, 2, ("b", -7))
    books.enter(1, 0, ("a", 5))
    books.enter(1, 1, ("b", 7))
    first = books.close_at([2, 1])
    assert first == Audit(1, (), 0)
    assert first.holds
    assert books.close_at([3, 2]) == Audit(2, (), 0)


def test_a_half_is_torn_and_the_sum_is_off() -> None:
    books = _Books(2)
    books.enter(0, 0, ("a", -5))
    books.enter(1, 0, ("a", 5))
    torn = books.close_at([1, 0])
    assert torn == Audit(1, ("a",), -5)
    assert not torn.holds
    assert books.close_at([1, 1]).holds


def test_a_third_record_of_a_transfer_is_torn() -> None:
    books = _Books(1)
    for offset in range(3):
        books.enter(0, offset, ("a", 0))
    assert books.close_at([3]) == Audit(1, ("a",), 0)


def test_a_wrong_sum_alone_does_not_hold() -> None:
    books = _Books(1)
    books.enter(0, 0, ("a", 5))
    books.enter(0, 1, ("a", 5))
    assert books.close_at([2]) == Audit(1, (), 10)
    assert not Audit(1, (), 10).holds


def test_records_that_are_no_transfers_count_for_the_position_only() -> None:
    books = _Books(2)
    books.enter(0, 0, None)
    assert not books.reach([1, 4])
    books.read_to(1, 3)
    assert not books.reach([1, 4])
    books.read_to(1, 4)
    assert books.reach([1, 4])
    assert books.close_at([1, 4]) == Audit(0, (), 0)


class _Admin:
    """Answers as librdkafka's client does in the moment after an election."""

    def __init__(self, codes: list[int]) -> None:
        self.codes = codes
        self.looked_count = 0

    def list_topics(self, timeout: float) -> None:
        assert timeout > 0
        self.looked_count += 1

    def list_offsets(
        self, asked: Iterable[TopicPartition], **_: object
    ) -> dict[TopicPartition, Future[SimpleNamespace]]:
        code = self.codes.pop(0)
        answers: dict[TopicPartition, Future[SimpleNamespace]] = {each: Future() for each in asked}
        for answer in answers.values():
            if code:
                answer.set_exception(KafkaException(KafkaError(code)))
            else:
                answer.set_result(SimpleNamespace(offset=7))
        return answers


def test_ends_are_asked_again_after_an_election() -> None:
    auditor = MirrorAuditor("127.0.0.1:1", "accounts", 2, lambda _value: None)
    moved = [KafkaError.FENCED_LEADER_EPOCH, KafkaError.NOT_LEADER_FOR_PARTITION, 0]
    admin = _Admin(moved)
    assert auditor._ends(cast("AdminClient", admin)) == [7, 7]
    assert admin.looked_count == 2
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        auditor._ends(cast("AdminClient", _Admin([KafkaError.TOPIC_AUTHORIZATION_FAILED])))
