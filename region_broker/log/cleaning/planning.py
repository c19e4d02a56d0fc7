"""When a log is cleaned, how far, and which segments become one.

INV-CLP1  only sealed segments, only whole ones below the bound: the last stable offset, what all mirrors have reached
         (T13), and `min.compaction.lag.ms`
INV-CLP2  a group becomes one segment: neighbours whose bytes fit `segment.bytes` and whose offsets fit the index, GROUP_SEGMENTS_MAX at most: the
         names of all of them are removed in one step of the event loop. The next cleaning makes one of those

Pure. Source: Kafka LogCleanerManager.scala `cleanableOffsets`, `grabFilthiestCompactedLog`; LogCleaner.scala
`groupSegmentsBySize`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from region_broker.log.log_config import INT32_MAX, LogConfig

GROUP_SEGMENTS_MAX: Final = 200
"""Up to seven calls of the disk for each that goes, some 10 ms in all."""


class SegmentFacts(Protocol):
    """What the plan asks of a segment; `log.segment.Segment` is one."""

    base_offset: int
    next_offset: int
    size_bytes: int

    @property
    def max_timestamp_ms(self) -> int:
        """The highest record timestamp."""
        ...

    @property
    def first_timestamp_ms(self) -> int:
        """The base timestamp of the first batch."""
        ...


@dataclass(frozen=True, slots=True)
class Filth:
    """How much of a log waits to be cleaned. `count` segments may be cleaned, up to `end_offset`."""

    count: int
    end_offset: int
    clean_bytes: int
    dirty_bytes: int
    overdue: bool

    @property
    def ratio(self) -> float:
        """The dirty part of what may be cleaned."""
        total = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / total if total else 0.0

    def wanted(self, dirty_ratio_min: float) -> bool:
        """Return whether it is time: dirty enough, or the oldest of it is older than `max.compaction.lag.ms`."""
        return self.dirty_bytes > 0 and (self.overdue or self.ratio > dirty_ratio_min)


def judge(
    sealed: Sequence[SegmentFacts],
    config: LogConfig,
    *,
    first_dirty_offset: int,
    bound_offset: int,
    now_ms: int,
) -> Filth:
    """Return what may be cleaned of the sealed segments, oldest first."""
    count = clean_bytes = dirty_bytes = 0
    overdue = False
    end_offset = 0
    for segment in sealed:
        if segment.next_offset > bound_offset:
            break
        dirty = segment.next_offset > first_dirty_offset
        if dirty and segment.max_timestamp_ms > now_ms - config.cleaning.lag_min_ms:
            break
        count += 1
        end_offset = segment.next_offset
        if not dirty:
            clean_bytes += segment.size_bytes
            continue
        dirty_bytes += segment.size_bytes
        waited_ms = now_ms - segment.first_timestamp_ms
        if segment.first_timestamp_ms >= 0 and waited_ms > config.cleaning.lag_max_ms:
            overdue = True
    return Filth(count, end_offset, clean_bytes, dirty_bytes, overdue)


def groups(segments: Sequence[SegmentFacts], segment_bytes: int) -> list[tuple[int, int]]:
    """Return [start, stop) of neighbours that become one segment each."""
    found: list[tuple[int, int]] = []
    start, size_bytes = 0, 0
    for at, segment in enumerate(segments):
        offsets = segment.next_offset - 1 - segments[start].base_offset
        is_full = size_bytes + segment.size_bytes > segment_bytes or offsets > INT32_MAX
        if at > start and (is_full or at - start >= GROUP_SEGMENTS_MAX):
            found.append((start, at))
            start, size_bytes = at, 0
        size_bytes += segment.size_bytes
    if segments:
        found.append((start, len(segments)))
    return found
