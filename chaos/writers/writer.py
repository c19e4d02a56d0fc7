"""What a drill knows of a writer, whatever its client: start, stop, end."""

from typing import Final, Protocol

TOPIC: Final = "written"
PACE_S: Final = 0.01
"""For how long a writer rests between two transactions: a drill is about faults, not about load."""


class Writer(Protocol):
    """One transactional id. `client`: the library it is of."""

    name: str
    client: str

    def start(self) -> None:
        """Write from now on."""
        ...

    def stop(self) -> None:
        """Ask it to end, between transactions."""
        ...

    def finish(self, timeout_s: float) -> bool:
        """Wait for its end; return whether it came in time."""
        ...
