"""Plain idempotent producers that never stop: each message is numbered, each answer is kept.

A value is produced once by the application; whatever is in the log twice was doubled below it. A new epoch that
librdkafka takes is noted: it then writes all again that was not answered, though it may be in the log, so the broker
must never give it a reason to. After a fatal error the producer starts anew under a new name: what it had not been
answered may be there or not.

Not here: the judgement (`chaos.soak_judge`).
"""

import logging
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException, Producer

PLAIN_TOPIC: Final = "plain"
PLAIN_PARTITIONS: Final = 3
_IN_FLIGHT_MAX: Final = 200
_PAUSE_S: Final = 0.005
_ONE_BY_ONE: Final = {"max.in.flight": 1}
# Small batches, so that after an outage five of them are under way in each partition.
_PIPELINED: Final = {"max.in.flight": 5, "batch.num.messages": 3}


def pipelines(number: int) -> bool:
    """Return whether producer `number` sends without waiting for the answer before."""
    return number % 2 == 1


@dataclass(slots=True)
class PlainJournal:
    """Everything tried and answered. `acked`: value -> (partition, offset); `failed`: value -> error name.

    `acked_s`: value -> when (monotonic). `bumps`: what librdkafka said when it took new epochs.
    """

    tried: int = 0
    acked: dict[str, tuple[int, int | None]] = field(default_factory=dict)
    acked_s: dict[str, float] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    fatal: list[str] = field(default_factory=list)
    bumps: list[str] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    _told: int = 0

    def faults(self) -> list[str]:
        """Return what the broker must never have brought about, each only once."""
        with self.lock:
            found = [
                f"a plain producer had reason to take a new epoch: {each}" for each in self.bumps
            ]
            found += [
                f"a plain producer could not go on: {each}" for each in self.fatal[self._told :]
            ]
            self.bumps.clear()
            self._told = len(self.fatal)
        return found


class PlainProducer(threading.Thread):
    """One application thread with one idempotent producer at a time."""

    def __init__(
        self, number: int, bootstrap: str, journal: PlainJournal, folder: Path,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`; what librdkafka says of its epochs goes to `folder`.

        `config` is given to librdkafka beside the producer's own.
        """
        super().__init__(name=f"plain-{number}", daemon=True)
        self._log = _log_in(folder / f"plain-{number}.log", self.name)
        self._log.addHandler(_Bumps(journal))
        self._number = number
        self._addresses = bootstrap
        self._config = dict(config or {})
        self._journal = journal
        self._stopping = threading.Event()
        self._running = threading.Event()
        self._running.set()
        self._idle = threading.Event()
        self._left = 0
        self._sent = 0

    def run(self) -> None:
        """Produce until stopped; a new producer after each fatal error."""
        life = 0
        while not self._stopping.is_set():
            life += 1
            try:
                self._produce(f"{self._number}.{life}")
            except KafkaException as error:
                with self._journal.lock:
                    self._journal.fatal.append(f"{self._number}.{life}: {error.args[0]}")

    def rest(self, timeout_s: float) -> bool:
        """Stop producing, wait until all is answered; return whether it was in time."""
        self._idle.clear()
        self._running.clear()
        return self._idle.wait(timeout_s)

    def go_on(self) -> None:
        """Produce again."""
        self._running.set()

    def stop(self) -> None:
        """Ask the thread to end."""
        self._stopping.set()
        self._running.set()

    def _produce(self, name: str) -> None:
        fatal: list[Any] = []
        producer = Producer(
            {"bootstrap.servers": self._addresses, "enable.idempotence": True, "linger.ms": 2,
             "debug": "eos", "message.timeout.ms": 0, "reconnect.backoff.max.ms": 500,
             **(_PIPELINED if pipelines(self._number) else _ONE_BY_ONE), **self._config,
             "error_cb": lambda error: fatal.append(error) if error.fatal() else None},
            logger=self._log,
        )  # fmt: skip
        self._left, number = 0, 0
        while not self._stopping.is_set() and not fatal:
            producer.poll(_PAUSE_S)
            if not self._running.is_set():
                if self._left == 0:
                    self._idle.set()
                continue
            if self._left < _IN_FLIGHT_MAX:
                number += 1
                value = f"{name} {number}"
                self._left += 1
                with self._journal.lock:
                    self._journal.tried += 1
                producer.produce(
                    PLAIN_TOPIC, value=value, partition=number % PLAIN_PARTITIONS,
                    on_delivery=self._on_delivery(value),
                )  # fmt: skip
        if fatal:
            producer.purge()
            producer.poll(0)
            raise KafkaException(fatal[0])
        producer.flush(5)
        self._idle.set()

    def _on_delivery(self, value: str) -> Any:
        def delivered(error: Any, message: Any) -> None:
            self._left -= 1
            with self._journal.lock:
                if error is None:
                    self._journal.acked[value] = (message.partition(), message.offset())
                    self._journal.acked_s[value] = time.monotonic()
                else:
                    self._journal.failed[value] = error.name()

        return delivered


class _Bumps(logging.Handler):
    """Notes the reasons that librdkafka gives for new epochs (`rd_kafka_idemp_drain_epoch_bump`)."""

    def __init__(self, journal: PlainJournal) -> None:
        super().__init__()
        self._journal = journal

    def emit(self, record: logging.LogRecord) -> None:
        """See `logging.Handler`."""
        text = record.getMessage()
        if "epoch bump" in text:
            with self._journal.lock:
                self._journal.bumps.append(text)


def _log_in(path: Path, name: str) -> logging.Logger:
    """Return a logger that writes to `path` and nowhere else."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s.%(msecs)03d %(message)s", "%H:%M:%S"))
    log = logging.getLogger(f"chaos.{name}")
    log.setLevel(logging.DEBUG)
    log.propagate = False
    log.addHandler(handler)
    return log


def wait_progress(journal: PlainJournal, more: int, timeout_s: float) -> bool:
    """Return whether `more` messages were answered in time."""
    wanted, deadline_s = len(journal.acked) + more, time.monotonic() + timeout_s
    while len(journal.acked) < wanted:
        if time.monotonic() > deadline_s:
            return False
        time.sleep(0.02)
    return True
