"""When a region that stands still may take over from itself once more: each try costs a region epoch.

INV-FS9  a region takes over from itself at once, and once more, where that was given up, only behind a pause, which doubles: no region
         epoch is given back, and there are 4,095 (INV-F3)
         1. It stands fenced, and every region answers how it stands. 2. One of them answers no question for a promise, as its disk hangs.
         3. Each takeover is given up after a minute, under a number of its own. In three days no region of the cluster could take over.

Not here: whether it may at all (`region.failover.steps.fenced`).
"""

from typing import Final

from geo_replicator.failover import State
from idempotency.identity import RegionEpoch
from idempotency.ports import Clock

PAUSE_MS_MIN: Final = 1_000
PAUSE_MS_MAX: Final = 600_000


class ReclaimPause:
    """Counts the takeovers from itself that a region gave up in this process."""

    def __init__(self, clock: Clock) -> None:
        """None was given up yet."""
        self._clock = clock
        self._given_up = RegionEpoch(0)
        self._pause_ms = PAUSE_MS_MIN
        self._again_at_ms = 0

    def is_over(self, state: State) -> bool:
        """Return whether the region may begin now; a pause begins when this is asked first behind a takeover that was given up."""
        if state.abandoned_epoch < state.region_epoch:  # none, since it acted last
            self._pause_ms = PAUSE_MS_MIN
            return True
        now_ms = self._clock.monotonic_ms()
        if state.abandoned_epoch != self._given_up:
            self._given_up = state.abandoned_epoch
            self._again_at_ms = now_ms + self._pause_ms
            self._pause_ms = min(2 * self._pause_ms, PAUSE_MS_MAX)
        return now_ms >= self._again_at_ms
