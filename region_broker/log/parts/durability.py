"""What of one log is durable, and the way of the rest to the disk.

INV-PL5  a segment is sealed once it, its index, its aborted index, the state at its end and a checkpoint past it
        are durable; only then is it handed to the seal callback, and only sealed segments are ever deleted
INV-PL6  stable_offset <= durable_offset <= end of the log; in a log that is copied inside its region what is stable is what the
         in-sync members have, too, and never more than is durable here
Under `flush.policy=commit` durable is synced. What is synced but not in the log's own files is in the journal, behind the fence of its
checkpoint.

Making durable is in two steps around a thread: `begin_sync` on the loop, `SyncJob.run` in the thread, `finish_sync` on
the loop (`group_commit`). A small job's bytes go into the node's journal instead (`finish_journaled`); the log's own files
are then synced later (`begin_file_sync`). `FileSync.lock` keeps jobs apart from each other, from cutting, deleting and
closing; it is the only lock.
Not here: the blocking part (`sync_job`), when it is due (`group_commit`, `recovery_checkpoints`).
"""

from pathlib import Path
from typing import Final

from idempotency.pieces import Pieces
from region_broker.log.indexes.checked_file import Checkpoint, JournalMark
from region_broker.log.indexes.producer_snapshots import recent_inside, remove_between
from region_broker.log.journal.blocks import LogId
from region_broker.log.journal.sync_job import (
    FileSync,
    RecoveryCheckpointJob,
    RecoveryCheckpointOutcome,
    Seal,
    SyncJob,
    draft_recovery_checkpoint,
    write_recovery_checkpoint,
)
from region_broker.log.journal.tail import LogTail
from region_broker.log.log_config import FlushPolicy
from region_broker.log.parts.content import LogContent
from region_broker.log.parts.settling import begin_settling, finish_settling

BATCH_COST_BYTES: Final = 2_048
"""How many bytes more than its own a batch counts as what a start or a cut has to read again (INV-BKD3)."""
PENDING_SEALS_MAX: Final = 64
"""Full segments that may wait for the sync that seals them; each keeps a file open."""


