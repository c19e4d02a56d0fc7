"""A writer on aiokafka, on an event loop of a thread of its own.

Like a teller, it starts anew with the same transactional id after any error, and what became of a commit that was not answered it
never guesses.
"""

import asyncio
import logging
import threading
from pathlib import Path
from random import Random
from typing import Any, Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError

from chaos.access.doors import aiokafka_login
from chaos.history import Attempt, Outcome, record_value
from chaos.transfers import ACCOUNTS
from chaos.writers.journal import Gate, WritersJournal
from chaos.writers.writer import PACE_S, TOPIC
from region_broker.security.login import Security

_AGAIN_S: Final = 0.1
_CALL_S: Final = 20.0
_SETTINGS: Final[dict[str, Any]] = {
    "request_timeout_ms": 5_000, "transaction_timeout_ms": 20_000, "metadata_max_age_ms": 2_000,
    "retry_backoff_ms": 100,
}  # fmt: skip


class AioWriter(threading.Thread):
    """One transactional id, from start to `stop`."""

    client = "aiokafka"

    def __init__(  # noqa: PLR0913 -- what every writer is given, its log, and who logs in
        self, number: int, bootstrap: str, journal: WritersJournal, gate: Gate, chance: Random,
        *, log: Path, login: Security | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`; what the client complains of goes to `log`."""
        super().__init__(name=f"aiokafka-{number}", daemon=True)
        self._brokers, self._journal, self._gate = bootstrap, journal, gate
        self._chance = Random(chance.randrange(1 << 30))
        self._stopping = threading.Event()
        self._number = 0
        self._log = logging.FileHandler(log)
        self._login = aiokafka_login(login)

    def stop(self) -> None:
        """Ask it to end."""
        self._stopping.set()

    def finish(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time."""
        self.join(timeout_s)
        return not self.is_alive()

    def run(self) -> None:
        """Transfer until stopped."""
        for name in ("aiokafka", "asyncio"):  # the client leaves futures that nobody reads
            log = logging.getLogger(name)
            log.propagate = False
            log.addHandler(self._log)
        asyncio.run(self._write())

    async def _write(self) -> None:
        while not self._stopping.is_set():
            producer = AIOKafkaProducer(
                bootstrap_servers=self._brokers,
                transactional_id=self.name,
                **_SETTINGS,
                **self._login,
            )
            try:
                await asyncio.wait_for(producer.start(), _CALL_S)
                while not self._stopping.is_set():
                    await self._rest()
                    await self._transfer(producer)
            except (KafkaError, OSError) as error:
                self._journal.fail_of(self.client, type(error).__name__)
                await asyncio.sleep(_AGAIN_S)
            finally:
                await self._let_go(producer)

    async def _rest(self) -> None:
        while self._gate.is_closed and not self._stopping.is_set():
            self._gate.arrive(self.name)
            await asyncio.sleep(PACE_S)
        await asyncio.sleep(PACE_S)

    async def _let_go(self, producer: AIOKafkaProducer) -> None:
        try:
            await asyncio.wait_for(producer.stop(), _CALL_S)
        except (KafkaError, OSError) as error:
            self._journal.fail_of(self.client, f"stop {type(error).__name__}")

    async def _transfer(self, producer: AIOKafkaProducer) -> None:
        self._number += 1
        source, target = self._chance.sample(range(ACCOUNTS), 2)
        amount = self._chance.randrange(1, 100)
        number, term, outcome = self._number, self._journal.term, Outcome.NOT_COMMITTED
        attempt = f"{self.name}.{number}"
        try:
            await producer.begin_transaction()
            sent = [
                (partition, await producer.send(TOPIC, record_value(attempt, change), partition=partition))
                for partition, change in ((source, -amount), (target, amount))
            ]  # fmt: skip
            for partition, answer in sent:
                self._journal.place(attempt, partition, (await answer).offset)
            if self._chance.random() < 0.1:
                await producer.abort_transaction()
            else:
                outcome = Outcome.UNKNOWN
                await producer.commit_transaction()
                outcome = Outcome.COMMITTED
        finally:
            self._journal.note(Attempt(self.name, number, term, source, target, amount, outcome))
