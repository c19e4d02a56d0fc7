"""Who must not come in, and tries all along at every node: a wrong password, and a user who may know of a topic and neither write nor read it.

INV-DRA4  nobody is let in who must not be, whatever happens to nodes and regions meanwhile
Not here: users who come and go (`guard` tries those when all is well).
"""

import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from region_broker.security.login import Security

_PACE_S: Final = 0.5
_TRY_S: Final = 4.0
_POLL_S: Final = 0.1


class Knocker(threading.Thread):
    """Tries in turn to log in, to write and to read at each of these addresses. `let_in`: what must not have happened."""

    def __init__(self, addresses: Sequence[str], looker: Security, topic: str) -> None:
        """Nothing is tried before `start`."""
        super().__init__(name="knocker", daemon=True)
        self._addresses, self._looker, self._topic = addresses, looker, topic
        self._stopping = threading.Event()
        self.let_in: list[str] = []
        self.told: Counter[str] = Counter()

    def stop(self) -> None:
        """End it."""
        self._stopping.set()
        if self.is_alive():
            self.join(10 * _TRY_S)

    def run(self) -> None:
        """Knock until stopped."""
        number = 0
        while not self._stopping.is_set():
            address = self._addresses[number % len(self._addresses)]
            for what in (self._log_in, self._write, self._read):
                self.told[what(address)] += 1
                self._stopping.wait(_PACE_S)
            number += 1

    def _log_in(self, address: str) -> str:
        wrong = replace(self._looker, password=f"not {self._looker.password}")
        lets = comes_in(address, wrong)
        if lets:
            self.let_in.append(f"a wrong password is let in at {address}")
        return {True: "let in", False: "wrong password refused", None: "nobody there"}[lets]

    def _write(self, address: str) -> str:
        ended: list[KafkaError | None] = []
        producer = Producer(
            {"bootstrap.servers": address, "log_level": 0, "message.timeout.ms": int(1000 * _TRY_S), **self._looker.kafka_config()}
        )  # fmt: skip
        producer.produce(
            self._topic, value="by who may not", partition=0,
            on_delivery=lambda error, _message: ended.append(error),
        )  # fmt: skip
        producer.flush(2 * _TRY_S)
        if ended and ended[0] is None:
            self.let_in.append(f"who may not write has written at {address}")
        return f"write {ended[0].name() if ended and ended[0] is not None else 'unanswered'}"

    def _read(self, address: str) -> str:
        """Read uncommitted records from the beginning: whatever is shown is too much."""
        consumer: Any = Consumer(
            {"bootstrap.servers": address, "group.id": "looker", "log_level": 0, "enable.auto.commit": False,
             "auto.offset.reset": "earliest", "isolation.level": "read_uncommitted", **self._looker.kafka_config()}
        )  # fmt: skip
        consumer.assign([TopicPartition(self._topic, 0, 0)])
        deadline_s = time.monotonic() + _TRY_S
        try:
            while time.monotonic() < deadline_s and not self._stopping.is_set():
                message = consumer.poll(_POLL_S)
                if message is None:
                    continue
                if message.error() is None:
                    self.let_in.append(f"who may not read was shown a record at {address}")
                    return "let in"
                if message.error().code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                    return "read TOPIC_AUTHORIZATION_FAILED"
        finally:
            consumer.close()
        return "read unanswered"


def comes_in(address: str, login: Security) -> bool | None:
    """Return whether a node lets somebody in; None where it does not say."""
    errors: list[int] = []
    config: dict[str, Any] = {
        "bootstrap.servers": address, "log_level": 0, "error_cb": lambda error: errors.append(error.code()), **login.kafka_config(),
    }  # fmt: skip
    admin = AdminClient(config)
    deadline_s = time.monotonic() + _TRY_S
    while time.monotonic() < deadline_s:
        try:
            admin.list_topics(timeout=0.5)
        except KafkaException:
            admin.poll(0)
            if KafkaError._AUTHENTICATION in errors:
                return False
        else:
            return True
    return None
