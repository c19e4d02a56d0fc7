"""The feature level of a region: what all of its nodes know, and so may be written (KIP-584; ADR 52).

A release knows a range of levels. The region's metadata hold one, the *finalized* one, and an operator raises it, when no node of
an older release is left.

INV-FL1  what a level brought (a command, a field that changes what a command does, a message between nodes) is written only once that
         level is finalized: an older release would end on it, or drop a part of it, and have other metadata than the others
INV-FL2  the level is raised only where every registered node knows the new one, and is never lowered
INV-FL3  a node registers only where its code knows the finalized level
INV-FL4  what `apply` makes of a command that an older level has is the same at that level, whatever the release

A level is never given a second meaning. Whoever adds a command, or a field of one, adds a level or names that of its release, in
`_SINCE`; a test holds each level to what it had when it was released.
Not here: what is a region's level (`MetadataImage.feature_level`), who raises it (`region.feature_raising`).
"""

from collections.abc import Mapping
from typing import Final

from idempotency.identity import RegionEpoch
from region_broker.controller.access_commands import ChangeAccess, FollowAccess
from region_broker.controller.cluster_commands import (
    AddNode,
    BearDomain,
    ChangeGroupInSync,
    ElectGroupLeader,
    FinalizeLevel,
    GatherLeaders,
    PreferSpread,
    SpreadLeaders,
    WithdrawNode,
)
from region_broker.controller.refusals import CommandRefused

FIRST_LEVEL: Final = 1
"""What folders have that name none, and what nodes speak that say no range."""
SUPPORTED: Final = range(FIRST_LEVEL, 5)
"""What this release knows. 2 brought: levels that are finalized; a region that grows from one node (INV-MH7); births that take no takeover back (INV-M18).
3 brought: leaders that are spread (ADR 53); nodes that are added to a region that runs (INV-MN8).
4 brings: users, ACLs, quotas and tokens in the metadata (ADR 56); topics that are sealed (ADR 61);
wishes that count only while whoever asked leads (INV-M22); a lineage entry that takes another one's place (INV-M24)."""
SEALS_SINCE_LEVEL: Final = 4
"""An older node would write such a topic in the open, and give its readers what is sealed."""
LED_SINCE_LEVEL: Final = 4
"""An older node would let such a wish count all the same, and have other metadata than the others."""
RELEARNS_SINCE_LEVEL: Final = 4
"""An older node would refuse such an entry, and have another lineage than the others."""
LEVELS_MAX: Final = 256
"""More are not told apart by clients (`finalized_epoch`)."""
FEATURE: Final = "tidemark.version"
"""What clients call it (KIP-584): `metadata.version` is Kafka's own, whose numbers mean Kafka's releases."""
NOT_SUPPORTED: Final = "feature-level"
"""The code of refusals because of a level."""

_SINCE: Final[Mapping[type, int]] = {
    FinalizeLevel: 2,
    BearDomain: 2,
    PreferSpread: 3,
    SpreadLeaders: 3,
    ElectGroupLeader: 3,
    ChangeGroupInSync: 3,
    GatherLeaders: 3,
    AddNode: 3,
    WithdrawNode: 3,
    ChangeAccess: 4,
    FollowAccess: 4,
}
"""What came with a later level than the first one."""

assert SUPPORTED.stop <= LEVELS_MAX


def since(what: object) -> int:
    """Return the lowest level at which `what` (a command, a message) may be written (INV-FL1)."""
    return since_type(type(what))


def since_type(kind: type) -> int:
    """Return the level that brought a type of command or message."""
    return _SINCE.get(kind, FIRST_LEVEL)


def allows(level: int, what: object) -> bool:
    """Return whether `what` may be written where `level` is finalized; asked by whoever proposes or sends it (INV-FL1).

    What raises the level belongs to the level that it raises to: nobody is there who does not know that one (INV-FL2).
    """
    return since(what) <= (max(level, what.level) if isinstance(what, FinalizeLevel) else level)


def refused_as_unknown(level: int, what: object) -> CommandRefused:
    """Return what to raise where `level` does not allow `what`."""
    return CommandRefused(
        NOT_SUPPORTED,
        f"{type(what).__name__} came with feature level {since(what)}, and this region is at {level}: older nodes would not know it."
        " When all nodes run this version, raise it: tidemark cluster upgrade --finalize",
    )


def objection_to(own: range, level: int, *, who: str) -> str | None:
    """Return why code that knows the levels `own` cannot take part in a region at `level`, and what to do; None if it can."""
    if level in own:
        return None
    known = f"the code of {who} knows the feature levels {told(own)}, and its region is at {level}"
    if level > own[-1]:
        return f"{known}: install the version that the other nodes run, or a newer one, and start it again"
    return (
        f"{known}: install the version that the other nodes run, raise the level there (tidemark cluster upgrade --finalize), and"
        " install this one after that"
    )


def finalized_epoch(region_epoch: RegionEpoch, level: int) -> int:
    """Return a number that grows with each change of what clients may count on (FinalizedFeaturesEpoch, KIP-584)."""
    assert 0 <= level < LEVELS_MAX, level
    return max(0, region_epoch) * LEVELS_MAX + level


def told(levels: range) -> str:
    """Return a range of levels as people read it; what another node says may be empty."""
    if not levels:
        return "none"
    return str(levels[0]) if len(levels) == 1 else f"{levels[0]} to {levels[-1]}"
