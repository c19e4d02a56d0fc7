"""Calls of confluent-kafka that wait, with a librdkafka that is played."""

import weakref
from typing import ClassVar

import pytest
from confluent_kafka import KafkaError, KafkaException

from region_broker.client import Refused, TidemarkError, Unreachable, waiting_calls
from region_broker.client.waiting_calls import Heard

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


# -- who refuses a login ------------------------------------------------------------------------

REFUSED = "sasl_ssl://{}/bootstrap: SASL authentication error: Authentication failed (after 5ms in state AUTH_REQ)"
BROKE_OFF = "sasl_ssl://{}/bootstrap: SASL SCRAM-SHA-512 mechanism handshake failed: Local: Broker transport failure: broker's supported mechanisms: "
"""As librdkafka 2.16 says it."""


def told(text: str, broker: str) -> KafkaError:
    return KafkaError(KafkaError._AUTHENTICATION, text.format(broker))


class Deaf:
    """A librdkafka client to which nobody answers; `tells`: what it hears in its first polls."""

    def __init__(self, heard: Heard, *tells: KafkaError) -> None:
        self._heard, self._tells = heard, [*tells]
        self.looks = 0

    def list_topics(self, *, timeout: float) -> None:
        self.looks += 1
        raise KafkaException(KafkaError(KafkaError._TRANSPORT))

    def poll(self, _timeout_s: float) -> None:
        if self._tells:
            self._heard(self._tells.pop(0))


def test_INV_CP27_who_is_refused_by_all_is_told_at_the_first_look_that_knows_it() -> None:
    heard = Heard("a:1,b:2", "")
    kafka = Deaf(heard, told(REFUSED, "a:1"), told(REFUSED, "a:1"), told(REFUSED, "b:2"))
    with pytest.raises(Refused, match="Authentication failed"):
        waiting_calls.reach(kafka, "a:1,b:2", 3_600, heard)  # type: ignore[arg-type]
    assert kafka.looks == 3


def test_INV_CP27_one_broker_alone_is_believed_once_no_other_has_answered_in_time() -> None:
    heard = Heard("a:1,b:2", "")
    kafka = Deaf(heard, told(REFUSED, "a:1"))
    with pytest.raises(Refused, match="Authentication failed"):
        waiting_calls.reach(kafka, "a:1,b:2", 0, heard)  # type: ignore[arg-type]
    assert not heard.is_refused_by_all


def test_INV_CP27_a_connection_that_ends_in_a_login_says_nothing_of_credentials() -> None:
    heard = Heard("a:1", "")
    kafka = Deaf(heard, told(BROKE_OFF, "a:1"))
    with pytest.raises(Unreachable, match="no broker answers"):
        waiting_calls.reach(kafka, "a:1", 0, heard)  # type: ignore[arg-type]


def test_INV_CP27_the_application_hears_what_it_asked_to_hear() -> None:
    said: list[KafkaError] = []
    error = told(REFUSED, "a:1")
    Heard("a:1", "", said.append)(error)
    assert said == [error]
