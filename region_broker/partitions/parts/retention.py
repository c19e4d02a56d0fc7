"""What goes from the beginning of one partition: by order, by age and size, and what nobody needs to know any more.

Not here: the two ends of the log (`trimming`), which time it is.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from idempotency.decision import ROUND_NUMBER_MAX, round_of
from region_broker.log.failures import NotLeader, OffsetOutOfRange
from region_broker.log.partition_log import PartitionLog
from region_broker.log.segment import DeletionBudget
from region_broker.partitions.commit_waiters import when_told
from region_broker.partitions.parts.commits import Commits
from region_broker.partitions.parts.copies import Copies
from region_broker.partitions.parts.sight import Sight
from region_broker.partitions.producer_room import IDLE_MS
from region_broker.partitions.readable_watchers import ReadableWatchers
from region_broker.partitions.trimming import Hold, Trimming


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What one round of maintenance goes by; `now_ms` is wall time: record times are held against it.

    `producers_kept`: see `producer_room`; None: all. `budget`: how much the round may delete yet; None: anything.
    """

    now_ms: int
    monotonic_ms: int
    producer_expiration_ms: int
    producers_kept: int | None = None
    budget: DeletionBudget | None = None


class Retention:
    """Deletes, and tells those who watch."""

    def __init__(
        self,
        log: PartitionLog,
        sight: Sight,
        trimming: Trimming,
        watchers: ReadableWatchers,
        copies: Copies,
        commits: Commits,
    ) -> None:
        """Delete from `log`."""
        self._tp = trimming.tp
        self._log = log
        self._sight = sight
        self._trimming = trimming
        self._watchers = watchers
        self._copies = copies
        self._commits = commits

    @property
    def low_watermark(self) -> int:
        """The least log start of all members that may lead next, as far as is known here (INV-PTD2)."""
        return self._commits.low_watermark(self._sight.log_start_offset)

    async def delete_records(self, offset: int) -> int:
        """Delete all below `offset`, durably here; return the log start. What mirrors still copy stays on disk a while.

        It is acknowledged after `wait_deleted`. Raises OffsetOutOfRange for an offset beyond HW, NotLeader, PartitionFailed.
        """
        sight = self._sight
        self._log.check_running()
        if not sight.is_leader:
            raise NotLeader(f"{self._tp} is a mirror here")
        if not 0 <= offset <= sight.high_watermark:
            raise OffsetOutOfRange(offset, sight.log_start_offset, sight.high_watermark)
        if offset > sight.log_start_offset:
            if not await self._trimming.raise_start_in_thread(offset):
                raise NotLeader(f"{self._tp} was cut while its records below {offset} were deleted")
            self._watchers.notify()
        elif not self._trimming.start_is_kept:  # noted before this led
            await self._trimming.keep_start()
        self._copies.on_order()
        return sight.log_start_offset

    async def wait_deleted(self, offset: int) -> None:
        """Return once all that may lead next start at `offset`, to which `delete_records` has deleted.

        Raises NotLeader or PartitionFailed: the outcome is unknown then.
        """
        if not self._sight.is_leader:
            raise NotLeader(f"{self._tp} is a mirror here now; the outcome is unknown")
        await when_told(partial(self._commits.notify_deleted, self.low_watermark, offset))

    def forget_below(self, offset: int, then: Callable[[], None] | None = None) -> None:
        """Follow the log start of the primary, or of the leader: it counts at once (T14), and `then` is called when it is durable (INV-NST1).

        The bytes go with `maintain` (INV-NST3).
        """
        moves = offset > self._sight.log_start_offset
        self._trimming.note_start(offset if moves else 0, then)
        if moves:
            self._watchers.notify()

    def take_back_start(self, offset: int) -> None:
        """Start at `offset` again, as far as bytes reach: the primary has no order to delete them (T14). Raises
        PartitionFailed.

        Those who copy from here are told as of a cut: what they said of their starts is void.
        """
        before = self._sight.log_start_offset
        self._trimming.take_back_start(offset)
        if self._sight.log_start_offset < before:
            self._commits.doubt_start()
            self._copies.on_cut()
        self._watchers.notify()

    def confirm_start(self) -> None:
        """Begin where it does: the primary region was asked (INV-PT10)."""
        if not self._sight.start_is_known:
            self._sight.start_is_known = True
            self._watchers.notify()

    def maintain(
        self,
        due: Due,
        *,
        hold: Hold | None = None,
        reached: int | None = None,
        keeps_rounds: bool = False,
    ) -> int:
        """Forget what nobody needs: old segments that `hold` does not keep, and idle producers (C8). Return deletions.

        Retention never passes the last stable offset: what is undecided stays. A mirror deletes nothing by itself, only what lies
        below its start (T14: `forget_below`). `reached`: D of what a copy's region has reached, where it mirrors another one. `keeps_rounds`: D of
        this log is read here (`_forget_rounds`), and a copy's bytes are kept for mirrors, as `hold` says (INV-SCU3). Raises LogDamaged, PartitionFailed.
        """
        sight = self._sight
        if self._log.failed is not None:
            return 0
        is_copy = self._log.durability.committed_offset is not None and not sight.is_shown
        if sight.is_leader or is_copy:
            # Whoever leads a log that is copied inside its region shows nothing before it knows HW to be above this.
            # In a mirror region, what was forgotten is shown as one transaction over all logs (INV-WC4), at a tidemark that
            # covers it: one that is reached, as the next one comes from the primary only (INV-TKO5).
            bound = sight.high_watermark
            if is_copy and reached is not None:
                bound = min(bound, reached)
        else:  # a mirror's transactions are needed until they are shown (`geo_replicator.whole_cut`)
            bound = sight.last_stable_offset
        state = self._log.state
        state.forget_completed_below(bound)
        state.expire(due.monotonic_ms, due.producer_expiration_ms)
        if due.producers_kept is not None:
            state.expire_beyond(due.producers_kept, due.monotonic_ms, IDLE_MS)  # INV-PRR2
        if not keeps_rounds:
            self._forget_rounds()
        if not sight.is_leader and not (keeps_rounds and is_copy):
            return self._told(self._trimming.drop_below_start(due.budget))
        # Of a copy nothing goes that its leader has still.
        stable_offset = sight.last_stable_offset if sight.is_leader else sight.log_start_offset
        deleted = self._trimming.retain(
            now_ms=due.now_ms, stable_offset=stable_offset, hold=hold, budget=due.budget
        )
        return self._told(deleted)

    def _told(self, deleted: int) -> int:
        """Have those hear of it who copy this log: they delete no more than this node has (INV-RFN8)."""
        if deleted:
            self._watchers.notify()
        return deleted

    def _forget_rounds(self) -> None:
        """Forget, of a log that other nodes of the region have, where rounds begin: whoever leads next drives those of a newer leader epoch (T1).

        Not at the main leader of a region that acts, which reads D of its own logs, and of the copies that it has while leaders are spread
        (INV-SCU4): 1. A data leader writes under leader epoch 7. 2. The main leader, under 5, drives round 1 of 5, and reads D of that log from
        its copy. 3. What is written there is of a newer leader epoch than the round: it would be forgotten where the round begins. The
        cut leader forgets them when a round is done.
        """
        written_epoch = self._log.epochs.latest
        if self._log.durability.committed_offset is not None and written_epoch >= 0:
            self._log.state.prune_cut_index(round_of(written_epoch, ROUND_NUMBER_MAX))
