"""What replication speaks of: the in-sync set, and a log's history by leader epochs, with the place where two of them part.

INV-RPH1  what lies below the meeting point of two histories is the same in both, whatever was cut or deleted in between
          (KIP-101, KIP-279, KIP-320)
INV-RPH4  where the leader's log was cleaned in front of the start of a leader epoch, nobody counts on when that epoch began: a table that was
          made of such a log may name it too late. The follower keeps what lies below the leader's last batch before that, and what it knows to be
          committed; what else it has there the leader has not, and sends nothing in its place, or what stands there instead
INV-RPH3  they may meet below where the follower's log starts: then it has nothing of what the leader's has from there on
          1. B is away for longer than retention, and its log ends at 5; the others' begin at 10. 2. They are lost, and B is elected
          uncleanly. 3. One of them returns. 4. Were it to go on from 10, it would be in sync without what B has written from 5 to 10.
INV-RPH2  each question asks for an older leader epoch than the one before, so that the questions end

Not here: who asks and what is cut (`following`), how a node keeps its epochs (`log.indexes.leader_epochs`).
"""

from bisect import bisect_right
from dataclasses import dataclass
from operator import attrgetter
from typing import Final, NamedTuple

from idempotency.identity import NO_LEADER_EPOCH, LeaderEpoch, Member

LATEST: Final = LeaderEpoch(2**31 - 1)
"""No leader epoch is newer: its end is where a log ends."""


@dataclass(frozen=True, slots=True)
class InSync:
    """The committed in-sync set of a group: who may lead next. `version` grows with each change, in one leader epoch or another."""

    members: frozenset[Member]
    version: int


class EpochStart(NamedTuple):
    """From `start_offset` on records are of `leader_epoch`, up to the next one's start."""

    leader_epoch: LeaderEpoch
    start_offset: int


class Drops(NamedTuple):
    """What compaction has dropped of a leader's log that deletes, or decides, without a trace: tombstones and markers below `below`, ever; and
    `times`, which grows with each of them, as long as the leader epoch goes on."""

    below: int
    times: int


class EpochEnd(NamedTuple):
    """The largest leader epoch at or below the one that was asked for, and where it ends."""

    leader_epoch: LeaderEpoch
    end_offset: int


class AskAgain(NamedTuple):
    """The histories meet further below: ask for the end of this older leader epoch."""

    leader_epoch: LeaderEpoch


class MeetAt(NamedTuple):
    """The histories are the same below this offset, and nowhere above."""

    offset: int


class FollowerStanding(NamedTuple):
    """How far one follower is, for people. `behind_ms`: since when it was not caught up in all logs, None if it never was;
    `logs_stopped`: how many of its logs have stopped, or did not open."""

    is_heard: bool
    logs_behind: int
    records_behind: int
    behind_ms: int | None
    logs_stopped: int = 0


@dataclass(frozen=True, slots=True)
class LogHistory:
    """Where each leader epoch of one log starts, oldest first, both growing; none where the log never had a record.

    `end_offset` is the log end, synced or not: what is not synced may be the leader's, too.
    """

    epochs: tuple[EpochStart, ...]
    log_start_offset: int
    end_offset: int

    @property
    def latest(self) -> LeaderEpoch:
        """The newest leader epoch, -1 without any."""
        return self.epochs[-1].leader_epoch if self.epochs else NO_LEADER_EPOCH

    def starts_after(self, leader_epoch: LeaderEpoch, offset: int) -> tuple[EpochStart, ...]:
        """Return where leader epochs above `leader_epoch` start, those up to `offset`."""
        return tuple(
            each
            for each in self.epochs
            if each.leader_epoch > leader_epoch and each.start_offset <= offset
        )

    def end_of(self, asked: LeaderEpoch) -> EpochEnd:
        """Return the largest leader epoch <= `asked`, and its end; (-1, log start) where all are newer."""
        higher = bisect_right(self.epochs, asked, key=attrgetter("leader_epoch"))
        if higher == 0:
            return EpochEnd(NO_LEADER_EPOCH, self.log_start_offset)
        end = self.epochs[higher].start_offset if higher < len(self.epochs) else self.end_offset
        return EpochEnd(self.epochs[higher - 1].leader_epoch, end)


def first_asked(own: LogHistory) -> LeaderEpoch:
    """Return which leader epoch a follower asks for first: its newest; of a log without records, where the leader's log ends."""
    return own.latest if own.epochs else LATEST


def compare(own: LogHistory, asked: LeaderEpoch, leaders: EpochEnd) -> MeetAt | AskAgain:
    """Return where a follower's log meets the leader's, or what to ask next (INV-RPH1, INV-RPH3).

    `leaders` is the leader's `end_of(asked)`. `asked` was `first_asked`, then what this said. A leader that has nothing as old as `asked`
    has none of the follower's records that it was asked about: they meet where one of the logs starts.
    """
    assert leaders.leader_epoch <= asked, (leaders, asked)
    if not own.epochs:
        return MeetAt(min(own.end_offset, leaders.end_offset))
    mine = own.end_of(leaders.leader_epoch)
    if mine.leader_epoch == leaders.leader_epoch:
        return MeetAt(min(mine.end_offset, leaders.end_offset))
    # INV-RPH2: the leader has nothing of `asked`, and this log nothing of what it has instead.
    assert mine.leader_epoch < asked, (mine, asked)
    return AskAgain(mine.leader_epoch)


def trusted(meets_at: int, leaders: EpochEnd, held_to: int | None, committed: int) -> int:
    """Return where a follower's log meets a leader's that may have been cleaned there, by what `compare` has found (INV-RPH4).

    `held_to`: where the leader's last batch below `leaders.end_offset` ends. `committed`: below it what the follower has is known to be.
    """
    if held_to is None or meets_at < held_to:
        return meets_at
    return max(held_to, min(committed, leaders.end_offset))
