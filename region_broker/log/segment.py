"""One segment: a file of whole record batches as they travel on the wire, and where to find them in it.

INV-SG4  with `wait=False` nothing waits for the device: what is not in memory is ColdRange, an index that has to be built again AsideRange, and
         nothing has changed. Where no file can be opened now (EMFILE) that is said, and nothing is built again
INV-SG5  what a read returns has no more than a quarter of its memory unused: it may wait for long for a reader who takes it slowly
INV-SG6  what one step of the event loop deletes is bounded by what the disk has to do for it: by files to remove, and by logs to sync
The file holds whole batches back to back; offsets grow; the first one is not below `base_offset`. A sealed segment
never changes. What is read is whole batches, byte for byte as written.

Not here: which segment holds an offset, appending, syncing (`partition_log`).
"""

import logging
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path
from typing import Final, NamedTuple

from idempotency.record_batch import HEADER_BYTES, BatchError, BatchHeader, read_header
from region_broker.limits import LOOKUP_BATCHES_MAX
from region_broker.log.built_aside import BuiltAside
from region_broker.log.failures import ColdRange, LogDamaged
from region_broker.log.file_names import INDEX_SUFFIX, LOG_SUFFIX, file_name
from region_broker.log.indexes.aborted_index import AbortedIndex
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.indexes.sparse_index import (
    NO_TIMESTAMP_MS,
    SUMMARY_BYTES,
    SegmentSummary,
    SparseIndex,
    decode_index,
    peek_summary,
)
from region_broker.log.log_config import INT32_MAX, LogConfig, NodeLogConfig
from region_broker.log.recently_used import RecentlyUsed
from region_broker.ports.disk import NO_DESCRIPTORS, Buffer, Disk, DiskFile

logger: Final = logging.getLogger(__name__)

WALK_WINDOW_BYTES: Final = 16_384
SEGMENT_CACHE_ENTRIES: Final = 64
DELETED_AT_ONCE: Final = 200
"""How many small segments retention deletes in one step of the loop: four files each, some 10 ms."""
_BYTES_OF_ONE: Final = 16 << 20
_LOG_IN_SEGMENTS: Final = 20
"""What a log costs of that, however few segments go: up to four syncs, of its state, its checkpoint and its folder."""


class SealedCache:
    """What is kept open or in memory of sealed segments, bounded for the whole node."""

    __slots__ = ("aborted", "aborted_aside", "disk", "files", "indexes", "indexes_aside")

    def __init__(self, disk: Disk, config: NodeLogConfig) -> None:
        """Hold `open_files_max` files, and 64 indexes of each kind."""
        self.disk = disk
        self.files: RecentlyUsed[Path, DiskFile] = RecentlyUsed(
            config.open_files_max, lambda file: file.close()
        )
        self.indexes: RecentlyUsed[Path, SparseIndex] = RecentlyUsed(SEGMENT_CACHE_ENTRIES)
        self.aborted: RecentlyUsed[Path, AbortedIndex] = RecentlyUsed(SEGMENT_CACHE_ENTRIES)
        self.indexes_aside: RecentlyUsed[Path, BuiltAside[_Rebuilt]] = RecentlyUsed(
            SEGMENT_CACHE_ENTRIES
        )
        self.aborted_aside: RecentlyUsed[Path, BuiltAside[AbortedIndex]] = RecentlyUsed(
            SEGMENT_CACHE_ENTRIES
        )

    def forget(self, path: Path) -> None:
        """Drop all of one segment: it is about to be removed or cut."""
        for cache in (
            self.files,
            self.indexes,
            self.aborted,
            self.indexes_aside,
            self.aborted_aside,
        ):
            cache.forget(path)

    def close(self) -> None:
        """Close all files."""
        self.files.clear()


class _Rebuilt(NamedTuple):
    """An index that was built again, and what its file would say of the segment."""

    sparse: SparseIndex
    summary: SegmentSummary


class ReadSlice(NamedTuple):
    """Whole batches, and the offset and position behind the last one."""

    data: bytes | bytearray
    next_offset: int
    next_position: int


