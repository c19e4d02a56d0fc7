"""What a member knows of its group at one moment, for people and their tools: nothing is decided by it.

Not here: who asks for it (`shell`), how it is told in Kafka's words (`handlers.admin.describe_quorum`).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from region_broker.controller.raft.entries import LogIndex, Member, Membership, Term


@dataclass(frozen=True, slots=True)
class FollowerFacts:
    """How far a leader knows a follower's log to be its own, and when that one answered last, by the monotonic clock."""

    matched_index: LogIndex
    heard_ms: int


@dataclass(frozen=True, slots=True)
class GroupFacts:
    """One member's view. `leader` None: nobody known; `followers`: of all others, empty where `me` does not lead."""

    me: Member
    leader: Member | None
    term: Term
    commit_index: LogIndex
    last_index: LogIndex
    membership: Membership
    followers: Mapping[Member, FollowerFacts]

    @property
    def leads(self) -> bool:
        """Return whether this member leads."""
        return self.leader == self.me
