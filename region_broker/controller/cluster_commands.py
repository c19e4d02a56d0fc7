"""Commands that change a region's nodes, and who leads its logs; what came with a later feature level than the first one.

Not here: what they do, and when they are refused (`cluster_changes`).
"""

from typing import TypeAlias
from uuid import UUID

import msgspec

from geo_replicator.folder_life import Shown
from idempotency.identity import LeaderEpoch
from region_broker.controller.cluster_image import AddedNode, NodeImage
from region_broker.controller.metadata_image import DomainImage
from region_broker.controller.raft.entries import Member


class RegisterNode(msgspec.Struct, frozen=True, tag=True):
    """A node says who it is: for the first time, in a new life, or with another folder. It begins fenced (KIP-631).

    What `node` says of `fenced`, `draining` and its past is not looked at. `starts`: those of its folder, None from a version that
    does not tell.
    """

    node: NodeImage
    starts: Shown | None = None


class FenceNode(msgspec.Struct, frozen=True, tag=True):
    """A node is not heard any more, in exactly that life."""

    node_id: int
    life: UUID


class UnfenceNode(msgspec.Struct, frozen=True, tag=True):
    """A node is heard, in exactly that life."""

    node_id: int
    life: UUID


class DrainNode(msgspec.Struct, frozen=True, tag=True):
    """A node is about to stop, and takes nothing on until its next life (a controlled shutdown)."""

    node_id: int
    life: UUID


class RemoveNode(msgspec.Struct, frozen=True, tag=True):
    """Forget a node; refused while the logs may hang on it."""

    node_id: int
    incarnation: UUID


class AddNode(msgspec.Struct, frozen=True, tag=True):
    """Make a node known to all nodes of the region, before it runs; refused where its id or an address of it is another one's.

    One that is known and not heard is given other addresses by it. It gives nobody a vote, and nobody waits for that node.
    """

    node: AddedNode


class WithdrawNode(msgspec.Struct, frozen=True, tag=True):
    """Take back that a node was added; refused once it has registered: then it is removed (`RemoveNode`)."""

    node_id: int


class ElectLeader(msgspec.Struct, frozen=True, tag=True):
    """Let an in-sync member lead under a new leader epoch; the in-sync set stays, until the new leader says otherwise."""

    leader: Member
    leader_epoch: LeaderEpoch
    expected_version: int


class ElectUnclean(msgspec.Struct, frozen=True, tag=True):
    """Let a member lead that is not in sync, by an operator's word: what only others hold is lost (KIP-106, KIP-966)."""

    leader: Member
    leader_epoch: LeaderEpoch
    expected_version: int


class ChangeInSync(msgspec.Struct, frozen=True, tag=True):
    """The present leader says who is in sync with it (AlterPartition, KIP-497).

    A refusal says nothing of the same change that was asked for before: 1. A leader asks to add a member, and hears nothing. 2. It asks
    again. 3. The first was applied, so the second is refused. Until it has applied the metadata that refused it, a leader counts on
    whoever is in sync by either, or what it acknowledges is missing where the next leader comes from.
    """

    leader: Member
    leader_epoch: LeaderEpoch
    in_sync: tuple[Member, ...]
    expected_version: int


class FinalizeLevel(msgspec.Struct, frozen=True, tag=True):
    """Raise the region's feature level to `level`; refused unless every registered node knows it (KIP-584, INV-FL2)."""

    level: int


class PreferSpread(msgspec.Struct, frozen=True, tag=True):
    """An operator's word, whether leaders are to be spread whenever the region acts steadily; changes nothing else (ADR 53)."""

    wanted: bool


class SpreadLeaders(msgspec.Struct, frozen=True, tag=True):
    """Let data groups be led by other nodes than the main group's leader, which asks for it under its own leader epoch.

    `preferred`: node ids by group number, the first one that of `leader`; the others are elected with this, each under a leader epoch of its
    own, the next ones after `last_leader_epoch`, with the in-sync set of the main group. `expected_version`: of the main group's row, which grows.
    `failover_number`: of the region's folder as this was decided, so that it is refused behind an event of the failover machine (INV-SPR11).
    """

    leader: Member
    leader_epoch: LeaderEpoch
    preferred: tuple[int, ...]
    topics: tuple[UUID, ...]
    expected_version: int
    failover_number: int = 0


class ElectGroupLeader(msgspec.Struct, frozen=True, tag=True):
    """`ElectLeader` of a data group; the others stay as they are."""

    group: int
    leader: Member
    leader_epoch: LeaderEpoch
    expected_version: int


class ChangeGroupInSync(msgspec.Struct, frozen=True, tag=True):
    """`ChangeInSync` of a data group, by that group's leader."""

    group: int
    leader: Member
    leader_epoch: LeaderEpoch
    in_sync: tuple[Member, ...]
    expected_version: int


class GatherLeaders(msgspec.Struct, frozen=True, tag=True):
    """End the spread: the main group's leader leads all logs again, elected anew under the next leader epoch.

    Any node may ask for it. `expected_version`: of the main group's row. Whoever is in sync afterwards was in sync in every group.
    """

    expected_version: int


NodeCommand: TypeAlias = (
    RegisterNode | FenceNode | UnfenceNode | DrainNode | RemoveNode | AddNode | WithdrawNode
)
LeadershipCommand: TypeAlias = ElectLeader | ElectUnclean | ChangeInSync
SpreadCommand: TypeAlias = (
    PreferSpread | SpreadLeaders | ElectGroupLeader | ChangeGroupInSync | GatherLeaders
)


class BearDomain(msgspec.Struct, frozen=True, tag=True):
    """Let a domain have what its birth says, as far as it lacks that (INV-M18); never refused.

    1. A node starts, and reads that the domain has no birth noted yet. 2. A takeover is recorded. 3. What the node sends is
    applied: it must not take the takeover back, nor end the node because of it.
    """

    domain: DomainImage


ClusterCommand: TypeAlias = (
    RegisterNode
    | FenceNode
    | UnfenceNode
    | DrainNode
    | RemoveNode
    | AddNode
    | WithdrawNode
    | ElectLeader
    | ElectUnclean
    | ChangeInSync
    | FinalizeLevel
    | PreferSpread
    | SpreadLeaders
    | ElectGroupLeader
    | ChangeGroupInSync
    | GatherLeaders
)
