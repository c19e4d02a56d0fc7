"""The role of one partition, and how far its readers may see.

INV-PT1  log_start_offset <= last_stable_offset <= visible end <= high_watermark <= log_end_offset; the visible
        end is HW where the partition leads, or is a copy that is shown (INV-PT11), D of the last shown tidemark (at most HW)
        where it is a mirror (T17); the last stable offset of a mirror lies at or below its whole cut
INV-PT8  the leader epoch that clients are told never goes back, whatever role this has, and a mirror's is that of the
        primary region's term as soon as it is known here (`follow_term`, KIP-320)
INV-PT9  after a start, and while what was shown is taken back, nobody knows where this ends for readers, until it leads or
        is shown as a mirror; nor does anyone for read-committed ones, while a region that returned as a mirror does not know
        what of its past is whole
INV-PT10 while a mirror has reached nothing of the region epoch that it follows, and has not compared its log with the
        primary's, nobody knows where a log begins that an order has cut off further than the reached tidemark says: the order
        may be lost (T14)
INV-PT11 a copy inside the region is shown up to HW while its follower serves readers (`region.cluster.replica_readers`), and at
        no other time: what takes writes or mirrors is no such copy

Not here: who is told when it changes (`partition`), the bytes (`reader`).
"""

from enum import Enum, auto
from typing import Final

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch
from region_broker.log.indexes.log_start import LogStart
from region_broker.log.partition_log import PartitionLog

NO_EPOCH: Final = -1


class Isolation(Enum):
    """How far a reader sees."""

    READ_UNCOMMITTED = auto()
    """Up to the visible end."""
    READ_COMMITTED = auto()
    """Up to the last stable offset."""
    DURABLE = auto()
    """Up to HW, also on a mirror: for links and ledger loaders."""


