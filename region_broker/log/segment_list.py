"""The segments of one log in order, and reading over them.

Segments are contiguous: each begins where the one before ends; the last one is active. Cleaned ones have holes inside,
never at their end. A remembered position is the start of the batch at that offset, or the end of its segment.

INV-SGL1  one reading that is not to wait looks into FIRST_LOOKS_MAX segments at most of which nothing is known yet since the start, then gives
          way (TurnOver), and goes on behind them as it is repeated: a log has 10,000 segments, and a start looks into none. What of them is
          not in memory it has read in together: one at a time, a cold disk would use up what a reading may have read in (INV-CO2), and the
          loop would wait for all the rest in one step

Not here: writing, syncing, deleting (`partition_log`).
"""

import logging
import sys
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Final, TypeVar

from idempotency.partition_state import AbortedTxn
from region_broker.log.built_aside import BuiltAside
from region_broker.log.failures import AsideRange, ColdRange, NotABatchBoundary, TurnOver
from region_broker.log.file_names import ABORTED_SUFFIX
from region_broker.log.indexes.aborted_index import AbortedIndex, decode_aborted
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.log_config import NodeLogConfig
from region_broker.log.replay import aborted_by_replay, write_aborted_file
from region_broker.log.segment import (
    BatchAtTime,
    ReadSlice,
    SealedCache,
    Segment,
    check_descriptors,
    knows_times,
    own_segment,
    read_log_index,
)

logger: Final = logging.getLogger(__name__)
_Found = TypeVar("_Found")

POSITIONS_REMEMBERED: Final = 64
FIRST_LOOKS_MAX: Final = 200
"""Into how many segments' small files one reading looks that is not to wait: some 6 ms. What it finds there is remembered."""
OWN_FILES_MAX: Final = 8
"""How many files a thread has open that builds an index again."""


