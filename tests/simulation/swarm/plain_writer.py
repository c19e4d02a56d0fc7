"""A plain idempotent writer of numbered records, and what it was answered.

Each producer has a name of its own, and its records rise: a value is written once, by one producer. Where a producer is
refused for good, a new one goes on.
"""

import asyncio
import random
from typing import Final

from typing_extensions import override

from chaos.story import Place, Sighting
from tests.simulation.bank import Regions
from tests.simulation.pipeliner import Pipeliner

PLAIN_TOPIC: Final = "plain"
CALL_S: Final = 30.0
BACKOFF_S: Final = 0.25


class PlainWriter:
    """Writes rising numbers into a partition of its own through one region, with a new producer where it must."""

    def __init__(
        self, reach: Regions, name: str, number: int, chance: random.Random, pace_s: float,
        topic: str = PLAIN_TOPIC,
    ) -> None:  # fmt: skip
        """Nothing is connected before `run`."""
        self.name, self.pace_s, self.topic = name, pace_s, topic
        self.call_s = CALL_S
        self.closed = asyncio.Event()
        self.acked: list[Sighting] = []
        self.refused: list[str] = []
        self._reach, self._number, self._chance = reach, number, chance

    async def run(self) -> None:
        """Write until closed."""
        life = 0
        while not self.closed.is_set():
            writer = f"{self.name}.{life}"
            producer = self.producer = self.opened(writer)
            producer.closed = self.closed
            await producer.run()
            self.refused += producer.refused_for_good
            life += 1
            await asyncio.sleep(BACKOFF_S)

    def opened(self, writer: str) -> "NamedPipeliner":
        """Return a new producer, whose records say that `writer` wrote them."""
        return NamedPipeliner(self, writer, self._reach, self._number, self._chance)

    def note(self, writer: str, sequence: int, offset: int) -> None:
        """Note an acknowledged record."""
        place = Place(self.topic, self._number, offset, f"{writer} {sequence}")
        self.acked.append(Sighting(asyncio.get_running_loop().time(), self.name, place, False))


class NamedPipeliner(Pipeliner):
    """A pipeliner whose records say who wrote them."""

    def __init__(
        self, owner: PlainWriter, writer: str, reach: Regions, number: int, chance: random.Random
    ) -> None:
        """Belong to a plain writer."""
        super().__init__(reach, owner.topic, number, chance)
        self._owner, self._writer = owner, writer
        self.pace_s, self.call_s, self.backoff_s = owner.pace_s, owner.call_s, BACKOFF_S

    @override
    def value_of(self, sequence: int) -> bytes:
        return f"{self._writer} {sequence}".encode()

    @override
    def note(self, sequence: int, offset: int) -> None:
        super().note(sequence, offset)
        self._owner.note(self._writer, sequence, offset)
