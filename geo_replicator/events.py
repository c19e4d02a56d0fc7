"""What happens to the replicator's cores: events of the cut leader's rounds and of a link.

Events carry facts only; what they cause is decided in `rounds` and `core`.
Not here: what the cores ask for (`effects`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from geo_replicator.lineage import NO_LINEAGE, Lineage, LogKey
from geo_replicator.topology import MirrorTopic
from idempotency.identity import CoordinatorEpoch, LeaderEpoch, RegionEpoch, Round

# Rounds, at the primary.


@dataclass(frozen=True, slots=True)
class TermRecorded:
    """The cut leader's term record is below HW: it may send (T1)."""


@dataclass(frozen=True, slots=True)
class SomethingChanged:
    """A log or a ledger moved since the last tidemark; `urgent` where someone waits for the next one."""

    urgent: bool = False


@dataclass(frozen=True, slots=True)
class IntervalChanged:
    """Rounds shall start no sooner after each other than `interval_ms`, from the last one on."""

    interval_ms: int


@dataclass(frozen=True, slots=True)
class ShardEntered:
    """Ledger shard `shard` answered ENTERED{round}; `ledger_offset` is L, the offset of its ROUND.

    `holds`: COMMIT markers are waiting for RELEASE, in this shard or another.
    """

    round: Round
    shard: int
    coordinator_epoch: CoordinatorEpoch
    ledger_offset: int
    holds: bool = False


@dataclass(frozen=True, slots=True)
class PositionsCollected:
    """Every log of the newest metadata gave its D for `round` (T9)."""

    round: Round


@dataclass(frozen=True, slots=True)
class TidemarkDurable:
    """The tidemark of `round` is below HW in `__tidemarks`."""

    round: Round


@dataclass(frozen=True, slots=True)
class TimePassed:
    """The time that the core asked to be woken at has come."""


RoundEvent: TypeAlias = (
    TermRecorded
    | SomethingChanged
    | IntervalChanged
    | ShardEntered
    | PositionsCollected
    | TidemarkDurable
    | TimePassed
)

# A link, at the mirror.


@dataclass(frozen=True, slots=True)
class LinkStarted:
    """The link may connect."""


@dataclass(frozen=True, slots=True)
class HandshakeDone:
    """Connected, and the primary's Hello came: it acts under `region_epoch`."""

    primary_region: str
    region_epoch: RegionEpoch
    acting: bool
    lineage: Lineage = NO_LINEAGE


@dataclass(frozen=True, slots=True)
class HistoryShown:
    """The primary compared what was reached here under `reached_region_epoch` with its own history (T33).

    `missing` says of each log that differs what the primary does not hold, for people.
    """

    reached_region_epoch: RegionEpoch
    missing: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RegistryRead:
    """The primary's topic registry at `metadata_version`, and the topics that are mirrored so far."""

    metadata_version: int
    registry: tuple[MirrorTopic, ...]
    mirrored: tuple[MirrorTopic, ...]
    unnamed: tuple[LogKey, ...] = ()
    """Logs with records here that the primary has no more, and names no deletion for (T34)."""


@dataclass(frozen=True, slots=True)
class TopicsApplied:
    """The topics were created or reconfigured as asked; all logs below are open on the mirror."""

    logs: Mapping[LogKey, "MirrorLogEnd"]


@dataclass(frozen=True, slots=True)
class MirrorLogEnd:
    """Where a mirror's log ends: its newest leader epoch (-1: empty) and its end offset.

    `hidden_below`: an order deleted what is below, and bytes of it are still there; 0 where neither holds.
    """

    leader_epoch: LeaderEpoch
    end_offset: int
    hidden_below: int = 0


@dataclass(frozen=True, slots=True)
class PrimaryLogEnd:
    """The primary's answer: the largest leader epoch <= the asked one, where it ends, where the log's bytes begin.

    `readable_from`: where readers may begin, -1 if it is not known.
    """

    leader_epoch: LeaderEpoch
    end_offset: int
    log_start_offset: int
    readable_from: int = -1


@dataclass(frozen=True, slots=True)
class LogsChecked:
    """The primary answered where its logs leave the leader epochs that the mirror's logs end with (T23)."""

    answers: Mapping[LogKey, PrimaryLogEnd]


@dataclass(frozen=True, slots=True)
class DivergenceResolved:
    """The diverged tails are in quarantine and the logs are cut; they must be checked again."""

    logs: Mapping[LogKey, MirrorLogEnd]


@dataclass(frozen=True, slots=True)
class FetchedSlice:
    """What one fetch brought for one log: whole batches from `position` on, `data_bytes` of them."""

    key: LogKey
    position: int
    next_position: int
    data_bytes: int
    high_watermark: int
    log_start_offset: int
    unsent_bytes: int


@dataclass(frozen=True, slots=True)
class Answered:
    """One fetch was answered, as of that version of the primary's metadata; nothing of it was appended yet."""

    metadata_version: int


@dataclass(frozen=True, slots=True)
class Fetched:
    """The batches of the last answer were appended."""

    slices: tuple[FetchedSlice, ...]


@dataclass(frozen=True, slots=True)
class LinkBroken:
    """The connection ended, could not be made, or the primary refused. `reason` is for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class BackoffOver:
    """The pause before the next attempt is over."""


LinkEvent: TypeAlias = (
    LinkStarted
    | HandshakeDone
    | HistoryShown
    | RegistryRead
    | TopicsApplied
    | LogsChecked
    | DivergenceResolved
    | Answered
    | Fetched
    | LinkBroken
    | BackoffOver
)
