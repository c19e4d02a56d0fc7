"""The node's cleaner: compacts the dirtiest log, again and again, slowly, beside everything else.

INV-CLN2  what a step prepared is void once the log was cut, shortened by retention or closed
INV-CLN3  a log is cleaned below the bound it is given only: the last stable offset, and what every mirror of the
         domain has reached (T13)
INV-CLN4  whatever goes wrong with one log, but for a broken assertion of ours, the others are cleaned: what nobody thought of is told
         once, and that log is not cleaned again by this process
INV-CLN8  a log is cleaned only where all that was forgotten here of its transactions is known to be committed: a node that starts knows of
         less at first, and cannot tell what is decided
INV-CLN6  a run goes by what is judged in the step that takes hold of the log: which log is the dirtiest is an older opinion
         1. A log is judged: two segments are below the bound. 2. The thread looks into another log; an order deletes the oldest
         segment of the first. 3. Its first two segments are others now: one was never judged, its open transaction would count as committed.
INV-CLN7  nothing of what deletes, or decides, goes in front of a node that copies the log now, and none at all while one copies below what has
         gone before: who came too late for it has to copy the log whole (INV-RPF10), and cleaning, which goes on, lets it come to the end
INV-CLN5  what grows with what clients wrote is looked up and put in order by the thread: which transactions were aborted, as which keys there are
One log at a time; reading and writing in a thread, in small steps with pauses between: so that no more than
`CLEANER_BYTES_PER_S` is read, and no more than a third of the time is worked. Before the first hole: a snapshot of the
state at the end of what is cleaned, and the mark, are durable, and the snapshots below are gone: what follows them is
no longer what they were followed by.

A log that cannot be cleaned (damaged, or the disk fails on new files) is left as it is, with a line in the log; it is
tried again in the next round. Source: Kafka LogCleaner.scala, LogCleanerManager.scala.
Not here: what is kept (`log.cleaning`).
"""

import logging
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Final

from idempotency.ports import Clock
from idempotency.record_batch import BatchError
from region_broker.limits import CLEANER_BYTES_PER_S, CLEANER_KEYS_MAX
from region_broker.log.cleaning.planning import Filth, groups, judge
from region_broker.log.cleaning.rewriting import Cleaning, CleaningTask, Read, Rewritten
from region_broker.log.cleaning.state import CleanMark
from region_broker.log.cleaning.transactions import CleanedTransactions
from region_broker.log.failures import LogError
from region_broker.log.indexes.producer_snapshots import load_newest
from region_broker.log.log_config import NodeLogConfig
from region_broker.log.partition_log import PartitionLog
from region_broker.log.replay import rebuild_state
from region_broker.log.segment import (
    SealedCache,
    Segment,
    knows_times,
    learn_times,
    own_segment,
)
from region_broker.partitions.pace import Worker
from region_broker.partitions.partition import Partition
from region_broker.ports.disk import Disk
from region_broker.records.batches import INT64_MAX

logger: Final = logging.getLogger(__name__)

PAUSE_MS: Final = 15_000  # Kafka's log.cleaner.backoff.ms
RUN_FILES_MAX: Final = 8
RESTS_PER_WORK: Final = 2
"""How long it rests after each step, in times of the step: its thread shares the interpreter with the event loop."""

BoundOf = Callable[[Partition], int]
"""Below which offset a partition may be cleaned now; 0: nowhere."""


@dataclass(slots=True, kw_only=True)
class CleanerParts:
    """What the cleaner works with. `partitions` yields those of the node; `on_sealed` gets each new segment."""

    partitions: Callable[[], Iterator[Partition]]
    bound_of: BoundOf
    disk: Disk
    clock: Clock
    worker: Worker
    on_sealed: Callable[[Path], None] = lambda _: None
    keys_max: int = CLEANER_KEYS_MAX
    bytes_per_s: int = CLEANER_BYTES_PER_S


