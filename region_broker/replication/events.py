"""What the cores of replication are told: by the log, by the other members, by the metadata, by the clock.

Not here: what they ask for (`effects`), in which order (`replication`, the room's page).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication.facts import Drops, EpochEnd, EpochStart, InSync, LogHistory

# -- of both --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogsDurable:
    """So far these logs are durable here: what one group of syncs came to."""

    durable_ends: Mapping[LogKey, int]


@dataclass(frozen=True, slots=True)
class Ticked:
    """Time has passed: a few times in each of the times that the settings name."""


# -- of a leader ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LogOpened:
    """A log of the group takes writes here, for as long as this leader epoch goes on.

    `epoch_start_offset` is its log end when this leader epoch began; `high_watermark` what was known of it here before;
    `min_in_sync` its `min.insync.replicas`, not more than the members that the group is to have; `log_start_offset` where it starts,
    durably; `low_watermark` up to where orders to delete were answered in this leader epoch, before it began anew.
    """

    key: LogKey
    durable_end: int
    epoch_start_offset: int
    high_watermark: int
    min_in_sync: int
    log_start_offset: int = 0
    low_watermark: int = 0


@dataclass(frozen=True, slots=True)
class LogClosed:
    """A log was deleted, or has stopped: it does not come back in this leader epoch."""

    key: LogKey


@dataclass(frozen=True, slots=True)
class MinInSyncChanged:
    """The configuration of a log's topic has changed."""

    key: LogKey
    min_in_sync: int


@dataclass(frozen=True, slots=True)
class LogStartMoved:
    """An order to delete is durable here: the log starts at `log_start_offset` now."""

    key: LogKey
    log_start_offset: int


@dataclass(frozen=True, slots=True)
class FollowerConnected:
    """A member asks to follow, under `leader_epoch`; all that it said in older sessions is void."""

    member: Member
    session: int
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class FollowerReport:
    """So far these logs are durable at a follower; others have not moved. The first of a session names all that it has checked.

    An empty one says that nothing has moved. `log_starts`: where they start there, durably, in the same way; None from a version that
    does not tell. `lacking`: the logs that have stopped there, or did not open: all of them; None where that is as it was.
    """

    member: Member
    session: int
    leader_epoch: LeaderEpoch
    durable_ends: Mapping[LogKey, int]
    log_starts: Mapping[LogKey, int] | None = None
    lacking: frozenset[LogKey] | None = None


@dataclass(frozen=True, slots=True)
class FollowerLost:
    """The connection of a session is broken."""

    member: Member
    session: int


@dataclass(frozen=True, slots=True)
class MembersFenced:
    """Whom the metadata have fenced: all of them, each time."""

    members: frozenset[Member]


@dataclass(frozen=True, slots=True)
class LogsStopped:
    """The logs of the group that have stopped at the leader: all of them, each time. Nobody can be given what they hold."""

    keys: frozenset[LogKey]


@dataclass(frozen=True, slots=True)
class InSyncChanged:
    """The metadata have another in-sync set for the group, whoever asked for it."""

    leader_epoch: LeaderEpoch
    in_sync: InSync


@dataclass(frozen=True, slots=True)
class ProposalEnded:
    """What is known of a proposal: `is_refused`: it was not carried out and never will be; else nobody knows.

    One that was carried out is told as `InSyncChanged`.
    """

    number: int
    is_refused: bool


@dataclass(frozen=True, slots=True)
class LeaderEpochSeen:
    """Somebody knows of this leader epoch of the group."""

    leader_epoch: LeaderEpoch


LeaderEvent: TypeAlias = (
    LogsDurable | Ticked | LogOpened | LogClosed | MinInSyncChanged | LogStartMoved | FollowerConnected | FollowerReport | FollowerLost
    | LogsStopped | MembersFenced | InSyncChanged | ProposalEnded | LeaderEpochSeen
)  # fmt: skip


# -- of a follower --------------------------------------------------------------------------------


class LocalLog(NamedTuple):
    """What a follower has of a log: its history (of leader epochs with records alone, INV-E3), and how far that is durable.

    `high_watermark`: what a leader has said, as far as it is durable here; after a start what was noted of it, or the log start. Never
    the durable end itself: what lies between may have to be cut. `cleaned_below`: how far it was cleaned here, which is committed, too.
    """

    history: LogHistory
    durable_end: int
    high_watermark: int
    cleaned_below: int = 0


class LeaderLog(NamedTuple):
    """What a leader answers about a log: `LogHistory.end_of` the leader epoch that it was asked for, and where its log starts.

    `held_to`: where its last batch below that end ends; None where it does not say. `starts`: those of newer leader epochs that its batches may not tell (INV-E4).
    `drops`: None where it does not say, as to who is in sync.
    """

    asked: LeaderEpoch
    epoch_end: EpochEnd
    log_start_offset: int
    starts: tuple[EpochStart, ...] = ()
    held_to: int | None = None
    drops: Drops | None = None


class Slice(NamedTuple):
    """What an answer has of one log: records from `position` up to `end_offset` (none where they are equal), `data_bytes` of them, and
    the leader's marks, as they were once these were read."""

    key: LogKey
    position: int
    end_offset: int
    high_watermark: int
    log_start_offset: int
    data_bytes: int = 0
    drops: Drops | None = None


@dataclass(frozen=True, slots=True)
class FollowLeader:
    """The metadata name this leader, under this leader epoch; None: this member itself, or nobody."""

    leader_epoch: LeaderEpoch
    leader: Member | None


@dataclass(frozen=True, slots=True)
class Connected:
    """The leader lets this member follow under the leader epoch that it asked for. `logs`: all of the group that run here, as they
    are now."""

    session: int
    logs: Mapping[LogKey, LocalLog]


@dataclass(frozen=True, slots=True)
class LogAdded:
    """A log of the group was made here, or runs again."""

    key: LogKey
    log: LocalLog


@dataclass(frozen=True, slots=True)
class LogRemoved:
    """A log was deleted here, or has stopped."""

    key: LogKey


@dataclass(frozen=True, slots=True)
class LogsLacking:
    """The logs of the group that have stopped here, or did not open: all of them, each time. What was said of them holds no more."""

    keys: frozenset[LogKey]


@dataclass(frozen=True, slots=True)
class LogsStartAt:
    """These logs start here now, durably: what the `LogStart` and `StartAt` of a step came to, in those that run."""

    log_starts: Mapping[LogKey, int]


@dataclass(frozen=True, slots=True)
class EpochsChecked:
    """The leader's answer to `CheckEpochs`; None for a log that it does not have (yet)."""

    session: int
    logs: Mapping[LogKey, LeaderLog | None]


@dataclass(frozen=True, slots=True)
class Fetched:
    """The leader's answer to one `SendFetch`; answers come in the order of the questions."""

    session: int
    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class ConnectionBroken:
    """The session ended, or could not begin; or the leader refused it: it leads no more, or not yet."""

    session: int


FollowerEvent: TypeAlias = (
    LogsDurable | Ticked | FollowLeader | Connected | LogAdded | LogRemoved | LogsLacking | LogsStartAt | EpochsChecked | Fetched
    | ConnectionBroken
)  # fmt: skip
