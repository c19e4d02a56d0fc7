"""A sealed segment written anew beside the old one: what was fetched in the damaged ranges, all else as it is.

INV-SCB5  what is to take the segment's place was looked at as a whole after it was synced: it is sound, or damaged where
         the old one is and nothing was fetched
INV-SCB6  where a mend ended early its files are gone, at the latest at the next start: they are called `.cleaned`
The offset index of a segment that is sound now, and the aborted index if it was not, are written with it.

Runs in a thread. Not here: the durable step (`cleaning.state`), what may be fetched (`damage`).
"""

from collections.abc import Generator, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from region_broker.log.cleaning.state import SEGMENT_SUFFIXES, Swap, cleaned_path
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.log.indexes.aborted_index import encode_aborted
from region_broker.log.replay import aborted_with_marker_in, rebuild_state, replay
from region_broker.log.scrubbing.damage import DamagedRange
from region_broker.log.scrubbing.examining import Examination, Subject, read_and_drop
from region_broker.log.segment import SealedCache, Segment
from region_broker.ports.disk import Buffer, Disk

COPY_BYTES: Final = 256 * 1024


class Replacement:
    """Use `put` for each piece that was fetched, then `write`; `close` in any case."""

    def __init__(self, subject: Subject, cache: SealedCache) -> None:
        """Make the file, empty; `cache` is for this mend only. Raises OSError."""
        self.swap = Swap((subject.base_offset,))
        self._subject = subject
        self._cache = cache
        self._disk: Disk = cache.disk
        self._path = cleaned_path(subject.segment_path)
        self._file = self._disk.open(self._path, create=True)
        self._file.truncate(0)

    def put(self, position: int, data: Buffer) -> None:
        """Write a piece that was fetched and judged."""
        self._file.pwrite(position, data)

    def write(
        self,
        mended: Sequence[DamagedRange],
        left: Sequence[DamagedRange],
        before: Sequence[Segment],
    ) -> Generator[int, None, None]:
        """Copy what was not fetched, sync, look at all of it, and write the files beside it.

        `before` are the log's segments up to the damaged one, for use in this thread. Yields how many bytes were read
        since the last step; raises LogDamaged if it is not what it must be, or OSError.
        """
        yield from self._copy(mended)
        self._file.truncate(self._subject.size_bytes)
        self._file.fdatasync()
        looked = Examination(replace(self._subject, path=self._path), self._disk)
        yield from looked.steps()
        if [each.position for each in looked.damages] != [each.position for each in left]:
            raise LogDamaged(f"{self._path} is damaged elsewhere than it was: {looked.damages}")
        if not left:
            own = self._own(before[-1])
            self._write(INDEX_SUFFIX, index_file(own))
            if ABORTED_SUFFIX in looked.side_faults:
                data = aborted_file(self._subject, [*before[:-1], own])
                if data is not None:
                    self._write(ABORTED_SUFFIX, data)
        self._file.drop_cached(0, self._subject.size_bytes)
        self._disk.fsync_dir(self._path.parent)

    def _copy(self, mended: Sequence[DamagedRange]) -> Iterator[int]:
        """Copy the bytes between the ranges that were fetched."""
        starts = [0, *(each.end_position for each in mended)]
        ends = [*(each.position for each in mended), self._subject.size_bytes]
        if all(start == end for start, end in zip(starts, ends, strict=True)):
            return
        old = self._disk.open(self._subject.path)
        try:
            for start, end in zip(starts, ends, strict=True):
                position = start
                while position < end:
                    data = read_and_drop(old, position, min(COPY_BYTES, end - position))
                    if not data:
                        break  # the old file ends early: what is looked at afterwards says so
                    self._file.pwrite(position, data)
                    position += len(data)
                    yield len(data)
        finally:
            old.close()

    def _own(self, segment: Segment) -> Segment:
        return Segment(
            self._path, segment.base_offset, self._cache, segment.config,
            size_bytes=segment.size_bytes, next_offset=segment.next_offset,
        )  # fmt: skip

    def _write(self, suffix: str, data: bytes) -> None:
        self._disk.write_file_atomic(cleaned_path(self._subject.beside(suffix)), data)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def discard(self) -> None:
        """Close the file, and remove what did not take the segment's place (INV-SCB6). Raises OSError."""
        self._file.close()
        for suffix in SEGMENT_SUFFIXES:
            path: Path = cleaned_path(self._subject.beside(suffix))
            if self._disk.exists(path):
                self._disk.remove(path)


def index_file(segment: Segment) -> bytes:
    """Return the content of a sound segment's offset index; raises LogDamaged, OSError."""
    index = segment.rebuild_index()
    return index.encode(segment.summary())


def aborted_file(subject: Subject, upto: Sequence[Segment]) -> bytes | None:
    """Return the content of a segment's aborted index, by replay of `upto`, of which it is the last.

    None where a cleaning may have taken away what the replay needs. Raises LogDamaged, OSError.
    """
    start, end = subject.base_offset, subject.next_offset
    if start < subject.holes_below:
        return None
    segments = list(upto)
    state = rebuild_state(subject.segment_path.parent, segments, start)
    replay(segments, state, start, end)
    return encode_aborted(aborted_with_marker_in(state, start, end))