class Cleaner:
    """`run` is its task."""

    def __init__(self, parts: CleanerParts) -> None:
        """Nothing is cleaned before `run`."""
        self._parts = parts
        self.pause_ms = PAUSE_MS
        """How long it rests where nothing is to be cleaned."""
        self.cleanings = 0
        self.removed_bytes = 0

    async def run(self) -> None:
        """Clean until cancelled."""
        while True:
            if not await self.clean_dirtiest():
                await self._parts.clock.sleep_ms(self.pause_ms)

    async def clean_dirtiest(self) -> bool:
        """Clean the log that needs it most; return whether there was one that could be cleaned."""
        failed: set[Partition] = set()
        while True:
            found = await self._dirtiest(failed)
            if found is None:
                return False
            if await self.clean(found):
                return True
            failed.add(found)

    async def _dirtiest(self, without: set[Partition]) -> Partition | None:
        best: Partition | None = None
        best_ratio = 0.0
        for partition in list(self._parts.partitions()):
            if partition in without or not _may_be_cleaned(partition):
                continue
            try:
                if not await self._knows_times(partition.log):
                    continue
                filth = self._filth_now(partition)
            except (LogError, OSError) as error:
                logger.warning("%s is not cleaned: %s", partition.tp, error)
                continue
            if filth is not None and (best is None or filth.ratio > best_ratio):
                best, best_ratio = partition, filth.ratio
        return best

    def _filth_now(self, partition: Partition) -> Filth | None:
        """Return what is to be cleaned of a log as it is now; None where nothing is, or that cannot be told without the disk. Raises LogError, OSError."""
        log = partition.log
        if not _may_be_cleaned(partition) or not all(map(knows_times, sealed_segments(log))):
            return None
        filth = filth_of(partition, self._parts.bound_of(partition), self._parts.clock.wall_ms())
        return filth if filth.wanted(log.config.cleaning.dirty_ratio_min) else None

    async def _knows_times(self, log: PartitionLog) -> bool:
        """Have the times of sealed segments looked up that a start has not looked into, in the thread (INV-CLN5); False where the log changed
        meanwhile. Raises LogError, OSError."""
        unknown = [segment for segment in sealed_segments(log) if not knows_times(segment)]
        if not unknown:
            return True
        interruptions = log.cleaning.interruptions
        cache = SealedCache(self._parts.disk, NodeLogConfig(open_files_max=RUN_FILES_MAX))
        own = [own_segment(segment, cache) for segment in unknown]

        def look() -> None:
            for segment in own:
                segment.latest_ms(wait=True)

        try:
            await self._parts.worker.start(look)
        finally:
            cache.close()
        if log.failed is not None or log.cleaning.interruptions != interruptions:
            return False
        for segment, looked in zip(unknown, own, strict=True):
            learn_times(segment, looked)
        return True

    async def clean(self, partition: Partition) -> bool:
        """Clean one log, if it is to be cleaned still (INV-CLN6); return whether that came to its end. Not while it is mended (INV-CLS4)."""
        state = partition.log.cleaning
        if not state.take():
            return False
        try:
            return await self._clean(partition)
        except AssertionError:
            raise
        except Exception:
            # What is in a log is what clients made up: the next leader would end by it too, and this node again and again.
            state.given_up = True
            logger.exception(
                "%s is not cleaned any more, until this node starts again: please report this",
                partition.tp,
            )
            return False
        finally:
            state.release()

    async def _clean(self, partition: Partition) -> bool:
        log = partition.log
        try:
            filth = self._filth_now(partition)
            if filth is None:
                return False
            run = _Run(partition, filth, self._parts)
        except (LogError, BatchError, OSError) as error:
            logger.warning("%s is not cleaned: %s", partition.tp, error)
            return False
        try:
            for awaited in run.steps():
                await self._step(awaited)
        except Exception as error:
            if run.stop_reason is not None:
                log.fail(f"{run.stop_reason}: {error}")
            if not isinstance(error, (LogError, BatchError, OSError)):
                raise
            logger.warning("%s: cleaning ended early: %s", partition.tp, error)
            return False
        finally:
            run.close()
        if run.is_void():
            return False
        self.cleanings += 1
        self.removed_bytes += run.cleaning.removed_bytes
        logger.info(
            "%s: cleaned up to offset %d, %d bytes fewer",
            partition.tp, log.cleaning.mark.first_dirty_offset, run.cleaning.removed_bytes,
        )  # fmt: skip
        if unread := run.cleaning.unread:
            logger.warning(
                "%s: the records of %d batches cannot be read, the first at offset %d: they stay as they are, and so do "
                "tombstones behind them, until retention or DeleteRecords takes them", partition.tp, len(unread), unread[0],
            )  # fmt: skip
        return True

    async def _step(self, step: "_Step") -> None:
        clock = self._parts.clock
        started_ms = clock.monotonic_ms()
        if step.work is not None:
            await self._parts.worker.start(step.work)
        bytes_read = step.bytes_read()
        if bytes_read:
            worked_ms = clock.monotonic_ms() - started_ms
            await clock.sleep_ms(
                max(bytes_read * 1000 / self._parts.bytes_per_s, worked_ms * RESTS_PER_WORK)
            )


