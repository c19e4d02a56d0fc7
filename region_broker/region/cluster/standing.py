"""Who this node is among the nodes of its region, and whom it talks to.

INV-CLH1  a node talks to members of its own cluster and region that the quorum has not removed, whose folders know their newest
          start that it knows, whose place no other folder took (INV-FRP1), at a feature level that it knows, and not to whoever says that it is this member: a copy of its folder runs elsewhere. Both sides judge
Not here: the messages (`region.peers.node_protocol`), who tells that a member is removed.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final
from uuid import UUID

from geo_replicator.folder_life import Shown
from region_broker.controller.feature_levels import SUPPORTED, objection_to, told
from region_broker.controller.raft.entries import Member
from region_broker.region.peers.node_protocol import (
    FEATURE_LEVEL,
    NEWER_LEVEL,
    OTHER_MEMBER,
    OTHER_REGION,
    OUTDATED_FOLDER,
    REMOVED_MEMBER,
    REPLACED_MEMBER,
    SAME_MEMBER,
    NodeHello,
)
from region_broker.region.peers.protocol import OTHER_CLUSTER, PeerRefused
from region_broker.region.peers.replacement import Replacement

NODE_IDS: Final = range(2**31)


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStanding:
    """This node's `NodeIdentity`. `life`: drawn at this start of the process.

    `is_removed`: whether the quorum is known to have removed a member. `levels`: the feature levels that this code knows. `finalized`: that
    of the region, None while nothing is known of it.
    """

    cluster_id: str
    region: str
    member: Member
    life: UUID
    is_removed: Callable[[Member], bool]
    replaced: Callable[[Member], Replacement | None] = lambda _member: None
    """On which grounds this node says that another folder took the place of a member's (INV-FRP1)."""
    levels: range = SUPPORTED
    finalized: Callable[[], int | None] = lambda: None
    starts: Callable[[], Shown | None] = lambda: None
    """The starts of this node's folder, once they are known."""
    opens_logs: Callable[[], bool] = lambda: False
    """Whether this node is still about to open its logs: others lead rather than it (INV-CV4)."""
    is_outdated: Callable[[NodeHello], bool] = lambda _hello: False
    """Whether the quorum is known to know a later start of the folder of whoever says that."""
    is_damaged: Callable[[], bool] = lambda: False
    """Whether this node had better not lead (INV-CV5)."""

    def is_gone(self, member: Member) -> bool:
        """Return whether the region goes on without that folder: it was removed, or replaced."""
        return self.is_removed(member) or self.replaced(member) is not None

    def hello(self) -> NodeHello:
        """See `NodeIdentity`."""
        finalized = self.finalized()
        return NodeHello(
            cluster_id=self.cluster_id,
            region=self.region,
            node_id=self.member.node_id,
            incarnation=self.member.incarnation,
            life=self.life,
            feature_level=self.levels[0] if finalized is None else finalized,
            starts=self.starts(),
            lowest_level=self.levels[0],
            newest_level=self.levels[-1],
            finalized_level=finalized,
            damaged=self.is_damaged(),
            opens_logs=self.opens_logs(),
        )

    def objection(self, theirs: NodeHello) -> PeerRefused | None:
        """See `NodeIdentity` (INV-CLH1)."""
        if theirs.cluster_id != self.cluster_id:
            return PeerRefused(
                OTHER_CLUSTER,
                f"node {self.member} belongs to cluster {self.cluster_id}, the peer to {theirs.cluster_id!r}: check"
                " the addresses of the nodes",
            )
        if theirs.region != self.region:
            return PeerRefused(
                OTHER_REGION,
                f"node {self.member} belongs to region {self.region}, the peer to {theirs.region!r}: nodes of two"
                " regions say Hello to each other",
            )
        return self._objection_to_levels(theirs) or self._objection_to_member(theirs)

    def _objection_to_levels(self, theirs: NodeHello) -> PeerRefused | None:
        """Return why the two may not know what the other one writes (INV-FL3); whose region is at a level, both codes must know it."""
        ours = self.finalized()
        for level in (ours, theirs.finalized_level):
            if level is None:
                continue
            why = objection_to(theirs.levels, level, who=f"node {theirs.member.node_id}")
            if why is not None:
                return PeerRefused(NEWER_LEVEL if level > theirs.levels[-1] else FEATURE_LEVEL, why)
            why = objection_to(self.levels, level, who=f"node {self.member.node_id}")
            if why is not None:
                return PeerRefused(FEATURE_LEVEL, why)
        if not set(self.levels) & set(theirs.levels):
            return PeerRefused(
                FEATURE_LEVEL,
                f"node {self.member} knows the feature levels {told(self.levels)}, the peer {told(theirs.levels)}: update the older"
                " one first",
            )
        return None

    def _objection_to_member(self, theirs: NodeHello) -> PeerRefused | None:
        member = theirs.member
        if member == self.member and theirs.life == self.life:
            return PeerRefused(
                SAME_MEMBER, f"this is node {member} itself: an address of another node leads here"
            )
        if member == self.member:
            return PeerRefused(
                SAME_MEMBER,
                f"node {member} runs here already: the peer has a copy of its folder. End one of the two; a node"
                " that is to join needs a folder of its own",
            )
        if member.node_id not in NODE_IDS:
            return PeerRefused(OTHER_MEMBER, f"{member.node_id} is no id of a node")
        if self.is_removed(member):
            return PeerRefused(
                REMOVED_MEMBER,
                f"the quorum has removed node {member}: empty its folder, and let it join as a new member",
            )
        replacement = self.replaced(member)
        if replacement is not None:
            return PeerRefused(
                REPLACED_MEMBER,
                f"folder {replacement.successor} took the place of that of node {member}: empty it, and let it join as a new member",
                replacement,
            )
        if self.is_outdated(theirs):
            return PeerRefused(
                OUTDATED_FOLDER,
                f"the folder of node {member} is an older copy: give the newest one back, or empty it, and let it join as a new"
                " member",
            )
        return None


@dataclass(frozen=True, slots=True)
class StandingTowards:
    """The same for a connection that is to reach one member: whoever else answers is not spoken to."""

    own: NodeStanding
    expected: Member

    def hello(self) -> NodeHello:
        """See `NodeIdentity`."""
        return self.own.hello()

    def objection(self, theirs: NodeHello) -> PeerRefused | None:
        """See `NodeIdentity`."""
        objection = self.own.objection(theirs)
        if objection is None and theirs.member != self.expected:
            return PeerRefused(
                OTHER_MEMBER,
                f"node {theirs.member} answers where node {self.expected} is looked for",
            )
        return objection