class SegmentList:
    """Segments by base offset, with the positions that were read or synced last."""

    def __init__(self, folder: Path, cache: SealedCache, segments: list[Segment]) -> None:
        """Hold `segments`, oldest first."""
        self._folder = folder
        self._cache = cache
        self.segments = segments
        self.bases = [segment.base_offset for segment in segments]
        self._positions: dict[int, tuple[Segment, int]] = {}

    def add(self, segment: Segment) -> None:
        """Append the new active segment."""
        self.segments.append(segment)
        self.bases.append(segment.base_offset)

    def keep(self, start: int, stop: int) -> list[Segment]:
        """Keep the segments [start:stop] by index; return the others, oldest first."""
        dropped = self.segments[:start] + self.segments[stop:]
        self.segments = self.segments[start:stop]
        self.bases = self.bases[start:stop]
        self._positions.clear()
        return dropped

    def replace(self, old: Sequence[Segment], fresh: Segment) -> None:
        """Put a cleaned segment in the place of `old`, which are neighbours in the list."""
        start = self.segments.index(old[0])
        stop = start + len(old)
        assert self.segments[start:stop] == list(old)
        for segment in old:
            self._cache.forget(segment.path)
        self.segments[start:stop] = [fresh]
        self.bases[start:stop] = [fresh.base_offset]
        self._positions.clear()

    def read(
        self, offset: int, max_bytes: int, limit: int, *, wait: bool = True
    ) -> ReadSlice | None:
        """Return whole batches of one segment, from the one that holds `offset` to at most `limit`.

        At most `max_bytes`, but at least one batch; None if there is none below `limit`. `offset` and
        `limit` lie in the log. Raises ColdRange unless `wait` (INV-SG4), LogDamaged, or OSError of the disk.
        """
        if offset >= limit:
            return None
        segment, position = self._position(offset, wait=wait)
        if limit >= segment.next_offset:
            limit_position = segment.size_bytes
        else:
            limit_position = self._position(limit, wait=wait)[1]
        found = segment.read(position, max_bytes, limit_position, wait=wait)
        if found is not None:
            self.remember(found.next_offset, segment, found.next_position)
        return found

    def bytes_between(self, start: int, end: int, enough: int, *, wait: bool = True) -> int:
        """Return the bytes of [start, end), both batch boundaries; may stop counting at `enough`."""
        total = 0
        while start < end and total < enough:
            segment, position = self._position(start, wait=wait)
            if end <= segment.next_offset:
                stop = self._position_in(segment, end, wait=wait)
                if end not in self._positions:  # whoever counts on begins there
                    self.remember(end, segment, stop)
            else:
                stop = segment.size_bytes
            total += stop - position
            start = segment.next_offset
        return total

    def end_before(self, offset: int, *, wait: bool = True) -> int:
        """Return where the last batch ends that begins below `offset`, which lies in the log above its start."""
        segment = self.segments[self.slot(offset - 1)]
        end_offset = (
            segment.base_offset
        )  # there the segment before it ends, with a batch (`cleaning.rewriting`)
        start = segment.index(wait=wait).position_before(offset - 1 - segment.base_offset)
        for _, header in segment.walk(start, wait=wait):
            if header.base_offset >= offset:
                break
            end_offset = header.next_offset
        return end_offset

    def boundary(self, offset: int) -> tuple[Segment, int]:
        """Return segment and position of `offset`; raises NotABatchBoundary if no batch begins or ends there."""
        start, end = self.bases[0], self.segments[-1].next_offset
        if not start <= offset <= end:
            raise NotABatchBoundary(
                f"cannot cut {self._folder} at {offset}: it holds [{start}, {end})"
            )
        segment = self.segments[self.slot(offset)]
        position = segment.position_of(offset)
        if position < segment.size_bytes:
            _, header = next(segment.walk(position))
            if header.base_offset < offset:
                raise NotABatchBoundary(
                    f"cannot cut {self._folder} at {offset}: it lies inside the batch "
                    f"[{header.base_offset}, {header.next_offset})"
                )
        return segment, position

    def first_reaching(
        self, timestamp_ms: int, limit: int, start: int = 0, *, wait: bool = True
    ) -> BatchAtTime | int | None:
        """Return the first batch that ends behind `start`, below `limit`, with a record at or after the time.

        Or, after LOOKUP_BATCHES_MAX others, an offset below which none is: from there on it may be looked for. Raises ColdRange unless `wait` (INV-SG4), LogDamaged, or OSError of the disk.
        """
        looks = _Looks(wait=wait)
        for segment in self.segments:
            if segment.base_offset >= limit:
                break
            if segment.next_offset <= start:
                continue
            latest_ms = looks.into(
                segment, partial(segment.latest_ms, wait=wait), is_first=not knows_times(segment)
            )
            if latest_ms is None or latest_ms < timestamp_ms:
                continue
            looks.check()  # one before it may reach the time, too
            found = segment.first_reaching(timestamp_ms, start, wait=wait)
            if found is None and segment.base_offset < start:
                continue  # what reaches the time lies below `start`
            if isinstance(found, int):
                return found if found < limit else None
            if found is None or found.header.next_offset > limit:
                return None
            return found
        looks.check()
        return None

    def aborted_in_sealed(
        self, start: int, end: int, bound: int, *, wait: bool = True
    ) -> Iterator[AbortedTxn]:
        """Yield aborted transactions that touch [start, end) with a marker below `bound` in a sealed segment."""
        looks = _Looks(wait=wait)
        for segment in self.segments[self.slot(start) :]:
            if segment.file is not None:
                break
            begins = segment.aborted_from
            if begins is not None and begins >= end:
                continue  # nothing of it began before `end`: its file is not read
            look = partial(self._aborted_of, segment, wait=wait)
            aborted = looks.into(segment, look, is_first=begins is None)
            if aborted is not None:
                segment.aborted_from = aborted.first_offset
                yield from aborted.overlapping(start, end, bound)
        looks.check()

    def _aborted_of(self, segment: Segment, *, wait: bool) -> AbortedIndex:
        return self._cache.aborted.get(segment.path, lambda: self._load_aborted(segment, wait=wait))

    def _load_aborted(self, segment: Segment, *, wait: bool) -> AbortedIndex:
        asides = self._cache.aborted_aside
        aside = None if wait else asides.held(segment.path)
        if aside is None:
            path = segment.path.with_suffix(ABORTED_SUFFIX)
            try:
                return decode_aborted(read_log_index(self._cache.disk, path, wait=wait))
            except (OSError, FrameError) as error:
                # Whatever is wrong with the file: the log says the same.
                if not wait:
                    check_descriptors(error)
                logger.warning("%s: %s", path, error)
            if not wait:
                aside = asides.get(segment.path, lambda: self._building(segment))
        if aside is not None:
            aside.check_done(segment.path, segment.size_bytes)
            if aside.value is not None:
                return aside.value
            asides.forget(
                segment.path
            )  # the segments below may have been others before it was done
        return AbortedIndex.of(write_aborted_file(self._folder, self.segments, segment))

    def _building(self, segment: Segment) -> BuiltAside[AbortedIndex]:
        """Return what builds it again in a thread, by files of its own."""
        disk = self._cache.disk
        upto = self.segments[: self.slot(segment.base_offset) + 1]

        def build() -> AbortedIndex:
            cache = SealedCache(disk, NodeLogConfig(open_files_max=OWN_FILES_MAX))
            try:
                own = [own_segment(each, cache) for each in upto]
                return AbortedIndex.of(aborted_by_replay(self._folder, own, own[-1]))
            finally:
                cache.close()

        return BuiltAside(build)

    def slot(self, offset: int) -> int:
        return max(bisect_right(self.bases, offset) - 1, 0)

    def _position(self, offset: int, *, wait: bool = True) -> tuple[Segment, int]:
        known = self._positions.get(offset)
        if known is not None and offset < known[0].next_offset:
            return known
        segment = self.segments[self.slot(offset)]
        return segment, self._position_in(segment, offset, wait=wait)

    def _position_in(self, segment: Segment, offset: int, *, wait: bool = True) -> int:
        known = self._positions.get(offset)
        if known is not None and known[0] is segment:
            return known[1]
        return segment.position_of(offset, wait=wait)

    def remember(self, offset: int, segment: Segment, position: int) -> None:
        positions = self._positions
        if len(positions) >= POSITIONS_REMEMBERED:
            del positions[next(iter(positions))]
        positions[offset] = (segment, position)