def _may_be_cleaned(partition: Partition) -> bool:
    log = partition.log
    if not log.config.compacts or not log.is_running or log.cleaning.given_up:
        return False
    return partition.high_watermark >= log.state.forgotten_below  # INV-CLN8


def filth_of(partition: Partition, bound_offset: int, now_ms: int) -> Filth:
    """Return what may be cleaned of a partition; raises LogDamaged, OSError."""
    log = partition.log
    return judge(
        sealed_segments(log),
        log.config,
        first_dirty_offset=max(log.cleaning.mark.first_dirty_offset, log.log_start_offset),
        # What is decided and durable, whether readers here are shown it or not: `bound_of` knows of those.
        bound_offset=min(bound_offset, log.state.last_stable_offset(partition.high_watermark)),
        now_ms=now_ms,
    )


def drops_below(partition: Partition) -> int:
    """Return below which offset tombstones and markers may go (INV-CLN7)."""
    copied_to = partition.copies.copied_to()
    if copied_to is None:
        return INT64_MAX
    return copied_to if copied_to >= partition.log.cleaning.dropped_below else 0


def sealed_segments(log: PartitionLog) -> list[Segment]:
    """Return the sealed segments, oldest first."""
    return [segment for segment in log.segments.segments if segment.file is None]


@dataclass(slots=True)
class _Step:
    """Something to be awaited: `work` in a thread, then a pause for what it read."""

    work: Callable[[], None] | None
    bytes_read: Callable[[], int] = lambda: 0


