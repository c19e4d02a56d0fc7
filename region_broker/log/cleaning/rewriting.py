"""One cleaning of one log: read what is new, then write each group of segments anew without what it supersedes.

INV-CLW1  a record goes only if a later record of its key lies below the bound, is not aborted, and stays; a
         tombstone also when its delete horizon has passed, aborted data at once, records without a key at once
INV-CLW2  the last data batch and the last marker of each producer that the partition knows stay, of those below what
         is cleaned, the batch without records if need be: sequences, epochs and decisions are those of the replay (T6),
         also for a mirror that copies what was cleaned and takes over below what came later
INV-CLW3  the first batch of each leader epoch that is there stays, without records if need be: a node that copies what was cleaned, or makes
          its table of leader epochs anew, knows where each one starts, and so where its history parts from another's (INV-RPH1)
          1. X writes 100 to 150 in epoch 3, which nobody gets, and is away. 2. A writes from 100 on in epoch 5; what is superseded goes, and the
          first batch left of epoch 5 is at 160. 3. Y copies A's log anew, leads, and tells X that epoch 3 ends at 160. 4. X keeps its 50 records.
INV-CLW4  batches behind what the map covers, and damaged ones, are never rewritten: the latter end the run
INV-CLW5  a batch whose CRC is right and whose records nobody can read is a producer's doing: it stays as it is and
         supersedes nothing, and all tombstones behind it stay, since it may hold what they delete
INV-CLW7  no tombstone and no marker goes at or above `drops_below`, though its horizon has passed; what each new segment lacks of them is told
INV-CLW6  a delete horizon is a time of 64 bits, whatever the topic says: the last there is stands for one beyond it; a
         marker that can be given none stays as it is
The last batch of each new segment stays, without records if need be: a segment ends where it ended, so no offset is
given out twice.

Runs in a thread, on files that do not change; a generator, so that its driver may slow it down and take part.
Source: Kafka LogCleaner.scala `doClean`, `cleanSegments`, `shouldRetainRecord`, `checkBatchRetention`.
Not here: names and the durable step (`state`), when and how far (`planning`), the driver (`partitions.cleaner`).
"""

import logging
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from idempotency.identity import NO_LEADER_EPOCH
from idempotency.partition_state import AbortedTxn
from idempotency.record_batch import (
    BatchError,
    BatchHeader,
    crc_ok,
    iter_headers,
    read_header,
    read_marker,
)
from region_broker.log.cleaning.batch_filter import (
    delete_horizon_ms,
    emptied,
    filtered,
    open_body,
    walk,
    with_delete_horizon,
)
from region_broker.log.cleaning.key_map import KeyMap
from region_broker.log.cleaning.state import Swap, cleaned_path
from region_broker.log.cleaning.transactions import CleanedTransactions
from region_broker.log.failures import LogDamaged
from region_broker.log.file_names import ABORTED_SUFFIX, INDEX_SUFFIX
from region_broker.log.indexes.aborted_index import AbortedIndex, decode_aborted, encode_aborted
from region_broker.log.indexes.checked_file import FrameError
from region_broker.log.indexes.sparse_index import SegmentSummary, SparseIndex
from region_broker.log.log_config import LogConfig
from region_broker.log.replay import aborted_by_replay
from region_broker.log.segment import SealedCache, Segment
from region_broker.ports.disk import DiskFile
from region_broker.records.batches import INT64_MAX, RecordsError

logger: Final = logging.getLogger(__name__)

WINDOW_BYTES: Final = 64 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class CleaningTask:
    """What is to be cleaned, fixed on the event loop. Offsets; times in ms.

    `segments` are all sealed ones that may be cleaned, `sealed` are those and all behind: a transaction that began below may have its marker
    there. `aborted` are those that no sealed segment names yet, `aborted_bound` is above all markers that count. `producers` are the ids that
    the partition knows. `drops_below`: tombstones and markers stay from there on.
    """

    folder: Path
    config: LogConfig
    segments: Sequence[Segment]
    sealed: Sequence[Segment]
    first_dirty_offset: int
    aborted: Sequence[AbortedTxn]
    aborted_bound: int
    producers: Set[int]
    now_ms: int
    keys_max: int
    drops_below: int = INT64_MAX