class _Looks:
    """Into how many segments one reading has looked, and what of them is not in memory (INV-SGL1)."""

    __slots__ = ("_cold", "_left")

    def __init__(self, *, wait: bool) -> None:
        """Look into any number of segments if the reading is to `wait`."""
        self._left = sys.maxsize if wait else FIRST_LOOKS_MAX
        self._cold: list[ColdRange] = []

    def into(
        self, segment: Segment, look: Callable[[], _Found], *, is_first: bool
    ) -> _Found | None:
        """Return what `look` finds; None where that has to be read in: `check` says so. `is_first`: nothing was known of the segment."""
        if is_first:
            if self._left <= 0:
                self.check()
                raise TurnOver(segment.path)
            self._left -= 1
        try:
            return look()
        except AsideRange as aside:
            self._cold.append(aside.with_traceback(None))
        except ColdRange as cold:
            self._cold.append(cold.with_traceback(None))
            if len(self._cold) < FIRST_LOOKS_MAX:
                return None
        self.check()  # what a thread has to build is long: one at a time for each reader
        return None

    def check(self) -> None:
        """Raise ColdRange for all that has to be read in."""
        if self._cold:
            raise self._gathered()

    def _gathered(self) -> ColdRange:
        first, *others = self._cold
        self._cold = []  # else what is raised would hold itself, by its frames
        first.others = tuple(others)
        return first
