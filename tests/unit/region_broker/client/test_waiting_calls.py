"""Calls of confluent-kafka that wait, with a librdkafka that is played."""

import weakref
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from region_broker.client import Refused, TidemarkError, Unreachable, waiting_calls

CONFIG = {"transactional.id": "p", "bootstrap.servers": "nowhere"}


class Refusing:
    """A librdkafka producer that is given no producer id."""

    alive: ClassVar[weakref.WeakSet["Refusing"]] = weakref.WeakSet()
    error = KafkaError(KafkaError._TIMED_OUT)

    def __init__(self, *_arguments: object, **_logger: object) -> None:
        self.alive.add(self)

    def init_transactions(self, _timeout_s: float) -> None:
        raise KafkaException(self.error)

    def poll(self, _timeout_s: float) -> int:
        """Nothing is told."""
        return 0


@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KafkaError._TIMED_OUT, Unreachable),
        (KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, Refused),
    ],
)
def test_INV_CP23_an_error_keeps_no_producer_that_was_given_no_id(
    monkeypatch: pytest.MonkeyPatch, code: int, expected: type[TidemarkError]
) -> None:
    monkeypatch.setattr(waiting_calls, "Producer", Refusing)
    monkeypatch.setattr(Refusing, "error", KafkaError(code))
    with pytest.raises(expected, match="p") as raised:
        waiting_calls.initialised(CONFIG, -1.0, 0.0)
    assert raised.value.code
    assert not list(Refusing.alive)