class _Run:
    """One cleaning of one log; `steps` alternates between a thread and the event loop."""

    def __init__(self, partition: Partition, filth: Filth, parts: CleanerParts) -> None:
        """Take hold of the log in the step in which `filth` was judged (INV-CLN6): segments are counted from its front."""
        log = partition.log
        self._log = log
        self._partition = partition
        self._parts = parts
        self._interruptions = log.cleaning.interruptions
        self._segments = sealed_segments(log)[: filth.count]
        self._cache = SealedCache(parts.disk, NodeLogConfig(open_files_max=RUN_FILES_MAX))
        self._next: Read | Rewritten | None = None
        self._void = False
        self.stop_reason: str | None = None
        """Why the log has to stop if the disk fails now; on the loop, as waiters hear of it."""
        self._txns: CleanedTransactions | None = None
        start, end = self._segments[0].base_offset, filth.end_offset
        bound = partition.high_watermark
        sealed = [own_segment(segment, self._cache) for segment in sealed_segments(log)]
        self.cleaning = Cleaning(
            CleaningTask(
                folder=log.folder,
                config=log.config,
                segments=sealed[: filth.count],
                sealed=sealed,
                first_dirty_offset=max(log.cleaning.mark.first_dirty_offset, start),
                aborted=log.state.aborted_in(start, end, bound),
                aborted_bound=bound,
                producers=frozenset(log.state.producer_table.ids()),
                now_ms=parts.clock.wall_ms(),
                keys_max=parts.keys_max,
                drops_below=drops_below(partition),
            ),
            self._cache,
        )

    def is_void(self) -> bool:
        """Return whether the log has changed under the run, or may not be cleaned so far any more."""
        return self._void

    def steps(self) -> Iterator[_Step]:
        state = self._log.cleaning
        own = [own_segment(segment, self._cache) for segment in self._segments]
        yield _Step(state.settle)  # the end of the run before may have failed
        yield from self._in_thread(self.cleaning.read_aborted())
        yield from self._in_thread(self.cleaning.fill_map())
        if self.is_void():
            return
        clean_to = self.cleaning.clean_to
        count = sum(segment.base_offset < clean_to for segment in own)
        before = CleanMark(cleaned_here_below=clean_to, holes_below=clean_to)
        yield _Step(lambda: self._keep_state(own, clean_to))
        yield _Step(lambda: self._forget_older(clean_to))
        if self.is_void():
            return
        yield _Step(lambda: self._mark(before))
        yield _Step(self._begin_transactions)
        txns = self._txns
        assert txns is not None
        for start, stop in groups(own[:count], self._log.config.segment_bytes):
            if not self.is_void():
                yield from self._in_thread(self.cleaning.rewrite(own[start:stop], txns))
            if self.is_void():
                return
            done = self._next
            assert isinstance(done, Rewritten)
            if self._parts.bound_of(self._partition) < clean_to:
                return  # a mirror has lost what it had: it must not miss what goes here (T13)
            if drops_below(self._partition) < done.dropped_below:
                return  # a node has begun to copy it meanwhile (INV-CLN7)
            yield from self._put_in(self._segments[start:stop], done)
        if not self.is_void():
            yield _Step(lambda: self._mark(CleanMark(first_dirty_offset=clean_to)))

    def _put_in(self, old: list[Segment], done: Rewritten) -> Iterator[_Step]:
        """Let a new segment take the place of others; what it lacks of tombstones and markers is noted before (INV-CLS5)."""
        state = self._log.cleaning
        if done.dropped_below > state.dropped_below:
            yield _Step(lambda: self._mark(CleanMark(dropped_below=done.dropped_below)))
        if self.is_void():
            return
        yield _Step(partial(self._prepare, done))
        if not self.is_void():
            path = self._swap(old, done)
            yield _Step(state.settle)
            yield _Step(partial(self._digest, path))

    def _in_thread(self, work: Iterator[Read | Rewritten]) -> Iterator[_Step]:
        """Yield steps until the generator has ended; `_next` is the last thing that it yielded."""
        ended = False

        def advance() -> None:
            nonlocal ended
            found = next(work, None)
            if found is None:
                ended = True
            else:
                self._next = found

        while not ended and not self.is_void():
            yield _Step(
                advance, lambda: self._next.size_bytes if isinstance(self._next, Read) else 0
            )
            if self._interruptions != self._log.cleaning.interruptions:
                self._void = True

    def _begin_transactions(self) -> None:
        self._txns = self.cleaning.transactions()

    def _keep_state(self, own: list[Segment], offset: int) -> None:
        folder, disk = self._log.folder, self._parts.disk
        if load_newest(disk, folder, offset, offset) is None:
            state = rebuild_state(folder, own, offset)
            self._void = not self._log.cleaning.keep_snapshot(
                offset, state.encode(), self._interruptions
            )

    def _forget_older(self, offset: int) -> None:
        self._void = not self._log.cleaning.forget_snapshots(offset, self._interruptions)

    def _mark(self, mark: CleanMark) -> None:
        self._void = not self._log.cleaning.note(mark, self._interruptions)

    def _prepare(self, done: Rewritten) -> None:
        # If this fails, whether the durable step was made is not known: only a start can find out.
        self.stop_reason = f"putting a cleaned segment into {self._log.folder} failed"
        self._void = not self._log.cleaning.prepare(done.swap, self._interruptions)

    def _swap(self, old: list[Segment], done: Rewritten) -> Path:
        """On the event loop: let names and memory follow what is durable, in one step."""
        log = self._log
        path = old[0].path
        # In the step that replaces them: what is read before it is told with this number at the latest, what is read behind it with no lower one.
        log.cleaning.drops += done.dropped_below > 0
        if not log.cleaning.apply(done.swap):
            self._void = True
            return path
        self.stop_reason = None
        fresh = Segment(path, done.fresh.base_offset, old[0].cache, log.config)
        fresh.adopt(done.fresh.index(), done.summary)
        fresh.live_index = None  # a sealed segment's index is read when it is needed
        log.segments.replace(old, fresh)
        return path

    def _digest(self, path: Path) -> None:
        try:
            self._parts.on_sealed(path)
        except OSError as error:
            # The segment itself is durable; a digest that is missing is made by the next start.
            logger.warning("no digest was written for %s: %s", path, error)

    def close(self) -> None:
        self._cache.close()
