"""A producer knows as whom it writes only where the region that tells gave it its pair (INV-CP38).

Played: two regions that both act, as one was cut off and does not know that the other took over, what they answer over HTTP, and
librdkafka's producer, which is at the one that was cut off.
"""

from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from region_broker.client import (
    OutcomeUnknown,
    Refused,
    Timeouts,
    TransactionalProducer,
    WrittenBy,
    transactional_producer,
    verdicts,
)
from tests.unit.region_broker.client.test_sending import PlayedProducer

CUT_OFF, NEW = 8, 17
NO_ANSWER = KafkaError(KafkaError._TIMED_OUT)
NOT_KNOWN_HERE = KafkaError(
    KafkaError.INVALID_PRODUCER_ID_MAPPING, "unknown", False, False, True
)  # fmt: skip
"""What the other region says of the pair, as an abortable error: the commit may have been carried out where it was given."""


def row(producer_epoch: int, region_epoch: int, state: str = "empty") -> dict[str, Any]:
    return {
        "state": state, "producer_id": 70, "producer_epoch": producer_epoch, "region_epoch": region_epoch,
        "last_producer_epoch": -1, "previous_producer_id": -1,
    }  # fmt: skip


class Kafka(PlayedProducer):
    """One whose commit meets `error`."""

    failure: KafkaError | None = None

    def commit_transaction(self, *_timeout: float) -> None:
        if self.failure is not None:
            raise KafkaException(self.failure)


class World:
    """The region that took over tells `stands`, and of each record that it is committed: another's lies there."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.kafka = Kafka()
        self.given_count = 0
        self.stands: list[dict[str, Any]] = []
        self.given: list[dict[str, Any]] | None = None
        """What stands once an id was given, where that region gives it."""
        self.is_forbidden = False
        self.asked: list[str] = []
        monkeypatch.setattr(verdicts, "_get", self._get)
        monkeypatch.setattr(transactional_producer, "initialised", self._initialised)
        self.producer = TransactionalProducer(
            bootstrap="eu,us", transactional_id="t", urls="http://eu,http://us", timeouts=Timeouts(recovery_s=0.000_001)
        )  # fmt: skip

    def _get(self, url: str, path: str, *_: object) -> dict[str, Any]:
        if path == "/v1/region":
            return {"acting": True, "region_epoch": CUT_OFF if url == "http://eu" else NEW}
        assert url == "http://us", "the newest region epoch is believed"
        if path.startswith("/v1/transactions"):
            if self.is_forbidden:
                raise verdicts._Problem(403, b'{"detail": "not allowed", "code": "forbidden"}')
            return {"transactions": self.stands}
        self.asked.append(path)
        return {"verdict": "committed", "why": "decided, and not by an abort marker"}

    def _initialised(self, *_asked: object) -> Kafka:
        self.given_count += 1
        if self.given is not None:
            self.stands = self.given
        return self.kafka

    async def loses_its_answer(self, error: KafkaError) -> WrittenBy:
        self.kafka.failure = error
        async with self.producer.transaction() as txn:
            await txn.send("orders", b"v")
        return txn.written_by


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


@pytest.mark.parametrize("error", [NO_ANSWER, NOT_KNOWN_HERE])
@pytest.mark.parametrize(
    "stands",
    [
        [],  # a new id
        [row(2, CUT_OFF, "complete_commit")],  # the last transaction before the cut
        [row(2, CUT_OFF)],
        [row(2, NEW)],  # given there, to an earlier instance or attempt
        [row(2, NEW, "ongoing")],
    ],
)
async def test_INV_CP38_no_word_on_a_transaction_is_taken_of_another_region_than_gave_the_pair(
    world: World, stands: list[dict[str, Any]], error: KafkaError
) -> None:
    world.stands = stands
    async with world.producer:
        with pytest.raises(OutcomeUnknown):
            await world.loses_its_answer(error)
        assert not world.asked
        assert world.producer.region_epoch is None


async def test_INV_CP38_where_the_region_that_tells_gave_the_pair_its_word_is_taken(
    world: World,
) -> None:
    world.stands, world.given = [row(2, CUT_OFF, "complete_commit")], [row(0, NEW)]
    async with world.producer:
        assert world.producer.region_epoch == NEW
        assert await world.loses_its_answer(NO_ANSWER) == WrittenBy(NEW, (70, 0))  # type: ignore[arg-type] # numbers, played
    assert len(world.asked) == 1


async def test_INV_CP38_who_may_not_be_told_takes_no_word_and_goes_on_writing(
    world: World,
) -> None:
    world.is_forbidden = True
    async with world.producer:
        for _ in range(2):
            with pytest.raises(ValueError, match="the application's"):
                async with world.producer.transaction():
                    raise ValueError("the application's")
        async with world.producer.transaction() as txn:
            await txn.send("orders", b"v")
        assert world.given_count == 1, "an abort is no reason for another id"
        with pytest.raises(Refused, match="may it Describe"):
            await world.producer.verdict(txn)
        with pytest.raises(OutcomeUnknown, match="may it Describe"):
            await world.loses_its_answer(NO_ANSWER)
    assert not world.asked
