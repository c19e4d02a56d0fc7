"""What a simulated run did, as one hash: two runs of one seed that differ anywhere differ here.

Nothing that is noted depends on the process: no address in memory, no hash order, no time of the machine.

Optionally each event is written out, so that two traces can be compared line by line.
"""

import asyncio
import hashlib
from collections.abc import Callable
from typing import Any, Final

DIGEST_BYTES: Final = 8


class Trace:
    """Counts events and hashes them, with the loop's time of each, the first `events_max` of them."""

    def __init__(
        self, write: Callable[[str], object] | None = None, events_max: int | None = None
    ) -> None:
        """Begin empty; `write` gets each event as a line."""
        self.events_max = events_max
        self.when_full: Callable[[], object] | None = None
        """Called once, with the last event that counts."""
        self._hash = hashlib.blake2b(digest_size=DIGEST_BYTES)
        self._write = write
        self.events = 0

    def note(self, *parts: Any) -> None:
        """Note an event; its parts must have the same `repr` in every process."""
        if self.events == self.events_max:
            return
        line = f"{asyncio.get_running_loop().time():.6f} {parts!r}\n"
        self._hash.update(line.encode())
        self.events += 1
        if self._write is not None:
            self._write(line)
        if self.when_full is not None and self.events == self.events_max:
            self.when_full()

    @property
    def is_full(self) -> bool:
        """Return whether no further event counts."""
        return self.events == self.events_max

    @property
    def digest(self) -> str:
        """Return the hash of all events so far."""
        return self._hash.hexdigest()
