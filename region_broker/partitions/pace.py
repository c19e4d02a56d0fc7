"""The pace of work beside everything else: in a thread, in small steps, with pauses in between.

No more than so many bytes a second are read, and no more than a fifth of the time is worked: a disk or a machine that is
busy makes each step longer, and so the pauses.

Not here: what is done (`scrubber`, `mending`).
"""

from collections.abc import Awaitable, Callable, Generator
from typing import Final, Protocol

from idempotency.ports import Clock

RESTS_PER_WORK: Final = 4
"""How long it rests after each step, in times of the step."""


class Worker(Protocol):
    """Where blocking work runs: a thread, or inline in a simulation."""

    def start(self, work: Callable[[], None]) -> Awaitable[None]:
        """Begin the work; the awaitable ends with it and raises what it raised."""
        ...


class Pace:
    """Runs work in `worker`, at `bytes_per_s`."""

    def __init__(self, clock: Clock, worker: Worker, bytes_per_s: int) -> None:
        """Nothing was read yet."""
        self.clock: Final = clock
        self.read_bytes = 0
        self._worker = worker
        self._bytes_per_s = bytes_per_s

    @property
    def stands_still(self) -> bool:
        """Whether nothing is to be read at all."""
        return self._bytes_per_s <= 0

    async def once(self, work: Callable[[], object]) -> None:
        """Run one piece of work; raises what it raises."""

        def run() -> None:
            work()

        await self._worker.start(run)

    async def through(self, steps: Generator[int, None, None], is_void: Callable[[], bool]) -> bool:
        """Run `steps`, each of which says how many bytes it took, to their end; False where they became void before it.

        Raises what they raise. One that is cancelled is left to its thread.
        """
        taken_bytes: int | None = 0

        def advance() -> None:
            nonlocal taken_bytes
            taken_bytes = next(steps, None)

        while True:
            started_ms = self.clock.monotonic_ms()
            await self._worker.start(advance)
            if taken_bytes is None:
                return True
            if is_void():
                steps.close()
                return False
            await self.rest(taken_bytes, self.clock.monotonic_ms() - started_ms)

    async def rest(self, taken_bytes: int, worked_ms: int = 0) -> None:
        """Pause for what was taken."""
        self.read_bytes += taken_bytes
        await self.clock.sleep_ms(
            max(taken_bytes * 1000 / self._bytes_per_s, worked_ms * RESTS_PER_WORK)
        )
