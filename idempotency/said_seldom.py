"""Lines that a client can cause as often as it likes, said seldom.

INV-SSD1 what is said seldom is said at most once in `SAY_AGAIN_MS`, whoever causes it: nobody fills the disk, or hides what else is in the log,
         by doing the same thing again
Not here: counting what was not said (metrics), the audit trail.
"""

from typing import Final

from idempotency.ports import Clock

SAY_AGAIN_MS: Final = 60_000


class SaidSeldom:
    """One kind of line."""

    __slots__ = ("_again_ms", "_clock")

    def __init__(self, clock: Clock) -> None:
        """Nothing was said yet."""
        self._clock = clock
        self._again_ms: int | None = None

    def is_due(self) -> bool:
        """Return whether the line may be said now, and take it as said if so."""
        now_ms = self._clock.monotonic_ms()
        if self._again_ms is not None and now_ms < self._again_ms:
            return False
        self._again_ms = now_ms + SAY_AGAIN_MS
        return True
