"""Appending to one log, into the page cache; a full segment is followed by a fresh one.

What was written is applied in the same call: the end, the state, the epochs and the index of the open segment know of
it, and whoever makes it durable was told. A segment is full by size, by age, by its aborted transactions, or by what its index
can say; where no file can be opened for a fresh one, it goes on as long as its format allows. Nodes and regions with the same
log need not have the same segments.

INV-APP1  where PENDING_SEALS_MAX full segments wait for the sync that seals them, the open one grows beyond its size, too: each keeps a file
          open, and a topic of small segments filled quicker than the disk syncs would take all descriptors of the node
INV-APP2  it does so, too, while it is smaller than BYTES_FOR_PRODUCER for each producer that the log knows, until it is OLD_MS old, and where the log has
          SEGMENTS_MAX of them: the state is packed, and written, in each step that begins a segment, and a topic says how small those are
INV-APP3  a segment that has SEGMENT_ABORTED_MAX markers of aborts is full: until it is sealed they are in memory, and they become its index in
          one step. An abort takes 190 bytes of log, so one of 1 GiB would have millions

Not here: judging a client's batch (`partitions`), making durable (`durability`).
"""

from collections.abc import Sequence
from typing import Final

from idempotency.identity import LeaderEpoch
from idempotency.record_batch import FRONT_BYTES, BatchHeader, Buffer, MarkerFacts, stamped_front
from region_broker.limits import SEGMENT_ABORTED_MAX
from region_broker.log.cold_reads import WARM_TRIES_MAX
from region_broker.log.failures import PartitionFailed
from region_broker.log.indexes.aborted_index import NOWHERE, encode_aborted
from region_broker.log.journal.sync_job import Seal
from region_broker.log.log_config import FlushPolicy
from region_broker.log.parts.content import LogContent
from region_broker.log.parts.durability import PENDING_SEALS_MAX, LogDurability
from region_broker.log.replay import aborted_with_marker_in
from region_broker.log.segment import Room, Segment
from region_broker.log.segment_list import FIRST_LOOKS_MAX
from region_broker.ports.disk import NO_DESCRIPTORS

BYTES_FOR_PRODUCER: Final = 256
"""About what the state of one takes in a snapshot."""
OLD_MS: Final = 600_000
SEGMENTS_MAX: Final = 10_000
"""Segments of one log: each is four files, and a kilobyte of memory."""
assert SEGMENTS_MAX < FIRST_LOOKS_MAX * WARM_TRIES_MAX, (
    "a first look at all of them waits for none (INV-SGL1)"
)


