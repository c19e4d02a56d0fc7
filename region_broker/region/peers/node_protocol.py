"""What two nodes of one region say first, apart from the Hello between regions; and a probe, whether the other is there.

A connection opens as every one does (`protocol`): the preface, then a `NodeHello` in place of a `Hello`, answered by the
other's `NodeHello`, or by a refusal. An older version knows no `NodeHello` and closes the connection.
Not here: who is let in (`region.cluster.standing`), what is said later (whoever registers it).
"""

from typing import Final, Protocol
from uuid import UUID

from region_broker.controller.raft.entries import Member
from region_broker.region.peers.protocol import PeerMessage, PeerRefused

OTHER_REGION: Final = "other-region"
OTHER_MEMBER: Final = "other-member"
SAME_MEMBER: Final = "same-member"
FEATURE_LEVEL: Final = "feature-level"
REMOVED_MEMBER: Final = "removed-member"
OTHER_LINE: Final = "other-line"
RAFT_LINE: Final = ""
REPLICA_LINE: Final = "replica"
LINES: Final = frozenset({RAFT_LINE, REPLICA_LINE})
"""What a connection between two nodes is for; each has one of its own, so that none waits behind another one's bytes."""


class NodeHello(PeerMessage, frozen=True, kw_only=True):
    """The first message of a connection between nodes of one region, and its answer.

    `incarnation`: of the folder, with `node_id` the `Member`. `life`: drawn at each start of the process.
    `feature_level`: what the node speaks; who does not know it refuses. `line`: one of `LINES`.
    """

    cluster_id: str
    region: str
    node_id: int
    incarnation: UUID
    life: UUID
    feature_level: int
    line: str = RAFT_LINE

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
    """Asks whether the other side is there: a connection through which nothing comes any more is to be noticed."""


class Probed(PeerMessage, frozen=True, kw_only=True):
    """The answer to `Probe`."""