class Sight:
    """Of one partition; its other parts look here, only `Partition` changes it."""

    def __init__(self, log: PartitionLog, start: LogStart) -> None:
        """Start as a mirror that shows nothing."""
        self.is_leader = False
        self.end_is_known = False
        """False after a start, until a role says how far readers see: no offset is its end for them (INV-PT9)."""
        self.whole_end_is_known = True
        """False while what other logs forgot keeps a mirror from saying where the whole cut ends here (INV-MV6)."""
        self.is_shown = False
        """Whether a link of this node shows this log: a copy inside the region that nobody is shown does not."""
        self.is_copy_shown = False
        """Whether this is a follower's copy that readers see: below HW all is committed in the region (KIP-392, INV-PT11)."""
        self.start_is_known = True
        """False where records may be hidden that the primary region has: nobody is told where this begins (INV-PT10)."""
        self.leader_epoch: LeaderEpoch = NO_LEADER_EPOCH
        self.leader_epoch_start_offset = -1
        self.shown_cut_offset = 0
        self.whole_end = 0
        """Where the whole cut of a mirror ends here: no transaction is shown in a part of its logs (T17)."""
        self.readers_ahead = False
        """Readers may have read further in a region that was lost: they wait until their groups bring them back."""
        self._content = log.content
        self._durability = log.durability
        self._start = start

    # -- ends ------------------------------------------------------------------------------------

    @property
    def high_watermark(self) -> int:
        """See `Partition.high_watermark`."""
        return self._durability.stable_offset

    @property
    def log_start_offset(self) -> int:
        """The first offset that readers may ask for: what lies below was deleted, by age, size or order."""
        return max(self._content.start_offset, self._start.offset)

    @property
    def shows_committed(self) -> bool:
        """Return whether readers see all that is committed: it leads, or is a copy that is shown."""
        return self.is_leader or self.is_copy_shown

    @property
    def visible_end(self) -> int:
        """What takes HW's place for readers: HW of a leader or a shown copy, D of the last shown tidemark of a mirror."""
        high_watermark = self._durability.stable_offset
        if self.is_leader or self.is_copy_shown:
            return high_watermark
        return max(min(self.shown_cut_offset, high_watermark), self.log_start_offset)

    @property
    def last_stable_offset(self) -> int:
        """Everything below is decided, as far as readers here may know (C36, T17)."""
        state = self._content.state
        bound = self.visible_end
        if bound < state.forgotten_below:
            # A region just back as a mirror, before it knows its cut: show nothing rather than guess.
            return self.log_start_offset
        stable = state.last_stable_offset(bound)
        if not self.shows_committed:
            stable = min(stable, self.whole_end)
        return max(stable, self.log_start_offset)

    def readable_end(self, isolation: Isolation) -> int:
        """Return how far a reader sees (C37, T17)."""
        if isolation is Isolation.DURABLE:
            return self._durability.stable_offset
        if isolation is Isolation.READ_UNCOMMITTED:
            return self.visible_end
        return self.last_stable_offset

    @property
    def is_known(self) -> bool:
        """Return whether it is known what is to be shown here (INV-PT9, INV-PT10)."""
        return (self.start_is_known and self.end_is_known) or self.is_copy_shown

    def knows_end(self, isolation: Isolation) -> bool:
        """Return whether the readable end is an end, or only the least that may be shown meanwhile (INV-PT9)."""
        if not self.is_known or isolation is not Isolation.READ_COMMITTED or self.shows_committed:
            return self.is_known
        known_to, state = max(self.whole_end, self.log_start_offset), self._content.state
        if self.whole_end_is_known and known_to >= state.forgotten_below:
            return True
        # An open transaction may hold the end below what was forgotten: nobody was shown more than up to there.
        bound = self.visible_end
        return bound >= state.forgotten_below and known_to >= state.last_stable_offset(bound)

    def is_behind(self, offset: int) -> bool:
        """Return whether a mirror has not copied up to `offset` yet, or a takeover has cut the log below it (T26).

        1. A consumer reads to the end in the primary region. 2. Its next metadata comes from the mirror's
        node, which is some ms behind. 3. OFFSET_OUT_OF_RANGE would send it to `auto.offset.reset`, and it
        would read everything again: it has to wait instead. So do those who had read what a takeover cut
        off: their groups were emptied, and they go on from the offset committed once they have rejoined.
        """
        return offset > self._content.end_offset and (not self.is_leader or self.readers_ahead)

    # -- leader epochs ---------------------------------------------------------------------------

    def epoch_end_offset(self, leader_epoch: LeaderEpoch) -> tuple[LeaderEpoch, int]:
        """Return (largest leader epoch <= `leader_epoch`, its end offset); (-1, -1) if unknown (KIP-101)."""
        epochs, end_offset = self._content.epochs, self._content.end_offset
        if epochs.latest < leader_epoch <= self.leader_epoch:
            return leader_epoch, end_offset  # a mirror's log, idle in this term
        return epochs.end_offset(leader_epoch, end_offset)

    def end_of_older(self, leader_epoch: LeaderEpoch) -> int:
        """Return where the records of leader epochs below `leader_epoch` end."""
        if self._content.epochs.latest < leader_epoch:
            return self._content.end_offset
        return self.epoch_end_offset(LeaderEpoch(leader_epoch - 1))[1]

    # -- changing --------------------------------------------------------------------------------

    def lead(self, leader_epoch: LeaderEpoch) -> None:
        """Be the leader under an epoch that is newer than all in the log."""
        epochs, end_offset = self._content.epochs, self._content.end_offset
        assert leader_epoch >= epochs.latest, (leader_epoch, epochs.latest)
        self.is_leader = True
        self.is_copy_shown = False
        self.end_is_known = self.start_is_known = True
        self.leader_epoch = leader_epoch
        self.leader_epoch_start_offset = end_offset
        epochs.note(leader_epoch, end_offset)

    def follow_term(self, leader_epoch: LeaderEpoch) -> bool:
        """Take the leader epoch of the primary region's term over, if this is a mirror and it is newer; tell
        whether."""
        if self.is_leader or leader_epoch <= self.leader_epoch:
            return False
        self.leader_epoch = leader_epoch
        return True

    def show_up_to(
        self, cut_offset: int, whole_end: int, *, is_end: bool = True, is_whole_end: bool = True
    ) -> bool:
        """Let a mirror's readers see further; neither goes down (T16). Return whether something moved.

        Without `is_end` they are not told that this is the end, if they were not before (INV-PT9); without `is_whole_end`
        read-committed ones are not, unless nothing more could be shown to them (INV-MV6).
        """
        self.is_shown = True
        self.end_is_known |= is_end
        self.whole_end_is_known = is_whole_end
        if cut_offset <= self.shown_cut_offset and whole_end <= self.whole_end:
            return False
        self.shown_cut_offset = max(self.shown_cut_offset, cut_offset)
        self.whole_end = max(self.whole_end, whole_end)
        return True

    def show_no_more_than(self, offset: int) -> None:
        """Take a mirror's readers back: what lay above is gone. A copy that was cut is shown no more."""
        self.is_copy_shown = False
        self.shown_cut_offset = min(self.shown_cut_offset, offset)
        self.whole_end = min(self.whole_end, offset)
