"""In which order sealed segments are looked at: the one first whose last look is the oldest.

INV-SCB1  every segment that stays is looked at once in each pass
Pure: times are handed in, in ms of a monotonic clock. A segment counts as looked at when it is first seen here: all of
it was checked when it was appended. What was looked at before a restart is not known after it.

Not here: looking (`examining`), pace (`partitions.scrubber`).
"""

from dataclasses import dataclass
from typing import Final, NamedTuple
from uuid import UUID

RETRY_MS_MIN: Final = 60_000
RETRY_MS_MAX: Final = 3_600_000


class SegmentKey(NamedTuple):
    """One segment of one log."""

    topic_id: UUID
    partition: int
    base_offset: int


class LookOrder:
    """When each segment was looked at; the oldest look is the first entry."""

    def __init__(self) -> None:
        """Know of no segment."""
        self._looked_ms: dict[SegmentKey, int] = {}

    def seen(self, key: SegmentKey, now_ms: int) -> None:
        """Note that a segment is there."""
        self._looked_ms.setdefault(key, now_ms)

    def oldest_first(self) -> list[SegmentKey]:
        """Return all that is known, the oldest look first."""
        return list(self._looked_ms)

    def forget(self, key: SegmentKey) -> None:
        """Note that a segment is gone."""
        self._looked_ms.pop(key, None)

    def looked(self, key: SegmentKey, now_ms: int) -> None:
        """Note a look that has ended."""
        self._looked_ms.pop(key, None)
        self._looked_ms[key] = now_ms

    def oldest_age_ms(self, now_ms: int) -> int:
        """Return how long ago the segment was looked at that waits longest; 0 without any."""
        return now_ms - next(iter(self._looked_ms.values()), now_ms)


@dataclass(slots=True)
class Retry:
    """When what was not mended is looked at again: a minute later, then twice as long each time, up to an hour."""

    due_ms: int
    pause_ms: int = RETRY_MS_MIN

    def put_off(self, now_ms: int) -> None:
        """Note that it was in vain."""
        self.due_ms = now_ms + self.pause_ms
        self.pause_ms = min(2 * self.pause_ms, RETRY_MS_MAX)