def read_log_index(disk: Disk, path: Path, *, wait: bool) -> bytes:
    """Return the whole content of a file beside a segment; raises ColdRange unless `wait`, or OSError."""
    if wait:
        return disk.read_file(path)
    file = disk.open(path)
    try:
        size_bytes = file.size()
        data = file.pread_cached(size_bytes, 0)
    finally:
        file.close()
    if len(data) < size_bytes:
        raise ColdRange(path, len(data), size_bytes - len(data))
    return bytes(data)


class Room(Enum):
    """Whether a segment takes more: beyond what is configured it can, beyond what its index can say it cannot."""

    YES = auto()
    AT_NEED = auto()
    NO = auto()


class BatchAtTime(NamedTuple):
    """The first batch with a record at or after a time."""

    header: BatchHeader
    batch: bytes | bytearray


@dataclass(slots=True)
class Segment:
    """One segment. `file` and `live_index` are held while it is active or its seal is not durable yet."""

    path: Path
    base_offset: int
    cache: SealedCache
    config: LogConfig
    size_bytes: int = 0
    next_offset: int = 0
    file: DiskFile | None = None
    live_index: SparseIndex | None = None
    first_appended_wall_ms: int | None = None
    batch_count: int = 0
    """How many batches were counted at its end since it was made or opened."""
    aborted_from: int | None = None
    """The least first offset of the aborted transactions whose markers are in it, once it is sealed and that is known."""
    _taken_bytes: int = 0
    _is_roll_put_off: bool = False
    _max_timestamp_ms: int | None = None
    _first_timestamp_ms: int = field(default=NO_TIMESTAMP_MS)

    @classmethod
    def create(
        cls, folder: Path, cache: SealedCache, config: LogConfig, base_offset: int
    ) -> "Segment":
        """Create an empty active segment; its name is durable after `fsync_dir`."""
        path = folder / file_name(base_offset, LOG_SUFFIX)
        segment = cls(path, base_offset, cache, config, next_offset=base_offset)
        segment.file = cache.disk.open(path, create=True)
        segment.live_index = SparseIndex(config.index_interval_bytes)
        return segment

    @property
    def max_timestamp_ms(self) -> int:
        """The highest record timestamp, -1 without records; of a sealed one read from its index file."""
        return self.latest_ms(wait=True)

    def latest_ms(self, *, wait: bool) -> int:
        """Return `max_timestamp_ms`; raises ColdRange unless `wait`."""
        if self._max_timestamp_ms is None and not self._peek(wait=wait):
            self.index(wait=wait)
        return NO_TIMESTAMP_MS if self._max_timestamp_ms is None else self._max_timestamp_ms

    def sealed_as(self, *, wait: bool = True) -> SegmentSummary | None:
        """Return what the head of its index file says, without a look at the CRC; None where it says nothing. Raises ColdRange unless `wait`, or
        OSError."""
        try:
            file = self.cache.disk.open(self.index_path())
        except FileNotFoundError:
            return None
        try:
            data = file.pread(SUMMARY_BYTES, 0) if wait else file.pread_cached(SUMMARY_BYTES, 0)
            is_cold = len(data) < SUMMARY_BYTES <= file.size()
        finally:
            file.close()
        if is_cold and not wait:
            raise ColdRange(self.index_path(), len(data), SUMMARY_BYTES - len(data))
        return peek_summary(bytes(data))

    def _peek(self, *, wait: bool) -> bool:
        """Learn the times of a sealed segment from the head of its index file; return whether it says them. Raises ColdRange unless `wait`.

        A segment of a GiB has an index of 2 MB, and retention asks for the newest time of each log's oldest segment.
        """
        if self.live_index is not None:
            return False
        try:
            summary = self.sealed_as(wait=wait)
        except OSError:
            return False  # INV-X3: who reads the whole of it says why
        of = None if summary is None else (summary.size_bytes, summary.next_offset)
        if summary is None or of != (self.size_bytes, self.next_offset):
            return False
        self._max_timestamp_ms = summary.max_timestamp_ms
        self._first_timestamp_ms = summary.first_timestamp_ms
        return True

    def newest_ms(self) -> int:
        """Return the time that its records' age is counted from; without timestamps, that of the file's last change.

        As Kafka does it (LogSegment.largestTimestamp).
        """
        highest = self.max_timestamp_ms
        return self.cache.disk.changed_ms(self.path) if highest < 0 else highest

    @property
    def first_timestamp_ms(self) -> int:
        """The base timestamp of the first batch, -1 without records; known once `index` was read."""
        return self._first_timestamp_ms

    def room_for(self, size_bytes: int, last_offset: int, now_ms: int, config: LogConfig) -> "Room":
        """Return whether the active segment takes that much more, up to that offset; note when it got its first."""
        if self.size_bytes == 0:
            self.first_appended_wall_ms = now_ms
            return Room.YES
        if self.first_appended_wall_ms is None:  # appended to before this process started
            self.first_appended_wall_ms = min(self.first_timestamp_ms, now_ms)
        end_bytes = self.size_bytes + size_bytes
        if last_offset - self.base_offset > INT32_MAX or end_bytes > INT32_MAX:
            return Room.NO
        is_old = now_ms - self.first_appended_wall_ms >= config.segment_ms
        return Room.AT_NEED if is_old or end_bytes > config.segment_bytes else Room.YES

    def put_roll_off(self, error: OSError) -> None:
        """Say once that it grows beyond its size: the next one's file cannot be opened now."""
        if not self._is_roll_put_off:
            logger.warning(
                "%s grows beyond its size, the next cannot be opened: %s", self.path, error
            )
        self._is_roll_put_off = True

    def take_unsynced_bytes(self) -> int:
        """Return how many bytes were appended since the last call."""
        taken, self._taken_bytes = self.size_bytes - self._taken_bytes, self.size_bytes
        return max(taken, 0)

    def reader(self) -> DiskFile:
        """Return the open file; valid until another segment's is asked for."""
        if self.file is not None:
            return self.file
        return self.cache.files.get(self.path, lambda: self.cache.disk.open(self.path))

    def _bytes(self, size_bytes: int, position: int, *, wait: bool) -> bytes | bytearray:
        """Return that range, shorter only at the end of the file; raises ColdRange unless `wait`."""
        if wait:
            return self.reader().pread(size_bytes, position)
        data = self.reader().pread_cached(size_bytes, position)
        if len(data) < size_bytes:
            raise ColdRange(self.path, position + len(data), size_bytes - len(data))
        return data

    def index(self, *, wait: bool = True) -> SparseIndex:
        """Return the index, read from its file or built again."""
        if self.live_index is not None:
            return self.live_index
        return self.cache.indexes.get(self.path, lambda: self._load_index(wait=wait))

    def note_batch(self, header: BatchHeader) -> None:
        """Count a batch that was written at the end of the file."""
        assert self.live_index is not None
        assert header.base_offset >= self.next_offset, (header.base_offset, self.next_offset)
        highest = NO_TIMESTAMP_MS if self._max_timestamp_ms is None else self._max_timestamp_ms
        self.live_index.note_batch(header.base_offset - self.base_offset, self.size_bytes, highest)
        if self.size_bytes == 0:
            self._first_timestamp_ms = header.base_timestamp_ms
        highest = max(highest, header.max_timestamp_ms)
        self._max_timestamp_ms = highest
        self.size_bytes += header.size_bytes
        self.next_offset = header.next_offset
        self.batch_count += 1

    def summary(self) -> SegmentSummary:
        """Return what the index file says about the segment."""
        return SegmentSummary(
            self.size_bytes, self.next_offset, self.max_timestamp_ms, self._first_timestamp_ms
        )

    def walk(
        self, position: int, end: int | None = None, *, wait: bool = True
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield (position, header) of each batch from `position` (a batch start) up to `end`.

        Raises LogDamaged if there is no batch where one must be, or one whose offsets cannot be.
        """
        for at, header, _, _ in self._windows(position, end, wait=wait):
            yield at, header

    def walk_markers(
        self, position: int, end: int
    ) -> Iterator[tuple[BatchHeader, bytes | bytearray | None]]:
        """Yield (header, its bytes if it is a control batch) of each batch, as `walk_whole` does."""
        for at, header, window, start in self._windows(position, end, wait=True):
            self._check_end(at, header)
            if not header.is_control:
                yield header, None
                continue
            batch = window[start : start + header.size_bytes]
            if len(batch) < header.size_bytes:  # the window ends within it
                batch = self.reader().pread(header.size_bytes, at)
            yield header, batch

    def _windows(
        self, position: int, end: int | None, *, wait: bool
    ) -> Iterator[tuple[int, BatchHeader, bytes | bytearray, int]]:
        """Yield (position, header, window, where in it) of each batch."""
        stop = self.size_bytes if end is None else end
        least_offset = self.base_offset
        window: bytes | bytearray = b""
        window_start = position
        while position < stop:
            at = position - window_start
            if at + HEADER_BYTES > len(window):
                window = self._bytes(min(WALK_WINDOW_BYTES, stop - position), position, wait=wait)
                window_start, at = position, 0
            try:
                header = read_header(window, at)
            except BatchError as error:
                raise LogDamaged(f"{self.path}: no batch at byte {position}: {error}") from error
            if header.base_offset < least_offset:
                raise LogDamaged(
                    f"{self.path}: a batch of offset {header.base_offset} at byte {position}, behind {least_offset}"
                )
            least_offset = header.next_offset
            yield position, header, window, at
            position += header.size_bytes

    def walk_whole(
        self, position: int = 0, end: int | None = None
    ) -> Iterator[tuple[int, BatchHeader]]:
        """Yield as `walk` does, of a segment whose end is known: also raises LogDamaged for offsets beyond it."""
        for at, header in self.walk(position, end):
            self._check_end(at, header)
            yield at, header

    def _check_end(self, at: int, header: BatchHeader) -> None:
        if header.next_offset > self.next_offset:
            raise LogDamaged(
                f"{self.path}: the batch at byte {at} ends at offset {header.next_offset}, behind its segment's end "
                f"{self.next_offset}"
            )

    def position_of(self, offset: int, *, wait: bool = True) -> int:
        """Return where the batch starts that holds `offset` or is the first one behind it."""
        if offset >= self.next_offset:
            return self.size_bytes
        if offset <= self.base_offset:
            return 0  # and nothing is read: who counts over many segments would read in each
        start = self.index(wait=wait).position_before(offset - self.base_offset)
        for position, header in self.walk(start, wait=wait):
            if header.next_offset > offset:
                return position
        return self.size_bytes

    def read(
        self, position: int, max_bytes: int, limit_position: int, *, wait: bool = True
    ) -> ReadSlice | None:
        """Return whole batches from `position` to at most `limit_position`: `max_bytes`, but at least one.

        None if there is no whole batch in between.
        """
        if position >= limit_position:
            return None
        stop = min(position + max(max_bytes, HEADER_BYTES), limit_position)
        data = self._bytes(stop - position, position, wait=wait)
        if len(data) != stop - position:
            raise LogDamaged(
                f"{self.path}: {stop - position} bytes at {position} were written, {len(data)} are left"
            )
        return self._trim(data, position, limit_position, wait=wait)

    def _trim(
        self, data: bytes | bytearray, position: int, limit_position: int, *, wait: bool
    ) -> ReadSlice | None:
        # The last entered batch start is about one index interval before the end: few headers to walk.
        index = self.index(wait=wait)
        start = position + len(data)
        while start > position:
            start = max(index.batch_start_before(start - 1), position)
            found = self._walk_whole(data, start - position, position)
            if found is not None:
                at, next_offset = found
                if isinstance(data, bytearray) and at >= len(data) // 4 * 3:
                    del data[at:]  # in place: that frees nothing (INV-SG5), and copies nothing
                elif at < len(data):
                    data = data[:at]
                return ReadSlice(data, next_offset, position + at)
        return self._first_batch(position, limit_position, wait=wait)

    def _walk_whole(self, data: Buffer, at: int, position: int) -> tuple[int, int] | None:
        next_offset = -1
        try:
            while len(data) - at >= HEADER_BYTES:
                header = read_header(data, at)
                if at + header.size_bytes > len(data):
                    break
                at += header.size_bytes
                next_offset = header.next_offset
        except BatchError as error:
            raise LogDamaged(f"{self.path}: no batch at byte {position + at}: {error}") from error
        return None if next_offset < 0 else (at, next_offset)

    def _first_batch(self, position: int, limit_position: int, *, wait: bool) -> ReadSlice | None:
        _, header = next(self.walk(position, wait=wait))
        if position + header.size_bytes > limit_position:
            return None
        whole = self._bytes(header.size_bytes, position, wait=wait)
        if len(whole) != header.size_bytes:
            raise LogDamaged(f"{self.path}: the batch at byte {position} is cut off")
        return ReadSlice(whole, header.next_offset, position + header.size_bytes)

    def first_reaching(
        self, timestamp_ms: int, start: int, *, wait: bool = True
    ) -> BatchAtTime | int | None:
        """Return the first batch behind `start` with a record at or after the time; after LOOKUP_BATCHES_MAX others, below which offset none is."""
        first = self.index(wait=wait).position_for_time(timestamp_ms)
        if start > self.base_offset:
            first = max(first, self.position_of(start, wait=wait))
        for count, (position, header) in enumerate(self.walk(first, wait=wait), 1):
            if header.max_timestamp_ms >= timestamp_ms:
                return BatchAtTime(header, self._bytes(header.size_bytes, position, wait=wait))
            if count == LOOKUP_BATCHES_MAX:
                return header.next_offset
        return None

    def cut(self, position: int, next_offset: int) -> None:
        """Forget what lies at or behind `position`; the caller cuts the file. Makes the index live."""
        index = self.index()
        index.truncate(position)
        highest, start = index.last_entry()
        self._max_timestamp_ms = highest if position else None
        for _, header in self.walk(start, position):
            if header.max_timestamp_ms > (self._max_timestamp_ms or NO_TIMESTAMP_MS):
                self._max_timestamp_ms = header.max_timestamp_ms
        self.size_bytes = position
        self.next_offset = next_offset
        self.aborted_from = None
        self.live_index = index

    def adopt(self, index: SparseIndex, summary: SegmentSummary) -> None:
        """Take over an index and what its file says; the index is live while the segment is active."""
        self.live_index = index
        self.size_bytes = summary.size_bytes
        self.next_offset = summary.next_offset
        self._max_timestamp_ms = summary.max_timestamp_ms
        self._first_timestamp_ms = summary.first_timestamp_ms

    def index_path(self) -> Path:
        """Return the path of the index file."""
        return self.path.with_suffix(INDEX_SUFFIX)

    def read_index_file(self, *, wait: bool = True) -> tuple[SparseIndex, SegmentSummary] | None:
        """Return the index file's content; None, said loudly, if it is missing, damaged, or cannot be read. Unless `wait` raises ColdRange, and
        OSError where no file can be opened now."""
        try:
            data = read_log_index(self.cache.disk, self.index_path(), wait=wait)
            return decode_index(data, self.config.index_interval_bytes)
        except (OSError, FrameError) as error:  # INV-X3: whatever is wrong with the file
            if not wait:
                check_descriptors(error)
            logger.warning("%s: index is built again: %s", self.index_path(), error)
            return None

    def rebuild_index(self) -> SparseIndex:
        """Build index and timestamps again from the segment's bytes; raises LogDamaged unless they go to its end."""
        fresh = Segment(self.path, self.base_offset, self.cache, self.config)
        index = fresh.live_index = SparseIndex(self.config.index_interval_bytes)
        for _, header in self.walk_whole():
            fresh.note_batch(header)
        if fresh.next_offset != self.next_offset:
            raise LogDamaged(
                f"{self.path} ends at offset {fresh.next_offset}, but {self.next_offset} was written behind it: "
                "restore the file from a mirror region"
            )
        self._max_timestamp_ms = fresh.max_timestamp_ms
        self._first_timestamp_ms = fresh._first_timestamp_ms
        return index

    def _load_index(self, *, wait: bool) -> SparseIndex:
        aside = None if wait else self.cache.indexes_aside.held(self.path)
        found = self.read_index_file(wait=wait) if aside is None else self._built(aside)
        if found is None and wait:
            return self.rebuild_index()
        if found is None:
            found = self._built(self.cache.indexes_aside.get(self.path, self._building))
        index, summary = found
        if summary.size_bytes != self.size_bytes:
            raise LogDamaged(
                f"{self.path} has {self.size_bytes} bytes but was sealed with {summary.size_bytes}: "
                "restore the file from a mirror region"
            )
        self._max_timestamp_ms = summary.max_timestamp_ms
        self._first_timestamp_ms = summary.first_timestamp_ms
        return index

    def _building(self) -> BuiltAside[_Rebuilt]:
        """Return what builds the index again in a thread, by a file of its own."""
        own = own_segment(self, self.cache)

        def build() -> _Rebuilt:
            own.file = own.cache.disk.open(own.path)
            try:
                return _Rebuilt(own.rebuild_index(), own.summary())
            finally:
                own.file.close()

        return BuiltAside(build)

    def _built(self, aside: BuiltAside[_Rebuilt]) -> _Rebuilt:
        """Return what was built again, or raise what was in the way; AsideRange until then."""
        aside.check_done(self.path, self.size_bytes)
        if aside.error is not None:
            if not isinstance(
                aside.error, LogDamaged
            ):  # which stays so until the segment is mended: another one then
                self.cache.indexes_aside.forget(self.path)
            raise aside.error
        assert aside.value is not None
        return aside.value


def knows_times(segment: Segment) -> bool:
    """Return whether the newest time of a segment is in memory."""
    return segment._max_timestamp_ms is not None


def learn_times(segment: Segment, own: Segment) -> None:
    """Take over the times of a sealed segment that its `own_segment` has looked up in a thread; nobody has cut it since."""
    segment._max_timestamp_ms, segment._first_timestamp_ms = own._max_timestamp_ms, own._first_timestamp_ms  # fmt: skip


def own_segment(sealed: Segment, cache: SealedCache) -> Segment:
    """Return a sealed segment for use in a thread: with files and indexes of its own."""
    return Segment(
        sealed.path, sealed.base_offset, cache, sealed.config,
        size_bytes=sealed.size_bytes, next_offset=sealed.next_offset, aborted_from=sealed.aborted_from,
    )  # fmt: skip


def check_descriptors(error: Exception) -> None:
    """Raise an error again that says nothing of a file: no file can be opened now."""
    if isinstance(error, OSError) and error.errno in NO_DESCRIPTORS:
        raise error


def remove_segment_files(folder: Path, cache: SealedCache, base_offsets: Iterable[int]) -> None:
    """Remove all files of these segments, one after the other in this order; durable after `fsync_dir`.

    The folder is listed once: of ten thousand segments, a list for each took seconds.
    """
    names: defaultdict[str, list[str]] = defaultdict(list)
    for name in cache.disk.list_dir(folder):
        names[name.partition(".")[0]].append(name)
    for base_offset in base_offsets:
        path = folder / file_name(base_offset, LOG_SUFFIX)
        cache.forget(path)
        for name in names.pop(path.stem, ()):
            cache.disk.remove(folder / name)


@dataclass(slots=True)
class DeletionBudget:
    """How much one step of the event loop may delete: a small segment takes 1 of `left`, one of a GiB some 64, as the file system does; and each
    log 20 more, for its syncs (INV-SG6)."""

    left: int = DELETED_AT_ONCE

    def granted(self, segments: Sequence[Segment]) -> int:
        """Take for the oldest segments of a log; return for how many it is enough. One is let in while anything is left."""
        count = 0
        for segment in segments:
            if self.left <= 0:
                break
            self.left -= 1 + segment.size_bytes // _BYTES_OF_ONE
            count += 1
        if count:
            self.left -= _LOG_IN_SEGMENTS
        return count


def expired_count(
    segments: Sequence[Segment],
    config: LogConfig,
    *,
    now_ms: int,
    hold_offset: int,
    count_max: int | None = None,
) -> int:
    """Return how many of the oldest segments retention deletes, at most `count_max`: by time, then by size.

    Never the last segment, never one that holds `hold_offset` or anything behind it.
    """
    deletable = 0
    for segment in segments[:-1][:count_max]:
        if segment.next_offset > hold_offset:
            break
        deletable += 1
    count = 0
    if config.retention_ms >= 0:
        while count < deletable and segments[count].newest_ms() + config.retention_ms < now_ms:
            count += 1
    if config.retention_bytes >= 0:
        excess = sum(segment.size_bytes for segment in segments[count:]) - config.retention_bytes
        while count < deletable and excess >= segments[count].size_bytes:
            excess -= segments[count].size_bytes
            count += 1
    return count
