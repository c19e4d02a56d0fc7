"""Clock and chance: two of the four ports, declared here because every package takes them.

The other two are the disk (`region_broker.ports.disk`) and the network (`region_broker.ports.network`).
Nothing below a driver calls them: cores take `now_ms` and drawn values as arguments.
"""

from typing import Protocol
from uuid import UUID


class Clock(Protocol):
    """Monotonic time for leases and time-outs, wall time for record timestamps; both in ms."""

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary point; never goes back."""
        ...

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch; may jump."""
        ...

    async def sleep_ms(self, duration_ms: float) -> None:
        """Suspend the caller for about `duration_ms`."""
        ...


class Chance(Protocol):
    """Randomness and ids."""

    def uniform(self, low: float, high: float) -> float:
        """Return a float drawn evenly from [low, high]."""
        ...

    def randbits(self, bit_count: int) -> int:
        """Return an integer of `bit_count` random bits."""
        ...

    def uuid(self) -> UUID:
        """Return a random version-4 UUID, never the nil UUID."""
        ...
