"""What two nodes of one region say first, apart from the Hello between regions; and a probe, whether the other is there.

A connection opens as every one does (`protocol`): the preface, then a `NodeHello` in place of a `Hello`, answered by the
other's `NodeHello`, or by a refusal. An older version knows no `NodeHello` and closes the connection.
What a connection is for, its `NodeHello` says, once: it is served what is registered for that purpose (INV-PSS3).
Not here: who is let in (`region.cluster.standing`), what is said later (whoever registers it).
"""

from typing import Final, Literal, Protocol, TypeAlias
from uuid import UUID

from geo_replicator.folder_life import Shown
from region_broker.controller.raft.entries import Member
from region_broker.region.peers.protocol import PeerMessage, PeerRefused

OTHER_REGION: Final = "other-region"
OTHER_MEMBER: Final = "other-member"
SAME_MEMBER: Final = "same-member"
FEATURE_LEVEL: Final = "feature-level"
REMOVED_MEMBER: Final = "removed-member"
REPLACED_MEMBER: Final = "replaced-member"
"""Another folder took the place of that of the other one; the refusal has the grounds (`Replacement`)."""
OUTDATED_FOLDER: Final = "outdated-folder"
"""The region knows a later start of the folder."""
NEWER_LEVEL: Final = "newer-feature-level"
"""The region is at a feature level that the code of the other one does not know (INV-FL3)."""
FOR_GOOD: Final = frozenset({REMOVED_MEMBER, REPLACED_MEMBER, OUTDATED_FOLDER, NEWER_LEVEL})
"""Refusals that no time mends: `ShutOut`."""

Purpose: TypeAlias = Literal["raft", "replica", "forward", "statements", "leading"]
RAFT: Final = "raft"
"""Messages of the quorum: the connection of a member's transport, of which it has one."""
REPLICA: Final = "replica"
"""A follower copies logs over it."""
FORWARD: Final = "forward"
"""Requests of one client connection of the other node, which are to be executed here."""
STATEMENTS: Final = "statements"
"""Loss statements that the other node lacks."""
LEADING: Final = "leading"
"""Leaders of replica groups ask each other while leaders are spread; an older version closes the connection."""
WAITING: Final = frozenset({FORWARD, LEADING})
"""Purposes whose connections do not probe: one that is silent may wait for an answer."""
PURPOSES: Final[tuple[Purpose, ...]] = (RAFT, REPLICA, FORWARD, STATEMENTS, LEADING)


class NodeHello(PeerMessage, frozen=True, kw_only=True):
    """The first message of a connection between nodes of one region, and its answer.

    `incarnation`: of the folder, with `node_id` the `Member`. `life`: drawn at each start of the process.
    `feature_level`: what the node speaks, for a version that tells no range; that one refuses what it does not know. `purpose`: what the
    connection is for; in an answer it says nothing. `starts`: those of the folder, None from a version that does not tell.
    `opens_logs`: whether it is still about to open its logs; False from a version that does not tell.
    `lowest_level`, `newest_level`: what the code knows; None from a version that knows `feature_level` alone. `finalized_level`: that of
    the region; None from one that has seen nothing of its region yet, or does not tell. `damaged`: as in `Probe`.
    """

    cluster_id: str
    region: str
    node_id: int
    incarnation: UUID
    life: UUID
    feature_level: int
    purpose: Purpose = RAFT
    starts: Shown | None = None
    lowest_level: int | None = None
    newest_level: int | None = None
    finalized_level: int | None = None
    damaged: bool = False
    opens_logs: bool = False

    @property
    def levels(self) -> range:
        """Return which feature levels the other's code knows."""
        if self.lowest_level is None or self.newest_level is None:
            return range(self.feature_level, self.feature_level + 1)
        return range(self.lowest_level, self.newest_level + 1)

    @property
    def member(self) -> Member:
        """Return which member speaks."""
        return Member(self.node_id, self.incarnation)


class NodeIdentity(Protocol):
    """Who this node is among those of its region, and whom it talks to."""

    def hello(self) -> NodeHello:
        """Return this node's hello."""
        ...

    def objection(self, theirs: NodeHello) -> PeerRefused | None:
        """Return why this node does not talk to whoever said `theirs`, None if it does."""
        ...


class Probe(PeerMessage, frozen=True, kw_only=True):
    """Asks whether the other side is there: a connection through which nothing comes any more is to be noticed.

    `damaged`: who asks had better not lead, as its disk has lost something that is not mended (INV-CV5); an older version does not tell.
    `opens_logs`: as in `NodeHello`, at this moment. Who drops the field takes the node for ready, as older versions do.
    """

    damaged: bool = False
    opens_logs: bool = False


class Probed(PeerMessage, frozen=True, kw_only=True):
    """The answer to `Probe`; `damaged` of who answers."""

    damaged: bool = False