class LogDurability:
    """See the module's head. All methods but `run_sync` belong to the event loop."""

    def __init__(
        self, content: LogContent, log_id: LogId | None, *, checkpointed_bytes: int
    ) -> None:
        """All that was found on disk is durable."""
        self.synced_offset = content.end_offset
        self.tail = LogTail(log_id)
        """What is to go into the journal next."""
        self.files = FileSync(content.disk, content.folder, content.config.cached_tail_bytes)
        self.committed_offset: int | None = None
        """Up to where all in-sync members of the region have it; None where nobody else in the region has this log (INV-PL6)."""
        self._content = content
        self._file_offset = content.end_offset
        """All below is synced in the log's own files."""
        self._given_up = False
        self.owes_sync = False
        """Whether a log that was left is still to be synced: the journal keeps what it has of it (INV-LVG2)."""
        self._folder_version = 0  # grows with each new name in the folder
        self._pending_seals: list[Seal] = []
        self._sealed: list[Path] = []
        self._checkpointed_bytes = checkpointed_bytes
        self._checkpointed_batches = self._told_batches = 0
        """Of those that the open segment has counted: what lies before its recovery checkpoint, and what the listener was told of."""
        self._waits_for_sync: Final = content.policy is FlushPolicy.COMMIT

    def open_checkpoint(self, fence: JournalMark, *, clean: bool) -> None:
        """Open the checkpoint file, which says that all is durable; OSError of the disk."""
        self.files.open_checkpoint(fence, self._file_offset, clean=clean)

    # -- where it is -----------------------------------------------------------------------------

    @property
    def durable_offset(self) -> int:
        """Up to here the log is durable on this node, as its flush policy has it."""
        return self.synced_offset if self._waits_for_sync else self._content.end_offset

    @property
    def stable_offset(self) -> int:
        """Up to here appends may be acknowledged (INV-PL6)."""
        durable, committed = self.durable_offset, self.committed_offset
        return durable if committed is None else min(durable, committed)

    @property
    def generation(self) -> int:
        """Grows with each cut and with closing: what was begun before is void."""
        return self.files.generation

    @property
    def unread_bytes(self) -> int:
        """What a start after a crash reads: bytes of the open segment behind its recovery checkpoint, `BATCH_COST_BYTES` more for each batch."""
        content = self._content
        active = content.active
        if content.failed is not None or content.closed or active is None:
            return 0
        batches = active.batch_count - self._checkpointed_batches
        return active.size_bytes - self._checkpointed_bytes + BATCH_COST_BYTES * batches

    @property
    def pending_seals(self) -> int:
        """How many full segments, each an open file, wait for their seals."""
        return len(self._pending_seals)

    def in_file(self, generation: int, offset: int) -> bool:
        """Whether what a generation had below `offset` is synced in the log's own files, or given up."""
        if generation != self.generation:
            # Cut or closed, and synced before that; or left, and synced since.
            return self._given_up or (self._content.failed is None and not self.owes_sync)
        return self._file_offset >= offset

    def checkpoint_now(self, *, clean: bool = False) -> Checkpoint:
        """Return what a checkpoint says once all that is written now is durable."""
        content = self._content
        return Checkpoint(
            synced_offset=content.end_offset,
            segment_base=content.open_segment.base_offset,
            segment_bytes=content.open_segment.size_bytes,
            log_start_offset=content.start_offset,
            clean=clean,
        )

    # -- groups ----------------------------------------------------------------------------------

    def begin_sync(self) -> SyncJob | None:
        """Return what is to be made durable now; None if nothing is."""
        if self.synced_offset == self._content.end_offset and not self._pending_seals:
            return None
        return self._begin(tuple(self._pending_seals), journal=True)

    def begin_file_sync(self) -> SyncJob | None:
        """Return what brings the log's own files up to the journal; None if a group commit does that anyway."""
        return None if self._pending_seals else self._begin((), journal=False)

    def begin_last_sync(self) -> SyncJob | None:
        """Return what brings all into the log's own files; None if all of a log that runs is there, and no seal is due."""
        if self._file_offset >= self._content.end_offset and not self._pending_seals:
            return None
        return self._begin(tuple(self._pending_seals), journal=False)

    def _begin(self, seals: tuple[Seal, ...], *, journal: bool) -> SyncJob | None:
        content = self._content
        active = content.active
        if content.failed is not None or content.closed or active is None:
            return None
        files = [seal.segment.file for seal in seals] + [active.file]
        piece = None
        if journal:
            content.segments.remember(content.end_offset, active, active.size_bytes)
            piece = self.tail.take(content.end_offset)
        if seals or self._folder_version > self.files.folder_synced:
            piece = None
        return SyncJob(
            log=self,
            generation=self.generation,
            files=tuple(file for file in files if file is not None),
            folder_version=self._folder_version,
            seals=seals,
            checkpoint=self.checkpoint_now(),
            size_bytes=active.take_unsynced_bytes() if journal else 0,
            piece=piece,
        )

    def run_sync(self, job: SyncJob) -> OSError | None:
        """Do the job's I/O, in a thread; return the error."""
        return self.files.run(job)

    def finish_sync(self, job: SyncJob, error: OSError | None) -> None:
        """Take the outcome of a job in."""
        content = self._content
        if job.generation != self.generation or content.failed is not None:
            return
        if error is not None:
            content.fail(f"syncing {content.folder} failed: {error}")
            return
        self._file_offset = max(self._file_offset, job.checkpoint.synced_offset)
        self.files.folder_synced = max(self.files.folder_synced, job.folder_version)
        done = set(job.seals)
        self._pending_seals = [seal for seal in self._pending_seals if seal not in done]
        for seal in job.seals:
            segment = seal.segment
            if segment.file is not None:
                segment.file.close()
            segment.file = segment.live_index = None
        self._sealed.extend(seal.segment.path for seal in job.seals)
        if job.seals:
            content.state.forget_aborted_below(job.seals[-1].segment.next_offset)
        self._synced(job)

    def finish_journaled(self, job: SyncJob, error: OSError | None) -> None:
        """Take in that the job's piece is in the journal, or is not: then the log stops."""
        content = self._content
        if job.generation != self.generation or content.failed is not None:
            return
        if error is not None:
            content.fail(f"writing what {content.folder} got into the journal failed: {error}")
            return
        self._synced(job)

    def _synced(self, job: SyncJob) -> None:
        active = self._content.active
        told, self._told_batches = self._told_batches, 0 if active is None else active.batch_count
        cost = BATCH_COST_BYTES * max(self._told_batches - told, 0)
        self._content.listener.on_grown(self, job.size_bytes + cost)
        self._stable_at(job.checkpoint.synced_offset)

    def _stable_at(self, offset: int) -> None:
        self.synced_offset = max(self.synced_offset, offset)
        if self._waits_for_sync:
            self._content.listener.on_stable()

    def take_sealed(self) -> list[Path]:
        """Return the segments sealed since the last call: for the seal callback."""
        sealed, self._sealed = self._sealed, []
        return sealed

    def sync_now(self) -> None:
        """Make all durable in the log's own files, on the caller's thread. Raises PartitionFailed."""
        self._content.check_running()
        job = self.begin_last_sync()
        if job is not None:
            self.finish_sync(job, job.run())
        self._settle_cut()
        self._content.check_running()

    def _settle_cut(self) -> None:
        """Make the last cut durable here, whoever else is about to (INV-CTJ2)."""
        job = begin_settling(self._content, self.files)
        if job is not None:
            job.run()
            if finish_settling(self._content, job):
                self._content.listener.on_read(self)

    # -- recovery checkpoints -------------------------------------------------------------------------------

    def begin_recovery_checkpoint(self) -> Pieces[RecoveryCheckpointJob | None]:
        """Return what puts a recovery checkpoint at the log's end as of then (INV-BKM1, INV-BKD6); None while a seal is under way, after
        the end, or where the log was cut meanwhile."""
        content, generation = self._content, self.generation
        if not self._takes_recovery_checkpoint():
            return None
        state = yield from content.state.draft_in_pieces()
        active = content.active
        if generation != self.generation or not self._takes_recovery_checkpoint() or active is None:
            return None
        draft = draft_recovery_checkpoint(active, state, content.epochs)
        return self.files.recovery_checkpoint_job(active, draft, self.checkpoint_now())

    def _takes_recovery_checkpoint(self) -> bool:
        content = self._content
        is_running = content.failed is None and not content.closed and content.active is not None
        return is_running and not self._pending_seals and content.unsettled is None

    def finish_recovery_checkpoint(
        self, job: RecoveryCheckpointJob, outcome: RecoveryCheckpointOutcome
    ) -> None:
        """Take the outcome in."""
        content = self._content
        if job.generation != self.generation or content.failed is not None:
            return
        if outcome.error is not None:
            content.fail(
                f"syncing {content.folder} for its recovery checkpoint failed: {outcome.error}"
            )
            return
        self._file_offset = max(self._file_offset, job.checkpoint.synced_offset)
        self._stable_at(job.checkpoint.synced_offset)
        active = content.active
        if outcome.is_put and active is not None and active.base_offset == job.draft.segment_base:
            self._checkpointed_bytes = job.checkpoint.segment_bytes
            self._checkpointed_batches = job.batch_count

    # -- what the other parts do to the log ------------------------------------------------------

    def rolled(self, seal: Seal) -> None:
        """Note that a segment is full and a fresh one, without a recovery checkpoint, stands behind it."""
        self._pending_seals.append(seal)
        self._folder_version += 1
        self._checkpointed_bytes = self._checkpointed_batches = self._told_batches = 0

    def cut_at(self, offset: int) -> None:
        """Note that the log ends at `offset` now, and that all of it is in its own files."""
        self._checkpointed_bytes = self._checkpointed_batches = self._told_batches = 0
        self.tail.clear()
        self.synced_offset = self._file_offset = offset
        if self.committed_offset is not None:
            self.committed_offset = min(self.committed_offset, offset)

    def emptied_at(self, offset: int) -> None:
        """Note that the log has been emptied and goes on at `offset`."""
        self._pending_seals.clear()
        self._sealed.clear()
        self.cut_at(offset)

    def write_clean_state(self, holes_below: int) -> None:
        """Let the next start believe all that is there. Everything is synced, and the lock is held. Raises OSError."""
        content, checkpoint = self._content, self.files.checkpoint
        assert checkpoint is not None
        if checkpoint.clean:  # nothing came since the last time
            return
        write_recovery_checkpoint(content.disk, content.open_segment, content.state, content.epochs)
        recent = recent_inside(content.disk, content.folder, content.open_segment.base_offset)
        kept = [*content.segments.bases, content.end_offset, holes_below, *recent]
        remove_between(content.disk, content.folder, kept)
        checkpoint.force(self.checkpoint_now(clean=True))

    def close_files(self) -> None:
        """Close all files of the log. The lock is held."""
        self._content.close_segments()
        if self.files.checkpoint is not None:
            self.files.checkpoint.close()

    def give_up(self) -> None:
        """Note that the folder of this closed log is durably gone: nobody needs what the journal has of it."""
        assert self._content.closed
        self._given_up = True