@dataclass(frozen=True, slots=True)
class Read:
    """So many bytes were read since the last step."""

    size_bytes: int


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A group is written and synced: `fresh` is to take the place of `old`. `dropped_below`: tombstones or markers that were in `old` and are
    not in `fresh` lie below it; 0: none."""

    old: tuple[Segment, ...]
    fresh: Segment
    summary: SegmentSummary
    swap: Swap
    dropped_below: int


@dataclass(frozen=True, slots=True)
class _Names:
    """What names each producer: the last offset of its newest data batch, the offset of its newest marker."""

    data: dict[int, int] = field(default_factory=dict)
    markers: dict[int, int] = field(default_factory=dict)


class Cleaning:
    """One run: `read_aborted` first, then `fill_map`, then `rewrite` group by group."""

    def __init__(self, task: CleaningTask, cache: SealedCache) -> None:
        """Use `cache` for files of this run only."""
        self._task = task
        self._disk = cache.disk
        self._cache = cache
        self._map = KeyMap(task.keys_max)
        self._names = _Names()
        self._aborted: Sequence[AbortedTxn] = ()
        self._leader_epoch = NO_LEADER_EPOCH
        """Of the batch that was copied last; groups are rewritten from the log's front on, one after the other."""
        self._dropped_below = 0
        """Of the group that is written now."""
        self.removed_bytes = 0
        self.unread: list[int] = []
        """Base offsets of the batches whose records could not be read."""

    @property
    def clean_to(self) -> int:
        """Below it every key has one value when the run is done."""
        return self._map.end_offset

    # -- what was aborted ------------------------------------------------------------------------

    def read_aborted(self) -> Iterator[Read]:
        """Look up the aborted transactions that touch what is cleaned: a tenant may have a million, in as many segments as a log may have."""
        task = self._task
        start, end = task.segments[0].base_offset, task.segments[-1].next_offset
        found = set(task.aborted)
        for segment in task.sealed:
            if segment.aborted_from is not None and segment.aborted_from >= end:
                continue  # nothing of it began before `end`: its file is not read
            size_bytes, index = self._aborted_of(segment)
            found.update(index.overlapping(start, end, task.aborted_bound))
            yield Read(size_bytes)
        self._aborted = sorted(found, key=lambda txn: txn.first_offset)

    def _aborted_of(self, segment: Segment) -> tuple[int, AbortedIndex]:
        task, path = self._task, segment.path.with_suffix(ABORTED_SUFFIX)
        try:
            data = self._disk.read_file(path)
            return len(data), decode_aborted(data)
        except (OSError, FrameError) as error:  # INV-A2
            # Not written: the log may have been cut meanwhile, and another file have that name.
            logger.warning("%s: %s", path, error)
            entries = aborted_by_replay(task.folder, task.sealed, segment)
            return segment.size_bytes, AbortedIndex.of(entries)

    # -- what supersedes -------------------------------------------------------------------------

    def fill_map(self) -> Iterator[Read]:
        """Note the newest offset of each key from the first dirty offset on, as far as the memory goes."""
        task = self._task
        txns = self.transactions()
        for segment in task.segments:
            names = _Names()
            end_offset = max(segment.base_offset, task.first_dirty_offset)
            for read_bytes, batches in self._windows(segment):
                for header, batch in batches:
                    dirty = header.next_offset > task.first_dirty_offset
                    if dirty and self._map.full:
                        # Whole segments if any: then the state at the end is there as a snapshot.
                        if segment.base_offset <= task.first_dirty_offset:
                            self._keep(names, end_offset)
                        return
                    aborted = self._walk_over(header, batch, txns, names)
                    if dirty and not aborted and not header.is_control:
                        self._note_keys(header, batch)
                    end_offset = max(end_offset, header.next_offset)
                yield Read(read_bytes)
            self._keep(names, segment.next_offset)

    def _keep(self, names: "_Names", end_offset: int) -> None:
        self._map.keep(end_offset)
        self._names.data.update(names.data)
        self._names.markers.update(names.markers)

    def _walk_over(
        self, header: BatchHeader, batch: bytes, txns: CleanedTransactions, names: "_Names"
    ) -> bool:
        """Return whether it is data of an aborted transaction."""
        known = (
            header.producer_id in self._task.producers
        )  # else expired: nobody goes on with that sequence
        if header.is_control:
            if known:
                names.markers[header.producer_id] = header.base_offset
            txns.marker(header, read_marker(batch))
            return False
        if known:
            names.data[header.producer_id] = header.last_offset
        return txns.data(header)

    def _note_keys(self, header: BatchHeader, batch: bytes) -> None:
        try:
            records = list(walk(open_body(batch, header), header))
        except RecordsError:
            return  # INV-CLW5; said by `rewrite`
        for record in records:
            if record.key is not None:
                self._map.put(record.key, header.base_offset + record.offset_delta)

    # -- what stays ------------------------------------------------------------------------------

    def rewrite(
        self, old: Sequence[Segment], txns: CleanedTransactions
    ) -> Iterator[Read | Rewritten]:
        """Write one group anew; the last thing yielded is what came of it, unless nothing changed."""
        first, last = old[0], old[-1]
        self._dropped_below = 0
        path = cleaned_path(first.path)
        file = self._disk.open(path, create=True)
        try:
            file.truncate(0)
            fresh = Segment(path, first.base_offset, self._cache, self._task.config)
            fresh.next_offset = first.base_offset
            fresh.file, fresh.live_index = file, SparseIndex(self._task.config.index_interval_bytes)
            for segment in old:
                for read_bytes, batches in self._windows(segment):
                    self._copy(fresh, batches, txns, last.next_offset)
                    yield Read(read_bytes)
            file.fdatasync()
        finally:
            file.close()
        assert fresh.next_offset == last.next_offset, (fresh.next_offset, last.next_offset)
        index, summary = fresh.live_index, fresh.summary()
        self._write(first.path, INDEX_SUFFIX, index.encode(summary))
        self._write(first.path, ABORTED_SUFFIX, encode_aborted(txns.take_index()))
        self._disk.fsync_dir(self._task.folder)
        self.removed_bytes += sum(segment.size_bytes for segment in old) - fresh.size_bytes
        swap = Swap(tuple(segment.base_offset for segment in old))
        yield Rewritten(tuple(old), fresh, summary, swap, self._dropped_below)

    def _write(self, path: Path, suffix: str, data: bytes) -> None:
        self._disk.write_file_atomic(cleaned_path(path.with_suffix(suffix)), data)

    def transactions(self) -> CleanedTransactions:
        """Return what a walk over all groups needs to know; not on the event loop, of many it takes long."""
        return CleanedTransactions(self._aborted)

    def _copy(
        self,
        fresh: Segment,
        batches: Sequence[tuple[BatchHeader, bytes]],
        txns: CleanedTransactions,
        group_end: int,
    ) -> None:
        parts: list[bytes] = []
        position = fresh.size_bytes
        for header, batch in batches:
            begins_epoch = header.leader_epoch > self._leader_epoch
            self._leader_epoch = header.leader_epoch
            kept = self._kept(header, batch, txns)
            stays = begins_epoch or header.next_offset == group_end
            if kept is None and (stays or self._names_a_producer(header)):
                # A marker stays whole: it is what a reader's, and our own, replay goes by.
                kept = batch if header.is_control else emptied(header)
            if kept is None and header.is_control:
                self._dropped_below = max(self._dropped_below, header.next_offset)
            if kept is not None:
                parts.append(kept)
                fresh.note_batch(header if kept is batch else read_header(kept))
        if parts:
            assert fresh.file is not None
            fresh.file.pwrite(position, *parts)

    def _kept(self, header: BatchHeader, batch: bytes, txns: CleanedTransactions) -> bytes | None:
        if header.is_control:
            return self._kept_marker(header, batch, txns)
        aborted = txns.data(header)
        if header.next_offset > self._map.end_offset:
            return batch
        if aborted:
            return None
        spent = self._is_spent(header) and not self.unread
        newest = self._map.newest

        def keeps(offset: int, key: bytes | None, has_value: bool) -> bool:
            if key is None or offset < newest(key):
                return False
            if has_value or not spent:
                return True
            self._dropped_below = max(self._dropped_below, offset + 1)
            return False

        try:
            return filtered(batch, header, keeps, self._new_horizon_ms())
        except RecordsError:
            self.unread.append(header.base_offset)
            return batch

    def _kept_marker(
        self, header: BatchHeader, batch: bytes, txns: CleanedTransactions
    ) -> bytes | None:
        alone = txns.marker(header, read_marker(batch))
        if not alone or header.next_offset > self._map.end_offset:
            return batch
        if delete_horizon_ms(header) is None:
            try:
                return with_delete_horizon(batch, header, self._new_horizon_ms())
            except RecordsError:
                return batch
        return None if self._is_spent(header) else batch

    def _is_spent(self, header: BatchHeader) -> bool:
        """Return whether the time of a batch's tombstones, or of a marker, is over, and they may go (INV-CLW7)."""
        horizon_ms = delete_horizon_ms(header)
        is_over = horizon_ms is not None and horizon_ms <= self._task.now_ms
        return is_over and header.next_offset <= self._task.drops_below

    def _new_horizon_ms(self) -> int:
        """Return from when on what is cleaned now may go (INV-CLW6)."""
        return min(self._task.now_ms + self._task.config.cleaning.tombstones_ms, INT64_MAX)

    def _names_a_producer(self, header: BatchHeader) -> bool:
        if header.is_control:
            return self._names.markers.get(header.producer_id) == header.base_offset
        return self._names.data.get(header.producer_id) == header.last_offset

    # -- reading ---------------------------------------------------------------------------------

    def _windows(self, segment: Segment) -> Iterator[tuple[int, list[tuple[BatchHeader, bytes]]]]:
        """Yield (bytes, whole sound batches) of a segment; raises LogDamaged."""
        file = self._disk.open(segment.path)
        try:
            position, lowest = 0, segment.base_offset
            while position < segment.size_bytes:
                data = self._window(file, segment, position)
                batches: list[tuple[BatchHeader, bytes]] = []
                end = 0
                for at, header in iter_headers(data):
                    end = at + header.size_bytes
                    in_place = (
                        lowest <= header.base_offset <= header.last_offset < segment.next_offset
                    )
                    if not in_place or not crc_ok(data, at, header):
                        raise LogDamaged(
                            f"{segment.path}: the batch at byte {position + at} is wrong"
                        )
                    lowest = header.next_offset
                    batches.append((header, data[at:end]))
                if not batches:
                    raise LogDamaged(f"{segment.path}: no whole batch at byte {position}")
                position += end
                yield end, batches
        except (BatchError, RecordsError) as error:
            raise LogDamaged(f"{segment.path}: {error}") from error
        finally:
            file.close()

    def _window(self, file: DiskFile, segment: Segment, position: int) -> bytes:
        left_bytes = segment.size_bytes - position
        data = file.pread(min(WINDOW_BYTES, left_bytes), position)
        size_bytes = read_header(data).size_bytes
        if size_bytes > len(data):
            data = file.pread(min(size_bytes, left_bytes), position)
        return data
