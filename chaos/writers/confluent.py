"""A writer on confluent-kafka: a teller that rests at the gate."""

from collections.abc import Mapping
from random import Random
from typing import Any, Final

from confluent_kafka import Producer

from chaos.transfers import Teller
from chaos.writers.journal import Gate, WritersJournal
from chaos.writers.writer import PACE_S, TOPIC

_PATIENCE_S: Final = 60.0


class ConfluentWriter(Teller):
    """One transactional id, from start to `stop`."""

    topic = TOPIC
    client = "confluent"

    def __init__(
        self, number: int, bootstrap: str, journal: WritersJournal, gate: Gate, chance: Random,
        config: Mapping[str, Any] | None = None,
    ) -> None:  # fmt: skip
        """Nothing is connected before `start`."""
        super().__init__(
            f"confluent-{number}",
            bootstrap,
            journal,
            chance.randrange(1 << 30),
            config,
            _PATIENCE_S,
        )
        self._gate = gate

    def _transfer(self, producer: Producer) -> bool:
        self._gate.pass_through(self.name)
        self._stopping.wait(PACE_S)
        return super()._transfer(producer)

    def finish(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time."""
        self.join(timeout_s)
        return not self.is_alive()
