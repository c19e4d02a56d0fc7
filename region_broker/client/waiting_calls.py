"""Calls of confluent-kafka that wait, until librdkafka has an answer; all of them block, in the producer's thread.

INV-CP23 a producer that was given no producer id ends in the thread that asked for one, and not with the error in the event loop
INV-CP27 credentials that brokers refuse are told as that, and soon where all do that are known: librdkafka tells them beside the call that waits, which then
         only knows that no broker answered in time, as if there were none. One broker alone may have older users than the others, or count wrong logins;
         a connection that ends in the middle of a login says nothing of credentials
A call is repeated only where librdkafka names its error retriable: it goes on where it was, nothing is doubled.

Not here: what follows from an error (`transactional_producer`).
"""

import logging
import re
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer

from region_broker.client.errors import REFUSALS, Refused, Unreachable, kafka_error, unmasked

_BACKOFF_FIRST_S: Final = 0.05
_BACKOFF_MAX_S: Final = 2.0
_LOOK_FIRST_S: Final = 1.0
"""How long no broker may answer before what was told meanwhile is looked at; then twice as long."""

_OF_LOGINS: Final = frozenset({KafkaError._AUTHENTICATION, KafkaError.SASL_AUTHENTICATION_FAILED})
_BROKE_OFF: Final = "handshake failed: Local:"
"""In the text of an error of logins: the connection ended, or nothing came, before the broker had heard of any credentials."""
_BROKER: Final = re.compile(r"://([^/]+)/")

_log: Final = logging.getLogger("tidemark.client")
# librdkafka prints fatal errors to stderr whatever its log level; they are raised here as well.
_QUIET: Final = logging.getLogger("tidemark.client.librdkafka")
_QUIET.addHandler(logging.NullHandler())


def initialised(config: Mapping[str, Any], timeout_s: float, call_timeout_s: float) -> Producer:
    """Return a producer that was given a producer id; raises `Refused`, and `Unreachable` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    name = config["transactional.id"]
    while True:
        found = _asked(config, deadline_s - time.monotonic(), call_timeout_s)
        if isinstance(found, Producer):
            return found
        if found.code() in REFUSALS:
            raise Refused(f"no producer id is given to {name!r}: {found.str()}", code=found.name())
        if time.monotonic() > deadline_s:
            raise Unreachable(
                f"no region gave a producer id to {name!r} at {config['bootstrap.servers']}:"
                f" {found.str()}. Look at `tidemark region status`.",
                code=found.name(),
            )
        time.sleep(_BACKOFF_FIRST_S)


def _asked(
    config: Mapping[str, Any], timeout_s: float, call_timeout_s: float
) -> Producer | KafkaError:
    """Return a producer that was given a producer id, or why none was: not raised, as a traceback keeps the producer (INV-CP23)."""
    heard = Heard(config["bootstrap.servers"], "transactions wait for one", config.get("error_cb"))
    kafka = Producer({**config, "error_cb": heard}, logger=_QUIET)

    def asked() -> None:
        try:
            kafka.init_transactions(call_timeout_s)
        except KafkaException:
            _refuse_where_all_do(kafka, heard)
            raise

    try:
        until_answered(timeout_s, asked)
    except KafkaException as error:
        return kafka_error(error)
    return kafka


def _refuse_where_all_do(kafka: Producer, heard: "Heard") -> None:
    """Raise what brokers say of the login, if all that are known do; one that lets the client in now counts more than what others said before."""
    kafka.poll(0)  # serves the callback
    if heard.is_refused_by_all:
        try:
            kafka.list_topics(timeout=_LOOK_FIRST_S)
        except KafkaException:
            raise KafkaException(heard.login_refused) from None
        heard.forget()


class Heard:
    """What librdkafka tells beside its calls, as its `error_cb`."""

    def __init__(
        self, brokers: str, while_down: str, then: Callable[[KafkaError], object] | None = None
    ) -> None:
        """`while_down`: what becomes of what the application wants as long as no broker answers, for the log. `then`: whoever is told, too."""
        self.login_refused: KafkaError | None = None
        """What one broker said last."""
        self._refused_by: set[str] = set()
        self._given_count = len(brokers.split(","))
        self._said = f"no broker answers at {brokers}: {while_down}"
        self._then = then

    @property
    def is_refused_by_all(self) -> bool:
        """Return whether as many brokers as addresses were given refuse the login: one alone may have older users, or count wrong logins."""
        return len(self._refused_by) >= self._given_count

    def forget(self) -> None:
        """Begin anew."""
        self.login_refused = None
        self._refused_by.clear()

    def __call__(self, error: KafkaError) -> None:
        """Note what is told."""
        if error.code() == KafkaError._ALL_BROKERS_DOWN:
            _log.warning(self._said)
        elif error.code() in _OF_LOGINS and _BROKE_OFF not in error.str():
            self.login_refused = error
            named = _BROKER.search(error.str())
            self._refused_by.add(named[1] if named else "")
        if self._then is not None:
            self._then(error)


def reach(kafka: Producer | Consumer, brokers: str, timeout_s: float, heard: Heard) -> None:
    """Return once one of `brokers` has answered; raises `Unreachable`, and `Refused` where they let nobody in by these credentials (INV-CP27)."""
    heard.forget()
    deadline_s = time.monotonic() + timeout_s
    wait_s = _LOOK_FIRST_S
    while True:
        left_s = deadline_s - time.monotonic()
        try:
            kafka.list_topics(timeout=max(min(wait_s, left_s), 0.001))
        except KafkaException as error:
            kafka.poll(0)  # serves the callback
            over = left_s <= wait_s
            if heard.login_refused is not None and (over or heard.is_refused_by_all):
                raise _not_let_in(brokers, heard.login_refused) from error
            if over:
                raise _out_of_reach(brokers, timeout_s, kafka_error(error)) from error
            wait_s *= 2
        else:
            return


def _not_let_in(brokers: str, error: KafkaError) -> Refused:
    return Refused(
        f"a broker at {brokers} refused the login: {error.str()}. Look at user, password and mechanism of `security`.",
        code=error.name(),
    )


def _out_of_reach(brokers: str, timeout_s: float, error: KafkaError) -> Unreachable:
    return Unreachable(
        f"no broker answers at {brokers} within {timeout_s:g} s: {error.str()}."
        " Give the addresses of regions that are up: `tidemark region status` shows them.",
        code=error.name(),
    )


def most_telling(error: KafkaError, of_records: Sequence[KafkaError]) -> KafkaError:
    """Return what a record met, where the commit only says that one met something."""
    if error.fatal():
        return error
    refusals = [each for each in of_records if each.code() in REFUSALS]
    vague = error.code() == KafkaError._INCONSISTENT
    return next(iter([*refusals, *(of_records if vague else ()), error]))


def backoff_s(attempt_count: int) -> float:
    """Return for how long to wait behind that many attempts."""
    return min(_BACKOFF_FIRST_S * 2.0 ** min(attempt_count - 1, 10), _BACKOFF_MAX_S)


def until_answered(timeout_s: float, call: Callable[[], object]) -> None:
    """Repeat a call that librdkafka names retriable: it goes on where it was, nothing is doubled."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        try:
            unmasked(call)
        except KafkaException as error:
            if not kafka_error(error).retriable() or time.monotonic() > deadline_s:
                raise
        else:
            return
