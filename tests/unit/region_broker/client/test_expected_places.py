"""What is taken of what librdkafka gives out. Played: its consumer, as positions that it changes by itself."""

from typing import Any

import pytest
from confluent_kafka import OFFSET_INVALID, KafkaError, KafkaException, TopicPartition

from region_broker.client.expected_places import ExpectedPlaces, committed_places

OLD, YOUNG = 7, 8


class PlayedRecord:
    def __init__(self, partition: int, offset: int, epoch: int | None) -> None:
        self._partition, self._offset, self._epoch = partition, offset, epoch

    def topic(self) -> str:
        return "orders"

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int:
        return self._offset

    def leader_epoch(self) -> int | None:
        return self._epoch


class PlayedClient:
    """Two partitions; `at` is where it stands."""

    def __init__(self, *committed: int, from_beginning: bool = True) -> None:
        self.group = dict(enumerate(committed))
        self.at = dict.fromkeys(self.group, 0)
        self.asked = 0
        self.error: KafkaError | None = None
        self.gone = False
        self.sought: list[tuple[int, int]] = []
        self.expected = ExpectedPlaces(1.0, from_beginning=from_beginning)

    def assignment(self) -> list[TopicPartition]:
        return [TopicPartition("orders", number) for number in self.group]

    def committed(
        self, partitions: list[TopicPartition], timeout: float = 0.0
    ) -> list[TopicPartition]:
        self.asked += 1
        if self.error is not None:
            raise KafkaException(self.error)
        return [
            TopicPartition("orders", each.partition, self.group[each.partition])
            for each in partitions
        ]

    def seek(self, partition: TopicPartition) -> None:
        self.sought.append((partition.partition, partition.offset))
        if self.gone:
            raise KafkaException(KafkaError(KafkaError._STATE))
        self.at[partition.partition] = partition.offset

    def read(self, partition: int = 0, *, epoch: int | None = OLD) -> int | None:
        """Give out the next record; return its offset if it is taken."""
        offset = self.at[partition]
        self.at[partition] += 1
        record: Any = PlayedRecord(partition, offset, epoch)
        return offset if self.expected.takes(self, record) else None


def test_INV_CP19_who_begins_before_what_is_committed_is_sent_there() -> None:
    kafka = PlayedClient(50, 3)
    assert [kafka.read(), kafka.read(), kafka.read()] == [None, 50, 51]
    kafka.at[1] = 3
    assert kafka.read(1) == 3
    assert kafka.asked == 1, "all that came are asked for at once"


def test_INV_CP19_who_goes_back_by_itself_is_sent_forward_again() -> None:
    kafka = PlayedClient(OFFSET_INVALID)
    assert [kafka.read() for _ in range(60)] == list(range(60))
    kafka.at[0] = 0
    assert [kafka.read() for _ in range(3)] == [None, 60, 61]


def test_INV_CP19_records_of_a_younger_leader_are_taken_where_old_ones_were_cut_off() -> None:
    kafka = PlayedClient(OFFSET_INVALID)
    assert [kafka.read() for _ in range(60)] == list(range(60))
    kafka.at[0] = 50
    assert [kafka.read(epoch=YOUNG) for _ in range(2)] == [50, 51]
    kafka.at[0] = 0
    assert [kafka.read(epoch=OLD), kafka.read(epoch=YOUNG)] == [None, 52]


def test_records_without_a_leader_epoch_are_taken_as_they_come() -> None:
    kafka = PlayedClient(OFFSET_INVALID)
    assert [kafka.read(epoch=None), kafka.read(epoch=None)] == [0, 1]
    kafka.at[0] = 0
    assert kafka.read(epoch=None) == 0


def test_INV_CP19_what_comes_after_it_was_sent_is_taken_so_nobody_goes_in_circles() -> None:
    kafka = PlayedClient(50)
    assert kafka.read() is None
    kafka.at[0] = 0  # there is nothing at 50: the log was cut before
    assert [kafka.read(), kafka.read()] == [0, 1]


def test_INV_CP19_who_reads_what_is_new_leaves_nothing_out_that_lies_behind_what_is_committed() -> (
    None
):
    latest = PlayedClient(5, from_beginning=False)
    latest.at[0] = 9
    assert [latest.read(), latest.read()] == [None, 5]
    earliest = PlayedClient(5)
    earliest.at[0] = 6  # behind the marker of a transaction
    assert earliest.read() == 6


def test_INV_CP19_nothing_is_taken_before_it_is_known_what_is_committed() -> None:
    kafka = PlayedClient(50)
    kafka.error = KafkaError(KafkaError._TIMED_OUT)
    assert [kafka.read(), kafka.read()] == [None, None]
    assert kafka.sought == [(0, 0), (0, 0)], "the same record is to come again"
    kafka.error = None
    assert [kafka.read(), kafka.read()] == [None, 50]


def test_an_application_may_go_back_and_a_partition_that_comes_again_is_asked_for_again() -> None:
    kafka = PlayedClient(2)
    kafka.at[0] = 2
    assert [kafka.read(), kafka.read()] == [2, 3]
    kafka.expected.moved(("orders", 0), 0)
    kafka.at[0] = 0
    assert [kafka.read(), kafka.read()] == [0, 1]
    kafka.expected.forget([("orders", 0)])
    kafka.group[0] = 9
    kafka.at[0] = 1
    assert [kafka.read(), kafka.read()] == [None, 9]


def test_a_partition_that_is_being_taken_away_cannot_be_sent_anywhere() -> None:
    kafka = PlayedClient(50)
    kafka.gone = True
    assert kafka.read() is None


def test_INV_CP19_an_error_of_one_partition_is_no_word_that_nothing_is_committed_there() -> None:
    class Refusing(PlayedClient):
        def committed(
            self, partitions: list[TopicPartition], timeout: float = 0.0
        ) -> list[TopicPartition]:
            return [Refused(each) for each in partitions]  # type: ignore[misc]

    class Refused:
        def __init__(self, place: TopicPartition) -> None:
            self.topic, self.partition, self.offset = place.topic, place.partition, OFFSET_INVALID
            self.error = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)

    kafka = Refusing(50)
    with pytest.raises(KafkaException, match="TOPIC_AUTHORIZATION_FAILED"):
        committed_places(kafka, kafka.assignment(), 1.0)
