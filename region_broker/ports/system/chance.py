"""Real randomness: drawn from the operating system, so that no two nodes ever draw alike.

Not here: the protocol it fulfils (`idempotency.ports.Chance`), seeded chance (tests).
"""

import random
from uuid import UUID


class SystemChance:
    """`idempotency.ports.Chance` on the operating system's entropy."""

    __slots__ = ("_source",)

    def __init__(self) -> None:
        """Open the system's source of entropy."""
        self._source = random.SystemRandom()

    def uniform(self, low: float, high: float) -> float:
        """Return a float drawn evenly from [low, high]."""
        return self._source.uniform(low, high)

    def randbits(self, bit_count: int) -> int:
        """Return an integer of `bit_count` random bits."""
        return self._source.getrandbits(bit_count)

    def uuid(self) -> UUID:
        """Return a random version-4 UUID (never nil: the version bits are set)."""
        return UUID(int=self._source.getrandbits(128), version=4)