class LogAppender:
    """Writes whole batches at the end of a log. Belongs to the event loop."""

    __slots__ = ("_content", "_durability", "_tail")

    def __init__(self, content: LogContent, durability: LogDurability) -> None:
        """Append to `content`."""
        self._content = content
        self._durability = durability
        self._tail = durability.tail

    def append(
        self,
        batch: Buffer,
        header: BatchHeader,
        leader_epoch: LeaderEpoch,
        marker: MarkerFacts | None = None,
    ) -> BatchHeader:
        """Stamp base offset and leader epoch and write one batch that was judged fresh; return its header.

        Raises PartitionFailed; then the log has stopped.
        """
        stamped = header.stamped(base_offset=self._content.end_offset, leader_epoch=leader_epoch)
        front, rest = stamped_front(stamped), memoryview(batch)[FRONT_BYTES:]
        self._write(header.size_bytes, stamped.last_offset, front, rest)
        self._applied(stamped, marker)
        self._appended()
        return stamped

    def append_verbatim(
        self,
        data: Buffer,
        batches: list[tuple[BatchHeader, MarkerFacts | None]],
        known_starts: Sequence[tuple[LeaderEpoch, int]] = (),
    ) -> None:
        """Write checked whole batches that continue the log, offsets and epochs as they are (mirror).

        `known_starts`: of leader epochs, for where offsets are missing (INV-E4).
        Raises PartitionFailed; then the log has stopped.
        """
        assert batches
        first, last = batches[0][0], batches[-1][0]
        end_offset = self._content.end_offset
        assert end_offset <= first.base_offset, (first.base_offset, end_offset)
        self._write(len(data), last.last_offset, data)
        epochs = self._content.epochs
        for header, marker in batches:
            if known_starts and header.leader_epoch > epochs.latest:
                epochs.note_missing(
                    known_starts, self._content.end_offset, header.leader_epoch, header.base_offset
                )
            self._applied(header, marker)
        self._appended()

    def _write(self, size_bytes: int, last_offset: int, *buffers: Buffer) -> None:
        content = self._content
        content.check_running()
        if content.unsettled is not None:
            self._durability.sync_now()  # INV-CTJ2
        try:
            active = self._room_for(size_bytes, last_offset)
            assert active.file is not None
            active.file.pwrite(active.size_bytes, *buffers)
        except OSError as error:
            content.fail(f"writing to {content.folder} failed: {error}")
            raise PartitionFailed(content.failed) from error
        self._tail.add(active.base_offset, active.size_bytes, buffers)

    def _applied(self, header: BatchHeader, marker: MarkerFacts | None) -> None:
        content = self._content
        assert content.active is not None
        assert header.base_offset >= content.end_offset, (header.base_offset, content.end_offset)
        if header.leader_epoch > content.epochs.latest:
            content.epochs.note(header.leader_epoch, header.base_offset)
        content.active.note_batch(header)
        content.state.apply(header, marker)
        content.end_offset = header.next_offset

    def _appended(self) -> None:
        content = self._content
        content.listener.on_dirty(self._durability)
        if content.policy is not FlushPolicy.COMMIT:
            content.listener.on_stable()

    def _room_for(self, size_bytes: int, last_offset: int) -> Segment:
        content = self._content
        active = content.active
        assert active is not None
        now_ms = content.wall_ms()
        room = active.room_for(size_bytes, last_offset, now_ms, content.config)
        has_many_aborts = content.state.visibility.has_aborted_from(
            active.base_offset, SEGMENT_ABORTED_MAX
        )
        if room is Room.YES and not has_many_aborts:
            return active
        if room is not Room.NO and not self._may_roll(active, now_ms, has_many_aborts):
            return active
        try:
            fresh = self._roll(active)
        except OSError as error:
            if room is Room.NO or error.errno not in NO_DESCRIPTORS:
                raise
            active.put_roll_off(error)
            return active
        fresh.first_appended_wall_ms = now_ms
        return fresh

    def _may_roll(self, active: Segment, now_ms: int, has_many_aborts: bool) -> bool:
        """Return whether a segment that is full by size, age or aborts may be followed by another one now (INV-APP1, INV-APP2, INV-APP3)."""
        content = self._content
        if self._durability.pending_seals >= PENDING_SEALS_MAX:
            return False
        if has_many_aborts:  # 4 MB of log at least: so many are few segments
            return True
        if len(content.segments.segments) >= SEGMENTS_MAX:
            return False
        producers = len(content.state.producer_table)
        began_ms = active.first_appended_wall_ms
        is_old = began_ms is not None and now_ms - began_ms >= OLD_MS
        return is_old or active.size_bytes >= producers * BYTES_FOR_PRODUCER

    def _roll(self, full: Segment) -> Segment:
        content = self._content
        assert full.live_index is not None
        start, end = full.base_offset, full.next_offset
        fresh = Segment.create(content.folder, content.cache, content.config, end)
        aborted = aborted_with_marker_in(content.state, start, end)
        full.aborted_from = min((each.first_offset for each in aborted), default=NOWHERE)
        self._durability.rolled(
            Seal(
                segment=full,
                index=full.live_index.encode(full.summary()),
                aborted=encode_aborted(aborted),
                snapshot=content.state.encode(),
                epochs=content.epochs.encode(),
            )
        )
        content.segments.add(fresh)
        content.active = fresh
        return fresh
