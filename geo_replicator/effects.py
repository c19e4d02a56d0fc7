"""What the replicator's cores ask their drivers to do, in the order given.

Not here: what happened (`events`), how it is done (`driver`, `region_broker.region`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from geo_replicator.events import MirrorLogEnd
from geo_replicator.lineage import LogKey
from geo_replicator.topology import MirrorTopic
from idempotency.identity import LeaderEpoch, RegionEpoch, Round

# Rounds, at the primary.


@dataclass(frozen=True, slots=True)
class RecordTerm:
    """Append the term record and wait until it is below HW (T1)."""

    term: int


@dataclass(frozen=True, slots=True)
class EnterRound:
    """Send ENTER{round} to every shard (T2)."""

    round: Round


@dataclass(frozen=True, slots=True)
class ReleaseRound:
    """Send RELEASE{round} to every shard: the COMMIT markers it holds are free (T3)."""

    round: Round


@dataclass(frozen=True, slots=True)
class CollectPositions:
    """Ask every log for D of `round` (T9)."""

    round: Round


@dataclass(frozen=True, slots=True)
class PublishTidemark:
    """Append the tidemark of `round`, with L per shard, and wait until it is below HW (T10)."""

    round: Round
    ledger: Mapping[int, int]


RoundEffect: TypeAlias = RecordTerm | EnterRound | ReleaseRound | CollectPositions | PublishTidemark

# A link, at the mirror.


@dataclass(frozen=True, slots=True)
class Connect:
    """Connect to the primary and make the handshake."""


@dataclass(frozen=True, slots=True)
class Disconnect:
    """Give up the connection, if there is one."""

    reason: str


@dataclass(frozen=True, slots=True)
class WaitBackoff:
    """Pause for `wait_ms` (plus jitter, which is the driver's) before the next attempt."""

    wait_ms: int


@dataclass(frozen=True, slots=True)
class ShowHistory:
    """Show the primary what was reached and shown here: it must hold all of it (T33)."""


@dataclass(frozen=True, slots=True)
class ReadRegistry:
    """Ask the primary for its topic registry."""


@dataclass(frozen=True, slots=True)
class ApplyTopics:
    """Create and reconfigure topics, then open all logs of `all_topics` (T15: deletions come later).

    Logs of the `grown` are opened and copied, but the topics grow only at a tidemark that names those logs.
    """

    created: tuple[MirrorTopic, ...]
    reconfigured: tuple[MirrorTopic, ...]
    all_topics: tuple[MirrorTopic, ...]
    grown: tuple[MirrorTopic, ...] = ()


@dataclass(frozen=True, slots=True)
class AwaitTidemarkToDelete:
    """Delete these topics once a tidemark with M >= `metadata_version` is reached (T15)."""

    metadata_version: int
    topics: tuple[MirrorTopic, ...]


@dataclass(frozen=True, slots=True)
class AwaitTidemarkToShrink:
    """Cut these topics to their partition count once a tidemark with M >= `metadata_version` is reached."""

    metadata_version: int
    topics: tuple[MirrorTopic, ...]


@dataclass(frozen=True, slots=True)
class CheckEpochs:
    """Ask the primary where its logs leave these leader epochs (T23)."""

    logs: Mapping[LogKey, MirrorLogEnd]


@dataclass(frozen=True, slots=True)
class Diverged:
    """The mirror's log holds from `diverges_at` on what the primary does not have. Never cut silently.

    The primary ends leader epoch `primary_leader_epoch` at `primary_end_offset`; the mirror must look where its own log
    leaves that epoch, keep the smaller of both, and put the rest into quarantine.
    """

    key: LogKey
    primary_leader_epoch: LeaderEpoch
    primary_end_offset: int
    mirror_end_offset: int


@dataclass(frozen=True, slots=True)
class HandOverDivergence:
    """Give the diverged tails to quarantine, and wait until they are there and the logs are cut."""

    divergences: tuple[Diverged, ...]


@dataclass(frozen=True, slots=True)
class StartLogs:
    """Let these empty logs begin where the primary's begin: what lies before was deleted at the primary (T14)."""

    offsets: Mapping[LogKey, int]


@dataclass(frozen=True, slots=True)
class TakeBackStarts:
    """Let these logs start where the primary's do: what was deleted there by order is not part of its history (T14)."""

    offsets: Mapping[LogKey, int]


@dataclass(frozen=True, slots=True)
class TakeBackView:
    """Show nothing, in all logs at once, until those that `HandOverDivergence` names are cut: what was shown is not in the
    primary's history, and goes log by log (T17, T25).
    """


@dataclass(frozen=True, slots=True)
class LogsReconciled:
    """These logs were checked under the region epoch of this session: they count for tidemarks (T23)."""

    region_epoch: RegionEpoch
    keys: tuple[LogKey, ...]


@dataclass(frozen=True, slots=True)
class SendFetch:
    """Send one more fetch; `positions` are new to the session, `forgotten` leave it."""

    positions: Mapping[LogKey, int]
    forgotten: tuple[LogKey, ...]


LinkEffect: TypeAlias = (
    Connect
    | Disconnect
    | WaitBackoff
    | ShowHistory
    | ReadRegistry
    | ApplyTopics
    | AwaitTidemarkToDelete
    | AwaitTidemarkToShrink
    | CheckEpochs
    | HandOverDivergence
    | StartLogs
    | TakeBackStarts
    | TakeBackView
    | LogsReconciled
    | SendFetch
)
