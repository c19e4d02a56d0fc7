"""The real clock: the only place besides the kernel of the operating system that knows the time.

monotonic_ms never goes back, and has no relation to wall_ms.
Not here: the protocol it fulfils (`idempotency.ports.Clock`), simulated clocks (tests).
"""

import asyncio
import time


class SystemClock:
    """`idempotency.ports.Clock` on the machine's clocks."""

    __slots__ = ()

    def monotonic_ms(self) -> int:
        """Return milliseconds since an arbitrary point; never goes back."""
        return time.monotonic_ns() // 1_000_000

    def wall_ms(self) -> int:
        """Return milliseconds since the Unix epoch; may jump."""
        return time.time_ns() // 1_000_000

    async def sleep_ms(self, duration_ms: float) -> None:
        """Suspend the caller for about `duration_ms`."""
        await asyncio.sleep(max(0.0, duration_ms) / 1000)
