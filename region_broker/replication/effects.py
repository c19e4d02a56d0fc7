"""What the cores of replication ask of their driver.

Not here: what they are told (`events`), in which order effects are carried out (`replication`, the room's page).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from idempotency.identity import LeaderEpoch, LogKey, Member
from region_broker.replication.events import Slice


@dataclass(frozen=True, slots=True)
class HighWatermark:
    """All below `offset` is committed: a leader answers acks=all, and shows it to readers; a follower shows it to its own (KIP-392)."""

    key: LogKey
    offset: int


# -- of a leader ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class LowWatermark:
    """All that may lead next have the log start at `offset`, or above, durably: an order to delete up to there is answered."""

    key: LogKey
    offset: int


@dataclass(frozen=True, slots=True)
class ProposeInSync:
    """Have the metadata take `members` as the in-sync set, if leader epoch and version are still these (AlterPartition, KIP-497).

    `number` comes back with `ProposalEnded`.
    """

    number: int
    leader_epoch: LeaderEpoch
    members: frozenset[Member]
    expected_version: int


@dataclass(frozen=True, slots=True)
class NotEnough:
    """The in-sync set is below this number now: acks=all is refused by all logs whose `min.insync.replicas` it is (R1)."""

    min_in_sync: int


@dataclass(frozen=True, slots=True)
class Enough:
    """The in-sync set has reached this number again."""

    min_in_sync: int


@dataclass(frozen=True, slots=True)
class WentBack:
    """A follower has less than it said in this leader epoch: its folder is an older copy, or its disk lied. Say it loudly."""

    member: Member
    keys: tuple[LogKey, ...]


@dataclass(frozen=True, slots=True)
class Deposed:
    """This leader epoch is over: nothing is acknowledged any more, and whoever waits is told that the outcome is unknown (P18)."""

    leader_epoch: LeaderEpoch


LeaderEffect: TypeAlias = (
    HighWatermark | LowWatermark | ProposeInSync | NotEnough | Enough | WentBack | Deposed
)


# -- of a follower --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the leader, and ask to follow it under this leader epoch; `Connected` or `ConnectionBroken` follows."""

    session: int
    leader: Member
    leader_epoch: LeaderEpoch


@dataclass(frozen=True, slots=True)
class Disconnect:
    """End the session, or the attempt."""

    session: int


@dataclass(frozen=True, slots=True)
class CheckEpochs:
    """Ask where these leader epochs end in the leader's logs (OffsetForLeaderEpoch)."""

    session: int
    asked: Mapping[LogKey, LeaderEpoch]


@dataclass(frozen=True, slots=True)
class CutLog:
    """Cut the log off at `to_offset`, a batch boundary: the leader has another history from there on, or none. All that is left is
    durable then, which is not told as `LogsDurable`."""

    key: LogKey
    to_offset: int


@dataclass(frozen=True, slots=True)
class StartAt:
    """Give up all records of the log and go on, empty, where the leader's log starts: it has deleted what this one lacks, or has dropped what
    deletes, or decides, what this one has (INV-RPF10).

    `LogsStartAt` follows."""

    key: LogKey
    offset: int


@dataclass(frozen=True, slots=True)
class DivergedBelowHighWatermark:
    """The leader's history parts from this log's at `meets_at`, below what was committed here: stop the log, loudly, cut nothing.

    A disk has lied, somebody led by an operator's order, or there is a defect.
    """

    key: LogKey
    meets_at: int
    high_watermark: int


@dataclass(frozen=True, slots=True)
class AppendSlices:
    """Append the records of these slices of the answer, in this order."""

    slices: tuple[Slice, ...]


@dataclass(frozen=True, slots=True)
class LogStart:
    """The leader's log starts at `offset` now: what lies below may go; where this log starts above, that was ordered in vain (T14).
    `LogsStartAt` follows."""

    key: LogKey
    offset: int


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Ask for what is new in all logs of the session (KIP-227): `positions` are of those that are new in it, and `forgotten` are no
    more. `durable_ends`, `log_starts`, `lacking`: as in `SendReport`."""

    session: int
    positions: Mapping[LogKey, int]
    forgotten: tuple[LogKey, ...]
    durable_ends: Mapping[LogKey, int]
    log_starts: Mapping[LogKey, int]
    lacking: frozenset[LogKey] | None = None


@dataclass(frozen=True, slots=True)
class SendReport:
    """Tell the leader how far logs are durable that have moved, and where they start, where all fetches are under way. No answer is
    awaited. `lacking`: all logs that do not run here, None where the leader has been told."""

    session: int
    durable_ends: Mapping[LogKey, int]
    log_starts: Mapping[LogKey, int]
    lacking: frozenset[LogKey] | None = None


FollowerEffect: TypeAlias = (
    HighWatermark | Connect | Disconnect | CheckEpochs | CutLog | StartAt | DivergedBelowHighWatermark | AppendSlices | LogStart
    | SendFetch | SendReport
)  # fmt: skip
